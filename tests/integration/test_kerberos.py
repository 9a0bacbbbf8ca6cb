"""Kerberos with a real KDC and real servers: logins, refusals, and the renewal of tickets."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lock_manager import (
    EnsembleRefusedError,
    EnsembleUnavailableError,
    Hold,
    LockSettings,
    Security,
    ZookeeperLockManager,
)
from lock_manager.testing.embedded import EmbeddedZooKeeper
from lock_manager.testing.server_security import ServerSecurity
from sluice.commands.app import app
from tests.support.kdc import REALM, Kdc, missing_requirement
from tests.support.new_thread import in_new_thread

MISSING = missing_requirement()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"Kerberos needs {MISSING}")

TABLE = "s3://lake/secured"
TIMEOUT_SECONDS = 240.0
REFUSAL_SECONDS = 60.0
#: Lifetime of a ticket that expires during a test. A keytab gives a new one after half of this time.
SHORT_SECONDS = 15
#: Session timeout of a holder whose server does not run until such a ticket has expired.
LONG_SESSION_SECONDS = 120
WRITERS, ROUNDS = 5, 8
#: Increments a number in a file, ROUNDS times, when all writers have started. Without the lock, all writers read the
#: first number before one of them writes.
WRITER = """
import os, sys, time
from contextlib import nullcontext
from pathlib import Path
from lock_manager import LockSettings, ZookeeperLockManager

counter, writers, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
table, is_locked = sys.argv[4], sys.argv[5] == "locked"

def wait_for_all(event):
    counter.with_name(f"{event}-{os.getpid()}").touch()
    while len(list(counter.parent.glob(f"{event}-*"))) < writers:
        time.sleep(0.01)

with ZookeeperLockManager(LockSettings.from_env(timeout_seconds=240)) as manager:
    manager.acquire(f"{table}/{os.getpid()}").release()
    wait_for_all("started")
    for _ in range(rounds):
        with manager.acquire(table) if is_locked else nullcontext():
            number = int(counter.read_text())
            if not is_locked:
                wait_for_all("has-read")
            time.sleep(0.01)
            new_counter = counter.with_name(f"counter-{os.getpid()}")
            new_counter.write_text(str(number + 1))
            new_counter.replace(counter)
"""


@pytest.fixture(scope="module")
def kdc(tmp_path_factory) -> Iterator[Kdc]:
    """A KDC, which the environment of this process names."""
    with Kdc(tmp_path_factory.mktemp("kdc")) as center, pytest.MonkeyPatch.context() as patch:
        for name, value in center.environment.items():
            patch.setenv(name, value)
        yield center


@pytest.fixture(scope="module")
def keytabs(kdc) -> dict[str, Path]:
    return {
        **{name: kdc.add(name) for name in ("etl", "ops", "brief")},
        "renewed": kdc.add("renewed", ticket_seconds=SHORT_SECONDS),
    }


@pytest.fixture(scope="module")
def requirements(kdc) -> ServerSecurity:
    """The requirements of a server that demands Kerberos."""
    return kdc.server_requirements()


@pytest.fixture(scope="module")
def server(requirements) -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(security=requirements) as ensemble:
        yield ensemble


@pytest.fixture(scope="module")
def ensemble_of_three(requirements) -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(servers=3, security=requirements) as ensemble:
        yield ensemble


@pytest.fixture(scope="module")
def etl(keytabs) -> Security:
    return Security(auth="kerberos", kerberos_principal="etl", kerberos_keytab=str(keytabs["etl"]))


def hosts_of(server: EmbeddedZooKeeper) -> str:
    """Return the host list with the name in the server's principal."""
    return server.hosts.replace("127.0.0.1", "localhost")


def manager_of(hosts: str, security: Security, **options: Any) -> ZookeeperLockManager:
    settings = {"timeout_seconds": TIMEOUT_SECONDS, **options}
    return ZookeeperLockManager(LockSettings(zk_hosts=hosts, security=security, **settings))


