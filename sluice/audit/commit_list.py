"""``sluice log``: lists a table's commits with their times, jobs and holds, without Spark."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from sluice.audit.log_files import LogCommit, existing_versions, read_commits
from sluice.audit.log_folder import open_log
from sluice.console import make_table, print_problems, table_console

_ID_LENGTH = 8
_COLUMNS = ("version", "time (UTC)", "operation", "rows", "job", "hold", "token", "ensemble", "trace", "engine")
_NUMBER_COLUMNS = ("version", "rows", "token")
_FOLDED_COLUMNS = ("operation", "job", "engine")
# Minimum width of a console that shows the year.
_MIN_WIDTH_WITH_YEAR = 110
_TIME_FORMAT, _SHORT_TIME_FORMAT = "%Y-%m-%d %H:%M:%S", "%m-%d %H:%M:%S"


def read_commit_list(
    table: str | os.PathLike[str], *, limit: int | None = None, storage_options: Mapping[str, str] | None = None
) -> tuple[str, list[LogCommit | str]]:
    """Return a table's location, and its commits, the newest first: all, or ``limit`` of them.

    A sentence takes the place of a commit whose file cannot be parsed.

    Raises:
        AuditError: There is no Delta table.
        LogAccessError: The store cannot be listed or read.

    """
    log = open_log(table, storage_options)
    versions = existing_versions(log.names(), log.uri)
    return log.uri, list(read_commits(log, versions[-limit:] if limit else versions))[::-1]


def log_to_json(location: str, commits: Sequence[LogCommit | str]) -> dict[str, Any]:
    """Return the object that ``sluice log --json`` prints."""
    entries = [_commit_json(commit) if isinstance(commit, LogCommit) else {"problem": commit} for commit in commits]
    return {"table": location, "commits": entries}


def _commit_json(commit: LogCommit) -> dict[str, Any]:
    stamp = commit.stamp
    return {
        "version": commit.version,
        "timestamp": commit.timestamp,
        "operation": commit.operation,
        "rows": commit.rows,
        "engine": commit.engine,
        "locked": stamp is not None,
        "fenced": stamp is not None and stamp.fenced,
        "observed": commit.observed,
        "job": stamp.job if stamp else None,
        "hold": stamp.hold if stamp else None,
        "ensemble": stamp.ensemble if stamp else None,
        "tokens": dict(stamp.tokens) if stamp else {},
        "shared_tokens": dict(stamp.shared_tokens) if stamp else {},
        "requested_at": stamp.requested_at if stamp else None,
        "acquired_at": stamp.acquired_at if stamp else None,
        "commit_id": stamp.commit_id if stamp else None,
        "trace_id": stamp.trace_id if stamp else None,
        "writers": [_writer_json(write) for write in commit.writes],
        "adopted_by": commit.adopted_by or None,
        "adopted_name": commit.adopted_name or None,
    }


def _writer_json(write: LogCommit) -> dict[str, Any]:
    stamp = write.stamp
    return {
        "commit_id": stamp.commit_id if stamp else None,
        "job": stamp.job if stamp else None,
        "rows": write.rows,
        "begun_at": write.begun_at,
        "lineage_run": write.lineage_run,
        "trace_id": stamp.trace_id if stamp else None,
    }


def print_log(location: str, commits: Sequence[LogCommit | str], console: Console) -> None:
    """Print a line for each version, with ids cut to 8 characters. Commits without the lock are yellow.

    The ids of traces have a column if a commit has one.

    A version with the appends of several writers has a further line for each writer.
    """
    console = table_console(console)
    ensembles = {commit.stamp.ensemble for commit in commits if isinstance(commit, LogCommit) and commit.stamp}
    # A single ensemble is in the title and needs no column.
    hidden_columns = {"ensemble"} if len(ensembles) <= 1 else set()
    if not any(_trace_cell(write) for commit in commits if isinstance(commit, LogCommit) for write in commit.writes):
        hidden_columns.add("trace")
    columns = [name for name in _COLUMNS if name not in hidden_columns]
    title = f"{location}, ensemble {min(ensembles)}" if len(ensembles) == 1 else location
    console.print(title, style="italic", soft_wrap=True)
    table = make_table(columns, right=_NUMBER_COLUMNS, no_wrap=set(columns).difference(_FOLDED_COLUMNS), padding=0)
    for column, name in zip(table.columns, columns, strict=True):
        column.min_width = len(name)
    problems = []
    for commit in commits:
        if isinstance(commit, str):
            problems.append(commit)
            continue
        cells = _cells(commit, _TIME_FORMAT if console.width >= _MIN_WIDTH_WITH_YEAR else _SHORT_TIME_FORMAT)
        for line in (cells, *(_writer_cells(number, write) for number, write in enumerate(commit.group, 1))):
            table.add_row(*(line[name] for name in columns), style=None if commit.stamp else "yellow")
    console.print(table)
    print_problems(problems, console)


def _cells(commit: LogCommit, time_format: str) -> dict[str, str]:
    time = "" if commit.timestamp is None else datetime.fromtimestamp(commit.timestamp, UTC).strftime(time_format)
    cells = dict.fromkeys(_COLUMNS, "") | {
        "version": str(commit.version),
        "time (UTC)": time,
        "operation": commit.operation or "",
        "rows": _rows_text(commit),
        "engine": (commit.engine or "unknown").rpartition(" ")[2],
        "hold": "observed" if commit.observed else "no lock",
    }
    stamp = commit.stamp
    if stamp is None:
        return cells
    tokens = [*stamp.tokens.values(), *stamp.shared_tokens.values()]
    suffix = f" +{len(tokens) - 1}" if len(tokens) > 1 else ""
    return cells | {
        "job": f"{len(commit.group)} writers" if commit.group else stamp.job or "",
        "hold": stamp.hold[:_ID_LENGTH] if stamp.fenced else f"{stamp.hold[:_ID_LENGTH]}, not fenced",
        "token": f"{max(stamp.tokens.values() or tokens, default=0)}{suffix}",
        "ensemble": stamp.ensemble[:_ID_LENGTH],
        "trace": "" if commit.group else _trace_cell(commit),
    }


def _writer_cells(number: int, write: LogCommit) -> dict[str, str]:
    """Return the cells of a writer's line below its version; ``number`` counts from 1."""
    job = write.stamp.job if write.stamp else None
    return dict.fromkeys(_COLUMNS, "") | {
        "operation": f"writer {number}",
        "rows": _rows_text(write),
        "job": job or "",
        "trace": _trace_cell(write),
    }


def _trace_cell(write: LogCommit) -> str:
    return (write.stamp.trace_id or "")[:_ID_LENGTH] if write.stamp else ""


def _rows_text(commit: LogCommit) -> str:
    return "" if commit.rows is None else f"{commit.rows:,}"
