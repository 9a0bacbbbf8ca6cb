package io.deltasluice.storage;

import java.io.IOException;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.Set;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** How one kind of storage creates a file that must not exist yet, whole or not at all. */
interface PutIfAbsent {
  /**
   * What the C library says of the errors that mean that no link was made, and none will be: EPERM, EOPNOTSUPP, ENOSYS,
   * EMLINK, EXDEV, EROFS. Java has the words only. In another language, and with every other error, it is not known: a
   * server of NFS may make a link whose client gave up waiting (EIO, ETIMEDOUT).
   */
  Set<String> NO_LINK = Set.of(
      "Operation not permitted",
      "Operation not supported",
      "Function not implemented",
      "Too many links",
      "Invalid cross-device link",
      "Read-only file system");

  /**
   * Creates the file.
   *
   * @throws FileAlreadyExistsException there is one; it may be ours, if an earlier answer was lost
   * @throws RejectedException nothing was stored, and nothing of it is on its way
   * @throws IOException anything else: it may have been stored, or be on its way
   */
  void put(Path path, byte[] content, Configuration conf) throws IOException;

  /**
   * Makes sure, before a version file is put, that {@link #put} does not replace an existing file on its storage.
   *
   * @throws CommitRefusedException it does
   * @throws IOException the storage gave no answer that proves it
   */
  void requireProof(VersionFile file, Configuration conf) throws IOException;

  /** A store's definite no. */
  final class RejectedException extends IOException {
    private static final long serialVersionUID = 1L;

    RejectedException(Exception cause) {
      super(cause.getMessage(), cause);
    }

    IOException reason() {
      return getCause() instanceof IOException failure ? failure : this;
    }
  }

  /** S3 through S3A: a PUT with {@code If-None-Match: *}. */
  final class S3a implements PutIfAbsent {
    @Override
    public void put(Path path, byte[] content, Configuration conf) throws IOException {
      FileSystem fs = path.getFileSystem(conf);
      FSDataOutputStreamBuilder<?, ?> builder = fs.createFile(path);
      FSDataOutputStream out;
      try {
        // Whether it exists is for S3 to say, with the PUT. S3A's own look at it before that could only be outdated.
        out = builder
            .overwrite(true)
            .must("fs.option.create.conditional.overwrite", true)
            .opt("fs.s3a.create.performance", true)
            .build();
      } catch (IOException | RuntimeException e) {
        // A file system that cannot do it says so here.
        throw new RejectedException(e);
      }
      // Nothing is sent before the end, unless it is larger than a part; that is made one object by the end, too.
      boolean written = false;
      try {
        out.write(content);
        written = true;
      } catch (IOException | RuntimeException e) {
        throw new RejectedException(e);
      } finally {
        if (!written) {
          out.abort();
        }
      }
      try {
        out.close();
      } catch (IOException e) {
        throw explained(e, path);
      }
    }

    @Override
    public void requireProof(VersionFile file, Configuration conf) throws IOException {
      // Many servers speak this protocol, and some ignore the header.
      ConditionalPutProof.require(this, file, conf);
    }

    /**
     * Tells a version that exists from everything else. S3A and the SDK repeat a request by themselves, and show its
     * last answer only: even a 403 does not tell that an earlier request of this very put was not stored.
     */
    private static IOException explained(IOException e, Path path) {
      return statusOf(e) == 412 ? new FileAlreadyExistsException(path.toString()) : e;
    }

    /** Returns the HTTP status behind an exception of S3A, 0 if there was no answer. */
    private static int statusOf(Throwable e) {
      for (Throwable layer = e; layer != null; layer = layer.getCause()) {
        if (layer instanceof software.amazon.awssdk.awscore.exception.AwsServiceException service) {
          return service.statusCode();
        }
      }
      return 0;
    }
  }

  /** A local disk: a file of another name, then a hard link, which fails if the name exists. */
  final class HardLink implements PutIfAbsent {
    @Override
    public void put(Path path, byte[] content, Configuration conf) throws IOException {
      URI uri = path.toUri();
      java.nio.file.Path target = java.nio.file.Path.of(uri.getPath());
      java.nio.file.Path temporary = target.resolveSibling("." + target.getFileName() + "." + UUID.randomUUID() + ".tmp");
      try {
        try {
          Files.createDirectories(target.getParent());
          try (FileChannel channel =
              FileChannel.open(temporary, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
            ByteBuffer left = ByteBuffer.wrap(content);
            while (left.hasRemaining()) {
              channel.write(left);
            }
            channel.force(true);
          }
          // A checksum that an earlier file of this name has left behind would condemn this one.
          Files.deleteIfExists(target.resolveSibling("." + target.getFileName() + ".crc"));
        } catch (IOException e) {
          throw new RejectedException(e);
        }
        PutIfAbsent.link(target, temporary);
        // The name has to survive a power cut, too.
        try (FileChannel folder = FileChannel.open(target.getParent(), StandardOpenOption.READ)) {
          folder.force(true);
        }
      } finally {
        Files.deleteIfExists(temporary);
      }
    }

    @Override
    public void requireProof(VersionFile file, Configuration conf) {
      // link(2) fails where the name exists: POSIX demands it, and the kernel does it.
    }
  }

  /** Gives a file its final name, which must be free. */
  private static void link(java.nio.file.Path target, java.nio.file.Path temporary) throws IOException {
    try {
      Files.createLink(target, temporary);
    } catch (AccessDeniedException | UnsupportedOperationException e) {
      throw noLink(target, e);
    } catch (FileSystemException e) {
      // Of a name that exists, or a folder that does not, Java says no more than that.
      throw e.getReason() != null && NO_LINK.contains(e.getReason()) ? noLink(target, e) : e;
    }
  }

  private static IOException noLink(java.nio.file.Path target, Exception cause) {
    if (Files.notExists(target)) {
      return new RejectedException(new IOException("this disk makes no hard links: " + cause.getMessage(), cause));
    }
    return cause instanceof IOException failure ? failure : new IOException(cause);
  }

  /** A file system for which Delta's own log store puts if absent. */
  record Delegated(io.delta.storage.LogStore store) implements PutIfAbsent {
    @Override
    public void put(Path path, byte[] content, Configuration conf) throws IOException {
      String[] lines = new String(content, StandardCharsets.UTF_8).split("\n");
      store.write(path, Arrays.asList(lines).iterator(), false, conf);
    }

    @Override
    public void requireProof(VersionFile file, Configuration conf) {
      // HDFS, Azure and Google each have one service, whose rename or create is documented to fail where the name exists.
      // A trial would prove nothing: Delta's stores for them look whether the file exists before they ask the service.
    }
  }
}
