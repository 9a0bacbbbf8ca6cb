// Writes messages to a Kafka topic of one partition: a line "KEY TAB VALUE" of standard input for each message.
// Arguments: bootstrap servers, topic.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

public class KafkaTopic {
    public static void main(String[] arguments) throws Exception {
        StringSerializer text = new StringSerializer();
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "acks", "all");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, text, text);
                BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] parts = line.split("\t", 2);
                producer.send(new ProducerRecord<>(arguments[1], parts[0], parts[1])).get();
            }
        }
    }
}
