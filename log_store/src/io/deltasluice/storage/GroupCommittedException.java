package io.deltasluice.storage;

/** The commit of a light transaction is in the log already: a holder has put it together with its own. */
final class GroupCommittedException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  private final long version;

  GroupCommittedException(VersionFile file, long version) {
    super("version " + version + " of " + file.table() + " contains this commit");
    this.version = version;
  }

  /** Returns the version that contains the commit. */
  long version() {
    return version;
  }
}
