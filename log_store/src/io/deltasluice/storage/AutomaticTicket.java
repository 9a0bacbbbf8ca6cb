package io.deltasluice.storage;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.MissingNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.delta.exceptions.ConcurrentWriteException;
import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.StringJoiner;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Function0;

/**
 * The ticket of a commit by a program that requests no lock: its thread is bound to neither a block nor a ticket.
 *
 * <p>The ticket belongs to one transaction of one thread. Python requests the lock when the first commit with the ticket
 * arrives, or when the transaction begins ({@code spark.sluice.lock=write}). It keeps the lock until the ticket ends:
 * with the outcome of the put, or, if hooks need the lock, after them. If another writer has the version, Delta checks
 * for conflicts, and tries the next version with the same ticket, which keeps its place in the queue, or its lock.
 * Delta reports the end of a transaction that it gives up ({@link ActiveTransaction}).
 */
final class AutomaticTicket {
  private static final Logger LOG = LoggerFactory.getLogger(AutomaticTicket.class);
  private static final ThreadLocal<AutomaticTicket> CURRENT = new ThreadLocal<>();
  private static final Set<AutomaticTicket> OPEN = ConcurrentHashMap.newKeySet();
  private static final long WATCH_SECONDS = 1;

  /** Operations that after a conflict commit the same files in another transaction. */
  private static final Set<String> REPEATED = Set.of("OPTIMIZE", "REORG");

  /** Prefixes of the classes whose methods are on the stack of a thread that commits. */
  private static final String[] COMMITTING = {"org.apache.spark.sql.delta.OptimisticTransaction", "io.delta.kernel."};

  /** Prefix of the classes whose methods are on the stack of a thread that executes a statement of Delta. */
  private static final String[] EXECUTING = {"org.apache.spark.sql.delta."};

  /** Ends the tickets of threads that no longer commit, after an error that Delta does not report. */
  private static final ScheduledExecutorService WATCH = Executors.newSingleThreadScheduledExecutor(work -> {
    Thread thread = new Thread(work, "sluice-tickets");
    thread.setDaemon(true);
    return thread;
  });

  static {
    WATCH.scheduleWithFixedDelay(AutomaticTicket::endAbandoned, WATCH_SECONDS, WATCH_SECONDS, TimeUnit.SECONDS);
  }

  private final String name = "automatic-" + UUID.randomUUID();
  private final String guardName;
  private final VersionFile file;
  private final Thread thread = Thread.currentThread();

  /** Whether the lock was acquired before the transaction began. */
  private final boolean isFromBeginning;

  /** Delta's id of the transaction; null if the commit does not name it. */
  private String txn;

  /** Whether hooks that run after the commit need the lock. */
  private boolean hooksNeedLock;

  /** See {@link Guard.Permission}. */
  private volatile JsonNode restoration = MissingNode.getInstance();

  /** Whether the commit of the ticket was made. A hook that commits needs another ticket. */
  private volatile boolean hasCommitted;

  /** Changed by its thread, and by the watch, which ends an idle ticket. */
  private final AtomicReference<State> state = new AtomicReference<>(State.IN_USE);

  /** Whether Python was asked to end the ticket; false again if the request failed. */
  private final AtomicBoolean isEnding = new AtomicBoolean();

  /** Ids of the holds of the ticket's commit. */
  private volatile List<String> holds = List.of();

  /**
   * {@code IN_USE}: the thread is in the log store. {@code IDLE}: Delta executes the statement, checks for conflicts, or
   * runs hooks. {@code ENDED}: Python has ended the ticket, or was asked to.
   */
  private enum State { IN_USE, IDLE, ENDED }

  private AutomaticTicket(String guardName, VersionFile file, String txn, boolean isFromBeginning) {
    this.guardName = guardName;
    this.file = file;
    this.txn = txn;
    this.isFromBeginning = isFromBeginning;
  }

