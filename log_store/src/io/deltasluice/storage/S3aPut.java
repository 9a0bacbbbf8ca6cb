package io.deltasluice.storage;

import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.fs.s3a.S3ADataBlocks.BlockUploadData;
import org.apache.hadoop.fs.s3a.WriteOperationHelper;
import org.apache.hadoop.fs.s3a.impl.PutObjectOptions;
import org.apache.hadoop.fs.store.audit.AuditSpan;
import software.amazon.awssdk.awscore.AwsRequestOverrideConfiguration;
import software.amazon.awssdk.awscore.exception.AwsServiceException;
import software.amazon.awssdk.services.s3.model.PutObjectRequest;

/**
 * Creates files on S3 through S3A, each by a PUT with {@code If-None-Match: *}.
 *
 * <p>From 3.4.2 on, Hadoop can create a file on this condition. With an older Hadoop, and for content that S3A may
 * upload in parts, this class adds the condition to a request of S3A's own client of the AWS SDK. S3A sends it with its
 * encryption, storage class, retries and audit. No version is uploaded in parts, because a store may honour the condition
 * of a PUT and ignore that of a multipart upload.
 */
final class S3aPut implements PutIfAbsent {
  /**
   * Hadoop setting. With the value {@code client} all puts use S3A's client, even if Hadoop can create files
   * conditionally. As with all settings of S3A, {@code fs.s3a.bucket.BUCKET.sluice.put} sets it for one bucket.
   */
  static final String PUT_SETTING = "fs.s3a.sluice.put";

  private static final String CLIENT = "client";
  private static final int PRECONDITION_FAILED = 412;

  /**
   * Minimum of {@code fs.s3a.multipart.size}, the size of the parts of a multipart upload, in bytes. S3A uploads
   * smaller content in one request.
   */
  private static final int MIN_PART_BYTES = 5 << 20;

  static final boolean S3A_CREATES_CONDITIONALLY = s3aCreatesConditionally();

  private static boolean s3aCreatesConditionally() {
    try {
      // A class of hadoop-aws: the release of Hadoop's other jars, and their class loader, may be other ones.
      Class.forName("org.apache.hadoop.fs.s3a.impl.write.WriteObjectFlags", false, S3aPut.class.getClassLoader());
      return true;
    } catch (ClassNotFoundException e) {
      return false;
    }
  }

  @Override
  public void put(Path path, byte[] content, Configuration conf) throws IOException {
    FileSystem fs = path.getFileSystem(conf);
    try {
      if (!mustUseClient(fs.getConf()) && S3A_CREATES_CONDITIONALLY && content.length < MIN_PART_BYTES) {
        putWithHadoop(fs, path, content);
      } else {
        Client.put(fs, path, content);
      }
    } catch (RejectedException e) {
      throw e;
    } catch (IOException e) {
      // S3A and the SDK retry, and return only the last response. So even a 403 does not prove that an earlier request
      // of this put was not stored.
      throw statusOf(e) == PRECONDITION_FAILED ? new FileAlreadyExistsException(path.toString()) : e;
    }
  }

  private static boolean mustUseClient(Configuration conf) throws RejectedException {
    String value = conf.getTrimmed(PUT_SETTING, "");
    if (!value.isEmpty() && !value.equals(CLIENT)) {
      throw new RejectedException(new IOException(PUT_SETTING + "=" + value + ": set it to " + CLIENT + ", or leave it out"));
    }
    return value.equals(CLIENT);
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

  /** The put with S3A's client. A class of its own, so that a driver without the AWS SDK can load the outer class. */
  private static final class Client {
    private static final String OPERATION = "sluice_put";

    static void put(FileSystem fs, Path path, byte[] content) throws IOException {
      S3AFileSystem s3;
      AuditSpan span;
      try {
        s3 = supporting(fs);
        span = s3.createSpan(OPERATION, path.toString(), null);
      } catch (IOException | RuntimeException e) {
        throw new RejectedException(e);
      }
      try (span) {
        WriteOperationHelper helper;
        PutObjectRequest request;
        PutObjectOptions options;
        try {
          helper = s3.createWriteOperationHelper(span);
          options = (PutObjectOptions) ByName.callStatic(PutObjectOptions.class, "defaultOptions", "keepingDirs");
          request = onCondition(
              helper.createPutObjectRequest(s3.pathToKey(s3.makeQualified(path)), content.length, options));
        } catch (RuntimeException | LinkageError e) {
          throw new RejectedException(e instanceof Exception failure ? failure : new IOException(e.toString(), e));
        }
        helper.putObject(request, options, new BlockUploadData(content, () -> true), null);
      }
    }

    /** Returns the file system if its client sends the condition. */
    private static S3AFileSystem supporting(FileSystem fs) throws IOException {
      if (!(fs instanceof S3AFileSystem s3)) {
        throw new IOException(fs.getUri() + " is not a file system of S3A");
      }
      if (!s3.getConf().getBoolean("fs.s3a.create.conditional.enabled", true)) {
        throw new IOException("fs.s3a.create.conditional.enabled=false: the store must honour If-None-Match, which each "
            + "commit needs; leave the setting out");
      }
      if (s3.isCSEEnabled()) {
        throw new IOException("client-side encryption drops the condition of this PUT: use server-side encryption");
      }
      return s3;
    }

    private static PutObjectRequest onCondition(PutObjectRequest request) {
      AwsRequestOverrideConfiguration condition = request.overrideConfiguration()
          .map(AwsRequestOverrideConfiguration::toBuilder)
          .orElseGet(AwsRequestOverrideConfiguration::builder)
          .putHeader("If-None-Match", "*")
          .build();
      return request.toBuilder().overrideConfiguration(condition).build();
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
