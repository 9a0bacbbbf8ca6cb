package io.deltasluice.storage;

import com.fasterxml.jackson.databind.node.ArrayNode;
import java.io.IOException;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.hooks.CheckpointHook$;
import org.apache.spark.sql.delta.hooks.PostCommitHook;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Keeps the checkpoints that commits made due, until they are written after the release of the table's lock.
 *
 * <p>Delta itself writes a checkpoint at every tenth version (by default), before the statement returns. If a lock is
 * held for the whole statement, its next holder would wait for the checkpoint.
 */
public final class Checkpoints {
  private static final Logger LOG = LoggerFactory.getLogger(Checkpoints.class);

  /** Replaces Delta's checkpoint hook, see {@link #defer}. */
  static final PostCommitHook HOOK = (PostCommitHook) Proxy.newProxyInstance(
      PostCommitHook.class.getClassLoader(), new Class<?>[] {PostCommitHook.class}, Checkpoints::handleCall);

  /**
   * Maximum number of versions since the last checkpoint. After more versions, Delta's hook writes the checkpoint at
   * once, even under the lock, because a lock may be held for hours.
   */
  private static final int MAX_VERSIONS_WITHOUT_CHECKPOINT = 100;

  /**
   * A checkpoint that is due.
   *
   * @param runMethod method {@code run} of the hook
   * @param arguments arguments of the method
   * @param log log of the table
   * @param version version of the checkpoint
   * @param versionFile status of the version's file, after the commit
   */
  private record DueCheckpoint(
      Method runMethod, Object[] arguments, DeltaLog log, long version, FileStatus versionFile) {}

  /** The newest due checkpoint of each table, by the table's location. */
  private static final Map<String, DueCheckpoint> DUE_CHECKPOINTS = new ConcurrentHashMap<>();

  private Checkpoints() {}

  /** Replaces Delta's checkpoint hook in the transaction of this thread, so that a due checkpoint is written later. */
  static void defer(VersionFile file) {
    OptimisticTransaction active = ActiveTransaction.of(file.table());
    if (active != null && active.containsPostCommitHook(CheckpointHook$.MODULE$)) {
      active.unregisterPostCommitHooksWhere(hook -> hook == CheckpointHook$.MODULE$);
      active.registerPostCommitHook(HOOK);
    }
  }

  /** Returns the locations of the tables with a due checkpoint, as a JSON array. */
  public static String due() {
    ArrayNode tables = CommitBody.JSON.createArrayNode();
    DUE_CHECKPOINTS.keySet().forEach(tables::add);
    return tables.toString();
  }

  /**
   * Removes and returns a table's due checkpoint, which the caller then writes.
   *
   * @return argument of {@link #write}; null if another thread has taken it
   */
  public static Object take(String table) {
    return DUE_CHECKPOINTS.remove(table);
  }

  /** Makes a taken checkpoint due again, unless a newer one is due by now. */
  public static void putBack(String table, Object checkpoint) {
    DUE_CHECKPOINTS.merge(table, (DueCheckpoint) checkpoint, Checkpoints::newerOf);
  }

  /**
   * Writes a checkpoint with Delta's hook. Writes nothing if the file of its version was removed or replaced, for
   * example together with the table.
   */
  public static void write(Object checkpoint) throws IOException {
    DueCheckpoint due = (DueCheckpoint) checkpoint;
    Path file = due.versionFile.getPath();
    if (FileIdentity.isUnchanged(file, due.versionFile, due.log.newDeltaHadoopConf())) {
      ByName.invoke(CheckpointHook$.MODULE$, due.runMethod, due.arguments);
    } else {
      LOG.info("{} was removed or replaced, so its checkpoint is not written", file);
    }
  }

  /** Handles Delta's calls of the hook. Its method {@code run} has more parameters in Delta 4.0 than in later ones. */
  private static Object handleCall(Object hook, Method method, Object[] arguments) throws Throwable {
    return switch (method.getName()) {
      case "name", "toString" -> "Checkpoint, after the lock is released";
      case "run" -> {
        try {
          keepIfDue(method, arguments);
        } catch (LinkageError e) {
          // The version is committed. An unknown release of Delta writes its checkpoint itself.
          LOG.warn("this release of Delta is unknown, so a checkpoint may be written under the lock", e);
          ByName.invoke(CheckpointHook$.MODULE$, method, arguments);
        }
        yield null;
      }
      case "equals" -> hook == arguments[0];
      case "hashCode" -> System.identityHashCode(hook);
      default -> InvocationHandler.invokeDefault(hook, method, arguments);
    };
  }

  /**
   * Keeps the checkpoint of a commit, if one is due.
   *
   * @param runMethod method {@code run} of {@code PostCommitHook}
   * @param arguments session, committed transaction, and in Delta 4.0 version, snapshot and actions
   */
  private static void keepIfDue(Method runMethod, Object[] arguments) {
    Object transaction = arguments[1];
    if (!DeltaApi.needsCheckpoint(transaction)) {
      return;
    }
    boolean isDelta40 = arguments.length != 2;
    long version = (long) (isDelta40 ? arguments[2] : ByName.call(transaction, "committedVersion"));
    Snapshot snapshot = (Snapshot) (isDelta40 ? arguments[3] : ByName.call(transaction, "postCommitSnapshot"));
    // With adaptive metadata a checkpoint is a commit, so it needs the lock.
    if (version - snapshot.checkpointProvider().version() > MAX_VERSIONS_WITHOUT_CHECKPOINT
        || DeltaApi.triggersCheckpoint(transaction)) {
      ByName.invoke(CheckpointHook$.MODULE$, runMethod, arguments);
      return;
    }
    DeltaLog log = snapshot.deltaLog();
    Path file = VersionFile.in(log.logPath(), version);
    try {
      FileStatus status = file.getFileSystem(log.newDeltaHadoopConf()).getFileStatus(file);
      if (isDelta40) {
        // Delta's hook does not read the actions, which would occupy memory until it runs.
        arguments[4] = scala.collection.Iterator$.MODULE$.empty();
      }
      DueCheckpoint checkpoint = new DueCheckpoint(runMethod, arguments, log, version, status);
      DUE_CHECKPOINTS.merge(log.dataPath().toString(), checkpoint, Checkpoints::newerOf);
    } catch (IOException e) {
      LOG.info("the checkpoint of {} is left to a later version", file, e);
    }
  }

  private static DueCheckpoint newerOf(DueCheckpoint stored, DueCheckpoint added) {
    return stored.version > added.version ? stored : added;
  }
}
