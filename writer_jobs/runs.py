"""The record of a run: by what split of what sources its commits were made, so that they can be completed later.

It lies in the table's folder, as ``_sluice/runs/<id>.json``, below a name that Delta, Spark's readers and VACUUM pass
over. It is written under the table's lock before the run's first commit, and from then on never changed. Delta itself
knows how far the run came: commit *i* carries ``txnAppId`` = the run's id and ``txnVersion`` = *i*.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from writer_jobs.errors import RunError
from writer_jobs.hadoop_files import FileStatus, HadoopFiles
from writer_jobs.split import SPLIT_RULE

RUNS_FOLDER = "_sluice/runs"
_FORMAT = 1
_LONGEST_ID = 128


def check_run_id(run_id: str) -> str:
    """Return a usable run id as it is.

    Raises:
        RunError: it is empty, longer than 128 characters, or has a control character.

    """
    if not run_id.strip() or len(run_id) > _LONGEST_ID or not run_id.isprintable():
        raise RunError(f"run id {run_id!r} is no name of 1 to {_LONGEST_ID} printable characters")
    return run_id


@dataclass(frozen=True)
class Run:
    """What decides which row is in which commit.

    Attributes:
        run_id: chosen by the user, unique in the table.
        basis: by name, everything on which the split depends but the schema; JSON values.
        schema: names and types with which the files are read.

    """

    run_id: str
    basis: Mapping[str, Any]
    schema: StructType

    @property
    def location(self) -> str:
        """Path of the record, below the table's folder."""
        return f"{RUNS_FOLDER}/{quote(self.run_id, safe='')}.json"


def split_basis(
    spark: SparkSession,
    *,
    files: Sequence[FileStatus],
    file_format: str,
    options: Mapping[str, str],
    commits: int,
) -> dict[str, Any]:
    """Collect what the split depends on, beside the schema.

    The session's time zone and parsers decide how CSV and JSON times are read, Spark's version how anything is. The
    partitioning is not among it: it decides in which files a part lies, not which rows are in it.
    """
    return {
        "source files": [[file.path, file.length, file.modified_ms] for file in files],
        "format": file_format,
        "reader options": dict(sorted((name.lower(), value) for name, value in options.items())),
        "number of commits": commits,
        "session time zone": spark.conf.get("spark.sql.session.timeZone"),
        "time parser policy": spark.conf.get("spark.sql.legacy.timeParserPolicy"),
        "case sensitivity": spark.conf.get("spark.sql.caseSensitive"),
        "Spark version": spark.version,
        "split rule": SPLIT_RULE,
    }


def load_run(files: HadoopFiles, table_location: str, run_id: str) -> Run | None:
    """Read the record of a run, None if there is none, or only a torn one of a job that was killed while writing it.

    Raises:
        StorageError: it cannot be read.
        RunError: it was written by an unknown release.

    """
    text = files.read_text(f"{table_location}/{Run(run_id, {}, StructType()).location}")
    try:
        record = json.loads(text) if text else None
        if not isinstance(record, dict):
            return None
        if record.get("format") != _FORMAT:
            raise RunError(
                f"the record of run {run_id!r} was written by an unknown release (format {record['format']})"
            )
        return Run(record["id"], record["basis"], StructType.fromJson(record["schema"]))
    except (ValueError, KeyError) as error:
        if isinstance(error, RunError):
            raise
        return None


def save_run(files: HadoopFiles, table_location: str, run: Run) -> None:
    """Write the record, over that of an earlier attempt. Only under the table's lock, before the first commit.

    Raises:
        StorageError: it cannot be written.

    """
    record = {
        "format": _FORMAT,
        "id": run.run_id,
        "basis": run.basis,
        "schema": run.schema.jsonValue(),
        "written_at": time.time(),
    }
    files.write_text(f"{table_location}/{run.location}", json.dumps(record, indent=1) + "\n")


def check_same_basis(recorded: Run | None, basis: Mapping[str, Any], run_id: str, done: int) -> Run:
    """Return the record of a run of which ``done`` commits are in the table, if it can be completed from ``basis``.

    Raises:
        RunError: there is no record, or it is of another split.

    """
    if recorded is None:
        raise RunError(
            f"the table has transactions of {run_id!r} already (up to {done}), but no record of such a run: "
            "choose another run id"
        )
    # Through JSON, as the recorded one went: tuples are lists there.
    now = json.loads(json.dumps(basis))
    changed = [name for name in sorted({*recorded.basis, *now}) if recorded.basis.get(name) != now.get(name)]
    if changed:
        raise RunError(
            f"run {run_id!r} has {done} of {recorded.basis.get('number of commits')} commits in the table already, and "
            f"since then the {' and the '.join(changed)} changed: bring them back, or choose another run id"
        )
    return recorded
