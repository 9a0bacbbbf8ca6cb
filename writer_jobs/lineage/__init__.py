"""OpenLineage events of writes: the sources, the table, the version and the run of each write.

1. ``WriteRun`` (write_run.py) follows one operation of a :class:`~writer_jobs.LockedDeltaWriter`, and ``recorded_job``
   (job_run.py) a job. They make a ``RunRecord`` (records.py) when the run begins and when it ends.
2. plan_sources.py finds the sources in the plans of the operation; dataset_names.py names them by OpenLineage's rules.
3. ``Sender`` (sender.py) queues the records for a thread, which converts them (events.py) and sends them with the
   library openlineage-python. Only this thread imports the library. Without a configured transport there is no sender.

An error in this package is logged. It never ends a write.
"""
