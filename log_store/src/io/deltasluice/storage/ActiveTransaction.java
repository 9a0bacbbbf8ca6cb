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
 * The transaction of Delta's that this thread is in.
 *
 * <p>Most commands make theirs the thread's active one. OPTIMIZE does not, so threads that write with a lock are given
 * an observer, to which Delta shows each transaction that it starts.
 */
public final class ActiveTransaction implements TransactionExecutionObserver {
  /** Whoever commits it holds it. */
  private WeakReference<OptimisticTransaction> newest = new WeakReference<>(null);

  private Option<TransactionExecutionObserver> next = Option.empty();

  private ActiveTransaction() {}

  /** Has Delta show the transactions of this thread, from now on. */
  public static void follow() {
    if (TransactionExecutionObserver$.MODULE$.getObserver() == NoOpTransactionExecutionObserver$.MODULE$) {
      TransactionExecutionObserver$.MODULE$.setObserver(new ActiveTransaction());
    }
  }

  /** Returns it if it is of the table at this location; else null. */
  static OptimisticTransaction of(String table) {
    Option<OptimisticTransaction> active = OptimisticTransaction.getActive();
    if (active.isDefined()) {
      return isOf(table, active.get());
    }
    ChainableExecutionObserver<?> observer = TransactionExecutionObserver$.MODULE$.getObserver();
    return observer instanceof ActiveTransaction followed ? isOf(table, followed.newest.get()) : null;
  }

  private static OptimisticTransaction isOf(String table, OptimisticTransaction found) {
    return found != null && found.deltaLog().dataPath().toString().equals(table) ? found : null;
  }

  @Override
  public OptimisticTransaction startingTransaction(Function0<OptimisticTransaction> start) {
    OptimisticTransaction started = start.apply();
    newest = new WeakReference<>(started);
    return started;
  }

  @Override
  public TransactionExecutionObserver createChild() {
    return this;
  }

  @Override
  public <T> T preparingCommit(Function0<T> prepare) {
    return prepare.apply();
  }

  @Override
  public void beginDoCommit() {}

  @Override
  public void beginBackfill() {}

  @Override
  public void beginPostCommit() {}

  @Override
  public void transactionCommitted() {}

  @Override
  public void transactionAborted() {}

  @Override
  public Option<TransactionExecutionObserver> nextObserver() {
    return next;
  }

  @Override
  public void nextObserver_$eq(Option<TransactionExecutionObserver> given) {
    next = given;
  }
}
