package io.deltasluice.storage;

import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.hadoop.util.VersionInfo;

/** The releases of the software in this driver. */
public final class DriverReleases {
  private DriverReleases() {}

  /** Returns the fields of {@code Releases} in {@code lock_manager/releases.py}, as a JSON object. */
  public static String describe() {
    return asJson().toString();
  }

  static ObjectNode asJson() {
    ObjectNode releases = CommitBody.JSON.createObjectNode();
    releases.put("spark", org.apache.spark.package$.MODULE$.SPARK_VERSION());
    releases.put("delta", deltaVersion());
    releases.put("hadoop", VersionInfo.getVersion());
    releases.put("java", System.getProperty("java.version"));
    releases.put("creates_conditionally", S3aPut.S3A_CREATES_CONDITIONALLY);
    return releases;
  }

  /** Returns {@code unknown} for a build of Delta that does not report its version. */
  private static String deltaVersion() {
    try {
      Object delta = Class.forName("io.delta.package$").getField("MODULE$").get(null);
      return (String) ByName.call(delta, "VERSION");
    } catch (ReflectiveOperationException | NoSuchMethodError e) {
      return "unknown";
    }
  }
}
