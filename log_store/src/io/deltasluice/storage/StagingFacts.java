package io.deltasluice.storage;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.List;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.delta.DeltaConfigs;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.Snapshot;
import scala.Option;

/** Facts that Python needs before a write goes through the gate. One call returns all of them: each call is slow. */
public final class StagingFacts {
  private static final String IDENTITY = "\"delta.identity.";

  private StagingFacts() {}

  /**
   * Returns the facts about a write, as a JSON object.
   *
   * @param session session of the writer
   * @param rowSession session of the rows, whose settings are also returned; null if it is the writer's session
   * @param reads plans, columns and SQL conditions of the write, see {@link PlanReads#add}
   * @param location location of the table
   * @param settings names of session settings, separated by commas
   * @return {@code guard} (the guard's mode), {@code settings} (for each session an object with the values by name),
   *     {@code version} (newest version of the table that this driver has loaded), {@code identity} (whether the table
   *     has identity columns), {@code in_commit_timestamps} (whether its commits have them), {@code table_id} (Delta's
   *     id of the table), {@code hooks} (see {@link PostCommitHooks#of(Snapshot)}), {@code reads} (see
   *     {@link PlanReads})
   */
  public static String of(
      SparkSession session, SparkSession rowSession, List<?> reads, String location, String settings) {
    ObjectNode facts = CommitBody.JSON.createObjectNode();
    facts.put("guard", session.sparkContext().conf().get(Guard.MODE, "required"));
    ArrayNode sessions = facts.putArray("settings");
    putSettings(sessions.addObject(), session, settings);
    if (rowSession != null) {
      putSettings(sessions.addObject(), rowSession, settings);
    }
    Snapshot snapshot = DeltaLog.forTable(session, location).unsafeVolatileSnapshot();
    facts.put("version", snapshot.version());
    facts.put("identity", snapshot.version() >= 0 && snapshot.metadata().schemaString().contains(IDENTITY));
    facts.put("in_commit_timestamps", snapshot.version() >= 0 && hasInCommitTimestamps(snapshot));
    facts.put("table_id", snapshot.version() < 0 ? null : snapshot.metadata().id());
    facts.set("hooks", PostCommitHooks.of(snapshot));
    PlanReads plans = new PlanReads(rowSession == null ? session : rowSession, facts.putArray("reads"));
    reads.forEach(plans::add);
    return facts.toString();
  }

  private static boolean hasInCommitTimestamps(Snapshot snapshot) {
    return (Boolean) DeltaConfigs.IN_COMMIT_TIMESTAMPS_ENABLED().fromMetaData(snapshot.metadata());
  }

  private static void putSettings(ObjectNode values, SparkSession session, String settings) {
    for (String name : settings.split(",")) {
      Option<String> value = session.conf().getOption(name);
      values.put(name, value.isDefined() ? value.get() : null);
    }
  }
}
