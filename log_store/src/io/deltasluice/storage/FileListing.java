package io.deltasluice.storage;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/**
 * Every file below a folder, by what listings say of it, and without a request for any file.
 *
 * <p>Spark's own data source of files ({@code binaryFile}) asks the store for each file once more, which is slow where
 * there are many, and fails if one was removed meanwhile.
 */
public final class FileListing {
  private static final StructType SCHEMA =
      new StructType()
          .add("path", DataTypes.StringType, false)
          .add("length", DataTypes.LongType, false)
          .add("modified_ms", DataTypes.LongType, false);
  private static final int THREADS = 16;

  /** So many files are sent to executors with one task: a task has a largest size. */
  private static final int FILES_OF_A_TASK = 50_000;

  private final FileSystem files;
  private final String base;
  private final Set<String> shown;
  private final List<Row> rows = new ArrayList<>();

  private FileListing(FileSystem files, Path folder, List<String> shown) {
    String path = files.makeQualified(folder).toUri().getPath();
    this.files = files;
    this.base = path.endsWith("/") ? path : path + "/";
    this.shown = Set.copyOf(shown);
  }

  /**
   * Lists a folder and all below it, but for what Delta's VACUUM passes over: names that begin with a dot or an
   * underscore.
   *
   * @param shown names that are listed all the same; with an equals sign at its end, one stands for all that begin so
   * @return {@code path} below the folder, not percent-encoded, {@code length} in bytes, {@code modified_ms} since the
   *     epoch
   * @throws IOException if the folder is not there, or cannot be listed
   */
  public static Dataset<Row> of(SparkSession spark, String folder, List<String> shown) throws IOException {
    Path path = new Path(folder);
    FileSystem files = path.getFileSystem(spark.sessionState().newHadoopConf());
    FileListing listing = new FileListing(files, path, shown);
    if (files.getUri().getScheme().startsWith("s3")) {
      listing.listFlat(path);
    } else {
      listing.walk(path);
    }
    int tasks = listing.rows.size() / FILES_OF_A_TASK + 1;
    JavaSparkContext context = JavaSparkContext.fromSparkContext(spark.sparkContext());
    return spark.createDataFrame(context.parallelize(listing.rows, tasks), SCHEMA);
  }

  /** A store without folders lists all that begins with a name at once. */
  private void listFlat(Path folder) throws IOException {
    RemoteIterator<LocatedFileStatus> found = files.listFiles(folder, true);
    while (found.hasNext()) {
      add(found.next());
    }
  }

  /** Level by level, the folders of one beside each other. */
  private void walk(Path folder) throws IOException {
    ExecutorService pool = Executors.newFixedThreadPool(THREADS, FileListing::daemon);
    try {
      List<FileStatus> level = List.of(files.listStatus(folder));
      while (!level.isEmpty()) {
        List<Callable<FileStatus[]>> next = new ArrayList<>();
        for (FileStatus each : level) {
          if (!each.isDirectory()) {
            add(each);
          } else if (!isHidden(each.getPath().getName())) {
            next.add(() -> list(each.getPath()));
          }
        }
        level = new ArrayList<>();
        for (Future<FileStatus[]> listed : pool.invokeAll(next)) {
          level.addAll(List.of(listed.get()));
        }
      }
    } catch (ExecutionException failed) {
      throw failed.getCause() instanceof IOException cause ? cause : new IOException(failed.getCause());
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new IOException(interrupted);
    } finally {
      pool.shutdownNow();
    }
  }

  private static Thread daemon(Runnable work) {
    Thread thread = new Thread(work, "sluice-listing");
    thread.setDaemon(true);
    return thread;
  }

  private FileStatus[] list(Path folder) throws IOException {
    try {
      return files.listStatus(folder);
    } catch (FileNotFoundException gone) {
      return new FileStatus[0];
    }
  }

  private void add(FileStatus file) {
    String path = file.getPath().toUri().getPath();
    if (!path.startsWith(base)) {
      return;
    }
    String below = path.substring(base.length());
    for (String name : below.split("/")) {
      if (isHidden(name)) {
        return;
      }
    }
    rows.add(RowFactory.create(below, file.getLen(), file.getModificationTime()));
  }

  private boolean isHidden(String name) {
    boolean isShown = shown.contains(name) || shown.contains(name.substring(0, name.indexOf('=') + 1));
    return (name.startsWith(".") || name.startsWith("_")) && !isShown;
  }
}
