package io.deltasluice.storage;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.ConnectException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkContext$;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;

/** Asks Python, at every commit, whether the hold to which it belongs still stands. */
public final class Guard {
  /**
   * Local property of Spark's threads: ids of the blocks to which the thread is bound, with commas, the innermost last; one
   * that locks partitions only ends with {@code *}.
   */
  public static final String BLOCKS = "spark.sluice.block";

  /** Local property of Spark's threads: id of the operation attempt that the thread executes. */
  public static final String WRITE = "spark.sluice.write";

  /** Local property of Spark's threads: name of the guard that knows these holds. */
  public static final String NAME = "spark.sluice.guard.name";

  /**
   * Local property of Spark's threads: name of the ticket of a write that is yet to get its lock, when it commits; it
   * ends with {@code *} if the lock is of partitions only.
   */
  public static final String TICKET = "spark.sluice.ticket";

  /** Table properties about which Python is told. */
  private static final String OWN_PROPERTIES = "sluice.";

  private static final char OF_PARTITIONS = '*';

  /** Setting of the driver: {@code required} (the default), {@code observe} or {@code off}. */
  public static final String MODE = "spark.sluice.guard";

  /** In a JVM without Spark: what {@link #BLOCKS} is with it. */
  private static final InheritableThreadLocal<String> BOUND = new InheritableThreadLocal<>();

  private static final Logger LOG = LoggerFactory.getLogger(Guard.class);
  // Not the committing thread: its wait has an end, and Spark may interrupt it.
  private static final ExecutorService CALLS = Executors.newCachedThreadPool(work -> {
    Thread thread = new Thread(work, "sluice-guard");
    thread.setDaemon(true);
    return thread;
  });

  /** By name, the newest last. Several Python processes may use one JVM, and each knows its own holds only. */
  private static final Map<String, PythonGuard> GUARDS = Collections.synchronizedMap(new LinkedHashMap<>());

  private Guard() {}

  /** What the guard says of a commit. */
  record Verdict(List<String> holds, ObjectNode stamp) {}

  enum Mode { REQUIRED, OBSERVE, OFF }

  /**
   * Has a Python process decide on the commits of the threads that are bound to it, from now on.
   *
   * @param name of its guard
   * @param port on 127.0.0.1 where it listens
   * @param questionKey by which it knows this JVM
   * @param answerKey by which this JVM knows it
   * @param timeoutMillis to wait for its answer; no answer is a refusal
   * @throws IOException it cannot be reached
   */
  public static void install(String name, int port, String questionKey, String answerKey, long timeoutMillis)
      throws IOException {
    PythonGuard guard = new PythonGuard(port, questionKey, answerKey, timeoutMillis);
    guard.greet();
    GUARDS.put(name, guard);
  }

  /** Binds this thread to blocks, in a JVM without Spark; null unbinds it. */
  public static void bind(String blocks) {
    BOUND.set(blocks);
  }

  /**
   * Returns what the guard says of a commit.
   *
   * @throws CommitRefusedException it refuses, or cannot be asked, and the mode is {@code required}
   * @throws InterruptedIOException the thread was interrupted: a stream that is stopped, for one
   */
  static Verdict ask(VersionFile file, CommitBody body) throws CommitRefusedException, InterruptedIOException {
    Mode mode = mode();
    if (mode == Mode.OFF) {
      return new Verdict(List.of(), CommitBody.JSON.createObjectNode());
    }
    try {
      return required(file, body, mode);
    } catch (CommitRefusedException refusal) {
      if (mode == Mode.REQUIRED) {
        throw refusal;
      }
      LOG.warn("version {} of {} is committed, but would be refused in required mode: {}",
          file.version(), file.table(), refusal.getMessage());
      ObjectNode stamp = CommitBody.JSON.createObjectNode();
      stamp.put("observed", refusal.reason());
      return new Verdict(List.of(), stamp);
    }
  }

  /** Returns the ticket of this thread's write, null if it has none: then its lock is held already, or it has none. */
  static String ticket() {
    SparkContext context = context();
    return context == null ? null : context.getLocalProperty(TICKET);
  }

  /** Returns whether a commit of this thread may be allowed: without a block and a ticket it is refused. */
  static boolean mayAllow() throws CommitRefusedException {
    return blocks() != null || ticket() != null || mode() != Mode.REQUIRED;
  }

  /** Tells whether this thread writes under a lock that it holds, or that its write waits for. */
  static boolean isBound() {
    return context() != null && (blocks() != null || ticket() != null);
  }

  /** Returns what a commit is made of, and what its transaction has read; null if that is not known. */
  static ObjectNode described(CommitBody body, ReadVersion read) {
    ObjectNode staged = body.staged();
    staged.set("read", read == null ? null : read.toJson(OWN_PROPERTIES));
    return staged;
  }

  /**
   * Asks for the lock, in the name of a ticket, and tells whether it is held by now. Python lets some time go by before
   * it says no.
   *
   * @param staged see {@link #described}
   * @throws CommitRefusedException there will be no lock for this commit
   * @throws InterruptedIOException the thread was interrupted
   */
  static boolean hasTurn(String ticket, VersionFile file, CommitBody body, ObjectNode staged)
      throws CommitRefusedException, InterruptedIOException {
    ObjectNode request = request(file, body);
    request.put("ticket", ticket);
    request.set("staged", staged);
    return answer(request, file, body).path("turn").asBoolean(false);
  }

