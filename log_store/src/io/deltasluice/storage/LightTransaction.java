package io.deltasluice.storage;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.delta.CommittedTransaction;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.hooks.CheckpointHook$;
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
 *   <li>If this driver has seen no commit of another writer, the transaction begins with the snapshot of the driver's
 *       last commit, and lists the log at least once a minute. Delta's check for conflicts reads the versions that
 *       other writers have committed since that snapshot.
 *   <li>The checksum file is written with one request, see {@link Checksum#write}.
 *   <li>The checkpoint is written after the release of the lock, see {@link Checkpoints#keepIfDue}.
 * </ul>
 */
public final class LightTransaction extends OptimisticTransaction {
  /** Setting of the driver: whether appends through the gate are light transactions. */
  private static final String ENABLED = "spark.sluice.lightCommits";

  /** Time after which a driver lists the log again. */
  private static final long LISTING_NANOS = TimeUnit.SECONDS.toNanos(60);

  private static final Logger LOG = LoggerFactory.getLogger(LightTransaction.class);

  /** The append that a thread begins next: the ticket of its commit, and the location of its table. */
  private record Append(String ticket, String location) {}

  /**
   * A commit of this driver.
   *
   * @param listedAtNanos {@link System#nanoTime} of the last listing of the log before it
   */
  private record OwnCommit(long version, long listedAtNanos) {}

  private static final ThreadLocal<Append> NEXT_APPEND = new ThreadLocal<>();

  /** This driver's last commit to each table, by the path of its log, if no other writer committed directly before it. */
  private static final Map<String, OwnCommit> UNDISTURBED_COMMITS = new ConcurrentHashMap<>();

  private final long listedAtNanos;

  private LightTransaction(DeltaLog log, Snapshot snapshot, long listedAtNanos) {
    super(log, Option.empty(), snapshot);
    this.listedAtNanos = listedAtNanos;
  }

  /**
   * Makes the next transaction of this thread a light one. It must be that of an append through the gate.
   *
   * @param ticket ticket of the append; the thread must be bound to it
   * @param location location of the table
   */
  public static void expect(String ticket, String location) {
    NEXT_APPEND.set(new Append(ticket, location));
  }

  /**
   * Begins the transaction of this thread's append.
   *
   * @param start begins Delta's own transaction, with the newest snapshot
   * @return null if this thread's next transaction is not that of an append through the gate
   */
  static OptimisticTransaction begin(Function0<OptimisticTransaction> start) {
    Append append = NEXT_APPEND.get();
    if (append == null) {
      return null;
    }
    NEXT_APPEND.remove();
    SparkSession spark = SparkSession.active();
    if (!append.ticket.equals(Guard.ticket()) || !spark.sparkContext().conf().getBoolean(ENABLED, true)) {
      return null;
    }
    DeltaLog log = DeltaLog.forTable(spark, append.location);
    Snapshot known = log.unsafeVolatileSnapshot();
    OwnCommit commit = UNDISTURBED_COMMITS.get(log.logPath().toString());
    if (commit != null && commit.version == known.version() && Checkpoints.knowsLast(known)
        && System.nanoTime() - commit.listedAtNanos < LISTING_NANOS) {
      return new LightTransaction(log, known, commit.listedAtNanos);
    }
    long listedAtNanos = System.nanoTime();
    OptimisticTransaction transaction = start.apply();
    Snapshot newest = transaction.snapshot();
    // With adaptive metadata a checkpoint is part of the commit or another commit.
    boolean isLight = transaction.deltaLog() == log && transaction.catalogTable().isEmpty() && newest.version() >= 0
        && !DeltaApi.commitsCheckpoints(newest.protocol());
    return isLight ? new LightTransaction(log, newest, listedAtNanos) : transaction;
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
      UNDISTURBED_COMMITS.put(log, new OwnCommit(version, listedAtNanos));
    } else {
      UNDISTURBED_COMMITS.remove(log);
    }
    try {
      if (version == snapshot.version()) {
        Checksum.write(spark(), snapshot, txnId());
      }
      Checkpoints.keepIfDue(version, snapshot, transaction.catalogTable());
    } catch (Exception | LinkageError e) {
      // Scala throws undeclared checked exceptions.
      LOG.warn("version {} of {} is committed, but its checksum or checkpoint is left to a later version",
          version, dataPath(), e);
    }
  }
}
