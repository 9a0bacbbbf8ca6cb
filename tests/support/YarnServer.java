// Runs a ResourceManager and a NodeManager until standard input ends, which also ends their containers.
// Its class path has a folder with their settings. Argument: the file that gets all settings, with the ports.
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.nodemanager.NodeManager;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;

public class YarnServer {
    public static void main(String[] arguments) throws Exception {
        YarnConfiguration settings = new YarnConfiguration();
        try (ResourceManager manager = new ResourceManager(); NodeManager node = new NodeManager()) {
            manager.init(settings);
            manager.start();
            node.init(settings);
            node.start();
            Path file = Path.of(arguments[0]);
            Path part = Path.of(arguments[0] + ".part");
            try (OutputStream output = Files.newOutputStream(part)) {
                settings.writeXml(output);
            }
            Files.move(part, file);
            System.in.read();
        }
        // Threads of the servers would keep the process.
        System.exit(0);
    }
}
