package io.deltasluice.storage;

import java.lang.reflect.Field;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Removes the names of the files from which a driver's Hadoop settings were read.
 *
 * <p>Spark serializes the settings for each task of a write, and checks before that that they can be serialized.
 * Hadoop's {@code Configuration} compresses the names of each of the more than 1,000 settings separately. That takes a
 * fifth of the processor time of a small append. Only messages about a setting's origin contain the names.
 */
final class PropertySources {
  private static final Logger LOG = LoggerFactory.getLogger(PropertySources.class);

  private static final Field SOURCES = field();

  private PropertySources() {}

  private static Field field() {
    try {
      Field field = Configuration.class.getDeclaredField("updatingResource");
      field.setAccessible(true);
      return field;
    } catch (ReflectiveOperationException | RuntimeException e) {
      LOG.debug("this release of Hadoop has another field", e);
      return null;
    }
  }

  /** Removes the names from a configuration. Copies of it have none either. */
  static void remove(Configuration conf) {
    try {
      if (SOURCES != null && SOURCES.get(conf) instanceof Map<?, ?> sources) {
        sources.clear();
      }
    } catch (ReflectiveOperationException e) {
      throw new IllegalStateException(e);
    }
  }
}