def refusal(hosts: str, security: Security, **options: Any) -> str:
    """Return the message of the refusal, one line. It must come in a fraction of the timeout."""
    with manager_of(hosts, security, **options) as manager:
        started = time.monotonic()
        with pytest.raises(EnsembleRefusedError) as error:
            manager.acquire(TABLE)
        assert time.monotonic() - started < REFUSAL_SECONDS
    assert "\n" not in str(error.value)
    return str(error.value)


def outage(request: Callable[[], object]) -> str:
    """Return the message of the outage that a request reports."""
    with pytest.raises(EnsembleUnavailableError) as error:
        request()
    return str(error.value)


def environment_of(server: EmbeddedZooKeeper, security: Security) -> dict[str, str]:
    """Return the variables with these settings for another process."""
    return {
        "SLUICE_ZK_HOSTS": hosts_of(server),
        "SLUICE_ZK_AUTH": "kerberos",
        "SLUICE_ZK_KERBEROS_PRINCIPAL": str(security.kerberos_principal),
        "SLUICE_ZK_KERBEROS_KEYTAB": str(security.kerberos_keytab),
    }


def acquire_and_check(hosts: str, security: Security, **options: Any) -> None:
    with manager_of(hosts, security, **options) as manager, manager.acquire(TABLE) as hold:
        hold.check()


# -- logins --------------------------------------------------------------------------------------------------------


@pytest.fixture
def run_writers(
    ensemble_of_three: EmbeddedZooKeeper, etl: Security, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], int]:
    """Run processes that increment a number, ``locked`` or ``unlocked``; return the number."""

    def run(lock: str) -> int:
        counter = tmp_path / "counter"
        counter.write_text("0")
        for name, value in environment_of(ensemble_of_three, etl).items():
            monkeypatch.setenv(name, value)
        command = [sys.executable, "-c", WRITER, str(counter), str(WRITERS), str(ROUNDS), TABLE, lock]
        writers = [subprocess.Popen(command) for _ in range(WRITERS)]
        try:
            for writer in writers:
                assert writer.wait(TIMEOUT_SECONDS) == 0
        finally:
            for writer in writers:
                writer.kill()
                writer.wait()
        return int(counter.read_text())

    return run


def test_writers_with_a_keytab_exclude_each_other(run_writers):
    assert run_writers("locked") == WRITERS * ROUNDS


def test_negative_control_writers_without_the_lock_lose_numbers(run_writers):
    assert run_writers("unlocked") < WRITERS * ROUNDS


def test_another_principal_is_refused_below_the_lock_root(server, etl, keytabs):
    """Each znode is for its creator. The server itself accepts every principal of the realm."""
    acquire_and_check(hosts_of(server), etl)
    second_principal = replace(etl, kerberos_principal="ops", kerberos_keytab=str(keytabs["ops"]))
    assert "NoAuthError" in refusal(hosts_of(server), second_principal)
    acl = f"sasl:etl@{REALM}:cdrwa,sasl:ops@{REALM}:cdrwa"
    for security in (etl, second_principal):
        acquire_and_check(hosts_of(server), replace(security, acl=acl), lock_root="/shared")


def test_negative_control_an_open_server_accepts_a_client_without_a_ticket(server):
    assert "SessionClosedRequireSaslError" in refusal(hosts_of(server), Security())
    with EmbeddedZooKeeper() as open_server:
        acquire_and_check(hosts_of(open_server), Security())


def test_no_token_is_in_the_log(server, etl, caplog):
    caplog.set_level(1)
    acquire_and_check(hosts_of(server), etl, lock_root="/locks/logged")
    assert "Sending request" in caplog.text
    assert "SASL(" in caplog.text
    assert caplog.text.count("SASL(") == caplog.text.count("SASL(…)")


