package io.deltasluice.storage;

import io.delta.storage.CloseableIterator;
import io.delta.storage.LogStore;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Iterator;
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
import org.apache.spark.sql.delta.util.JsonUtils$;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;
import scala.util.Either;
import scala.util.Right;

/**
 * The checksum of a version ({@code <20 digits>.crc}: size, number of files, metadata), as its writer is about to write
 * it.
 *
 * <p>Delta writes that file some moments after the version. Behind a lock that is held for the commit alone the next
 * writer comes in these very moments. Without a checksum it has to read the whole state of the table, in two Spark jobs,
 * and so has everybody after it. So here the checksum is made of the one before it and of the version itself, by the same
 * method of Delta's by which the writer makes it.
 */
final class Checksum implements RecordChecksum {
  private static final Logger LOG = LoggerFactory.getLogger(Checksum.class);
  private static final Pattern NAME = Pattern.compile("(\\d{20})\\.crc");

  /** Of these it is known that Delta itself derives the checksum of their commits. */
  private static final Set<String> OPERATIONS =
      Set.of("WRITE", "STREAMING UPDATE", "DELETE", "UPDATE", "MERGE", "OPTIMIZE");

  /** Of so many versions in a row the checksum may be missing. */
  private static final int MOST = 8;

  private static final ThreadLocal<Integer> DEPTH = ThreadLocal.withInitial(() -> 0);

  private final DeltaLog log;
  private final SparkSession spark;
  private Logger logger;

  private Checksum(DeltaLog log, SparkSession spark) {
    this.log = log;
    this.spark = spark;
  }

  /**
   * Returns what would be in a checksum file that is not there.
   *
   * @param reader for the version's own file
   * @return its only line; null for any other file, and if it cannot be derived
   */
  static String derived(Path path, LogStore reader, Configuration conf) {
    Matcher name = NAME.matcher(path.getName());
    if (!name.matches() || DEPTH.get() == MOST) {
      return null;
    }
    DEPTH.set(DEPTH.get() + 1);
    try {
      SparkSession spark = SparkSession$.MODULE$.active();
      DeltaLog log = logOf(spark, path.getParent());
      return new Checksum(log, spark).derive(Long.parseLong(name.group(1)), reader, conf);
    } catch (Exception | LinkageError e) {
      // Scala throws checked exceptions without a word; whatever it is, the file is not there.
      LOG.debug("{} is not derived", path, e);
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
    // Without one, the log that asks is in Delta's cache; while it is being put there, this is an error.
    return active != null ? active.deltaLog() : DeltaLog.forTable(spark, folder.getParent());
  }

  private String derive(long version, LogStore reader, Configuration conf) throws IOException {
    Option<VersionChecksum> before = log.readChecksum(version - 1, Option.empty());
    if (before.isEmpty() || before.get().metadata() == null || before.get().protocol() == null) {
      return null;
    }
    List<Action> actions = new ArrayList<>();
    Path file = VersionFile.in(log.logPath(), version);
    try (CloseableIterator<String> lines = reader.read(file, conf)) {
      for (Iterator<String> each = lines; each.hasNext(); ) {
        actions.add(Action$.MODULE$.fromJson(each.next()));
      }
    }
    if (actions.isEmpty() || !(actions.get(0) instanceof CommitInfo info) || !OPERATIONS.contains(info.operation())) {
      return null;
    }
    boolean withFiles =
        before.get().allFiles().isDefined() && actions.stream().noneMatch(each -> each instanceof Metadata);
    Either<String, VersionChecksum> found = incrementallyDeriveChecksum(
        spark, log, version, CollectionConverters.asScala(actions).toSeq(), Option.empty(), Option.empty(),
        info.operation(), info.txnId(), new Right<>(before.get()), false, withFiles);
    return found.isRight() ? JsonUtils$.MODULE$.mapper().writeValueAsString(found.toOption().get()) : null;
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
  public void org$apache$spark$internal$Logging$$log__$eq(Logger given) {
    logger = given;
  }
}
