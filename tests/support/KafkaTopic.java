// Writes messages to a Kafka topic of one partition, in the order of the lines of standard input. A line is "KEY TAB
// VALUE", both in Base64; a line without a tab is a tombstone. Arguments: bootstrap servers, topic.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class KafkaTopic {
    public static void main(String[] arguments) throws Exception {
        ByteArraySerializer octets = new ByteArraySerializer();
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "acks", "all");
        Base64.Decoder base64 = Base64.getDecoder();
        AtomicReference<Exception> failure = new AtomicReference<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, octets, octets);
                BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII))) {
            String line;
            while (failure.get() == null && (line = lines.readLine()) != null) {
                String[] parts = line.split("\t", 2);
                byte[] value = parts.length == 2 ? base64.decode(parts[1]) : null;
                producer.send(
                    new ProducerRecord<>(arguments[1], base64.decode(parts[0]), value),
                    (metadata, error) -> {
                        if (error != null) {
                            failure.compareAndSet(null, error);
                        }
                    });
            }
        }
        // close() has waited for the answers to all sends.
        if (failure.get() != null) {
            throw failure.get();
        }
    }
}
