"""What a node does when it is new, and at each start: its own scripts, run as far as one machine can."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support.graph import INFRA, Graph, graph
from tests.support.machine import Machine

SCRIPTS = ["bootstrap.sh", "sluice-configure", "sluice-lock-root", "sluice-let-vote", "sluice-certificates"]


@pytest.fixture(scope="module")
def stack() -> Graph:
    return graph()


@pytest.fixture
def machine(stack: Graph, tmp_path: Path) -> Machine:
    return Machine(stack, 2, tmp_path / "node")


@pytest.fixture
def archive(tmp_path: Path) -> tuple[Path, str]:
    (tmp_path / "zookeeper.jar").write_text("a jar")
    file = tmp_path / "apache-zookeeper.tar.gz"
    with tarfile.open(file, "w:gz") as made:
        made.add(tmp_path / "zookeeper.jar", "apache-zookeeper-3.9.5-bin/lib/zookeeper.jar")
    return file, hashlib.sha512(file.read_bytes()).hexdigest()


def shellcheck(text: str) -> subprocess.CompletedProcess[str]:
    command = [
        str(Path(sys.executable).with_name("shellcheck")),
        "--shell=bash",
        "--enable=all",
        f"--exclude={NOT_OURS}",
        "-",
    ]
    return subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, timeout=60, check=False)


# SC2154: what the environment brings. SC2310, SC2312: set -e in conditions and substitutions, which are meant so.
# SC2250: braces around every variable.
NOT_OURS = "SC2154,SC2310,SC2312,SC2250"


@pytest.mark.parametrize("script", SCRIPTS)
def test_shellcheck_finds_nothing(script: str) -> None:
    done = shellcheck((INFRA / "node" / script).read_text())
    assert done.returncode == 0, done.stdout


def test_shellcheck_finds_a_mistake() -> None:
    assert shellcheck("rm -rf $1/*\n").returncode == 1


def test_user_data_fits_and_is_what_is_checked(stack: Graph) -> None:
    for instance in stack.all("Instance"):
        told = instance.inputs["userData"]
        assert len(told.encode()) < 16_384
        assert told.startswith("#!/bin/bash\n")
        assert told.endswith((INFRA / "node/bootstrap.sh").read_text())
        assert subprocess.run(["bash", "-n"], input=told, text=True, check=False).returncode == 0


class TestANewNode:
    def test_formats_blank_volumes_mounts_them_and_starts(self, machine: Machine, archive: tuple[Path, str]) -> None:
        done = machine.bootstrap(*archive)
        assert done.returncode == 0, done.stderr
        made = [call.split()[-1].rpartition("_")[2] for call in machine.calls if call.startswith("mkfs.xfs")]
        assert made == [machine.variables[name].replace("-", "") for name in ("DATA_VOLUME", "LOG_VOLUME")]
        fstab = (machine.root / "etc/fstab").read_text().splitlines()
        assert [line.split()[1] for line in fstab] == [
            str(machine.root / "var/lib/zookeeper" / folder) for folder in ("data", "log")
        ]
        assert (machine.root / "var/lib/zookeeper/data/myid").read_text() == "2\n"
        assert (machine.root / "opt/zookeeper/lib/zookeeper.jar").read_text() == "a jar"
        # It does not wait for the other members, and who tells of faults comes first.
        done_in_order = [call for call in machine.calls if call.startswith(("systemctl", "amazon-cloudwatch"))]
        assert done_in_order[0].startswith("amazon-cloudwatch-agent-ctl")
        assert done_in_order[-1].startswith("systemctl start --no-block zookeeper.service")
        # Its successor has to call the owner of the files by the same number.
        assert [call.split()[:4] for call in machine.calls if call.startswith("useradd")] == [
            ["useradd", "--system", "--uid", "2181"]
        ]

    def test_keeps_what_is_on_its_volumes(self, machine: Machine, archive: tuple[Path, str]) -> None:
        (machine.root / "blkid-says").write_text("0")
        done = machine.bootstrap(*archive)
        assert done.returncode == 0, done.stderr
        assert not [call for call in machine.calls if call.startswith("mkfs")]
        assert len([call for call in machine.calls if call.startswith("mount ")]) == 2

    @pytest.mark.parametrize(
        ("said", "kept", "told"),
        [
            pytest.param("no", None, ["initialize"], id="in a new ensemble"),
            pytest.param("yes", None, [], id="in an ensemble that has data"),
            pytest.param("no", "data/version-2", [], id="with snapshots"),
            pytest.param("no", "log/version-2", ["version-2"], id="with transactions"),
        ],
    )
    def test_votes_without_data_only_in_an_ensemble_that_has_none(
        self, said: str, kept: str | None, told: list[str], machine: Machine, archive: tuple[Path, str]
    ) -> None:
        machine.say_initialized(said)
        state = machine.root / "var/lib/zookeeper"
        if kept:
            (state / kept).mkdir(parents=True)
        done = machine.bootstrap(*archive)
        assert done.returncode == 0, done.stderr
        assert [each.name for each in (state / "log").iterdir()] == told

    def test_does_not_start_while_it_does_not_know_whether_it_may_vote(
        self, machine: Machine, archive: tuple[Path, str]
    ) -> None:
        machine.forget_initialized()
        done = machine.bootstrap(*archive)
        assert done.returncode != 0
        assert not [call for call in machine.calls if call.startswith("systemctl")]

    @pytest.mark.parametrize("how", ["blkid is in doubt", "it cannot be read"])
    def test_formats_nothing_that_it_cannot_read(self, how: str, machine: Machine, archive: tuple[Path, str]) -> None:
        if how == "blkid is in doubt":
            (machine.root / "blkid-says").write_text("8")
        else:
            # blkid says 2 then, as of a blank one.
            for device in (machine.root / "dev/disk/by-id").iterdir():
                device.unlink()
                device.mkdir()
        done = machine.bootstrap(*archive)
        assert done.returncode != 0
        assert "nothing is formatted" in done.stderr or "Is a directory" in done.stderr
        assert not [call for call in machine.calls if call.startswith(("mkfs", "mount ", "systemctl"))]

    def test_takes_no_other_zookeeper_than_the_one_that_is_pinned(
        self, machine: Machine, archive: tuple[Path, str]
    ) -> None:
        done = machine.bootstrap(archive[0], "0" * 128)
        assert done.returncode != 0
        assert "did NOT match" in done.stderr
        assert not [call for call in machine.calls if call.startswith("systemctl")]

    def test_takes_no_other_scripts_than_its_own(self, machine: Machine, archive: tuple[Path, str]) -> None:
        (machine.root / "aws/sluice-configure").write_text("#!/bin/bash\necho other\n")
        done = machine.bootstrap(*archive)
        assert done.returncode != 0
        assert not [call for call in machine.calls if call.startswith("systemctl")]

    def test_knows_its_services_and_who_it_is(self, machine: Machine, archive: tuple[Path, str]) -> None:
        machine.bootstrap(*archive)
        unit = (machine.root / "etc/systemd/system/zookeeper.service").read_text()
        assert "member 2 of test" in unit
        assert os.access(machine.root / "opt/sluice/sluice-configure", os.X_OK)
        told = dict(line.split("=", 1) for line in (machine.root / "etc/zookeeper/node.env").read_text().splitlines())
        assert {key: told[f"SLUICE_{key}"] for key in ("NODE", "SECRET", "PARAMETER", "LOCK_ROOT_ACL")} == {
            key: machine.variables[key] for key in ("NODE", "SECRET", "PARAMETER", "LOCK_ROOT_ACL")
        }
        agent = json.loads((machine.root / "etc/zookeeper/cloudwatch-agent.json").read_text())
        assert agent["logs"]["metrics_collected"]["prometheus"]["log_group_name"] == machine.variables["LOG_GROUP"]
        assert "@" not in (machine.root / "etc/zookeeper/prometheus.yaml").read_text()


def test_the_server_reads_its_certificates(machine: Machine) -> None:
    """Fetched by root, for another user: by group, the folder too."""
    (machine.root / "etc/zookeeper").mkdir()
    machine.run("sluice-configure")
    folder = machine.root / "etc/zookeeper/tls"
    given = {call.split()[2].removesuffix(".new") for call in machine.calls if call.startswith("chgrp zookeeper")}
    assert {str(folder), *(str(folder / name) for name in ("member.pem", "clients-ca.pem", "node.pem"))} <= given
    assert folder.stat().st_mode & 0o777 == 0o750


class TestLettingAMemberVote:
    @pytest.fixture
    def state(self, machine: Machine) -> Path:
        found = machine.root / "var/lib/zookeeper"
        for folder in ("data/version-2", "log/version-2"):
            (found / folder).mkdir(parents=True)
        for name in ("currentEpoch", "acceptedEpoch"):
            (found / "data/version-2" / name).write_text("-1")
        return found

    def test_it_forgets_its_epochs_and_may(self, machine: Machine, state: Path) -> None:
        done = machine.run("sluice-let-vote")
        assert done.returncode == 0, done.stderr
        assert (state / "log/initialize").exists()
        assert not list((state / "data/version-2").iterdir())
        assert machine.calls == ["systemctl stop zookeeper", "systemctl start --no-block zookeeper"]

    @pytest.mark.parametrize("name", ["data/version-2/snapshot.0", "log/version-2/log.100000001"])
    def test_one_that_has_data_is_left_as_it_is(self, name: str, machine: Machine, state: Path) -> None:
        (state / name).touch()
        done = machine.run("sluice-let-vote")
        assert done.returncode == 1
        assert "this member has data" in done.stderr
        assert not (state / "log/initialize").exists()
        assert (state / "data/version-2/currentEpoch").exists()
        assert machine.calls[-1] == "systemctl start --no-block zookeeper"


class TestAStart:
    def test_fetches_the_configuration_and_the_certificates(self, machine: Machine) -> None:
        (machine.root / "etc/zookeeper").mkdir()
        done = machine.run("sluice-configure")
        assert done.returncode == 0, done.stderr
        assert "server.3=" in (machine.root / "etc/zookeeper/zoo.cfg").read_text()
        for name in ("member.pem", "members-ca.pem", "clients-ca.pem", "node.pem"):
            file = machine.root / "etc/zookeeper/tls" / name
            assert "-----BEGIN" in file.read_text()
            assert file.stat().st_mode & 0o777 == 0o640
        assert (machine.root / "run/zookeeper/heap.env").read_text() == "SLUICE_HEAP=-Xms927m -Xmx927m\n"

    def test_goes_on_with_what_it_has_when_aws_is_away(self, machine: Machine) -> None:
        (machine.root / "etc/zookeeper").mkdir()
        machine.run("sluice-configure")
        (machine.root / "aws-is-away").touch()
        before = (machine.root / "etc/zookeeper/zoo.cfg").read_text()
        done = machine.run("sluice-configure")
        assert done.returncode == 0, done.stderr
        assert "stays as it was" in done.stderr
        # An answer that does not come has to be given up before systemd gives up the start.
        asked = [call for call in machine.calls if call.startswith("aws ")]
        assert all("--cli-connect-timeout 5 --cli-read-timeout 15" in call for call in asked)
        assert "TimeoutStartSec=180" in (INFRA / "node/zookeeper.service").read_text()
        assert (machine.root / "etc/zookeeper/zoo.cfg").read_text() == before

    def test_does_not_begin_with_nothing(self, machine: Machine) -> None:
        (machine.root / "etc/zookeeper").mkdir()
        (machine.root / "aws-is-away").touch()
        done = machine.run("sluice-configure")
        assert done.returncode != 0
        assert "there is no zoo.cfg of an earlier start" in done.stderr

    def test_tells_how_long_its_certificate_is_good(self, machine: Machine) -> None:
        (machine.root / "etc/zookeeper").mkdir()
        machine.run("sluice-configure")
        done = machine.run("sluice-certificates")
        assert done.returncode == 0, done.stderr
        [call] = [call for call in machine.calls if "certificate_days_left" in call]
        assert call.endswith(("--value 364", "--value 365"))
