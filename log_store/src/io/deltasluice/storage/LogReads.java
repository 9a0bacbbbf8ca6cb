package io.deltasluice.storage;

import io.delta.storage.CloseableIterator;
import io.delta.storage.LogStore;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.SocketTimeoutException;
import java.nio.charset.StandardCharsets;
import java.security.PrivilegedExceptionAction;
import java.util.ArrayDeque;
import java.util.Collections;
import java.util.Deque;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FutureDataInputStreamBuilder;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.util.functional.FutureIO;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Reads versions and checksum files that were listed on S3, each with one request, and several at once.
 *
 * <p>S3A asks for a file's status before it reads the file, unless the caller has the status. S3A then requires that the
 * file has the ETag of that status.
 */
final class LogReads {
  private static final Logger LOG = LoggerFactory.getLogger(LogReads.class);

  /** Maximum size of a file that is read at once, in bytes. */
  private static final int MAX_BYTES = 1 << 20;

  /** Maximum number of files that are read at the same time for one transaction. */
  private static final int MAX_AHEAD = 16;

  private static final int MAX_STATUSES = 1000;

  /** Maximum number of files of one listing whose statuses are kept. */
  private static final int MAX_STATUSES_OF_LISTING = 100;

  /** The statuses of the files that were listed or read last. */
  private static final Map<Path, FileStatus> STATUSES = Collections.synchronizedMap(new LinkedHashMap<>(16, 0.75f, true) {
    private static final long serialVersionUID = 1L;

    @Override
    protected boolean removeEldestEntry(Map.Entry<Path, FileStatus> eldest) {
      return size() > MAX_STATUSES;
    }
  });

  private static final ExecutorService THREADS = Executors.newCachedThreadPool(task -> {
    // Without Spark's thread-local properties, which belong to one write.
    Thread thread = new Thread(null, task, "sluice-log-read", 0, false);
    thread.setDaemon(true);
    return thread;
  });

  private LogReads() {}

  /** Lists the log, see {@link LogListing#listFrom}, and records its newest files. */
  static List<FileStatus> list(Path path, Configuration conf) throws IOException {
    List<FileStatus> files = LogListing.listFrom(path, conf);
    if (files != null) {
      for (FileStatus file : files.subList(Math.max(0, files.size() - MAX_STATUSES_OF_LISTING), files.size())) {
        // Other files of the log may be replaced.
        if (VersionFile.of(file.getPath()) != null || Checksum.isFile(file.getPath())) {
          STATUSES.put(file.getPath(), file);
        }
      }
    }
    return files;
  }

  /** Returns the lines of a file. */
  static CloseableIterator<String> read(Path path, LogStore reader, Configuration conf) throws IOException {
    List<String> lines = readListed(STATUSES.get(path), conf);
    return lines == null ? reader.read(path, conf) : iterator(lines);
  }

  /** Reads listed files, which are taken in their order. Some of the next ones are read at the same time. */
  static final class Ahead {
    private final Deque<FileStatus> waiting;
    private final Configuration conf;
    private final Map<Path, Future<List<String>>> begun = new HashMap<>();

    /** Begins to read the first files. */
    Ahead(List<FileStatus> files, Configuration conf) throws IOException {
      waiting = new ArrayDeque<>(files);
      this.conf = conf;
      beginNext();
    }

    /** Waits for the lines of a file; null if it must be read with {@link #read}. */
    List<String> take(Path path) throws IOException {
      Future<List<String>> lines = begun.remove(path);
      beginNext();
      return lines == null ? null : await(lines);
    }

    private void beginNext() throws IOException {
      while (begun.size() < MAX_AHEAD && !waiting.isEmpty()) {
        FileStatus file = waiting.remove();
        begun.put(file.getPath(), begin(() -> readListed(file, conf)));
      }
    }
  }

  /** Begins a request to the store in another thread, as the user of this thread. */
  static <T> Future<T> begin(PrivilegedExceptionAction<T> request) throws IOException {
    UserGroupInformation user = UserGroupInformation.getCurrentUser();
    return THREADS.submit(() -> user.doAs(request));
  }

  /** Waits for the result of a request. */
  static <T> T await(Future<T> request) throws IOException {
    try {
      return request.get();
    } catch (ExecutionException e) {
      throw ByName.<RuntimeException>throwUnchecked(e.getCause());
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw (IOException) new InterruptedIOException("interrupted while the log was read").initCause(e);
    }
  }

  /** Returns an iterator over lines that were read. */
  static CloseableIterator<String> iterator(List<String> lines) {
    Iterator<String> iterator = lines.iterator();
    return new CloseableIterator<>() {
      @Override
      public boolean hasNext() {
        return iterator.hasNext();
      }

      @Override
      public String next() {
        return iterator.next();
      }

      @Override
      public void close() {}
    };
  }

  /**
   * Returns the lines of a file; null if it is large, or cannot be read with its status.
   *
   * @param status null if the file was not listed
   */
  private static List<String> readListed(FileStatus status, Configuration conf) throws IOException {
    if (status == null || status.getLen() > MAX_BYTES) {
      return null;
    }
    Path path = status.getPath();
    FileSystem fs = path.getFileSystem(conf);
    if (!checksETags(fs.getConf())) {
      return null;
    }
    byte[] content = new byte[(int) status.getLen()];
    FutureDataInputStreamBuilder builder = fs.openFile(path)
        .opt("fs.option.openfile.read.policy", "whole-file")
        .withFileStatus(status);
    try (FSDataInputStream in = FutureIO.awaitFuture(builder.build())) {
      in.readFully(content);
    } catch (IOException | RuntimeException e) {
      if (e instanceof InterruptedIOException && !(e instanceof SocketTimeoutException)) {
        throw e;
      }
      // S3A's streams throw different exceptions if the file has another ETag.
      LOG.debug("{} is read by Delta's own store", path, e);
      STATUSES.remove(path, status);
      return null;
    }
    return new String(content, StandardCharsets.UTF_8).lines().toList();
  }

  /** Returns whether S3A requires, with each read, that a file has the ETag of its status. */
  private static boolean checksETags(Configuration conf) {
    String mode = conf.getTrimmed("fs.s3a.change.detection.mode", "server");
    return conf.getTrimmed("fs.s3a.change.detection.source", "etag").equals("etag")
        && (mode.equals("server") || mode.equals("client"));
  }
}
