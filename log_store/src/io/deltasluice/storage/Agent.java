package io.deltasluice.storage;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Tuple2;

/**
 * The agent of a driver: a Python process ({@code lock_manager/agent.py}) that requests locks for the driver's commits.
 *
 * <p>It ends with the driver, because its standard input ends. If it ends before, or does not answer, it is started
 * again, at most {@link #MAX_RESTARTS} times within an hour. Until then commits are refused.
 */
public final class Agent {
  private static final Logger LOG = LoggerFactory.getLogger(Agent.class);
  private static final String LOG_STORE_SETTING = "spark.delta.logStore.class";
  private static final String PREFIX = "spark.sluice.";
  private static final int MAX_RESTARTS = 10;
  private static final long START_SECONDS = 60;
  private static final long STOP_SECONDS = 15;

  /** Seconds after which a start that failed is repeated. */
  private static final long RETRY_SECONDS = 10;

  private final SparkContext context;
  private final Guard.AutomaticLock lock;
  private final ScheduledExecutorService threads = Executors.newScheduledThreadPool(2, work -> {
    Thread thread = new Thread(work, "sluice-agent");
    thread.setDaemon(true);
    return thread;
  });

  /** When the restarts of the last hour took place ({@link System#nanoTime}). */
  private final Deque<Long> restarts = new ArrayDeque<>();

  private volatile Process process;

  /** Name of its guard. */
  private volatile String name;

  private volatile boolean isStopped;

  private Agent(SparkContext context, Guard.AutomaticLock lock) {
    this.context = context;
    this.lock = lock;
  }

  /**
   * Starts the agent of a driver, and sets what its commits need: the guarded log store.
   *
   * @throws IllegalStateException a setting is not valid, the settings name another log store, or the agent does not
   *     start
   */
  public static Agent start(SparkContext context) {
    SparkConf conf = context.conf();
    for (Tuple2<String, String> setting : conf.getAllWithPrefix("spark.delta.logStore.")) {
      if (!setting._2().equals(GuardedLogStore.class.getName())) {
        throw new IllegalStateException("spark.delta.logStore." + setting._1() + "=" + setting._2()
            + ": remove this setting, because commits have to go through " + GuardedLogStore.class.getName());
      }
      // Delta refuses a log store for all schemes beside one for a single scheme.
      conf.remove("spark.delta.logStore." + setting._1());
    }
    conf.set(LOG_STORE_SETTING, GuardedLogStore.class.getName());
    List<String> otherStores = KernelLogStores.guard(context.hadoopConfiguration());
    if (!otherStores.isEmpty()) {
      throw new IllegalStateException("Delta Kernel bypasses the guarded log store because of "
          + String.join(", ", otherStores) + ": remove these settings");
    }
    Agent agent = new Agent(context, Guard.AutomaticLock.parse(conf.get(PREFIX + "lock", "commit")));
    try {
      agent.startProcess();
    } catch (IOException e) {
      throw new IllegalStateException("Sluice's agent did not start: " + e.getMessage(), e);
    }
    return agent;
  }

  /** Ends the agent, and releases its locks. */
  public void stop() {
    isStopped = true;
    threads.shutdownNow();
    Guard.remove(name);
    Process running = process;
    try {
      running.getOutputStream().close();
      if (!running.waitFor(STOP_SECONDS, TimeUnit.SECONDS)) {
        running.destroyForcibly();
      }
    } catch (IOException e) {
      running.destroyForcibly();
    } catch (InterruptedException e) {
      running.destroyForcibly();
      Thread.currentThread().interrupt();
    }
  }

