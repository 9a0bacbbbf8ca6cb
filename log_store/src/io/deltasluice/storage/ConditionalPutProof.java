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
 * Proves, once for each driver and store, that a conditional put does not replace an existing file.
 *
 * <p>Some servers of S3's protocol accept {@code If-None-Match} and ignore it. Two writers could both win one version
 * there, and the first one's commit would be lost without an error.
 *
 * <p>The proof is one refused put of {@link #NAME} in the log's folder. The object stays in the store, so each later
 * driver needs one request. It is not deleted, because a writer's role may not delete objects of a log, and because
 * each new object would leave a version in a versioned bucket. Readers, VACUUM and Delta's log clean-up ignore the
 * object.
 */
final class ConditionalPutProof {
  /** Name of the object, in the log of the first table to which a driver commits. */
  static final String NAME = "_sluice_conditional_put";

  private static final Logger LOG = LoggerFactory.getLogger(ConditionalPutProof.class);
  private static final byte[] CONTENT =
      "Sluice puts this object with If-None-Match to prove that the store honours it.\n".getBytes(StandardCharsets.UTF_8);

  /** Attempts for each put, if the store gives no usable response. */
  private static final int ATTEMPTS = 4;

  /** Proven stores. Failures are not cached, because a store may be repaired while the driver runs. */
  private static final Set<String> PROVEN = ConcurrentHashMap.newKeySet();

  private ConditionalPutProof() {}

  /**
   * Makes sure that the store of a version file refuses to replace an existing file.
   *
   * @param put creates a file on condition that there is none
   * @throws CommitRefusedException the store replaced a file
   * @throws IOException the store gave no usable response, so nothing is proven
   */
  static void require(PutIfAbsent put, VersionFile file, Configuration conf) throws IOException {
    String store = describe(file.path().getFileSystem(conf));
    if (PROVEN.contains(store)) {
      return;
    }
    Path scratch = new Path(file.path().getParent(), NAME);
    // If an earlier driver created the object, the first put is refused. Otherwise the second put is.
    for (int trial = 1; trial <= 2; trial++) {
      if (!tryCreate(put, scratch, store, conf)) {
        PROVEN.add(store);
        LOG.info("{} refuses to replace {}", store, scratch);
        return;
      }
    }
    throw new CommitRefusedException("UnsafeStoreError", store + " ignores If-None-Match (it replaced " + scratch
        + "): two writers could both win one version there, so nothing is committed; use a store that honours it, "
        + "which `sluice doctor --table " + file.table() + "` checks");
  }

  /** Returns a description of a file system's store. One bucket name may exist at several endpoints. */
  private static String describe(FileSystem fs) {
    Configuration conf = fs.getConf();
    String endpoint = conf.getTrimmed("fs.s3a.endpoint", "");
    String region = conf.getTrimmed("fs.s3a.endpoint.region", "");
    return "the store " + fs.getUri() + (endpoint.isEmpty() ? "" : " at " + endpoint)
        + (region.isEmpty() ? "" : " in " + region);
  }

  /** Returns whether the put created the object; false if the store refused to replace it. */
  private static boolean tryCreate(PutIfAbsent put, Path scratch, String store, Configuration conf) throws IOException {
    for (int attempt = 1; ; attempt++) {
      try {
        put.put(scratch, CONTENT, conf);
        return true;
      } catch (FileAlreadyExistsException e) {
        return false;
      } catch (IOException | RuntimeException e) {
        if (attempt == ATTEMPTS) {
          throw new IOException("nothing was committed, because " + store + " gave no answer that proves that it "
              + "honours If-None-Match: " + e.getMessage(), e);
        }
      }
      if (!GuardedLogStore.pause(attempt)) {
        throw new InterruptedIOException("interrupted before " + store + " was proven to honour If-None-Match: nothing "
            + "is committed");
      }
    }
  }
}
