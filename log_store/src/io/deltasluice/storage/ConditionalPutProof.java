package io.deltasluice.storage;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Proves, once for each driver and store, that the store refuses to replace a file by a conditional put.
 *
 * <p>Servers that speak S3's protocol may accept {@code If-None-Match} and ignore it. Two writers would both win one
 * version there, and the first one's commit would be lost without an error.
 *
 * <p>The proof is one refused put of {@link #NAME} beside the version files. The object stays in the store, so each later
 * driver needs one request. It is not deleted, because a writer's role may not delete anything of a log, and because
 * puts that are refused leave no versions in a bucket that keeps versions. Readers, VACUUM and Delta's log clean-up
 * ignore its name.
 */
final class ConditionalPutProof {
  /** Name of the object, in the log of the table that a driver commits to first. */
  static final String NAME = "_sluice_conditional_put";

  private static final Logger LOG = LoggerFactory.getLogger(ConditionalPutProof.class);
  private static final byte[] CONTENT =
      "Sluice puts this object with If-None-Match to prove that the store honours it.\n".getBytes(StandardCharsets.UTF_8);

  /** Attempts for each put, if the store gives no usable answer. */
  private static final int ATTEMPTS = 4;

  private static final long PAUSE_MILLIS = 200;

  /** Stores that have passed. A failure is not kept: the store may be repaired while the driver runs. */
  private static final Set<String> PROVEN = ConcurrentHashMap.newKeySet();

  private ConditionalPutProof() {}

  /**
   * Makes sure that the store of a version file refuses to replace an existing file.
   *
   * @param put creates a file on condition that there is none
   * @throws CommitRefusedException the store replaced a file
   * @throws IOException the store gave no usable answer: nothing is proven
   */
  static void require(PutIfAbsent put, VersionFile file, Configuration conf) throws IOException {
    String store = store(file.path().getFileSystem(conf));
    if (PROVEN.contains(store)) {
      return;
    }
    Path scratch = new Path(file.path().getParent(), NAME);
    // The first put creates the object, unless an earlier driver did: then it is refused, which is the proof.
    for (int number = 1; number <= 2; number++) {
      if (!created(put, scratch, store, conf)) {
        PROVEN.add(store);
        LOG.info("{} refuses to replace {}", store, scratch);
        return;
      }
    }
    throw new CommitRefusedException("UnsafeStoreError", store + " ignores If-None-Match (it replaced " + scratch
        + "): two writers could both win one version there, so nothing is committed; use a store that honours it, "
        + "which `sluice doctor --table " + file.table() + "` checks");
  }

  /** Names the store behind a file system: one bucket name may exist at several endpoints. */
  private static String store(FileSystem fs) {
    Configuration conf = fs.getConf();
    String endpoint = conf.getTrimmed("fs.s3a.endpoint", "");
    String region = conf.getTrimmed("fs.s3a.endpoint.region", "");
    return "the store " + fs.getUri() + (endpoint.isEmpty() ? "" : " at " + endpoint)
        + (region.isEmpty() ? "" : " in " + region);
  }

  private static boolean created(PutIfAbsent put, Path scratch, String store, Configuration conf) throws IOException {
    for (int number = 1; ; number++) {
      try {
        put.put(scratch, CONTENT, conf);
        return true;
      } catch (FileAlreadyExistsException e) {
        return false;
      } catch (IOException | RuntimeException e) {
        if (number == ATTEMPTS) {
          throw new IOException("nothing was committed, because " + store + " gave no answer that proves that it "
              + "honours If-None-Match: " + e.getMessage(), e);
        }
      }
      pause(number, store);
    }
  }

  private static void pause(int number, String store) throws InterruptedIOException {
    try {
      Thread.sleep(PAUSE_MILLIS * number);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new InterruptedIOException("interrupted before " + store + " was proven to honour If-None-Match: nothing is "
          + "committed");
    }
  }
}
