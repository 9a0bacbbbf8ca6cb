package io.deltasluice.storage;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.List;
import java.util.Set;
import java.util.function.Consumer;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry$;
import org.apache.spark.sql.catalyst.analysis.ResolvedInlineTable;
import org.apache.spark.sql.catalyst.analysis.UnresolvedFunction;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationRef;
import org.apache.spark.sql.catalyst.plans.logical.Command;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OneRowRelation;
import org.apache.spark.sql.catalyst.plans.logical.Range;
import org.apache.spark.sql.catalyst.plans.logical.UnionLoopRef;
import org.apache.spark.sql.classic.ColumnNodeToExpressionConverter$;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.files.TahoeFileIndex;
import org.apache.spark.sql.delta.files.TahoeLogFileIndex;
import org.apache.spark.sql.delta.sources.DeltaSQLConf;
import org.apache.spark.sql.execution.ExternalRDD;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.datasources.CatalogFileIndex;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.sources.BaseRelation;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Finds the tables and files that the plans and conditions of a write read.
 *
 * <p>Delta registers a read of the table that it writes only if it plans the scan inside the transaction. It does not
 * register a read of a change feed, an older version, Spark's cache or a raw file ({@code PrepareDeltaScan},
 * {@code OptimisticTransaction.getDeltaScanGenerator}; tag v4.4.0). So its conflict check does not cover these reads.
 */
final class PlanReads {
  /**
   * Leaves that read no table. The rows of an RDD or a checkpoint were planned before the writer was called, so a lock
   * cannot make them newer. A reference to a common table expression has its plan elsewhere in the tree.
   */
  static final List<Class<? extends LogicalPlan>> LEAVES_WITHOUT_TABLE = List.of(
      LocalRelation.class, OneRowRelation.class, ResolvedInlineTable.class, Range.class, LogicalRDD.class,
      ExternalRDD.class, CTERelationRef.class, UnionLoopRef.class);

  /** Names of the classes that read other stores. Some are in jars that the driver may not have. */
  private static final Set<String> OTHER_STORES = Set.of(
      "org.apache.spark.sql.execution.datasources.jdbc.JDBCRelation", "org.apache.spark.sql.kafka010.KafkaRelation");

  /** Name of the plan of the rows that Delta's commands UPDATE, DELETE and MERGE change. */
  private static final String TARGET = "target";

  /** Prefix of the names of leaves that a catalog has resolved, and that read nothing. */
  private static final String RESOLVED = "org.apache.spark.sql.catalyst.analysis.Resolved";

  private final SparkSession session;
  private final ArrayNode reads;

  /** Transaction of the statement; null if it is not known. */
  private OptimisticTransaction transaction;

  /** Whether the statement is a micro-batch of a stream, whose streaming sources read no current state. */
  private boolean isStream;

  /**
   * @param session session that parses the conditions and resolves their functions
   * @param reads array to which each read adds an object: {@code roots} of the files, with {@code table_id} for a Delta
   *     table or its change feed, and {@code newest} (whether the transaction plans the read of its version); or
   *     {@code unknown}, the name of a read that may read any table
   */
  PlanReads(SparkSession session, ArrayNode reads) {
    this.session = session;
    this.reads = reads;
  }

  /** Adds the reads of a {@code Dataset}, a {@code Column} or an SQL condition. */
  void add(Object source) {
    if (source instanceof Dataset<?> rows) {
      addPlan(rows.queryExecution().analyzed());
    } else if (source instanceof Column column) {
      addExpression(ColumnNodeToExpressionConverter$.MODULE$.apply(column.node()));
    } else {
      addSql(source.toString());
    }
  }

  private void addPlan(LogicalPlan plan) {
    forEachLeaf(plan, this::addLeaf);
  }

  /** Calls a function for the leaves of a plan and of its subqueries. */
  static void forEachLeaf(LogicalPlan plan, Consumer<LogicalPlan> function) {
    CollectionConverters.asJava(plan.collectLeaves()).forEach(function);
    CollectionConverters.asJava(plan.subqueriesAll())
        .forEach(subquery -> CollectionConverters.asJava(subquery.collectLeaves()).forEach(function));
  }

  /**
   * Adds the reads of the statement that this thread executes. They are the reads of its plan, and of the plans within
   * its commands.
   *
   * @param writer transaction of the statement; null if it is not known
   */
  void addStatement(OptimisticTransaction writer) {
    transaction = writer;
    String id = session.sparkContext().getLocalProperty(SQLExecution.EXECUTION_ID_KEY());
    QueryExecution execution = id == null ? null : SQLExecution.getQueryExecution(Long.parseLong(id));
    if (execution == null) {
      addUnknown("a statement that Spark does not report");
      return;
    }
    isStream = execution.getClass().getSimpleName().equals("IncrementalExecution");
    try {
      addTree(execution.analyzed());
    } catch (RuntimeException | LinkageError e) {
      addUnknown("a statement that cannot be examined: " + e);
    }
  }

