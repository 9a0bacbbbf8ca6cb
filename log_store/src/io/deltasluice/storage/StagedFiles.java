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

/** The data files of writes with a ticket. They can be deleted if the write commits nothing. */
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

  /** Registers the data files of a write. */
  static void add(String ticket, VersionFile file, CommitBody body, Configuration conf) {
    BY_TICKET.computeIfAbsent(ticket, key -> new StagedFiles(new Path(file.table()), body.newFiles(), conf));
  }

  /**
   * Deletes the data files of a write. The caller must know that no commit contains them, now or later.
   *
   * @return number of deleted files; VACUUM deletes files that could not be deleted
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
        LOG.warn("{} belongs to no commit and could not be deleted; VACUUM will delete it", name, e);
      }
    }
    return deleted;
  }

  /** Unregisters and returns the data files of a write. Call it before the put, because the put may commit them. */
  static StagedFiles take(String ticket) {
    return BY_TICKET.remove(ticket);
  }

  /** Registers the files again, after the put was definitely not stored. */
  void putBack(String ticket) {
    BY_TICKET.put(ticket, this);
  }
}
