package io.deltasluice.storage;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.delta.storage.CloseableIterator;
import io.delta.storage.LogStore;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.delta.CommittedTransaction;
import org.apache.spark.sql.delta.CurrentTransactionInfo;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.IsolationLevel;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.VersionChecksum;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.Action$;
import org.apache.spark.sql.delta.actions.Protocol;
import org.apache.spark.sql.delta.hooks.CheckpointHook$;
import org.apache.spark.sql.delta.hooks.ChecksumHook$;
import org.apache.spark.sql.delta.hooks.PostCommitHook;
import org.apache.spark.sql.delta.sources.DeltaSQLConf;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Function0;
import scala.Option;
import scala.Some;
import scala.Tuple3;
import scala.jdk.javaapi.CollectionConverters;
import scala.util.Either;
import scala.util.Left;

/**
 * Delta's transaction of an append through the gate, without the work around a commit that an append does not need.
 *
 * <p>Delta itself makes the commit and checks it for conflicts. Five things differ:
 *
 * <ul>
 *   <li>If this driver has seen no commit of another writer, the transaction begins with the snapshot of the driver's
 *       last commit, and lists the log at least once a minute. Delta's check for conflicts reads the versions that
 *       other writers have committed since that snapshot.
 *   <li>On S3 the conflict check uses the listing that has found the conflict, and the versions are read at once.
 *   <li>The checksum file is written with one request, see {@link Checksum#write}.
 *   <li>The checkpoint is written after the release of the lock, see {@link Checkpoints#keepIfDue}.
 *   <li>A holder of the lock may commit the transaction together with its own. Delta's conflict check then finds the
 *       commit in the log, and the transaction ends as if it had put that version.
 * </ul>
 */
public final class LightTransaction extends OptimisticTransaction {
  /** Setting of the driver: whether appends through the gate are light transactions. */
  private static final String ENABLED = "spark.sluice.lightCommits";

  /** Setting of the driver: whether appends through the gate may be committed together with others. */
  private static final String GROUP_COMMITS = "spark.sluice.groupCommits";

  /** Table features with which a member's actions do not depend on the version that contains them. */
  private static final Set<String> GROUP_FEATURES = Set.of(
      "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping",
      "allowColumnDefaults", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck",
      "checkpointProtection", "domainMetadata", "clustering", "typeWidening", "variantType");

  /**
   * Table features with which an append may be a light transaction. With any other one, such as a feature of a later
   * release, the append is Delta's own transaction.
   */
  private static final Set<String> FEATURES =
      Stream.concat(GROUP_FEATURES.stream(), Stream.of("rowTracking")).collect(Collectors.toUnmodifiableSet());

  /** The last protocol version of writers before table features whose features are all in {@link #FEATURES}. */
  private static final int MAX_LEGACY_WRITER_VERSION = 5;

  /** The protocol versions of readers and of writers with which a table lists its features. */
  private static final int READER_FEATURES_VERSION = 3;
  private static final int WRITER_FEATURES_VERSION = 7;

  /** Time after which a driver lists the log again. */
  private static final long LISTING_NANOS = TimeUnit.SECONDS.toNanos(60);

  /** Time in which other writers do not commit many versions. */
  private static final long RECENT_NANOS = TimeUnit.SECONDS.toNanos(2);

  private static final Logger LOG = LoggerFactory.getLogger(LightTransaction.class);

  /**
   * A listing of the log.
   *
   * @param from the path from which it begins
   * @param atNanos {@link System#nanoTime} before it
   */
  private record Listing(Path from, List<FileStatus> files, long atNanos) {
    boolean contains(VersionFile file) {
      return files.stream().anyMatch(status -> status.getPath().getName().equals(file.path().getName()));
    }
  }

  /** The append that a thread begins next: the ticket of its commit, and the location of its table. */
  private record Append(String ticket, String location) {}

  /**
   * A commit of this driver.
   *
   * @param listedAtNanos {@link System#nanoTime} of the last listing of the log before it
   * @param lockedAtNanos {@link System#nanoTime} at which its lock was acquired
   * @param isUncontended whether its transaction has met no other writer
   */
  private record OwnCommit(long version, long listedAtNanos, long lockedAtNanos, boolean isUncontended) {}

  private static final ThreadLocal<Append> NEXT_APPEND = new ThreadLocal<>();

