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
 * <p>While a commit waits for its lock, another writer may replace the table with a new one at the same location. In
 * the new table the commit would refer to deleted data files. So the commit requires that the file of the version that
 * it has read is unchanged. A commit that creates the table requires that its own data files exist and that the log has
 * no versions.
 */
final class ReadVersion {
  /** Value of {@link #version} if there was no table. */
  private static final long NO_TABLE = -1;

  /** Prefix of the table properties that are sent to Python. */
  private static final String PROPERTY_PREFIX = "sluice.";

  private final long version;
  private final Snapshot snapshot;

  /** File of the version that was read; without a table, the file of version 0. */
  private final Path versionFile;

  /** Modification time of the file when it was read, in milliseconds since the epoch. */
  private final long fileModifiedMillis;

  /** Status of the file when it was read; null if the snapshot does not contain it. */
  private final FileStatus fileStatus;

  private ReadVersion(VersionFile nextVersion, Snapshot snapshot) {
    this.snapshot = snapshot;
    version = snapshot.version();
    versionFile = VersionFile.in(nextVersion.path().getParent(), Math.max(version, 0));
    fileModifiedMillis = snapshot.logSegment().lastCommitFileModificationTimestamp();
    Seq<FileStatus> deltas = snapshot.logSegment().deltas();
    // The snapshot may consist of a checkpoint only, or have several versions in one compacted file.
    boolean hasStatus = !deltas.isEmpty() && deltas.last().getPath().getName().equals(versionFile.getName());
    fileStatus = hasStatus ? deltas.last() : null;
  }

  /**
   * Returns the version that the transaction of this thread has read.
   *
   * @param nextVersion file that the transaction writes next
   * @return null if this thread has no transaction on the table of this file
   */
  static ReadVersion of(VersionFile nextVersion) {
    OptimisticTransaction active = ActiveTransaction.of(nextVersion.table());
    return active == null ? null : new ReadVersion(nextVersion, active.snapshot());
  }

  /**
   * Returns the age at which VACUUM deletes a file that is not in the table, in milliseconds. The age is a property of
   * the table. It is read from the snapshot of this thread's transaction. If another connector commits and this thread
   * has no transaction, it is read from the driver's newest snapshot.
   */
  static long retentionMillis(VersionFile nextVersion) {
    OptimisticTransaction active = ActiveTransaction.of(nextVersion.table());
    Snapshot snapshot = active != null
        ? active.snapshot()
        : DeltaLog.forTable(SparkSession.active(), nextVersion.table()).unsafeVolatileSnapshot();
    return DeltaLog.tombstoneRetentionMillis(snapshot.metadata());
  }

  /**
   * Returns a JSON object with {@code version} (-1: no table) and {@code properties} (Sluice's properties of the table).
   */
  ObjectNode toJson() {
    ObjectNode json = CommitBody.JSON.createObjectNode();
    json.put("version", version);
    ObjectNode properties = json.putObject("properties");
    // Without a table, Delta's snapshot has the session's default properties for new tables.
    if (version != NO_TABLE) {
      Map<String, String> configuration = snapshot.metadata().configuration();
      configuration.foreach(
          pair -> pair._1().startsWith(PROPERTY_PREFIX) ? properties.put(pair._1(), pair._2()) : null);
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
      return NewTable.canPutFirstVersion(versionFile.getParent(), newFiles, conf);
    }
    return fileStatus == null
        ? FileIdentity.isUnchanged(versionFile, fileModifiedMillis, conf)
        : FileIdentity.isUnchanged(versionFile, fileStatus, conf);
  }
}
