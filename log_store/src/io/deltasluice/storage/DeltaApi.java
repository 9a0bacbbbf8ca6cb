package io.deltasluice.storage;

import java.lang.reflect.Method;
import java.util.Arrays;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry$;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.RecordChecksum;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.VersionChecksum;
import org.apache.spark.sql.delta.actions.Protocol;
import org.apache.spark.sql.delta.hooks.PostCommitHook;
import org.apache.spark.sql.delta.util.JsonUtils$;
import org.apache.spark.sql.sources.BaseRelation;
import scala.Option;
import scala.Some;
import scala.collection.immutable.Seq;
import scala.util.Either;
import scala.util.Left;

/**
 * Calls the methods of Delta and Spark that differ between the supported releases (Delta 4.0 to 4.4, Spark 4.0 to 4.2).
 *
 * <p>It calls them by name, so one jar works with all of these releases.
 */
public final class DeltaApi {
  private static final String METRICS_HOOK = "org.apache.spark.sql.delta.hooks.metrics.UpdateMetricsHook";
  private static final String ICEBERG_CONVERTER = "org.apache.spark.sql.delta.hooks.IcebergConverterHook$";
  private static final String ADAPTIVE_METADATA = "org.apache.spark.sql.delta.AdaptiveMetadataTableFeature$";
  private static final String CHANGE_FEED = "org.apache.spark.sql.delta.commands.cdc.CDCReader$DeltaCDFRelation";
  private static final String CHANGE_FEED_BASE = "org.apache.spark.sql.delta.commands.cdc.DeltaCDFRelationBase";

  private DeltaApi() {}

  /**
   * Removes old versions that no reader of a newer version needs.
   *
   * @param retentionMillis milliseconds to keep a version. Delta removes versions that are older than the last midnight
   *     (UTC) before now minus this time, so it keeps a version up to one day longer.
   */
  public static void cleanUpExpiredLogs(Snapshot snapshot, long retentionMillis) {
    DeltaLog log = snapshot.deltaLog();
    Some<Object> retention = new Some<>(retentionMillis);
    if (ByName.find(log.getClass(), "cleanUpExpiredLogs$default$4") != null) {
      ByName.call(log, "cleanUpExpiredLogs", snapshot, Option.empty(), retention,
          ByName.call(log, "cleanUpExpiredLogs$default$4"));
    } else {
      ByName.call(log, "cleanUpExpiredLogs", snapshot, retention, ByName.call(log, "cleanUpExpiredLogs$default$3"));
    }
  }

  /** Derives the checksum of a version from the previous one, see {@code RecordChecksum}. */
  @SuppressWarnings("unchecked")
  static Either<String, VersionChecksum> deriveChecksum(
      RecordChecksum deriver, SparkSession spark, DeltaLog log, long version, Seq<?> actions, String operation,
      Option<String> txnId, Either<?, VersionChecksum> previous, boolean withFiles) {
    // The argument false: the previous checksum needs no histogram of file sizes. Delta 4.0 has no such parameter.
    Object[] arguments = {
      spark, log, version, actions, Option.empty(), Option.empty(), operation, txnId, previous, false, withFiles
    };
    Method method = ByName.find(RecordChecksum.class, "incrementallyDeriveChecksum", arguments);
    if (method == null) {
      arguments = Arrays.copyOf(arguments, arguments.length - 1);
      arguments[arguments.length - 1] = withFiles;
      method = ByName.find(RecordChecksum.class, "incrementallyDeriveChecksum", arguments);
    }
    if (method == null) {
      return new Left<>("this release of Delta is unknown");
    }
    return (Either<String, VersionChecksum>) ByName.invoke(deriver, method, arguments);
  }

  /** Returns the only line of a checksum file. */
  static String checksumLine(VersionChecksum checksum) throws com.fasterxml.jackson.core.JsonProcessingException {
    Method method = ByName.find(VersionChecksum.class, "toProtocolCompliant");
    Object content = method == null ? checksum : ByName.invoke(checksum, method);
    return JsonUtils$.MODULE$.mapper().writeValueAsString(content);
  }

  /** Returns the log of the table whose change feed a relation reads; null if the relation reads no change feed. */
  static DeltaLog changeFeedLog(BaseRelation relation) {
    if (ByName.isInstance(relation, CHANGE_FEED_BASE)) {
      return (DeltaLog) ByName.call(relation, "deltaLog");
    }
    if (ByName.isInstance(relation, CHANGE_FEED)) {
      return (DeltaLog) ByName.call(ByName.call(ByName.call(relation, "snapshotWithSchemaMode"), "snapshot"), "deltaLog");
    }
    return null;
  }

  /** Returns whether each checkpoint of a table with this protocol is a commit (adaptive metadata). */
  static boolean commitsCheckpoints(Protocol protocol) {
    try {
      Object feature = Class.forName(ADAPTIVE_METADATA, true, Protocol.class.getClassLoader())
          .getField("MODULE$").get(null);
      return (boolean) ByName.call(protocol, "isFeatureSupported", feature);
    } catch (ClassNotFoundException e) {
      return false;
    } catch (ReflectiveOperationException e) {
      throw new LinkageError(ADAPTIVE_METADATA, e);
    }
  }

  /** Returns whether a hook only updates metrics. */
  static boolean isMetricsHook(PostCommitHook hook) {
    return ByName.isInstance(hook, METRICS_HOOK);
  }

  /** Returns whether a hook converts the metadata to Iceberg (UniForm). Delta 4.0 registers it in each commit. */
  static boolean isIcebergConverter(PostCommitHook hook) {
    return ByName.isInstance(hook, ICEBERG_CONVERTER);
  }

  /** Returns whether a committed transaction makes a checkpoint due. */
  static boolean needsCheckpoint(Object transaction) {
    Object operation = maintenanceOperation(transaction);
    return (boolean) (operation == null
        ? ByName.call(transaction, "needsCheckpoint")
        : ByName.call(operation, "shouldCheckpoint"));
  }

  /** Returns whether a committed transaction must write its checkpoint itself (adaptive metadata). */
  static boolean triggersCheckpoint(Object transaction) {
    Object operation = maintenanceOperation(transaction);
    return operation != null && ((Option<?>) ByName.call(operation, "amtTriggerModeOpt")).isDefined();
  }

  /** Returns the maintenance that a committed transaction makes due; null before Delta 4.4, which has no such method. */
  private static Object maintenanceOperation(Object transaction) {
    Method method = ByName.find(transaction.getClass(), "maintenanceOperation");
    return method == null ? null : ByName.invoke(transaction, method);
  }

  /** Returns the identifier under which Spark registers a builtin function. */
  static FunctionIdentifier builtinFunction(String name) {
    Method method = ByName.find(FunctionRegistry$.class, "builtinFunctionIdentifier", name);
    return method == null
        ? new FunctionIdentifier(name)
        : (FunctionIdentifier) ByName.invoke(FunctionRegistry$.MODULE$, method, name);
  }
}