  /** This driver's last commit to each table, by the path of its log, if no other writer committed directly before it. */
  private static final Map<String, OwnCommit> UNDISTURBED_COMMITS = new ConcurrentHashMap<>();

  private final long listedAtNanos;

  /** The driver's last commit, if the transaction begins with its version; otherwise null. */
  private final OwnCommit previous;

  /** Whether other writers probably commit to the table. */
  private boolean expectsWriters;

  /** The versions after {@link #readVersion}, as far as they were read. */
  private final NewerVersions newerVersions = new NewerVersions();

  /** Hash of the protocol and the metadata that the transaction has read; null before its first use. */
  private String state;

  /** Members of the group commit, if the transaction makes one. */
  private List<JsonNode> members = List.of();

  /** Whether a holder has committed the transaction. */
  private boolean isMember;

  /** The listing that has found a conflict, until Delta's conflict check uses it. */
  private Listing listing;

  /** Whether the log is on S3, so that one request lists its newest files, and versions are read at once. */
  private boolean readsAhead;

  /** The last version that Delta's conflict check has listed; -1 before. */
  private long lastConflictVersion = -1;

  /** {@link System#nanoTime} before that listing. */
  private long conflictsListedAtNanos;

  /** {@link System#nanoTime} at which the lock was acquired; 0 before. */
  private long lockedAtNanos;

  /** Whether the transaction has waited for its lock, or has found versions of other writers. */
  private boolean hasMetWriters;

  /** Reads the versions that the last conflict check has listed; null if it reads one after the other. */
  private LogReads.Ahead reads;

  private LightTransaction(DeltaLog log, Snapshot snapshot, long listedAtNanos, OwnCommit previous) {
    super(log, Option.empty(), snapshot);
    this.listedAtNanos = listedAtNanos;
    this.previous = previous;
    expectsWriters = previous == null || !previous.isUncontended;
  }

  /**
   * Makes the next transaction of this thread a light one. It must be that of an append through the gate.
   *
   * @param ticket ticket of the append; the thread must be bound to it
   * @param location location of the table
   */
  public static void expect(String ticket, String location) {
    NEXT_APPEND.set(new Append(ticket, location));
  }

  /**
   * Begins the transaction of this thread's append.
   *
   * @param start begins Delta's own transaction, with the newest snapshot
   * @return null if this thread's next transaction is not that of an append through the gate
   */
  static OptimisticTransaction begin(Function0<OptimisticTransaction> start) {
    Append append = NEXT_APPEND.get();
    if (append == null) {
      return null;
    }
    NEXT_APPEND.remove();
    SparkSession spark = SparkSession.active();
    if (!append.ticket.equals(Guard.ticket()) || !spark.sparkContext().conf().getBoolean(ENABLED, true)) {
      return null;
    }
    PropertySources.remove(spark.sparkContext().hadoopConfiguration());
    DeltaLog log = DeltaLog.forTable(spark, append.location);
    Checksum.register(log);
    Snapshot known = log.unsafeVolatileSnapshot();
    OwnCommit commit = UNDISTURBED_COMMITS.get(log.logPath().toString());
    if (commit != null && commit.version == known.version() && Checkpoints.knowsLast(known)
        && System.nanoTime() - commit.listedAtNanos < LISTING_NANOS) {
      return new LightTransaction(log, known, commit.listedAtNanos, commit);
    }
    long listedAtNanos = System.nanoTime();
    OptimisticTransaction transaction = start.apply();
    Snapshot newest = transaction.snapshot();
    boolean isLight = transaction.deltaLog() == log && transaction.catalogTable().isEmpty() && newest.version() >= 0
        && allows(newest.protocol());
    return isLight ? new LightTransaction(log, newest, listedAtNanos, null) : transaction;
  }

  /** Returns this thread's light transaction on a table; null if there is none. */
  static LightTransaction of(VersionFile file) {
    return of(file.path().getParent());
  }

  private static LightTransaction of(Path logFolder) {
    boolean isWrite = Guard.ticket() != null && Guard.writeId() != null;
    return isWrite && ActiveTransaction.of(logFolder.getParent().toString()) instanceof LightTransaction light
        ? light
        : null;
  }

  /** Returns whether group commits are on. */
  boolean isGrouping() {
    return spark().sparkContext().conf().get(GROUP_COMMITS, "").equalsIgnoreCase("true");
  }

