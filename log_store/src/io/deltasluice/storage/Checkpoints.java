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
 * Checkpoints that a commit has made due, and that are written when its lock is given back.
 *
 * <p>Delta writes a checkpoint behind every tenth commit, before the statement returns. Whoever waits for the table's lock
 * would wait for that, too.
 */
public final class Checkpoints implements PostCommitHook {
  private static final Logger LOG = LoggerFactory.getLogger(Checkpoints.class);
  private static final Checkpoints HOOK = new Checkpoints();

  /** With so many versions since the last one, it does not wait for the lock's end: that may be hours away. */
  private static final int MOST_BEHIND = 100;

  /**
   * A checkpoint that is due.
   *
   * @param version the file of its version, as it was when the commit was over
   */
  private record Due(SparkSession session, CommittedTransaction committed, FileStatus version) {}

  /** By location of their tables, the newest of each. */
  private static final Map<String, Due> DUE = new ConcurrentHashMap<>();

  private Checkpoints() {}

  /** Has the checkpoint that the commit of this thread may make due written later. */
  static void defer(VersionFile file) {
    OptimisticTransaction active = ActiveTransaction.of(file.table());
    if (active != null && active.containsPostCommitHook(CheckpointHook$.MODULE$)) {
      active.unregisterPostCommitHooksWhere(hook -> hook == CheckpointHook$.MODULE$);
      active.registerPostCommitHook(HOOK);
    }
  }

  /** Returns the locations of the tables of which one is due, as a JSON array. */
  public static String due() {
    ArrayNode tables = CommitBody.JSON.createArrayNode();
    DUE.keySet().forEach(tables::add);
    return tables.toString();
  }

  /**
   * Takes what is due for a table; whoever does so sees to it.
   *
   * @return to be given to {@link #write}; null if another thread was faster
   */
  public static Object take(String table) {
    return DUE.remove(table);
  }

  /** Puts back what was taken, unless something newer is due by now. */
  public static void putBack(String table, Object taken) {
    DUE.merge(table, (Due) taken, Checkpoints::newer);
  }

  /** Writes a checkpoint, by Delta's own hook; none if the table was removed, or made anew, and its version is gone. */
  public static void write(Object taken) throws IOException {
    Due due = (Due) taken;
    Path file = due.version.getPath();
    if (!SameFile.isThere(file, due.version, due.committed.deltaLog().newDeltaHadoopConf())) {
      LOG.info("{} is gone: no checkpoint of it is written", file);
      return;
    }
    CheckpointHook$.MODULE$.run(due.session, due.committed);
  }

  @Override
  public String name() {
    return "Checkpoint, when the lock is given back";
  }

  @Override
  public void run(SparkSession spark, CommittedTransaction committed) {
    if (!committed.maintenanceOperation().shouldCheckpoint()) {
      return;
    }
    long behind = committed.committedVersion() - committed.postCommitSnapshot().checkpointProvider().version();
    if (behind > MOST_BEHIND || committed.maintenanceOperation().amtTriggerModeOpt().isDefined()) {
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

  private static Due newer(Due one, Due other) {
    return one.committed.committedVersion() > other.committed.committedVersion() ? one : other;
  }
}
