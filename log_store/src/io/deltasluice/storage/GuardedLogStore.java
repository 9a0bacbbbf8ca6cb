package io.deltasluice.storage;

import com.fasterxml.jackson.databind.node.ObjectNode;
import io.delta.storage.AzureLogStore;
import io.delta.storage.CloseableIterator;
import io.delta.storage.GCSLogStore;
import io.delta.storage.HDFSLogStore;
import io.delta.storage.LogStore;
import io.delta.storage.S3SingleDriverLogStore;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A Delta log store that gives every version exactly one winner, which held the table's lock.
 *
 * <p>For each scheme it reads and lists as Delta's own store does, but lists S3 and local disks with {@link LogListing},
 * reads listed files with {@link LogReads} and computes missing checksum files with {@link Checksum}. It writes version
 * files ({@code _delta_log/<20 digits>.json}) differently: it asks the {@link Guard}, and then creates the file only if there
 * is none of that name. If another transaction has the version, it throws {@link FileAlreadyExistsException}, after which
 * Delta checks for conflicts and tries the next version. Any other exception ends the write.
 *
 * <p>Set {@code spark.delta.logStore.class} to this class, and set no other log store.
 */
public class GuardedLogStore extends LogStore {
  private static final Logger LOG = LoggerFactory.getLogger(GuardedLogStore.class);

  /** Maximum number of puts of a version, if the outcome is not known and the version may still be free. */
  private static final int MAX_PUTS = 4;

  /** Pause before the second put, in milliseconds. It grows by as much before each further put. */
  private static final long PAUSE_MILLIS = 200;

  /** Time after which a version is checked again before its put, in nanoseconds. */
  private static final long RECHECK_NANOS = 50_000_000;

  /** The schemes for which the log store can create a file only if there is none. */
  public static final List<String> SCHEMES =
      List.of("s3", "s3a", "s3n", "file", "hdfs", "abfs", "abfss", "wasb", "wasbs", "adl", "gs");

  /** A scheme's store for reading, and its put of version files; null if files cannot be created conditionally. */
  private record Storage(LogStore reader, PutIfAbsent put) {}

  private final Map<String, Storage> storages = new ConcurrentHashMap<>();

  public GuardedLogStore(Configuration initHadoopConf) {
    super(initHadoopConf);
  }

  @Override
  public CloseableIterator<String> read(Path path, Configuration conf) throws IOException {
    LogStore reader = storage(path, conf).reader;
    try {
      return LightTransaction.read(path, reader, conf);
    } catch (FileNotFoundException e) {
      String checksum = Checksum.deriveContent(path, reader, conf);
      if (checksum == null) {
        throw e;
      }
      return LogReads.iterator(List.of(checksum));
    }
  }

