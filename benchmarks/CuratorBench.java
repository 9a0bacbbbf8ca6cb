// Curator's InterProcessMutex for benchmarks/lock.py. Prints "ready". Each input line is a number of cycles of acquire
// and release. Each output line has the durations of these cycles, in nanoseconds.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

public class CuratorBench {
    public static void main(String[] arguments) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(arguments[0], new RetryOneTime(100));
        client.start();
        client.blockUntilConnected();
        InterProcessMutex mutex = new InterProcessMutex(client, "/bench/curator");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            StringBuilder answer = new StringBuilder();
            for (int remaining = Integer.parseInt(order); remaining > 0; remaining--) {
                long started = System.nanoTime();
                mutex.acquire();
                mutex.release();
                answer.append(System.nanoTime() - started).append(' ');
            }
            System.out.println(answer);
        }
        client.close();
    }
}
