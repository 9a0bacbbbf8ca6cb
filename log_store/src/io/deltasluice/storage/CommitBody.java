package io.deltasluice.storage;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.MissingNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

/** The lines of one commit, which can be put several times, with Sluice's stamp in their {@code commitInfo}. */
final class CommitBody {
  static final ObjectMapper JSON = new ObjectMapper();

  private static final ObjectReader STRICT = JSON.reader().with(DeserializationFeature.FAIL_ON_TRAILING_TOKENS);
  private static final String INFO = "{\"commitInfo\":{";
  private static final String METADATA = "{\"metaData\":";
  private static final String STAMP = "sluice";
  private static final Set<String> FILES = Set.of("add", "remove", "cdc");
  private static final String COMMIT_ID = "commit_id";
  private static final String GROUP = "group";
  private static final String METRICS = "operationMetrics";

  /** Fields of a member's {@code commitInfo} that a group commit records for it. */
  private static final List<String> MEMBER_FIELDS =
      List.of(METRICS, "operationParameters", "txnId", "timestamp", "readVersion");

  /** Fields of the stamp of a group commit that belong to its holder's write, and not to the hold. */
  private static final List<String> HOLDER_FIELDS = List.of(COMMIT_ID, "job", "trace_id");

  /** Maximum size of a commit that another writer may put, in characters. */
  private static final int MAX_OFFER = 32_768;

  private final List<String> lines = new ArrayList<>();
  private final String info;

  /** Parsed {@link #lines}; null until they are first used. */
  private Contents contents;

  /** Unique id of the attempt. */
  final String attempt;

  /** {@code commitInfo.txnId}, or null. */
  final String txn;

  /** {@code commitInfo.operation}, or null. */
  final String operation;

  /** {@code commitInfo.operationMetrics}, or an empty object. */
  final JsonNode metrics;

  /** Whether the commit has a {@code metaData} action. */
  final boolean hasMetadata;

  /** {@code commitInfo.isBlindAppend}: whether the transaction read nothing of the table. */
  private final boolean isBlindAppend;

  /** In-commit timestamp, which Delta sets when it prepares the commit; 0 without one. */
  private final long timestamp;

  CommitBody(Iterator<String> actions, String attempt) {
    this.attempt = attempt;
    String infoLine = null;
    boolean metadata = false;
    while (actions.hasNext()) {
      String line = actions.next();
      if (infoLine == null && line.startsWith(INFO)) {
        infoLine = line;
      } else {
        lines.add(line);
        metadata |= line.startsWith(METADATA);
      }
    }
    info = infoLine;
    hasMetadata = metadata;
    JsonNode node = commitInfo(infoLine);
    txn = node.path("txnId").asText(null);
    operation = node.path("operation").asText(null);
    metrics = node.path("operationMetrics").isObject() ? node.get("operationMetrics") : JSON.createObjectNode();
    isBlindAppend = node.path("isBlindAppend").asBoolean(false);
    timestamp = node.path("inCommitTimestamp").asLong();
  }

  /**
   * Returns the content of the version file. The stamp is the first field of the first line.
   *
   * @param members the members of a group commit, see {@link Guard.Permission}
   */
  byte[] bytes(ObjectNode stamp, List<JsonNode> members) {
    stamp.put("attempt", attempt);
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    append(out, members.isEmpty() ? stampedInfo(stamp) : groupInfo(stamp, members));
    lines.forEach(line -> append(out, line));
    members.forEach(member -> member.path("lines").forEach(line -> append(out, line.asText())));
    return out.toByteArray();
  }

  private String stampedInfo(ObjectNode stamp) {
    // If a setting of Delta turns commitInfo off, the stamp is written in a commitInfo of its own.
    String fields = info == null ? "}}" : info.substring(INFO.length());
    return INFO + "\"" + STAMP + "\":" + stamp + (fields.startsWith("}") ? "" : ",") + fields;
  }

  /** Returns the first line of a group commit: the stamp has the record of each writer, and the metrics are sums. */
  private String groupInfo(ObjectNode stamp, List<JsonNode> members) {
    ObjectNode groupInfo = JSON.createObjectNode();
    ArrayNode writers = JSON.createArrayNode();
    ObjectNode holder = writers.addObject();
    ObjectNode holderStamp = holder.putObject(STAMP);
    HOLDER_FIELDS.stream().filter(stamp::has).forEach(field -> holderStamp.set(field, stamp.get(field)));
    holder.set(METRICS, metrics);
    Map<String, Long> sums = new LinkedHashMap<>();
    addTo(sums, metrics);
    for (JsonNode member : members) {
      ObjectNode writer = writers.addObject();
      writer.set(STAMP, member.path("stamp"));
      writer.set("userMetadata", member.path("info").get("userMetadata"));
      MEMBER_FIELDS.stream().filter(member.path("info")::has)
          .forEach(field -> writer.set(field, member.path("info").get(field)));
      addTo(sums, member.path("info").path(METRICS));
    }
    stamp.set(GROUP, writers);
    groupInfo.set(STAMP, stamp);
    groupInfo.setAll((ObjectNode) commitInfo(info));
    ObjectNode total = groupInfo.putObject(METRICS);
    sums.forEach((name, value) -> total.put(name, value.toString()));
    return JSON.createObjectNode().set("commitInfo", groupInfo).toString();
  }