  /**
   * Returns whether the lock is held, and the table was still the same then. The next version is free after Delta's last
   * check for conflicts, unless a writer without the lock has taken it.
   */
  static boolean hasLock(VersionFile file) {
    LightTransaction light = of(file);
    return light != null && light.lockedAtNanos != 0;
  }

  /**
   * Records that the lock is held, and that the table is still the same.
   *
   * @param atNanos {@link System#nanoTime} after the lock was acquired
   * @param hasWaited whether other writers held it first
   */
  static void recordLock(VersionFile file, long atNanos, boolean hasWaited) {
    LightTransaction light = of(file);
    if (light != null) {
      light.lockedAtNanos = atNanos;
      light.hasMetWriters |= hasWaited;
    }
  }

  /** Returns the lines of a file, and records them if it is a version after the one that the transaction has read. */
  static CloseableIterator<String> read(Path path, LogStore reader, Configuration conf) throws IOException {
    VersionFile file = VersionFile.of(path);
    LightTransaction light = file == null ? null : of(file);
    if (light == null || file.version() <= light.readVersion()) {
      return LogReads.read(path, reader, conf);
    }
    List<String> content = light.reads == null ? null : light.reads.take(path);
    CloseableIterator<String> lines =
        content == null ? LogReads.read(path, reader, conf) : LogReads.iterator(content);
    return light.isGrouping() ? light.newerVersions.recording(file.version(), lines) : lines;
  }

