package io.deltasluice.storage;

import java.io.IOException;

/** A commit was refused before its version was sent to the store. The table is unchanged. */
public final class CommitRefusedException extends IOException {
  private static final long serialVersionUID = 1L;

  private final String errorName;
  private final String attempt;

  /**
   * @param errorName name of the error that Python raises, such as {@code LockNotHeldError}
   * @param attempt id of the attempt for which Python stores the error; empty if Python returned no refusal
   * @param message error message of one sentence
   */
  public CommitRefusedException(String errorName, String attempt, String message) {
    super(message);
    this.errorName = errorName;
    this.attempt = attempt;
  }

  /** Refuses a commit for which Python returned no refusal. */
  CommitRefusedException(String errorName, String message) {
    this(errorName, "", message);
  }

  /** Returns the id of the attempt for which Python stores the error; empty if Python returned no refusal. */
  public String attempt() {
    return attempt;
  }

  /** Returns the name of the error that Python raises. */
  public String errorName() {
    return errorName;
  }

  @Override
  public String toString() {
    return getClass().getName() + ": " + errorName + ": " + getMessage();
  }
}
