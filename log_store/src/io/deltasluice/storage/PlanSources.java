package io.deltasluice.storage;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.Field;
import java.net.URI;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.WeakHashMap;
import org.apache.hadoop.fs.Path;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.HiveTableRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.files.TahoeFileIndex;
import org.apache.spark.sql.delta.files.TahoeLogFileIndex;
import org.apache.spark.sql.execution.ExternalRDD;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.datasources.DataSource;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.PartitioningAwareFileIndex;
import org.apache.spark.sql.execution.datasources.jdbc.JDBCRelation;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Finds the sources of a write for its OpenLineage events: the tables, folders and topics at the leaves of its plans.
 *
 * <p>A leaf that is not known here is reported as unknown: no source is better than a wrong one.
 */
public final class PlanSources {
  /** The sources of copied rows, as JSON, by the RDD of the copy. A plan that reads a copy has no other leaf. */
  private static final Map<RDD<?>, String> COPIES = Collections.synchronizedMap(new WeakHashMap<>());

  private static final String STREAM = "sql.streaming.queryId";
  private static final String KAFKA = "org.apache.spark.sql.kafka010.KafkaRelation";
  private static final String SERVERS = "kafka.bootstrap.servers";
  private static final String GLUE = "com.amazonaws.glue.catalog.metastore.AWSGlueDataCatalogHiveClientFactory";

  private final SparkSession session;
  private final Set<ObjectNode> sources = new LinkedHashSet<>();

  private PlanSources(SparkSession session) {
    this.session = session;
  }

  /**
   * Returns the sources of a write, as a JSON array.
   *
   * @param session session of the writer
   * @param rows the rows that the write reads. Delta refuses subqueries in conditions and assignments, so these read
   *     nothing else.
   * @return an object for each source: {@code path} of a folder or a Delta table, with {@code version} if the plan names
   *     a version; or {@code jdbc} (the URL) and {@code table}; or {@code kafka} (the servers) and {@code topic}; or
   *     {@code unknown}, a noun for a leaf whose source is not known. A table of a catalog has a {@code symlink}, see
   *     {@link #symlink(SparkSession, String)}.
   */
  public static String of(SparkSession session, List<Dataset<?>> rows) {
    PlanSources plans = new PlanSources(session);
    rows.forEach(plan -> plans.addPlan(plan.queryExecution().analyzed()));
    return CommitBody.JSON.createArrayNode().addAll(plans.sources).toString();
  }

  /** Remembers the sources of rows for a copy of them, such as a local checkpoint, as long as the copy exists. */
  public static void remember(Dataset<?> rows, Dataset<?> copy) {
    String sources = of(rows.sparkSession(), List.of(rows));
    PlanReads.forEachLeaf(copy.queryExecution().analyzed(), leaf -> {
      if (leaf instanceof LogicalRDD copied) {
        COPIES.put(copied.rdd(), sources);
      }
    });
  }

  /**
   * Returns the catalog's name of a table, as a JSON object with {@code namespace} and {@code name}.
   *
   * @return null if the session catalog does not have the table, or if the catalog has no name of its own
   */
  public static String symlink(SparkSession session, String name) throws Exception {
    var catalog = session.sessionState().catalog();
    var identifier = session.sessionState().sqlParser().parseTableIdentifier(name);
    if (!catalog.tableExists(identifier)) {
      return null;
    }
    ObjectNode symlink = new PlanSources(session).symlink(catalog.getTableMetadata(identifier));
    return symlink == null ? null : symlink.toString();
  }

  private void addPlan(LogicalPlan plan) {
    PlanReads.forEachLeaf(plan, this::addLeaf);
  }

  private void addLeaf(LogicalPlan leaf) {
    try {
      addKnownLeaf(leaf);
    } catch (RuntimeException | LinkageError e) {
      addUnknown(leaf.nodeName() + " (" + e + ")");
    }
  }

