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

/** Creates a file if it does not exist, completely or not at all. */
interface PutIfAbsent {
  /**
   * The C library's messages of EPERM, EOPNOTSUPP, ENOSYS, EMLINK, EXDEV and EROFS. After such an error the request has
   * created no link, and will create none later. Java's exception has the message, but no error number. (EACCES, which
   * is as definite, has a class of its own.) After any other error, or with messages in another language, the outcome
   * is unknown: an NFS server may create a link after its client timed out (EIO, ETIMEDOUT).
   */
  Set<String> DEFINITE_LINK_ERRORS = Set.of(
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
   * @throws RejectedException the content was not stored, and will not be stored later
   * @throws IOException any other failure: the content may have been stored, or may be stored later
   */
  void put(Path path, byte[] content, Configuration conf) throws IOException;

  /**
   * Requires a proof that {@link #put} replaces no existing file in the storage of a version file. The caller puts the
   * version file after that.
   *
   * @throws CommitRefusedException {@link #put} replaces files
   * @throws IOException the storage gave no usable response, so nothing is proven
   */
  void requireProof(VersionFile file, Configuration conf) throws IOException;

  /** The storage did not store the content, and will not store it later. */
  final class RejectedException extends IOException {
    private static final long serialVersionUID = 1L;

    RejectedException(Exception cause) {
      super(cause.getMessage(), cause);
    }

    /** Returns the cause if it is an {@code IOException}; otherwise this exception. */
    IOException causeOrThis() {
      return getCause() instanceof IOException failure ? failure : this;
    }
  }

  /** Puts on a local disk: writes a temporary file and creates a hard link to it, which fails if the name exists. */
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
          // Hadoop's checksum file of an earlier file of this name would not match this file.
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
        try {
          Files.deleteIfExists(temporary);
        } catch (IOException e) {
          // Readers ignore the file, and the outcome of the put is known without it.
        }
      }
    }

    @Override
    public void requireProof(VersionFile file, Configuration conf) {
      // POSIX requires that link(2) fails if the name exists.
    }
  }

  /** Creates a hard link to the temporary file. The target must not exist. */
  private static void link(java.nio.file.Path target, java.nio.file.Path temporary) throws IOException {
    try {
      Files.createLink(target, temporary);
    } catch (AccessDeniedException | UnsupportedOperationException e) {
      throw errorWithoutLink(target, e);
    } catch (FileSystemException e) {
      // If the target exists or its folder does not exist, Java throws a subclass without a reason.
      throw e.getReason() != null && DEFINITE_LINK_ERRORS.contains(e.getReason()) ? errorWithoutLink(target, e) : e;
    }
  }

  /** Returns the exception for a failed link: a {@link RejectedException} if the target does not exist. */
  private static IOException errorWithoutLink(java.nio.file.Path target, Exception cause) {
    if (Files.notExists(target)) {
      return new RejectedException(
          new IOException("the disk refuses a hard link, which each commit needs: " + cause.getMessage(), cause));
    }
    return cause instanceof IOException failure ? failure : new IOException(cause);
  }

  /** Puts with Delta's own log store, which on this file system creates a file only if it does not exist. */
  record Delegated(io.delta.storage.LogStore store) implements PutIfAbsent {
    @Override
    public void put(Path path, byte[] content, Configuration conf) throws IOException {
      String[] lines = new String(content, StandardCharsets.UTF_8).split("\n");
      store.write(path, Arrays.asList(lines).iterator(), false, conf);
    }

    @Override
    public void requireProof(VersionFile file, Configuration conf) {
      // The services of Azure and Google document that their rename or create fails if the name exists. A trial
      // would prove nothing, because Delta's stores check whether the file exists before they call the service.
    }
  }
}