  private static void addTo(Map<String, Long> sums, JsonNode metrics) {
    metrics.properties().forEach(metric -> sums.merge(metric.getKey(), metric.getValue().asLong(), Long::sum));
  }

  /**
   * Returns the commit as a holder can put it together with its own.
   *
   * @return JSON object: {@code lines} (without {@code commitInfo}) and {@code info} ({@code commitInfo}); null if the
   *     commit does more than append files to the table, or is large
   */
  ObjectNode offer() {
    if (!isSmallAppend()) {
      return null;
    }
    ObjectNode offer = JSON.createObjectNode();
    ArrayNode offered = offer.putArray("lines");
    lines.forEach(offered::add);
    offer.set("info", commitInfo(info));
    return offer;
  }

  /** Returns whether the commit only appends files, and is small enough for a group commit. */
  boolean isSmallAppend() {
    int size = info == null ? 0 : info.length() + lines.stream().mapToInt(String::length).sum();
    return isBlindAppend && size > 0 && size <= MAX_OFFER && !contents().hasUnreadableLine
        && contents().tableActions.isEmpty() && contents().hasPlainFilesOnly;
  }

  /** Returns the application ids of the commit's {@code txn} actions. */
  Set<String> transactions() {
    return contents().transactions;
  }

  /**
   * Returns the parts of the table that the commit changes, for a hold on partitions.
   *
   * @return JSON object: {@code partitions} (distinct {@code partitionValues} of the files), {@code unplaced} (whether
   *     a file has no partition values, or a line cannot be parsed), {@code actions} (names of the actions on the whole
   *     table)
   */
  ObjectNode footprint() {
    Contents contents = contents();
    ObjectNode footprint = JSON.createObjectNode();
    footprint.putArray("partitions").addAll(contents.partitions);
    footprint.put("unplaced", contents.hasUnplacedFile || contents.hasUnreadableLine);
    contents.tableActions.forEach(footprint.putArray("actions")::add);
    return footprint;
  }

  /**
   * Returns the properties of a commit with a ticket.
   *
   * @return JSON object: {@code blind} (the transaction read nothing of the table), {@code removes} (the commit removes
   *     files), {@code dated} (it has an in-commit timestamp, and may change rows), {@code changes_rows},
   *     {@code operation}, {@code timestamp} (in-commit timestamp, milliseconds since the epoch; 0 without one),
   *     {@code actions} (names of the actions on the whole table, and {@code unreadable} if a line
   *     cannot be parsed), {@code configuration} (new table properties; null without new metadata), {@code files}
   *     (number of {@link #newFiles})
   */
  ObjectNode stagedProperties() {
    Contents contents = contents();
    ObjectNode staged = JSON.createObjectNode();
    staged.put("blind", isBlindAppend);
    staged.put("removes", !contents.removed.isEmpty());
    staged.put("dated", timestamp != 0 && contents.changesRows);
    staged.put("changes_rows", contents.changesRows);
    staged.put("operation", operation);
    staged.put("timestamp", timestamp);
    staged.set("configuration", contents.configuration);
    staged.put("files", newFiles().size());
    ArrayNode actions = staged.putArray("actions");
    contents.tableActions.forEach(actions::add);
    if (contents.hasUnreadableLine) {
      actions.add("unreadable");
    }
    return staged;
  }

  /**
   * Returns the paths of the data files that were written for the commit, as the log contains them. Files that the
   * commit adds again with another deletion vector are left out.
   */
  Set<String> newFiles() {
    Set<String> paths = new LinkedHashSet<>(contents().added);
    paths.removeAll(contents().removed);
    return paths;
  }

  /**
   * Returns the oldest modification time of the files that the commit adds without a change of rows, in milliseconds
   * since the epoch; {@link Long#MAX_VALUE} without such files.
   */
  long oldestRewrittenMillis() {
    return contents().oldestRewrittenMillis;
  }

  private Contents contents() {
    if (contents == null) {
      contents = new Contents(lines);
    }
    return contents;
  }

