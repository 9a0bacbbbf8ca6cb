package io.deltasluice.storage;

import java.util.List;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.types.StructType;
import scala.Function0;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Delta's transaction of a MERGE that changes rows of some partitions only.
 *
 * <p>With a clause WHEN NOT MATCHED BY SOURCE, Delta reads all files of the table, whatever the merge condition, and
 * replaces them or their deletion vectors ({@code ClassicMergeExecutor.findTouchedFiles}; tags v4.0.0 to v4.4.0). This
 * transaction gives it the files of the partitions, so rows of other partitions are neither matched nor changed. Delta's
 * conflict check then knows, too, that the files of other partitions were not read.
 */
public final class ConfinedTransaction extends OptimisticTransaction {
  /**
   * A merge of a thread.
   *
   * @param predicate SQL predicate on the partition columns of the table at this location
   */
  private record Merge(String location, String predicate) {}

  private static final ThreadLocal<Merge> MERGE = new ThreadLocal<>();

  private final Seq<Expression> partitions;

  private ConfinedTransaction(OptimisticTransaction transaction, Expression partitions) {
    super(transaction.deltaLog(), transaction.catalogTable(), transaction.snapshot());
    this.partitions = CollectionConverters.asScala(List.of(partitions)).toSeq();
  }

  /**
   * Confines the transactions that this thread begins on a table, until {@link #endConfinement}. Delta may repeat a merge
   * in another transaction.
   *
   * @param location location of the table
   * @param predicate SQL predicate that compares partition columns with literals
   */
  public static void confine(String location, String predicate) {
    MERGE.set(new Merge(location, predicate));
  }

  /** Ends the confinement of this thread's transactions. */
  public static void endConfinement() {
    MERGE.remove();
  }

  /**
   * Begins a confined transaction.
   *
   * @param start begins Delta's own transaction, with the newest snapshot
   * @return null if this thread's transactions are not confined
   */
  static OptimisticTransaction begin(Function0<OptimisticTransaction> start) {
    Merge merge = MERGE.get();
    if (merge == null) {
      return null;
    }
    OptimisticTransaction transaction = start.apply();
    SparkSession spark = SparkSession.active();
    // Delta's cache may have another instance of the log by now.
    if (!transaction.deltaLog().dataPath().equals(DeltaLog.forTable(spark, merge.location).dataPath())) {
      return transaction;
    }
    StructType columns = transaction.snapshot().metadata().partitionSchema();
    Dataset<Row> rows = (Dataset<Row>) spark.createDataFrame(List.<Row>of(), columns);
    TreeNode<?> plan = rows.where(merge.predicate).queryExecution().analyzed();
    return new ConfinedTransaction(transaction, ((Filter) plan).condition());
  }

  /** Confines the search of the merge for files to change. Its source may read the whole table in the transaction. */
  @Override
  public Seq<AddFile> filterFiles(Seq<Expression> filters, boolean keepNumRecords) {
    boolean isForAllFiles = filters.size() == 1 && filters.head().equals(Literal.TrueLiteral());
    return super.filterFiles(isForAllFiles ? partitions : filters, keepNumRecords);
  }
}
