package io.deltasluice.storage;

import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.fs.Path;

/** The file of one version of a table: {@code TABLE/_delta_log/00000000000000000042.json}. */
record VersionFile(Path path, String table, long version) {
  private static final String LOG = "_delta_log";
  private static final Pattern NAME = Pattern.compile("(\\d{20})\\.json");

  /** Returns the version file at a path, or null for any other file. */
  static VersionFile of(Path path) {
    Matcher name = NAME.matcher(path.getName());
    Path log = path.getParent();
    if (!name.matches() || !isLog(log)) {
      return null;
    }
    return new VersionFile(path, log.getParent().toString(), Long.parseLong(name.group(1)));
  }

  /** Returns whether a folder is that of a table's log. */
  static boolean isLog(Path folder) {
    return folder != null && folder.getName().equals(LOG) && folder.getParent() != null;
  }

  /** Returns the path of a version's file in a table's log folder. */
  static Path in(Path log, long version) {
    return new Path(log, String.format("%020d.json", version));
  }

  /** Returns whether a path is a staged commit, which a coordinator or a catalog commits later. */
  static boolean isStagedCommit(Path path) {
    Path folder = path.getParent();
    return folder != null
        && (folder.getName().equals("_staged_commits") || folder.getName().equals("_commits"))
        && folder.getParent() != null
        && folder.getParent().getName().equals(LOG);
  }
}
