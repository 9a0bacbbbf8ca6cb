package io.deltasluice.storage;

import java.io.IOException;
import java.net.URI;
import java.util.Collection;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The files of writes that wait for their lock, or had it: what can be deleted if nothing was committed. */
public final class StagedFiles {
  private static final Logger LOG = LoggerFactory.getLogger(StagedFiles.class);
  private static final Map<String, StagedFiles> BY_TICKET = new ConcurrentHashMap<>();

  private final Path table;
  private final Collection<String> paths;
  private final Configuration conf;

  private StagedFiles(Path table, Collection<String> paths, Configuration conf) {
    this.table = table;
    this.paths = paths;
    this.conf = conf;
  }

  /** Takes note of the files that a write has made. */
  static void remember(String ticket, VersionFile file, CommitBody body, Configuration conf) {
    BY_TICKET.computeIfAbsent(ticket, key -> new StagedFiles(new Path(file.table()), body.written(), conf));
  }

  /**
   * Deletes the files of a write, and forgets it. To be called only if it is certain that it is not in the table, and
   * never will be.
   *
   * @return how many were deleted; what could not be is left to VACUUM
   */
  public static int delete(String ticket) {
    StagedFiles staged = BY_TICKET.remove(ticket);
    int deleted = 0;
    for (String name : staged == null ? Set.<String>of() : staged.paths) {
      try {
        URI relative = URI.create(name);
        if (!relative.isAbsolute() && !relative.getPath().startsWith("/")) {
          Path path = new Path(staged.table, relative.getPath());
          deleted += path.getFileSystem(staged.conf).delete(path, false) ? 1 : 0;
        }
      } catch (IOException | RuntimeException e) {
        LOG.warn("{} belongs to no commit and could not be deleted; VACUUM will", name, e);
      }
    }
    return deleted;
  }

  /** Gives the files of a write out of hand, before its put: from now on they may belong to a commit. */
  static StagedFiles take(String ticket) {
    return BY_TICKET.remove(ticket);
  }

  /** Takes them back: the put was definitely not stored. */
  void putBack(String ticket) {
    BY_TICKET.put(ticket, this);
  }
}
