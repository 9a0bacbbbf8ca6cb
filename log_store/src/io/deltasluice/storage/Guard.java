package io.deltasluice.storage;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.MissingNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.ConnectException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkContext$;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.SparkSession$;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;

/** Asks a Python process at every commit whether the hold of the commit is still valid. */
public final class Guard {
  /**
   * Local property of Spark's threads: ids of the blocks to which the thread is bound, separated by commas, the
   * innermost last. The id of a block that locks partitions ends with {@code *}.
   */
  public static final String BLOCKS = "spark.sluice.block";

  /** Local property of Spark's threads: id of the thread's operation attempt. */
  public static final String WRITE = "spark.sluice.write";

  /** Local property of Spark's threads: name of the guard that decides on the thread's commits. */
  public static final String NAME = "spark.sluice.guard.name";

  /**
   * Local property of Spark's threads: name of the ticket of a write that gets its lock when it commits. The name ends
   * with {@code *} if the lock is on partitions.
   */
  public static final String TICKET = "spark.sluice.ticket";

  private static final String COMMIT_LOCK = "spark.databricks.delta.commitLock.enabled";
  private static final String AUTO_COMPACT = "spark.databricks.delta.autoCompact.enabled";

  private static final char PARTITIONS_MARK = '*';

  /** Setting of the driver: {@code required} (the default), {@code observe} or {@code off}. */
  public static final String MODE = "spark.sluice.guard";

  /** Replaces {@link #BLOCKS} in a JVM without Spark. */
  private static final InheritableThreadLocal<String> BLOCKS_WITHOUT_SPARK = new InheritableThreadLocal<>();

  private static final Logger LOG = LoggerFactory.getLogger(Guard.class);
  // The committing thread waits for these threads with a timeout, and Spark may interrupt it.
  private static final ExecutorService CALLS = Executors.newCachedThreadPool(work -> {
    Thread thread = new Thread(work, "sluice-guard");
    thread.setDaemon(true);
    return thread;
  });

  private static final String ADVICE =
      "attach(spark) in PySpark installs one, and spark.plugins=io.deltasluice.SluicePlugin in other drivers";

  private static volatile String advice = ADVICE;

  /** Guards by name, the newest last. Several Python processes may use one JVM, and each knows only its own holds. */
  private static final Map<String, PythonGuard> GUARDS = Collections.synchronizedMap(new LinkedHashMap<>());

  private Guard() {}

  /**
   * The guard's permission for a commit.
   *
   * @param holds ids of the holds that cover the commit
   * @param stamp stamp of the commit
   * @param members members of a group commit, in order: each has {@code lines}, {@code info} and {@code stamp}
   * @param restoration for an automatic ticket whose commit changes the table's adoption: {@code properties} to set
   *     after it, and {@code block}, the block in which to set them; else a missing node
   */
  record Permission(List<String> holds, ObjectNode stamp, List<JsonNode> members, JsonNode restoration) {}

  enum Mode { REQUIRED, OBSERVE, OFF }

  /** When a thread without block and ticket requests a lock: never, when it commits, or when a transaction begins. */
  enum AutomaticLock {
    NONE, COMMIT, WRITE;

    /**
     * Parses the setting {@code spark.sluice.lock}.
     *
     * @throws IllegalStateException the setting has another value
     */
    static AutomaticLock parse(String text) {
      try {
        return valueOf(text.trim().toUpperCase(Locale.ROOT));
      } catch (IllegalArgumentException e) {
        throw new IllegalStateException("spark.sluice.lock=" + text + ": must be commit, write or none", e);
      }
    }
  }

  /**
   * Installs the guard of a Python process. It decides on the commits of the threads that are bound to it.
   *
   * @param name name of the guard
   * @param path path of the process's Unix socket
   * @param timeoutMillis milliseconds to wait for an answer; no answer is a refusal
   * @throws IOException the process cannot be reached
   */
  public static void install(String name, String path, long timeoutMillis) throws IOException {
    install(name, new PythonGuard(path, timeoutMillis, null));
  }

  /** Installs the guard of the driver's agent, see {@link #install(String, String, long)} and {@link #setAutomaticLock}. */
  static void installAgent(String name, String path, long timeoutMillis, AutomaticLock lock, Process agent)
      throws IOException {
    PythonGuard guard = new PythonGuard(path, timeoutMillis, agent);
    guard.automaticLock = lock;
    install(name, guard);
    advice = ADVICE;
  }

