"""Three real servers of what the program renders: who leads, who may come in, who may do what, new certificates."""

from __future__ import annotations

import itertools
import json
import random
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
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
from tests.support.members import PATIENCE, PORT, Members
from tests.support.waiting import eventually

TABLE = "s3://lake/flights"
LOCK_ROOT = "/locks/delta_tables"
ROLES = ("appender", "maintenance", "operator")


def addresses() -> list[str]:
    """Return three of this machine, so that two runs at the same time do not meet."""
    network = f"127.{random.randrange(2, 250)}.{random.randrange(1, 250)}"
    return [f"{network}.{node}" for node in range(1, 8)]


@pytest.fixture(scope="module")
def mapped() -> list[str]:
    return addresses()


@pytest.fixture(scope="module")
def stack(mapped: list[str]) -> Graph:
    return graph(addresses=mapped)


@pytest.fixture(scope="module")
def members(stack: Graph, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    made = Members(stack, tmp_path_factory.mktemp("ensemble"))
    try:
        made.start()
        # Before: whoever has a certificate may do anything, which is what the tests of the ACL are compared with.
        assert as_role(stack, made, "appender", lambda client: client.create("/before")) == "/before"
        made.restrict()
        yield made
    finally:
        made.stop()


_settings: dict[tuple[int, str], tuple[Graph, LockSettings]] = {}


def settings(stack: Graph, folder: Path, role: str) -> LockSettings:
    """Return what a job reads of ``sluice config from-stack``, which is asked once for each stack and role."""
    known = (id(stack), role)
    if known not in _settings:
        # With the stack, whose id would be another's if it were gone.
        _settings[known] = stack, _settings_from_stack(stack, folder, role)
    return _settings[known][1]


def _settings_from_stack(stack: Graph, folder: Path, role: str) -> LockSettings:
    """Ask the command; the secret comes from the graph instead of AWS."""
    outputs = folder / "outputs.json"
    outputs.write_text(json.dumps(stack.outputs))
    command = [sys.executable, "-m", "sluice", "config", "from-stack", str(outputs), "--role", role]
    done = subprocess.run(
        [*command, "--output", str(folder), "--force"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = dict(line.split("=", 1) for line in (folder / "sluice.env").read_text().splitlines() if "=" in line)
    name = told.pop("SLUICE_ZK_SECRET").rpartition(":")[2]
    file = folder / f"{role}.json"
    file.write_text(stack.one("SecretVersion", name).inputs["secretString"])
    bounded = {"SLUICE_SESSION_TIMEOUT_SECONDS": "10", "SLUICE_TIMEOUT_SECONDS": "60"}
    return LockSettings.from_env({**told, **bounded, "SLUICE_ZK_SECRET_FILE": str(file)})


def as_role(stack: Graph, made: Members, role: str, what: Any) -> Any:
    """Do something as a role, with a bare client."""
    told = settings(stack, made.each[0].machine.root, role)
    client = Client(told.zk_hosts, 10.0, lambda _seconds: None, told.security)
    client.start(timeout=30)
    try:
        return what(client)
    finally:
        client.stop()
        client.close()


@pytest.mark.full
def test_one_leads_and_the_others_are_in_step(members: Members) -> None:
    assert sorted(str(each.mode) for each in members.each) == ["follower", "follower", "leader"]


@pytest.mark.parametrize("role", ROLES)
def test_the_lock_works_with_what_the_stack_puts_out(role: str, stack: Graph, members: Members, tmp_path: Path) -> None:
    with ZookeeperLockManager(settings(stack, tmp_path, role)) as manager, manager.acquire(TABLE) as hold:
        hold.check()


def test_roles_queue_behind_each_other_and_an_operator_takes_a_lock_away(
    stack: Graph, members: Members, tmp_path: Path
) -> None:
    with ZookeeperLockManager(settings(stack, tmp_path, "appender")) as manager:
        hold = manager.acquire(TABLE)
        node = table_node(LOCK_ROOT, TableResource.of(TABLE))

        def take_away(client: KazooClient) -> None:
            [contender] = [name for name in client.get_children(node) if "lock__" in name]
            client.delete(f"{node}/{contender}")

        as_role(stack, members, "operator", take_away)
        eventually(lambda: not hold.is_valid(), PATIENCE)
        with ZookeeperLockManager(settings(stack, tmp_path, "maintenance")) as other, other.acquire(TABLE) as after:
            after.check()
        with pytest.raises(LockLostError):
            hold.release()


def test_an_operator_comes_through_forwarded_ports(stack: Graph, members: Members, tmp_path: Path) -> None:
    """The members' certificates name 127.0.0.1, and no other address but their own."""
    told = settings(stack, tmp_path, "operator")
    with Link(told.zk_hosts) as forwarded:
        with ZookeeperLockManager(replace(told, zk_hosts=forwarded.hosts)) as manager, manager.acquire(TABLE) as hold:
            hold.check()
        # The control: another name of this machine is not in them.
        other = replace(told, zk_hosts=forwarded.hosts.replace("127.0.0.1", "localhost"))
        with ZookeeperLockManager(other, timeout_seconds=20) as manager, pytest.raises(EnsembleRefusedError):
            manager.acquire(TABLE)


class TestStrangers:
    def test_plain_words_are_not_answered(self, members: Members) -> None:
        client = KazooClient(f"{members.each[0].address}:{PORT}", timeout=2, connection_retry={"max_tries": 1})
        with pytest.raises(Exception, match="Connection time-out"):
            client.start(timeout=4)
        client.stop()
        client.close()

    def test_no_certificate_is_refused(self, stack: Graph, members: Members, tmp_path: Path) -> None:
        assert refused(stack, members, tmp_path, {})

    def test_a_certificate_of_others_is_refused(self, stack: Graph, members: Members, tmp_path: Path) -> None:
        """Of the members' authority: it is a good one, for another port."""
        pair = (members.each[0].machine.root / "etc/zookeeper/tls/member.pem").read_text()
        assert refused(stack, members, tmp_path, {"tls_certificate": pair, "tls_key": pair})

    def test_the_right_certificate_is_let_in(self, stack: Graph, members: Members, tmp_path: Path) -> None:
        secret = json.loads(stack.one("SecretVersion", "access-appender").inputs["secretString"])
        pair = {key: secret[key] for key in ("tls_certificate", "tls_key")}
        assert not refused(stack, members, tmp_path, pair)

    def test_a_client_is_no_member(self, members: Members) -> None:
        """The quorum's port takes the certificates of members, and no others."""
        assert speaks(members, "member.pem")
        assert not speaks(members, "node.pem")


def refused(stack: Graph, members: Members, folder: Path, pair: dict[str, str]) -> bool:
    told = settings(stack, folder, "appender")
    secret = {"tls_ca": told.security.tls_ca, **pair}
    (folder / "other.json").write_text(json.dumps(secret))
    other = LockSettings.from_env(
        {"SLUICE_ZK_HOSTS": told.zk_hosts, "SLUICE_ZK_SECRET_FILE": str(folder / "other.json")}
    )
    with ZookeeperLockManager(other, timeout_seconds=20) as manager:
        try:
            manager.acquire("s3://lake/strangers").release()
        except EnsembleRefusedError:
            return True
    return False


def speaks(members: Members, pair: str) -> bool:
    """Tell whether the leader's port for the quorum goes on with a client of this certificate."""
    leader = members.leader
    with socket.create_connection((leader.address, 2888), timeout=10) as plain:
        try:
            with leader.tls(name=pair).wrap_socket(plain) as connection:
                # With TLS 1.3 the answer to a certificate comes with the first read.
                connection.settimeout(2)
                return connection.recv(1) != b""
        except TimeoutError:
            # It waits for what we have to say.
            return True
        except (ssl.SSLError, ConnectionError):
            return False


class TestTheAcl:
    def test_nobody_but_operators_says_anew_who_may(self, stack: Graph, members: Members) -> None:
        for role in ("appender", "maintenance"):
            with pytest.raises(NoAuthError):
                as_role(stack, members, role, lambda client: client.set_acls(LOCK_ROOT, client.get_acls(LOCK_ROOT)[0]))
        as_role(stack, members, "operator", lambda client: client.set_acls(LOCK_ROOT, client.get_acls(LOCK_ROOT)[0]))

    @pytest.mark.parametrize("path", ["/beside", "/locks/beside", "/zookeeper/quota/locks", "/zookeeper/beside"])
    def test_writers_make_nothing_beside_the_lock_root(self, path: str, stack: Graph, members: Members) -> None:
        with pytest.raises(NoAuthError):
            as_role(stack, members, "appender", lambda client: client.create(path))

    def test_operators_take_away_what_a_writer_has_made_for_itself_alone(self, stack: Graph, members: Members) -> None:
        mine = [make_acl("x509", "CN=sluice-appender", all=True)]
        path = f"{LOCK_ROOT}/mine"
        as_role(stack, members, "appender", lambda client: client.create(path, acl=mine))
        as_role(stack, members, "appender", lambda client: client.create(f"{path}/below", acl=mine))
        with pytest.raises(NoAuthError):
            as_role(stack, members, "maintenance", lambda client: client.delete(f"{path}/below"))
        as_role(stack, members, "operator", lambda client: client.delete(path, recursive=True))

    def test_what_a_lock_makes_is_for_the_three_roles(self, stack: Graph, members: Members, tmp_path: Path) -> None:
        node = table_node(LOCK_ROOT, TableResource.of(TABLE))
        with ZookeeperLockManager(settings(stack, tmp_path, "appender")) as manager, manager.acquire(TABLE):
            acl = as_role(stack, members, "operator", lambda client: client.get_acls(node)[0])
        assert sorted(each.id.id for each in acl) == [
            f"CN=sluice-{role}" for role in ("appender", "maintenance", "operator")
        ]

    def test_writers_do_not_remove_the_lock_root(self, stack: Graph, members: Members) -> None:
        with pytest.raises(NoAuthError):
            as_role(stack, members, "appender", lambda client: client.delete(LOCK_ROOT))

    def test_it_is_the_same_when_it_is_set_again(self, stack: Graph, members: Members) -> None:
        before = as_role(stack, members, "operator", lambda client: client.get_acls(LOCK_ROOT)[0])
        members.each[1].machine.say_initialized("no")
        members.each[1].restrict()
        assert members.each[1].machine.initialized == "yes"
        assert as_role(stack, members, "operator", lambda client: client.get_acls(LOCK_ROOT)[0]) == before


def test_a_member_is_lost_and_comes_back(stack: Graph, members: Members, tmp_path: Path) -> None:
    lost = members.leader
    lost.stop()
    with ZookeeperLockManager(settings(stack, tmp_path, "appender")) as manager:
        with manager.acquire(TABLE) as hold:
            hold.check()
        assert lost.mode is None
        lost.lose_data()
        lost.start()
        members.wait_for_all()
        assert "Unexpected empty data tree, setting zxid to -1" in lost.log
        with manager.acquire(TABLE) as hold:
            hold.check()


@pytest.mark.full
def test_authorities_are_changed_and_nobody_is_locked_out(
    stack: Graph, members: Members, mapped: list[str], tmp_path: Path
) -> None:
    """Three ups: trust the new authorities, let them sign, trust the old ones no more."""
    ups: list[dict[str, Any]] = [
        {"trustedAuthorities": [1, 2], "signingAuthority": 1},
        {"trustedAuthorities": [1, 2], "signingAuthority": 2},
        {"trustedAuthorities": [2], "signingAuthority": 2},
    ]
    steps = [stack, *(made for made in graphs([(INFRA, up) for up in ups], mapped) if isinstance(made, Graph))]
    for number, (before, now) in enumerate(itertools.pairwise(steps)):
        members.restart_one_by_one(now, tmp_path / f"step-{number}")
        # Who started before this up goes on, and who starts now.
        for graph_of_secret in (before, now):
            with ZookeeperLockManager(settings(graph_of_secret, tmp_path, "appender")) as manager:
                manager.acquire(TABLE).release()
    last = steps[-1]
    # A key that was seen is worth nothing with the new certificate, which is no secret.
    secrets = [json.loads(each.one("SecretVersion", "access-appender").inputs["secretString"]) for each in steps]
    keys = [secret["tls_key"] for secret in secrets]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    old = json.loads(stack.one("SecretVersion", "access-appender").inputs["secretString"])
    assert refused(last, members, tmp_path, {key: old[key] for key in ("tls_certificate", "tls_key")})
