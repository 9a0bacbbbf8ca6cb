package io.deltasluice.storage;

import io.delta.kernel.Table;
import io.delta.kernel.defaults.engine.DefaultEngine;
import io.delta.kernel.engine.Engine;
import io.delta.kernel.exceptions.CheckpointAlreadyExistsException;
import java.io.IOException;
import org.apache.spark.sql.delta.DeltaLog;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Checkpoints that Delta Kernel writes, in one thread and without a Spark job; apart, for a JVM may be without Kernel. */
final class KernelCheckpoint {
  private static final Logger LOG = LoggerFactory.getLogger(KernelCheckpoint.class);

  private KernelCheckpoint() {}

  /** Writes the checkpoint of a version, if it has none. */
  static void write(DeltaLog log, long version) throws IOException {
    Engine engine = DefaultEngine.create(log.newDeltaHadoopConf());
    try {
      Table.forPath(engine, log.dataPath().toString()).checkpoint(engine, version);
    } catch (CheckpointAlreadyExistsException e) {
      LOG.debug("version {} of {} has a checkpoint", version, log.dataPath());
    }
  }
}
