"""Read and write files on any file system that Spark knows, with Hadoop's ``FileSystem`` through py4j.

The driver's Hadoop already has the credentials, endpoints and schemes of the data. A second client in Python would need
all of them again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from py4j.java_gateway import is_instance_of
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from writer_jobs.delta.java_classes import java_class
from writer_jobs.delta.jvm_errors import JVM_ERRORS, error_reason, is_caused_by
from writer_jobs.errors import StorageError

_T = TypeVar("_T")
_GLOB_CHARACTERS = "\\{}[]*?"
_RENAME = "Options$Rename"
_NOT_FOUND = "java.io.FileNotFoundException"
# S3A sends ``If-None-Match: *`` for this option. Other stores check in their ordinary create, and ignore the option.
_IF_ABSENT = "fs.option.create.conditional.overwrite"


@dataclass(frozen=True, order=True)
class FileStatus:
    """Metadata of one file or folder.

    Attributes:
        path: Qualified path, with its scheme; not percent-encoded.
        length: Size in bytes.
        modified_ms: Modification time, milliseconds since the epoch; 0 where a store has none (folders on S3).

    """

    path: str
    length: int
    modified_ms: int
    is_folder: bool

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def is_hidden(self) -> bool:
        """Whether Spark ignores the file or folder by its name (its ``shouldFilterOutPathName`` and ``isDataPath``)."""
        # _day=3 is a folder of the column _day.
        is_private = self.name.startswith("_") and "=" not in self.name
        return is_private or self.name.startswith(".") or self.name.endswith("._COPYING_")


class HadoopFiles:
    """The file systems that a driver can reach.

    Every method raises :class:`StorageError` if the file system refuses or does not exist.
    """

    def __init__(self, jvm: Any, configuration: Any) -> None:
        self._jvm = jvm
        self._configuration = configuration

    @classmethod
    def of(cls, spark: SparkSession) -> HadoopFiles:
        """Return the file systems of a session's Hadoop configuration."""
        return cls(spark._jvm, spark._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001

    @classmethod
    def without_session(cls, conf: SparkConf) -> HadoopFiles:
        """Return the file systems of a driver's configuration (:func:`.session.driver_conf`), without a session."""
        jvm = SparkContext._jvm  # noqa: SLF001
        assert jvm is not None  # noqa: S101 (driver_conf has connected)
        hadoop = java_class(jvm, "org.apache.spark.deploy.SparkHadoopUtil").get()
        return cls(jvm, hadoop.newConfiguration(conf._jconf))  # noqa: SLF001

    def qualify(self, path: str) -> str:
        """Return ``path`` with scheme and host; a relative one is in the default file system's working folder."""

        def qualify(system: Any, location: Any) -> str:
            return str(location.makeQualified(system.getUri(), system.getWorkingDirectory()).toString())

        return self._call(path, qualify)

    def status(self, path: str) -> FileStatus | None:
        """Return the metadata of the file or folder at ``path``; None if there is none."""
        return self._call(path, lambda system, location: _status(system.getFileStatus(location)), absent=None)

    def children(self, folder: str) -> list[FileStatus]:
        """Return the files and folders in a folder, by name; an empty list if there is no such folder."""
        return self._call(folder, lambda system, location: _statuses(system.listStatus(location)), absent=[])

    def json_files(self, folder: str) -> list[FileStatus]:
        """Return the files ``*.json`` in a folder, by name. Files that are not yet complete are left out."""
        entries = self.children(folder)
        return [entry for entry in entries if entry.name.endswith(".json") and not entry.name.startswith(".")]

    def glob(self, pattern: str) -> list[FileStatus]:
        """Return the files and folders that match a pattern (``*``, ``?``, ``[a-z]``, ``{a,b}``), by path."""
        return self._call(pattern, lambda system, location: _statuses(system.globStatus(location) or []), absent=[])

    def read_text(self, path: str) -> str | None:
        """Return the text of a small file; None if there is no such file. A file that is not UTF-8 is an error, too."""

        def read(system: Any, location: Any) -> bytes:
            with closing(system.open(location)) as stream:
                return bytes(stream.readAllBytes())

        content = self._call(path, read, absent=None)
        try:
            return None if content is None else content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise StorageError(f"{path} is not text in UTF-8 ({error.reason} at byte {error.start:,})") from error

    def read_first_line(self, path: str) -> str | None:
        """Return the first line of a file of any size; None if there is no such file."""

        def read(system: Any, location: Any) -> str:
            decoder = java_class(self._jvm, "java.io.InputStreamReader")(system.open(location), "UTF-8")
            with closing(java_class(self._jvm, "java.io.BufferedReader")(decoder)) as reader:
                return str(reader.readLine() or "")

        return self._call(path, read, absent=None)

    def write_text(self, path: str, text: str) -> None:
        """Write a small file, or replace it.

        If the process is killed meanwhile, the old file or the new one exists. Object stores show a file only after it
        is closed.
        """

        def write(system: Any, location: Any) -> None:
            if _is_hdfs(system):
                self._rename_into_place(system, location, text, replace=True)
                return
            with closing(system.create(location, True)) as stream:  # noqa: FBT003 (overwrite)
                stream.write(bytearray(text.encode()))

        if (file := self._local_file(path)) is None:
            return self._call(path, write)
        try:
            return _replace(file, text)
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}") from error

    def create_text(self, path: str, text: str) -> None:
        """Write a small file. The file may exist already with the same text; another text raises StorageError.

        If two processes write at once, S3A (Hadoop 3.4.2), HDFS, ABFS and GCS refuse one of them. On a disk and on an
        older S3A the check and the write are two steps: use different names for different texts.
        """

        def create(system: Any, location: Any) -> None:
            if _is_hdfs(system):
                self._rename_into_place(system, location, text, replace=False)
                return
            builder = system.createFile(location).recursive().overwrite(False)  # noqa: FBT003 (overwrite)
            with closing(builder.opt(_IF_ABSENT, True).build()) as stream:  # noqa: FBT003 (value of the option)
                stream.write(bytearray(text.encode()))

        try:
            self._call(path, create)
        except StorageError:
            # If the response is lost, the client repeats the request, which then fails because of its own file.
            stored_text = self.read_text(path)
            if stored_text is None:
                raise
            if stored_text != text:
                raise StorageError(
                    f"{path} already exists with different content: remove it, or use another name"
                ) from None

    def _rename_into_place(self, system: Any, location: Any, text: str, *, replace: bool) -> None:
        """Write a file under a temporary name, and rename it. Unless ``replace`` is true, its name must be free."""
        hadoop_path, rename = (java_class(self._jvm, f"org.apache.hadoop.fs.{name}") for name in ("Path", _RENAME))
        temporary = hadoop_path(location.getParent(), f".{location.getName()}.{uuid.uuid4().hex}.tmp")
        try:
            with closing(system.create(temporary)) as stream:
                stream.write(bytearray(text.encode()))
            options = SparkContext._gateway.new_array(rename, 1)  # noqa: SLF001 (PySpark has no public way)
            options[0] = rename.OVERWRITE if replace else rename.NONE
            system.rename(temporary, location, options)
        except BaseException:
            with suppress(*JVM_ERRORS):
                system.delete(temporary, False)  # noqa: FBT003 (recursive)
            raise

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        self._call(path, lambda system, location: system.delete(location, False), absent=None)  # noqa: FBT003 (recursive)

    def _local_file(self, path: str) -> Path | None:
        """Return the path on a disk of this machine; None for another file system."""

        def local_path(system: Any, location: Any) -> Path | None:
            is_local = system.getUri().getScheme() == "file"
            return Path(str(system.pathToFile(location).getPath())) if is_local else None

        return self._call(path, local_path)

    def _call(self, path: str, operation: Callable[[Any, Any], _T], **absent: _T) -> _T:
        """Call an operation with the Hadoop ``FileSystem`` and ``Path`` of a path or pattern.

        If the path does not exist, return the value of the keyword ``absent``; without the keyword raise StorageError.
        """
        try:
            location = java_class(self._jvm, "org.apache.hadoop.fs.Path")(path)
            return operation(location.getFileSystem(self._configuration), location)
        except JVM_ERRORS as error:
            if absent and is_caused_by(error, _NOT_FOUND):
                return absent["absent"]
            raise StorageError(f"{path}: {error_reason(error)}") from error


