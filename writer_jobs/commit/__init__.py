"""One write, from the call of an operation to its result.

1. :class:`~writer_jobs.LockedDeltaWriter` describes the call as an ``Operation`` (operation.py) and checks the caller's
   ``WriteOptions`` (options.py). All writes of a writer share its ``WriterContext`` (execution.py).
2. ``LockedOperation`` (locked_operation.py) finds the ``LockTarget``: the table, or partitions (lock_target.py). By the
   rules in gate_rules.py it chooses between two ways to hold the lock.
3. ``StagedWrite`` (gate.py) prepares the commit without the lock and holds the lock for the commit alone.
   ``HeldWrite`` (held_write.py) holds the lock from the beginning. A staged write that cannot commit is repeated so
   that it holds the lock from the beginning.
4. In both, an ``Execution`` runs the operation in a ``WriteThread``, which can be cancelled (execution.py).
5. The commit passes only under the hold to which its thread is bound (guarded.py). The log store in the driver's JVM
   asks this process (driver_guard.py); a refusal becomes a Python error (refusals.py).
6. ``Outcome`` finds the commit in the table's log, or the error to raise (outcome.py). The caller gets a
   ``CommitResult`` (result.py).
"""
