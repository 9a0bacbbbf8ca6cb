"""The jobs of a mixed soak as commands: ours, and the same without a lock on stock Delta."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import writer_jobs
from sluice.demo.processes import submit_command
from soak.mixed.feeds import APPEND, CDC, STREAM, UPSERT

#: The maintainer, which has no feed.
MAINTAIN = "maintain"
#: A slow reader of the table, which writes nothing to it.
READER = "reader"
_PREPARE, _READER = (Path(__file__).with_name(f"{name}_job.py") for name in ("prepare", "reader"))
# It reads when it is started, and then not again before it was killed: far longer than removed files are spared without
# it.
_SLOWLY = "1 hour"
#: For :func:`reader_job`: to the end of the table, once.
AVAILABLE_NOW = "available-now"
_STOCK = Path(__file__).with_name("stock_job.py")
_KEYS = "feed,month,id"
_OURS = Path(writer_jobs.__file__).parent
_TRIGGER = "5 seconds"
_CONF = {"spark.sql.session.timeZone": "UTC"}


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the jobs of one run work.

    Attributes:
        hosts: of the ensemble.
        table: location of the table.
        landing: folder with a folder of files for each feed.
        checkpoints: folder for those of the streams.
        changes: folder for what the slow reader reads.
        pinned: version that is pinned, from which on the slow reader reads.

    """

    hosts: str
    table: Path
    landing: Path
    checkpoints: Path
    changes: Path
    pinned: int = 0


def our_job(name: str, places: Places, conf: Mapping[str, str], *, file: Path | None = None) -> list[str]:
    """Return the ``spark-submit`` line of one of our jobs.

    Args:
        name: of the feed, or :data:`MAINTAIN`.
        places: where it works.
        conf: Spark's settings.
        file: that is appended.

    """
    if name == READER:
        return reader_job(places, conf)
    common = ["--zookeeper", places.hosts, "--table", str(places.table)]
    stream = ["--trigger", _TRIGGER, "--checkpoint", str(places.checkpoints / name)]
    source = ["--source", str(places.landing / name), "--format", "json"]
    arguments = {
        APPEND: [
            "--source", str(file), "--format", "parquet", "--partition-by", "month", "--commits", "10",
            "--run-id", "" if file is None else file.stem,
        ],
        UPSERT: [*source, "--keys", _KEYS, "--sequence-by", "position", "--partition-by", "month", *stream],
        CDC: [
            *source, "--decoder", "debezium", "--sequence-by", "cast(source.position as bigint)", "--partition-by",
            "month", *stream,
        ],
        STREAM: [
            *source, "--keys", "feed,id", "--event-time", "at", "--sequence-by", "position", "--partition-by",
            "month", *stream,
        ],
        MAINTAIN: ["--auto", "--lock-timeout", "60"],
    }[name]  # fmt: skip
    return submit_command(_OURS / f"{name}.py", [*common, *arguments], conf={**_CONF, **conf})


def prepare_job(places: Places, conf: Mapping[str, str]) -> list[str]:
    """Return the line of what gives the table a pin, and names the slow reader."""
    arguments = [str(places.table), str(places.checkpoints / READER), places.hosts]
    return submit_command(_PREPARE, arguments, conf={**_CONF, **conf})


def reader_job(places: Places, conf: Mapping[str, str], *, trigger: str = _SLOWLY) -> list[str]:
    """Return the line of the slow reader."""
    checkpoint = str(places.checkpoints / READER)
    arguments = [str(places.table), checkpoint, str(places.changes), str(places.pinned), trigger]
    return submit_command(_READER, arguments, conf={**_CONF, **conf})


def stock_job(name: str, places: Places, conf: Mapping[str, str], *, file: Path | None = None) -> list[str]:
    """Return the ``spark-submit`` line of the same with stock Delta, and without a lock."""
    source = places.landing / name if file is None else file
    arguments = [name, str(places.table), str(source), str(places.checkpoints / name), _TRIGGER]
    return submit_command(_STOCK, arguments, conf={**_CONF, **conf})