  private static void install(String name, PythonGuard guard) throws IOException {
    guard.connect();
    ActiveTransaction.track();
    GUARDS.put(name, guard);
  }

  /** Removes a guard, if it is there. */
  static void remove(String name) {
    if (name != null) {
      GUARDS.remove(name);
    }
    advice = ADVICE;
  }

  /** Sets what a user can do about commits that are refused because there is no guard. */
  static void setAdvice(String text) {
    advice = text;
  }

  /**
   * Sets when a guard opens automatic tickets, for threads that have neither a block nor a ticket.
   *
   * @param lock {@code none}, {@code commit} or {@code write}
   */
  public static void setAutomaticLock(String name, String lock) {
    GUARDS.get(name).automaticLock = AutomaticLock.parse(lock);
  }

  /** Binds this thread to blocks in a JVM without Spark; null unbinds it. */
  public static void bind(String blocks) {
    BLOCKS_WITHOUT_SPARK.set(blocks);
  }

  /**
   * Asks the guard for permission for a commit.
   *
   * @param ticket name of the commit's ticket, or null
   * @param group what the commit requires of members, see {@link LightTransaction#terms}; null for no group commit
   * @throws CommitRefusedException the guard refuses or does not answer, and the mode is {@code required}
   * @throws InterruptedIOException the thread was interrupted, for example because its stream is stopped
   */
  static Permission ask(String ticket, VersionFile file, CommitBody body, ObjectNode group)
      throws CommitRefusedException, InterruptedIOException {
    Mode mode = mode();
    if (mode == Mode.OFF) {
      return new Permission(List.of(), CommitBody.JSON.createObjectNode(), List.of(), MissingNode.getInstance());
    }
    try {
      return requestPermission(ticket, file, body, group, mode);
    } catch (CommitRefusedException refusal) {
      return observe(file, refusal);
    }
  }

  /**
   * Checks the table's name, which names its lock.
   *
   * @throws CommitRefusedException the name is the address of a name node that belongs to a name service, and the mode
   *     is {@code required}
   */
  static void requireName(VersionFile file, Configuration conf) throws CommitRefusedException {
    String refusal = mode() == Mode.OFF ? null : NameServices.refusal(file.table(), conf);
    if (refusal != null) {
      observe(file, new CommitRefusedException("TableError", refusal));
    }
  }

  /** Returns the permission for a commit that is refused in {@code required} mode; throws the refusal in that mode. */
  static Permission observe(VersionFile file, CommitRefusedException refusal) throws CommitRefusedException {
    if (mode() != Mode.OBSERVE) {
      throw refusal;
    }
    LOG.warn("version {} of {} is committed, but would be refused in required mode: {}",
        file.version(), file.table(), refusal.getMessage());
    ObjectNode stamp = CommitBody.JSON.createObjectNode();
    stamp.put("observed", refusal.errorName());
    return new Permission(List.of(), stamp, List.of(), MissingNode.getInstance());
  }

  /** Returns the id of the operation attempt that this thread executes; null if it executes none. */
  static String writeId() {
    return localProperty(WRITE);
  }

  /** Returns the ticket of this thread's write; null if the write holds its lock already, or has no lock. */
  static String ticket() {
    return localProperty(TICKET);
  }

  /**
   * Returns the automatic ticket of a commit; null if its thread is bound to a block or a ticket, or if no guard of this
   * driver opens tickets.
   */
  static AutomaticTicket automaticTicket(VersionFile file, CommitBody body) throws CommitRefusedException {
    Mode mode = mode();
    String guardName = mode == Mode.OFF ? null : automaticGuard(EnumSet.of(AutomaticLock.COMMIT, AutomaticLock.WRITE));
    if (guardName == null) {
      return null;
    }
    if (hasCommitLock()) {
      if (mode == Mode.OBSERVE) {
        return null;
      }
      throw new CommitRefusedException("LockNotHeldError", "a commit to " + file.table() + " was refused: with "
          + COMMIT_LOCK + "=true it would block all readers of this driver while it waits: remove that setting");
    }
    return AutomaticTicket.of(guardName, file, body);
  }

  /** Returns the guard that locks a transaction of this thread when it begins; null if there is none. */
  static String guardOfWrites() {
    return isRequired() ? automaticGuard(EnumSet.of(AutomaticLock.WRITE)) : null;
  }

