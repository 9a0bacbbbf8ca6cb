package io.deltasluice.storage;

import java.io.IOException;

/** Decides on each commit before its version file is put. The decision is made in Python ({@link PythonGuard}). */
public interface CommitGuard {
  /**
   * Decides on one attempt to write one version.
   *
   * @param request JSON object: {@code table} (URI of the folder above {@code _delta_log}), {@code version},
   *     {@code attempt} (UUID of this attempt), {@code txn} ({@code commitInfo.txnId}, may be null), {@code operation}
   *     (may be null), {@code metadata} (whether the commit has a {@code metaData} action), {@code blocks} (ids of the
   *     blocks to which the thread is bound), {@code write} (id of the thread's operation attempt; absent without one)
   *     and with it {@code retention_ms} (age at which VACUUM deletes files of no commit), {@code observe} (whether a
   *     refusal is only recorded), {@code footprint} (see {@link CommitBody#footprint}; only if a block or the ticket
   *     locks partitions)
   * @return JSON object: {@code holds} (ids of the holds that cover the commit, each checked) and {@code stamp} (object
   *     to store in the commit); or {@code refused} (name of the error) and {@code message} (one sentence)
   * @throws IOException there is no answer
   */
  String check(String request) throws IOException;
}
