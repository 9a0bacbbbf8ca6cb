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
 * The version of a table that the transaction of this thread has read, or that there was no table.
 *
 * <p>A commit that waits for its lock must not land in another table at the same location, made in the meantime: there
 * it would refer to data files that were deleted. So the file of the version that was read must still be the same. A
 * commit that creates the table needs its own data files, and a log without versions.
 */
final class ReadVersion {
  /** {@code version} of a transaction that found no table. */
  private static final long NO_TABLE = -1;

  private final Path file;
  private final long version;
  private final long modified;
  private final FileStatus known;
  private final Snapshot snapshot;

  private ReadVersion(VersionFile next, Snapshot snapshot) {
    this.snapshot = snapshot;
    version = snapshot.version();
    file = VersionFile.in(next.path().getParent(), Math.max(version, 0));
    modified = snapshot.logSegment().lastCommitFileModificationTimestamp();
    Seq<FileStatus> deltas = snapshot.logSegment().deltas();
    // Behind a checkpoint there may be none, and several versions may be in one compacted file.
    known = deltas.isEmpty() || !deltas.last().getPath().getName().equals(file.getName()) ? null : deltas.last();
  }

  /** Returns what the transaction of this thread has read; null if the thread has no transaction on this table. */
  static ReadVersion of(VersionFile next) {
    OptimisticTransaction active = ActiveTransaction.of(next.table());
    return active == null ? null : new ReadVersion(next, active.snapshot());
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

  /** Returns {@code version} (-1: no table) and {@code properties} of the table whose names begin with a prefix. */
  ObjectNode toJson(String prefix) {
    ObjectNode found = CommitBody.JSON.createObjectNode();
    found.put("version", version);
    ObjectNode properties = found.putObject("properties");
    if (version == NO_TABLE) {
      // Delta's snapshot of no table has the session's defaults for new tables.
      return found;
    }
    Map<String, String> all = snapshot.metadata().configuration();
    all.foreach(pair -> pair._1().startsWith(prefix) ? properties.put(pair._1(), pair._2()) : null);
    return found;
  }

  /**
   * Returns whether a commit can follow: the table still has this version, or there is still no table.
   *
   * @param written paths of the data files that were written for the commit, relative to the table
   */
  boolean stands(Set<String> written, Configuration conf) throws IOException {
    if (version == NO_TABLE) {
      return NewTable.isComplete(file.getParent(), written, conf);
    }
    return known == null ? SameFile.isThere(file, modified, conf) : SameFile.isThere(file, known, conf);
  }
}