  /**
   * Returns the first guard of this thread that opens automatic tickets at one of these times; null if there is none, or
   * if the thread is bound to a block or a ticket. The threads of a Python process use its guard or the driver's agent,
   * but not the guard of another Python process.
   */
  private static String automaticGuard(Set<AutomaticLock> locks) {
    if (context() == null || isBound()) {
      return null;
    }
    String boundGuard = localProperty(NAME);
    return guards(boundGuard).stream()
        .filter(entry -> locks.contains(entry.getValue().automaticLock))
        .filter(entry -> boundGuard == null || entry.getKey().equals(boundGuard) || entry.getValue().isAgent())
        .map(Map.Entry::getKey).findFirst().orElse(null);
  }

  private static boolean isRequired() {
    try {
      return mode() == Mode.REQUIRED;
    } catch (CommitRefusedException e) {
      // The commit will be refused for the same reason.
      return false;
    }
  }

  /**
   * Acquires the lock of a ticket whose transaction has not begun.
   *
   * @throws CommitRefusedException the lock was not acquired
   * @throws InterruptedIOException the thread was interrupted
   */
  static void acquire(AutomaticTicket ticket, VersionFile file) throws CommitRefusedException, InterruptedIOException {
    // Python stores a refusal by the id of the attempt.
    ObjectNode request = request("lock", file, ticket.name());
    request.put("ticket", ticket.name());
    request.put("automatic", true);
    while (!send(request, file, ticket.name()).path("turn").asBoolean(false)) {
      // Python has waited for some time.
    }
  }

  /**
   * Turns off, in this thread's session, two features that do not suit commits that wait, unless the user has set them:
   * Delta's own lock, which would block all readers of the driver, and auto-compaction.
   */
  static void prepareSession() {
    Option<SparkSession> session = opensTickets() ? SparkSession$.MODULE$.getActiveSession() : Option.empty();
    if (session.isDefined()) {
      for (String setting : new String[] {COMMIT_LOCK, AUTO_COMPACT}) {
        if (session.get().conf().getOption(setting).isEmpty()) {
          session.get().conf().set(setting, "false");
        }
      }
    }
  }

  private static boolean hasCommitLock() {
    Option<String> setting = SparkSession.active().conf().getOption(COMMIT_LOCK);
    return setting.isDefined() && setting.get().trim().equalsIgnoreCase("true");
  }

  /** Returns whether the guard may allow a commit of this thread. Required mode needs a block or a ticket. */
  static boolean mayAllow() throws CommitRefusedException {
    return isQueued() || blocks() != null || mode() != Mode.REQUIRED;
  }

  /** Returns whether commits of this thread of a Spark driver are ordered by a lock. */
  static boolean isQueued() {
    return isBound() || (context() != null && opensTickets());
  }

  /** Returns whether this thread of a Spark driver is bound to a block or a ticket. */
  static boolean isBound() {
    return context() != null && (blocks() != null || ticket() != null);
  }

  private static boolean opensTickets() {
    synchronized (GUARDS) {
      return GUARDS.values().stream().anyMatch(guard -> guard.automaticLock != AutomaticLock.NONE);
    }
  }

  /**
   * Returns the properties of a commit with a ticket: those of {@link CommitBody#stagedProperties}, and {@code read},
   * the version that its transaction has read (null if it is not known).
   */
  static ObjectNode describe(CommitBody body, ReadVersion read) {
    ObjectNode staged = body.stagedProperties();
    staged.set("read", read == null ? null : read.toJson());
    return staged;
  }

  /**
   * Reports that the commit of a ticket waits, and returns whether the ticket has its lock by now. Python waits for
   * some time before it returns false.
   *
   * @param staged see {@link #describe}
   * @throws GroupCommittedException a holder has committed it
   * @throws CommitRefusedException this commit cannot get the lock
   * @throws InterruptedIOException the thread was interrupted
   */
  static boolean hasTurn(String ticket, VersionFile file, CommitBody body, ObjectNode staged)
      throws CommitRefusedException, InterruptedIOException {
    ObjectNode request = request("turn", file, body);
    request.put("ticket", ticket);
    request.set("staged", staged);
    request.put("automatic", AutomaticTicket.current() != null);
    request.put("observe", mode() == Mode.OBSERVE);
    JsonNode answer = send(request, file, body.attempt);
    if (answer.hasNonNull("committed")) {
      throw new GroupCommittedException(file, answer.get("committed").asLong());
    }
    return answer.path("turn").asBoolean(false);
  }