  private void addKnownLeaf(LogicalPlan leaf) {
    // The classes of streams are in other packages since Spark 4.1.
    String name = leaf.getClass().getSimpleName();
    if (leaf instanceof LogicalRelation logical) {
      addRelation(logical.relation(), logical.catalogTable());
    } else if (leaf instanceof HiveTableRelation hive) {
      addPath(new Path(hive.tableMeta().location()), Option.apply(hive.tableMeta()));
    } else if (leaf instanceof LogicalRDD rows) {
      addRows(rows.rdd());
    } else if (name.equals("StreamingRelation")) {
      addStream((DataSource) ByName.call(leaf, "dataSource"));
    } else if (name.equals("StreamingRelationV2") && ByName.call(leaf, "sourceName").equals("kafka")) {
      @SuppressWarnings("unchecked")
      Map<String, String> options = (Map<String, String>) ByName.call(leaf, "extraOptions");
      addTopics(options);
    } else if (leaf instanceof ExternalRDD<?>
        || PlanReads.LEAVES_WITHOUT_TABLE.stream().noneMatch(harmless -> harmless.isInstance(leaf))) {
      addUnknown(leaf.nodeName());
    }
  }

  private void addRelation(BaseRelation relation, Option<CatalogTable> table) {
    if (relation instanceof HadoopFsRelation files && files.location() instanceof TahoeFileIndex index) {
      ObjectNode source = pathSource(index.deltaLog().dataPath(), table);
      if (index instanceof TahoeLogFileIndex log && log.isTimeTravelQuery()) {
        // The type of the snapshot differs between releases of Delta.
        source.put("version", (long) ByName.call(ByName.call(log, "snapshotAtAnalysis"), "version"));
      }
      sources.add(source);
    } else if (relation instanceof HadoopFsRelation && table.isDefined()) {
      addPath(new Path(table.get().location()), table);
    } else if (relation instanceof HadoopFsRelation files) {
      addFolders(files);
    } else if (DeltaApi.changeFeedLog(relation) != null) {
      addPath(DeltaApi.changeFeedLog(relation).dataPath(), table);
    } else if (relation instanceof JDBCRelation jdbc) {
      addDatabaseTable(CollectionConverters.asJava(jdbc.jdbcOptions().parameters()));
    } else if (relation.getClass().getName().equals(KAFKA)) {
      addTopics(optionsOf(relation));
    } else {
      addUnknown(relation.getClass().getSimpleName());
    }
  }

  /** Adds the folders of files: those that the reader was given, and the parents of files. */
  private void addFolders(HadoopFsRelation relation) {
    List<Path> roots = CollectionConverters.asJava(relation.location().rootPaths());
    Set<Path> files = new HashSet<>();
    if (relation.location() instanceof PartitioningAwareFileIndex index) {
      var leaves = index.allFiles();
      // A single root that has several files, or none, is a folder.
      if (roots.size() > 1 || leaves.size() == 1) {
        CollectionConverters.asJava(leaves).forEach(file -> files.add(file.getPath()));
      }
    }
    for (Path root : roots) {
      Path folder = files.contains(root) ? root.getParent() : root;
      while (isPartition(folder, relation.partitionSchema())) {
        folder = folder.getParent();
      }
      addPath(folder, Option.empty());
    }
  }

  private static boolean isPartition(Path folder, StructType columns) {
    int end = folder.getName().indexOf('=');
    return end > 0 && folder.getParent() != null
        && List.of(columns.fieldNames()).stream().anyMatch(folder.getName().substring(0, end)::equalsIgnoreCase);
  }

  private void addRows(RDD<?> rows) {
    String copied = COPIES.get(rows);
    String stream = session.sparkContext().getLocalProperty(STREAM);
    if (copied != null) {
      addAll(copied);
    } else if (stream != null) {
      // The rows of a micro-batch. The plan of the query has its sources.
      Object query = ((Map<?, ?>) session.sharedState().activeStreamingQueries()).get(UUID.fromString(stream));
      if (query == null) {
        addUnknown("a stream that has ended");
      } else {
        addPlan((LogicalPlan) ByName.call(query, "analyzedPlan"));
      }
    } else {
      addUnknown("rows of an RDD or a checkpoint");
    }
  }

  private void addAll(String json) {
    try {
      for (JsonNode source : CommitBody.JSON.readTree(json)) {
        sources.add((ObjectNode) source);
      }
    } catch (com.fasterxml.jackson.core.JsonProcessingException e) {
      throw new IllegalStateException(e);
    }
  }

  /** Adds the source of a stream of files, or of the versions of a Delta table. */
  private void addStream(DataSource source) {
    Option<String> path = source.options().get("path");
    List<String> paths = CollectionConverters.asJava(source.paths());
    if (source.catalogTable().isDefined()) {
      addPath(new Path(source.catalogTable().get().location()), source.catalogTable());
    } else if (path.isDefined() || !paths.isEmpty()) {
      (path.isDefined() ? List.of(path.get()) : paths).forEach(text -> addPath(withoutGlob(text), Option.empty()));
    } else {
      addUnknown("a stream of the source " + source.className());
    }
  }

