package io.deltasluice.storage;

import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.util.EnumSet;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.DistributedFileSystem;

/**
 * Puts on HDFS: writes a temporary file and renames it. The name node refuses to rename to a name that exists, unless
 * the request says otherwise ({@code ClientProtocol.rename2}).
 *
 * @param other puts with other clients of HDFS, such as one with mounts
 */
record HdfsPut(PutIfAbsent other) implements PutIfAbsent {
  private static final int BUFFER_BYTES = 4096;

  @Override
  public void put(Path path, byte[] content, Configuration conf) throws IOException {
    // The client of the readers, which knows the active name node. A new one would ask the name nodes in order.
    if (!(path.getFileSystem(conf) instanceof DistributedFileSystem files)) {
      other.put(path, content, conf);
      return;
    }
    Path temporary = new Path(path.getParent(), "." + path.getName() + "." + UUID.randomUUID() + ".tmp");
    write(files, temporary, content);
    try {
      files.rename(temporary, path, Options.Rename.NONE);
    } catch (org.apache.hadoop.fs.FileAlreadyExistsException e) {
      remove(files, temporary);
      throw new FileAlreadyExistsException(path.toString());
    } catch (IOException | RuntimeException e) {
      // Without its source a late rename fails. If the source is missing already, the rename may have succeeded.
      if (remove(files, temporary)) {
        throw new RejectedException(e);
      }
      throw e;
    }
  }

  private static void write(FileSystem files, Path temporary, byte[] content) throws RejectedException {
    try {
      // The data nodes write the block to their disks before the file is closed. Without SYNC_BLOCK a power failure
      // could leave a version without its content.
      EnumSet<CreateFlag> flags = EnumSet.of(CreateFlag.CREATE, CreateFlag.SYNC_BLOCK);
      // The folder of the log exists, unless the table was dropped.
      try (FSDataOutputStream stream = files.createNonRecursive(temporary, FsPermission.getFileDefault(), flags,
          BUFFER_BYTES, files.getDefaultReplication(temporary), files.getDefaultBlockSize(temporary), null)) {
        stream.write(content);
      }
    } catch (IOException | RuntimeException e) {
      remove(files, temporary);
      throw new RejectedException(e);
    }
  }

  /** Removes a temporary file. Returns whether it existed; false if that is not known. */
  private static boolean remove(FileSystem files, Path temporary) {
    // An interrupted thread cannot send a request.
    boolean interrupted = Thread.interrupted();
    try {
      return files.delete(temporary, false);
    } catch (IOException | RuntimeException e) {
      // Readers ignore the file.
      return false;
    } finally {
      if (interrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  @Override
  public void requireProof(VersionFile file, Configuration conf) {
    // The name node refuses a rename to a name that exists.
  }
}
