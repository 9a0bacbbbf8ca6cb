import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.MiniDFSNNTopology;

/**
 * HDFS with two name nodes and one data node. The argument is the folder for its data.
 *
 * <p>Writes a line with the ports of the name nodes. Then each line on standard input is a command: {@code failover} makes the
 * other name node active; {@code crash} stops the active one before that, and starts it again as standby. {@code done} is the
 * answer.
 */
public final class HdfsCluster {
  public static void main(String[] arguments) throws Exception {
    PrintStream answers = System.out;
    // Hadoop logs errors there.
    System.setOut(System.err);
    Configuration conf = new Configuration();
    conf.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, arguments[0]);
    // A standby reads the log of edits this often, in seconds.
    conf.set("dfs.ha.tail-edits.period", "1");
    MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(conf).nnTopology(MiniDFSNNTopology.simpleHATopology()).numDataNodes(1).build();
    cluster.waitActive();
    cluster.transitionToActive(0);
    answers.println(cluster.getNameNodePort(0) + " " + cluster.getNameNodePort(1));
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    int active = 0;
    for (String command = commands.readLine(); command != null; command = commands.readLine()) {
      if (command.equals("crash")) {
        cluster.shutdownNameNode(active);
      } else {
        cluster.transitionToStandby(active);
      }
      cluster.transitionToActive(1 - active);
      if (command.equals("crash")) {
        cluster.restartNameNode(active, false);
      }
      active = 1 - active;
      answers.println("done");
    }
    cluster.shutdown();
  }
}
