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
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/** The lines of one commit, kept so that they can be put again, with our own note in their {@code commitInfo}. */
final class CommitBody {
  static final ObjectMapper JSON = new ObjectMapper();

  private static final ObjectReader STRICT = JSON.reader().with(DeserializationFeature.FAIL_ON_TRAILING_TOKENS);
  private static final String INFO = "{\"commitInfo\":{";
  private static final String METADATA = "{\"metaData\":";
  private static final String STAMP = "sluice";
  private static final Set<String> FILES = Set.of("add", "remove", "cdc");

  private final List<String> lines = new ArrayList<>();
  private final String info;

  /** What {@link #lines} say; null before somebody asks. */
  private Contents contents;

  /** Name that no other attempt has, whoever makes it. */
  final String attempt;

  /** {@code commitInfo.txnId}, or null. */
  final String txn;

  /** {@code commitInfo.operation}, or null. */
  final String operation;

  /** {@code commitInfo.operationMetrics}, or an empty object. */
  final JsonNode metrics;

  /** Whether it says anew what the table is. */
  final boolean hasMetadata;

  /** Whether Delta says that nothing of the table was read for it. */
  private final boolean isBlindAppend;

  /** Whether it has an in-commit timestamp, which Delta took when it prepared the commit. */
  private final boolean hasTimestamp;

  CommitBody(Iterator<String> actions, String attempt) {
    this.attempt = attempt;
    String found = null;
    boolean metadata = false;
    while (actions.hasNext()) {
      String line = actions.next();
      if (found == null && line.startsWith(INFO)) {
        found = line;
      } else {
        lines.add(line);
        metadata |= line.startsWith(METADATA);
      }
    }
    info = found;
    hasMetadata = metadata;
    JsonNode node = commitInfo(found);
    txn = node.path("txnId").asText(null);
    operation = node.path("operation").asText(null);
    metrics = node.path("operationMetrics").isObject() ? node.get("operationMetrics") : JSON.createObjectNode();
    isBlindAppend = node.path("isBlindAppend").asBoolean(false);
    hasTimestamp = node.has("inCommitTimestamp");
  }

  /** Returns the file's content. The note comes first in the first line, all else as Delta wrote it. */
  byte[] bytes(ObjectNode stamp) {
    stamp.put("attempt", attempt);
    String note = INFO + "\"" + STAMP + "\":" + stamp;
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    // A driver may be told to write no commitInfo; ours is needed.
    String rest = info == null ? "}}" : info.substring(INFO.length());
    append(out, info == null || rest.startsWith("}") ? note + rest : note + "," + rest);
    lines.forEach(line -> append(out, line));
    return out.toByteArray();
  }

  /**
   * Returns what the commit touches, for whoever holds partitions only.
   *
   * @return JSON object: {@code partitions} (the distinct {@code partitionValues} of its files), {@code unplaced}
   *     (whether a file has none, or a line cannot be read), {@code actions} (names of its actions that are of the whole table)
   */
  ObjectNode footprint() {
    Contents all = contents();
    ObjectNode found = JSON.createObjectNode();
    found.putArray("partitions").addAll(all.partitions);
    found.put("unplaced", all.unplaced || all.unreadable);
    named(found.putArray("actions"), all.ofTable);
    return found;
  }

  /**
   * Returns what a commit whose data files were written without the lock is made of.
   *
   * @return JSON object: {@code blind} (nothing of the table was read), {@code removes} (it takes files out of the
   *     table), {@code dated} (it has an in-commit timestamp, and may change rows), {@code actions} (as of
   *     {@link #footprint}, and {@code unreadable})
   */
  ObjectNode staged() {
    Contents all = contents();
    ObjectNode found = JSON.createObjectNode();
    found.put("blind", isBlindAppend);
    found.put("removes", !all.removed.isEmpty());
    found.put("dated", hasTimestamp && all.changesRows);
    ArrayNode actions = named(found.putArray("actions"), all.ofTable);
    if (all.unreadable) {
      actions.add("unreadable");
    }
    return found;
  }

  /**
   * Returns the paths of the files that were written for it, as the log has them: not of those that it adds again, with
   * another deletion vector.
   */
  Set<String> written() {
    Set<String> paths = new LinkedHashSet<>(contents().added);
    paths.removeAll(contents().removed);
    return paths;
  }

  private Contents contents() {
    if (contents == null) {
      contents = new Contents(lines);
    }
    return contents;
  }

  private static ArrayNode named(ArrayNode array, Set<String> names) {
    names.forEach(array::add);
    return array;
  }

  /** What the lines say, each read once. */
  private static final class Contents {
    final Set<JsonNode> partitions = new LinkedHashSet<>();
    final Set<String> ofTable = new TreeSet<>();
    final Set<String> added = new LinkedHashSet<>();
    final Set<String> removed = new HashSet<>();

    /** Whether a file does not say to which partition it belongs. */
    boolean unplaced;

    /** Whether a line cannot be understood: it may touch anything. */
    boolean unreadable;

    /** Whether a file is not marked as one that only holds rows of the table in another place. */
    boolean changesRows;

    Contents(List<String> lines) {
      for (String line : lines) {
        JsonNode tree = whole(line);
        if (tree.isObject() && tree.size() == 1) {
          Map.Entry<String, JsonNode> action = tree.properties().iterator().next();
          take(action.getKey(), action.getValue());
        } else {
          unreadable = true;
        }
      }
    }

    private void take(String name, JsonNode action) {
      if (FILES.contains(name)) {
        file(name, action);
      } else if (name.equals("domainMetadata")) {
        ofTable.add(name + " " + action.path("domain").asText());
      } else if (!name.equals("txn") && !name.equals("commitInfo")) {
        ofTable.add(name);
      }
    }

    private void file(String name, JsonNode action) {
      // Of a file that is removed Delta leaves nulls out, which may be all of them; older ones say nothing.
      JsonNode values = action.path("partitionValues");
      if (values.isObject()) {
        partitions.add(values);
      } else {
        unplaced = true;
      }
      changesRows |= name.equals("cdc") || action.path("dataChange").asBoolean(true);
      String path = action.path("path").asText();
      if (name.equals("remove")) {
        removed.add(path);
      } else if (action.path("path").isTextual() && !action.hasNonNull("deletionVector")) {
        added.add(path);
      }
    }
  }

  /** Tells whether the first line of a version file is of this very transaction. */
  boolean wrote(String firstLine) {
    JsonNode found = commitInfo(firstLine);
    return attempt.equals(found.path(STAMP).path("attempt").asText(null))
        || (txn != null && txn.equals(found.path("txnId").asText(null)));
  }

  private static JsonNode commitInfo(String line) {
    return tree(line == null ? "{}" : line).path("commitInfo");
  }

  private static JsonNode whole(String line) {
    try {
      return STRICT.readTree(line);
    } catch (JsonProcessingException e) {
      return MissingNode.getInstance();
    }
  }

  private static JsonNode tree(String line) {
    try {
      return JSON.readTree(line);
    } catch (JsonProcessingException e) {
      return JSON.createObjectNode();
    }
  }

  private static void append(ByteArrayOutputStream out, String line) {
    out.writeBytes(line.getBytes(StandardCharsets.UTF_8));
    out.write('\n');
  }
}
