"""The records of runs: by what split of what sources commits were made, so that they can be completed later.

A record lies in the table's folder, as ``_sluice/runs/<id>/<sha256 of the file>.json``, below a name that Delta,
Spark's readers and VACUUM pass over. It is written before the run's first commit. Each attempt to begin a run may leave
its own; each commit of the run notes the hash of the one that counts. So no record is ever replaced: a process that
lost its lock and goes on can add a record of which no commit speaks, and nothing else. Delta itself knows how far the
run came: commit *i* carries ``txnAppId`` = the run's id and ``txnVersion`` = *i*.

Earlier releases kept one record for each run, ``_sluice/runs/<id>.json``, and noted no hash in its commits. Such a run
can be completed by that record.
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
from writer_jobs.delta.jvm_errors import is_java
from writer_jobs.delta.table_log import DeltaTableLog, Head
from writer_jobs.errors import RunError, StorageError
from writer_jobs.job.append.split import SPLIT_RULE
from writer_jobs.job.inputs.source_files import SourceFiles

_RUNS_FOLDER = "_sluice/runs"
#: Reader options whose keys begin so are settings of a file system, credentials among them.
FILE_SYSTEM_OPTIONS = "fs."
_TORN = "org.apache.hadoop.fs.ChecksumException"
_FORMAT = 2
_FORMAT_WITH_VALUES = 1
_OPTIONS = "reader options"
_LONGEST_ID = 128
# Some 30 ms for each option, and for each guess at its value.
_HASH_ITERATIONS = 100_000


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
        basis: by name, everything on which the split depends but the schema; JSON values. Of the reader's options it
            has a salt and a hash of each value.
        schema: names and types with which the files are read.
        text: of the record; None of one that an earlier release wrote.

    """

    run_id: str
    basis: Mapping[str, Any]
    schema: StructType
    text: str | None = None

    @classmethod
    def begin(cls, run_id: str, basis: Mapping[str, Any], options: Mapping[str, str], schema: StructType) -> Run:
        """Describe a run that has no record yet.

        Args:
            run_id: its id.
            basis: see :func:`split_basis`.
            options: of the reader.
            schema: of the rows.

        """
        whole = {**basis, _OPTIONS: _hashed(options, secrets.token_hex(16))}
        record = {"format": _FORMAT, "id": run_id, "basis": whole, "schema": schema.jsonValue()}
        return cls(run_id, whole, schema, json.dumps(record, indent=1) + "\n")

    @property
    def digest(self) -> str | None:
        """Hash of the record, as the run's commits note it; None if they note none."""
        return None if self.text is None else _digest(self.text)

    def changes(self, basis: Mapping[str, Any], options: Mapping[str, str]) -> list[str]:
        """Name what is different now: of the options each one, but no value."""
        then = {name: value for name, value in self.basis.items() if name != _OPTIONS}
        changed = [name for name in sorted({*then, *basis}) if then.get(name) != basis.get(name)]
        before = self.basis[_OPTIONS]
        after = _hashed(options, before["salt"])["hashes"]
        before = before["hashes"]
        names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
        return changed + [f"reader option {name}" for name in names]


