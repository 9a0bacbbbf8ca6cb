package io.deltasluice.storage;

import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.fs.s3a.S3AUtils;
import org.apache.hadoop.fs.s3a.impl.PutObjectOptions;
import software.amazon.awssdk.awscore.AwsRequestOverrideConfiguration;
import software.amazon.awssdk.awscore.exception.AwsServiceException;
import software.amazon.awssdk.core.exception.SdkException;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.model.PutObjectRequest;

/**
 * Creates files on S3 through S3A, each by a PUT with {@code If-None-Match: *}.
 *
 * <p>From 3.4.2 on, Hadoop can create a file on this condition. With an older Hadoop, and for content that S3A may
 * upload in parts, this class sends the PUT with S3A's own client of the AWS SDK, and with S3A's encryption and storage
 * class. No version is uploaded in parts, because a store may honour the condition of a PUT and ignore that of a
 * multipart upload.
 */
final class S3aPut implements PutIfAbsent {
  /**
   * Hadoop setting. With the value {@code client} all puts use S3A's client, even if Hadoop can create files
   * conditionally. As with all settings of S3A, {@code fs.s3a.bucket.BUCKET.sluice.put} sets it for one bucket.
   */
  static final String PUT_SETTING = "fs.s3a.sluice.put";

  private static final int PRECONDITION_FAILED = 412;

  /**
   * Minimum of {@code fs.s3a.multipart.size}, the size of the parts of a multipart upload, in bytes. S3A uploads
   * smaller content in one request.
   */
  private static final int MIN_PART_BYTES = 5 << 20;

  private static final boolean HADOOP_CREATES_CONDITIONALLY = hadoopCreatesConditionally();

  private static boolean hadoopCreatesConditionally() {
    try {
      Class.forName("org.apache.hadoop.fs.Options$CreateFileOptionKeys", false, FileSystem.class.getClassLoader());
      return true;
    } catch (ClassNotFoundException e) {
      return false;
    }
  }

  @Override
  public void put(Path path, byte[] content, Configuration conf) throws IOException {
    FileSystem fs = path.getFileSystem(conf);
    try {
      boolean mustUseClient = "client".equals(fs.getConf().get(PUT_SETTING));
      if (HADOOP_CREATES_CONDITIONALLY && content.length < MIN_PART_BYTES && !mustUseClient) {
        putWithHadoop(fs, path, content);
      } else {
        putWithClient(fs, path, content);
      }
    } catch (RejectedException e) {
      throw e;
    } catch (IOException e) {
      // S3A and the SDK retry, and return only the last response. So even a 403 does not prove that an earlier request
      // of this put was not stored.
      throw statusOf(e) == PRECONDITION_FAILED ? new FileAlreadyExistsException(path.toString()) : e;
    }
  }

  private static void putWithHadoop(FileSystem fs, Path path, byte[] content) throws IOException {
    FSDataOutputStreamBuilder<?, ?> builder = fs.createFile(path);
    FSDataOutputStream out;
    try {
      // S3 checks with the PUT whether the file exists. S3A's earlier check would add nothing, so it is turned off.
      out = builder
          .overwrite(true)
          .must("fs.option.create.conditional.overwrite", true)
          .opt("fs.s3a.create.performance", true)
          .build();
    } catch (IOException | RuntimeException e) {
      // The file system does not support the option.
      throw new RejectedException(e);
    }
    // Nothing is sent before close().
    boolean written = false;
    try {
      out.write(content);
      written = true;
    } catch (IOException | RuntimeException e) {
      throw new RejectedException(e);
    } finally {
      if (!written) {
        out.abort();
      }
    }
    out.close();
  }

  private static void putWithClient(FileSystem fs, Path path, byte[] content) throws IOException {
    S3Client client;
    PutObjectRequest request;
    try {
      if (!(fs instanceof S3AFileSystem s3)) {
        throw new IOException(fs.getUri() + " is not a file system of S3A");
      }
      Object options = ByName.callStatic(PutObjectOptions.class, "defaultOptions", "keepingDirs");
      PutObjectRequest.Builder builder = s3.getRequestFactory().newPutObjectRequestBuilder(
          s3.pathToKey(s3.makeQualified(path)), (PutObjectOptions) options, content.length, false);
      AwsRequestOverrideConfiguration condition = builder.build().overrideConfiguration()
          .map(AwsRequestOverrideConfiguration::toBuilder)
          .orElseGet(AwsRequestOverrideConfiguration::builder)
          .putHeader("If-None-Match", "*")
          .build();
      request = builder.overrideConfiguration(condition).build();
      client = s3.getS3AInternals().getAmazonS3Client("version of a Delta table");
    } catch (IOException | RuntimeException | LinkageError e) {
      throw new RejectedException(e instanceof Exception failure ? failure : new IOException(e.toString(), e));
    }
    try {
      client.putObject(request, RequestBody.fromBytes(content));
    } catch (SdkException e) {
      throw S3AUtils.translateException("put", path, e);
    }
  }

  @Override
  public void requireProof(VersionFile file, Configuration conf) throws IOException {
    // Some servers of the S3 protocol ignore If-None-Match.
    ConditionalPutProof.require(this, file, conf);
  }

  /** Returns the status of the HTTP response that caused an exception; 0 without a response. */
  private static int statusOf(Throwable e) {
    for (Throwable cause = e; cause != null; cause = cause.getCause()) {
      if (cause instanceof AwsServiceException service) {
        return service.statusCode();
      }
    }
    return 0;
  }
}