  /**
   * Returns the transaction that a statement executes: this one or, if it had to begin under the lock and did not,
   * another one that has begun under the lock.
   *
   * @param transaction transaction that Delta has begun
   * @param start begins the transaction again: on the newest version, or on the version that the statement has chosen
   */
  static OptimisticTransaction beginUnderLock(OptimisticTransaction transaction, Function0<OptimisticTransaction> start) {
    String table = transaction.deltaLog().dataPath().toString();
    AutomaticTicket ticket = CURRENT.get();
    boolean isUsable = ticket != null && !ticket.hasEnded() && !ticket.hasCommitted && ticket.isFromBeginning;
    if (!isUsable || !ticket.file.table().equals(table)) {
      String guardName = Guard.guardOfWrites();
      // An earlier transaction of this thread has ended, even if Delta has not reported it. After its commit, a hook may
      // still need its lock.
      if (ticket != null && (guardName != null || !ticket.hasCommitted)) {
        ticket.end();
      }
      if (guardName == null) {
        return transaction;
      }
      long version = transaction.snapshot().version() + 1;
      VersionFile file = new VersionFile(VersionFile.in(transaction.deltaLog().logPath(), version), table, version);
      ticket = open(new AutomaticTicket(guardName, file, null, true));
      boolean hasBegun = false;
      try {
        Guard.acquire(ticket, file);
        transaction = start.apply();
        hasBegun = !isOutdated(transaction, version);
      } catch (IOException e) {
        // The caller is Scala's, which has no checked exceptions.
        throw ByName.<RuntimeException>throwUnchecked(e);
      } finally {
        ticket.leave(!hasBegun);
      }
      if (!hasBegun) {
        return transaction;
      }
    }
    ticket.txn = transaction.txnId();
    return transaction;
  }

  /**
   * Returns whether a transaction reads an older version than the newest one. OPTIMIZE and others choose their version
   * before they begin a transaction. Then a lock from the beginning would prevent no conflict.
   *
   * @param next version after the one that was the newest before the wait for the lock
   */
  private static boolean isOutdated(OptimisticTransaction transaction, long next) throws IOException {
    if (transaction.snapshot().version() >= next) {
      return false;
    }
    Path file = VersionFile.in(transaction.deltaLog().logPath(), next);
    return file.getFileSystem(transaction.deltaLog().newDeltaHadoopConf()).exists(file);
  }

  /** Returns the ticket of this thread's transaction, or a new ticket if it has none. */
  static AutomaticTicket of(String guardName, VersionFile file, CommitBody body) {
    AutomaticTicket current = CURRENT.get();
    if (current != null && Objects.equals(current.txn, body.txn) && current.file.table().equals(file.table())
        && current.state.compareAndSet(State.IDLE, State.IN_USE)) {
      return current;
    }
    if (current != null) {
      current.end();
    }
    return open(new AutomaticTicket(guardName, file, body.txn, false));
  }

  private static AutomaticTicket open(AutomaticTicket ticket) {
    CURRENT.set(ticket);
    OPEN.add(ticket);
    return ticket;
  }

  /** Returns this thread's ticket, or null. */
  static AutomaticTicket current() {
    return CURRENT.get();
  }

  /** Returns this thread's ticket if it has this name, else null. */
  static AutomaticTicket named(String name) {
    AutomaticTicket current = CURRENT.get();
    return current != null && current.name.equals(name) ? current : null;
  }

  /** Ends this thread's ticket, if it has one: its transaction was given up. */
  static void transactionAborted() {
    AutomaticTicket current = CURRENT.get();
    // A hook may have given up a transaction of its own.
    if (current != null && !current.hasCommitted) {
      current.end();
    }
  }

  /** Restores the table's adoption, and ends this thread's ticket, if it has one: all hooks of its commit have run. */
  static void transactionCommitted() {
    AutomaticTicket current = CURRENT.get();
    if (current != null) {
      // The commit that restores the adoption belongs to a block, and not to this ticket.
      current.detach();
      try {
        current.restoreAdoption();
      } finally {
        current.end();
      }
    }
  }

  String name() {
    return name;
  }

  /** Name of the guard that knows the ticket. */
  String guardName() {
    return guardName;
  }

  /** Returns whether the lock is needed after the commit, until {@link #transactionCommitted}. */
  boolean keepsLock() {
    return hooksNeedLock || !restoration.isMissingNode();
  }

  /** Records the permission for the commit. {@link #transactionCommitted} restores the properties that it names. */
  void setPermission(Guard.Permission permission) {
    holds = permission.holds();
    restoration = permission.restoration();
  }

  /** Records that the commit was made, and whether Python ended the ticket when it received the report. */
  void setCommitted(boolean isEnded) {
    hasCommitted = true;
    if (isEnded) {
      state.set(State.ENDED);
    }
  }

