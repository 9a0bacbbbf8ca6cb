"""The scripts of a node, run in a folder: bootstrap, configuration at each start, the first vote of a member."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.graph import INFRA, Graph, graph
from tests.support.machine import Machine

SCRIPTS = ["bootstrap.sh", "sluice-configure", "sluice-lock-root", "sluice-let-vote", "sluice-certificates"]
# SC2154: variables of the environment. SC2310, SC2312: set -e in conditions and substitutions, which is intended.
# SC2250: braces around every variable.
EXCLUDED_CHECKS = "SC2154,SC2310,SC2312,SC2250"


@dataclass
class Node:
    """Node 2 of a stack, and an archive in place of ZooKeeper's.

    Attributes:
        machine: Root folder of the scripts, with stand-ins for commands.
        archive: Path of the archive.
        sha512: Checksum of the archive.

    """

    machine: Machine
    archive: Path
    sha512: str

    @property
    def root(self) -> Path:
        return self.machine.root

    def file(self, path: str) -> str:
        return (self.root / path).read_text()

    def calls(self, *prefixes: str) -> list[str]:
        """Return the calls of stand-ins that start with one of the prefixes."""
        return [call for call in self.machine.calls if call.startswith(prefixes)]

    def bootstrap(self) -> None:
        """Run the user data, and assert that it succeeds."""
        process = self.machine.bootstrap(self.archive, self.sha512)
        assert process.returncode == 0, process.stderr

    def failed_bootstrap(self) -> str:
        """Run the user data, assert that it fails before it starts a service, and return its stderr."""
        process = self.machine.bootstrap(self.archive, self.sha512)
        assert process.returncode != 0
        assert not self.calls("systemctl")
        return process.stderr

    def run(self, script: str) -> str:
        """Run a script, assert that it succeeds, and return its stderr."""
        process = self.machine.run(script)
        assert process.returncode == 0, process.stderr
        return process.stderr


@pytest.fixture(scope="module")
def stack() -> Graph:
    return graph()


@pytest.fixture
def node(stack: Graph, tmp_path: Path) -> Node:
    (tmp_path / "zookeeper.jar").write_text("a jar")
    archive = tmp_path / "apache-zookeeper.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "zookeeper.jar", "apache-zookeeper-3.9.5-bin/lib/zookeeper.jar")
    sha512 = hashlib.sha512(archive.read_bytes()).hexdigest()
    return Node(Machine(stack, 2, tmp_path / "node"), archive, sha512)


def shellcheck(text: str) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("shellcheck"))
    command = [program, "--shell=bash", "--enable=all", f"--exclude={EXCLUDED_CHECKS}", "-"]
    return subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, timeout=60, check=False)


@pytest.mark.parametrize("script", SCRIPTS)
def test_shellcheck_accepts_the_script(script: str) -> None:
    process = shellcheck((INFRA / "node" / script).read_text())
    assert process.returncode == 0, process.stdout


def test_negative_control_shellcheck_finds_a_mistake() -> None:
    assert shellcheck("rm -rf $1/*\n").returncode == 1


def test_user_data_fits_and_ends_with_the_checked_script(stack: Graph) -> None:
    for instance in stack.all("Instance"):
        user_data = instance.inputs["userData"]
        assert len(user_data.encode()) < 16_384
        assert user_data.startswith("#!/bin/bash\n")
        assert user_data.endswith((INFRA / "node/bootstrap.sh").read_text())
        assert subprocess.run(["bash", "-n"], input=user_data, text=True, check=False).returncode == 0


class TestANewNode:
    def test_formats_and_mounts_blank_volumes_and_starts(self, node: Node) -> None:
        node.bootstrap()
        formatted = [call.split()[-1].rpartition("_")[2] for call in node.calls("mkfs.xfs")]
        volumes = [node.machine.variables[name] for name in ("DATA_VOLUME", "LOG_VOLUME")]
        assert formatted == [volume.replace("-", "") for volume in volumes]
        assert [line.split()[1] for line in node.file("etc/fstab").splitlines()] == [
            str(node.root / "var/lib/zookeeper" / folder) for folder in ("data", "log")
        ]
        assert node.file("var/lib/zookeeper/data/myid") == "2\n"
        assert node.file("opt/zookeeper/lib/zookeeper.jar") == "a jar"
        # The agent that reports faults starts first. The start does not wait for the other members.
        services = node.calls("systemctl", "amazon-cloudwatch")
        assert services[0].startswith("amazon-cloudwatch-agent-ctl")
        assert services[-1].startswith("systemctl start --no-block zookeeper.service")
        # After a replacement of the machine, the same user id must own the files.
        assert [call.split()[:4] for call in node.calls("useradd")] == [["useradd", "--system", "--uid", "2181"]]

    def test_keeps_the_data_on_its_volumes(self, node: Node) -> None:
        (node.root / "blkid-status").write_text("0")
        node.bootstrap()
        assert not node.calls("mkfs")
        assert len(node.calls("mount ")) == 2

    @pytest.mark.parametrize(
        ("initialized", "folder", "log_files"),
        [
            pytest.param("no", None, ["initialize"], id="new ensemble"),
            pytest.param("yes", None, [], id="ensemble with data"),
            pytest.param("no", "data/version-2", [], id="with snapshots"),
            pytest.param("no", "log/version-2", ["version-2"], id="with transactions"),
        ],
    )
    def test_votes_without_data_only_in_a_new_ensemble(
        self, initialized: str, folder: str | None, log_files: list[str], node: Node
    ) -> None:
        node.machine.set_initialized(initialized)
        state = node.root / "var/lib/zookeeper"
        if folder:
            (state / folder).mkdir(parents=True)
        node.bootstrap()
        assert [path.name for path in (state / "log").iterdir()] == log_files

    def test_does_not_start_without_knowing_whether_it_may_vote(self, node: Node) -> None:
        node.machine.remove_initialized()
        node.failed_bootstrap()

    @pytest.mark.parametrize("reason", ["blkid is in doubt", "unreadable device"])
    def test_formats_no_volume_that_it_cannot_read(self, reason: str, node: Node) -> None:
        if reason == "blkid is in doubt":
            (node.root / "blkid-status").write_text("8")
        else:
            # blkid then exits with 2, as for a blank device.
            for device in (node.root / "dev/disk/by-id").iterdir():
                device.unlink()
                device.mkdir()
        stderr = node.failed_bootstrap()
        assert "nothing is formatted" in stderr or "Is a directory" in stderr
        assert not node.calls("mkfs", "mount ")

    def test_refuses_an_archive_with_another_checksum(self, node: Node) -> None:
        node.sha512 = "0" * 128
        assert "did NOT match" in node.failed_bootstrap()

    def test_refuses_scripts_of_another_version(self, node: Node) -> None:
        (node.root / "aws/sluice-configure").write_text("#!/bin/bash\necho other\n")
        assert "did NOT match" in node.failed_bootstrap()

    def test_configures_its_services_and_its_identity(self, node: Node) -> None:
        node.bootstrap()
        assert "member 2 of test" in node.file("etc/systemd/system/zookeeper.service")
        assert os.access(node.root / "opt/sluice/sluice-configure", os.X_OK)
        variables = node.machine.variables
        environment = dict(line.split("=", 1) for line in node.file("etc/zookeeper/node.env").splitlines())
        for key in ("NODE", "SECRET", "PARAMETER", "LOCK_ROOT_ACL"):
            assert environment[f"SLUICE_{key}"] == variables[key]
        agent = json.loads(node.file("etc/zookeeper/cloudwatch-agent.json"))
        assert agent["logs"]["metrics_collected"]["prometheus"]["log_group_name"] == variables["LOG_GROUP"]
        assert "@" not in node.file("etc/zookeeper/prometheus.yaml")


class TestLettingAMemberVote:
    @pytest.fixture
    def state(self, node: Node) -> Path:
        state = node.root / "var/lib/zookeeper"
        for folder in ("data/version-2", "log/version-2"):
            (state / folder).mkdir(parents=True)
        for name in ("currentEpoch", "acceptedEpoch"):
            (state / "data/version-2" / name).write_text("-1")
        return state

    def test_removes_its_epochs_and_restarts_it(self, node: Node, state: Path) -> None:
        node.run("sluice-let-vote")
        assert (state / "log/initialize").exists()
        assert not list((state / "data/version-2").iterdir())
        assert node.machine.calls == ["systemctl stop zookeeper", "systemctl start --no-block zookeeper"]

    @pytest.mark.parametrize("name", ["data/version-2/snapshot.0", "log/version-2/log.100000001"])
    def test_leaves_a_member_with_data_unchanged(self, name: str, node: Node, state: Path) -> None:
        (state / name).touch()
        process = node.machine.run("sluice-let-vote")
        assert process.returncode == 1
        assert "this member has data" in process.stderr
        assert not (state / "log/initialize").exists()
        assert (state / "data/version-2/currentEpoch").exists()
        assert node.machine.calls[-1] == "systemctl start --no-block zookeeper"


class TestAStart:
    @pytest.fixture(autouse=True)
    def _configuration_folder(self, node: Node) -> None:
        (node.root / "etc/zookeeper").mkdir()

    def test_fetches_the_configuration_and_the_certificates(self, node: Node) -> None:
        node.run("sluice-configure")
        assert "server.3=" in node.file("etc/zookeeper/zoo.cfg")
        for name in ("member.pem", "members-ca.pem", "clients-ca.pem", "node.pem"):
            assert "-----BEGIN" in node.file(f"etc/zookeeper/tls/{name}")
            assert (node.root / "etc/zookeeper/tls" / name).stat().st_mode & 0o777 == 0o640
        assert node.file("run/zookeeper/heap.env") == "SLUICE_HEAP=-Xms927m -Xmx927m\n"

    def test_lets_the_server_read_its_certificates(self, node: Node) -> None:
        """Root fetches the files; the server's group may read them and their folder."""
        node.run("sluice-configure")
        folder = node.root / "etc/zookeeper/tls"
        paths = {call.split()[2].removesuffix(".new") for call in node.calls("chgrp zookeeper")}
        assert {str(folder), *(str(folder / name) for name in ("member.pem", "clients-ca.pem", "node.pem"))} <= paths
        assert folder.stat().st_mode & 0o777 == 0o750

    def test_keeps_its_configuration_while_aws_does_not_answer(self, node: Node) -> None:
        node.run("sluice-configure")
        (node.root / "aws-is-away").touch()
        configuration = node.file("etc/zookeeper/zoo.cfg")
        assert "stays as it was" in node.run("sluice-configure")
        # Requests time out before systemd's limit for the start.
        assert all("--cli-connect-timeout 5 --cli-read-timeout 15" in call for call in node.calls("aws "))
        assert "TimeoutStartSec=180" in (INFRA / "node/zookeeper.service").read_text()
        assert node.file("etc/zookeeper/zoo.cfg") == configuration

    def test_fails_without_any_configuration(self, node: Node) -> None:
        (node.root / "aws-is-away").touch()
        process = node.machine.run("sluice-configure")
        assert process.returncode != 0
        assert "there is no zoo.cfg of an earlier start" in process.stderr

    def test_reports_the_days_left_of_its_certificate(self, node: Node) -> None:
        node.run("sluice-configure")
        node.run("sluice-certificates")
        [call] = [call for call in node.machine.calls if "certificate_days_left" in call]
        assert call.endswith(("--value 364", "--value 365"))
