package io.deltasluice.storage;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.Set;
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
 * The version of a table that the transaction of this thread has read, or the fact that there was no table.
 *
 * <p>A commit that waits for its lock must not go to another table that was created at the same location meanwhile.
 * There it would refer to deleted data files. So the file of the version that was read must be unchanged. A commit that
 * creates the table needs its own data files, and a log without versions.
 */
final class ReadVersion {
  /** {@code version} if there was no table. */
  private static final long NO_TABLE = -1;

  private final Path file;
  private final long version;
  private final long modified;
  private final FileStatus status;
  private final Snapshot snapshot;

  private ReadVersion(VersionFile next, Snapshot snapshot) {
    this.snapshot = snapshot;
    version = snapshot.version();
    file = VersionFile.in(next.path().getParent(), Math.max(version, 0));
    modified = snapshot.logSegment().lastCommitFileModificationTimestamp();
    Seq<FileStatus> deltas = snapshot.logSegment().deltas();
    // The snapshot may consist of a checkpoint only, or have several versions in one compacted file.
    status = deltas.isEmpty() || !deltas.last().getPath().getName().equals(file.getName()) ? null : deltas.last();
  }

  /** Returns the version that the transaction of this thread has read; null if it has no transaction on this table. */
  static ReadVersion of(VersionFile next) {
    OptimisticTransaction active = ActiveTransaction.of(next.table());
    return active == null ? null : new ReadVersion(next, active.snapshot());
  }

  /**
   * Returns the age at which VACUUM deletes a file that is not in the table, in milliseconds. It is read from the
   * snapshot of this thread's transaction; if the thread has no transaction on this table, because another connector
   * commits, from the driver's newest snapshot.
   */
  static long retentionMillis(VersionFile next) {
    OptimisticTransaction active = ActiveTransaction.of(next.table());
    Snapshot snapshot = active != null
        ? active.snapshot()
        : DeltaLog.forTable(SparkSession.active(), next.table()).unsafeVolatileSnapshot();
    return DeltaLog.tombstoneRetentionMillis(snapshot.metadata());
  }

  /** Returns {@code version} (-1: no table) and {@code properties}, the table's properties with a prefix. */
  ObjectNode toJson(String prefix) {
    ObjectNode json = CommitBody.JSON.createObjectNode();
    json.put("version", version);
    ObjectNode properties = json.putObject("properties");
    // Without a table, Delta's snapshot has the session's default properties for new tables.
    if (version != NO_TABLE) {
      Map<String, String> configuration = snapshot.metadata().configuration();
      configuration.foreach(pair -> pair._1().startsWith(prefix) ? properties.put(pair._1(), pair._2()) : null);
    }
    return json;
  }

  /**
   * Returns whether the transaction can commit: the table still has this version, or there is still no table.
   *
   * @param newFiles paths of the commit's data files, relative to the table
   */
  boolean isCurrent(Set<String> newFiles, Configuration conf) throws IOException {
    if (version == NO_TABLE) {
      return NewTable.isComplete(file.getParent(), newFiles, conf);
    }
    return status == null
        ? FileIdentity.isUnchanged(file, modified, conf)
        : FileIdentity.isUnchanged(file, status, conf);
  }
}