  private boolean hasEnded() {
    return state.get() == State.ENDED;
  }

  /** Records that the thread leaves the log store, and ends the ticket if {@code ends}. */
  void leave(boolean ends) {
    if (!state.compareAndSet(State.IN_USE, State.IDLE)) {
      detach();
      forget();
    } else if (ends) {
      end();
    }
  }

  /** Releases the ticket's lock, or ends the wait for it. */
  private void end() {
    state.set(State.ENDED);
    detach();
    if (isEnding.compareAndSet(false, true)) {
      if (!restoration.isMissingNode() && hasCommitted) {
        LOG.error("a commit to {} has changed the table's adoption, which is not restored: run `sluice adopt` again",
            file.table());
      }
      Guard.end(this, file, holds);
    }
  }

  /** Makes the watch ask Python again to end this ticket. */
  void endLater() {
    isEnding.set(false);
  }

  /** Makes the next commit of this thread open another ticket. */
  private void detach() {
    if (CURRENT.get() == this) {
      CURRENT.remove();
    }
  }

  /** Removes the ticket, which Python has ended. */
  void forget() {
    OPEN.remove(this);
  }

  /** Throws Delta's exception, which programs handle, if a statement must run again; else returns the refusal. */
  static CommitRefusedException asDeltaException(CommitRefusedException refusal) {
    if (refusal.errorName().equals("NotStagedError")) {
      throw new ConcurrentWriteException(refusal.getMessage());
    }
    return refusal;
  }

  /** Restores the table's adoption. An error is logged when the ticket ends, because the commit itself is stored. */
  private void restoreAdoption() {
    if (restoration.isMissingNode()) {
      return;
    }
    StringJoiner properties = new StringJoiner(", ");
    restoration.path("properties").properties()
        .forEach(pair -> properties.add(quoted(pair.getKey()) + " = " + quoted(pair.getValue().asText())));
    String statement = "ALTER TABLE delta.`" + file.table().replace("`", "``") + "` SET TBLPROPERTIES (" + properties + ")";
    try {
      Guard.runBound(guardName, restoration.path("block").asText(), () -> SparkSession.active().sql(statement));
      restoration = MissingNode.getInstance();
    } catch (Exception e) {
      LOG.warn("the adoption of {} was not restored", file.table(), e);
    }
  }

  private static String quoted(String text) {
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'";
  }

  private static void endAbandoned() {
    for (AutomaticTicket ticket : OPEN) {
      try {
        boolean isAbandoned = ticket.state.get() == State.IDLE && !ticket.isCommitting()
            && ticket.state.compareAndSet(State.IDLE, State.ENDED);
        if (isAbandoned || ticket.hasEnded()) {
          ticket.end();
        }
      } catch (Throwable e) {
        // The next run tries again. An exception would end all runs.
        LOG.warn("a ticket on {} was not ended", ticket.file.table(), e);
      }
    }
  }

  private boolean isCommitting() {
    String[] prefixes = isFromBeginning ? EXECUTING : COMMITTING;
    return Arrays.stream(thread.getStackTrace())
        .anyMatch(frame -> Arrays.stream(prefixes).anyMatch(frame.getClassName()::startsWith));
  }

  /**
   * Adds the properties of a commit that only automatic tickets need: {@code reads}, the reads of the statement, see
   * {@link PlanReads}; and, if the transaction is known, {@code table_id}, Delta's id of the table, {@code begun_ms}, when
   * the transaction began or, if earlier, when the oldest file of an OPTIMIZE or REORG was written, in milliseconds
   * since the epoch, and {@code retention_ms}, the age at which VACUUM deletes files that belong to no commit.
   */
  void describe(ObjectNode staged, CommitBody body) {
    hooksNeedLock = !staged.path("hooks").isEmpty();
    OptimisticTransaction transaction = ActiveTransaction.of(file.table());
    new PlanReads(SparkSession.active(), staged.putArray("reads")).addStatement(transaction);
    if (transaction != null) {
      long oldestFile = REPEATED.contains(body.operation) ? body.oldestRewrittenMillis() : Long.MAX_VALUE;
      staged.put("table_id", transaction.snapshot().metadata().id());
      staged.put("begun_ms", Math.min(ActiveTransaction.begunAtMillis(transaction), oldestFile));
      staged.put("retention_ms", ReadVersion.retentionMillis(file));
    }
  }
}
