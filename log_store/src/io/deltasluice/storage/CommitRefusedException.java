package io.deltasluice.storage;

import java.io.IOException;

/** A commit that was refused before anything was sent to the store: the version is as it was. */
public final class CommitRefusedException extends IOException {
  private static final long serialVersionUID = 1L;

  private final String reason;
  private final String attempt;

  /**
   * @param reason name of the error that Python raises for it, such as {@code LockNotHeldError}
   * @param attempt under which Python remembers that error; empty if it was not asked
   * @param message one sentence
   */
  public CommitRefusedException(String reason, String attempt, String message) {
    super(message);
    this.reason = reason;
    this.attempt = attempt;
  }

  /**
   * A refusal of the log store's own, of which Python was not asked.
   *
   * @param reason name of the error that Python raises for it
   * @param message one sentence
   */
  CommitRefusedException(String reason, String message) {
    this(reason, "", message);
  }

  /** The attempt under which Python remembers the error; empty if it was not asked. */
  public String attempt() {
    return attempt;
  }

  /** Name of the error that Python raises for it. */
  public String reason() {
    return reason;
  }
}
