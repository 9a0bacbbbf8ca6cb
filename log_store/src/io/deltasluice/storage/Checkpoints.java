package io.deltasluice.storage;

import com.fasterxml.jackson.databind.node.ArrayNode;
import java.io.IOException;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.SparkSession$;
import org.apache.spark.sql.delta.CommittedTransaction;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.hooks.CheckpointHook$;
import org.apache.spark.sql.delta.hooks.PostCommitHook;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

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

  /** Up to so many files one thread writes it faster than Spark's jobs do, and its smaller statistics cost no reader. */
  private static final long MOST_FILES = 10_000;

  /**
   * Features of tables for which both writers put the same into a checkpoint (tests/integration/test_checkpoints.py). Of a
   * clustered table Kernel loses what its files are clustered by.
   */
  private static final Set<String> SAME_CONTENT = Set.of(
      "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "columnMapping", "generatedColumns",
      "identityColumns", "deletionVectors", "rowTracking", "domainMetadata", "inCommitTimestamp", "timestampNtz");

  /** Properties of a table that want another checkpoint than Kernel's; and the value with which they do not. */
  private static final Map<String, String> PLAIN =
      Map.of("delta.checkpointPolicy", "classic", "delta.checkpoint.writeStatsAsJson", "true");

  private static final String STATS_AS_STRUCT = "delta.checkpoint.writeStatsAsStruct";

  /** Setting of a session: checkpoints in several files. */
  private static final String PARTS = "spark.databricks.delta.checkpoint.partSize";

  /** By location of their tables, the newest of each. */
  private static final Map<String, CommittedTransaction> DUE = new ConcurrentHashMap<>();

  private Checkpoints() {}

  /** Has the checkpoint that the commit of this thread may make due written later. */
  static void defer(VersionFile file) {
    Option<OptimisticTransaction> active = OptimisticTransaction.getActive();
    if (active.isDefined() && active.get().deltaLog().dataPath().toString().equals(file.table())
        && active.get().containsPostCommitHook(CheckpointHook$.MODULE$)) {
      active.get().unregisterPostCommitHooksWhere(hook -> hook == CheckpointHook$.MODULE$);
      active.get().registerPostCommitHook(HOOK);
    }
  }

  /** Returns the locations of the tables of which one is due, as a JSON array. */
  public static String due() {
    ArrayNode tables = CommitBody.JSON.createArrayNode();
    DUE.keySet().forEach(tables::add);
    return tables.toString();
  }

  /**
   * Writes the checkpoint that is due for a table, in the way of Delta that is faster.
   *
   * @return who wrote it ({@code kernel} or {@code spark}); null if none is due any more
   */
  public static String write(String table) {
    CommittedTransaction committed = DUE.remove(table);
    return committed == null ? null : write(SparkSession$.MODULE$.active(), committed);
  }

  /** Forgets what is due for a table: another writer is at it. */
  public static void forget(String table) {
    DUE.remove(table);
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
      DUE.remove(committed.deltaLog().dataPath().toString());
      write(spark, committed);
    } else {
      DUE.merge(committed.deltaLog().dataPath().toString(), committed,
          (one, other) -> one.committedVersion() > other.committedVersion() ? one : other);
    }
  }

  private static String write(SparkSession spark, CommittedTransaction committed) {
    Snapshot snapshot = committed.postCommitSnapshot();
    if (isPlain(spark, snapshot)) {
      try {
        KernelCheckpoint.write(committed.deltaLog(), committed.committedVersion());
        committed.deltaLog().doLogCleanup(snapshot, committed.catalogTable());
        return "kernel";
      } catch (IOException | RuntimeException | LinkageError e) {
        LOG.info("version {} of {}: Spark writes the checkpoint, because Kernel did not: {}",
            committed.committedVersion(), committed.deltaLog().dataPath(), e.toString());
      }
    }
    CheckpointHook$.MODULE$.run(spark, committed);
    return "spark";
  }

  private static boolean isPlain(SparkSession spark, Snapshot snapshot) {
    if (snapshot.checksumOpt().isEmpty() || snapshot.checksumOpt().get().numFiles() > MOST_FILES
        || spark.conf().getOption(PARTS).isDefined()) {
      return false;
    }
    Map<String, String> properties = CollectionConverters.asJava(snapshot.metadata().configuration());
    return PLAIN.entrySet().stream().allMatch(each ->
            each.getValue().equals(properties.getOrDefault(each.getKey(), each.getValue())))
        && !properties.containsKey(STATS_AS_STRUCT)
        && SAME_CONTENT.containsAll(
            CollectionConverters.asJava(snapshot.protocol().readerAndWriterFeatureNames()));
  }
}
