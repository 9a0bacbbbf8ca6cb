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
  /** Weak, because Delta holds the transaction until its commit. */
  private WeakReference<OptimisticTransaction> newest = new WeakReference<>(null);

  private Option<TransactionExecutionObserver> next = Option.empty();

  private ActiveTransaction() {}

  /** Starts to track the transactions of this thread. */
  public static void track() {
    if (TransactionExecutionObserver$.MODULE$.getObserver() == NoOpTransactionExecutionObserver$.MODULE$) {
      TransactionExecutionObserver$.MODULE$.setObserver(new ActiveTransaction());
    }
  }

  /** Returns the transaction of this thread; null if it has none on the table at this location. */
  static OptimisticTransaction of(String table) {
    Option<OptimisticTransaction> active = OptimisticTransaction.getActive();
    if (active.isDefined()) {
      return ifOn(table, active.get());
    }
    ChainableExecutionObserver<?> observer = TransactionExecutionObserver$.MODULE$.getObserver();
    return observer instanceof ActiveTransaction tracker ? ifOn(table, tracker.newest.get()) : null;
  }

  private static OptimisticTransaction ifOn(String table, OptimisticTransaction transaction) {
    boolean isOnTable = transaction != null && transaction.deltaLog().dataPath().toString().equals(table);
    return isOnTable ? transaction : null;
  }

  @Override
  public OptimisticTransaction startingTransaction(Function0<OptimisticTransaction> start) {
    OptimisticTransaction transaction = start.apply();
    newest = new WeakReference<>(transaction);
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
    return next;
  }

  @Override
  public void nextObserver_$eq(Option<TransactionExecutionObserver> observer) {
    next = observer;
  }
}
