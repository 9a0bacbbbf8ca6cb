"""MySQL with a compressed binlog: all events of a transaction have one position, and each has rows of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from tests.integration.test_debezium import message, mysql_source
from tests.support.events_table import Message, frame
from writer_jobs import ChangesError, LockedDeltaWriter
from writer_jobs.feeds.debezium.apply import apply_events
from writer_jobs.feeds.debezium.decode import decode
from writer_jobs.feeds.debezium.decoded_batch import ORDER

pytestmark = pytest.mark.spark

#: Offsets, and places in the transaction, whose numbers and texts have different orders. The row of the second event is
#: smaller.
EARLIER, LATER = 9, 10
IN_TOPIC, IN_FILE = "t/0/{}", "file:/landing/t/0/{}"


def change(number: int, *, has_total_order: bool, origin: str = IN_TOPIC, **fields: Any) -> Message:
    """Return an update of one transaction."""
    transaction = {"id": "t", "total_order": number, "data_collection_order": 1} if has_total_order else None
    source = mysql_source("b.000001", 4, row=LATER - number)
    value = {"op": "u", "after": {"id": 1, "n": number}, "source": source, "transaction": transaction, **fields}
    return message({"id": 1}, value, origin.format(number))


@pytest.mark.parametrize("has_total_order", [True, False])
@pytest.mark.parametrize(
    ("batch_count", "order"),
    [
        (1, (LATER, EARLIER)),
        pytest.param(2, (EARLIER, LATER), marks=pytest.mark.full),
        pytest.param(2, (LATER, EARLIER), marks=pytest.mark.full),
    ],
)
def test_changes_of_a_compressed_transaction_are_ordered(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    tmp_path: Path,
    batch_count: int,
    order: tuple[int, ...],
    *,
    has_total_order: bool,
) -> None:
    origin = IN_FILE if has_total_order else IN_TOPIC
    messages = [change(number, has_total_order=has_total_order, origin=origin) for number in order]
    writer = LockedDeltaWriter(spark, manager, str(tmp_path / "table"))
    for batch in [messages] if batch_count == 1 else [[update] for update in messages]:
        apply_events(writer, frame(spark, batch))
    assert [row["n"] for row in spark.read.format("delta").load(str(tmp_path / "table")).collect()] == [LATER]


@pytest.mark.full
def test_offsets_order_changes_whose_numbers_begin_again(spark: SparkSession) -> None:
    """In DBZ-5127, a connector that is restarted in a transaction begins its numbers again."""
    # The negative control: a file gives no offsets, so the numbers order its events.
    for origin, newest in ((IN_TOPIC, LATER), (IN_FILE, EARLIER)):
        messages = [
            change(number, has_total_order=False, origin=origin, transaction={"id": "t", "total_order": place})
            for number, place in ((EARLIER, 2), (LATER, 1))
        ]
        with decode(frame(spark, messages), table=None) as batch:
            assert max(batch.changes.collect(), key=lambda row: row[ORDER])["n"] == newest


@pytest.mark.full
def test_a_file_gives_no_place_in_a_topic(spark: SparkSession) -> None:
    rivals = [change(number, has_total_order=False, origin=IN_FILE, row=0) for number in (EARLIER, LATER)]
    with decode(frame(spark, rivals), table=None) as batch:
        assert all(row[ORDER].count(".") == 3 for row in batch.changes.collect())


@pytest.mark.full
@pytest.mark.parametrize("options", [{"keys": ["id"]}, {"stored_as_scd_type": 2}])
def test_a_place_is_no_order_of_keys_in_several_partitions(
    spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path, options: Any
) -> None:
    rivals = [change(number, has_total_order=False, source=mysql_source("b.000001", 4)) for number in (EARLIER, LATER)]
    writer = LockedDeltaWriter(spark, manager, str(tmp_path / "table"))
    with pytest.raises(ChangesError, match="different changes of a key have the same sequence"):
        apply_events(writer, frame(spark, rivals), **options)


@pytest.mark.full
def test_a_position_of_an_earlier_release_accepts_later_changes(
    spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path
) -> None:
    writer = LockedDeltaWriter(spark, manager, str(tmp_path / "table"))

    def apply(row: int, pos: int, number: int, origin: str) -> int:
        value = {"op": "u", "after": {"id": 1, "n": number}, "source": mysql_source("b.000001", pos, row=row)}
        apply_events(writer, frame(spark, [message({"id": 1}, value, origin)]))
        return int(spark.read.format("delta").load(str(tmp_path / "table")).collect()[0]["n"])

    assert apply(3, 500, 1, "file:/landing/1.json") == 1
    assert apply(3, 500, 1, "t/0/7") == 1
    assert apply(0, 400, 2, "t/0/8") == 1
    assert apply(0, 600, 3, "t/0/9") == 3
