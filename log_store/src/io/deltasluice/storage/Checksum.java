package io.deltasluice.storage;

import io.delta.storage.CloseableIterator;
import io.delta.storage.LogStore;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.SparkSession$;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.RecordChecksum;
import org.apache.spark.sql.delta.VersionChecksum;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.Action$;
import org.apache.spark.sql.delta.actions.CommitInfo;
import org.apache.spark.sql.delta.actions.Metadata;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;
import scala.util.Either;
import scala.util.Right;

/**
 * Derives the checksum of a version ({@code <20 digits>.crc}: size, number of files, metadata) before it is written.
 *
 * <p>Delta writes the checksum file shortly after the version. If the lock is held for the commit alone, the next
 * writer reads the table in between. Without a checksum it must compute the state of the table in two Spark jobs, and
 * so must each writer after it. So this class derives the checksum from the previous checksum and the version, with the
 * method of Delta that the writer uses.
 */
final class Checksum implements RecordChecksum {
  private static final Logger LOG = LoggerFactory.getLogger(Checksum.class);
  private static final Pattern NAME = Pattern.compile("(\\d{20})\\.crc");

  /** Operations for which Delta derives the checksum in this way. */
  private static final Set<String> OPERATIONS =
      Set.of("WRITE", "STREAMING UPDATE", "DELETE", "UPDATE", "MERGE", "OPTIMIZE");

  /** Most consecutive versions without a checksum file. */
  private static final int MAX_DEPTH = 8;

  private static final ThreadLocal<Integer> DEPTH = ThreadLocal.withInitial(() -> 0);

  private final DeltaLog log;
  private final SparkSession spark;
  private Logger logger;

  private Checksum(DeltaLog log, SparkSession spark) {
    this.log = log;
    this.spark = spark;
  }

  /**
   * Returns the content of a missing checksum file.
   *
   * @param reader reads the version file
   * @return the only line; null if the path is no checksum file, or the checksum cannot be derived
   */
  static String contentOf(Path path, LogStore reader, Configuration conf) {
    Matcher name = NAME.matcher(path.getName());
    if (!name.matches() || DEPTH.get() == MAX_DEPTH) {
      return null;
    }
    DEPTH.set(DEPTH.get() + 1);
    try {
      SparkSession spark = SparkSession$.MODULE$.active();
      DeltaLog log = logOf(spark, path.getParent());
      return new Checksum(log, spark).derive(Long.parseLong(name.group(1)), reader, conf);
    } catch (Exception | LinkageError e) {
      // Scala throws undeclared checked exceptions. After any exception the file stays missing.
      LOG.debug("{} cannot be derived", path, e);
      if (e instanceof InterruptedException) {
        Thread.currentThread().interrupt();
      }
      return null;
    } finally {
      DEPTH.set(DEPTH.get() - 1);
    }
  }

  private static DeltaLog logOf(SparkSession spark, Path folder) {
    OptimisticTransaction active = ActiveTransaction.of(folder.getParent().toString());
    // Without a transaction, Delta's cache has the log. While Delta is adding it to the cache, forTable fails.
    return active != null ? active.deltaLog() : DeltaLog.forTable(spark, folder.getParent());
  }

  private String derive(long version, LogStore reader, Configuration conf) throws IOException {
    Option<VersionChecksum> previous = log.readChecksum(version - 1, Option.empty());
    if (previous.isEmpty() || previous.get().metadata() == null || previous.get().protocol() == null) {
      return null;
    }
    List<Action> actions = new ArrayList<>();
    Path file = VersionFile.in(log.logPath(), version);
    try (CloseableIterator<String> lines = reader.read(file, conf)) {
      lines.forEachRemaining(line -> actions.add(Action$.MODULE$.fromJson(line)));
    }
    if (actions.isEmpty() || !(actions.get(0) instanceof CommitInfo info) || !OPERATIONS.contains(info.operation())) {
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
