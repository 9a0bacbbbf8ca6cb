"""A Kafka server of one node for tests, from Maven's jars, and Spark's source for Kafka."""

from __future__ import annotations

import os
import socket
import subprocess
import uuid
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from lock_manager.testing.embedded import find_java, free_ports, start_supervised, stop_supervised
from tests.support.locked_jars import locked_jars
from tests.support.waiting import eventually

SUPPORT = Path(__file__).parent
WAIT = 120
_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


@dataclass(frozen=True)
class Kafka:
    """A running server.

    Attributes:
        servers: Its ``host:port``.
        class_path: The class path of its jars.

    """

    servers: str
    class_path: str

    def publish(self, topic: str, messages: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Append messages, keys and values, to a topic of one partition, which is created with the first.

        Raises:
            RuntimeError: A message was not stored. The text is the standard error of the program that sends them.

        """
        command = [find_java(), "-cp", self.class_path, str(SUPPORT / "KafkaTopic.java"), self.servers, topic]
        with TemporaryFile() as errors:
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=errors, stderr=errors) as program:
                assert program.stdin is not None
                # The program ends early if a send fails.
                with suppress(BrokenPipeError), program.stdin as lines:
                    for key, value in messages:
                        lines.write(b64encode(key) + (b"\n" if value is None else b"\t%b\n" % b64encode(value)))
                try:
                    code = program.wait(WAIT)
                finally:
                    program.kill()
            if code != 0:
                errors.seek(0)
                raise RuntimeError(f"topic {topic}: {errors.read().decode(errors='replace')}")


@contextmanager
def kafka_server(folder: Path) -> Iterator[Kafka]:
    """Run a server on free ports of the loopback interface, with its data in a folder."""
    broker, controller = free_ports(2)
    settings = folder / "server.properties"
    settings.write_text(_SETTINGS.format(broker=broker, controller=controller, data=folder / "data"))
    class_path = os.pathsep.join(map(str, locked_jars("kafka")))
    java = [find_java(), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", class_path]
    identity = uuid.uuid4().hex[:22]
    storage = [*java, "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(settings)]
    subprocess.run(storage, check=True, capture_output=True, timeout=WAIT)
    log = folder / "server.log"
    server = start_supervised([*java, "kafka.Kafka", str(settings)], log)

    def answers() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", broker)) == 0

    try:
        eventually(answers, within=WAIT, label="the Kafka server")
        yield Kafka(f"127.0.0.1:{broker}", class_path)
    finally:
        stop_supervised(server)
