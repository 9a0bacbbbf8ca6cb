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
 * The checkpoints that commits made due. They are written after the table's lock is released.
 *
 * <p>Delta writes a checkpoint after every tenth commit, before the statement returns. The next holder of the table's
 * lock would wait for that, too.
 */
public final class Checkpoints {
  private static final Logger LOG = LoggerFactory.getLogger(Checkpoints.class);

  /** Takes the place of Delta's checkpoint hook. */
  static final PostCommitHook HOOK = (PostCommitHook) Proxy.newProxyInstance(
      PostCommitHook.class.getClassLoader(), new Class<?>[] {PostCommitHook.class}, Checkpoints::answer);

  /**
   * Number of versions since the last checkpoint after which the next one is written under the lock, because a lock may
   * be held for hours.
   */
  private static final int MAX_VERSIONS_SINCE = 100;

  /**
   * A checkpoint that is due.
   *
   * @param run method of the hook
   * @param arguments arguments of the hook
   * @param file status of the version file, after the commit
   */
  private record Due(Method run, Object[] arguments, DeltaLog log, long version, FileStatus file) {}

  /** The newest due checkpoint of each table, by the table's location. */
  private static final Map<String, Due> DUE = new ConcurrentHashMap<>();

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
    DUE.keySet().forEach(tables::add);
    return tables.toString();
  }

  /**
   * Removes and returns a table's due checkpoint, which the caller then writes.
   *
   * @return argument of {@link #write}; null if another thread has taken it
   */
  public static Object take(String table) {
    return DUE.remove(table);
  }

  /** Puts a checkpoint back, unless a newer one is due by now. */
  public static void putBack(String table, Object due) {
    DUE.merge(table, (Due) due, Checkpoints::newer);
  }

  /** Writes a checkpoint with Delta's hook, unless the table was removed or replaced, so that its version is gone. */
  public static void write(Object checkpoint) throws IOException {
    Due due = (Due) checkpoint;
    Path file = due.file.getPath();
    if (FileIdentity.isUnchanged(file, due.file, due.log.newDeltaHadoopConf())) {
      ByName.invoke(CheckpointHook$.MODULE$, due.run, due.arguments);
    } else {
      LOG.info("{} is gone: no checkpoint of it is written", file);
    }
  }

  /** Answers Delta's calls of the hook, whose method {@code run} has other arguments in Delta 4.0 than in later ones. */
  private static Object answer(Object hook, Method method, Object[] arguments) throws Throwable {
    return switch (method.getName()) {
      case "name", "toString" -> "Checkpoint, after the lock is released";
      case "run" -> {
        run(method, arguments);
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
   * @param run method of {@code PostCommitHook}
   * @param arguments session, committed transaction, and in Delta 4.0 version, snapshot and actions
   */
  private static void run(Method run, Object[] arguments) {
    Object committed = arguments[1];
    if (!DeltaApi.needsCheckpoint(committed)) {
      return;
    }
    boolean inTransaction = arguments.length == 2;
    long version = (long) (inTransaction ? ByName.call(committed, "committedVersion") : arguments[2]);
    Snapshot snapshot = (Snapshot) (inTransaction ? ByName.call(committed, "postCommitSnapshot") : arguments[3]);
    // With adaptive metadata a checkpoint is a commit, so it needs the lock.
    if (version - snapshot.checkpointProvider().version() > MAX_VERSIONS_SINCE
        || DeltaApi.triggersCheckpoint(committed)) {
      ByName.invoke(CheckpointHook$.MODULE$, run, arguments);
      return;
    }
    DeltaLog log = snapshot.deltaLog();
    Path file = VersionFile.in(log.logPath(), version);
    try {
      FileStatus status = file.getFileSystem(log.newDeltaHadoopConf()).getFileStatus(file);
      DUE.merge(log.dataPath().toString(), new Due(run, arguments, log, version, status), Checkpoints::newer);
    } catch (IOException e) {
      LOG.info("the checkpoint of {} is left to a later version", file, e);
    }
  }

  private static Due newer(Due current, Due next) {
    return current.version > next.version ? current : next;
  }
}
