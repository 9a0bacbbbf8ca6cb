package io.deltasluice.storage;

import org.apache.spark.sql.delta.OptimisticTransaction;
import scala.Option;

/** The transaction of Delta's that this thread is in. */
final class ActiveTransaction {
  private ActiveTransaction() {}

  /** Returns it if it is of the table at this location; else null. */
  static OptimisticTransaction of(String table) {
    Option<OptimisticTransaction> active = OptimisticTransaction.getActive();
    return active.isDefined() && active.get().deltaLog().dataPath().toString().equals(table) ? active.get() : null;
  }
}