  private void addTree(LogicalPlan plan) {
    forEachLeaf(plan, this::addLeafOrCommand);
  }

  private void addLeafOrCommand(LogicalPlan leaf) {
    if (leaf instanceof Command) {
      for (int i = 0; i < leaf.productArity(); i++) {
        // A transaction reads the rows that it changes.
        if (!leaf.productElementName(i).equals(TARGET)) {
          addPart(leaf.productElement(i));
        }
      }
    } else if (!leaf.getClass().getName().startsWith(RESOLVED) && !(isStream && leaf.isStreaming())) {
      addLeaf(leaf);
    }
  }

  /** Adds the reads of a command's part, which may be a plan. */
  private void addPart(Object part) {
    if (part instanceof LogicalPlan plan) {
      addTree(plan);
    } else if (part instanceof Dataset<?> rows) {
      addTree(rows.queryExecution().analyzed());
    } else if (part instanceof Option<?> option && option.isDefined()) {
      addPart(option.get());
    }
  }

  private void addLeaf(LogicalPlan leaf) {
    if (leaf instanceof LogicalRelation logical) {
      addRelation(logical.relation());
    } else if (LEAVES_WITHOUT_TABLE.stream().noneMatch(harmless -> harmless.isInstance(leaf))) {
      addUnknown(leaf.nodeName());
    }
  }

  private void addRelation(BaseRelation relation) {
    if (relation instanceof HadoopFsRelation files && files.location() instanceof TahoeFileIndex table) {
      addTable(table.deltaLog()).put("newest", isPlannedInTransaction(table));
    } else if (relation instanceof HadoopFsRelation files && !(files.location() instanceof CatalogFileIndex)) {
      // A catalog's file index is excluded: a partition of its table may be anywhere.
      addRoots(CollectionConverters.asJava(files.location().rootPaths()));
    } else if (DeltaApi.changeFeedLog(relation) != null) {
      addTable(DeltaApi.changeFeedLog(relation));
    } else if (!OTHER_STORES.contains(relation.getClass().getName())) {
      addUnknown(relation.getClass().getSimpleName());
    }
  }

  private ObjectNode addTable(DeltaLog table) {
    return addRoots(List.of(table.dataPath())).put("table_id", table.unsafeVolatileSnapshot().metadata().id());
  }

  /**
   * Returns whether the transaction plans, and so registers, the read of its version through this index. Spark plans a
   * micro-batch before its transaction begins, and a cached read earlier still. Delta recognizes the table by its id and
   * path, and it misses subqueries if data skipping is off ({@code OptimisticTransaction.getDeltaScanGenerator},
   * {@code PrepareDeltaScan}; tag v4.4.0).
   */
  private boolean isPlannedInTransaction(TahoeFileIndex table) {
    var classic = (org.apache.spark.sql.classic.SparkSession) session;
    return table instanceof TahoeLogFileIndex index && !index.isTimeTravelQuery() && !isStream
        && transaction != null && table.deltaLog().isSameLogAs(transaction.deltaLog())
        && classic.sharedState().cacheManager().isEmpty()
        && (boolean) classic.sessionState().conf().getConf(DeltaSQLConf.DELTA_STATS_SKIPPING());
  }

  private ObjectNode addRoots(Iterable<Path> paths) {
    ObjectNode read = reads.addObject();
    ArrayNode roots = read.putArray("roots");
    paths.forEach(path -> roots.add(NameServices.withService(path, sessionState()::newHadoopConf).toString()));
    return read;
  }

  private void addSql(String condition) {
    try {
      addExpression(sessionState().sqlParser().parseExpression(condition));
    } catch (Exception e) {
      addUnknown("a condition that cannot be parsed");
    }
  }

  /** Adds the reads of an unresolved expression. A subquery, and a function that may hide one, are unknown reads. */
  private void addExpression(Expression expression) {
    if (expression instanceof PlanExpression<?>) {
      addUnknown("a subquery in a condition or an assignment");
    } else if (expression instanceof UnresolvedFunction function && !isBuiltin(function)) {
      addUnknown("the function " + String.join(".", CollectionConverters.asJava(function.nameParts())));
    }
    CollectionConverters.asJava(expression.children()).forEach(this::addExpression);
  }

  private boolean isBuiltin(UnresolvedFunction function) {
    if (function.nameParts().size() != 1) {
      return false;
    }
    FunctionIdentifier name = DeltaApi.builtinFunction(function.nameParts().head());
    FunctionRegistry functions = sessionState().functionRegistry();
    var builtin = FunctionRegistry$.MODULE$.builtin().lookupFunction(name);
    // A session may replace a builtin function.
    return builtin.isDefined() && builtin.equals(functions.lookupFunction(name));
  }

  private org.apache.spark.sql.internal.SessionState sessionState() {
    return ((org.apache.spark.sql.classic.SparkSession) session).sessionState();
  }

  private void addUnknown(String name) {
    reads.addObject().put("unknown", name);
  }
}
