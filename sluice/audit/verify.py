"""``sluice verify``: checks a Delta table on S3 or on disk with another reader, the ``deltalake`` package; no Spark.

The log is read file by file (:mod:`sluice.audit.log_files`) and judged by pure functions (:mod:`sluice.audit.checks`);
then ``deltalake`` reads the table, and both must tell the same story.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType

from lock_manager import Adoption, ResourceError, canonical_table_uri
from sluice.audit.checks import (
    check_commit_ids,
    check_ensembles,
    check_names,
    check_tokens,
    check_versions,
    commits_in_conflict,
    count_of,
    describe_overlaps,
    holds_in_log,
    observed_commits,
    overlaps,
    unlocked_writers,
)
from sluice.audit.log_files import LogCommit, read_checksums, read_commits, read_replaced, version_files
from sluice.audit.log_folder import LogFolder, open_log, open_table
from sluice.audit.overwrites import Replay, check_transactions, describe_replaced, replay
from sluice.audit.pins import examine_pins, problems_of
from sluice.audit.reasons import reason_of
from sluice.errors import VerifyError

_EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was found in a table.

    Attributes:
        table: where it lies.
        version: the newest version; everything here is of it.
        first_version: the oldest version whose file is left (log clean-up removes old ones).
        commits: version files found.
        rows_found: rows counted by reading a column of every data file; None if the table cannot be read.
        rows_in_log: rows by the log's statistics, less those that deletion vectors delete; None if a file has none.
        key: columns of which every combination should be there once; empty if not asked.
        duplicate_rows: rows beyond the first of each key; None if not asked.
        locked_commits: commits that carry the lock's stamp.
        unfenced_commits: those of them that carry it by their writer's own word: ordered, but not fenced by the guard.
        unlocked_commits: commits that do not.
        unlocked_writers: the versions of the latter, by engine.
        observed: versions that the guard would have refused, had it not been told to observe only, by error.
        ensemble: that has adopted the table; None if none has, or the table cannot be read.
        adopted_name: under which the table is locked, likewise; None also if an earlier release adopted it.
        conflicts: commits without the lock that lost at least one race for a version, by their ``readVersion``.
        overlapping_holds: pairs of recorded holds that share time.
        pins: that have not expired.
        problems: one sentence each; empty if every check passed.

    """

    table: str
    version: int
    first_version: int
    commits: int
    rows_found: int | None = None
    rows_in_log: int | None = None
    key: tuple[str, ...] = ()
    duplicate_rows: int | None = None
    locked_commits: int = 0
    unfenced_commits: int = 0
    unlocked_commits: int = 0
    unlocked_writers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    observed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ensemble: str | None = None
    adopted_name: str | None = None
    conflicts: int = 0
    overlapping_holds: int = 0
    pins: int = 0
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return not self.problems

    @property
    def is_adopted_elsewhere(self) -> bool:
        """Whether it is adopted under another name than it was checked by: an alias, or the table was copied."""
        try:
            return self.adopted_name not in (None, canonical_table_uri(self.table))
        except ResourceError:
            return True

    def to_json(self) -> dict[str, Any]:
        """Return what ``sluice verify --json`` prints."""
        return {"ok": self.ok, **asdict(self)}


def verify_table(
    table: str | os.PathLike[str],
    *,
    key: Sequence[str] = (),
    storage_options: Mapping[str, str] | None = None,
    clock_skew_seconds: float = 0.0,
) -> Verification:
    """Check a Delta table.

    Args:
        table: ``s3://…``, ``s3a://…``, ``file:…`` or a path.
        key: Columns that identify a row; a repeated combination is a fault.
        storage_options: as ``deltalake`` takes them; what is missing comes from the environment (``AWS_*``).
        clock_skew_seconds: recorded holds of different hosts may seem to overlap by this much.

    Raises:
        VerifyError: there is no Delta table, or no such column.
        LogAccessError: the store cannot be listed or read.

    """
    log = open_log(table, storage_options)
    names = log.names()
    versions = version_files(names)
    if not versions:
        raise VerifyError(f"there is no Delta table at {log.uri}: no version file in its _delta_log")
    read = list(read_commits(log, versions))
    commits = [commit for commit in read if isinstance(commit, LogCommit)]
    unreadable = [sentence for sentence in read if isinstance(sentence, str)]
    checksums = read_checksums(log, names)
    overlapping = overlaps(holds_in_log(commits), clock_skew_seconds=clock_skew_seconds)
    problems = [
        *check_versions(names),
        *unreadable,
        *check_transactions(commits, checksums),
        *describe_replaced(read_replaced(log, versions)),
        *check_tokens(commits),
        *check_commit_ids(commits),
        *describe_overlaps(overlapping),
    ]
    # Only a log that is whole from its beginning adds up; after a clean-up its checkpoint has to be believed.
    whole = [commit.version for commit in commits] == list(range(versions[-1] + 1))
    replayed = replay(commits, checksums) if whole else None
    problems += replayed.problems if replayed else ()
    reading = _read_table(log, versions[-1], replayed, tuple(key))
    # After a clean-up the commit that adopted the table may be gone, but not the adoption.
    unchanged = all(commit.adopted_by is None for commit in commits)
    adoption = reading.adoption
    problems += check_ensembles(commits, adopted_by=adoption.ensemble if unchanged and adoption else "")
    problems += check_names(commits, adopted_name=(adoption.table or "") if unchanged and adoption else "")
    if reading.refusal and not problems:  # a log with a gap cannot be opened: the gap says more
        problems.append(reading.refusal)
    pins, damaged = examine_pins(table, storage_options)
    problems += [*problems_of(pins), *damaged]
    unlocked = unlocked_writers(commits)
    unlocked_commits = sum(map(len, unlocked.values()))
    return Verification(
        table=log.uri,
        version=versions[-1],
        first_version=versions[0],
        commits=len(versions),
        rows_found=reading.rows_found,
        rows_in_log=reading.rows_in_log,
        key=tuple(key),
        duplicate_rows=reading.duplicate_rows,
        locked_commits=len(commits) - unlocked_commits,
        unfenced_commits=sum(commit.stamp is not None and not commit.stamp.fenced for commit in commits),
        unlocked_commits=unlocked_commits,
        unlocked_writers=unlocked,
        observed=observed_commits(commits),
        ensemble=adoption.ensemble if adoption else None,
        adopted_name=adoption.table if adoption else None,
        conflicts=len(commits_in_conflict(commits)),
        overlapping_holds=len(overlapping),
        pins=sum(not pin.has_expired for pin in pins),
        problems=(*problems, *reading.problems),
    )


