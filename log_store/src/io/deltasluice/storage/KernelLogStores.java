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
 * Sets the log stores of Delta Kernel. With {@code spark.databricks.delta.v2.enableMode=STRICT} Delta commits an INSERT
 * through Kernel, which reads the log store of each scheme from {@code io.delta.kernel.logStore.<scheme>.impl}. If
 * that setting is absent, Kernel uses Delta's own store. Source: {@code LogStoreProvider} of Delta Kernel 4.4.0.
 */
public final class KernelLogStores {
  private static final Logger LOG = LoggerFactory.getLogger(KernelLogStores.class);
  private static final Pattern FILE_SYSTEM = Pattern.compile("fs\\.([a-z][a-z0-9+-]*)\\.impl");

  /** Marks a configuration whose file systems were searched, and have no other log store. The search takes milliseconds. */
  private static final String SEARCHED = "io.deltasluice.kernel.searched";

  private KernelLogStores() {}

  /**
   * Makes Kernel commit through the guarded log store, for every scheme that has a file system in this JVM.
   *
   * @param conf the driver's configuration, which Kernel reads at each commit
   * @return the settings that name another log store, as {@code key=value}; they are not changed
   */
  public static List<String> guard(Configuration conf) {
    List<String> otherStores = new ArrayList<>();
    for (String scheme : schemes(conf)) {
      String key = "io.delta.kernel.logStore." + scheme + ".impl";
      String store = conf.get(key);
      if (store == null) {
        conf.set(key, GuardedLogStore.class.getName());
      } else if (!store.equals(GuardedLogStore.class.getName())) {
        otherStores.add(key + "=" + store);
      }
    }
    // With other stores the next call must search again, to find them again.
    conf.setBoolean(SEARCHED, otherStores.isEmpty());
    return otherStores;
  }

  private static Set<String> schemes(Configuration conf) {
    Set<String> schemes = new TreeSet<>(GuardedLogStore.SCHEMES);
    if (conf.getBoolean(SEARCHED, false)) {
      return schemes;
    }
    for (Map.Entry<String, String> setting : conf) {
      Matcher match = FILE_SYSTEM.matcher(setting.getKey());
      if (match.matches()) {
        schemes.add(match.group(1));
      }
    }
    Iterator<ServiceLoader.Provider<FileSystem>> providers = ServiceLoader.load(FileSystem.class).stream().iterator();
    boolean hasNext = true;
    while (hasNext) {
      try {
        hasNext = providers.hasNext();
        if (hasNext) {
          schemes.add(providers.next().get().getScheme());
        }
      } catch (ServiceConfigurationError | RuntimeException | LinkageError e) {
        // Kernel cannot write to a file system that cannot be loaded or has no scheme.
        LOG.debug("a file system of this JVM is ignored: {}", e.toString());
      }
    }
    return schemes;
  }
}
