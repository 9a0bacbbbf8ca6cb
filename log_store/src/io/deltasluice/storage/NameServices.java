package io.deltasluice.storage;

import java.net.InetSocketAddress;
import java.net.URI;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.DFSUtilClient;
import org.apache.hadoop.hdfs.HAUtilClient;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.net.NetUtils;

/**
 * HDFS with several name nodes has two kinds of names: the name service ({@code hdfs://lake}), and the address of each
 * name node. A table has one lock for each name, so only the name service may be used.
 */
public final class NameServices {
  private static final String HDFS = "hdfs";
  private static final int DEFAULT_PORT = 8020;

  private NameServices() {}

  /**
   * Replaces the address of a name node by its name service, as the driver's configuration has it
   * ({@code dfs.ha.namenodes.SERVICE}, {@code dfs.namenode.rpc-address.SERVICE.NODE}).
   *
   * @return the path below the name service; the same path if it has no such address
   */
  static Path withService(Path path, Supplier<Configuration> configuration) {
    URI uri = path.toUri();
    if (!HDFS.equalsIgnoreCase(uri.getScheme()) || uri.getAuthority() == null) {
      return path;
    }
    // Adds hdfs-site.xml to each configuration.
    HdfsConfiguration.init();
    Configuration conf = configuration.get();
    if (conf.getTrimmedStrings("dfs.nameservices").length == 0 || HAUtilClient.isLogicalUri(conf, uri)) {
      return path;
    }
    InetSocketAddress address;
    Map<String, Map<String, InetSocketAddress>> services;
    try {
      address = NetUtils.createSocketAddr(uri.getAuthority(), DEFAULT_PORT);
      services = DFSUtilClient.getHaNnRpcAddresses(conf);
    } catch (IllegalArgumentException e) {
      // An address without a port. Clients cannot use it either.
      return path;
    }
    for (Map.Entry<String, Map<String, InetSocketAddress>> service : services.entrySet()) {
      Path root = new Path(HDFS + "://" + service.getKey() + "/");
      // Clients cannot use the name of a service without a failover proxy, such as one with a single name node.
      if (service.getValue().containsValue(address)
          && HAUtilClient.isClientFailoverConfigured(conf, root.toUri())) {
        return uri.getPath().isEmpty() ? root : new Path(root, uri.getPath());
      }
    }
    return path;
  }

  /**
   * Returns why a table cannot be written under this name.
   *
   * @return a sentence; null if the name is not the address of a name node that belongs to a name service
   */
  public static String refusal(String table, Configuration conf) {
    Path path = new Path(table);
    Path servicePath = withService(path, () -> conf);
    return servicePath.equals(path) ? null : table + " names a name node, but locks belong to the name service: use "
        + servicePath;
  }
}
