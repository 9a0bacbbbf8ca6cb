package io.deltasluice.storage;

import java.lang.ref.WeakReference;
import org.apache.spark.sql.delta.ChainableExecutionObserver;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.TransactionExecutionObserver;
import org.apache.spark.sql.delta.TransactionExecutionObserver$;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Function0;
import scala.Option;

/**
 * Finds the Delta transaction of the current thread.
 *
 * <p>Most commands make their transaction the thread's active one. OPTIMIZE and streams do not. So each thread has this
 * observer, which Delta calls for each transaction that it starts or ends.
 */
final class ActiveTransaction implements TransactionExecutionObserver {
  private static final Logger LOG = LoggerFactory.getLogger(ActiveTransaction.class);

  private static boolean isTracking;

  /** The newest transaction of the thread. A weak reference suffices, because Delta holds it until its commit. */
  private WeakReference<OptimisticTransaction> newestTransaction = new WeakReference<>(null);

  /** When the newest transaction began, or its wait for the lock, in milliseconds since the epoch. */
  private long begunAtMillis;

  private Option<TransactionExecutionObserver> nextObserver = Option.empty();

  private ActiveTransaction() {}

  /** Starts to track the transactions of all threads. A JVM without Delta's transactions has nothing to track. */
  static synchronized void track() {
    if (isTracking) {
      return;
    }
    isTracking = true;
    try {
      TransactionExecutionObserver$.MODULE$
          .org$apache$spark$sql$delta$ThreadStorageExecutionObserver$_setter_$threadObserver_$eq(
              ThreadLocal.withInitial(ActiveTransaction::new));
    } catch (LinkageError e) {
      LOG.debug("Delta's transactions cannot be tracked", e);
    }
  }

  /** Returns this thread's transaction on the table at this location; null if there is none. */
  static OptimisticTransaction of(String table) {
    Option<OptimisticTransaction> active = OptimisticTransaction.getActive();
    if (active.isDefined()) {
      return nullUnlessOn(table, active.get());
    }
    ChainableExecutionObserver<?> observer = TransactionExecutionObserver$.MODULE$.getObserver();
    return observer instanceof ActiveTransaction tracker
        ? nullUnlessOn(table, tracker.newestTransaction.get())
        : null;
  }

  /** Returns when a transaction of this thread began, in milliseconds since the epoch. */
  static long begunAtMillis(OptimisticTransaction transaction) {
    ChainableExecutionObserver<?> observer = TransactionExecutionObserver$.MODULE$.getObserver();
    if (observer instanceof ActiveTransaction tracker && tracker.newestTransaction.get() == transaction) {
      return tracker.begunAtMillis;
    }
    return System.currentTimeMillis() - (System.nanoTime() - transaction.txnStartTimeNs()) / 1_000_000;
  }

  private static OptimisticTransaction nullUnlessOn(String table, OptimisticTransaction transaction) {
    boolean isOnTable = transaction != null && transaction.deltaLog().dataPath().toString().equals(table);
    return isOnTable ? transaction : null;
  }

  @Override
  public OptimisticTransaction startingTransaction(Function0<OptimisticTransaction> start) {
    Guard.prepareSession();
    long startedAtMillis = System.currentTimeMillis();
    OptimisticTransaction transaction = LightTransaction.begin(start);
    if (transaction == null) {
      transaction = ConfinedTransaction.begin(start);
    }
    if (transaction == null) {
      transaction = AutomaticTicket.beginUnderLock(start.apply(), start);
    }
    newestTransaction = new WeakReference<>(transaction);
    begunAtMillis = startedAtMillis;
    return transaction;
  }

  @Override
  public TransactionExecutionObserver createChild() {
    return this;
  }

  @Override
  public <T> T preparingCommit(Function0<T> prepare) {
    return prepare.apply();
  }

  @Override public void beginDoCommit() {}

  @Override public void beginBackfill() {}

  @Override public void beginPostCommit() {}

  @Override
  public void transactionCommitted() {
    AutomaticTicket.transactionCommitted();
    newestTransaction.clear();
  }

  @Override
  public void transactionAborted() {
    AutomaticTicket.transactionAborted();
    newestTransaction.clear();
  }

  @Override
  public Option<TransactionExecutionObserver> nextObserver() {
    return nextObserver;
  }

  @Override
  public void nextObserver_$eq(Option<TransactionExecutionObserver> observer) {
    nextObserver = observer;
  }
}
