package io.deltasluice.storage;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.s3a.Listing;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.fs.s3a.S3AFileStatus;
import org.apache.hadoop.fs.s3a.S3ListRequest;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import software.amazon.awssdk.services.s3.model.ListObjectsV2Request;

/**
 * Lists a log on S3 from one of its files on, without asking for all that comes before.
 *
 * <p>Every new snapshot lists the log, and every look for conflicts. Delta's own stores list the whole folder for that:
 * every version since the last clean-up of the log, by default of thirty days.
 */
final class LogListing {
  private static final Logger LOG = LoggerFactory.getLogger(LogListing.class);

  private LogListing() {}

  /**
   * Returns the files of the folder whose names are not before that of {@code path}, by name.
   *
   * @return empty where it has to be found out in another way
   */
  static List<FileStatus> from(Path path, Configuration conf) throws IOException {
    String name = path.getName();
    if (name.isEmpty() || !Character.isDigit(name.charAt(0))) {
      return List.of();
    }
    try {
      List<FileStatus> found = S3a.listed(path.getFileSystem(conf), path);
      found.removeIf(each -> each.getPath().getName().compareTo(name) < 0);
      found.sort(Comparator.comparing(each -> each.getPath().getName()));
      return found;
    } catch (RuntimeException | LinkageError e) {
      // Without S3A, or with another version of it; or one that refuses requests of others.
      LOG.debug("{} is listed in Delta's way", path, e);
      return List.of();
    }
  }

  /** Apart, for a driver may be without S3A. */
  private static final class S3a {
    static List<FileStatus> listed(FileSystem fs, Path path) throws IOException {
      List<FileStatus> found = new ArrayList<>();
      if (!(fs instanceof S3AFileSystem s3) || s3.getConf().getInt("fs.s3a.list.version", 2) != 2
          || s3.hasPathCapability(path, "fs.s3a.capability.s3express.storage")) {
        // In a directory bucket the order of the keys is not that of the names.
        return found;
      }
      Path from = s3.makeQualified(path);
      Path folder = from.getParent();
      String key = s3.pathToKey(from);
      ListObjectsV2Request request = ListObjectsV2Request.builder()
          .bucket(s3.getBucket())
          .prefix(s3.pathToKey(folder) + "/")
          .delimiter("/")
          .maxKeys(s3.getConf().getInt("fs.s3a.paging.maximum", 5000))
          // Behind the last key that comes before this one, or near it: what is too much is left out later.
          .startAfter(key.substring(0, key.length() - 1) + (char) (key.charAt(key.length() - 1) - 1))
          .build();
      RemoteIterator<S3AFileStatus> each = s3.getListing().createFileStatusListingIterator(
          folder, S3ListRequest.v2(request), any -> true, new Listing.AcceptAllButSelfAndS3nDirs(folder),
          s3.getActiveAuditSpan());
      while (each.hasNext()) {
        found.add(each.next());
      }
      return found;
    }
  }
}
