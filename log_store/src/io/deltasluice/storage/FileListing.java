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
 * Lists the visible files below a folder, without one request for each file.
 *
 * <p>Spark's data source of files ({@code binaryFile}) makes a request for each file, which is slow for many files, and
 * fails if a file was removed meanwhile.
 */
public final class FileListing {
  private static final StructType SCHEMA =
      new StructType()
          .add("path", DataTypes.StringType, false)
          .add("length", DataTypes.LongType, false)
          .add("modified_ms", DataTypes.LongType, false);
  private static final int THREADS = 16;

  /** Files in one task, because the size of a task is limited. */
  private static final int FILES_PER_TASK = 50_000;

  private final FileSystem files;
  private final String base;
  private final Set<String> visibleNames;
  private final List<Row> rows = new ArrayList<>();

  private FileListing(FileSystem files, Path folder, List<String> visibleNames) {
    String path = files.makeQualified(folder).toUri().getPath();
    this.files = files;
    this.base = path.endsWith("/") ? path : path + "/";
    this.visibleNames = Set.copyOf(visibleNames);
  }

  /**
   * Lists the files below a folder. Files and folders whose names begin with a dot or an underscore are left out, as by
   * Delta's VACUUM.
   *
   * @param visibleNames names that are listed although they begin with a dot or an underscore; a name that ends with an
   *     equals sign stands for all names with this prefix
   * @return {@code path} below the folder, not percent-encoded; {@code length} in bytes; {@code modified_ms} since the
   *     epoch
   * @throws IOException the folder does not exist, or cannot be listed
   */
  public static Dataset<Row> of(SparkSession spark, String folder, List<String> visibleNames) throws IOException {
    Path path = new Path(folder);
    FileSystem files = path.getFileSystem(spark.sessionState().newHadoopConf());
    FileListing listing = new FileListing(files, path, visibleNames);
    if (files.getUri().getScheme().startsWith("s3")) {
      listing.listFlat(path);
    } else {
      listing.walk(path);
    }
    int tasks = listing.rows.size() / FILES_PER_TASK + 1;
    JavaSparkContext context = JavaSparkContext.fromSparkContext(spark.sparkContext());
    return spark.createDataFrame(context.parallelize(listing.rows, tasks), SCHEMA);
  }

  /** Lists an object store, which returns all files with a prefix without listing folders. */
  private void listFlat(Path folder) throws IOException {
    RemoteIterator<LocatedFileStatus> listing = files.listFiles(folder, true);
    while (listing.hasNext()) {
      add(listing.next());
    }
  }

  /** Lists a tree level by level, the folders of a level in parallel. */
  private void walk(Path folder) throws IOException {
    ExecutorService pool = Executors.newFixedThreadPool(THREADS, FileListing::daemonThread);
    try {
      List<FileStatus> level = List.of(files.listStatus(folder));
      while (!level.isEmpty()) {
        List<Callable<FileStatus[]>> folders = new ArrayList<>();
        for (FileStatus file : level) {
          if (!file.isDirectory()) {
            add(file);
          } else if (!isHidden(file.getPath().getName())) {
            folders.add(() -> list(file.getPath()));
          }
        }
        level = new ArrayList<>();
        for (Future<FileStatus[]> listing : pool.invokeAll(folders)) {
          level.addAll(List.of(listing.get()));
        }
      }
    } catch (ExecutionException e) {
      throw e.getCause() instanceof IOException cause ? cause : new IOException(e.getCause());
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new IOException(e);
    } finally {
      pool.shutdownNow();
    }
  }

  private static Thread daemonThread(Runnable work) {
    Thread thread = new Thread(work, "sluice-listing");
    thread.setDaemon(true);
    return thread;
  }

  private FileStatus[] list(Path folder) throws IOException {
    try {
      return files.listStatus(folder);
    } catch (FileNotFoundException e) {
      return new FileStatus[0];
    }
  }

  private void add(FileStatus file) {
    String path = file.getPath().toUri().getPath();
    if (!path.startsWith(base)) {
      return;
    }
    String relativePath = path.substring(base.length());
    for (String name : relativePath.split("/")) {
      if (isHidden(name)) {
        return;
      }
    }
    rows.add(RowFactory.create(relativePath, file.getLen(), file.getModificationTime()));
  }

  private boolean isHidden(String name) {
    boolean isVisible = visibleNames.contains(name) || visibleNames.contains(name.substring(0, name.indexOf('=') + 1));
    return (name.startsWith(".") || name.startsWith("_")) && !isVisible;
  }
}
