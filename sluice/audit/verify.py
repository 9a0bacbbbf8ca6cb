"""``sluice verify``: checks a Delta table on S3 or on disk with the ``deltalake`` package, without Spark.

:mod:`sluice.audit.log_files` reads the log file by file, and the pure functions of :mod:`sluice.audit.checks` check it.
Then ``deltalake`` reads the table, and the two results must agree.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType

from lock_manager import Adoption, ResourceError, canonical_table_uri
from lock_manager.table_records.adoption import OPTIMISTIC_ENSEMBLE
from sluice.audit.checks import (
    check_commit_ids,
    check_ensembles,
    check_names,
    check_tokens,
    check_versions,
    commits_in_conflict,
    count_text,
    describe_overlaps,
    find_overlaps,
    holds_in_log,
    observed_commits,
    unlocked_writers,
)
from sluice.audit.log_files import (
    Checksum,
    DataFile,
    LogCommit,
    existing_versions,
    read_checksums,
    read_commits,
    read_overwritten,
)
from sluice.audit.log_folder import LogFolder, column_values, error_text, open_log, open_table
from sluice.audit.overwrites import Replay, check_transactions, describe_overwritten, replay
from sluice.audit.pins import examine_pins, pin_problems
from sluice.errors import AuditError

# Number of versions whose files are in memory together. A checksum file may have the keys of 2,000 data files.
_VERSIONS_AT_ONCE = 64
# Stands for the files of a commit that changes data.
_CHANGED_DATA = (DataFile(path=""),)


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of the checks of a table.

    Attributes:
        table: Location of the table.
        version: The newest version.
        first_version: The oldest version whose file exists (log clean-up removes old ones).
        commits: Number of version files.
        writes: Number of writes. It is larger than ``commits`` if versions contain the appends of several writers.
        rows_found: Number of rows, counted by reading a column of every data file; None if the table cannot be read.
        rows_in_log: Number of rows by the log's statistics, without the rows that deletion vectors delete; None if a
            file has no statistics.
        key: Columns whose combination of values should be unique; empty if that was not checked.
        duplicate_rows: Number of rows beyond the first of each key; None if that was not checked.
        locked_commits: Number of commits with a lock's stamp.
        optimistic_commits: Number of commits of Sluice's writers without a lock (``optimistic://``).
        unfenced_commits: Number of commits with a stamp that the writer wrote itself. The guard did not fence them.
        unlocked_commits: Number of commits without the stamp.
        unlocked_writers: Versions of the commits without the stamp, by engine.
        observed: Versions that the guard allowed only in ``observe`` mode, by the error's name.
        ensemble: Id of the adopting ensemble; None if there is none, or the table cannot be read.
        adopted_name: The adopted name; None if there is none, the table cannot be read, or an earlier release adopted
            the table.
        conflicts: Number of commits without the lock that lost at least one race for a version, as their
            ``readVersion`` shows.
        overlapping_holds: Number of pairs of recorded holds that overlap.
        pins: Number of pins that have not expired.
        problems: One sentence per problem; empty if every check passed.

    """

    table: str
    version: int
    first_version: int
    commits: int
    writes: int
    rows_found: int | None = None
    rows_in_log: int | None = None
    key: tuple[str, ...] = ()
    duplicate_rows: int | None = None
    locked_commits: int = 0
    optimistic_commits: int = 0
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
        """Whether the adopted name differs from ``table``: one of them is an alias, or the table was copied."""
        if self.adopted_name is None:
            return False
        try:
            return self.adopted_name != canonical_table_uri(self.table)
        except ResourceError:
            return True

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``sluice verify --json`` prints."""
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
        table: Location of the table; see :func:`open_log`.
        key: Columns that identify a row; a repeated combination is a fault.
        storage_options: Options of the store; see :func:`open_log`.
        clock_skew_seconds: Overlaps of holds up to this length are ignored, because clocks of hosts differ.

    Raises:
        AuditError: There is no Delta table, or no such column.
        LogAccessError: The store cannot be listed or read.

    """
    log = open_log(table, storage_options)
    names = log.names()
    versions = existing_versions(names, log.uri)
    content = _LogContent()
    # Only a complete log can be replayed. After a clean-up the checkpoint cannot be checked.
    is_complete = versions == list(range(versions[-1] + 1))
    replay_result = content.read(log, versions, frozenset(names), replayed=is_complete)
    commits = content.commits
    overlapping_pairs = find_overlaps(holds_in_log(commits), clock_skew_seconds=clock_skew_seconds)
    problems = [
        *check_versions(names),
        *content.unreadable,
        *check_transactions(commits, content.checksums),
        *describe_overwritten(read_overwritten(log, versions)),
        *check_tokens(commits),
        *check_commit_ids(commits),
        *describe_overlaps(overlapping_pairs),
    ]
    problems += replay_result.problems if replay_result else ()
    reading = _read_table(log, versions[-1], replay_result, tuple(key))
    # After a log clean-up the commit that adopted the table may be missing. The table's properties are still readable.
    adoption_is_unchanged = all(commit.adopted_by is None for commit in commits)
    adoption = reading.adoption
    problems += check_ensembles(commits, adopted_by=adoption.ensemble if adoption_is_unchanged and adoption else "")
    problems += check_names(commits, adopted_name=(adoption.table or "") if adoption_is_unchanged and adoption else "")
    if reading.open_problem and not problems:  # an earlier problem, such as a gap in the log, is more precise
        problems.append(reading.open_problem)
    pins, pin_file_problems = examine_pins(table, storage_options)
    problems += [*pin_problems(pins), *pin_file_problems]
    unlocked = unlocked_writers(commits)
    unlocked_commits = sum(map(len, unlocked.values()))
    optimistic_commits = sum(
        commit.stamp is not None and commit.stamp.ensemble == OPTIMISTIC_ENSEMBLE for commit in commits
    )
    return Verification(
        table=log.uri,
        version=versions[-1],
        first_version=versions[0],
        commits=len(versions),
        writes=len(content.unreadable) + sum(len(commit.writes) for commit in commits),
        rows_found=reading.rows_found,
        rows_in_log=reading.rows_in_log,
        key=tuple(key),
        duplicate_rows=reading.duplicate_rows,
        locked_commits=len(commits) - unlocked_commits - optimistic_commits,
        optimistic_commits=optimistic_commits,
        unfenced_commits=sum(commit.stamp is not None and not commit.stamp.fenced for commit in commits),
        unlocked_commits=unlocked_commits,
        unlocked_writers=unlocked,
        observed=observed_commits(commits),
        ensemble=adoption.ensemble if adoption else None,
        adopted_name=adoption.table if adoption else None,
        conflicts=len(commits_in_conflict(commits)),
        overlapping_holds=len(overlapping_pairs),
        pins=sum(not pin.has_expired for pin in pins),
        problems=(*problems, *reading.problems),
    )


