package io.deltasluice.storage;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.util.HashSet;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;

/** Checks the folder of a table whose first version has waited for its lock. */
final class NewTable {
  private NewTable() {}

  /**
   * Returns whether the first version can be put: the log has no files of versions, and all data files exist.
   *
   * <p>While the commit waited for its lock, another writer may have created the table. It may also have dropped the
   * table, with all files below its folder, or removed the first versions from its log.
   *
   * @param log folder of the log
   * @param newFiles paths of the data files, relative to the table and percent-encoded
   */
  static boolean canPutFirstVersion(Path log, Set<String> newFiles, Configuration conf) throws IOException {
    FileSystem fs = log.getFileSystem(conf);
    Path folder = fs.makeQualified(log.getParent());
    String logPath = log.toUri().getPath();
    Set<String> missingFiles = new HashSet<>();
    for (String name : newFiles) {
      URI uri = URI.create(name);
      // A shallow clone has the files of its source, under absolute names.
      if (!uri.isAbsolute() && !name.startsWith("/")) {
        missingFiles.add(new Path(folder, uri.getPath()).toUri().getPath());
      }
    }
    try {
      // This recursive listing takes one request for each 1,000 files of an object store.
      RemoteIterator<LocatedFileStatus> listing = fs.listFiles(folder, true);
      while (listing.hasNext()) {
        Path path = listing.next().getPath();
        boolean isInLog = path.getParent().toUri().getPath().equals(logPath);
        if (isInLog && Character.isDigit(path.getName().charAt(0))) {
          return false;
        }
        missingFiles.remove(path.toUri().getPath());
      }
    } catch (FileNotFoundException e) {
      // Without a folder, all data files are missing.
    }
    return missingFiles.isEmpty();
  }
}
