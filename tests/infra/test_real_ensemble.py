"""Three real servers with the program's configuration: quorum, TLS, ACL, lost data, new certificate authorities."""

from __future__ import annotations

import itertools
import json
import random
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_acl

from lock_manager import EnsembleRefusedError, LockLostError, LockSettings, TableResource, ZookeeperLockManager
from lock_manager.zookeeper.client import Client
from lock_manager.zookeeper.znodes import table_node
from soak.tcp_proxy import Link
from tests.support.graph import INFRA, ROOT, Graph, graph, graphs
from tests.support.members import PORT, SYNC_SECONDS, Members
from tests.support.waiting import eventually

TABLE = "s3://lake/flights"
LOCK_ROOT = "/locks/delta_tables"
ROLES = ("appender", "maintenance", "operator")
APPENDER_SECRET = ("SecretVersion", "access-appender")


@dataclass
class Ensemble:
    """The members of a stack, and clients with the settings of its roles."""

    stack: Graph
    members: Members
    folder: Path
    _settings: dict[tuple[int, str], LockSettings] = field(default_factory=dict)

    def settings(self, role: str, stack: Graph | None = None) -> LockSettings:
        """Return the settings of ``sluice config from-stack``, which runs once for each stack and role."""
        stack = stack or self.stack
        key = (id(stack), role)
        if key not in self._settings:
            self._settings[key] = self._settings_from_stack(role, stack)
        return self._settings[key]

    def _settings_from_stack(self, role: str, stack: Graph) -> LockSettings:
        """Run the command; the secret comes from the graph instead of AWS."""
        folder = self.folder / f"settings-{len(self._settings)}"
        folder.mkdir()
        (folder / "outputs.json").write_text(json.dumps(stack.outputs))
        command = [sys.executable, "-m", "sluice", "config", "from-stack", str(folder / "outputs.json"), "--role", role]
        command += ["--output", str(folder), "--force"]
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert process.returncode == 0, process.stderr
        lines = (folder / "sluice.env").read_text().splitlines()
        environment = dict(line.split("=", 1) for line in lines if "=" in line)
        name = environment.pop("SLUICE_ZK_SECRET").rpartition(":")[2]
        (folder / "secret.json").write_text(stack.one("SecretVersion", name).inputs["secretString"])
        timeouts = {"SLUICE_SESSION_TIMEOUT_SECONDS": "10", "SLUICE_TIMEOUT_SECONDS": "60"}
        return LockSettings.from_env({**environment, **timeouts, "SLUICE_ZK_SECRET_FILE": str(folder / "secret.json")})

    def manager(self, role: str, stack: Graph | None = None) -> ZookeeperLockManager:
        return ZookeeperLockManager(self.settings(role, stack))

    def run(self, role: str, action: Callable[[KazooClient], Any]) -> Any:
        """Run an action with a bare client of a role."""
        settings = self.settings(role)
        client = Client(settings.zk_hosts, 10.0, lambda _seconds: None, settings.security)
        client.start(timeout=30)
        try:
            return action(client)
        finally:
            client.stop()
            client.close()

    def acl_of_lock_root(self) -> Any:
        return self.run("operator", lambda client: client.get_acls(LOCK_ROOT)[0])

    def refuses(self, pair: dict[str, str], stack: Graph | None = None) -> bool:
        """Return whether the members refuse a client with this certificate and key."""
        settings = self.settings("appender", stack)
        file = self.folder / "pair.json"
        file.write_text(json.dumps({"tls_ca": settings.security.tls_ca, **pair}))
        client_settings = LockSettings.from_env(
            {"SLUICE_ZK_HOSTS": settings.zk_hosts, "SLUICE_ZK_SECRET_FILE": str(file)}
        )
        with ZookeeperLockManager(client_settings, timeout_seconds=20) as manager:
            try:
                manager.acquire("s3://lake/strangers").release()
            except EnsembleRefusedError:
                return True
        return False

    def quorum_accepts(self, pair: str) -> bool:
        """Return whether the leader's quorum port accepts a client with this certificate."""
        leader = self.members.leader
        with socket.create_connection((leader.address, 2888), timeout=10) as plain:
            try:
                with leader.tls(name=pair).wrap_socket(plain) as connection:
                    # With TLS 1.3 the answer to a certificate comes with the first read.
                    connection.settimeout(2)
                    return connection.recv(1) != b""
            except TimeoutError:
                # The server waits for a message.
                return True
            except (ssl.SSLError, ConnectionError):
                return False


