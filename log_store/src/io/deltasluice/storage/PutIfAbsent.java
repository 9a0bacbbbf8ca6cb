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
import org.apache.hadoop.fs.Path;

/** Creates a file, completely or not at all, on condition that it does not exist. */
interface PutIfAbsent {
  /**
   * The C library's messages of the errors after which no link exists, now or later: EPERM, EOPNOTSUPP, ENOSYS, EMLINK,
   * EXDEV, EROFS. Java has only the message. After any other error, or with messages in another language, the outcome
   * is unknown: an NFS server may create a link after its client timed out (EIO, ETIMEDOUT).
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
   * @throws FileAlreadyExistsException the file exists; an earlier put with a lost response may have created it
   * @throws RejectedException nothing was stored, and nothing will be
   * @throws IOException any other failure: the content may have been stored, or may be stored later
   */
  void put(Path path, byte[] content, Configuration conf) throws IOException;

  /**
   * Makes sure, before a version file is put, that {@link #put} does not replace an existing file in its storage.
   *
   * @throws CommitRefusedException {@link #put} replaces files
   * @throws IOException the storage gave no response that proves it
   */
  void requireProof(VersionFile file, Configuration conf) throws IOException;

  /** A store definitely did not store the content. */
  final class RejectedException extends IOException {
    private static final long serialVersionUID = 1L;

    RejectedException(Exception cause) {
      super(cause.getMessage(), cause);
    }

    IOException reason() {
      return getCause() instanceof IOException failure ? failure : this;
    }
  }

  /** A local disk: writes a temporary file, and creates a hard link to it, which fails if the name exists. */
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
            ByteBuffer buffer = ByteBuffer.wrap(content);
            while (buffer.hasRemaining()) {
              channel.write(buffer);
            }
            channel.force(true);
          }
          // The checksum file of an earlier file of this name would not match this file.
          Files.deleteIfExists(target.resolveSibling("." + target.getFileName() + ".crc"));
        } catch (IOException e) {
          throw new RejectedException(e);
        }
        PutIfAbsent.link(target, temporary);
        // The new name must survive a power failure, too.
        try (FileChannel folder = FileChannel.open(target.getParent(), StandardOpenOption.READ)) {
          folder.force(true);
        }
      } finally {
        Files.deleteIfExists(temporary);
      }
    }

    @Override
    public void requireProof(VersionFile file, Configuration conf) {
      // POSIX requires that link(2) fails if the name exists.
    }
  }

  /** Links a file to its final name, which must be free. */
  private static void link(java.nio.file.Path target, java.nio.file.Path temporary) throws IOException {
    try {
      Files.createLink(target, temporary);
    } catch (AccessDeniedException | UnsupportedOperationException e) {
      throw noLink(target, e);
    } catch (FileSystemException e) {
      // Java throws this class also if the name exists, or its folder does not.
      throw e.getReason() != null && NO_LINK.contains(e.getReason()) ? noLink(target, e) : e;
    }
  }

  private static IOException noLink(java.nio.file.Path target, Exception cause) {
    if (Files.notExists(target)) {
      return new RejectedException(new IOException("this disk makes no hard links: " + cause.getMessage(), cause));
    }
    return cause instanceof IOException failure ? failure : new IOException(cause);
  }

  /** A file system on which Delta's own log store creates files only if they are absent. */
  record Delegated(io.delta.storage.LogStore store) implements PutIfAbsent {
    @Override
    public void put(Path path, byte[] content, Configuration conf) throws IOException {
      String[] lines = new String(content, StandardCharsets.UTF_8).split("\n");
      store.write(path, Arrays.asList(lines).iterator(), false, conf);
    }

    @Override
    public void requireProof(VersionFile file, Configuration conf) {
      // The services of HDFS, Azure and Google document that their rename or create fails if the name exists. A trial
      // would prove nothing, because Delta's stores check whether the file exists before they call the service.
    }
  }
}