  /**
   * Reports the outcome of a put to Python. Then Python may release the lock of the ticket.
   *
   * @param keepsLock whether an automatic ticket keeps its lock for hooks
   * @return whether Python has received the report; otherwise it reads the outcome when the write ends
   */
  static boolean reportOutcome(
      String ticket, VersionFile file, CommitBody body, Attempts.Attempt attempt, boolean keepsLock) {
    ObjectNode request = request("outcome", file, body);
    request.put("ticket", ticket);
    attempt.addOutcome(request);
    request.set("metrics", body.metrics);
    request.put("keeps_lock", keepsLock);
    try {
      send(request, file, body.attempt);
      return true;
    } catch (IOException e) {
      LOG.warn("the outcome of version {} of {} was not reported to Python, which reads it when the write ends: {}",
          file.version(), file.table(), e.toString());
      return false;
    }
  }

  /** Reports that a version of another writer contains the commit of a ticket. */
  static void reportMember(String ticket, VersionFile file, JsonNode metrics) {
    ObjectNode request = request("outcome", file, "").put("ticket", ticket);
    request.put("outcome", Attempts.name(Attempts.Outcome.COMMITTED)).set("metrics", metrics);
    try {
      send(request, file, "");
    } catch (IOException e) {
      LOG.warn("Python was not told that version {} of {} contains an append, and looks itself", file.version(),
          file.table(), e);
    }
  }

  /** Makes Python end an automatic ticket, whose commits were made under these holds. Does not wait for it. */
  static void end(AutomaticTicket ticket, VersionFile file, List<String> holds) {
    PythonGuard guard = GUARDS.get(ticket.guardName());
    if (guard == null) {
      ticket.forget();
      return;
    }
    ObjectNode request = request("end", file, "").put("ticket", ticket.name());
    ArrayNode puts = request.putArray("puts");
    holds.forEach(hold -> Attempts.addTo(puts, hold));
    CALLS.execute(() -> {
      try {
        guard.send(request.toString());
        holds.forEach(Attempts::forget);
        ticket.forget();
      } catch (ConnectException e) {
        // The process has ended, and its holds are lost.
        ticket.forget();
      } catch (IOException e) {
        LOG.info("a ticket on {} was not ended; the request is sent again", file.table(), e);
        ticket.endLater();
      }
    });
  }

  private static ObjectNode request(String kind, VersionFile file, CommitBody body) {
    return request(kind, file, body.attempt);
  }

  private static ObjectNode request(String kind, VersionFile file, String attempt) {
    ObjectNode request = CommitBody.JSON.createObjectNode();
    request.put("kind", kind);
    request.put("table", file.table());
    request.put("version", file.version());
    request.put("attempt", attempt);
    return request;
  }

  /** Sends a request to Python and returns the answer. A refusal becomes an exception. */
  private static JsonNode send(ObjectNode request, VersionFile file, String attempt)
      throws CommitRefusedException, InterruptedIOException {
    JsonNode answer = askPython(request.toString(), file);
    if (answer.hasNonNull("refused")) {
      throw new CommitRefusedException(answer.get("refused").asText(), attempt, answer.path("message").asText());
    }
    return answer;
  }

  private static Permission requestPermission(
      String ticket, VersionFile file, CommitBody body, ObjectNode group, Mode mode)
      throws CommitRefusedException, InterruptedIOException {
    ObjectNode request = request("commit", file, body);
    request.put("txn", body.txn);
    request.put("operation", body.operation);
    request.put("metadata", body.hasMetadata);
    String blocks = blocks();
    request.put("blocks", blocks);
    request.put("ticket", ticket);
    String write = writeId();
    if (write != null) {
      request.put("write", write);
      request.put("retention_ms", ReadVersion.retentionMillis(file));
    }
    if (locksPartitions(blocks) || locksPartitions(ticket)) {
      request.set("footprint", body.footprint());
    }
    if (group != null) {
      request.set("group", group);
    }
    request.put("observe", mode == Mode.OBSERVE);
    JsonNode answer = send(request, file, body.attempt);
    List<String> holds = new ArrayList<>();
    answer.path("holds").forEach(hold -> holds.add(hold.asText()));
    if (holds.isEmpty() || !answer.path("stamp").isObject()) {
      throw new CommitRefusedException("LockLostError", "the commit guard gave an answer without holds or stamp; use the "
          + "log store's jar and the Python package of one release");
    }
    List<JsonNode> members = new ArrayList<>();
    answer.path("members").forEach(members::add);
    return new Permission(holds, (ObjectNode) answer.get("stamp"), members, answer.path("restoration"));
  }

  private static boolean locksPartitions(String names) {
    return names != null && names.indexOf(PARTITIONS_MARK) >= 0;
  }

