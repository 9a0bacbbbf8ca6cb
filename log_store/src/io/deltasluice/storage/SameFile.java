package io.deltasluice.storage;

import java.io.FileNotFoundException;
import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.EtagSource;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

/** Whether a file is still the one that was seen before: a table may have been removed, and made anew at its place. */
final class SameFile {
  /** To the second, which is what S3 keeps. */
  private static final long MILLIS = 1000;

  private SameFile() {}

  /** Tells whether there is a file with the same time, length and, where the store has them, ETag. */
  static boolean isThere(Path file, FileStatus known, Configuration conf) throws IOException {
    FileStatus now = statusOf(file, conf);
    return now != null && isOfTime(now, known.getModificationTime()) && now.getLen() == known.getLen()
        && sameTag(now, known);
  }

  /** Likewise, where nothing but the time is known. */
  static boolean isThere(Path file, long modified, Configuration conf) throws IOException {
    FileStatus now = statusOf(file, conf);
    return now != null && isOfTime(now, modified);
  }

  private static FileStatus statusOf(Path file, Configuration conf) throws IOException {
    try {
      return file.getFileSystem(conf).getFileStatus(file);
    } catch (FileNotFoundException e) {
      return null;
    }
  }

  private static boolean isOfTime(FileStatus now, long modified) {
    return now.getModificationTime() / MILLIS == modified / MILLIS;
  }

  private static boolean sameTag(FileStatus one, FileStatus other) {
    String tag = one instanceof EtagSource source ? source.getEtag() : null;
    String otherTag = other instanceof EtagSource source ? source.getEtag() : null;
    return tag == null || otherTag == null || tag.equals(otherTag);
  }
}