def test_doctor_reports_mechanism_and_principals(server, etl, keytabs, monkeypatch):
    for name, value in environment_of(server, etl).items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, ["doctor", "--json"])
    findings = {finding["what"]: (finding["verdict"], finding["says"]) for finding in json.loads(result.stdout)}
    verdict, text = findings["login"]
    assert verdict == "ok"
    assert f"Kerberos, etl@{REALM} to zookeeper/localhost; the ticket from the keytab is valid for " in text
    monkeypatch.setenv("SLUICE_ZK_KERBEROS_KEYTAB", str(keytabs["ops"]))
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 1
    findings = {finding["what"]: (finding["verdict"], finding["says"]) for finding in json.loads(result.stdout)}
    verdict, text = findings["session"]
    assert verdict == "failed"
    assert "the keytab gives no ticket of etl: it has no key of the principal" in text
    assert CliRunner().invoke(app, ["status"]).exit_code == 1


# -- refusals of this client, of the KDC and of the server ---------------------------------------------------------


def test_a_client_without_a_ticket_is_refused(server, kdc):
    message = refusal(hosts_of(server), Security(auth="kerberos"))
    assert "the ticket cache gives no ticket: No Kerberos credentials available" in message
    assert "kinit" in message
    assert "the ticket cache gives no ticket of etl" in refusal(
        hosts_of(server), Security(auth="kerberos", kerberos_principal="etl")
    )


def test_a_keytab_without_the_principal_is_refused(server, etl, keytabs, tmp_path):
    message = refusal(hosts_of(server), replace(etl, kerberos_keytab=str(keytabs["ops"])))
    assert "the keytab gives no ticket of etl: it has no key of the principal" in message
    junk = tmp_path / "junk"
    junk.write_bytes(b"junk")
    assert "the keytab gives no ticket: " in refusal(
        hosts_of(server), Security(auth="kerberos", kerberos_keytab=str(junk))
    )


def test_a_key_that_the_kdc_has_replaced_is_refused(server, kdc, etl):
    keytab = kdc.add("replaced")
    kdc.change_key("replaced")
    security = replace(etl, kerberos_principal="replaced", kerberos_keytab=str(keytab))
    assert "the keytab gives no ticket of replaced: " in refusal(hosts_of(server), security)


def test_a_server_that_the_kdc_does_not_know_is_refused(server, etl):
    assert f"zookeeper/127.0.0.1@{REALM} not found in Kerberos database" in refusal(server.hosts, etl)
    kafka = replace(etl, kerberos_service="kafka")
    assert f"kafka/localhost@{REALM} not found in Kerberos database" in refusal(hosts_of(server), kafka)


def test_a_server_without_the_name_of_a_principal_is_skipped(server, etl):
    for _ in range(3):  # Kazoo tries the servers in random order.
        acquire_and_check(f"{server.hosts},{hosts_of(server)}", etl)


@pytest.mark.full
def test_a_server_that_does_not_use_kerberos_is_refused(requirements, etl):
    with EmbeddedZooKeeper() as open_server:
        assert "it does not use Kerberos" in refusal(hosts_of(open_server), etl)
    users = ServerSecurity(sasl_users={"etl": "password"}, schemes=("sasl",))
    with EmbeddedZooKeeper(security=users) as digest_server:
        assert "Kerberos: no login to the server zookeeper/localhost: " in refusal(hosts_of(digest_server), etl)


@pytest.mark.full
def test_a_server_with_another_key_is_refused(kdc, etl, requirements):
    identity = replace(requirements.kerberos, principal=f"zookeeper/other@{REALM}", keytab=kdc.add("zookeeper/other"))
    with EmbeddedZooKeeper(security=replace(requirements, kerberos=identity)) as other_server:
        assert "the server refuses the ticket" in refusal(hosts_of(other_server), etl)


@pytest.mark.full
def test_a_kdc_that_does_not_answer_is_an_outage(server, kdc, etl, eventually):
    security = replace(etl, kerberos_principal="late", kerberos_keytab=str(kdc.add("late")), acl="world:anyone:cdrwa")
    acquire_and_check(hosts_of(server), etl)
    kdc.stop()
    try:
        acquire_and_check(hosts_of(server), etl)  # Its ticket is still valid.
        with manager_of(hosts_of(server), security, lock_root="/late") as manager:
            # An acquire may time out during an attempt, which has no result yet.
            eventually(
                lambda: "Kerberos: Cannot contact any KDC" in outage(lambda: manager.acquire(TABLE, timeout_seconds=1)),
                within=TIMEOUT_SECONDS,
            )
            kdc.start()
            manager.acquire(TABLE).release()
    finally:
        kdc.start()


