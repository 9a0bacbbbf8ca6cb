package io.deltasluice.storage;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;

/**
 * The version of a table that the transaction of this thread has read, and how its file is known again.
 *
 * <p>A commit that waits for its lock must not land in another table of that name, made in the meantime: there it would
 * refer to data files that are gone. So the version that was read has to be there still, and be the same file.
 */
final class ReadVersion {
  private final Path file;
  private final long version;
  private final long modified;
  private final FileStatus known;
  private final Snapshot snapshot;

  private ReadVersion(VersionFile next, Snapshot snapshot) {
    this.snapshot = snapshot;
    version = snapshot.version();
    file = VersionFile.in(next.path().getParent(), version);
    modified = snapshot.logSegment().lastCommitFileModificationTimestamp();
    Seq<FileStatus> deltas = snapshot.logSegment().deltas();
    // Behind a checkpoint there may be none, and several versions may be in one compacted file.
    known = deltas.isEmpty() || !deltas.last().getPath().getName().equals(file.getName()) ? null : deltas.last();
  }

  /** Returns what the transaction of this thread has read, null if it is of another table, or read nothing. */
  static ReadVersion of(VersionFile next) {
    OptimisticTransaction active = ActiveTransaction.of(next.table());
    return active == null || active.snapshot().version() < 0 ? null : new ReadVersion(next, active.snapshot());
  }

  /**
   * Returns the age at which VACUUM deletes a file that is not in the table, in milliseconds: by the snapshot of this
   * thread's transaction, or by the newest that this driver has if another connector commits.
   */
  static long retentionMillis(VersionFile next) {
    OptimisticTransaction active = ActiveTransaction.of(next.table());
    Snapshot snapshot = active != null
        ? active.snapshot()
        : DeltaLog.forTable(SparkSession.active(), next.table()).unsafeVolatileSnapshot();
    return DeltaLog.tombstoneRetentionMillis(snapshot.metadata());
  }

  /** Returns it as JSON: {@code version} and {@code properties} of the table (those of {@code prefix}). */
  ObjectNode toJson(String prefix) {
    ObjectNode found = CommitBody.JSON.createObjectNode();
    found.put("version", version);
    ObjectNode properties = found.putObject("properties");
    Map<String, String> all = snapshot.metadata().configuration();
    all.foreach(pair -> pair._1().startsWith(prefix) ? properties.put(pair._1(), pair._2()) : null);
    return found;
  }

  /** Tells whether the table still has it. */
  boolean stands(Configuration conf) throws IOException {
    return known == null ? SameFile.isThere(file, modified, conf) : SameFile.isThere(file, known, conf);
  }
}