@dataclass
class _LogContent:
    """The content of a table's log without its files, so that its size does not depend on their number.

    Attributes:
        commits: The commits that can be parsed. A commit that changes data has :data:`_CHANGED_DATA` as its files.
        unreadable: One sentence for each version file that cannot be parsed.
        checksums: The checksums of these commits, by version, without keys.

    """

    commits: list[LogCommit] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    checksums: dict[int, Checksum] = field(default_factory=dict)

    def read(self, log: LogFolder, versions: Sequence[int], names: Collection[str], *, replayed: bool) -> Replay | None:
        """Read a log, and replay it if `replayed` is set; return None if it is not, or a version cannot be parsed."""
        content = self._read(log, versions, names)
        result = replay(content) if replayed else None
        for _ in content:
            pass
        return None if self.unreadable else result

    def _read(
        self, log: LogFolder, versions: Sequence[int], names: Collection[str]
    ) -> Iterator[tuple[LogCommit, Checksum]]:
        """Yield each commit that can be parsed, with its checksum, and keep both without their files."""
        for start in range(0, len(versions), _VERSIONS_AT_ONCE):
            few_versions = versions[start : start + _VERSIONS_AT_ONCE]
            checksum_names = (f"{version:020}.crc" for version in few_versions)
            checksums = read_checksums(log, [name for name in checksum_names if name in names])
            for entry in read_commits(log, few_versions):
                if isinstance(entry, str):
                    self.unreadable.append(entry)
                    continue
                checksum = checksums.get(entry.version, Checksum())
                yield entry, checksum
                changes_data = any(file.changes_data for file in entry.adds)
                self.commits.append(replace(entry, adds=_CHANGED_DATA if changes_data else (), removes=()))
                self.checksums[entry.version] = replace(checksum, keys=None)


@dataclass
class _Reading:
    """The results of reading a table with ``deltalake``.

    Attributes:
        open_problem: One sentence if ``deltalake`` cannot open the table, else None.
        problems: One sentence for each other problem.

    """

    rows_found: int | None = None
    rows_in_log: int | None = None
    duplicate_rows: int | None = None
    adoption: Adoption | None = None
    open_problem: str | None = None
    problems: list[str] = field(default_factory=list)


