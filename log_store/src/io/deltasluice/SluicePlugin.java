package io.deltasluice;

import io.deltasluice.storage.Agent;
import io.deltasluice.storage.Guard;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.api.plugin.SparkPlugin;

/**
 * Makes every commit of a Spark driver wait for the lock on its table, without any Python code in the program.
 *
 * <p>Set {@code spark.plugins} to this class, and {@code spark.sluice.zookeeper} to the ensemble. The plugin starts an
 * agent (a Python process) beside the driver, and sets the guarded log store.
 */
public final class SluicePlugin implements SparkPlugin {
  @Override
  public DriverPlugin driverPlugin() {
    return new DriverPlugin() {
      private Agent agent;

      @Override
      public Map<String, String> init(SparkContext context, PluginContext plugin) {
        if (!context.conf().get(Guard.MODE, "").trim().equalsIgnoreCase("off")) {
          agent = Agent.start(context);
        }
        return Map.of();
      }

      @Override
      public void shutdown() {
        if (agent != null) {
          agent.stop();
        }
      }
    };
  }

  @Override
  public ExecutorPlugin executorPlugin() {
    return null;
  }
}
