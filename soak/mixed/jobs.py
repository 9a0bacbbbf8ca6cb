"""The commands of the jobs of a mixed soak: the product's jobs, and stock Delta without a lock."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import writer_jobs
from sluice.demo.processes import submit_command
from soak.mixed.feeds import APPEND, CDC, STREAM, UPSERT

#: The maintainer, which has no feed.
MAINTAIN = "maintain"
#: The slow reader of the table, which writes nothing to it.
READER = "reader"
_PREPARE, _READER = (Path(__file__).with_name(f"{name}_job.py") for name in ("prepare", "reader"))
# The slow reader reads one batch after each start. If maintenance did not keep the replaced files for it, VACUUM would
# delete them long before the next batch.
_SLOW_TRIGGER = "1 hour"
#: Trigger of :func:`reader_job` that reads to the end of the table once.
AVAILABLE_NOW = "available-now"
_STOCK = Path(__file__).with_name("stock_job.py")
_KEYS = "feed,month,id"
_PRODUCT = Path(writer_jobs.__file__).parent
_TRIGGER = "5 seconds"
_CONF = {"spark.sql.session.timeZone": "UTC"}


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The ensemble, the table and the folders of one run.

    Attributes:
        hosts: Connection string of the ensemble.
        table: Location of the table.
        landing: Folder that contains a folder of files for each feed.
        checkpoints: Folder of the streaming checkpoints.
        changes: Folder for the files of the slow reader.
        pinned: Pinned version, at which the slow reader starts.

    """

    hosts: str
    table: Path
    landing: Path
    checkpoints: Path
    changes: Path
    pinned: int = 0


def locked_job(name: str, workspace: Workspace, *, file: Path | None = None) -> list[str]:
    """Return the ``spark-submit`` command of one of the product's jobs or of the slow reader.

    Args:
        name: Name of the feed, :data:`MAINTAIN` or :data:`READER`.
        workspace: Ensemble, table and folders of the run.
        file: File to append; only for the append job.

    """
    if name == READER:
        return reader_job(workspace)
    common = ["--zookeeper", workspace.hosts, "--table", str(workspace.table)]
    stream = ["--trigger", _TRIGGER, "--checkpoint", str(workspace.checkpoints / name)]
    source = ["--source", str(workspace.landing / name), "--format", "json"]
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
    return submit_command(_PRODUCT / f"{name}.py", [*common, *arguments], conf=_CONF)


def prepare_job(workspace: Workspace) -> list[str]:
    """Return the command of the job that pins the table and names the slow reader in its properties."""
    arguments = [str(workspace.table), str(workspace.checkpoints / READER), workspace.hosts]
    return submit_command(_PREPARE, arguments, conf=_CONF)


def reader_job(workspace: Workspace, *, trigger: str = _SLOW_TRIGGER) -> list[str]:
    """Return the command of the slow reader."""
    checkpoint = str(workspace.checkpoints / READER)
    arguments = [str(workspace.table), checkpoint, str(workspace.changes), str(workspace.pinned), trigger]
    return submit_command(_READER, arguments, conf=_CONF)


def stock_job(name: str, workspace: Workspace, *, file: Path | None = None) -> list[str]:
    """Return the command that runs a job of :func:`locked_job` with stock Delta and without a lock."""
    source = workspace.landing / name if file is None else file
    arguments = [name, str(workspace.table), str(source), str(workspace.checkpoints / name), _TRIGGER]
    return submit_command(_STOCK, arguments, conf=_CONF)