  @Override
  public Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
    List<FileStatus> files = LightTransaction.listFrom(path, conf);
    files = files == null ? LogListing.listFromDisk(path, conf) : files;
    // Delta's own store throws an exception if the folder does not exist.
    return files == null || files.isEmpty() ? storage(path, conf).reader.listFrom(path, conf) : files.iterator();
  }

  @Override
  public Path resolvePathOnPhysicalStorage(Path path, Configuration conf) throws IOException {
    return storage(path, conf).reader.resolvePathOnPhysicalStorage(path, conf);
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration conf) throws IOException {
    return storage(path, conf).reader.isPartialWriteVisible(path, conf);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf) throws IOException {
    Storage storage = storage(path, conf);
    if (VersionFile.isStagedCommit(path)) {
      throw new CommitRefusedException("TableError",
          path + ": a catalog or a coordinator decides this table's commits, so Sluice's lock cannot order them");
    }
    VersionFile file = VersionFile.of(path);
    if (file == null) {
      if (!overwrite && storage.put != null && Checksum.isFile(path)) {
        putChecksum(storage, path, actions, conf);
      } else {
        storage.reader.write(path, actions, overwrite, conf);
      }
      return;
    }
    if (overwrite) {
      throw new CommitRefusedException("TableError", path + ": a version is never overwritten");
    }
    if (storage.put == null) {
      throw new CommitRefusedException("TableError",
          path + ": this scheme has no conditional create that Sluice knows; use one of " + SCHEMES);
    }
    Guard.requireName(file, conf);
    // Checked before the lock is requested, if another writer may have the version: Delta's check for conflicts then
    // delays no other writer.
    Long freeAt = LightTransaction.wasFreeAt(file);
    if (freeAt == null) {
      throwIfTaken(file, conf);
      freeAt = System.nanoTime();
    }
    if (Guard.isBound()) {
      Checkpoints.defer(file);
    }
    CommitBody body = new CommitBody(actions, UUID.randomUUID().toString());
    AutomaticTicket automatic = Guard.automaticTicket(file, body);
    if (automatic == null) {
      commit(storage, Guard.ticket(), file, body, freeAt, conf);
      return;
    }
    boolean ends = true;
    try {
      commit(storage, automatic.name(), file, body, freeAt, conf);
      ends = !automatic.keepsLock();
    } catch (FileAlreadyExistsException e) {
      // Delta checks for conflicts, and calls again. The ticket keeps its place in the queue, or its lock.
      ends = false;
      throw e;
    } catch (CommitRefusedException e) {
      throw AutomaticTicket.asDeltaException(e);
    } finally {
      automatic.leave(ends);
    }
  }

  private static void putChecksum(Storage storage, Path path, Iterator<String> lines, Configuration conf)
      throws IOException {
    StringBuilder content = new StringBuilder();
    lines.forEachRemaining(line -> content.append(line).append('\n'));
    try {
      storage.put.put(path, content.toString().getBytes(StandardCharsets.UTF_8), conf);
    } catch (FileAlreadyExistsException e) {
      LOG.debug("another writer has written {}", path);
    }
  }

  private void commit(
      Storage storage, String ticket, VersionFile file, CommitBody body, long freeAt, Configuration conf)
      throws IOException {
    AutomaticTicket automatic = AutomaticTicket.named(ticket);
    if (ticket != null && automatic == null) {
      StagedFiles.add(ticket, file, body, conf);
    }
    if (Guard.mayAllow()) {
      storage.put.requireProof(file, conf);
    }
    CommitRefusedException refusal = null;
    if (ticket != null) {
      try {
        awaitTurn(storage, ticket, file, body, freeAt, conf);
      } catch (CommitRefusedException e) {
        if (automatic == null) {
          throw e;
        }
        refusal = e;
      }
    }
    LightTransaction light = LightTransaction.of(file);
    Guard.Permission permission = refusal == null
        ? Guard.ask(ticket, file, body, light == null ? null : light.terms(file, body))
        : Guard.observe(file, refusal);
    if (light != null) {
      light.setPermission(permission);
    }
    if (automatic != null) {
      automatic.setPermission(permission);
    }
    Attempts.Attempt attempt = Attempts.begin(permission.holds(), file.version(), body.txn, body.attempt);
    StagedFiles staged = ticket == null ? null : StagedFiles.take(ticket);
    try {
      put(storage, file, body, body.bytes(permission.stamp(), permission.members()), attempt, conf);
    } finally {
      // An Error of the JVM may have been thrown after the put was sent.
      attempt.endIfPending();
      if (attempt.outcome() == Attempts.Outcome.COMMITTED) {
        Guard.endAttempt();
      }
      if (ticket != null && refusal == null) {
        reportOutcome(ticket, staged, file, body, attempt, permission.holds());
      }
    }
  }

  private static void reportOutcome(String ticket, StagedFiles staged, VersionFile file, CommitBody body,
      Attempts.Attempt attempt, List<String> holds) {
    Attempts.Outcome outcome = attempt.outcome();
    if (staged != null && (outcome == Attempts.Outcome.TAKEN || outcome == Attempts.Outcome.REJECTED)) {
      staged.putBack(ticket);
    }
    AutomaticTicket automatic = AutomaticTicket.named(ticket);
    boolean keepsLock = automatic != null && automatic.keepsLock();
    boolean isReported = Guard.reportOutcome(ticket, file, body, attempt, keepsLock);
    if (automatic != null && outcome == Attempts.Outcome.COMMITTED) {
      automatic.setCommitted(isReported && !keepsLock);
    }
    // An automatic ticket that keeps its lock reports all outcomes under its hold when it ends.
    if (isReported && !keepsLock && (automatic != null || outcome == Attempts.Outcome.COMMITTED)) {
      // Python has the outcome, and does not read it again.
      holds.forEach(Attempts::forget);
    }
  }

  /**
   * Waits until the ticket has its lock and the version is still free.
   *
   * @param freeAt {@link System#nanoTime} at which the version was free
   * @throws FileAlreadyExistsException another writer has the version. Delta checks for conflicts, and calls again for
   *     the next version. The ticket keeps its place in the queue, or its lock.
   * @throws GroupCommittedException an earlier version contains the commit
   */
  private static void awaitTurn(Storage storage, String ticket, VersionFile file, CommitBody body, long freeAt,
      Configuration conf) throws IOException {
    long checkedAt = freeAt;
    ReadVersion read = ReadVersion.of(file);
    ObjectNode staged = Guard.describe(body, read);
    LightTransaction light = LightTransaction.of(file);
    staged.put("reads_ahead", light != null && light.readsAhead());
    if (light != null && light.isGrouping()) {
      light.throwIfCommitted(file, storage.reader, conf);
      staged.set("offer", light.offer(body));
    }
    staged.set("hooks", PostCommitHooks.of(ActiveTransaction.of(file.table())));
    AutomaticTicket automatic = AutomaticTicket.named(ticket);
    if (automatic != null) {
      automatic.describe(staged, body);
    }
    long waitsSince = System.nanoTime();
    while (!Guard.hasTurn(ticket, file, body, staged)) {
      throwIfTaken(file, conf);
      checkedAt = System.nanoTime();
    }
    if (LightTransaction.hasLock(file)) {
      // The table and the version were checked then, and no other writer with the lock can have changed them since.
      return;
    }
    long now = System.nanoTime();
    boolean isTaken = checkUnderLock(file, read, body, now - checkedAt > RECHECK_NANOS, conf);
    LightTransaction.recordLock(file, now, now - waitsSince > RECHECK_NANOS);
    if (isTaken) {
      throw new FileAlreadyExistsException(file.path().toString());
    }
  }

  /**
   * Checks that the table was not replaced and, at the same time, whether the version was taken.
   *
   * @param mustCheckVersion false if the version was free just before
   */
  private static boolean checkUnderLock(
      VersionFile file, ReadVersion read, CommitBody body, boolean mustCheckVersion, Configuration conf)
      throws IOException {
    Future<Boolean> isCurrent =
        read == null ? null : LogReads.begin(() -> read.isCurrent(body.newFiles(), conf));
    boolean isTaken = mustCheckVersion && LightTransaction.isTaken(file, conf);
    if (isCurrent == null || !LogReads.await(isCurrent)) {
      throw new CommitRefusedException("NotStagedError",
          "the table at " + file.table() + " has changed since it was read: it was created, removed or replaced");
    }
    return isTaken;
  }

  private static void throwIfTaken(VersionFile file, Configuration conf) throws IOException {
    if (LightTransaction.isTaken(file, conf)) {
      throw new FileAlreadyExistsException(file.path().toString());
    }
  }

  private void put(
      Storage storage, VersionFile file, CommitBody body, byte[] content, Attempts.Attempt attempt, Configuration conf)
      throws IOException {
    IOException failure = null;
    boolean retry = true;
    for (int putCount = 1; retry; putCount++) {
      try {
        storage.put.put(file.path(), content, conf);
        attempt.end(Attempts.Outcome.COMMITTED);
        return;
      } catch (PutIfAbsent.RejectedException e) {
        if (failure == null) {
          attempt.end(Attempts.Outcome.REJECTED);
          throw e.causeOrThis();
        }
        // An earlier put may still arrive.
        failure.addSuppressed(e);
      } catch (FileAlreadyExistsException e) {
        failure = failure == null ? e : failure;
      } catch (IOException e) {
        failure = e;
      } catch (RuntimeException e) {
        failure = new IOException(e);
      }
      switch (owner(storage, file, body, conf)) {
        case OURS -> {
          LOG.info("version {} of {} is committed, although the store responded: {}", file.version(), file.table(),
              failure.toString());
          attempt.end(Attempts.Outcome.COMMITTED);
          return;
        }
        case OTHER_WRITER -> {
          attempt.end(Attempts.Outcome.TAKEN);
          throw new FileAlreadyExistsException(file.path().toString());
        }
        default -> retry = putCount < MAX_PUTS && pause(putCount);
      }
    }
    attempt.end(Attempts.Outcome.UNKNOWN);
    throw new CommitUnknownException(file.table(), body.attempt,
        "version " + file.version() + " was put, and its outcome is unknown: " + failure.getMessage(), failure);
  }

  private enum Owner { OURS, OTHER_WRITER, NONE, UNKNOWN }

  private static Owner owner(Storage storage, VersionFile file, CommitBody body, Configuration conf) {
    // An interrupted thread cannot read. The flag is set again, and prevents the next put.
    boolean interrupted = Thread.interrupted();
    try (CloseableIterator<String> lines = storage.reader.read(file.path(), conf)) {
      return lines.hasNext() && body.hasWritten(lines.next()) ? Owner.OURS : Owner.OTHER_WRITER;
    } catch (FileNotFoundException e) {
      return Owner.NONE;
    } catch (IOException | RuntimeException e) {
      return Owner.UNKNOWN;
    } finally {
      if (interrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  /** Waits before the next put. Returns false if the thread was interrupted and must not put again. */
  static boolean pause(int putCount) {
    try {
      Thread.sleep(PAUSE_MILLIS * putCount);
      return true;
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      return false;
    }
  }

  private Storage storage(Path path, Configuration conf) throws IOException {
    String scheme = path.toUri().getScheme();
    String actualScheme = scheme == null ? path.getFileSystem(conf).getScheme() : scheme;
    return storages.computeIfAbsent(actualScheme.toLowerCase(Locale.ROOT), this::storageOf);
  }

  private Storage storageOf(String scheme) {
    Configuration conf = initHadoopConf();
    return switch (scheme) {
      case "s3", "s3a", "s3n" -> new Storage(new S3SingleDriverLogStore(conf), new S3aPut());
      case "file" -> new Storage(new HDFSLogStore(conf), new PutIfAbsent.HardLink());
      case "hdfs" -> hdfsStorage(new HDFSLogStore(conf));
      case "abfs", "abfss", "wasb", "wasbs", "adl" -> delegatedStorage(new AzureLogStore(conf));
      case "gs" -> delegatedStorage(new GCSLogStore(conf));
      default -> new Storage(new HDFSLogStore(conf), null);
    };
  }

  private static Storage hdfsStorage(LogStore store) {
    return new Storage(store, new HdfsPut(new PutIfAbsent.Delegated(store)));
  }

  private static Storage delegatedStorage(LogStore store) {
    return new Storage(store, new PutIfAbsent.Delegated(store));
  }
}