  /** The parsed lines. */
  private static final class Contents {
    final Set<JsonNode> partitions = new LinkedHashSet<>();
    final Set<String> tableActions = new TreeSet<>();
    final Set<String> added = new LinkedHashSet<>();
    final Set<String> removed = new HashSet<>();
    final Set<String> transactions = new TreeSet<>();

    /** New table properties; null without new metadata. */
    JsonNode configuration;

    /** See {@link CommitBody#oldestRewrittenMillis}. */
    long oldestRewrittenMillis = Long.MAX_VALUE;

    /** Whether a file has no partition values. */
    boolean hasUnplacedFile;

    /** Whether a line cannot be parsed. Such a line may change anything. */
    boolean hasUnreadableLine;

    /** Whether each file is a new one with rows, without a deletion vector and without row ids. */
    boolean hasPlainFilesOnly = true;

    /** Whether a file may change rows: it is a {@code cdc} file, or its {@code dataChange} is not false. */
    boolean changesRows;

    Contents(List<String> lines) {
      for (String line : lines) {
        JsonNode tree = parse(line);
        if (tree.isObject() && tree.size() == 1) {
          Map.Entry<String, JsonNode> action = tree.properties().iterator().next();
          addAction(action.getKey(), action.getValue());
        } else {
          hasUnreadableLine = true;
        }
      }
    }

    private void addAction(String name, JsonNode action) {
      if (name.equals("metaData")) {
        configuration = action.path("configuration");
      }
      if (FILES.contains(name)) {
        addFile(name, action);
      } else if (name.equals("domainMetadata")) {
        tableActions.add(name + " " + action.path("domain").asText());
      } else if (name.equals("txn")) {
        transactions.add(action.path("appId").asText());
      } else if (!name.equals("commitInfo")) {
        tableActions.add(name);
      }
    }

    private void addFile(String name, JsonNode action) {
      // Delta leaves nulls out of a removed file's partitionValues. Older actions have no partitionValues.
      JsonNode values = action.path("partitionValues");
      if (values.isObject()) {
        partitions.add(values);
      } else {
        hasUnplacedFile = true;
      }
      changesRows |= name.equals("cdc") || action.path("dataChange").asBoolean(true);
      hasPlainFilesOnly &= name.equals("add") && action.path("dataChange").asBoolean(false)
          && !action.hasNonNull("deletionVector") && !action.hasNonNull("baseRowId");
      String path = action.path("path").asText();
      if (name.equals("remove")) {
        removed.add(path);
      } else if (action.path("path").isTextual() && !action.hasNonNull("deletionVector")) {
        added.add(path);
        if (!action.path("dataChange").asBoolean(true)) {
          oldestRewrittenMillis = Math.min(oldestRewrittenMillis, action.path("modificationTime").asLong());
        }
      }
    }
  }

  /** Returns whether this transaction has written the version file with this first line. */
  boolean hasWritten(String firstLine) {
    JsonNode node = commitInfo(firstLine);
    return attempt.equals(node.path(STAMP).path("attempt").asText(null))
        || (txn != null && txn.equals(node.path("txnId").asText(null)));
  }

  /** Returns the {@code operationMetrics} of each write in a version with this first line, by write id. */
  static Map<String, JsonNode> metricsByWrite(String firstLine) {
    JsonNode info = commitInfo(firstLine);
    Map<String, JsonNode> metricsByWrite = new TreeMap<>();
    if (!info.path(STAMP).has("occupies")) {
      metricsByWrite.put(info.path(STAMP).path(COMMIT_ID).asText(), info.path(METRICS));
      // The holder's metrics replace those of the version.
      info.path(STAMP).path(GROUP).forEach(writer ->
          metricsByWrite.put(writer.path(STAMP).path(COMMIT_ID).asText(), writer.path(METRICS)));
    }
    // Commits without a write.
    metricsByWrite.remove("");
    return metricsByWrite;
  }

  /** Returns the name of the action in a line; empty if the line does not begin as an action does. */
  static String actionName(String line) {
    int end = line.startsWith("{\"") ? line.indexOf('"', 2) : -1;
    return end < 0 ? "" : line.substring(2, end);
  }

  private static JsonNode commitInfo(String line) {
    return parse(line == null ? "{}" : line).path("commitInfo");
  }

  /** Parses a line that must contain one JSON value only; returns a missing node if it does not. */
  static JsonNode parse(String line) {
    try {
      return STRICT.readTree(line);
    } catch (JsonProcessingException e) {
      return MissingNode.getInstance();
    }
  }

  private static void append(ByteArrayOutputStream out, String line) {
    out.writeBytes(line.getBytes(StandardCharsets.UTF_8));
    out.write('\n');
  }
}
