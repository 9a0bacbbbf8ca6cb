package io.deltasluice.storage;

import com.fasterxml.jackson.databind.JsonNode;
import io.delta.storage.CloseableIterator;
import io.delta.storage.LogStore;
import java.io.IOException;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;

/**
 * What a group commit has to know about the versions after the one that a transaction has read.
 *
 * <p>Delta's check for conflicts reads each of these versions. The log store records them here, so that no version is
 * read twice.
 */
final class NewerVersions {
  /**
   * One version.
   *
   * @param metrics {@code operationMetrics} of each write, by write id
   * @param transactions application ids of its {@code txn} actions
   * @param changesTable whether it has another action than {@code commitInfo}, {@code txn} and those of files
   */
  private record Summary(Map<String, JsonNode> metrics, Set<String> transactions, boolean changesTable) {}

  /**
   * A commit in one of the versions.
   *
   * @param metrics its {@code operationMetrics}
   */
  record Commit(long version, JsonNode metrics) {}

  private final Map<Long, Summary> summaries = new ConcurrentHashMap<>();

  /** Returns an iterator over the lines of a version, which records the version when all of its lines are read. */
  CloseableIterator<String> recording(long version, CloseableIterator<String> lines) {
    return new CloseableIterator<>() {
      private final Recorder recorder = new Recorder();

      @Override
      public boolean hasNext() {
        boolean hasNext = lines.hasNext();
        if (!hasNext) {
          summaries.put(version, recorder.summary());
        }
        return hasNext;
      }

      @Override
      public String next() {
        String line = lines.next();
        recorder.add(line);
        return line;
      }

      @Override
      public void close() throws IOException {
        lines.close();
      }
    };
  }

  /** Reads the versions from {@code first} to {@code last} that are not recorded yet. */
  void readMissing(long first, long last, VersionFile file, LogStore reader, Configuration conf) throws IOException {
    for (long version = first; version <= last; version++) {
      if (!summaries.containsKey(version)) {
        try (CloseableIterator<String> lines =
            recording(version, reader.read(VersionFile.in(file.path().getParent(), version), conf))) {
          lines.forEachRemaining(line -> { });
        }
      }
    }
  }

  /** Returns whether a recorded version has an action that no check for conflicts of a member covers. */
  boolean haveTableChanges() {
    return summaries.values().stream().anyMatch(Summary::changesTable);
  }

  /** Returns the application ids of the {@code txn} actions of all recorded versions. */
  Set<String> transactions() {
    Set<String> all = new TreeSet<>();
    summaries.values().forEach(summary -> all.addAll(summary.transactions));
    return all;
  }

  /** Returns the write ids of all recorded versions. */
  Set<String> writeIds() {
    Set<String> all = new TreeSet<>();
    summaries.values().forEach(summary -> all.addAll(summary.metrics.keySet()));
    return all;
  }

  /** Returns the commit with this write id in a recorded version; null if there is none. */
  Commit commitOf(String writeId) {
    for (Map.Entry<Long, Summary> entry : summaries.entrySet()) {
      JsonNode metrics = entry.getValue().metrics.get(writeId);
      if (metrics != null) {
        return new Commit(entry.getKey(), metrics);
      }
    }
    return null;
  }

  /** Collects the lines of one version. */
  private static final class Recorder {
    private static final Set<String> HARMLESS = Set.of("commitInfo", "add", "remove", "cdc");

    private final Set<String> transactions = new TreeSet<>();
    private Map<String, JsonNode> metrics;
    private boolean changesTable;

    void add(String line) {
      // Delta stores the commitInfo in the first line.
      metrics = metrics == null ? CommitBody.metricsByWrite(line) : metrics;
      String name = CommitBody.actionName(line);
      if (name.equals("txn")) {
        JsonNode application = CommitBody.parse(line).path("txn").path("appId");
        changesTable |= !application.isTextual();
        transactions.add(application.asText());
      } else {
        changesTable |= !HARMLESS.contains(name);
      }
    }

    Summary summary() {
      return new Summary(metrics == null ? Map.of() : metrics, transactions, changesTable);
    }
  }
}
