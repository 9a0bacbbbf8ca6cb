package io.deltasluice.storage;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Tuple2;

/**
 * The agent of a driver: a Python process ({@code lock_manager/agent.py}) that requests locks for the driver's commits.
 *
 * <p>It ends with the driver, because its standard input ends. If it ends before, it is started again, at most
 * {@link #MAX_RESTARTS} times within an hour. Until then commits are refused.
 */
public final class Agent {
  private static final Logger LOG = LoggerFactory.getLogger(Agent.class);
  private static final String LOG_STORE_SETTING = "spark.delta.logStore.class";
  private static final String PREFIX = "spark.sluice.";
  private static final int MAX_RESTARTS = 10;
  private static final long START_SECONDS = 60;
  private static final long STOP_SECONDS = 15;

  private final SparkContext context;
  private Process process;
  private long startedAt;

  /** Name of its guard. */
  private String name;

  private int restarts;
  private boolean isStopped;

  private Agent(SparkContext context) {
    this.context = context;
  }

  /**
   * Starts the agent of a driver, and sets what its commits need: the guarded log store.
   *
   * @throws IllegalStateException the settings name another log store, or the agent does not start
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
    Agent agent = new Agent(context);
    try {
      agent.startProcess();
    } catch (IOException e) {
      throw new IllegalStateException("Sluice's agent did not start: " + e.getMessage(), e);
    }
    return agent;
  }

  /** Ends the agent, and releases its locks. */
  public void stop() {
    Process running;
    synchronized (this) {
      isStopped = true;
      running = process;
    }
    Guard.remove(name);
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

  private synchronized void startProcess() throws IOException {
    if (isStopped) {
      return;
    }
    SparkConf conf = context.conf();
    String python = conf.get(PREFIX + "python", "python3");
    String lock = conf.get(PREFIX + "lock", "commit");
    ProcessBuilder builder = new ProcessBuilder(python, "-P", "-m", "lock_manager.agent");
    builder.redirectError(ProcessBuilder.Redirect.INHERIT);
    String path = conf.get(PREFIX + "pythonPath", "");
    if (!path.isEmpty()) {
      builder.environment().merge("PYTHONPATH", path, (old, added) -> added + File.pathSeparator + old);
    }
    startedAt = System.nanoTime();
    process = builder.start();
    ObjectNode driver = CommitBody.JSON.createObjectNode();
    ObjectNode settings = driver.putObject("conf");
    for (Tuple2<String, String> setting : conf.getAllWithPrefix(PREFIX)) {
      settings.put(PREFIX + setting._1(), setting._2());
    }
    driver.set("releases", DriverReleases.asJson());
    driver.put("app_id", context.applicationId());
    driver.put("app_name", context.appName());
    JsonNode answer;
    try {
      introduce(driver);
      answer = CommitBody.JSON.readTree(readLine(python));
      if (answer.hasNonNull("error")) {
        throw new IOException(answer.get("error").asText());
      }
      name = answer.path("name").asText();
      Guard.installAgent(name, answer.path("path").asText(), answer.path("timeout_ms").asLong(), lock);
    } catch (IOException e) {
      process.destroyForcibly();
      throw e;
    }
    process.onExit().thenAccept(ended -> restart(ended.exitValue()));
  }

  private void introduce(ObjectNode driver) {
    try {
      process.getOutputStream().write((driver + "\n").getBytes(StandardCharsets.UTF_8));
      process.getOutputStream().flush();
    } catch (IOException e) {
      LOG.debug("the agent has ended, and gives no answer", e);
    }
  }

  private String readLine(String python) throws IOException {
    BufferedReader reader = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
    CompletableFuture<String> line = CompletableFuture.supplyAsync(() -> {
      try {
        return reader.readLine();
      } catch (IOException e) {
        return null;
      }
    });
    String problem = python + " -m lock_manager.agent ended without an answer: set spark.sluice.python to an interpreter "
        + "with the package delta-sluice, or spark.sluice.pythonPath to Sluice's zip";
    try {
      String answer = line.get(START_SECONDS, TimeUnit.SECONDS);
      if (answer == null) {
        throw new IOException(problem);
      }
      return answer;
    } catch (TimeoutException e) {
      throw new IOException(python + " -m lock_manager.agent did not answer for " + START_SECONDS + " s", e);
    } catch (ExecutionException e) {
      throw new IOException(problem, e);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new IOException("interrupted while the agent started", e);
    }
  }

  /** Starts the agent again after it has ended, with a new session and without the locks that it had. */
  private void restart(int exitCode) {
    for (boolean isRunning = false; !isRunning; ) {
      synchronized (this) {
        if (isStopped) {
          return;
        }
        if (System.nanoTime() - startedAt > TimeUnit.HOURS.toNanos(1)) {
          restarts = 0;
        }
        if (restarts++ >= MAX_RESTARTS) {
          Guard.setAdvice("Sluice's agent has ended " + restarts + " times within an hour: restart the driver");
          return;
        }
      }
      LOG.warn("Sluice's agent has ended with {}, and is started again", exitCode);
      Guard.setAdvice("Sluice's agent has ended and is started again: run the statement again");
      try {
        startProcess();
        isRunning = true;
      } catch (IOException e) {
        LOG.warn("Sluice's agent did not start: {}", e.getMessage());
        try {
          TimeUnit.SECONDS.sleep(restarts);
        } catch (InterruptedException interrupt) {
          Thread.currentThread().interrupt();
          return;
        }
      }
    }
  }
}
