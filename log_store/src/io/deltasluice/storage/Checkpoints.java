package io.deltasluice.storage;

import com.fasterxml.jackson.databind.node.ArrayNode;
import java.io.IOException;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.delta.CommittedTransaction;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.hooks.CheckpointHook$;
import org.apache.spark.sql.delta.hooks.PostCommitHook;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The checkpoints that commits made due. They are written after the table's lock is released.
 *
 * <p>Delta writes a checkpoint after every tenth commit, before the statement returns. The next holder of the table's
 * lock would wait for that, too.
 */
public final class Checkpoints implements PostCommitHook {
  private static final Logger LOG = LoggerFactory.getLogger(Checkpoints.class);
  private static final Checkpoints HOOK = new Checkpoints();

  /**
   * Number of versions since the last checkpoint after which the next one is written under the lock, because a lock may
   * be held for hours.
   */
  private static final int MAX_VERSIONS_SINCE = 100;

  /**
   * A checkpoint that is due.
   *
   * @param version status of the version file, after the commit
   */
  private record Due(SparkSession session, CommittedTransaction committed, FileStatus version) {}

  /** The newest due checkpoint of each table, by the table's location. */
  private static final Map<String, Due> DUE = new ConcurrentHashMap<>();

  private Checkpoints() {}

  /** Replaces Delta's checkpoint hook in the transaction of this thread, so that a due checkpoint is written later. */
  static void defer(VersionFile file) {
    OptimisticTransaction active = ActiveTransaction.of(file.table());
    if (active != null && active.containsPostCommitHook(CheckpointHook$.MODULE$)) {
      active.unregisterPostCommitHooksWhere(hook -> hook == CheckpointHook$.MODULE$);
      active.registerPostCommitHook(HOOK);
    }
  }

  /** Returns the locations of the tables with a due checkpoint, as a JSON array. */
  public static String due() {
    ArrayNode tables = CommitBody.JSON.createArrayNode();
    DUE.keySet().forEach(tables::add);
    return tables.toString();
  }

  /**
   * Removes and returns a table's due checkpoint, which the caller then writes.
   *
   * @return argument of {@link #write}; null if another thread has taken it
   */
  public static Object take(String table) {
    return DUE.remove(table);
  }

  /** Puts a checkpoint back, unless a newer one is due by now. */
  public static void putBack(String table, Object due) {
    DUE.merge(table, (Due) due, Checkpoints::newer);
  }

  /** Writes a checkpoint with Delta's hook, unless the table was removed or replaced, so that its version is gone. */
  public static void write(Object checkpoint) throws IOException {
    Due due = (Due) checkpoint;
    Path file = due.version.getPath();
    if (FileIdentity.isUnchanged(file, due.version, due.committed.deltaLog().newDeltaHadoopConf())) {
      CheckpointHook$.MODULE$.run(due.session, due.committed);
    } else {
      LOG.info("{} is gone: no checkpoint of it is written", file);
    }
  }

  @Override
  public String name() {
    return "Checkpoint, after the lock is released";
  }

  @Override
  public void run(SparkSession spark, CommittedTransaction committed) {
    if (!committed.maintenanceOperation().shouldCheckpoint()) {
      return;
    }
    long versionsSince = committed.committedVersion() - committed.postCommitSnapshot().checkpointProvider().version();
    // With adaptive metadata a checkpoint is a commit, so it needs the lock.
    if (versionsSince > MAX_VERSIONS_SINCE || committed.maintenanceOperation().amtTriggerModeOpt().isDefined()) {
      CheckpointHook$.MODULE$.run(spark, committed);
      return;
    }
    Path file = VersionFile.in(committed.deltaLog().logPath(), committed.committedVersion());
    try {
      FileStatus version = file.getFileSystem(committed.deltaLog().newDeltaHadoopConf()).getFileStatus(file);
      DUE.merge(committed.deltaLog().dataPath().toString(), new Due(spark, committed, version), Checkpoints::newer);
    } catch (IOException e) {
      LOG.info("the checkpoint of {} is left to a later version", file, e);
    }
  }

  private static Due newer(Due current, Due next) {
    return current.committed.committedVersion() > next.committed.committedVersion() ? current : next;
  }
}