def _status(entry: Any) -> FileStatus:
    return FileStatus(
        path=str(entry.getPath().toString()),
        length=int(entry.getLen()),
        modified_ms=int(entry.getModificationTime()),
        is_folder=bool(entry.isDirectory()),
    )


def _statuses(entries: Any) -> list[FileStatus]:
    return sorted(_status(entry) for entry in entries)


def _is_hdfs(system: Any) -> bool:
    gateway = SparkContext._gateway  # noqa: SLF001 (PySpark has no public way)
    return bool(is_instance_of(gateway, system, "org.apache.hadoop.hdfs.DistributedFileSystem"))


def _replace(file: Path, text: str) -> None:
    """Replace a file on a disk in one step, which Hadoop's local file system cannot do."""
    file = file.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and not file.is_file():
        # A device or a pipe, such as /dev/stdout, is written to. A folder raises an error.
        file.write_text(text, encoding="utf-8")
        return
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        # If Hadoop wrote the old file, its checksum file does not match the new one.
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def is_glob(source: str) -> bool:
    """Return whether a path is a pattern."""
    return any(character in source for character in _GLOB_CHARACTERS)


def escape_glob(path: str) -> str:
    """Escape the characters of a path that Spark's readers would read as a pattern."""
    return "".join("\\" + character if character in _GLOB_CHARACTERS else character for character in path)
