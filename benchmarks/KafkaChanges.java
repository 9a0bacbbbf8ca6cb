// Writes changes of one table to a Kafka topic of one partition, as Debezium's connector for PostgreSQL does without
// schemas: first a snapshot of all rows, then changes of random rows at a rate, of which a twentieth are deletes.
// Each change has its time of the schedule. Prints "start" with the time of the first change and, at the end, "delay" with
// the largest delay of a change, both in milliseconds.
// Arguments: bootstrap servers, topic, rows, changes per second, seconds.
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

public class KafkaChanges {
    private static final int PAUSE_MILLIS = 20;

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int rows = Integer.parseInt(arguments[2]), rate = Integer.parseInt(arguments[3]);
        int changes = rate * Integer.parseInt(arguments[4]);
        StringSerializer text = new StringSerializer();
        Map<String, Object> settings =
            Map.of("bootstrap.servers", arguments[0], "acks", "all", "enable.idempotence", "true");
        Random random = new Random(7);
        AtomicReference<Exception> failure = new AtomicReference<>();
        Callback remember = (metadata, error) -> {
            if (error != null) {
                failure.compareAndSet(null, error);
            }
        };
        long delay = 0;
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, text, text)) {
            for (int row = 0; row < rows; row++) {
                producer.send(change(topic, "r", row, row, System.currentTimeMillis()), remember);
            }
            producer.flush();
            long start = System.currentTimeMillis();
            System.out.println("start " + start);
            for (int number = 0; number < changes && failure.get() == null; number++) {
                long due = start + number * 1000L / rate;
                while (due > System.currentTimeMillis()) {
                    Thread.sleep(PAUSE_MILLIS);
                }
                delay = Math.max(delay, System.currentTimeMillis() - due);
                String operation = random.nextInt(20) == 0 ? "d" : "u";
                producer.send(change(topic, operation, random.nextInt(rows), rows + number, due), remember);
            }
        }
        // close() has waited for the answers to all sends.
        if (failure.get() != null) {
            throw failure.get();
        }
        System.out.println("delay " + delay);
    }

    private static ProducerRecord<String, String> change(String topic, String operation, int id, long lsn, long at) {
        String row = "{\"id\":" + id + ",\"name\":\"name " + lsn + "\",\"amount\":" + lsn % 1000 + "}";
        String before = operation.equals("d") ? row : "null", after = operation.equals("d") ? "null" : row;
        String source = "{\"connector\":\"postgresql\",\"db\":\"shop\",\"schema\":\"public\",\"table\":\"orders\",\"lsn\":"
            + lsn + ",\"ts_ms\":" + at + "}";
        String value = "{\"op\":\"" + operation + "\",\"before\":" + before + ",\"after\":" + after + ",\"source\":"
            + source + ",\"ts_ms\":" + at + "}";
        return new ProducerRecord<>(topic, "{\"id\":" + id + "}", value);
    }
}
