package io.deltasluice.feeds;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.io.StringWriter;
import java.nio.ByteBuffer;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.avro.AvroRuntimeException;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.IndexedRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.spark.sql.api.java.UDF2;

/**
 * Converts a message in Avro with Confluent's header (a zero byte, the schema's id in four bytes) to the payload that
 * Kafka Connect's {@code JsonConverter} writes for it. Returns null if the bytes are not a value of the schema.
 */
public final class AvroJson implements UDF2<byte[], String, String> {
  private static final long serialVersionUID = 1L;
  private static final int HEADER_BYTES = 5;
  private static final JsonFactory JSON = new JsonFactory();
  private static final Map<String, Schema> SCHEMAS = new ConcurrentHashMap<>();

  @Override
  public String call(byte[] message, String schemaText) {
    if (message == null || schemaText == null) {
      return null;
    }
    Schema schema = SCHEMAS.computeIfAbsent(schemaText, text -> new Schema.Parser().parse(text));
    StringWriter text = new StringWriter();
    try (JsonGenerator json = JSON.createGenerator(text)) {
      BinaryDecoder decoder =
          DecoderFactory.get().binaryDecoder(message, HEADER_BYTES, message.length - HEADER_BYTES, null);
      Object value = new GenericDatumReader<>(schema).read(null, decoder);
      if (!decoder.isEnd()) {
        return null;
      }
      write(json, value);
    } catch (IOException | AvroRuntimeException | IndexOutOfBoundsException | NegativeArraySizeException e) {
      return null;
    }
    return text.toString();
  }

  private static void write(JsonGenerator json, Object value) throws IOException {
    if (value instanceof IndexedRecord record) {
      json.writeStartObject();
      for (Schema.Field field : record.getSchema().getFields()) {
        json.writeFieldName(field.name());
        write(json, record.get(field.pos()));
      }
      json.writeEndObject();
    } else if (value instanceof Map<?, ?> map) {
      json.writeStartObject();
      for (Map.Entry<?, ?> entry : map.entrySet()) {
        json.writeFieldName(entry.getKey().toString());
        write(json, entry.getValue());
      }
      json.writeEndObject();
    } else if (value instanceof Iterable<?> array) {
      json.writeStartArray();
      for (Object element : array) {
        write(json, element);
      }
      json.writeEndArray();
    } else if (value instanceof ByteBuffer buffer) {
      json.writeBinary(HBaseEvent.bytes(buffer));
    } else if (value instanceof GenericFixed fixed) {
      json.writeBinary(fixed.bytes());
    } else if (value instanceof Integer number) {
      json.writeNumber(number);
    } else if (value instanceof Long number) {
      json.writeNumber(number);
    } else if (value instanceof Float number) {
      json.writeNumber(number);
    } else if (value instanceof Double number) {
      json.writeNumber(number);
    } else if (value instanceof Boolean bool) {
      json.writeBoolean(bool);
    } else if (value == null) {
      json.writeNull();
    } else {
      // Utf8 and symbols of enums.
      json.writeString(value.toString());
    }
  }
}