  /**
   * Says what became of a put for which a ticket had the lock: it may be given back.
   *
   * @return whether Python has heard it; if not, it finds out when the write ends
   */
  static boolean tell(String ticket, VersionFile file, CommitBody body, Attempts.Outcome outcome) {
    ObjectNode request = request(file, body);
    request.put("ticket", ticket);
    request.put("outcome", Attempts.name(outcome));
    request.set("metrics", body.metrics);
    try {
      answer(request, file, body);
      return true;
    } catch (IOException e) {
      LOG.warn("what became of version {} of {} could not be told: {}", file.version(), file.table(), e.toString());
      return false;
    }
  }

  private static ObjectNode request(VersionFile file, CommitBody body) {
    ObjectNode request = CommitBody.JSON.createObjectNode();
    request.put("table", file.table());
    request.put("version", file.version());
    request.put("attempt", body.attempt);
    return request;
  }

  private static JsonNode answer(ObjectNode request, VersionFile file, CommitBody body)
      throws CommitRefusedException, InterruptedIOException {
    JsonNode answer = answerOf(request.toString(), file);
    if (answer.hasNonNull("refused")) {
      throw new CommitRefusedException(answer.get("refused").asText(), body.attempt, answer.path("message").asText());
    }
    return answer;
  }

  private static Verdict required(VersionFile file, CommitBody body, Mode mode)
      throws CommitRefusedException, InterruptedIOException {
    ObjectNode request = request(file, body);
    request.put("txn", body.txn);
    request.put("operation", body.operation);
    request.put("metadata", body.hasMetadata);
    String blocks = blocks();
    request.put("blocks", blocks);
    String ticket = ticket();
    request.put("ticket", ticket);
    String write = write();
    if (write != null) {
      request.put("write", write);
      request.put("retention_ms", ReadVersion.retentionMillis(file));
    }
    if (isOfPartitions(blocks) || isOfPartitions(ticket)) {
      request.set("footprint", body.footprint());
    }
    request.put("observe", mode == Mode.OBSERVE);
    JsonNode answer = answer(request, file, body);
    List<String> covering = new ArrayList<>();
    answer.path("holds").forEach(hold -> covering.add(hold.asText()));
    if (covering.isEmpty() || !answer.path("stamp").isObject()) {
      throw new CommitRefusedException("LockLostError", "the commit guard gave an answer that means nothing");
    }
    return new Verdict(covering, (ObjectNode) answer.get("stamp"));
  }

  private static boolean isOfPartitions(String bound) {
    return bound != null && bound.indexOf(OF_PARTITIONS) >= 0;
  }

  private static JsonNode answerOf(String request, VersionFile file)
      throws CommitRefusedException, InterruptedIOException {
    String bound = bound();
    for (Map.Entry<String, PythonGuard> each : guards(bound)) {
      PythonGuard asked = each.getValue();
      Future<String> call = CALLS.submit(() -> asked.check(request));
      String problem;
      try {
        return CommitBody.JSON.readTree(call.get(asked.timeoutMillis(), TimeUnit.MILLISECONDS));
      } catch (TimeoutException e) {
        problem = "did not answer for " + asked.timeoutMillis() / 1000 + " s";
      } catch (ExecutionException e) {
        if (e.getCause() instanceof ConnectException) {
          // That Python has ended, and its holds are gone.
          GUARDS.remove(each.getKey(), asked);
          if (each.getKey().equals(bound) && (blocks() != null || ticket() != null)) {
            throw new CommitRefusedException("LockLostError", "the Python process that held the lock on " + file.table()
                + " for this thread has ended");
          }
          continue;
        }
        problem = "failed: " + e.getCause();
      } catch (IOException e) {
        problem = "gave an answer that is no JSON";
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
        "this driver has no commit guard to ask whether the lock on " + file.table() + " is held: attach(spark) in "
            + "PySpark installs one; a driver without Python cannot write a guarded table (" + MODE + "=required)");
  }

  /** Returns the guard to which this thread is bound, and then the others, the newest first. */
  private static List<Map.Entry<String, PythonGuard>> guards(String bound) {
    List<Map.Entry<String, PythonGuard>> all;
    synchronized (GUARDS) {
      all = new ArrayList<>(GUARDS.entrySet());
    }
    Collections.reverse(all);
    all.sort(Comparator.comparing(each -> !each.getKey().equals(bound)));
    return all;
  }

  private static String bound() {
    SparkContext context = context();
    return context == null ? null : context.getLocalProperty(NAME);
  }

  private static String blocks() {
    SparkContext context = context();
    return context == null ? BOUND.get() : context.getLocalProperty(BLOCKS);
  }

  private static String write() {
    SparkContext context = context();
    return context == null ? null : context.getLocalProperty(WRITE);
  }

  /**
   * Ends the operation attempt of this thread: its commit was made. A later commit of the thread, by a hook of Delta's for
   * one, does not belong to it.
   */
  static void committed() {
    if (write() != null) {
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