  /**
   * Lists the log, see {@link LogListing#listFrom}. For the conflict check of a light transaction it returns the listing
   * that has found the conflict, and begins to read the versions.
   */
  static List<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
    LightTransaction light = VersionFile.isLog(path.getParent()) ? of(path.getParent()) : null;
    if (light == null) {
      return LogReads.list(path, conf);
    }
    Listing listing = light.listing;
    light.listing = null;
    if (listing == null || !listing.from.equals(path)) {
      listing = light.list(path, conf);
    }
    light.readAhead(listing, conf);
    return listing == null ? null : listing.files;
  }

  /**
   * Returns whether a version exists.
   *
   * <p>If other writers commit to the table, it probably does. Then Delta lists the log to check for conflicts. So the
   * log is listed here, and the listing serves both.
   */
  static boolean isTaken(VersionFile file, Configuration conf) throws IOException {
    LightTransaction light = of(file);
    if (light != null && light.expectsWriters) {
      // Delta lists from this path.
      Listing listing = light.list(new Path(file.path().getParent(), String.format("%020d.", file.version())), conf);
      if (listing != null) {
        boolean isTaken = listing.contains(file);
        light.listing = isTaken ? listing : null;
        return isTaken;
      }
    }
    boolean isTaken = LogListing.exists(file.path(), conf);
    if (light != null) {
      light.expectsWriters = isTaken;
    }
    return isTaken;
  }

  /** Returns null if Delta's own store must list the log. */
  private Listing list(Path path, Configuration conf) throws IOException {
    long atNanos = System.nanoTime();
    List<FileStatus> files = LogReads.list(path, conf);
    readsAhead = files != null;
    return files == null ? null : new Listing(path, files, atNanos);
  }

  /** Begins to read the versions in the listing of a conflict check; null if Delta's own store has listed the log. */
  private void readAhead(Listing found, Configuration conf) throws IOException {
    hasMetWriters = true;
    if (found == null) {
      return;
    }
    conflictsListedAtNanos = found.atNanos;
    List<FileStatus> versions = new ArrayList<>();
    for (FileStatus status : found.files) {
      VersionFile file = VersionFile.of(status.getPath());
      if (file != null && file.version() > readVersion()) {
        versions.add(status);
        lastConflictVersion = file.version();
      }
    }
    reads = versions.size() > 1 ? new LogReads.Ahead(versions, conf) : null;
  }

  /**
   * Returns {@link System#nanoTime} at which a version was free; null if that was long ago or is not known. It was free
   * when the driver had the lock for the version before, and when Delta's conflict check listed the log.
   */
  static Long wasFreeAt(VersionFile file) {
    LightTransaction light = of(file);
    if (light == null) {
      return null;
    }
    if (light.lockedAtNanos != 0) {
      return light.lockedAtNanos;
    }
    if (light.lastConflictVersion == file.version() - 1) {
      return light.conflictsListedAtNanos;
    }
    OwnCommit previous = light.previous;
    boolean isRecent = previous != null && previous.version == file.version() - 1 && previous.isUncontended
        && System.nanoTime() - previous.lockedAtNanos < RECENT_NANOS;
    return isRecent ? previous.lockedAtNanos : null;
  }

  /** Returns whether a conflict check reads all versions at once, so that few checks during a wait suffice. */
  boolean readsAhead() {
    return readsAhead;
  }

  /**
   * Looks for the append in the versions before this file.
   *
   * @throws GroupCommittedException a version contains it
   */
  void throwIfCommitted(VersionFile file, LogStore reader, Configuration conf) throws IOException {
    newerVersions.readMissing(readVersion() + 1, file.version() - 1, file, reader, conf);
    NewerVersions.Commit commit = newerVersions.commitOf(Guard.writeId());
    if (commit != null) {
      throw new GroupCommittedException(report(commit), commit.version());
    }
  }

  private VersionFile report(NewerVersions.Commit commit) {
    Path path = VersionFile.in(deltaLog().logPath(), commit.version());
    VersionFile file = new VersionFile(path, dataPath().toString(), commit.version());
    Guard.reportMember(Guard.ticket(), file, commit.metrics());
    return file;
  }

  /**
   * Returns the append as a holder can commit it together with its own; null if none can.
   *
   * @return JSON object: the fields of {@link CommitBody#offer}, {@code state} and {@code read_version}
   */
  ObjectNode offer(CommitBody body) {
    ObjectNode offer = allowsGroups(snapshot().protocol()) ? body.offer() : null;
    return offer == null ? null : offer.put("state", state()).put("read_version", readVersion());
  }

  /**
   * Returns what the commit of this version requires of members; null if it can have none, or group commits are off.
   *
   * @return JSON object: {@code state} (hash of the protocol and the metadata), {@code read_version},
   *     {@code retention_ms} (age at which VACUUM deletes files that belong to no commit), {@code transactions}
   *     (application ids of the {@code txn} actions of the commit and of the versions after the read one) and
   *     {@code committed} (write ids of those versions)
   */
  ObjectNode terms(VersionFile file, CommitBody body) {
    if (!isGrouping() || !allowsGroups(snapshot().protocol()) || !body.isSmallAppend()
        || newerVersions.haveTableChanges()) {
      return null;
    }
    ObjectNode terms = CommitBody.JSON.createObjectNode();
    terms.put("state", state());
    terms.put("read_version", readVersion());
    terms.put("retention_ms", ReadVersion.retentionMillis(file));
    ArrayNode transactions = terms.putArray("transactions");
    newerVersions.transactions().forEach(transactions::add);
    body.transactions().forEach(transactions::add);
    newerVersions.writeIds().forEach(terms.putArray("committed")::add);
    return terms;
  }

  /** Records the members of the commit, and in its stamp that it is light. */
  void setPermission(Guard.Permission permission) {
    members = permission.members();
    permission.stamp().put("light", previous == null ? "listed" : "known");
  }

  private static boolean allows(Protocol protocol) {
    int writer = protocol.minWriterVersion();
    return protocol.minReaderVersion() <= READER_FEATURES_VERSION
        && (writer <= MAX_LEGACY_WRITER_VERSION || writer == WRITER_FEATURES_VERSION)
        && hasOnly(protocol, FEATURES);
  }

  private static boolean allowsGroups(Protocol protocol) {
    return hasOnly(protocol, GROUP_FEATURES);
  }

  private static boolean hasOnly(Protocol protocol, Set<String> features) {
    return Stream.of(protocol.readerFeatures(), protocol.writerFeatures())
        .filter(Option::isDefined)
        .flatMap(names -> CollectionConverters.asJava(names.get()).stream())
        .allMatch(features::contains);
  }

  private String state() {
    if (state == null) {
      state = hash(snapshot().protocol().json() + '\n' + snapshot().metadata().json());
    }
    return state;
  }

  private static String hash(String text) {
    try {
      byte[] digest = MessageDigest.getInstance("SHA-256").digest(text.getBytes(StandardCharsets.UTF_8));
      return HexFormat.of().formatHex(digest);
    } catch (NoSuchAlgorithmException e) {
      throw new IllegalStateException(e);
    }
  }

  /** Returns normally if a holder has committed the transaction. */
  @Override
  public Tuple3<Object, Snapshot, CurrentTransactionInfo> doCommitRetryIteratively(
      long attemptVersion, CurrentTransactionInfo info, IsolationLevel isolationLevel) {
    try {
      return super.doCommitRetryIteratively(attemptVersion, info, isolationLevel);
    } catch (GroupCommittedException e) {
      return endAsMember(e.version(), info);
    } catch (RuntimeException e) {
      // Delta checks a version for conflicts before it tries the next one. Its own commit, or one after it, may be one.
      NewerVersions.Commit commit = Guard.writeId() == null ? null : newerVersions.commitOf(Guard.writeId());
      if (commit == null) {
        throw e;
      }
      report(commit);
      return endAsMember(commit.version(), info);
    }
  }

  /** Does what Delta does after the put. */
  private Tuple3<Object, Snapshot, CurrentTransactionInfo> endAsMember(long version, CurrentTransactionInfo info) {
    isMember = true;
    StagedFiles.take(Guard.ticket());
    Guard.endAttempt();
    commitEndNano_$eq(System.nanoTime());
    spark().sessionState().conf().setConf(DeltaSQLConf.DELTA_LAST_COMMIT_VERSION_IN_SESSION(), new Some<>(version));
    return new Tuple3<>(version, deltaLog().update(false, Option.empty(), Option.empty()), info);
  }

  /** Derives the checksum of a group commit from the actions of all of its writers. */
  @Override
  public Option<VersionChecksum> incrementallyDeriveChecksum(long version, CurrentTransactionInfo info) {
    if (members.isEmpty()) {
      return super.incrementallyDeriveChecksum(version, info);
    }
    List<Action> actions = new ArrayList<>(CollectionConverters.asJava(info.finalActionsToCommit()));
    members.forEach(member ->
        member.path("lines").forEach(line -> actions.add(Action$.MODULE$.fromJson(line.asText()))));
    Option<VersionChecksum> known = snapshot().checksumOpt();
    boolean withFiles = known.isDefined() && known.get().allFiles().isDefined();
    Either<String, VersionChecksum> checksum = DeltaApi.deriveChecksum(
        this, spark(), deltaLog(), version, CollectionConverters.asScala(actions).toSeq(), info.op().name(),
        new Some<>(txnId()), new Left<>(snapshot()), withFiles);
    return checksum.toOption();
  }

  /** Delta's constructor calls this for its own hooks, too. */
  @Override
  public void registerPostCommitHook(PostCommitHook hook) {
    if (hook != ChecksumHook$.MODULE$ && hook != CheckpointHook$.MODULE$) {
      super.registerPostCommitHook(hook);
    }
  }

  /** Delta would compute the state of the table for its statistics if the version were to get a checkpoint. */
  @Override
  public boolean isCheckpointNeeded(long version, Snapshot snapshot) {
    return false;
  }

  /** Replaces {@link #isCheckpointNeeded} in Delta 4.0. */
  public void setNeedsCheckpoint(long version, Snapshot snapshot) {}

  @Override
  public void runPostCommitHooks(CommittedTransaction transaction) {
    super.runPostCommitHooks(transaction);
    long version = transaction.committedVersion();
    Snapshot snapshot = transaction.postCommitSnapshot();
    String log = deltaLog().logPath().toString();
    if (isMember) {
      // The log was listed after the commit. The holder writes the checksum and the checkpoint.
      UNDISTURBED_COMMITS.put(log, new OwnCommit(snapshot.version(), System.nanoTime(), 0, false));
      return;
    }
    if (version == readVersion() + 1 && version == snapshot.version()) {
      UNDISTURBED_COMMITS.put(log, new OwnCommit(version, listedAtNanos, lockedAtNanos, !hasMetWriters));
    } else {
      UNDISTURBED_COMMITS.remove(log);
    }
    try {
      if (version == snapshot.version()) {
        Checksum.write(spark(), snapshot, txnId());
      }
      Checkpoints.keepIfDue(version, snapshot, transaction.catalogTable());
    } catch (Exception | LinkageError e) {
      // Scala throws undeclared checked exceptions.
      LOG.warn("version {} of {} is committed, but its checksum or checkpoint is left to a later version",
          version, dataPath(), e);
    }
  }
}
