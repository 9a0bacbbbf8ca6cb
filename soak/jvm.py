"""A JVM without Spark that runs the guarded log store, and the calls into it that a writer of the soak needs.

Only one Python thread may call the JVM at a time. Py4J serves each connection in a separate Java thread, and the log
store finds the block by the Java thread, so there must be only one connection. Therefore Py4J's memory management is
off: it would open connections when Python collects garbage. Instead, :meth:`StoreJvm.versions` releases the Java
objects of earlier calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from lock_manager.guard.guard_server import CommitDecider, GuardServer
from soak.errors import JvmError, JvmGoneError, StoreError, VersionTakenError, WriteError
from soak.gateway import connect, start_jvm
from soak.hadoop import allow_short_timeouts

_SCHEMA = "message spark_schema { required int64 id; }"


class StoreJvm:
    """The guarded log store in a separate process, which ends when this process ends.

    A table is named by its URI, for example ``s3a://lake/soak``. All methods raise StoreError for an exception of
    Java, and JvmGoneError if the JVM has ended.

    Args:
        hadoop: Hadoop's settings, without the prefix ``spark.hadoop.``.
        guard: Decides on every commit.
        mode: Mode of the commit guard, ``required`` or ``off``.
        conditional: Whether to write with the guarded store. If not, Delta's ``S3SingleDriverLogStore`` writes.
        stderr_path: Log file for the JVM's standard error.

    Attributes:
        pid: Process id of the JVM.

    Raises:
        JvmError: The JVM did not start.

    """

    def __init__(
        self, *, hadoop: Mapping[str, str], guard: CommitDecider, mode: str, conditional: bool, stderr_path: Path
    ) -> None:
        self._process, port, token = start_jvm(mode, stderr_path)
        self.pid = self._process.pid
        self._gateway = connect(port, token)
        jvm: Any = self._gateway.jvm
        self._jvm = jvm
        self._conf = jvm.org.apache.hadoop.conf.Configuration()
        for key, value in hadoop.items():
            self._conf.set(key, value)
        allow_short_timeouts(jvm)
        self._guarded = jvm.io.deltasluice.storage.GuardedLogStore(self._conf)
        self._writer = self._guarded if conditional else jvm.io.delta.storage.S3SingleDriverLogStore(self._conf)
        self._guard_server = GuardServer(guard)
        self._guard_server.install(jvm)
        self._schema = jvm.org.apache.parquet.schema.MessageTypeParser.parseMessageType(_SCHEMA)
        self._groups = jvm.org.apache.parquet.example.data.simple.SimpleGroupFactory(self._schema)
        # The Java objects that Py4J keeps for Python, by id, and the ids of those that later calls use.
        self._bindings = self._gateway.java_gateway_server.getGateway().getBindings()
        self._permanent_ids = jvm.java.util.HashSet(self._bindings.keySet())
        self._permanent_ids.add(self._permanent_ids._get_object_id())  # noqa: SLF001 (its id)

    def warm_up(self, table: str) -> None:
        """List the versions once. This loads classes (two seconds), so that no lock is held while they load."""
        self.versions(table, 0)

    def write_data_file(self, table: str, name: str, ids: Sequence[int]) -> int:
        """Write a Parquet file with the column ``id`` into the table's folder; return its size in bytes.

        Args:
            table: URI.
            name: Name of the file.
            ids: Values above 2**31. Py4J passes smaller ones as a Java ``int``, which Parquet refuses in this column.

        """
        jvm = self._jvm
        with _python_errors():
            path = self._path(f"{table}/{name}")
            output = jvm.org.apache.parquet.hadoop.util.HadoopOutputFile.fromPath(path, self._conf)
            builder = jvm.org.apache.parquet.hadoop.example.ExampleParquetWriter.builder(output)
            writer = builder.withType(self._schema).build()
            for number in ids:
                writer.write(self._groups.newGroup().append("id", number))
            writer.close()
            return int(path.getFileSystem(self._conf).getFileStatus(path).getLen())

    def versions(self, table: str, first: int) -> list[int]:
        """List the versions from ``first`` on with the log store, in ascending order."""
        try:
            with _python_errors():
                self._bindings.keySet().retainAll(self._permanent_ids)
                files = _iterate(self._guarded.listFrom(self._version_file(table, first), self._conf))
                names = [str(status.getPath().getName()) for status in files]
        except StoreError as error:
            if error.reason == "FileNotFoundException":
                return []
            raise
        return sorted(int(name[:20]) for name in names if name.endswith(".json") and name[:20].isdigit())

    def read(self, table: str, version: int) -> list[str]:
        """Return the lines of a version file."""
        with _python_errors():
            lines = self._guarded.read(self._version_file(table, version), self._conf)
            try:
                return [str(line) for line in _iterate(lines)]
            finally:
                lines.close()

    def write(self, table: str, version: int, lines: Sequence[str], *, block: str) -> None:
        """Write a version file in a block under a hold, in the Java thread that is bound to the block.

        Raises:
            VersionTakenError: The version exists.
            WriteError: Java threw another exception.
            JvmError: Another Java thread wrote the file.

        """
        guard = self._jvm.io.deltasluice.storage.Guard
        with _python_errors():
            file, actions = self._version_file(table, version), _java_list(self._jvm, lines).iterator()
            guard.bind(block)
            bound_thread = self._thread()
            try:
                self._writer.write(file, actions, False, self._conf)  # noqa: FBT003 (Java has no keywords)
            finally:
                writing_thread = self._thread()
                guard.bind(None)
        if writing_thread != bound_thread:
            raise JvmError("the commit was written in another Java thread than the one bound to the block")

    def attempts(self, hold: str) -> list[dict[str, Any]]:
        """Return each attempt under a hold and its outcome; see ``Attempts.java``."""
        with _python_errors():
            attempts: list[dict[str, Any]] = json.loads(self._jvm.io.deltasluice.storage.Attempts.of(hold))
        return attempts

    def forget(self, hold: str) -> None:
        """Delete the attempts under a hold from the log store's memory."""
        with _python_errors():
            self._jvm.io.deltasluice.storage.Attempts.forget(hold)

    def close(self) -> None:
        """Kill the JVM."""
        with suppress(Exception):
            self._gateway.close()
        self._guard_server.close()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _thread(self) -> int:
        return int(self._jvm.java.lang.Thread.currentThread().getId())

    def _version_file(self, table: str, version: int) -> Any:
        return self._path(f"{table}/_delta_log/{version:020d}.json")

    def _path(self, uri: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(uri)


def _java_list(jvm: Any, lines: Sequence[str]) -> Any:
    array = jvm.java.util.ArrayList()
    for line in lines:
        array.add(line)
    return array


def _iterate(iterator: Any) -> Iterator[Any]:
    while iterator.hasNext():
        yield iterator.next()


@contextmanager
def _python_errors() -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        raise _python_error(error) from None
    except (Py4JError, OSError) as error:
        raise JvmGoneError(f"the JVM of the log store is gone: {error}") from error


def _python_error(error: Py4JJavaError) -> VersionTakenError | StoreError:
    try:
        java_error = error.java_exception
        name, message = str(java_error.getClass().getName()), str(java_error.getMessage() or "")
        simple_name = name.rpartition(".")[2]
        if name == "java.nio.file.FileAlreadyExistsException":
            return VersionTakenError(message)
        if simple_name == "CommitRefusedException":
            return WriteError("refused", str(java_error.errorName()), message)
    except (Py4JError, OSError) as jvm_error:
        raise JvmGoneError(f"the JVM of the log store is gone: {jvm_error}") from jvm_error
    return WriteError("unknown" if simple_name == "CommitUnknownException" else "failed", simple_name, message)