def _read_table(log: LogFolder, version: int, replay_result: Replay | None, key: tuple[str, ...]) -> _Reading:
    reading = _Reading()
    try:
        table = open_table(log, version)
    except (DeltaError, OSError) as error:
        reading.open_problem = f"deltalake cannot open the table: {error_text(error)}"
        return reading
    _refuse_unknown_columns(table, key)
    reading.adoption = Adoption.of(table.metadata().configuration)
    if replay_result is None:
        reading.rows_in_log = _rows_by_statistics(table)
    else:
        reading.rows_in_log = replay_result.rows
        reading.problems += _compare_files(table, replay_result)
    try:
        reading.rows_found = _count_rows(table)
        if key:
            reading.duplicate_rows, examples = _count_duplicates(table, key)
            if reading.duplicate_rows:
                duplicates = count_text(reading.duplicate_rows, "duplicate row")
                reading.problems.append(f"{duplicates} by ({', '.join(key)}), for example {examples}")
    except Exception as error:  # noqa: BLE001 (arro3 raises it for an unreadable file)
        reading.problems.append(f"the data cannot be read: {error_text(error)}")
    rows = (reading.rows_found, reading.rows_in_log)
    if None not in rows and rows[0] != rows[1]:
        reading.problems.append(f"{rows[0]} rows are in the data files, but {rows[1]} by the log's statistics")
    return reading


def _refuse_unknown_columns(table: DeltaTable, key: tuple[str, ...]) -> None:
    columns = [column.name for column in table.schema().fields]
    unknown_names = [name for name in key if name not in columns]
    if unknown_names:
        raise AuditError(f"the table has no column {unknown_names[0]!r}; it has {', '.join(columns)}")


def _compare_files(table: DeltaTable, replay_result: Replay) -> list[str]:
    """Return a problem if the data files of the snapshot differ from those of the version files.

    ``deltalake`` may read the snapshot from a checkpoint instead of the version files.
    """
    # Whether the snapshot has a file of the log, by path. A second set of paths would double the memory.
    in_snapshot = dict.fromkeys((path for path, _ in replay_result.files), False)
    snapshot_only = set()
    for path in column_values(table, "path"):
        if path in in_snapshot:
            in_snapshot[path] = True
        else:
            snapshot_only.add(path)
    common_count = sum(in_snapshot.values())
    missing_count = len(in_snapshot) - common_count
    if not missing_count and not snapshot_only:
        return []
    problem = (
        f"the version files add up to {len(in_snapshot)} data files and the snapshot has "
        f"{common_count + len(snapshot_only)}, but {missing_count} are missing from the snapshot, and "
        f"{len(snapshot_only)} are only in the snapshot; probably a checkpoint was written from other version files"
    )
    return [problem]


def _rows_by_statistics(table: DeltaTable) -> int | None:
    total = 0
    for count in column_values(table, "num_records"):
        if count is None:
            return None
        total += count
    deleted = 0
    if "deletionVectors" in (table.protocol().reader_features or ()):
        for batch in table.deletion_vectors():
            deleted += sum(mask.count(False) for mask in batch.column("selection_vector").to_pylist())
    return total - deleted


def _count_rows(table: DeltaTable) -> int:
    """Count rows by decoding a column of each data file. DataFusion answers ``count(*)`` from the log alone."""
    partitions = set(table.metadata().partition_columns)
    stored = [column for column in table.schema().fields if column.name not in partitions]
    column = next((column for column in stored if isinstance(column.type, PrimitiveType)), stored[0])
    return sum(batch.num_rows for batch in table.scan(columns=[column.name]))


def _count_duplicates(table: DeltaTable, key: tuple[str, ...]) -> tuple[int, str]:
    """Return the number of rows beyond the first of each key, and the worst keys as text. DataFusion counts."""
    columns = ", ".join('"' + name.replace('"', '""') + '"' for name in key)
    # Safe: only names of existing columns, quoted, are put into these statements.
    repeated_keys = f"SELECT {columns}, count(*) AS _times FROM checked GROUP BY {columns} HAVING count(*) > 1"  # noqa: S608
    query = QueryBuilder().register("checked", table)
    extra = query.execute(f"SELECT sum(_times - 1) AS extra FROM ({repeated_keys})").read_all()  # noqa: S608
    (total,) = extra.column("extra").to_pylist()
    if not total:
        return 0, ""
    worst = query.execute(f"{repeated_keys} ORDER BY _times DESC, {columns} LIMIT 3").read_all()
    rows = zip(*(worst.column(index).to_pylist() for index in range(len(key) + 1)), strict=True)
    return int(total), "; ".join(f"({', '.join(map(str, values))}) {times} times" for *values, times in rows)
