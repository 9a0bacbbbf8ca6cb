package io.deltasluice.storage;

import java.io.IOException;

/** A put may be stored, now or later: the store gave no definite response, and its version is free or unreadable. */
public final class CommitUnknownException extends IOException {
  private static final long serialVersionUID = 1L;

  private final String table;
  private final String attempt;

  /**
   * @param table URI of the table
   * @param attempt id of the attempt, which the commit would contain ({@code commitInfo.sluice.attempt})
   * @param message error message of one sentence
   * @param cause error of the last put
   */
  public CommitUnknownException(String table, String attempt, String message, Throwable cause) {
    super(message, cause);
    this.table = table;
    this.attempt = attempt;
  }

  /** Returns the URI of the table. */
  public String table() {
    return table;
  }

  /** Returns the id of the attempt. */
  public String attempt() {
    return attempt;
  }
}
