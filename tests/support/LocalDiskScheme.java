import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/** The local disk under the scheme of a storage service, so that Delta's log store for that service can run. */
public abstract class LocalDiskScheme extends RawLocalFileSystem {
  /** System property with the class of Delta's log store that created the last file. */
  private static final String CREATED_BY = "elsewhere.created.by";

  public static class Hdfs extends LocalDiskScheme {
    @Override public String getScheme() { return "hdfs"; }

    @Override protected int getDefaultPort() { return 8020; }
  }

  public static class Abfs extends LocalDiskScheme {
    @Override public String getScheme() { return "abfs"; }
  }

  public static class Gs extends LocalDiskScheme {
    @Override public String getScheme() { return "gs"; }
  }

  /** HDFS for Hadoop's FileContext API, which Delta uses for HDFS. */
  public static class HdfsContext extends DelegateToFileSystem {
    public HdfsContext(URI uri, Configuration conf) throws Exception {
      super(uri, new Hdfs(), conf, "hdfs", true);
    }
  }

  @Override
  public URI getUri() {
    return URI.create(getScheme() + "://elsewhere/");
  }

  @Override
  public boolean rename(Path from, Path to) throws IOException {
    // A rename on these services does not overwrite a file.
    return !exists(to) && super.rename(from, to);
  }

  @Override
  public FSDataOutputStream create(
      Path path, boolean overwrite, int bufferSize, short replication, long blockSize, Progressable progress)
      throws IOException {
    recordLogStore();
    return super.create(path, overwrite, bufferSize, replication, blockSize, progress);
  }

  @Override
  public FSDataOutputStream create(
      Path path, FsPermission permission, boolean overwrite, int bufferSize, short replication, long blockSize,
      Progressable progress) throws IOException {
    recordLogStore();
    return super.create(path, permission, overwrite, bufferSize, replication, blockSize, progress);
  }

  private static void recordLogStore() {
    StackWalker.getInstance().forEach(frame -> {
      if (frame.getClassName().matches("io\\.delta\\.storage\\.\\w+LogStore.*")) {
        System.setProperty(CREATED_BY, frame.getClassName());
      }
    });
  }
}
