"""The ZooKeeper container: the image that is built here, what is done to its servers, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from lock_manager.testing.embedded import find_server_jars
from soak.containers import LABEL, OWN_IMAGE, VERSION, ContainerServer, ContainerZooKeeper, docker_engine
from soak.faults import CLASSES
from soak.run import Soak
from soak.verdict import judge

ROOT = Path(__file__).parents[2]
IMAGE_SCRIPT = [sys.executable, str(ROOT / "scripts" / "zookeeper_image.py")]


def modes(ensemble: ContainerZooKeeper) -> list[str]:
    said = [server.command(b"srvr").decode() for server in ensemble.servers]
    return [words.partition("Mode: ")[2].partition("\n")[0] for words in said]


def leader(ensemble: ContainerZooKeeper) -> ContainerServer:
    return ensemble.servers[modes(ensemble).index("leader")]


def left_of(label: str) -> list[Any]:
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
    found: str = zookeeper.image
    return found


@pytest.fixture
def ensemble(image: str) -> Iterator[ContainerZooKeeper]:
    with ContainerZooKeeper(image, 3) as running:
        yield running


def test_the_image_is_named_after_the_server_in_it() -> None:
    assert f"zookeeper-{VERSION}.jar" in [jar.name for jar in find_server_jars()]


def test_without_an_engine_the_image_script_says_so_in_one_sentence(tmp_path: Path) -> None:
    environment = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/docker.sock"}
    done = subprocess.run(IMAGE_SCRIPT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "sluice: no Docker engine answers: start one, or point DOCKER_HOST at its socket\n"


def test_the_same_files_give_the_same_image(image: str) -> None:
    if image != OWN_IMAGE:
        pytest.skip(f"{image} is what the tests run on here: no {OWN_IMAGE} is left behind")
    said = [subprocess.run(IMAGE_SCRIPT, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert said[0].startswith(f"{OWN_IMAGE} is built: ")
    assert said[0].split()[-1] == said[1].split()[-1]


def test_a_server_that_was_paused_or_killed_serves_again_with_its_data(image: str) -> None:
    with ContainerZooKeeper(image) as zookeeper:
        client = KazooClient(zookeeper.hosts)
        client.start()
        client.create("/kept", b"value")
        (server,) = zookeeper.servers
        server.pause()
        assert server.command(b"srvr") == b""
        server.resume()
        assert modes(zookeeper) == ["standalone"]
        server.kill()
        assert server.command(b"srvr") == b""
        server.start()
        assert client.retry(client.get, "/kept")[0] == b"value"
        client.stop()
        client.close()


def test_a_leader_that_is_cut_off_is_replaced_and_follows_when_it_is_back(
    ensemble: ContainerZooKeeper, eventually: Callable[..., None]
) -> None:
    cut = leader(ensemble)
    cut.cut()
    assert cut.command(b"srvr") == b""
    eventually(lambda: "leader" in modes(ensemble), within=60, what="another leader")
    cut.mend()
    eventually(lambda: sorted(modes(ensemble)) == ["follower", "follower", "leader"], within=60, what="three servers")
    assert leader(ensemble) is not cut


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_a_process_that_is_gone(
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
        assert len(left_of(label)) == 4
        process.send_signal(number)
    eventually(lambda: not left_of(label), within=60, what="the removal of containers and network")


def test_writers_go_on_when_the_leaders_network_is_cut(image: str, make_soak: Callable[..., Soak]) -> None:
    name = "zookeeper-leader-cut"
    soak = make_soak(faults=(name,), session_seconds=3.0, zookeeper_image=image)
    before = soak.progress.counts["acknowledged"]
    soak.play(CLASSES[name].strike(soak.context, "writer-1", "data"))
    assert soak.progress.counts["acknowledged"] > before
    assert soak.progress.faults == {name: 1}
    soak.finish()
    assert [f"{each.invariant}: {each.sentence}" for each in judge(soak.evidence())] == []
