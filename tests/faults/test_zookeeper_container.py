"""The ZooKeeper container: the image that is built here, the faults of its servers, and its removal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lock_manager.testing.embedded import find_server_jars
from soak.containers import LABEL, OWN_IMAGE, VERSION, ContainerServer, ContainerZooKeeper, docker_engine
from soak.faults import CLASSES
from soak.run import Soak
from soak.verdict import judge
from tests.support.lock_znodes import connected_client

ROOT = Path(__file__).parents[2]
IMAGE_SCRIPT = [sys.executable, str(ROOT / "scripts" / "zookeeper_image.py")]


def modes(ensemble: ContainerZooKeeper) -> list[str]:
    answers = [server.command(b"srvr").decode() for server in ensemble.servers]
    return [answer.partition("Mode: ")[2].partition("\n")[0] for answer in answers]


def leader(ensemble: ContainerZooKeeper) -> ContainerServer:
    return ensemble.servers[modes(ensemble).index("leader")]


def resources_with(label: str) -> list[Any]:
    with docker_engine() as engine:
        filters = {"label": label}
        return [
            *engine.client.containers.list(all=True, filters=filters),
            *engine.client.networks.list(filters=filters),
        ]


@pytest.fixture
def image(zookeeper: Any) -> str:
    if zookeeper.image is None:
        pytest.skip("no Docker engine runs a ZooKeeper image here")
    name: str = zookeeper.image
    return name


@pytest.fixture
def ensemble(image: str) -> Iterator[ContainerZooKeeper]:
    with ContainerZooKeeper(image, 3) as zookeeper:
        yield zookeeper


def test_the_image_tag_is_the_version_of_the_server() -> None:
    assert f"zookeeper-{VERSION}.jar" in [jar.name for jar in find_server_jars()]


def test_without_an_engine_the_image_script_fails_with_a_message(tmp_path: Path) -> None:
    environment = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/docker.sock"}
    process = subprocess.run(IMAGE_SCRIPT, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert process.stderr == "sluice: no Docker engine answers: start one, or point DOCKER_HOST at its socket\n"


def test_the_same_files_give_the_same_image(image: str) -> None:
    if image != OWN_IMAGE:
        pytest.skip(f"the tests use {image} here, and must not leave {OWN_IMAGE} behind")
    outputs = [subprocess.run(IMAGE_SCRIPT, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert outputs[0].startswith(f"{OWN_IMAGE} is built: ")
    assert outputs[0].split()[-1] == outputs[1].split()[-1]


def test_a_paused_or_killed_server_serves_again_with_its_data(image: str) -> None:
    with ContainerZooKeeper(image) as zookeeper, connected_client(zookeeper.hosts) as client:
        client.create("/node", b"value")
        (server,) = zookeeper.servers
        server.pause()
        assert server.command(b"srvr") == b""
        server.resume()
        assert modes(zookeeper) == ["standalone"]
        server.kill()
        assert server.command(b"srvr") == b""
        server.start()
        assert client.retry(client.get, "/node")[0] == b"value"


def test_a_leader_that_is_cut_off_is_replaced_and_follows_later(
    ensemble: ContainerZooKeeper, eventually: Callable[..., None]
) -> None:
    old_leader = leader(ensemble)
    old_leader.cut()
    assert old_leader.command(b"srvr") == b""
    eventually(lambda: "leader" in modes(ensemble), within=60, label="another leader")
    old_leader.mend()
    eventually(lambda: sorted(modes(ensemble)) == ["follower", "follower", "leader"], within=60, label="three servers")
    assert leader(ensemble) is not old_leader


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_containers_are_removed_when_their_process_ends(
    image: str, number: signal.Signals, eventually: Callable[..., None]
) -> None:
    program = (
        "import sys\nfrom soak.containers import ContainerZooKeeper\n"
        f"with ContainerZooKeeper({image!r}, 3) as zookeeper:\n"
        "    zookeeper.servers[0].pause()\n"
        f"    print(zookeeper.servers[0]._container.labels[{LABEL!r}], flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        label = f"{LABEL}={process.stdout.readline().strip()}"
        assert len(resources_with(label)) == 4
        process.send_signal(number)
    eventually(lambda: not resources_with(label), within=60, label="the removal of containers and network")


def test_writers_continue_when_the_network_of_the_leader_is_cut(image: str, make_soak: Callable[..., Soak]) -> None:
    name = "zookeeper-leader-cut"
    soak = make_soak(faults=(name,), session_seconds=3.0, zookeeper_image=image)
    acknowledged = soak.progress.counts["acknowledged"]
    soak.run_fault(CLASSES[name].strike(soak.context, "writer-1", "data"))
    assert soak.progress.counts["acknowledged"] > acknowledged
    assert soak.progress.faults == {name: 1}
    soak.finish()
    assert [str(violation) for violation in judge(soak.evidence())] == []
