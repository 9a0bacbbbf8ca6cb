package io.deltasluice.storage;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.ServiceConfigurationError;
import java.util.ServiceLoader;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Delta Kernel's own log stores. With {@code spark.databricks.delta.v2.enableMode=STRICT} Delta commits an INSERT through
 * its Kernel, which takes the log store of each scheme from {@code io.delta.kernel.logStore.<scheme>.impl}, and Delta's
 * stock store where that is not set. Source: {@code LogStoreProvider} of Delta Kernel 4.4.0.
 */
public final class KernelLogStores {
  private static final Logger LOG = LoggerFactory.getLogger(KernelLogStores.class);
  private static final Pattern FILE_SYSTEM = Pattern.compile("fs\\.([a-z][a-z0-9+-]*)\\.impl");

  /** Noted in a configuration of which the other file systems were looked for: that takes milliseconds. */
  private static final String SEARCHED = "io.deltasluice.kernel.searched";

  private KernelLogStores() {}

  /**
   * Has Kernel commit through the guarded log store, for every scheme of which this JVM has a file system.
   *
   * @param conf the driver's configuration; Kernel reads it at each commit
   * @return the settings that name another log store already, as {@code key=value}; these stay as they are
   */
  public static List<String> guard(Configuration conf) {
    List<String> others = new ArrayList<>();
    for (String scheme : schemes(conf)) {
      String key = "io.delta.kernel.logStore." + scheme + ".impl";
      String given = conf.get(key);
      if (given == null) {
        conf.set(key, GuardedLogStore.class.getName());
      } else if (!given.equals(GuardedLogStore.class.getName())) {
        others.add(key + "=" + given);
      }
    }
    return others;
  }

  private static Set<String> schemes(Configuration conf) {
    Set<String> found = new TreeSet<>(GuardedLogStore.SCHEMES);
    if (conf.getBoolean(SEARCHED, false)) {
      return found;
    }
    conf.setBoolean(SEARCHED, true);
    for (Map.Entry<String, String> each : conf) {
      Matcher match = FILE_SYSTEM.matcher(each.getKey());
      if (match.matches()) {
        found.add(match.group(1));
      }
    }
    Iterator<ServiceLoader.Provider<FileSystem>> loaded = ServiceLoader.load(FileSystem.class).stream().iterator();
    boolean more = true;
    while (more) {
      try {
        more = loaded.hasNext();
        if (more) {
          found.add(loaded.next().get().getScheme());
        }
      } catch (ServiceConfigurationError | RuntimeException | LinkageError e) {
        // A file system that cannot be loaded, or names no scheme, is none that Kernel could write to.
        LOG.debug("a file system of this JVM is passed over: {}", e.toString());
      }
    }
    return found;
  }
}
