package io.deltasluice.storage;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.s3a.Listing;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.fs.s3a.S3ListRequest;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import software.amazon.awssdk.services.s3.model.ListObjectsV2Request;

/**
 * Lists the files of a table's log on S3 or on a local disk, starting at a given name, and looks for single files.
 *
 * <p>Delta lists the log for every new snapshot and every check for conflicts. Delta's own store requests the names and
 * the status of all files in the folder, by default those of the last 30 days, and then drops those before the given
 * name. On S3 each method needs one request.
 */
final class LogListing {
  private static final Logger LOG = LoggerFactory.getLogger(LogListing.class);

  private LogListing() {}

  /**
   * Returns the file at a path on S3 and the files in its folder whose names sort after it, in the order of their names.
   *
   * @return null if the path is not on S3, or Delta's own store must list the folder
   */
  static List<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
    String name = path.getName();
    if (!beginsWithDigit(name)) {
      return null;
    }
    try {
      List<FileStatus> files = S3a.list(path.getFileSystem(conf), path);
      if (files == null) {
        return null;
      }
      files.removeIf(file -> file.getPath().getName().compareTo(name) < 0);
      files.sort(Comparator.comparing(file -> file.getPath().getName()));
      return files;
    } catch (RuntimeException | LinkageError e) {
      // The driver has no S3A or another version of it, or this S3A refuses such requests.
      LOG.debug("{} is listed by Delta's own store", path, e);
      return null;
    }
  }

  /**
   * Does what {@link #listFrom} does, on a local disk.
   *
   * @return null if the path is not on a local disk, or Delta's own store must list the folder
   */
  static List<FileStatus> listFromDisk(Path path, Configuration conf) throws IOException {
    FileSystem fs = path.getFileSystem(conf);
    String first = path.getName();
    if (fs.getClass() != LocalFileSystem.class || !beginsWithDigit(first)) {
      return null;
    }
    // The names of Hadoop's own checksum files begin with a dot, which sorts before a digit.
    String[] names = ((LocalFileSystem) fs).pathToFile(path.getParent())
        .list((folder, name) -> name.compareTo(first) >= 0);
    if (names == null) {
      return null;
    }
    Arrays.sort(names);
    List<FileStatus> files = new ArrayList<>();
    for (String name : names) {
      try {
        // As a path of its own, a name with a colon would begin with a scheme.
        files.add(fs.getFileStatus(new Path(path.getParent(), new Path(null, null, name))));
      } catch (FileNotFoundException e) {
        LOG.debug("{} was removed", name);
      }
    }
    return files;
  }

  private static boolean beginsWithDigit(String name) {
    return !name.isEmpty() && Character.isDigit(name.charAt(0));
  }

  /** Returns whether a file exists. */
  static boolean exists(Path file, Configuration conf) throws IOException {
    FileSystem fs = file.getFileSystem(conf);
    try {
      return S3a.isS3(fs) ? S3a.exists(fs, file) : fs.exists(file);
    } catch (LinkageError e) {
      // The driver has no S3A, or another version of it.
      return fs.exists(file);
    }
  }

  /** A separate class, because the driver may not have the classes of S3A. */
  private static final class S3a {
    static boolean isS3(FileSystem fs) {
      return fs instanceof S3AFileSystem;
    }

    /** S3A's own check would also look for a folder of that name. */
    static boolean exists(FileSystem fs, Path file) throws IOException {
      try {
        ((S3AFileSystem) fs).getS3AInternals().getObjectMetadata(file);
        return true;
      } catch (FileNotFoundException e) {
        return false;
      }
    }

    static List<FileStatus> list(FileSystem fs, Path path) throws IOException {
      if (!(fs instanceof S3AFileSystem s3) || s3.getConf().getInt("fs.s3a.list.version", 2) != 2
          || s3.hasPathCapability(path, "fs.s3a.capability.s3express.storage")) {
        // Only version 2 of the list request has startAfter. A directory bucket does not list its keys in order.
        return null;
      }
      Path qualifiedPath = s3.makeQualified(path);
      Path folder = qualifiedPath.getParent();
      String key = s3.pathToKey(qualifiedPath);
      ListObjectsV2Request request = ListObjectsV2Request.builder()
          .bucket(s3.getBucket())
          .prefix(s3.pathToKey(folder) + "/")
          .delimiter("/")
          .maxKeys(s3.getConf().getInt("fs.s3a.paging.maximum", 5000))
          // S3 does not list the key startAfter itself, so this is a smaller key than that of the path. The caller
          // removes the files whose keys are between the two.
          .startAfter(key.substring(0, key.length() - 1) + (char) (key.charAt(key.length() - 1) - 1))
          .build();
      PathFilter acceptAll = file -> true;
      // Called by name, because the method returns another class in Hadoop 3.5 than in Hadoop 3.4.
      RemoteIterator<?> listing = (RemoteIterator<?>) ByName.call(
          s3.getListing(), "createFileStatusListingIterator", folder, S3ListRequest.v2(request), acceptAll,
          new Listing.AcceptAllButSelfAndS3nDirs(folder), s3.getActiveAuditSpan());
      List<FileStatus> files = new ArrayList<>();
      while (listing.hasNext()) {
        files.add((FileStatus) listing.next());
      }
      return files;
    }
  }
}
