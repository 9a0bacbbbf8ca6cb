"""Records of runs: the sources and the split of a run's commits, so that a later process can complete the run.

A record is the file ``_sluice/runs/<id>/<sha256 of the file>.json`` in the table's folder, below a name that Delta,
Spark's readers and VACUUM skip. It is written before the run's first commit. Each attempt to begin a run may leave a
record. Each commit of the run notes the hash of the valid record. So no record is replaced: a process that lost its
lock and continues can only add a record that no commit notes. Delta's log has the run's progress: commit *i* carries
``txnAppId`` = the run's id and ``txnVersion`` = *i*.

Earlier releases wrote one record for each run, ``_sluice/runs/<id>.json``, and noted no hash in its commits. A later
process can complete such a run with that record.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import is_caused_by
from writer_jobs.delta.table_log import DeltaTableLog, Head
from writer_jobs.errors import RunError, StorageError
from writer_jobs.job.append.split import SPLIT_RULE
from writer_jobs.job.inputs.source_files import SourceFiles, newest_modification

_RUNS_FOLDER = "_sluice/runs"
#: Prefix of reader options that are settings of a file system, such as credentials.
FILE_SYSTEM_PREFIX = "fs."
_CHECKSUM_ERROR = "org.apache.hadoop.fs.ChecksumException"
_FORMAT = 2
_FORMAT_WITH_VALUES = 1
_OPTIONS = "reader options"
_LONGEST_ID = 128
# About 30 ms for each option, and for each guess at its value.
_HASH_ITERATIONS = 100_000


def check_run_id(run_id: str) -> None:
    """Make sure that a run id is valid.

    Raises:
        RunError: The id is blank, longer than 128 characters, or has a character that is not printable.

    """
    if not run_id.strip() or len(run_id) > _LONGEST_ID or not run_id.isprintable():
        raise RunError(f"run id {run_id!r} must have 1 to {_LONGEST_ID} printable characters")


@dataclass(frozen=True)
class Run:
    """A run: the inputs that determine the commit of each row.

    Attributes:
        run_id: Id that the user chose, unique in the table.
        basis: All inputs of the split except the schema, by name; JSON values. Of the reader's options it has a salt
            and a hash of each value.
        schema: Names and types to read the files with.
        text: Text of the record; None for a record of an earlier release.

    """

    run_id: str
    basis: Mapping[str, Any]
    schema: StructType
    text: str | None = None

    @classmethod
    def begin(cls, run_id: str, basis: Mapping[str, Any], options: Mapping[str, str], schema: StructType) -> Run:
        """Return a new run, which has no record yet. ``basis`` comes from :func:`split_basis`."""
        full_basis = {**basis, _OPTIONS: _hash_options(options, secrets.token_hex(16))}
        record = {"format": _FORMAT, "id": run_id, "basis": full_basis, "schema": schema.jsonValue()}
        return cls(run_id, full_basis, schema, json.dumps(record, indent=1) + "\n")

    @property
    def digest(self) -> str | None:
        """Hash of the record, which the run's commits note; None for a record of an earlier release."""
        return None if self.text is None else _digest(self.text)

    @property
    def sources_modified(self) -> float:
        """Modification time of the newest source file, in seconds since the epoch. The run's commits are younger."""
        return newest_modification(self.basis["source files"])

    def changed_inputs(self, basis: Mapping[str, Any], options: Mapping[str, str]) -> list[str]:
        """Return the names of the inputs and options that differ from the record, without their values."""
        recorded_basis = {name: value for name, value in self.basis.items() if name != _OPTIONS}
        recorded_options = self.basis[_OPTIONS]
        hashes = _hash_options(options, recorded_options["salt"])["hashes"]
        changed_options = _differing_names(recorded_options["hashes"], hashes)
        return [*_differing_names(recorded_basis, basis), *(f"reader option {name}" for name in changed_options)]


