package io.deltasluice.storage;

import java.io.IOException;

/**
 * Decides whether a commit may be written. Python decides ({@link PythonGuard}); it is asked at every commit, at the
 * last moment before its version file is put.
 */
public interface CommitGuard {
  /**
   * Answers one request.
   *
   * <p>Each request has {@code kind}, {@code table} (URI of the folder above {@code _delta_log}), {@code version} and
   * {@code attempt} (UUID of this attempt to put). A request of an unknown kind is refused. The kinds are:
   *
   * <ul>
   *   <li>{@code commit}: May this version be put? Fields: {@code txn} ({@code commitInfo.txnId}, may be null),
   *       {@code operation} (may be null), {@code metadata} (whether the commit contains {@code metaData}),
   *       {@code blocks} (ids of the blocks to which the thread is bound, may be null), {@code ticket} (name of the
   *       ticket to which the thread is bound, may be null), {@code write} (id of the operation attempt that the
   *       thread executes; absent if it executes none) and with it {@code retention_ms} (age at which VACUUM deletes
   *       files that belong to no commit), {@code observe} (whether a refusal is only logged), {@code footprint}
   *       (actions and partitions of the commit, see {@code CommitBody}; only if a block or the ticket locks
   *       partitions). Answer: {@code holds} (ids of the holds that cover the commit, each confirmed) and
   *       {@code stamp} (object that the commit records).
   *   <li>{@code turn}: Does the ticket of a waiting commit have its lock by now? Fields: {@code ticket},
   *       {@code staged} (the commit, see {@link Guard#described}). Answer: {@code turn} (boolean).
   *   <li>{@code outcome}: The outcome of a put for which a ticket had the lock. Fields: {@code ticket},
   *       {@code outcome} (see {@link Attempts}), {@code metrics}. Answer: an empty object.
   * </ul>
   *
   * @param request JSON object
   * @return JSON object: the answer above, or {@code refused} (name of the error) and {@code message} (one sentence)
   * @throws IOException there was no answer
   */
  String check(String request) throws IOException;
}