@pytest.fixture(scope="module")
def addresses() -> list[str]:
    """Return random loopback addresses, so that two runs at the same time do not conflict."""
    network = f"127.{random.randrange(2, 250)}.{random.randrange(1, 250)}"
    return [f"{network}.{node}" for node in range(1, 8)]


@pytest.fixture(scope="module")
def ensemble(addresses: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    stack = graph(addresses=addresses)
    members = Members(stack, tmp_path_factory.mktemp("ensemble"))
    ensemble = Ensemble(stack, members, tmp_path_factory.mktemp("clients"))
    try:
        members.start()
        # The control of the ACL tests: without the ACL each certificate permits everything.
        assert ensemble.run("appender", lambda client: client.create("/before")) == "/before"
        members.secure_lock_root()
        yield ensemble
    finally:
        members.stop()


@pytest.mark.full
def test_one_member_leads_and_the_others_follow(ensemble: Ensemble) -> None:
    assert sorted(str(member.mode) for member in ensemble.members.nodes) == ["follower", "follower", "leader"]


@pytest.mark.parametrize("role", ROLES)
def test_the_lock_works_with_the_outputs_of_the_stack(role: str, ensemble: Ensemble) -> None:
    with ensemble.manager(role) as manager, manager.acquire(TABLE) as hold:
        hold.check()


def test_an_operator_takes_a_lock_away_for_the_next_role(ensemble: Ensemble) -> None:
    node = table_node(LOCK_ROOT, TableResource.of(TABLE))

    def delete_contender(client: KazooClient) -> None:
        [contender] = [name for name in client.get_children(node) if "lock__" in name]
        client.delete(f"{node}/{contender}")

    with ensemble.manager("appender") as manager:
        hold = manager.acquire(TABLE)
        ensemble.run("operator", delete_contender)
        eventually(lambda: not hold.is_valid(), SYNC_SECONDS)
        with ensemble.manager("maintenance") as next_manager, next_manager.acquire(TABLE) as next_hold:
            next_hold.check()
        with pytest.raises(LockLostError):
            hold.release()


def test_an_operator_connects_through_forwarded_ports(ensemble: Ensemble) -> None:
    """The members' certificates name 127.0.0.1 and the member's own address, and nothing else."""
    settings = ensemble.settings("operator")
    with Link(settings.zk_hosts) as forwarded:
        local = replace(settings, zk_hosts=forwarded.hosts)
        with ZookeeperLockManager(local) as manager, manager.acquire(TABLE) as hold:
            hold.check()
        # The control: the certificates do not contain another name of this machine.
        unnamed = replace(settings, zk_hosts=forwarded.hosts.replace("127.0.0.1", "localhost"))
        with ZookeeperLockManager(unnamed, timeout_seconds=20) as manager, pytest.raises(EnsembleRefusedError):
            manager.acquire(TABLE)


class TestStrangers:
    def test_clear_text_gets_no_answer(self, ensemble: Ensemble) -> None:
        hosts = f"{ensemble.members.nodes[0].address}:{PORT}"
        client = KazooClient(hosts, timeout=2, connection_retry={"max_tries": 1})
        with pytest.raises(Exception, match="Connection time-out"):
            client.start(timeout=4)
        client.stop()
        client.close()

    def test_a_client_without_a_certificate_is_refused(self, ensemble: Ensemble) -> None:
        assert ensemble.refuses({})

    def test_a_client_with_a_certificate_of_a_member_is_refused(self, ensemble: Ensemble) -> None:
        """The client port does not trust the authority of the members."""
        pair = (ensemble.members.nodes[0].machine.root / "etc/zookeeper/tls/member.pem").read_text()
        assert ensemble.refuses({"tls_certificate": pair, "tls_key": pair})

    def test_negative_control_a_client_with_its_own_certificate_is_accepted(self, ensemble: Ensemble) -> None:
        secret = json.loads(ensemble.stack.one(*APPENDER_SECRET).inputs["secretString"])
        assert not ensemble.refuses({key: secret[key] for key in ("tls_certificate", "tls_key")})

    def test_the_quorum_port_accepts_members_only(self, ensemble: Ensemble) -> None:
        assert ensemble.quorum_accepts("member.pem")
        assert not ensemble.quorum_accepts("node.pem")


class TestTheAcl:
    def test_only_operators_change_it(self, ensemble: Ensemble) -> None:
        def set_again(client: KazooClient) -> None:
            client.set_acls(LOCK_ROOT, client.get_acls(LOCK_ROOT)[0])

        for role in ("appender", "maintenance"):
            with pytest.raises(NoAuthError):
                ensemble.run(role, set_again)
        ensemble.run("operator", set_again)

    @pytest.mark.parametrize("path", ["/beside", "/locks/beside", "/zookeeper/quota/locks", "/zookeeper/beside"])
    def test_writers_create_nothing_outside_the_lock_root(self, path: str, ensemble: Ensemble) -> None:
        with pytest.raises(NoAuthError):
            ensemble.run("appender", lambda client: client.create(path))

    def test_operators_delete_private_nodes_of_a_writer(self, ensemble: Ensemble) -> None:
        path = f"{LOCK_ROOT}/mine"
        acl = [make_acl("x509", "CN=sluice-appender", all=True)]
        ensemble.run("appender", lambda client: client.create(path, acl=acl))
        ensemble.run("appender", lambda client: client.create(f"{path}/below", acl=acl))
        with pytest.raises(NoAuthError):
            ensemble.run("maintenance", lambda client: client.delete(f"{path}/below"))
        ensemble.run("operator", lambda client: client.delete(path, recursive=True))

    def test_nodes_of_a_lock_are_for_the_three_roles(self, ensemble: Ensemble) -> None:
        node = table_node(LOCK_ROOT, TableResource.of(TABLE))
        with ensemble.manager("appender") as manager, manager.acquire(TABLE):
            acl = ensemble.run("operator", lambda client: client.get_acls(node)[0])
        assert sorted(entry.id.id for entry in acl) == [f"CN=sluice-{role}" for role in ROLES]

    def test_writers_do_not_delete_the_lock_root(self, ensemble: Ensemble) -> None:
        with pytest.raises(NoAuthError):
            ensemble.run("appender", lambda client: client.delete(LOCK_ROOT))

    def test_setting_it_again_changes_nothing(self, ensemble: Ensemble) -> None:
        acl = ensemble.acl_of_lock_root()
        member = ensemble.members.nodes[1]
        member.machine.set_initialized("no")
        member.secure_lock_root()
        assert member.machine.initialized == "yes"
        assert ensemble.acl_of_lock_root() == acl


def test_a_member_that_lost_its_data_comes_back(ensemble: Ensemble) -> None:
    member = ensemble.members.leader
    member.stop()
    with ensemble.manager("appender") as manager:
        with manager.acquire(TABLE) as hold:
            hold.check()
        assert member.mode is None
        member.lose_data()
        member.start()
        ensemble.members.wait_for_all()
        assert "Unexpected empty data tree, setting zxid to -1" in member.log
        with manager.acquire(TABLE) as hold:
            hold.check()


@pytest.mark.full
def test_a_change_of_authorities_locks_no_client_out(ensemble: Ensemble, addresses: list[str], tmp_path: Path) -> None:
    """Three updates: trust the new authorities, let them sign, stop trusting the old ones."""
    updates: list[dict[str, Any]] = [
        {"trustedAuthorities": [1, 2], "signingAuthority": 1},
        {"trustedAuthorities": [1, 2], "signingAuthority": 2},
        {"trustedAuthorities": [2], "signingAuthority": 2},
    ]
    results = graphs([(INFRA, update) for update in updates], addresses)
    refusals = [result for result in results if not isinstance(result, Graph)]
    assert refusals == [], f"the program refused {len(refusals)} of {len(updates)} configurations"
    stacks = [ensemble.stack, *(result for result in results if isinstance(result, Graph))]
    for number, (old_stack, new_stack) in enumerate(itertools.pairwise(stacks)):
        ensemble.members.restart_one_by_one(new_stack, tmp_path / f"step-{number}")
        # Clients with the settings from before and after this update get the lock.
        for stack in (old_stack, new_stack):
            with ensemble.manager("appender", stack) as manager:
                manager.acquire(TABLE).release()
    # New certificates come with new keys: a stolen key is useless with the new certificate, which is public.
    secrets = [json.loads(stack.one(*APPENDER_SECRET).inputs["secretString"]) for stack in stacks]
    keys = [secret["tls_key"] for secret in secrets]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    pair = {key: secrets[0][key] for key in ("tls_certificate", "tls_key")}
    assert ensemble.refuses(pair, stacks[-1])