class RunRecords:
    """The records of one run in a table's folder.

    Args:
        files: to read and write them with.
        table_location: the table's folder.
        run_id: of the run.

    Every method raises :class:`StorageError` if a record cannot be read or written, and :class:`RunError` if it was
    written by an unknown release. A record that was torn when its writer was killed is passed over.

    """

    def __init__(self, files: HadoopFiles, table_location: str, run_id: str) -> None:
        self._files = files
        self._run_id = run_id
        name = f"{table_location}/{_RUNS_FOLDER}/{quote(run_id, safe='')}"
        #: Where the record of an earlier release is.
        self.earlier = f"{name}.json"
        #: Folder of the records. Without dots, so that it is neither "..", nor a file that an earlier release wrote.
        self.folder = f"{table_location}/{_RUNS_FOLDER}/{quote(run_id, safe='').replace('.', '%2E')}"

    def all(self) -> list[Run]:
        """Return every whole record, that of an earlier release last."""
        names = [entry.name for entry in self._files.children(self.folder)]
        digests = [name.removesuffix(".json") for name in names if name.endswith(".json")]
        return [run for run in (*map(self.noted, digests), self.of_earlier_release()) if run is not None]

    def only(self) -> Run | None:
        """Return the record if there is one file for it, and it is whole."""
        names = [entry.name for entry in self._files.children(self.folder)]
        return found[0] if len(names) <= 1 and len(found := self.all()) == 1 else None

    def noted(self, digest: str) -> Run | None:
        """Return the record with this hash."""
        text = self._text(f"{self.folder}/{digest}.json")
        # Torn, if its hash is another one.
        return self._parsed(text) if text is not None and _digest(text) == digest else None

    def of_earlier_release(self) -> Run | None:
        """Return the record that an earlier release wrote, which may have been replaced since its first commit."""
        text = self._text(self.earlier)
        return None if text is None else self._parsed(text)

    def save(self, run: Run) -> None:
        """Write a record, if it is not there yet. To be called before the run's first commit."""
        if run.text is not None:
            self._files.create_text(f"{self.folder}/{run.digest}.json", run.text)

    def _text(self, path: str) -> str | None:
        try:
            return self._files.read_text(path)
        except StorageError as error:
            # On a disk Hadoop keeps a checksum beside the file, which a torn one does not fit.
            if error.__cause__ is not None and is_java(error.__cause__, _TORN):
                return None
            raise

    def _parsed(self, text: str) -> Run | None:
        try:
            record = json.loads(text)
            form, basis, schema = record["format"], record["basis"], StructType.fromJson(record["schema"])
        except (ValueError, KeyError, TypeError):
            return None
        if form not in (_FORMAT, _FORMAT_WITH_VALUES):
            raise RunError(
                f"the record of run {self._run_id!r} was written by an unknown release (format {form}): complete "
                "it with that one, or choose another run id"
            )
        if form == _FORMAT:
            return Run(record["id"], basis, schema, text)
        # It has the values themselves, and those of options that are refused by now.
        options = {name: value for name, value in basis[_OPTIONS].items() if not name.startswith(FILE_SYSTEM_OPTIONS)}
        return Run(record["id"], {**basis, _OPTIONS: _hashed(options, "")}, schema)


def split_basis(spark: SparkSession, *, sources: SourceFiles, file_format: str, commits: int) -> dict[str, Any]:
    """Collect what the split depends on, beside the schema and the reader's options.

    The session's time zone and parsers decide how CSV and JSON times are read, Spark's version how anything is. The
    partitioning is not among it: it decides in which files a part lies, not which rows are in it.
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
    """Return the record of a run that has commits in the table, and the newest version that may be one of them.

    A record is written before the first commit of its run, so the only one there is it is. Where there are several, the
    newest commit of the run says which one: the log is read backwards until that commit.

    Args:
        records: of the run.
        log: of the table.
        run_id: of the run.
        head: of the log, which knows transactions of this run.

    Raises:
        RunError: there is no such record, or several that could be it.
        StorageError: the log or a record cannot be read.

    """
    if (only := records.only()) is not None:
        return only, head.version
    note, version = log.find_run(run_id, newest=head.version)
    if note is not None:
        digest = note.get("basis")
        run = records.of_earlier_release() if digest is None else records.noted(str(digest))
        if run is None:
            where = records.earlier if digest is None else f"{records.folder}/{digest}.json"
            raise RunError(
                f"run {run_id!r} has commits in the table (up to {head.last_transaction}), and the record by which "
                f"they were made is missing or damaged: restore {where}, or choose another run id for the rows that "
                "are not in the table"
            )
        return run, version
    if version > 0 and records.all():
        raise RunError(
            f"run {run_id!r} was begun more than once, and the log no longer has its commits (up to "
            f"{head.last_transaction}), which say by which record: choose another run id for the rows that are not in "
            "the table"
        )
    raise RunError(
        f"the table has transactions of {run_id!r} already (up to {head.last_transaction}), but no record of such a "
        "run: choose another run id"
    )


def check_same_basis(run: Run, basis: Mapping[str, Any], options: Mapping[str, str], done: int) -> None:
    """Make sure that a run of which ``done`` commits are in the table can be completed from ``basis`` and ``options``.

    Raises:
        RunError: it is of another split.

    """
    changed = run.changes(basis, options)
    if changed:
        raise RunError(
            f"run {run.run_id!r} has {done} of {run.basis.get('number of commits')} commits in the table already, and "
            f"since then the {' and the '.join(changed)} changed: bring them back, or choose another run id"
        )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _hashed(options: Mapping[str, str], salt: str) -> dict[str, Any]:
    """Hash each value slowly, with the salt and its own name: equal values of two options, or two records, differ."""

    def hashed(name: str, value: str) -> str:
        return hashlib.pbkdf2_hmac("sha256", value.encode(), f"{salt} {name}".encode(), _HASH_ITERATIONS).hex()

    return {
        "salt": salt,
        "hashes": {name: hashed(name, value) for name, value in sorted((k.lower(), v) for k, v in options.items())},
    }
