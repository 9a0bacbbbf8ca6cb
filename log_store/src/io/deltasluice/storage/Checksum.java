package io.deltasluice.storage;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * The checksum that Delta writes some moments after a version ({@code <20 digits>.crc}), with what it counted up to then.
 *
 * <p>Behind a lock that is held for the commit alone the next writer comes in these very moments. Without that file it
 * has to read the whole state of the table, in two Spark jobs, and so has everybody after it. So it waits a little.
 */
final class Checksum {
  private static final Pattern NAME = Pattern.compile("\\d{20}\\.crc");

  /** So long after a version its checksum is still expected. */
  private static final long EXPECTED_MILLIS = 1_000;

  private static final long PAUSE_MILLIS = 10;

  /** Versions that this JVM has put, and when they are old. */
  private static final Map<Path, Long> OWN = new ConcurrentHashMap<>();

  private Checksum() {}

  /**
   * Takes note of a version that this JVM has put. Its checksum is not waited for: Delta may do so under its lock on the
   * table, which the thread that is to write the checksum needs.
   */
  static void isOurs(Path version) {
    long now = System.nanoTime();
    OWN.values().removeIf(until -> until - now < 0);
    OWN.put(version, now + 2 * EXPECTED_MILLIS * 1_000_000);
  }

  /**
   * Waits for a checksum that is not there yet.
   *
   * @return whether it is there now; false for any other file, and for one that will not come any more
   */
  static boolean hasCome(Path path, Configuration conf) throws IOException {
    if (!NAME.matcher(path.getName()).matches()) {
      return false;
    }
    Path version = new Path(path.getParent(), path.getName().replace(".crc", ".json"));
    if (OWN.containsKey(version)) {
      return false;
    }
    FileSystem files = path.getFileSystem(conf);
    long age = System.currentTimeMillis() - files.getFileStatus(version).getModificationTime();
    // Whatever the two clocks say, for no longer than that.
    long until = System.nanoTime() + Math.min(EXPECTED_MILLIS, EXPECTED_MILLIS - age) * 1_000_000;
    while (System.nanoTime() < until) {
      if (files.exists(path)) {
        return true;
      }
      try {
        Thread.sleep(PAUSE_MILLIS);
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
        throw new InterruptedIOException("interrupted before " + path + " was there");
      }
    }
    return files.exists(path);
  }
}
