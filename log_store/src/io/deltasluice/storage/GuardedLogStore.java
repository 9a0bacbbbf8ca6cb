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
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A Delta log store for which every version has exactly one winner, and every winner held the table's lock.
 *
 * <p>For each scheme it reads and lists as Delta's own store does, but for {@link LogListing} and {@link Checksum}.
 * Version files alone ({@code _delta_log/<20 digits>.json}) are written another way: first the {@link Guard} is asked,
 * then the file is created if, and only if, there is none of that name. A version that another transaction has is a
 * {@link FileAlreadyExistsException}, upon which Delta looks for conflicts and tries the next version; any other
 * exception ends the write.
 *
 * <p>Set {@code spark.delta.logStore.class} to this class, and no other log store beside it.
 */
public class GuardedLogStore extends LogStore {
  private static final Logger LOG = LoggerFactory.getLogger(GuardedLogStore.class);

  /** How often a put without an answer is repeated while the version is still free. */
  private static final int PUTS = 4;

  private static final long PAUSE_MILLIS = 200;

  /** For so long nobody looks again whether a version is free: in the end the put finds out. */
  private static final long FRESH_NANOS = 50_000_000;

  /** The schemes for which it is known how a file is created only if there is none. */
  public static final List<String> SCHEMES =
      List.of("s3", "s3a", "s3n", "file", "hdfs", "abfs", "abfss", "wasb", "wasbs", "adl", "gs");

  /** How a scheme is read, and how its version files are created; {@code put} is null where that cannot be done. */
  private record Storage(LogStore reader, PutIfAbsent put) {}

  private final Map<String, Storage> storages = new ConcurrentHashMap<>();

  public GuardedLogStore(Configuration initHadoopConf) {
    super(initHadoopConf);
  }

  @Override
  public CloseableIterator<String> read(Path path, Configuration conf) throws IOException {
    LogStore reader = storage(path, conf).reader;
    try {
      return reader.read(path, conf);
    } catch (FileNotFoundException e) {
      String checksum = Guard.isBound() ? Checksum.derived(path, reader, conf) : null;
      if (checksum == null) {
        throw e;
      }
      return new OneLine(checksum);
    }
  }