  private void startProcess() throws IOException {
    SparkConf conf = context.conf();
    String python = conf.get(PREFIX + "python", "python3");
    ProcessBuilder builder = new ProcessBuilder(python, "-P", "-m", "lock_manager.agent");
    builder.redirectError(ProcessBuilder.Redirect.INHERIT);
    String path = conf.get(PREFIX + "pythonPath", "");
    if (!path.isEmpty()) {
      builder.environment().merge("PYTHONPATH", path, (old, added) -> added + File.pathSeparator + old);
    }
    Process started = builder.start();
    process = started;
    try {
      JsonNode answer = introduce(started, python);
      Guard.remove(name);
      name = answer.path("name").asText();
      Guard.installAgent(name, answer.path("path").asText(), answer.path("timeout_ms").asLong(), lock, started);
    } catch (IOException | RuntimeException e) {
      started.destroyForcibly();
      throw e;
    }
    if (isStopped) {
      Guard.remove(name);
      started.destroyForcibly();
    }
    started.onExit().thenAccept(ended -> {
      try {
        threads.execute(() -> restart(ended.exitValue()));
      } catch (RejectedExecutionException e) {
        LOG.debug("the agent has ended with its driver");
      }
    });
  }

  /** Tells the agent which driver it serves, and returns its answer. An agent that does not answer is killed. */
  private JsonNode introduce(Process started, String python) throws IOException {
    ObjectNode driver = CommitBody.JSON.createObjectNode();
    ObjectNode settings = driver.putObject("conf");
    for (Tuple2<String, String> setting : context.conf().getAllWithPrefix(PREFIX)) {
      settings.put(PREFIX + setting._1(), setting._2());
    }
    driver.set("releases", DriverReleases.asJson());
    driver.put("app_id", context.applicationId());
    driver.put("app_name", context.appName());
    Future<?> watchdog = threads.schedule(started::destroyForcibly, START_SECONDS, TimeUnit.SECONDS);
    String line;
    try {
      started.getOutputStream().write((driver + "\n").getBytes(StandardCharsets.UTF_8));
      started.getOutputStream().flush();
      line = new BufferedReader(new InputStreamReader(started.getInputStream(), StandardCharsets.UTF_8)).readLine();
    } catch (IOException e) {
      LOG.debug("the agent has ended", e);
      line = null;
    } finally {
      watchdog.cancel(false);
    }
    if (line == null) {
      throw new IOException(python + " -m lock_manager.agent ended, or gave no answer within " + START_SECONDS
          + " s: set spark.sluice.python to an interpreter with the package delta-sluice, or spark.sluice.pythonPath to "
          + "Sluice's zip");
    }
    JsonNode answer = CommitBody.JSON.readTree(line);
    if (answer.hasNonNull("error")) {
      throw new IOException(answer.get("error").asText());
    }
    return answer;
  }

  /** Starts the agent again after it has ended, with a new session and without the locks that it had. */
  private void restart(int exitCode) {
    long now = System.nanoTime();
    restarts.removeIf(time -> now - time > TimeUnit.HOURS.toNanos(1));
    if (restarts.size() >= MAX_RESTARTS) {
      long wait = TimeUnit.HOURS.toNanos(1) - (now - restarts.getFirst());
      Guard.setAdvice("Sluice's agent has ended " + (MAX_RESTARTS + 1) + " times within an hour, and is started again in "
          + TimeUnit.NANOSECONDS.toMinutes(wait) + " minutes: restart the driver to go on now");
      threads.schedule(() -> restart(exitCode), wait + 1, TimeUnit.NANOSECONDS);
      return;
    }
    restarts.add(now);
    LOG.warn("Sluice's agent has ended with {}, and is started again", exitCode);
    Guard.setAdvice("Sluice's agent has ended and is started again: run the statement again");
    startAgain();
  }

  private void startAgain() {
    try {
      startProcess();
    } catch (IOException | RuntimeException e) {
      if (!isStopped) {
        LOG.warn("Sluice's agent did not start; the next try is in {} s: {}", RETRY_SECONDS, e.getMessage());
        threads.schedule(this::startAgain, RETRY_SECONDS, TimeUnit.SECONDS);
      }
    }
  }
}
