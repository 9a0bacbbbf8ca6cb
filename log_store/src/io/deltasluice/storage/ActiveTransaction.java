package io.deltasluice.storage;

import java.lang.ref.WeakReference;
import org.apache.spark.sql.delta.ChainableExecutionObserver;
import org.apache.spark.sql.delta.NoOpTransactionExecutionObserver$;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.TransactionExecutionObserver;
import org.apache.spark.sql.delta.TransactionExecutionObserver$;
import scala.Function0;
import scala.Option;

/**
 * Finds the Delta transaction of the current thread.
 *
 * <p>Most commands make their transaction the thread's active one. OPTIMIZE does not. So threads that write under a
 * lock have this observer, which Delta calls for each transaction that it starts.
 */
public final class ActiveTransaction implements TransactionExecutionObserver {
  /** The newest transaction of the thread. A weak reference suffices, because Delta holds it until its commit. */
  private WeakReference<OptimisticTransaction> newestTransaction = new WeakReference<>(null);

  private Option<TransactionExecutionObserver> nextObserver = Option.empty();

  private ActiveTransaction() {}

  /** Starts to track the transactions of this thread, unless the thread has an observer already. */
  public static void track() {
    if (TransactionExecutionObserver$.MODULE$.getObserver() == NoOpTransactionExecutionObserver$.MODULE$) {
      TransactionExecutionObserver$.MODULE$.setObserver(new ActiveTransaction());
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

  private static OptimisticTransaction nullUnlessOn(String table, OptimisticTransaction transaction) {
    boolean isOnTable = transaction != null && transaction.deltaLog().dataPath().toString().equals(table);
    return isOnTable ? transaction : null;
  }

  @Override
  public OptimisticTransaction startingTransaction(Function0<OptimisticTransaction> start) {
    OptimisticTransaction transaction = start.apply();
    newestTransaction = new WeakReference<>(transaction);
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

  @Override public void transactionCommitted() {}

  @Override public void transactionAborted() {}

  @Override
  public Option<TransactionExecutionObserver> nextObserver() {
    return nextObserver;
  }

  @Override
  public void nextObserver_$eq(Option<TransactionExecutionObserver> observer) {
    nextObserver = observer;
  }
}
