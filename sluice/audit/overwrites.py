"""Finds versions that were overwritten. Pure: it reads no file and asks no server.

Each check returns sentences, one for each problem, and none if all is well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from sluice.audit.checks import shortened, version_ranges
from sluice.audit.log_files import Checksum, DataFile, LogCommit


@dataclass(frozen=True)
class Replay:
    """What the version files add up to.

    Attributes:
        files: data files that are in the table, by key.
        problems: where a version does not follow from those before it.

    """

    files: Mapping[tuple[str, str], DataFile]
    problems: Sequence[str]

    @property
    def rows(self) -> int | None:
        """Rows in those files, as their statistics say; None if one of them has none."""
        counts = [file.rows for file in self.files.values()]
        return None if None in counts else sum(count for count in counts if count is not None)


def replay(commits: Iterable[LogCommit], checksums: Mapping[int, Checksum]) -> Replay:
    """Apply the commits from version 0 on, and compare each state with its checksum file.

    A version file that was overwritten betrays itself: files come or go out of nothing, or the sizes differ
    from those that the writers after it saw. Later writers derive their checksums from the one before, so a
    difference is reported where it begins and not again while it stays the same.
    """
    files: dict[tuple[str, str], DataFile] = {}
    added_by: dict[tuple[str, str], int] = {}
    size = 0
    agreed, difference, named = 0, (0, 0), set[int]()
    problems = []
    for commit in commits:
        for file in commit.removes:
            removed = files.pop(file.key, None)
            size -= removed.size if removed else 0
            if removed is None and file.changes_data:
                problems.append(f"version {commit.version} removes {file.path}, which is not in the table")
        for file in commit.adds:
            present = files.get(file.key)
            size += file.size - (present.size if present else 0)
            if present is not None and file.changes_data:
                problems.append(f"version {commit.version} adds {file.path}, which is in the table already")
            files[file.key] = file
            added_by[file.key] = commit.version
        noted = checksums.get(commit.version, Checksum())
        if noted.files is None or noted.size is None:
            continue
        previous, difference = difference, (len(files) - noted.files, size - noted.size)
        if difference not in ((0, 0), previous):
            unseen = set() if noted.keys is None else {added_by[key] for key in files.keys() - noted.keys} - named
            named |= unseen
            problems.append(
                f"up to version {commit.version} the log adds up to {len(files)} files of {size} bytes, but its "
                f"writer saw {noted.files} of {noted.size} bytes: {_overwritten(agreed, commit.version, unseen)}"
            )
        agreed = commit.version
    return Replay(files, shortened(problems))


def _overwritten(agreed: int, version: int, unseen: AbstractSet[int]) -> str:
    """Name the versions that were overwritten.

    Args:
        agreed: newest version below ``version`` with a checksum, 0 if there is none.
        version: whose checksum differs from the log.
        unseen: versions that add files which the writer of this checksum did not see.

    """
    replaced = sorted(unseen - {version})
    if replaced:
        return f"{version_ranges(replaced)} {'was' if len(replaced) == 1 else 'were'} overwritten after it was read"
    return f"one of {version_ranges(range(agreed, version + 1))} was overwritten" if version else "it was overwritten"


def check_transactions(commits: Iterable[LogCommit], checksums: Mapping[int, Checksum]) -> list[str]:
    """Look for versions whose content and whose checksum come from different transactions."""
    return shortened(
        [
            f"version {commit.version} was overwritten: its checksum is of transaction {noted.txn_id}, "
            f"its content of {commit.txn_id}"
            for commit in commits
            if (noted := checksums.get(commit.version, Checksum())).txn_id is not None
            and commit.txn_id is not None
            and noted.txn_id != commit.txn_id
        ]
    )


def describe_replaced(replaced: Mapping[int, LogCommit]) -> list[str]:
    """Name the versions whose first content the store keeps, and the lost transaction of each."""
    return shortened(
        [
            f"version {version} was overwritten: the bucket keeps its first content, the commit of transaction "
            f"{commit.txn_id} by {commit.engine or 'an unknown engine'}"
            for version, commit in sorted(replaced.items())
        ]
    )
