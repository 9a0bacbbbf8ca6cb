package io.deltasluice.feeds;

import java.io.IOException;
import java.nio.ByteBuffer;
import org.apache.avro.AvroRuntimeException;
import org.apache.avro.Schema;
import org.apache.avro.SchemaBuilder;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF1;

/**
 * Decodes an event of Apache HBase's Kafka proxy. Returns null if the bytes are not an event.
 *
 * <p>The schema is HbaseKafkaEvent.avro of the project hbase-connectors.
 */
public final class HBaseEvent implements UDF1<byte[], Row> {
  private static final long serialVersionUID = 1L;

  private static final Schema SCHEMA =
      SchemaBuilder.record("HBaseKafkaEvent")
          .namespace("org.apache.hadoop.hbase.kafka")
          .fields()
          .requiredBytes("key")
          .requiredLong("timestamp")
          .requiredBoolean("delete")
          .requiredBytes("value")
          .requiredBytes("qualifier")
          .requiredBytes("family")
          .requiredBytes("table")
          .endRecord();

  @Override
  public Row call(byte[] message) {
    if (message == null) {
      return null;
    }
    try {
      BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(message, null);
      GenericRecord event = new GenericDatumReader<GenericRecord>(SCHEMA).read(null, decoder);
      if (!decoder.isEnd()) {
        return null;
      }
      return RowFactory.create(
          bytes(event, "key"),
          event.get("timestamp"),
          event.get("delete"),
          bytes(event, "value"),
          bytes(event, "qualifier"),
          bytes(event, "family"),
          bytes(event, "table"));
    } catch (IOException | AvroRuntimeException | IndexOutOfBoundsException | NegativeArraySizeException e) {
      return null;
    }
  }

  private static byte[] bytes(GenericRecord event, String name) {
    return bytes((ByteBuffer) event.get(name));
  }

  /** Returns the remaining bytes of a buffer. */
  static byte[] bytes(ByteBuffer buffer) {
    byte[] bytes = new byte[buffer.remaining()];
    buffer.get(bytes);
    return bytes;
  }
}
