package io.deltasluice.storage;

import java.io.IOException;

/** A put that was sent and got no answer, of a version that is still free: it may be on its way. */
public final class CommitUnknownException extends IOException {
  private static final long serialVersionUID = 1L;

  private final String table;
  private final String attempt;

  /**
   * @param table URI
   * @param attempt by which the commit would be known ({@code commitInfo.sluice.attempt})
   * @param message one sentence
   * @param cause what the last put ended with
   */
  public CommitUnknownException(String table, String attempt, String message, Throwable cause) {
    super(message, cause);
    this.table = table;
    this.attempt = attempt;
  }

  /** URI of the table. */
  public String table() {
    return table;
  }

  /** By which the commit would be known. */
  public String attempt() {
    return attempt;
  }
}