  private static JsonNode askPython(String request, VersionFile file)
      throws CommitRefusedException, InterruptedIOException {
    AutomaticTicket automatic = AutomaticTicket.current();
    String boundGuard = automatic == null ? localProperty(NAME) : automatic.guardName();
    boolean isHeld = automatic != null || blocks() != null || ticket() != null;
    for (Map.Entry<String, PythonGuard> entry : guards(boundGuard)) {
      PythonGuard guard = entry.getValue();
      if (automatic != null && !entry.getKey().equals(boundGuard)) {
        throw lostLock(file);
      }
      Future<String> call = CALLS.submit(() -> guard.send(request));
      String problem;
      try {
        return CommitBody.JSON.readTree(call.get(guard.timeoutMillis, TimeUnit.MILLISECONDS));
      } catch (TimeoutException e) {
        problem = "did not answer for " + guard.timeoutMillis / 1000 + " s";
        if (guard.isAgent()) {
          GUARDS.remove(entry.getKey(), guard);
          guard.abandon();
        }
      } catch (ExecutionException e) {
        if (e.getCause() instanceof ConnectException) {
          // The Python process has ended, and its holds are lost. Or its socket was removed.
          GUARDS.remove(entry.getKey(), guard);
          guard.abandon();
          if (entry.getKey().equals(boundGuard) && isHeld) {
            throw lostLock(file);
          }
          continue;
        }
        problem = "failed: " + e.getCause();
      } catch (IOException e) {
        problem = "gave an answer that is not JSON";
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
        throw new InterruptedIOException("interrupted before version " + file.version() + " of " + file.table()
            + " was put: nothing is committed");
      } finally {
        call.cancel(true);
      }
      throw new CommitRefusedException("LockLostError",
          "the commit guard of version " + file.version() + " of " + file.table() + " " + problem);
    }
    throw new CommitRefusedException("GuardMissingError",
        "this driver has no commit guard to ask whether the lock on " + file.table() + " is held (" + MODE + "=required): "
            + advice);
  }

  private static CommitRefusedException lostLock(VersionFile file) {
    return new CommitRefusedException("LockLostError", "the Python process that held the lock on " + file.table()
        + " for this thread has ended");
  }

  /** Returns the guard to which this thread is bound, and then the other guards, the newest first. */
  private static List<Map.Entry<String, PythonGuard>> guards(String boundGuard) {
    List<Map.Entry<String, PythonGuard>> entries;
    synchronized (GUARDS) {
      entries = new ArrayList<>(GUARDS.entrySet());
    }
    Collections.reverse(entries);
    entries.sort(Comparator.comparing(entry -> !entry.getKey().equals(boundGuard)));
    return entries;
  }

  /** Calls a function while this thread is bound to a block of a guard. */
  static void runBound(String guardName, String block, Runnable work) {
    SparkContext context = context();
    String outerGuard = context.getLocalProperty(NAME);
    context.setLocalProperty(NAME, guardName);
    context.setLocalProperty(BLOCKS, block);
    try {
      work.run();
    } finally {
      context.setLocalProperty(BLOCKS, null);
      context.setLocalProperty(NAME, outerGuard);
    }
  }

  private static String blocks() {
    SparkContext context = context();
    return context == null ? BLOCKS_WITHOUT_SPARK.get() : context.getLocalProperty(BLOCKS);
  }

  private static String localProperty(String name) {
    SparkContext context = context();
    return context == null ? null : context.getLocalProperty(name);
  }

  /**
   * Ends the operation attempt of this thread after its commit. A later commit of the thread, for example by one of
   * Delta's hooks, does not belong to the attempt.
   */
  static void endAttempt() {
    if (writeId() != null) {
      context().setLocalProperty(WRITE, null);
    }
  }

  private static Mode mode() throws CommitRefusedException {
    SparkContext context = context();
    String name = context == null ? System.getProperty(MODE, "required") : context.conf().get(MODE, "required");
    try {
      return Mode.valueOf(name.trim().toUpperCase(Locale.ROOT));
    } catch (IllegalArgumentException e) {
      throw new CommitRefusedException("GuardMissingError", MODE + " is '" + name + "': choose required, observe or off");
    }
  }

  private static SparkContext context() {
    try {
      Option<SparkContext> active = SparkContext$.MODULE$.getActive();
      return active.isDefined() ? active.get() : null;
    } catch (NoClassDefFoundError e) {
      return null;
    }
  }
}
