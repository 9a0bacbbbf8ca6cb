// A client with Curator's InterProcessMutex. Commands on standard input: "try MILLISECONDS" and "release".
// Arguments: hosts, path, and optionally the class of a LockInternalsDriver that replaces Curator's own.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.LockInternalsDriver;
import org.apache.curator.retry.RetryOneTime;

public class CuratorMutex {
    public static void main(String[] arguments) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(arguments[0], new RetryOneTime(100));
        client.start();
        client.blockUntilConnected();
        InterProcessMutex mutex = arguments.length < 3
                ? new InterProcessMutex(client, arguments[1])
                : new InterProcessMutex(client, arguments[1], (LockInternalsDriver)
                        Class.forName(arguments[2]).getDeclaredConstructor().newInstance());
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String command = commands.readLine(); command != null; command = commands.readLine()) {
            String[] words = command.split(" ");
            if (words[0].equals("try")) {
                System.out.println(mutex.acquire(Long.parseLong(words[1]), TimeUnit.MILLISECONDS));
            } else {
                mutex.release();
                System.out.println("released");
            }
        }
        client.close();
    }
}
