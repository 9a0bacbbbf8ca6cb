package io.deltasluice.storage;

import org.apache.spark.sql.delta.Snapshot;

/** Cleans up a log with Delta's method, but with the caller's retention. */
public final class LogCleanUp {
  private LogCleanUp() {}

  /**
   * Removes old versions that no reader of a newer version needs.
   *
   * @param retentionMillis milliseconds to keep a version. Delta removes versions that are older than the last midnight
   *     (UTC) before now minus this time, so it keeps a version up to one day longer.
   */
  public static void run(Snapshot snapshot, long retentionMillis) {
    DeltaApi.cleanUpExpiredLogs(snapshot.deltaLog(), snapshot, retentionMillis);
  }
}