@dataclass
class _Reading:
    """What ``deltalake`` found."""

    rows_found: int | None = None
    rows_in_log: int | None = None
    duplicate_rows: int | None = None
    adoption: Adoption | None = None
    refusal: str | None = None
    problems: list[str] = field(default_factory=list)


def _read_table(log: LogFolder, version: int, replayed: Replay | None, key: tuple[str, ...]) -> _Reading:
    reading = _Reading()
    try:
        table = open_table(log, version)
    except (DeltaError, OSError) as error:
        reading.refusal = f"deltalake cannot open the table: {reason_of(error)}"
        return reading
    _refuse_unknown_columns(table, key)
    reading.adoption = Adoption.of(table.metadata().configuration)
    if replayed is None:
        reading.rows_in_log = _rows_by_statistics(table)
    else:
        reading.rows_in_log = replayed.rows
        reading.problems += _compare_files(table, replayed)
    try:
        reading.rows_found = _count_rows(table)
        if key:
            reading.duplicate_rows, examples = _count_duplicates(table, key)
            if reading.duplicate_rows:
                reading.problems.append(
                    f"{count_of(reading.duplicate_rows, 'duplicate row')} by ({', '.join(key)}), for example {examples}"
                )
    except Exception as error:  # noqa: BLE001 (for a file that cannot be read, arro3 raises just that)
        reading.problems.append(f"the data cannot be read: {reason_of(error)}")
    found, noted = reading.rows_found, reading.rows_in_log
    if found is not None and noted is not None and found != noted:
        reading.problems.append(f"{found} rows are in the data files, but {noted} by the log's statistics")
    return reading


def _refuse_unknown_columns(table: DeltaTable, key: tuple[str, ...]) -> None:
    columns = [column.name for column in table.schema().fields]
    unknown = [name for name in key if name not in columns]
    if unknown:
        raise VerifyError(f"the table has no column {unknown[0]!r}; it has {', '.join(columns)}")


def _compare_files(table: DeltaTable, replayed: Replay) -> list[str]:
    """Compare the snapshot, which may start from a checkpoint, with what the version files add up to."""
    seen = set(table.get_add_actions().column("path").to_pylist())
    wanted = {path for path, _ in replayed.files}
    if seen == wanted:
        return []
    problem = (
        f"the version files add up to {len(wanted)} data files, but the snapshot has {len(seen)}: "
        f"{len(wanted - seen)} are not in it, {len(seen - wanted)} only in it (a checkpoint of another history)"
    )
    return [problem]


def _rows_by_statistics(table: DeltaTable) -> int | None:
    counts = table.get_add_actions().column("num_records").to_pylist()
    if None in counts:
        return None
    deleted = 0
    if "deletionVectors" in (table.protocol().reader_features or ()):
        for batch in table.deletion_vectors():
            deleted += sum(mask.count(False) for mask in batch.column("selection_vector").to_pylist())
    return int(sum(counts)) - deleted


def _count_rows(table: DeltaTable) -> int:
    """Count rows by decoding a column of each data file: ``count(*)`` would be answered from the log alone."""
    partitions = set(table.metadata().partition_columns)
    stored = [column for column in table.schema().fields if column.name not in partitions]
    narrow = next((column for column in stored if isinstance(column.type, PrimitiveType)), stored[0])
    return sum(batch.num_rows for batch in table.scan(columns=[narrow.name]))


def _count_duplicates(table: DeltaTable, key: tuple[str, ...]) -> tuple[int, str]:
    """Count rows beyond the first of each key, in DataFusion; and describe the worst keys."""
    columns = ", ".join('"' + name.replace('"', '""') + '"' for name in key)
    # The key's columns were found in the schema and are quoted: nothing else gets into these statements.
    repeated = f"SELECT {columns}, count(*) AS _times FROM checked GROUP BY {columns} HAVING count(*) > 1"  # noqa: S608
    query = QueryBuilder().register("checked", table)
    extra = query.execute(f"SELECT sum(_times - 1) AS extra FROM ({repeated})").read_all()  # noqa: S608
    (total,) = extra.column("extra").to_pylist()
    if not total:
        return 0, ""
    worst = query.execute(f"{repeated} ORDER BY _times DESC, {columns} LIMIT {_EXAMPLES}").read_all()
    rows = zip(*(worst.column(index).to_pylist() for index in range(len(key) + 1)), strict=True)
    return int(total), "; ".join(f"({', '.join(map(str, values))}) {times} times" for *values, times in rows)
