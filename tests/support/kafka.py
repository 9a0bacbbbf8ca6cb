"""A Kafka server of one node for tests, from Maven's jars, and Spark's source for Kafka."""

from __future__ import annotations

import os
import socket
import subprocess
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lock_manager.testing.embedded import find_java, free_ports
from sluice.local.jars import download_jars, jars_folder, read_lock
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


def kafka_jars(lock: str) -> list[Path]:
    """Return the jars of a lock file of ``tests/data``, downloaded if they are missing."""
    text = (SUPPORT.parent / "data" / lock).read_text(encoding="utf-8")
    return download_jars(read_lock(text), jars_folder().parent / "kafka")


@dataclass(frozen=True)
class Kafka:
    """A running server.

    Attributes:
        servers: Its ``host:port``.
        class_path: The class path of its jars.

    """

    servers: str
    class_path: str

    def publish(self, topic: str, messages: Iterable[tuple[str, str]]) -> None:
        """Append messages to a topic of one partition, which is created with the first."""
        lines = "".join(f"{key}\t{value}\n" for key, value in messages)
        command = [find_java(), "-cp", self.class_path, str(SUPPORT / "KafkaTopic.java"), self.servers, topic]
        subprocess.run(command, input=lines, text=True, check=True, capture_output=True, timeout=WAIT)


@contextmanager
def kafka_server(folder: Path) -> Iterator[Kafka]:
    """Run a server on free ports of the loopback interface, with its data in a folder."""
    broker, controller = free_ports(2)
    settings = folder / "server.properties"
    settings.write_text(_SETTINGS.format(broker=broker, controller=controller, data=folder / "data"))
    class_path = os.pathsep.join(map(str, kafka_jars("kafka.lock")))
    java = [find_java(), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", class_path]
    identity = uuid.uuid4().hex[:22]
    storage = [*java, "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(settings)]
    subprocess.run(storage, check=True, capture_output=True, timeout=WAIT)
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=output, stderr=output)

    def answers() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", broker)) == 0

    try:
        eventually(answers, within=WAIT, label="the Kafka server")
        yield Kafka(f"127.0.0.1:{broker}", class_path)
    finally:
        server.kill()
        server.wait()