class RunRecords:
    """The records of one run in a table's folder.

    Every method raises :class:`StorageError` if a record cannot be read or written, and :class:`RunError` if an unknown
    release wrote a record. An incomplete record, whose writer was killed, is skipped.
    """

    def __init__(self, files: HadoopFiles, table_location: str, run_id: str) -> None:
        self._files = files
        self._run_id = run_id
        name = f"{table_location}/{_RUNS_FOLDER}/{quote(run_id, safe='')}"
        #: Path of the record of an earlier release.
        self.earlier_path = f"{name}.json"
        #: Folder of the records. Without dots, so it is not ".." and not a file that an earlier release wrote.
        self.folder = f"{table_location}/{_RUNS_FOLDER}/{quote(run_id, safe='').replace('.', '%2E')}"

    def all(self) -> list[Run]:
        """Return every complete record, with that of an earlier release last."""
        digests = [file.name.removesuffix(".json") for file in self._files.json_files(self.folder)]
        return [run for run in (*map(self.with_digest, digests), self.of_earlier_release()) if run is not None]

    def only_record(self) -> Run | None:
        """Return the only complete record, if the folder has at most one file; else None."""
        files = self._files.json_files(self.folder)
        return runs[0] if len(files) <= 1 and len(runs := self.all()) == 1 else None

    def with_digest(self, digest: str) -> Run | None:
        """Return the record with this hash; None if it is missing or incomplete."""
        text = self._text(f"{self.folder}/{digest}.json")
        return self._parse(text) if text is not None and _digest(text) == digest else None

    def of_earlier_release(self) -> Run | None:
        """Return the record of an earlier release; None if there is none.

        Earlier releases could replace the record after the run's first commit.
        """
        text = self._text(self.earlier_path)
        return None if text is None else self._parse(text)

    def save(self, run: Run) -> None:
        """Write a record if it does not exist. Called before the run's first commit."""
        if run.text is not None:
            self._files.create_text(f"{self.folder}/{run.digest}.json", run.text)

    def _text(self, path: str) -> str | None:
        try:
            return self._files.read_text(path)
        except StorageError as error:
            # On a disk Hadoop stores a checksum, which an incomplete file does not match.
            if error.__cause__ is not None and is_caused_by(error.__cause__, _CHECKSUM_ERROR):
                return None
            raise

    def _parse(self, text: str) -> Run | None:
        try:
            record = json.loads(text)
            record_format, basis = record["format"], record["basis"]
            schema = StructType.fromJson(record["schema"])
        except (ValueError, KeyError, TypeError):
            return None
        if record_format not in (_FORMAT, _FORMAT_WITH_VALUES):
            raise RunError(
                f"the record of run {self._run_id!r} was written by an unknown release (format {record_format}): "
                "complete the run with that release, or choose another run id"
            )
        if record_format == _FORMAT:
            return Run(record["id"], basis, schema, text)
        # This format has the values of all options, also of those that are refused now.
        options = {name: value for name, value in basis[_OPTIONS].items() if not name.startswith(FILE_SYSTEM_PREFIX)}
        return Run(record["id"], {**basis, _OPTIONS: _hash_options(options, "")}, schema)


def split_basis(spark: SparkSession, *, sources: SourceFiles, file_format: str, commits: int) -> dict[str, Any]:
    """Return the inputs of the split except the schema and the reader's options.

    CSV and JSON times depend on the session's time zone and parsers, and all values on Spark's version. The table's
    partitioning does not affect the split: it determines the files of a part, not its rows.
    """
    return {
        "source files": sources.basis,
        "format": file_format,
        "number of commits": commits,
        "session time zone": spark.conf.get("spark.sql.session.timeZone"),
        "time parser policy": spark.conf.get("spark.sql.legacy.timeParserPolicy"),
        "case sensitivity": spark.conf.get("spark.sql.caseSensitive"),
        "Spark version": spark.version,
        "split rule": SPLIT_RULE,
    }


def begun_run(records: RunRecords, log: DeltaTableLog, run_id: str, head: Head) -> tuple[Run, int]:
    """Return the record of a run that has commits in the table, and the newest version that can be one of them.

    A record is written before the first commit of its run, so a single record is the valid one. Of several records, the
    newest commit of the run notes the valid one: the log is read backwards to that commit. ``head`` is the head of the
    log, and has transactions of this run.

    Raises:
        RunError: The record is missing, or several records can be the valid one.
        StorageError: The log or a record cannot be read.

    """
    if (only_record := records.only_record()) is not None:
        return only_record, head.version
    note, version = log.find_run(run_id, newest=head.version)
    if note is not None:
        digest = note.get("basis")
        run = records.of_earlier_release() if digest is None else records.with_digest(str(digest))
        if run is None:
            path = records.earlier_path if digest is None else f"{records.folder}/{digest}.json"
            raise RunError(
                f"run {run_id!r} has commits in the table (up to {head.last_transaction}), and the record by which "
                f"they were made is missing or damaged: restore {path}, or choose another run id for the rows that "
                "are not in the table"
            )
        return run, version
    if version > 0 and records.all():
        raise RunError(
            f"run {run_id!r} was begun more than once, and the log no longer has the commits (up to "
            f"{head.last_transaction}) that note the valid record: choose another run id for the rows that are not in "
            "the table"
        )
    raise RunError(
        f"the table already has transactions of {run_id!r} (up to {head.last_transaction}), but no record of such a "
        "run: choose another run id"
    )


def check_same_basis(run: Run, basis: Mapping[str, Any], options: Mapping[str, str], committed: int) -> None:
    """Make sure that a run with ``committed`` commits in the table can be completed from ``basis`` and ``options``.

    Raises:
        RunError: The run has another split.

    """
    changed_inputs = run.changed_inputs(basis, options)
    if changed_inputs:
        raise RunError(
            f"run {run.run_id!r} has {committed} of {run.basis.get('number of commits')} commits in the table already, "
            f"and since then the {' and the '.join(changed_inputs)} changed: restore them, or choose another run id"
        )


def _differing_names(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    return [name for name in sorted({*recorded, *current}) if recorded.get(name) != current.get(name)]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _hash_options(options: Mapping[str, str], salt: str) -> dict[str, Any]:
    """Return the salt, and a slow hash of each value. The option's name makes the hashes of equal values differ."""

    def hashed(name: str, value: str) -> str:
        return hashlib.pbkdf2_hmac("sha256", value.encode(), f"{salt} {name}".encode(), _HASH_ITERATIONS).hex()

    sorted_options = sorted((name.lower(), value) for name, value in options.items())
    return {"salt": salt, "hashes": {name: hashed(name, value) for name, value in sorted_options}}
