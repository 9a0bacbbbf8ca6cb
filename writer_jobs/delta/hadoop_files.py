"""Files on any file system of Spark's: Hadoop's ``FileSystem`` through py4j, as far as the jobs need it.

The driver's Hadoop already knows the credentials, endpoints and schemes of the data; a second client in Python would
need all of them again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from writer_jobs.delta.jvm_errors import JVM_ERRORS, is_java, one_sentence
from writer_jobs.errors import StorageError

_T = TypeVar("_T")
_GLOB_CHARACTERS = "\\{}[]*?"
_NOT_FOUND = "java.io.FileNotFoundException"
# S3A sends ``If-None-Match: *`` for it; other stores have the condition in their ordinary create, and do not know it.
_IF_ABSENT = "fs.option.create.conditional.overwrite"


@dataclass(frozen=True, order=True)
class FileStatus:
    """What a file system says of one file or folder.

    Attributes:
        path: qualified, with scheme; not percent-encoded.
        length: bytes.
        modified_ms: modification time, milliseconds since the epoch; 0 where a store has none (folders on S3).
        is_folder: whether it is a folder.

    """

    path: str
    length: int
    modified_ms: int
    is_folder: bool

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def hidden(self) -> bool:
        """Whether Spark and Delta pass over it."""
        return self.name.startswith(("_", "."))


class HadoopFiles:
    """The file systems that a driver can reach.

    Every method raises :class:`StorageError` with one sentence if a file system refuses or does not exist.
    """

    def __init__(self, jvm: Any, configuration: Any) -> None:
        self._jvm = jvm
        self._configuration = configuration

    @classmethod
    def of(cls, spark: SparkSession) -> HadoopFiles:
        """Use a session's own Hadoop configuration."""
        return cls(spark._jvm, spark._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001

    @classmethod
    def without_session(cls, conf: SparkConf) -> HadoopFiles:
        """Use what a driver was given (:func:`.session.driver_conf`), before any session is started."""
        jvm = SparkContext._jvm  # noqa: SLF001
        assert jvm is not None  # noqa: S101 (driver_conf has connected)
        hadoop = jvm.org.apache.spark.deploy.SparkHadoopUtil.get()
        return cls(jvm, hadoop.newConfiguration(conf._jconf))  # noqa: SLF001

    def qualify(self, path: str) -> str:
        """Return ``path`` with scheme and host, relative ones below the working folder of the default file system."""

        def qualified() -> str:
            system, location = self._at(path)
            return str(location.makeQualified(system.getUri(), system.getWorkingDirectory()).toString())

        return self._asked(path, qualified)

    def status(self, path: str) -> FileStatus | None:
        """Return what is at ``path``, or None."""

        def status() -> FileStatus:
            system, location = self._at(path)
            return _status(system.getFileStatus(location))

        return self._asked(path, status, absent=None)

    def children(self, folder: str) -> list[FileStatus]:
        """Return what is in a folder, by name; nothing if there is no such folder."""

        def children() -> list[FileStatus]:
            system, location = self._at(folder)
            return sorted(_status(entry) for entry in system.listStatus(location))

        return self._asked(folder, children, absent=[])

    def glob(self, pattern: str) -> list[FileStatus]:
        """Return what a pattern matches (``*``, ``?``, ``[a-z]``, ``{a,b}``), by name."""

        def matches() -> list[FileStatus]:
            system, location = self._at(pattern)
            return sorted(_status(entry) for entry in system.globStatus(location) or [])

        return self._asked(pattern, matches, absent=[])

    def read_text(self, path: str) -> str | None:
        """Return a small file's text, or None if there is none.

        Raises:
            StorageError: it cannot be read, or is not UTF-8.

        """

        def read() -> bytes:
            system, location = self._at(path)
            stream = system.open(location)
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

        found = self._asked(path, read, absent=None)
        try:
            return None if found is None else found.decode("utf-8")
        except UnicodeDecodeError as error:
            raise StorageError(f"{path} is not text in UTF-8 ({error.reason} at byte {error.start:,})") from error

    def read_first_line(self, path: str) -> str | None:
        """Return the first line of a file of any size, or None if there is no such file."""

        def line() -> str:
            system, location = self._at(path)
            decoded = self._jvm.java.io.InputStreamReader(system.open(location), "UTF-8")
            reader = self._jvm.java.io.BufferedReader(decoded)
            try:
                return str(reader.readLine() or "")
            finally:
                reader.close()

        return self._asked(path, line, absent=None)

    def write_text(self, path: str, text: str) -> None:
        """Write a small file, replacing what was there.

        Whoever is killed over it leaves the old file or the new one on a disk and on an object store, which shows what
        is closed; on HDFS he may leave a part of it.

        Raises:
            StorageError: it cannot be written.

        """

        def write() -> None:
            system, location = self._at(path)
            stream = system.create(location, True)  # noqa: FBT003 (Java's overwrite)
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()

        if (file := self._on_disk(path)) is None:
            return self._asked(path, write)
        try:
            return _replace(file, text)
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}") from error

    def create_text(self, path: str, text: str) -> None:
        """Write a small file, never over another one; if there is one with this very text, that is as good.

        Of two that write at once, S3A (Hadoop 3.4.2), HDFS, ABFS and GCS refuse one. A disk and an older S3A look
        first, and then write: give different texts different names.

        Raises:
            StorageError: also if there is a file with another text.

        """

        def create() -> None:
            system, location = self._at(path)
            builder = system.createFile(location).recursive().overwrite(False)  # noqa: FBT003 (Java's)
            stream = builder.opt(_IF_ABSENT, True).build()  # noqa: FBT003 (likewise)
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()

        try:
            self._asked(path, create)
        except StorageError:
            # A request whose answer is lost is sent again, and then finds its own file.
            found = self.read_text(path)
            if found is None:
                raise
            if found != text:
                raise StorageError(f"{path} exists already with another text, and is not replaced") from None

    def remove(self, path: str) -> None:
        """Remove a file; one that is not there is as good.

        Raises:
            StorageError: it cannot be removed.

        """

        def remove() -> None:
            system, location = self._at(path)
            system.delete(location, False)  # noqa: FBT003 (Java's recursive)

        self._asked(path, remove, absent=None)

    def _on_disk(self, path: str) -> Path | None:
        """Return where a path is on a disk of this machine; None: it is elsewhere."""

        def file() -> Path | None:
            system, location = self._at(path)
            is_disk = system.getUri().getScheme() == "file"
            return Path(str(system.pathToFile(location).getPath())) if is_disk else None

        return self._asked(path, file)

    def _at(self, path: str) -> tuple[Any, Any]:
        location = self._jvm.org.apache.hadoop.fs.Path(path)
        return location.getFileSystem(self._configuration), location

    def _asked(self, path: str, question: Callable[[], _T], **absent: _T) -> _T:
        """Ask, and turn what the JVM throws into one sentence; ``absent`` answers for a path that is not there."""
        try:
            return question()
        except JVM_ERRORS as error:
            if absent and is_java(error, _NOT_FOUND):
                return absent["absent"]
            raise StorageError(f"{path}: {one_sentence(error)}") from error


def _status(entry: Any) -> FileStatus:
    return FileStatus(
        path=str(entry.getPath().toString()),
        length=int(entry.getLen()),
        modified_ms=int(entry.getModificationTime()),
        is_folder=bool(entry.isDirectory()),
    )


def _replace(file: Path, text: str) -> None:
    """Replace a file on a disk in one step, which Hadoop's local file system cannot do."""
    file = file.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and not file.is_file():
        # A device or a pipe, such as /dev/stdout, stays what it is; a folder refuses.
        file.write_text(text, encoding="utf-8")
        return
    hidden = file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp")
    try:
        hidden.write_text(text, encoding="utf-8")
        # Of a file that Hadoop wrote: its checksum is not that of the new one.
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        hidden.replace(file)
    finally:
        hidden.unlink(missing_ok=True)


def is_glob(source: str) -> bool:
    """Tell whether a source may stand for other names than its own."""
    return any(character in source for character in _GLOB_CHARACTERS)


def escaped(path: str) -> str:
    """Return a path as Spark's reader has to be given it, which takes every one for a pattern."""
    return "".join("\\" + character if character in _GLOB_CHARACTERS else character for character in path)
