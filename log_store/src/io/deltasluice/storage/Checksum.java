package io.deltasluice.storage;

import com.fasterxml.jackson.databind.node.ObjectNode;
import io.delta.storage.CloseableIterator;
import io.delta.storage.LogStore;
import java.io.IOException;
import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.SparkSession$;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.RecordChecksum;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.VersionChecksum;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.Action$;
import org.apache.spark.sql.delta.actions.CommitInfo;
import org.apache.spark.sql.delta.actions.Metadata;
import org.apache.spark.sql.delta.sources.DeltaSQLConf;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;
import scala.util.Either;
import scala.util.Right;

/**
 * Derives the checksum of a version (size, number of files, metadata) whose checksum file ({@code <20 digits>.crc}) is
 * missing.
 *
 * <p>Delta writes the checksum file shortly after the version. If the lock is held for the commit alone, the next
 * writer may read the table before the file exists. Without the checksum, this writer and each later one would compute
 * the state of the table in Spark jobs. So this class derives the checksum from the previous checksum and the
 * actions of the version. Delta uses the same method for the content of the file.
 */
final class Checksum implements RecordChecksum {
  private static final Logger LOG = LoggerFactory.getLogger(Checksum.class);
  private static final Pattern NAME = Pattern.compile("(\\d{20})\\.crc");

  /** Operations for which this class derives the checksum. */
  private static final Set<String> DERIVABLE_OPERATIONS =
      Set.of("WRITE", "STREAMING UPDATE", "DELETE", "UPDATE", "MERGE", "OPTIMIZE");

  /** Maximum number of consecutive missing checksum files. With more of them, no checksum is derived. */
  private static final int MAX_MISSING_FILES = 8;

  /**
   * Number of derivations that this thread has begun and not ended. A derivation reads the previous checksum. If that
   * file is missing, too, a nested derivation begins.
   */
  private static final ThreadLocal<Integer> NESTED_DERIVATIONS = ThreadLocal.withInitial(() -> 0);

  /** The logs of the tables to which this driver appends, by their folders. */
  private static final Map<Path, WeakReference<DeltaLog>> APPENDED_LOGS = new ConcurrentHashMap<>();

  private final DeltaLog log;
  private final SparkSession spark;
  private Logger logger;

  private Checksum(DeltaLog log, SparkSession spark) {
    this.log = log;
    this.spark = spark;
  }

  /**
   * Derives the content of a missing checksum file.
   *
   * @param path path of the missing file
   * @param reader reads the version file
   * @return the only line of the file; null if the path is no checksum file, or the checksum cannot be derived
   */
  static String deriveContent(Path path, LogStore reader, Configuration conf) {
    Matcher name = NAME.matcher(path.getName());
    if (!name.matches() || NESTED_DERIVATIONS.get() == MAX_MISSING_FILES) {
      return null;
    }
    NESTED_DERIVATIONS.set(NESTED_DERIVATIONS.get() + 1);
    try {
      SparkSession spark = SparkSession$.MODULE$.active();
      DeltaLog log = logOf(spark, path.getParent());
      if (log == null || !log.logPath().equals(path.getParent())) {
        return null;
      }
      return new Checksum(log, spark).derive(Long.parseLong(name.group(1)), reader, conf);
    } catch (Exception | LinkageError e) {
      // Scala throws undeclared checked exceptions. After any exception the caller reports the file as missing.
      LOG.debug("{} cannot be derived", path, e);
      if (e instanceof InterruptedException) {
        Thread.currentThread().interrupt();
      }
      return null;
    } finally {
      NESTED_DERIVATIONS.set(NESTED_DERIVATIONS.get() - 1);
    }
  }

  /** Returns whether a path is that of a checksum file. */
  static boolean isFile(Path path) {
    return NAME.matcher(path.getName()).matches();
  }

  /**
   * Writes the checksum file of a version that this driver has committed, as Delta's hook does, but with one request.
   *
   * @param txnId Delta's id of the transaction
   */
  static void write(SparkSession spark, Snapshot snapshot, String txnId) throws IOException {
    if (!(boolean) spark.sessionState().conf().getConf(DeltaSQLConf.DELTA_WRITE_CHECKSUM_ENABLED())) {
      return;
    }
    ObjectNode content = (ObjectNode) CommitBody.JSON.readTree(DeltaApi.checksumLine(snapshot.computeChecksum()));
    content.put("txnId", txnId);
    DeltaLog log = snapshot.deltaLog();
    Path file = new Path(log.logPath(), String.format("%020d.crc", snapshot.version()));
    Iterator<String> lines = List.of(content.toString()).iterator();
    log.store().write(file, CollectionConverters.asScala(lines), false, log.newDeltaHadoopConf());
  }

  /** Lets all threads derive the checksums of a table to which this driver appends. */
  static void register(DeltaLog log) {
    APPENDED_LOGS.put(log.logPath(), new WeakReference<>(log));
  }

  /** Returns null if this thread only reads, and this driver has not appended to the table. */
  private static DeltaLog logOf(SparkSession spark, Path logFolder) {
    Path table = logFolder.getParent();
    OptimisticTransaction active = ActiveTransaction.of(table.toString());
    if (active != null) {
      return active.deltaLog();
    }
    if (Guard.isQueued()) {
      // Returns the log in Delta's cache. It fails while Delta is adding the log.
      return DeltaLog.forTable(spark, table);
    }
    WeakReference<DeltaLog> log = APPENDED_LOGS.get(logFolder);
    return log == null ? null : log.get();
  }

  private String derive(long version, LogStore reader, Configuration conf) throws IOException {
    Option<VersionChecksum> previous = log.readChecksum(version - 1, Option.empty());
    if (previous.isEmpty() || previous.get().metadata() == null || previous.get().protocol() == null) {
      return null;
    }
    List<Action> actions = new ArrayList<>();
    Path file = VersionFile.in(log.logPath(), version);
    try (CloseableIterator<String> lines = LogReads.read(file, reader, conf)) {
      lines.forEachRemaining(line -> actions.add(Action$.MODULE$.fromJson(line)));
    }
    if (actions.isEmpty() || !(actions.get(0) instanceof CommitInfo info)
        || !DERIVABLE_OPERATIONS.contains(info.operation())) {
      return null;
    }
    boolean withFiles =
        previous.get().allFiles().isDefined() && actions.stream().noneMatch(action -> action instanceof Metadata);
    Either<String, VersionChecksum> checksum = DeltaApi.deriveChecksum(
        this, spark, log, version, CollectionConverters.asScala(actions).toSeq(), info.operation(), info.txnId(),
        new Right<>(previous.get()), withFiles);
    return checksum.isRight() ? DeltaApi.checksumLine(checksum.toOption().get()) : null;
  }

  @Override
  public DeltaLog deltaLog() {
    return log;
  }

  @Override
  public SparkSession spark() {
    return spark;
  }

  @Override
  public Logger org$apache$spark$internal$Logging$$log_() {
    return logger;
  }

  @Override
  public void org$apache$spark$internal$Logging$$log__$eq(Logger newLogger) {
    logger = newLogger;
  }
}
