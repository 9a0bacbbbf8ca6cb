"""Checks that find overwritten versions. They are pure functions, like those of :mod:`sluice.audit.checks`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from sluice.audit.checks import ProblemList, limit_problems, version_ranges
from sluice.audit.log_files import Checksum, DataFile, LogCommit


@dataclass(frozen=True)
class Replay:
    """The state of a table that results from its version files.

    Attributes:
        files: The data files of the table, by key.
        problems: One sentence for each contradiction between versions; of many, the first few.

    """

    files: Mapping[tuple[str, str], DataFile]
    problems: Sequence[str]

    @property
    def rows(self) -> int | None:
        """Number of rows in the data files, by their statistics; None if a file has no statistics."""
        counts = [file.rows for file in self.files.values()]
        return None if None in counts else sum(filter(None, counts))


def replay(versions: Iterable[tuple[LogCommit, Checksum]]) -> Replay:
    """Apply the commits from version 0 on, and compare each state with its checksum file (empty if there is none).

    An overwritten version file causes contradictions: a commit adds a file that is in the table, or removes one that is
    not, or the sizes differ from those that later writers recorded. A writer derives its checksum from the previous
    one, so later checksums have the same difference. It is reported only at the first version that has it.
    """
    files: dict[tuple[str, str], DataFile] = {}
    added_by: dict[tuple[str, str], int] = {}
    size = 0
    last_compared, difference, reported = 0, (0, 0), set[int]()
    problems = ProblemList()
    for commit, checksum in versions:
        for file in commit.removes:
            removed_file = files.pop(file.key, None)
            added_by.pop(file.key, None)
            size -= removed_file.size if removed_file else 0
            if removed_file is None and file.changes_data:
                problems.add(f"version {commit.version} removes {file.path}, which is not in the table")
        for file in commit.adds:
            present_file = files.get(file.key)
            size += file.size - (present_file.size if present_file else 0)
            if present_file is not None and file.changes_data:
                problems.add(f"version {commit.version} adds {file.path}, which is in the table already")
            files[file.key] = file
            added_by[file.key] = commit.version
        if checksum.files is None or checksum.size is None:
            continue
        previous_difference, difference = difference, (len(files) - checksum.files, size - checksum.size)
        if difference not in ((0, 0), previous_difference):
            unseen_keys = set() if checksum.keys is None else files.keys() - checksum.keys
            unseen = {added_by[key] for key in unseen_keys} - reported
            reported |= unseen
            problems.add(
                f"up to version {commit.version} the log adds up to {len(files)} files of {size} bytes, but the "
                f"writer of that version recorded {checksum.files} of {checksum.size} bytes: "
                f"{_overwritten_text(last_compared, commit.version, unseen)}"
            )
        last_compared = commit.version
    return Replay(files, problems.sentences())


def _overwritten_text(last_compared: int, version: int, unseen: AbstractSet[int]) -> str:
    """Return a text that names the overwritten versions.

    Args:
        last_compared: The newest version below ``version`` with a checksum, 0 if there is none.
        version: The version whose checksum differs from the log.
        unseen: The versions that add files which the writer of this checksum did not see.

    """
    overwritten = sorted(unseen - {version})
    if overwritten:
        subject, verb = ("it", "was") if len(overwritten) == 1 else ("they", "were")
        return f"{version_ranges(overwritten)} {verb} overwritten after {subject} {verb} read"
    candidates = range(last_compared, version + 1)
    return f"one of {version_ranges(candidates)} was overwritten" if version else "version 0 was overwritten"


@limit_problems
def check_transactions(commits: Iterable[LogCommit], checksums: Mapping[int, Checksum]) -> Iterator[str]:
    """Find versions whose content and checksum are of different transactions.

    Each writer of a version may have written the checksum.
    """
    for commit in commits:
        txn_id = checksums.get(commit.version, Checksum()).txn_id
        if None not in (txn_id, commit.txn_id) and all(txn_id != write.txn_id for write in commit.writes):
            yield (
                f"version {commit.version} was overwritten: its checksum is of transaction {txn_id}, "
                f"its content of {commit.txn_id}"
            )


@limit_problems
def describe_overwritten(originals: Mapping[int, LogCommit]) -> Iterator[str]:
    """Describe each overwritten version whose original commit the store keeps."""
    for version, commit in sorted(originals.items()):
        transaction = f"transaction {commit.txn_id}" if commit.txn_id else "an unknown transaction"
        yield (
            f"version {version} was overwritten: the bucket keeps its first content, the commit of {transaction} "
            f"by {commit.engine or 'an unknown engine'}"
        )
