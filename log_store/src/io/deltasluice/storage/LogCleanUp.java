package io.deltasluice.storage;

import org.apache.spark.sql.delta.MetadataCleanup;
import org.apache.spark.sql.delta.Snapshot;
import scala.Option;
import scala.Some;

/** Delta's own clean-up of a log, with a retention that the caller chooses. */
public final class LogCleanUp {
  private LogCleanUp() {}

  /**
   * Removes the versions that are older, and that no reader of a newer one needs.
   *
   * @param retentionMillis as long a version is kept, and on to the next midnight (UTC)
   */
  public static void run(Snapshot snapshot, long retentionMillis) {
    MetadataCleanup log = snapshot.deltaLog();
    log.cleanUpExpiredLogs(
        snapshot, Option.empty(), new Some<Object>(retentionMillis), log.cleanUpExpiredLogs$default$4());
  }
}
