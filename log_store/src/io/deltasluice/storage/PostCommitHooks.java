package io.deltasluice.storage;

import com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.delta.DeltaConfigs;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.UniversalFormat$;
import org.apache.spark.sql.delta.actions.Metadata;
import org.apache.spark.sql.delta.actions.Protocol;
import org.apache.spark.sql.delta.hooks.AutoCompact$;
import org.apache.spark.sql.delta.hooks.CheckpointHook$;
import org.apache.spark.sql.delta.hooks.ChecksumHook$;
import org.apache.spark.sql.delta.hooks.GenerateSymlinkManifest$;
import org.apache.spark.sql.delta.hooks.HudiConverterHook$;
import org.apache.spark.sql.delta.hooks.PostCommitHook;
import org.apache.spark.sql.delta.hooks.UpdateCatalogBase;
import org.apache.spark.sql.delta.sources.DeltaSQLConf;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Finds Delta's post-commit hooks that must not run after the release of the lock.
 *
 * <p>The gate releases the lock after the put, and Delta runs the hooks after that. So the hooks of two commits may run
 * at the same time, and the hook of the older commit may write last. A hook that commits would do so without the lock.
 *
 * <p>The hooks of a commit are known before its put: all hooks of a transaction are registered before its version is
 * written ({@code OptimisticTransaction.scala}, {@code TransactionalWrite.writeFiles}; tag v4.4.0).
 */
final class PostCommitHooks {
  private PostCommitHooks() {}

  /** Returns the names of a transaction's hooks that are not known to be harmless; null without a transaction. */
  static ArrayNode of(OptimisticTransaction transaction) {
    if (transaction == null) {
      return null;
    }
    ArrayNode names = CommitBody.JSON.createArrayNode();
    for (PostCommitHook hook : CollectionConverters.asJava(transaction.postCommitHooks())) {
      if (!isHarmless(hook, transaction.metadata(), transaction.protocol())) {
        names.add(hook.name());
      }
    }
    return names;
  }

  /**
   * Returns the names of the hooks that Delta runs after each commit to a table, because of the table's metadata, and
   * that are not known to be harmless.
   */
  static ArrayNode of(Snapshot snapshot) {
    ArrayNode names = CommitBody.JSON.createArrayNode();
    if (snapshot.version() < 0) {
      return names;
    }
    Metadata metadata = snapshot.metadata();
    if ((boolean) DeltaConfigs.SYMLINK_FORMAT_MANIFEST_ENABLED().fromMetaData(metadata)) {
      names.add(GenerateSymlinkManifest$.MODULE$.name());
    }
    for (PostCommitHook hook : new PostCommitHook[] {CheckpointHook$.MODULE$, HudiConverterHook$.MODULE$}) {
      if (!isHarmless(hook, metadata, snapshot.protocol())) {
        names.add(hook.name());
      }
    }
    return names;
  }

  /** Returns whether a hook is known to be harmless, or is turned off by the table's or the session's settings. */
  private static boolean isHarmless(PostCommitHook hook, Metadata metadata, Protocol protocol) {
    if (hook == ChecksumHook$.MODULE$ || DeltaApi.isMetricsHook(hook)) {
      return true;
    }
    if (hook == CheckpointHook$.MODULE$ || hook == Checkpoints.HOOK) {
      // With adaptive metadata a checkpoint is a commit, so it needs the lock.
      return !DeltaApi.commitsCheckpoints(protocol);
    }
    if (hook == HudiConverterHook$.MODULE$) {
      return !UniversalFormat$.MODULE$.hudiEnabled(metadata);
    }
    if (DeltaApi.isIcebergConverter(hook)) {
      return !UniversalFormat$.MODULE$.icebergEnabled(metadata);
    }
    SparkSession session = SparkSession.active();
    if (hook == AutoCompact$.MODULE$) {
      return AutoCompact$.MODULE$.getAutoCompactType(session.sessionState().conf(), metadata).isEmpty();
    }
    if (hook instanceof UpdateCatalogBase) {
      return !(boolean) session.sessionState().conf().getConf(DeltaSQLConf.DELTA_UPDATE_CATALOG_ENABLED());
    }
    return false;
  }
}
