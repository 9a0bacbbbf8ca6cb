package io.deltasluice.storage;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.List;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.delta.DeltaConfigs;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.Snapshot;
import scala.Option;

/** What Python wants to know before a write goes through the gate, in one answer: each call from there takes its time. */
public final class StagingFacts {
  private static final String IDENTITY = "\"delta.identity.";

  private StagingFacts() {}

  /**
   * Returns what is known of a write, as a JSON object.
   *
   * @param session the writer's
   * @param other that of the rows that are written, whose settings count too; null if it is the same
   * @param reads the plans, columns and SQL conditions that the caller gave, see {@link PlanReads#add}
   * @param location of the table
   * @param settings names of settings of a session, with commas
   * @return {@code guard} (mode), {@code settings} (a list of values by name, of each session),
   *     {@code version} (of the table, the newest that this driver knows), {@code identity} (whether it has such columns),
   *     {@code dated} (whether its commits have in-commit timestamps),
   *     {@code table_id} (Delta's), {@code hooks} (see {@link PostCommitHooks#of(Snapshot)}), {@code reads} (see
   *     {@link PlanReads})
   */
  public static String of(SparkSession session, SparkSession other, List<?> reads, String location, String settings) {
    ObjectNode facts = CommitBody.JSON.createObjectNode();
    facts.put("guard", session.sparkContext().conf().get(Guard.MODE, "required"));
    ArrayNode sessions = facts.putArray("settings");
    named(session, settings, sessions.addObject());
    if (other != null) {
      named(other, settings, sessions.addObject());
    }
    Snapshot snapshot = DeltaLog.forTable(session, location).unsafeVolatileSnapshot();
    facts.put("version", snapshot.version());
    facts.put("identity", snapshot.version() >= 0 && snapshot.metadata().schemaString().contains(IDENTITY));
    facts.put("dated", snapshot.version() >= 0 && isDated(snapshot));
    facts.put("table_id", snapshot.version() < 0 ? null : snapshot.metadata().id());
    facts.set("hooks", PostCommitHooks.of(snapshot));
    PlanReads plans = new PlanReads(other == null ? session : other, facts.putArray("reads"));
    reads.forEach(plans::add);
    return facts.toString();
  }

  private static boolean isDated(Snapshot snapshot) {
    return (Boolean) DeltaConfigs.IN_COMMIT_TIMESTAMPS_ENABLED().fromMetaData(snapshot.metadata());
  }

  private static void named(SparkSession session, String settings, ObjectNode found) {
    for (String name : settings.split(",")) {
      Option<String> value = session.conf().getOption(name);
      found.put(name, value.isDefined() ? value.get() : null);
    }
  }
}
