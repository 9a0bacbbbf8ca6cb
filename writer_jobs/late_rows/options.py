"""The options of ``apply_rows`` and ``stream_into`` that are the same for each batch of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Required, TypedDict, cast


class RowOptions(TypedDict, total=False):
    """Keyword arguments that :func:`writer_jobs.apply_rows` and :func:`writer_jobs.stream_into` share.

    Attributes:
        keys: Columns that, together with the event time, identify a row. Required.
        event_time: Column with the timestamp or date at which the row happened. Required.
        sequence_by: Column or SQL expression; the version of a row with the largest value stays, as for
            :func:`writer_jobs.apply_changes`. None (the default): the version of the earlier batch stays.
        watermark_delay: A row that is older than the newest event time by more than this is late. Default: 0.
        allowed_lateness: A row that is older than the newest event time by more than this goes to ``<location>_late``.
            None (the default): no row does.
        schema_evolution: Whether to add columns that the table lacks, and to widen its types to those of the rows,
            except the types of keys and sequence. False (the default): rows that need such a change are refused.
        partition_by: Partition columns of a new table. Default: none.
        lock_timeout_seconds: Seconds to wait for the locks of a batch. The lock is requested when the rows are ready to
            be committed. None (the default): the manager's.
        metadata: Additional metadata of the commits; JSON values. Default: none.

    """

    keys: Required[Sequence[str]]
    event_time: Required[str]
    sequence_by: str | None
    watermark_delay: timedelta
    allowed_lateness: timedelta | None
    schema_evolution: bool
    partition_by: Sequence[str]
    lock_timeout_seconds: float | None
    metadata: Mapping[str, Any] | None


_DEFAULTS: dict[str, Any] = {
    "sequence_by": None,
    "watermark_delay": timedelta(0),
    "allowed_lateness": None,
    "schema_evolution": False,
    "partition_by": (),
    "lock_timeout_seconds": None,
    "metadata": None,
}


def with_defaults(options: RowOptions) -> RowOptions:
    """Return the options, with the default of each option that is not set.

    Raises:
        TypeError: A required option is missing, or an option does not exist.

    """
    complete = {**_DEFAULTS, **options}
    names = RowOptions.__annotations__.keys()
    if unknown_names := sorted(complete.keys() - names):
        raise TypeError(f"unexpected keyword argument {unknown_names[0]!r}; the options are {', '.join(names)}")
    if missing_names := [name for name in names if name not in complete]:
        raise TypeError(f"missing keyword argument {missing_names[0]!r}")
    return cast("RowOptions", complete)
