"""A JVM without Spark that has the guarded log store, and the few calls into it that a writer of the soak makes.

One Python thread talks to it at a time. Py4J serves each connection by a Java thread of its own, and the log store
knows the hold by the Java thread: no connection but one may come into being. Py4J's memory management is off for that
reason, because it talks to the JVM whenever Python happens to collect garbage; what a call left behind in the JVM is
given up before the next list.
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

_ANSWER_SECONDS = 60
_SCHEMA = "message spark_schema { required int64 id; }"


class StoreJvm:
    """The guarded log store in a process of its own. It ends when this process does.

    Tables are given by URI, for example ``s3a://lake/soak``.

    Args:
        hadoop: Hadoop's settings, without the prefix ``spark.hadoop.``.
        guard: asked at every commit.
        mode: ``required`` or ``off``.
        conditional: write with the guarded store; else with Delta's ``S3SingleDriverLogStore``.
        errors: file that gets what the JVM says.

    Attributes:
        pid: of the process.

    Raises:
        JvmError: it did not start.

    All methods raise StoreError for what Java throws, and JvmGoneError if there is no Java any more.

    """

    def __init__(
        self, *, hadoop: Mapping[str, str], guard: CommitDecider, mode: str, conditional: bool, errors: Path
    ) -> None:
        self._process, port, token = start_jvm(mode, errors)
        self.pid = self._process.pid
        self._gateway = connect(port, token)
        jvm: Any = self._gateway.jvm
        self._jvm = jvm
        self._conf = jvm.org.apache.hadoop.conf.Configuration()
        for key, value in hadoop.items():
            self._conf.set(key, value)
        # S3A raises shorter time-outs to 15 s, and faults would cost that each time.
        jvm.org.apache.hadoop.fs.s3a.impl.AWSClientConfig.setMinimumOperationDuration(
            jvm.java.time.Duration.ofMillis(1)
        )
        self._guarded = jvm.io.deltasluice.storage.GuardedLogStore(self._conf)
        self._writer = self._guarded if conditional else jvm.io.delta.storage.S3SingleDriverLogStore(self._conf)
        self._guard_server = GuardServer(guard)
        self._guard_server.install(jvm, answer_seconds=_ANSWER_SECONDS)
        self._schema = jvm.org.apache.parquet.schema.MessageTypeParser.parseMessageType(_SCHEMA)
        self._groups = jvm.org.apache.parquet.example.data.simple.SimpleGroupFactory(self._schema)
        # What the JVM keeps for Python, by name; and the names of what is used again.
        self._bindings = self._gateway.java_gateway_server.getGateway().getBindings()
        self._used_again = jvm.java.util.HashSet(self._bindings.keySet())
        self._used_again.add(self._used_again._get_object_id())  # noqa: SLF001 (its name)

    def warm_up(self, table: str) -> None:
        """Load what the first list loads (two seconds), before any lock waits for it."""
        self.versions(table, 0)

    def write_data_file(self, table: str, name: str, ids: Sequence[int]) -> int:
        """Write a Parquet file with the column ``id`` into the table's folder; return its size in bytes.

        Args:
            table: URI.
            name: of the file.
            ids: above 2**31, or Py4J takes them for a Java ``int`` and Parquet refuses them in this column.

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
        """List the versions from ``first`` on, as the log store lists them, ascending."""
        try:
            with _python_errors():
                self._bindings.keySet().retainAll(self._used_again)
            with _python_errors():
                found = _items(self._guarded.listFrom(self._version_file(table, first), self._conf))
                names = [str(status.getPath().getName()) for status in found]
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
                return [str(line) for line in _items(lines)]
            finally:
                lines.close()

    def write(self, table: str, version: int, lines: Sequence[str], *, block: str) -> None:
        """Write a version file in a block under a hold, in the Java thread that is bound to the block.

        Raises:
            VersionTakenError: there is one already.
            WriteError: anything else that Java throws.

        """
        guard = self._jvm.io.deltasluice.storage.Guard
        with _python_errors():
            file, actions = self._version_file(table, version), _java_list(self._jvm, lines).iterator()
            guard.bind(block)
            bound = self._thread()
            try:
                self._writer.write(file, actions, False, self._conf)  # noqa: FBT003 (Java has no keywords)
            finally:
                wrote = self._thread()
                guard.bind(None)
        if wrote != bound:
            raise JvmError("the commit was written in another Java thread than the one bound to the block")

    def attempts(self, hold: str) -> list[dict[str, Any]]:
        """Return what became of each attempt under a hold; see ``Attempts.java``."""
        with _python_errors():
            found: list[dict[str, Any]] = json.loads(self._jvm.io.deltasluice.storage.Attempts.of(hold))
        return found

    def forget(self, hold: str) -> None:
        """Have the log store forget the attempts under a hold."""
        with _python_errors():
            self._jvm.io.deltasluice.storage.Attempts.forget(hold)

    def close(self) -> None:
        """End the JVM."""
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
    made = jvm.java.util.ArrayList()
    for line in lines:
        made.add(line)
    return made


def _items(iterator: Any) -> Iterator[Any]:
    while iterator.hasNext():
        yield iterator.next()


@contextmanager
def _python_errors() -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        raise _explained(error) from None
    except (Py4JError, OSError) as error:
        raise JvmGoneError(f"the JVM of the log store is gone: {error}") from error


def _explained(error: Py4JJavaError) -> VersionTakenError | StoreError:
    try:
        java = error.java_exception
        name, message = str(java.getClass().getName()), str(java.getMessage() or "")
        simple = name.rpartition(".")[2]
        if name == "java.nio.file.FileAlreadyExistsException":
            return VersionTakenError(message)
        if simple == "CommitRefusedException":
            return WriteError("refused", str(java.reason()), message)
    except (Py4JError, OSError) as gone:
        raise JvmGoneError(f"the JVM of the log store is gone: {gone}") from gone
    return WriteError("unknown" if simple == "CommitUnknownException" else "failed", simple, message)