  /** Returns the part of a path before its first segment with a wildcard. */
  private Path withoutGlob(String text) {
    Path path = new Path(text);
    while (path.getParent() != null && path.toString().chars().anyMatch(character -> "*?[{".indexOf(character) >= 0)) {
      path = path.getParent();
    }
    return path;
  }

  private void addDatabaseTable(Map<String, String> parameters) {
    String table = parameters.get("dbtable");
    if (table == null || table.strip().startsWith("(")) {
      addUnknown("a query of a database");
    } else {
      sources.add(CommitBody.JSON.createObjectNode().put("jdbc", parameters.get("url")).put("table", table));
    }
  }

  private void addTopics(Map<String, String> options) {
    String topics = options.get("subscribe");
    if (topics == null) {
      addUnknown("Kafka without the option subscribe");
      return;
    }
    for (String topic : topics.split(",")) {
      sources.add(CommitBody.JSON.createObjectNode().put("kafka", options.get(SERVERS)).put("topic", topic.strip()));
    }
  }

  /** Returns the options of Kafka's relation, which has no method for them. */
  @SuppressWarnings("unchecked")
  private static Map<String, String> optionsOf(BaseRelation relation) {
    try {
      Field options = relation.getClass().getDeclaredField("sourceOptions");
      options.setAccessible(true);
      return CollectionConverters.asJava((scala.collection.Map<String, String>) options.get(relation));
    } catch (ReflectiveOperationException e) {
      throw new LinkageError(relation.getClass().getName(), e);
    }
  }

  private void addPath(Path path, Option<CatalogTable> table) {
    sources.add(pathSource(path, table));
  }

  private ObjectNode pathSource(Path path, Option<CatalogTable> table) {
    ObjectNode source = CommitBody.JSON.createObjectNode();
    source.put("path", NameServices.withService(qualified(path), session.sessionState()::newHadoopConf).toString());
    ObjectNode symlink = table.isDefined() ? symlink(table.get()) : null;
    if (symlink != null) {
      source.set("symlink", symlink);
    }
    return source;
  }

  private Path qualified(Path path) {
    try {
      return path.toUri().getScheme() == null
          ? path.getFileSystem(session.sessionState().newHadoopConf()).makeQualified(path)
          : path;
    } catch (java.io.IOException e) {
      throw new java.io.UncheckedIOException(e);
    }
  }

  /**
   * Returns the name of a table in its catalog, by the rules of OpenLineage's integration for Spark: in Glue, in a Hive
   * metastore, or below the warehouse of a session without one. Null if there is no such name.
   */
  private ObjectNode symlink(CatalogTable table) {
    if (table.identifier().database().isEmpty()) {
      return null;
    }
    String database = table.identifier().database().get();
    String name = table.identifier().table();
    var conf = session.sparkContext().hadoopConfiguration();
    ObjectNode symlink = CommitBody.JSON.createObjectNode();
    if (GLUE.equals(conf.get("hive.metastore.client.factory.class"))) {
      String region = System.getenv().getOrDefault("AWS_DEFAULT_REGION", System.getenv("AWS_REGION"));
      String account = conf.get("hive.metastore.glue.catalogid", setting("spark.glue.accountId"));
      return region == null || account == null ? null : symlink
          .put("namespace", "arn:aws:glue:" + region + ":" + account).put("name", "table/" + database + "/" + name);
    }
    if ("hive".equals(setting("spark.sql.catalogImplementation"))) {
      String metastore = conf.get("hive.metastore.uris", "").split(",")[0].strip();
      return metastore.isEmpty() ? null : symlink
          .put("namespace", "hive://" + URI.create(metastore).getAuthority().toLowerCase(Locale.ROOT))
          .put("name", database + "." + name);
    }
    Path warehouse = qualified(new Path(session.sharedState().conf().get("spark.sql.warehouse.dir")));
    String location = qualified(new Path(table.location())).toString();
    return location.startsWith(warehouse + "/")
        ? symlink.put("namespace", warehouse.toString()).put("name", database + "." + name)
        : null;
  }

  private String setting(String name) {
    return session.sparkContext().conf().get(name, null);
  }

  private void addUnknown(String name) {
    sources.add(CommitBody.JSON.createObjectNode().put("unknown", name));
  }
}