  @Override
  public Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
    List<FileStatus> found = LogListing.from(path, conf);
    // Delta's own way also says whether the folder is there at all.
    return found.isEmpty() ? storage(path, conf).reader.listFrom(path, conf) : found.iterator();
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
          path + ": this table's commits are decided by a catalog or a coordinator, and a lock would order nothing");
    }
    VersionFile file = VersionFile.of(path);
    if (file == null) {
      storage.reader.write(path, actions, overwrite, conf);
      return;
    }
    if (overwrite) {
      throw new CommitRefusedException("TableError", path + ": a version is never overwritten");
    }
    if (storage.put == null) {
      throw new CommitRefusedException("TableError",
          path + ": for this scheme no way is known to create a file only if there is none");
    }
    // Also before the lock is asked for: to catch up with others costs nobody anything then.
    refuseTaken(path, conf);
    long looked = System.nanoTime();
    if (Guard.isBound()) {
      Checkpoints.defer(file);
    }
    CommitBody body = new CommitBody(actions, UUID.randomUUID().toString());
    String ticket = Guard.ticket();
    if (ticket != null) {
      StagedFiles.remember(ticket, file, body, conf);
    }
    if (Guard.mayAllow()) {
      storage.put.requireProof(file, conf);
    }
    if (ticket != null) {
      awaitTurn(ticket, file, body, looked, conf);
    }
    Guard.Verdict verdict = Guard.ask(file, body);
    Attempts.Attempt attempt =
        Attempts.begin(verdict.holds(), file.version(), body.txn, body.attempt);
    StagedFiles staged = ticket == null ? null : StagedFiles.take(ticket);
    try {
      put(storage, file, body, body.bytes(verdict.stamp()), attempt, conf);
    } finally {
      // An error of the JVM's own may have come when the put was on its way.
      attempt.endedSomehow();
      if (attempt.outcome() == Attempts.Outcome.COMMITTED) {
        Guard.committed();
      }
      if (ticket != null) {
        tell(ticket, staged, file, body, attempt.outcome(), verdict.holds());
      }
    }
  }

  private static void tell(
      String ticket,
      StagedFiles staged,
      VersionFile file,
      CommitBody body,
      Attempts.Outcome outcome,
      List<String> holds) {
    if (staged != null && (outcome == Attempts.Outcome.TAKEN || outcome == Attempts.Outcome.REJECTED)) {
      staged.putBack(ticket);
    }
    if (Guard.tell(ticket, file, body, outcome) && outcome == Attempts.Outcome.COMMITTED) {
      // Python knows all that there is to know, and will not ask.
      holds.forEach(Attempts::forget);
    }
  }

  /**
   * Waits, in front of a version that is free, for the lock under which it can be put.
   *
   * @param lookedAt when the version was free
   * @throws FileAlreadyExistsException somebody else had this version first. Delta looks whether that is a conflict, and
   *     comes back for the next one; the place in the queue is kept, and so is the lock.
   */
  private static void awaitTurn(String ticket, VersionFile file, CommitBody body, long lookedAt, Configuration conf)
      throws IOException {
    long looked = lookedAt;
    ReadVersion read = ReadVersion.of(file);
    ObjectNode staged = Guard.described(body, read);
    staged.set("hooks", PostCommitHooks.of(ActiveTransaction.of(file.table())));
    while (!Guard.hasTurn(ticket, file, body, staged)) {
      refuseTaken(file.path(), conf);
      looked = System.nanoTime();
    }
    if (System.nanoTime() - looked > FRESH_NANOS) {
      refuseTaken(file.path(), conf);
    }
    if (read == null || !read.stands(body.written(), conf)) {
      throw new CommitRefusedException("NotStagedError",
          "the table that was read is not at " + file.table() + " any more: it was created, removed or replaced");
    }
  }

  private static void refuseTaken(Path version, Configuration conf) throws IOException {
    if (version.getFileSystem(conf).exists(version)) {
      throw new FileAlreadyExistsException(version.toString());
    }
  }

  private void put(
      Storage storage, VersionFile file, CommitBody body, byte[] content, Attempts.Attempt attempt, Configuration conf)
      throws IOException {
    IOException problem = null;
    boolean again = true;
    for (int number = 1; again; number++) {
      try {
        storage.put.put(file.path(), content, conf);
        attempt.ended(Attempts.Outcome.COMMITTED);
        return;
      } catch (PutIfAbsent.RejectedException e) {
        if (problem == null) {
          attempt.ended(Attempts.Outcome.REJECTED);
          throw e.reason();
        }
        // An earlier put may still be on its way.
        problem.addSuppressed(e);
      } catch (FileAlreadyExistsException e) {
        problem = problem == null ? e : problem;
      } catch (IOException e) {
        problem = e;
      } catch (RuntimeException e) {
        problem = new IOException(e);
      }
      switch (owner(storage, file, body, conf)) {
        case OURS -> {
          LOG.info("version {} of {} is ours, though the store said: {}", file.version(), file.table(),
              problem.toString());
          attempt.ended(Attempts.Outcome.COMMITTED);
          return;
        }
        case ANOTHER -> {
          attempt.ended(Attempts.Outcome.TAKEN);
          throw new FileAlreadyExistsException(file.path().toString());
        }
        default -> again = number < PUTS && pause(number);
      }
    }
    attempt.ended(Attempts.Outcome.UNKNOWN);
    throw new CommitUnknownException(file.table(), body.attempt,
        "version " + file.version() + " was put, and the store gave no answer: " + problem.getMessage(), problem);
  }

  private enum Owner { OURS, ANOTHER, NOBODY_YET, UNKNOWN }

  private static Owner owner(Storage storage, VersionFile file, CommitBody body, Configuration conf) {
    // With that flag set nothing can be read. Nothing is put after this look, either.
    boolean interrupted = Thread.interrupted();
    try (CloseableIterator<String> lines = storage.reader.read(file.path(), conf)) {
      return lines.hasNext() && body.wrote(lines.next()) ? Owner.OURS : Owner.ANOTHER;
    } catch (FileNotFoundException e) {
      return Owner.NOBODY_YET;
    } catch (IOException | RuntimeException e) {
      return Owner.UNKNOWN;
    } finally {
      if (interrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  /** Waits before the next put; false if the thread was interrupted: then nothing more is put. */
  private static boolean pause(int number) {
    try {
      Thread.sleep(PAUSE_MILLIS * number);
      return true;
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      return false;
    }
  }

  private Storage storage(Path path, Configuration conf) throws IOException {
    String named = path.toUri().getScheme();
    String scheme = (named == null ? path.getFileSystem(conf).getScheme() : named).toLowerCase(Locale.ROOT);
    return storages.computeIfAbsent(scheme, this::storageOf);
  }

  private Storage storageOf(String scheme) {
    Configuration conf = initHadoopConf();
    switch (scheme) {
      case "s3", "s3a", "s3n":
        return new Storage(new S3SingleDriverLogStore(conf), new PutIfAbsent.S3a());
      case "file":
        return new Storage(new HDFSLogStore(conf), new PutIfAbsent.HardLink());
      case "hdfs":
        return delegated(new HDFSLogStore(conf));
      case "abfs", "abfss", "wasb", "wasbs", "adl":
        return delegated(new AzureLogStore(conf));
      case "gs":
        return delegated(new GCSLogStore(conf));
      default:
        return new Storage(new HDFSLogStore(conf), null);
    }
  }

  private static Storage delegated(LogStore store) {
    return new Storage(store, new PutIfAbsent.Delegated(store));
  }
}
