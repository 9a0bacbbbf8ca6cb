package io.deltasluice.storage;

import com.fasterxml.jackson.databind.node.ArrayNode;
import java.io.IOException;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.delta.CommittedTransaction;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.LastCheckpointInfo;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.hooks.CheckpointHook$;
import org.apache.spark.sql.delta.hooks.PostCommitHook;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

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
   * Maximum number of versions since the last checkpoint. After more versions, the hook writes the checkpoint at once,
   * even under the lock, because a lock may be held for hours.
   */
  private static final int MAX_VERSIONS_WITHOUT_CHECKPOINT = 100;

  /** Delta's interval of checkpoints. With another one, no checkpoint is left out. */
  private static final int DELTA_INTERVAL = 10;

  /**
   * Minimum ratio of the time between two checkpoints to the time that writing one takes. If writers commit faster, some
   * checkpoints are left out, and readers read more versions.
   */
  private static final int PAUSE_RATIO = 30;

  /** Assumed duration of a checkpoint before this driver has written one of the table. */
  private static final long UNKNOWN_DURATION_MILLIS = 3_000;

  /**
   * A checkpoint that is due.
   *
   * @param snapshot version of the table
   * @param catalogTable the table in the catalog, if it was written by its name
   * @param versionFile status of the version's file, after the commit
   */
  private record DueCheckpoint(Snapshot snapshot, Option<CatalogTable> catalogTable, FileStatus versionFile) {}

  /**
   * A checkpoint that this driver has written.
   *
   * @param tableId Delta's id of the table
   * @param atMillis when it was written, in milliseconds since the epoch
   * @param durationMillis how long that took
   */
  private record Written(String tableId, long version, long atMillis, long durationMillis) {}

  /** The last checkpoint of each table that this driver has written, by the table's location. */
  private static final Map<String, Written> WRITTEN = new ConcurrentHashMap<>();

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
   * Writes a checkpoint. Writes nothing if the file of its version was removed or replaced, for example together with
   * the table.
   */
  public static void write(Object checkpoint) throws IOException {
    DueCheckpoint due = (DueCheckpoint) checkpoint;
    Path file = due.versionFile.getPath();
    if (FileIdentity.isUnchanged(file, due.versionFile, due.snapshot.deltaLog().newDeltaHadoopConf())) {
      write(due.snapshot, due.catalogTable);
    } else {
      LOG.info("{} was removed or replaced, so its checkpoint is not written", file);
    }
  }

  private static void write(Snapshot snapshot, Option<CatalogTable> catalogTable) {
    DeltaLog log = snapshot.deltaLog();
    long startNanos = System.nanoTime();
    log.checkpoint(snapshot, catalogTable);
    long durationMillis = (System.nanoTime() - startNanos) / 1_000_000;
    // Delta only logs an error, and updates its pointer to the newest checkpoint last.
    Option<LastCheckpointInfo> pointer = log.readLastCheckpointFile();
    if (pointer.isDefined() && pointer.get().version() >= snapshot.version()) {
      WRITTEN.put(log.dataPath().toString(), new Written(
          snapshot.metadata().id(), snapshot.version(), System.currentTimeMillis(), durationMillis));
    }
  }

  /** Returns the last checkpoint of a table that this driver has written; null if there is none. */
  private static Written lastWritten(Snapshot snapshot) {
    Written written = WRITTEN.get(snapshot.deltaLog().dataPath().toString());
    // Another table may have been created at the location.
    return written != null && written.tableId.equals(snapshot.metadata().id()) ? written : null;
  }

  /** Returns whether a snapshot begins with the last checkpoint that this driver has written, or with a newer one. */
  static boolean knowsLast(Snapshot snapshot) {
    Written written = lastWritten(snapshot);
    return written == null || snapshot.checkpointProvider().version() >= written.version;
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
    CommittedTransaction transaction = (CommittedTransaction) arguments[1];
    if (!DeltaApi.needsCheckpoint(transaction)) {
      return;
    }
    Snapshot snapshot = transaction.postCommitSnapshot();
    if (DeltaApi.triggersCheckpoint(transaction)) {
      // With adaptive metadata a checkpoint is a commit, so it needs the lock.
      ByName.invoke(CheckpointHook$.MODULE$, runMethod, arguments);
    } else if (versionsSinceCheckpoint(snapshot) > MAX_VERSIONS_WITHOUT_CHECKPOINT) {
      write(snapshot, transaction.catalogTable());
    } else {
      keepUnlessTooEarly(snapshot, transaction.catalogTable());
    }
  }

  /**
   * Keeps the checkpoint of a version, if one is due: at the versions at which Delta writes one. With Delta's own interval,
   * checkpoints that would follow the last one too soon are left out.
   *
   * @param version version that was committed
   * @param snapshot this version or a newer one
   */
  static void keepIfDue(long version, Snapshot snapshot, Option<CatalogTable> catalogTable) {
    if (version != 0 && version % snapshot.deltaLog().checkpointInterval(snapshot.metadata()) == 0) {
      keepUnlessTooEarly(snapshot, catalogTable);
    }
  }

  private static void keepUnlessTooEarly(Snapshot snapshot, Option<CatalogTable> catalogTable) {
    if (isTooEarly(snapshot)) {
      return;
    }
    DeltaLog log = snapshot.deltaLog();
    Path file = VersionFile.in(log.logPath(), snapshot.version());
    try {
      FileStatus status = file.getFileSystem(log.newDeltaHadoopConf()).getFileStatus(file);
      DueCheckpoint checkpoint = new DueCheckpoint(snapshot, catalogTable, status);
      DUE_CHECKPOINTS.merge(log.dataPath().toString(), checkpoint, Checkpoints::newerOf);
    } catch (IOException e) {
      LOG.info("the checkpoint of {} is left to a later version", file, e);
    }
  }

  private static boolean isTooEarly(Snapshot snapshot) {
    boolean hasOwnInterval = snapshot.deltaLog().checkpointInterval(snapshot.metadata()) != DELTA_INTERVAL;
    if (hasOwnInterval || versionsSinceCheckpoint(snapshot) >= MAX_VERSIONS_WITHOUT_CHECKPOINT) {
      return false;
    }
    Written written = lastWritten(snapshot);
    long writtenAtMillis = written == null ? 0 : written.atMillis;
    List<FileStatus> checkpointFiles = CollectionConverters.asJava(snapshot.checkpointProvider().topLevelFiles());
    // Without a checkpoint, the time since the first version counts.
    for (FileStatus file : checkpointFiles.isEmpty() ? firstVersion(snapshot) : checkpointFiles) {
      writtenAtMillis = Math.max(writtenAtMillis, file.getModificationTime());
    }
    long durationMillis = written == null ? UNKNOWN_DURATION_MILLIS : written.durationMillis;
    return System.currentTimeMillis() - writtenAtMillis < PAUSE_RATIO * durationMillis;
  }

  private static List<FileStatus> firstVersion(Snapshot snapshot) {
    List<FileStatus> versions = CollectionConverters.asJava(snapshot.logSegment().deltas());
    return versions.subList(0, Math.min(1, versions.size()));
  }

  private static long versionsSinceCheckpoint(Snapshot snapshot) {
    Written written = lastWritten(snapshot);
    long known = written == null ? 0 : written.version;
    return snapshot.version() - Math.max(snapshot.checkpointProvider().version(), known);
  }

  private static DueCheckpoint newerOf(DueCheckpoint stored, DueCheckpoint added) {
    return stored.snapshot.version() > added.snapshot.version() ? stored : added;
  }
}
