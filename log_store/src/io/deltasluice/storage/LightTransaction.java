package io.deltasluice.storage;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.SparkSession$;
import org.apache.spark.sql.delta.CommittedTransaction;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.hooks.CheckpointHook$;
import org.apache.spark.sql.delta.hooks.ChecksumHook;
import org.apache.spark.sql.delta.hooks.ChecksumHook$;
import org.apache.spark.sql.delta.hooks.PostCommitHook;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Function0;
import scala.Option;

/**
 * Delta's transaction of an append through the gate, without the work around a commit that an append does not need.
 *
 * <p>Delta itself makes the commit and checks it for conflicts. Three things differ:
 *
 * <ul>
 *   <li>If no other writer commits to the table, the transaction begins with the snapshot of this driver's last commit,
 *       and does not list the log. A commit of another writer since then is a version that Delta's check for conflicts
 *       reads, as if the transaction had begun before it.
 *   <li>The checksum file is written for some versions only. {@link Checksum} derives the others.
 *   <li>The checkpoint is written after the release of the lock, see {@link Checkpoints#keepIfDue}.
 * </ul>
 */
final class LightTransaction extends OptimisticTransaction {
  /**
   * Local property of Spark's threads: location of the table to which the thread appends through the gate. The next
   * transaction of the thread is the append's.
   */
  private static final String APPEND = "spark.sluice.append";

  /** Setting of the driver: whether appends through the gate are light transactions. */
  private static final String ENABLED = "spark.sluice.lightCommits";

  /** A snapshot that is older is replaced by the newest one before a transaction begins with it. */
  private static final long MAX_SNAPSHOT_AGE_NANOS = TimeUnit.SECONDS.toNanos(60);

  /** After this time since its last checksum file of a table, the driver writes the next one. */
  private static final long CHECKSUM_NANOS = TimeUnit.SECONDS.toNanos(1);

  /** After this number of versions since its last checksum file of a table, the driver writes the next one. */
  private static final int CHECKSUM_VERSIONS = 4;

  private static final Logger LOG = LoggerFactory.getLogger(LightTransaction.class);

  /** A version for which this driver did something, and {@link System#nanoTime} then. */
  private record Version(long number, long nanos) {
    static Version now(long number) {
      return new Version(number, System.nanoTime());
    }

    boolean isYoungerThan(long maxNanos) {
      return System.nanoTime() - nanos < maxNanos;
    }
  }

  /** This driver's last commit to each table, by the path of its log, if no other writer committed directly before it. */
  private static final Map<String, Version> UNDISTURBED_COMMITS = new ConcurrentHashMap<>();

  /** This driver's last checksum file of each table, by the path of its log. */
  private static final Map<String, Version> CHECKSUMS = new ConcurrentHashMap<>();

  private LightTransaction(DeltaLog log, Snapshot snapshot) {
    super(log, Option.empty(), snapshot);
  }

  /**
   * Begins the transaction of this thread's append.
   *
   * @param start begins Delta's own transaction, with the newest snapshot
   * @return null if this thread's next transaction is not that of an append through the gate
   */
  static OptimisticTransaction begin(Function0<OptimisticTransaction> start) {
    Option<SparkSession> session = SparkSession$.MODULE$.getActiveSession();
    if (session.isEmpty()) {
      return null;
    }
    SparkContext context = session.get().sparkContext();
    String location = context.getLocalProperty(APPEND);
    if (location == null || !context.conf().getBoolean(ENABLED, true)) {
      return null;
    }
    context.setLocalProperty(APPEND, null);
    DeltaLog log = DeltaLog.forTable(session.get(), location);
    Snapshot snapshot = log.unsafeVolatileSnapshot();
    if (!isOfUndisturbedCommit(snapshot)) {
      OptimisticTransaction transaction = start.apply();
      if (transaction.deltaLog() != log || transaction.catalogTable().isDefined()) {
        return transaction;
      }
      snapshot = transaction.snapshot();
      // With adaptive metadata a checkpoint is part of the commit or another commit.
      if (snapshot.version() < 0 || DeltaApi.commitsCheckpoints(snapshot.protocol())) {
        return transaction;
      }
    }
    return new LightTransaction(log, snapshot);
  }

  /** Returns whether a snapshot is that of this driver's last commit, a short time ago, and no other writer was seen. */
  private static boolean isOfUndisturbedCommit(Snapshot snapshot) {
    Version commit = UNDISTURBED_COMMITS.get(snapshot.deltaLog().logPath().toString());
    return commit != null && commit.number == snapshot.version() && commit.isYoungerThan(MAX_SNAPSHOT_AGE_NANOS);
  }

  /** Delta's constructor calls this for its own hooks, too. */
  @Override
  public void registerPostCommitHook(PostCommitHook hook) {
    if (hook != ChecksumHook$.MODULE$ && hook != CheckpointHook$.MODULE$) {
      super.registerPostCommitHook(hook);
    }
  }

  /** Delta would compute the state of the table for its statistics if the version were to get a checkpoint. */
  @Override
  public boolean isCheckpointNeeded(long version, Snapshot snapshot) {
    return false;
  }

  /** Replaces {@link #isCheckpointNeeded} in Delta 4.0. */
  public void setNeedsCheckpoint(long version, Snapshot snapshot) {}

  @Override
  public void runPostCommitHooks(CommittedTransaction transaction) {
    super.runPostCommitHooks(transaction);
    long version = transaction.committedVersion();
    Snapshot snapshot = transaction.postCommitSnapshot();
    String log = deltaLog().logPath().toString();
    if (version == readVersion() + 1 && version == snapshot.version()) {
      UNDISTURBED_COMMITS.put(log, Version.now(version));
    } else {
      UNDISTURBED_COMMITS.remove(log);
    }
    try {
      writeChecksum(log, version, snapshot);
      Checkpoints.keepIfDue(version, snapshot, transaction.catalogTable());
    } catch (RuntimeException | LinkageError e) {
      LOG.warn("version {} of {} is committed, but its checksum or checkpoint is left to a later version",
          version, dataPath(), e);
    }
  }

  private void writeChecksum(String log, long version, Snapshot snapshot) {
    Version last = CHECKSUMS.get(log);
    boolean isRecent = last != null && last.isYoungerThan(CHECKSUM_NANOS)
        && Math.abs(version - last.number) < CHECKSUM_VERSIONS;
    if (!isRecent && snapshot.version() == version) {
      // Its constructor writes the file, and logs errors.
      new ChecksumHook.WriteChecksum(spark(), deltaLog(), txnId(), snapshot);
      CHECKSUMS.put(log, Version.now(version));
    }
  }
}
