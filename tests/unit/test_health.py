"""Each rule on the health of a table, its row in docs/maintenance.md, and the maintenance policy."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from writer_jobs import TableError
from writer_jobs.job.maintain.arguments import _EPILOG
from writer_jobs.maintenance.findings import RENAMED_CODES, RULES, find, size_text
from writer_jobs.maintenance.health import FileTotals, FolderHealth, LogHealth, PartitionHealth, TableHealth
from writer_jobs.maintenance.policy import PREFIX, Action, Policy, parse_size

PAGE = Path(__file__).parents[2] / "docs" / "maintenance.md"
MIB = 1 << 20
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOG = LogHealth(
    total=FileTotals(3, 3000), first_version=0, versions=3, expired_versions=0,
    checkpoint_version=None, checkpointed_at=None, since_checkpoint=2, checkpoint_interval=10,
    retention_seconds=30 * 86_400, writers_clean=False,
)  # fmt: skip
HEALTHY_TABLE = TableHealth(
    table="file:/lake/t", table_id="id", version=2,
    committed_at=NOW, measured_at=NOW, measuring_seconds=0.1,
    partition_columns=("day",), target_file_size=128 * MIB,
    partitions=(PartitionHealth(values={"day": "1"}, total=FileTotals(4, 512 * MIB), rows=1000),),
    log=LOG, folder=FolderHealth(retention_seconds=7 * 86_400),
)  # fmt: skip
PART = HEALTHY_TABLE.partitions[0]


def partition(**changes: Any) -> dict[str, Any]:
    return {"partitions": (replace(PART, **changes),)}


UNHEALTHY: dict[str, tuple[dict[str, Any], Policy]] = {
    "small-files": (partition(small=FileTotals(6, 6 * MIB)), Policy()),
    "unordered": ({**partition(unordered=FileTotals(2, 200 * MIB)), "zorder_by": ("a",)}, Policy(zorder_by=("a",))),
    "invalid-zorder": ({"order_problem": "a is not a column of the table"}, Policy()),
    "unclustered": ({**partition(unclustered=FileTotals(2, 200 * MIB)), "clustering_columns": ("a",)}, Policy()),
    "deleted-rows": (
        partition(stored_rows=1060, deleted_rows=60, with_deleted_rows=FileTotals(1, 128 * MIB)),
        Policy(),
    ),
    "expired-rows": ({"remembered_rows": 10, "expired_rows": 2}, Policy()),
    "expired-files": ({"folder": FolderHealth(expired=FileTotals(1, 5))}, Policy()),
    "orphans": ({"folder": FolderHealth(orphans=FileTotals(1, 5))}, Policy()),
    "old-checkpoint": ({"log": replace(LOG, since_checkpoint=120)}, Policy()),
    "long-log": ({"log": replace(LOG, expired_versions=10)}, Policy()),
    "writers-clean-log": ({"log": replace(LOG, writers_clean=True)}, Policy()),
    "many-transactions": ({"log": replace(LOG, transactions=10_000, recent_transactions=7)}, Policy()),
    "long-retention": ({"folder": FolderHealth(removed=FileTotals(9, 600 * MIB))}, Policy()),
    "kept-for-streams": ({"folder": FolderHealth(kept_for_streams=FileTotals(9, 600 * MIB))}, Policy()),
    "broken-retention": ({"folder": FolderHealth(problem="it is not there", orphans=FileTotals(1, 5))}, Policy()),
    "tiny-partitions": (
        {
            "partitions": tuple(
                PartitionHealth(values={"day": str(day)}, total=FileTotals(1, MIB), small=FileTotals(1, MIB))
                for day in range(100)
            )
        },
        Policy(),
    ),
}


def test_a_healthy_table_has_no_findings() -> None:
    assert find(HEALTHY_TABLE, Policy()) == []
    assert UNHEALTHY.keys() == RULES.keys()


@pytest.mark.parametrize("code", RULES)
def test_each_rule_has_a_finding_that_is_documented(code: str) -> None:
    changes, policy = UNHEALTHY[code]
    (finding,) = find(replace(HEALTHY_TABLE, **changes), policy)
    assert finding.code == code
    assert finding.message
    assert finding.advice
    assert finding.worth > 0 or finding.action is None
    row = re.search(rf"^\| `{code}` \|.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert row is not None
    assert (f"`--{finding.action}`" in row[0]) == (finding.action is not None)


@pytest.mark.parametrize(("old", "new"), RENAMED_CODES.items())
def test_an_old_code_is_documented_with_its_new_name(old: str, new: str) -> None:
    assert (old in RULES, new in RULES) == (False, True)
    assert f"`{old}` for `{new}`" in re.sub(r"\s+", " ", PAGE.read_text(encoding="utf-8"))


def test_the_deleted_share_is_of_rows_in_files_with_statistics() -> None:
    # Some file has no statistics, so the number of rows is unknown.
    part = PartitionHealth(values={}, total=FileTotals(9, MIB), rows=None, stored_rows=1000, deleted_rows=1)
    assert part.deleted_share == 0.001
    assert replace(part, stored_rows=0, deleted_rows=0).deleted_share == 0.0


def test_the_most_valuable_finding_comes_first() -> None:
    smaller = PartitionHealth(values={"day": "1"}, total=FileTotals(9, MIB), small=FileTotals(9, MIB), rows=1)
    larger = replace(smaller, values={"day": "2"}, total=FileTotals(50, MIB), small=FileTotals(50, MIB))
    table = replace(HEALTHY_TABLE, partitions=(smaller, larger), log=replace(LOG, since_checkpoint=1000))
    checkpoint, compaction = find(table, Policy())
    assert (checkpoint.code, checkpoint.worth) == ("old-checkpoint", 1000)
    assert (compaction.code, compaction.worth) == ("small-files", 57)
    assert [dict(values) for values in compaction.partitions] == [{"day": "2"}, {"day": "1"}]


def test_the_help_has_every_property_and_numeric_default() -> None:
    # A description may continue on the next line.
    text = re.sub(r"\n {20,}", " ", _EPILOG)
    lines = dict(re.findall(rf"^  {re.escape(PREFIX)}(\w+) +(.*)$", text, re.MULTILINE))
    with pytest.raises(TableError) as error:
        Policy.of({f"{PREFIX}nothing": "1"}, "file:/t")
    assert lines.keys() == set(str(error.value).partition("valid names are ")[2].split(", "))
    policy = Policy()
    defaults: dict[str, object] = {
        "targetFileSize": f"{policy.target_file_size // MIB} MiB", "minSmallFiles": policy.min_small_files,
        "unorderedShare": policy.unordered_share, "deletedRowShare": policy.deleted_share,
        "expiredRowShare": policy.expired_share,
    }  # fmt: skip
    assert [name for name, default in defaults.items() if not lines[name].endswith(f"({default})")] == []
    assert Policy.of({}, "file:/t") == policy


def test_a_policy_is_read_from_properties() -> None:
    policy = Policy.of(
        {
            f"{PREFIX}targetFileSize": "64 MiB",
            f"{PREFIX}auto": "compact, clean-log",
            f"{PREFIX}zorderBy": "a, b",
            f"{PREFIX}streams": "s3a://x/_streams/y",
            "delta.targetFileSize": "1gb",
        },
        "file:/t",
    )
    assert policy.target_file_size == 64 * MIB
    assert policy.auto == {Action.COMPACT, Action.CLEAN_LOG}
    assert policy.zorder_by == ("a", "b")
    assert policy.streams == ("s3a://x/_streams/y",)
    assert Policy.of({"delta.targetFileSize": "1gb"}, "file:/t").target_file_size == 1 << 30
    assert Policy.of({f"{PREFIX}auto": "off"}, "file:/t").auto == frozenset()


@pytest.mark.parametrize("name", [f"{PREFIX}targetFileSize", "delta.targetFileSize"])
def test_the_error_names_the_invalid_property(name: str) -> None:
    with pytest.raises(TableError, match=f"invalid property {re.escape(name)} = 'big'"):
        Policy.of({name: "big"}, "file:/t")


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("64 MiB", 64 * MIB), ("1.5k", 1536), ("2GB", 2 << 30), ("100 b", 100)]
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "big", "-1", "0", "1 MiBs", "1 2"])
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a size such as"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1.5 * MIB, "1.5 MiB"), (3 << 40, "3.0 TiB")]
)
def test_sizes_are_formatted(size: float, text: str) -> None:
    assert size_text(size) == text


def test_files_saved_is_the_decrease_in_files() -> None:
    part = PartitionHealth(values={}, total=FileTotals(10, 300), small=FileTotals(10, 300))
    assert part.files_saved(100) == 7
    assert part.files_saved(1000) == 9
    assert PartitionHealth(values={}, total=FileTotals(1, 1), small=FileTotals(1, 1)).files_saved(100) == 0
    assert PartitionHealth(values={}, total=FileTotals()).files_saved(100) == 0
