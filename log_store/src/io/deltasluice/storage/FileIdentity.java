package io.deltasluice.storage;

import java.io.FileNotFoundException;
import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.EtagSource;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

/** Checks whether a file was replaced: a table may be removed, and another table created at its location. */
final class FileIdentity {
  /** Modification times are compared in seconds, the resolution of S3. */
  private static final long RESOLUTION_MILLIS = 1000;

  private FileIdentity() {}

  /** Returns whether a file exists with the same modification time, length and, where the store has them, ETag. */
  static boolean isUnchanged(Path file, FileStatus expected, Configuration conf) throws IOException {
    FileStatus current = statusOf(file, conf);
    return isModifiedAt(current, expected.getModificationTime()) && current.getLen() == expected.getLen()
        && hasSameTag(current, expected);
  }

  /** Returns whether a file exists with the same modification time, in milliseconds since the epoch. */
  static boolean isUnchanged(Path file, long modified, Configuration conf) throws IOException {
    return isModifiedAt(statusOf(file, conf), modified);
  }

  private static FileStatus statusOf(Path file, Configuration conf) throws IOException {
    try {
      return file.getFileSystem(conf).getFileStatus(file);
    } catch (FileNotFoundException e) {
      return null;
    }
  }

  private static boolean isModifiedAt(FileStatus current, long modified) {
    return current != null && current.getModificationTime() / RESOLUTION_MILLIS == modified / RESOLUTION_MILLIS;
  }

  private static boolean hasSameTag(FileStatus current, FileStatus expected) {
    String tag = current instanceof EtagSource source ? source.getEtag() : null;
    String expectedTag = expected instanceof EtagSource source ? source.getEtag() : null;
    return tag == null || expectedTag == null || tag.equals(expectedTag);
  }
}
