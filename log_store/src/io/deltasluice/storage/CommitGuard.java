package io.deltasluice.storage;

import java.io.IOException;

/**
 * Decides whether a commit may be written. The decision is Python's ({@link PythonGuard}), which is asked at every
 * commit, at the last moment before its version file is put.
 */
public interface CommitGuard {
  /**
   * Decides on one attempt to write one version.
   *
   * @param request JSON object: {@code table} (URI of the folder above {@code _delta_log}), {@code version},
   *     {@code attempt} (UUID of this attempt), {@code txn} ({@code commitInfo.txnId}, may be null),
   *     {@code operation} (may be null), {@code metadata} (whether it says anew what the table is), {@code blocks} (ids
   *     of the blocks that the thread is bound to), {@code write} (id of the operation attempt that the thread executes;
   *     absent if it executes none) and with it {@code retention_ms} (age at which VACUUM deletes files of no
   *     commit), {@code observe} (whether a refusal is only noted), {@code footprint} (what it touches, see
   *     {@code CommitBody}; only if one of the blocks locks partitions)
   * @return JSON object: {@code holds} (ids of the holds that cover it, each asked) and {@code stamp} (object to be noted in the
   *     commit); or {@code refused} (name of the error) and {@code message} (one sentence)
   * @throws IOException no answer
   */
  String check(String request) throws IOException;
}