# -- renewal -------------------------------------------------------------------------------------------------------


def restart(ensemble: EmbeddedZooKeeper) -> None:
    (server,) = ensemble.servers
    server.start()
    server.wait_until_serving(time.monotonic() + TIMEOUT_SECONDS)


def hold_with_an_expired_ticket(
    manager: ZookeeperLockManager,
    ensemble: EmbeddedZooKeeper,
    kdc: Kdc,
    keytabs: dict[str, Path],
    eventually: Callable[..., None],
) -> Hold:
    """Acquire the lock with a ticket of the cache, and restart the server after the ticket has expired."""
    kdc.log_in("brief", keytabs["brief"], ticket_seconds=SHORT_SECONDS)
    hold = manager.acquire(TABLE)
    client = manager._session.client
    ensemble.servers[0].stop()
    eventually(lambda: "the ticket has expired" in (client.problem or ""), within=TIMEOUT_SECONDS)
    restart(ensemble)
    return hold


@pytest.mark.full
def test_a_keytab_renews_tickets_and_a_hold_survives_a_restart(requirements, kdc, keytabs, eventually):
    security = Security(auth="kerberos", kerberos_keytab=str(keytabs["renewed"]))
    with (
        EmbeddedZooKeeper(max_session_timeout_ms=1000 * LONG_SESSION_SECONDS, security=requirements) as ensemble,
        manager_of(hosts_of(ensemble), security, session_timeout_seconds=LONG_SESSION_SECONDS) as manager,
    ):
        hold = manager.acquire(TABLE)
        ensemble.servers[0].stop()
        first_ticket = kdc.issue_times("renewed")[0]
        eventually(lambda: kdc.issue_times("renewed")[-1] > first_ticket + SHORT_SECONDS, within=TIMEOUT_SECONDS)
        restart(ensemble)
        hold.check(timeout_seconds=LONG_SESSION_SECONDS)
        hold.release()


@pytest.mark.full
def test_negative_control_an_expired_ticket_of_the_cache_is_refused_until_kinit(requirements, kdc, keytabs, eventually):
    security = Security(auth="kerberos", kerberos_principal="brief")
    with (
        EmbeddedZooKeeper(max_session_timeout_ms=1000 * LONG_SESSION_SECONDS, security=requirements) as ensemble,
        manager_of(hosts_of(ensemble), security, session_timeout_seconds=LONG_SESSION_SECONDS) as manager,
    ):
        hold = hold_with_an_expired_ticket(manager, ensemble, kdc, keytabs, eventually)
        assert "the ticket has expired" in refusal(hosts_of(ensemble), security)
        eventually(
            lambda: "the ticket has expired" in outage(lambda: hold.check(timeout_seconds=2)), within=TIMEOUT_SECONDS
        )
        kdc.log_in("brief", keytabs["brief"])
        hold.check(timeout_seconds=LONG_SESSION_SECONDS)
        hold.release()


@pytest.mark.full
def test_a_holder_without_a_ticket_does_not_keep_its_lock(requirements, kdc, etl, keytabs, eventually):
    """Attempts to connect prolong a session, so a client without a ticket must not connect."""
    acl = "world:anyone:cdrwa"
    security = Security(auth="kerberos", kerberos_principal="brief", acl=acl)
    with (
        EmbeddedZooKeeper(security=requirements) as ensemble,
        manager_of(hosts_of(ensemble), security, session_timeout_seconds=4) as manager,
        manager_of(hosts_of(ensemble), replace(etl, acl=acl)) as next_manager,
    ):
        hold = hold_with_an_expired_ticket(manager, ensemble, kdc, keytabs, eventually)
        in_new_thread(next_manager.acquire, TABLE).result()
        assert not hold.is_valid()
