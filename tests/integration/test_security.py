"""Authentication, TLS, ACLs, and the absence of secrets in logs, on real servers."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from lock_manager import (
    EnsembleRefusedError,
    EnsembleUnavailableError,
    LockSettings,
    Security,
    ZookeeperLockManager,
)
from lock_manager.testing.embedded import EmbeddedZooKeeper
from lock_manager.testing.server_security import ServerSecurity
from lock_manager.zookeeper.client import Client, acl_of
from lock_manager.zookeeper.znodes import parse_queue
from soak.tcp_proxy import Link
from tests.support.authority import Authority
from tests.support.lock_znodes import LockZnodes, connected_client
from tests.support.new_thread import in_new_thread

TABLE = "s3://lake/secured"
PASSWORD = "the-right-one-7f3a"  # noqa: S105
#: Wrong for the user etl. It is the password of the user ops.
WRONG_PASSWORD = "the-wrong-one-1c9e"  # noqa: S105
USER = Security(auth="sasl", username="etl", password=PASSWORD)
SECOND_USER = Security(auth="sasl", username="ops", password=WRONG_PASSWORD)
SASL = ServerSecurity(sasl_users={"etl": PASSWORD, "ops": WRONG_PASSWORD}, schemes=("sasl",))
REFUSAL_SECONDS = 12.0
TIMEOUT_SECONDS = 60.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki") / "own")


@pytest.fixture(scope="module")
def unknown_authority(tmp_path_factory) -> Authority:
    """An authority with the same name, which the servers do not trust."""
    return Authority(tmp_path_factory.mktemp("pki") / "other")


@pytest.fixture(scope="module")
def sasl_server() -> Iterator[EmbeddedZooKeeper]:
    """A server that demands SASL."""
    with EmbeddedZooKeeper(security=SASL) as ensemble:
        yield ensemble


@pytest.fixture(scope="module")
def tls_server(authority) -> Iterator[EmbeddedZooKeeper]:
    """A server that demands TLS and a client certificate of the authority."""
    with EmbeddedZooKeeper(
        security=ServerSecurity(key_store=authority.store("server", "127.0.0.1"), trust_store=authority.file)
    ) as ensemble:
        yield ensemble


@pytest.fixture(scope="module")
def open_server() -> Iterator[EmbeddedZooKeeper]:
    """A server that demands no credentials, which is ZooKeeper's default."""
    with EmbeddedZooKeeper() as ensemble:
        yield ensemble


def manager_of(server: EmbeddedZooKeeper | str, security: Security, **options: Any) -> ZookeeperLockManager:
    hosts = server if isinstance(server, str) else server.hosts
    settings = LockSettings(zk_hosts=hosts, timeout_seconds=TIMEOUT_SECONDS, security=security, **options)
    return ZookeeperLockManager(settings)


def refusal(server: EmbeddedZooKeeper | str, security: Security, **options: Any) -> str:
    """Return the message of the refusal. It must come in a fraction of the timeout."""
    with manager_of(server, security, **options) as manager:
        started = time.monotonic()
        with pytest.raises(EnsembleRefusedError) as error:
            manager.acquire(TABLE)
        assert time.monotonic() - started < REFUSAL_SECONDS
    return str(error.value)


def acquire_and_check(server: EmbeddedZooKeeper | str, security: Security, **options: Any) -> None:
    with manager_of(server, security, **options) as manager, manager.acquire(TABLE) as hold:
        hold.check()


def tls_options(security: Security) -> dict[str, Any]:
    """Return kazoo's options for a client with these certificates."""
    return {
        "use_ssl": True,
        "ca": security.tls_ca,
        "certfile": security.tls_certificate,
        "keyfile": security.tls_key,
    }


def acls(client: KazooClient, path: str) -> dict[str, tuple[tuple[str, str, int], ...]]:
    """Return the ACLs of a znode and of its descendants, as (scheme, id, permissions)."""
    acls_by_path = {path: tuple((acl.id.scheme, acl.id.id, acl.perms) for acl in client.get_acls(path)[0])}
    for name in client.get_children(path):
        acls_by_path |= acls(client, f"{path}/{name}")
    return acls_by_path


# -- the negative control ------------------------------------------------------------------------------------------


def test_negative_control_an_open_server_accepts_the_same_clients(open_server):
    acquire_and_check(open_server, Security())
    acquire_and_check(
        open_server, Security(auth="digest", username="etl", password=WRONG_PASSWORD), lock_root="/locks/by_digest"
    )


# -- SASL ----------------------------------------------------------------------------------------------------------


def test_sasl_accepts_a_known_user(sasl_server):
    acquire_and_check(sasl_server, USER)


def test_sasl_refuses_a_client_without_credentials(sasl_server):
    assert "SessionClosedRequireSaslError" in refusal(sasl_server, Security())


def test_sasl_refuses_digest_credentials(sasl_server):
    assert "SLUICE_ZK_AUTH" in refusal(sasl_server, Security(auth="digest", username="etl", password=PASSWORD))


@pytest.mark.parametrize(("username", "password"), [("etl", WRONG_PASSWORD), ("nobody", PASSWORD)])
def test_sasl_refuses_wrong_credentials(sasl_server, username, password):
    message = refusal(sasl_server, Security(auth="sasl", username=username, password=password))
    assert "credentials" in message
    assert password not in message


def test_sasl_with_a_server_without_users_is_refused(open_server):
    """Such a server sends empty answers. Kazoo would repeat its request forever, a thousand times a second."""
    assert "SASLException" in refusal(open_server, USER)


@pytest.mark.full
def test_a_refused_manager_works_once_its_password_is_valid(tmp_path):
    """The manager connects again at its next call."""
    security = ServerSecurity(sasl_users={"etl": WRONG_PASSWORD}, schemes=("sasl",))
    with EmbeddedZooKeeper(security=security, data_dir=tmp_path) as ensemble, manager_of(ensemble, USER) as manager:
        with pytest.raises(EnsembleRefusedError):
            manager.acquire(TABLE)
        (server,) = ensemble.servers
        server.stop()
        replace(security, sasl_users={"etl": PASSWORD}).java_options(server.folder)
        server.start()
        server.wait_until_serving(time.monotonic() + TIMEOUT_SECONDS)
        manager.acquire(TABLE).release()


def test_a_sasl_exchange_is_repeated_after_a_lost_connection(sasl_server):
    """Kazoo would treat the lost connection as a refusal, and end the session with all its holds."""
    with Link(sasl_server.hosts) as proxy, manager_of(proxy.hosts, USER, session_timeout_seconds=20) as manager:
        hold = manager.acquire(TABLE)
        client = manager._session.client
        authenticate, connection_dropped = client._connection._authenticate_with_sasl, threading.Event()

        def drop_once(*arguments: Any) -> Any:
            if not connection_dropped.is_set():
                connection_dropped.set()
                proxy.drop()
            return authenticate(*arguments)

        client._connection._authenticate_with_sasl = drop_once
        proxy.drop()
        assert connection_dropped.wait(TIMEOUT_SECONDS)
        hold.check(timeout_seconds=15)
        assert hold.is_valid()
        hold.release()


# -- TLS -----------------------------------------------------------------------------------------------------------


def test_tls_accepts_a_client_with_a_certificate(tls_server, authority):
    acquire_and_check(tls_server, authority.client("job"))


def test_tls_accepts_pem_text_and_an_encrypted_key(tls_server, authority):
    certificate, key = authority.issue("text", password=PASSWORD)
    security = Security(
        tls_ca=authority.file.read_text(),
        tls_certificate=certificate.read_text(),
        tls_key=key.read_text(),
        tls_key_password=PASSWORD,
    )
    acquire_and_check(tls_server, security, lock_root="/by_text")


def test_tls_refuses_a_client_without_a_certificate(tls_server, authority):
    assert "TLS: " in refusal(tls_server, Security(tls_ca=str(authority.file)))


def test_tls_refuses_a_certificate_of_another_authority(tls_server, authority, unknown_authority):
    assert "TLS: " in refusal(tls_server, replace(unknown_authority.client("job"), tls_ca=str(authority.file)))


def test_a_server_of_another_authority_is_refused(tls_server, authority, unknown_authority):
    message = refusal(tls_server, replace(authority.client("job"), tls_ca=str(unknown_authority.file)))
    assert "TLS: " in message
    assert "tls_ca" in message


def test_a_certificate_for_another_host_name_is_refused(tls_server, authority):
    """The server's certificate contains 127.0.0.1, but not localhost, which is the same machine."""
    port = tls_server.servers[0].client_port
    security = authority.client("job")
    assert "Hostname mismatch" in refusal(f"localhost:{port}", security)
    acquire_and_check(f"127.0.0.1:{port}", security)
    # The control: kazoo's default does not check the name, and accepts the server.
    with connected_client(f"localhost:{port}", **tls_options(security)):
        pass


def test_plain_text_to_a_tls_port_reports_that_it_demands_tls(tls_server):
    with manager_of(tls_server, Security()) as manager:
        started = time.monotonic()
        with pytest.raises(EnsembleUnavailableError, match="demands TLS"):
            manager.connect(timeout_seconds=2)
        assert time.monotonic() - started < REFUSAL_SECONDS


def test_tls_to_a_plain_port_never_falls_back_to_plain_text(open_server, authority):
    with (
        manager_of(open_server, authority.client("job")) as manager,
        pytest.raises((EnsembleRefusedError, EnsembleUnavailableError)),
    ):
        manager.connect(timeout_seconds=2)


def test_a_server_with_a_bad_certificate_is_skipped(tls_server, authority):
    port = tls_server.servers[0].client_port
    for _ in range(3):  # Kazoo tries the servers in random order.
        acquire_and_check(f"localhost:{port},127.0.0.1:{port}", authority.client("job"))


def test_a_session_survives_temporarily_bad_certificates(
    tls_server, authority, unknown_authority, tmp_path, eventually
):
    """A bad certificate is final before the first session. Later it is an outage, because a hold may be valid."""
    trusted_file = tmp_path / "authority.pem"
    trusted_file.write_bytes(authority.file.read_bytes())
    security = replace(authority.client("job"), tls_ca=str(trusted_file))
    with Link(tls_server.hosts) as proxy, manager_of(proxy.hosts, security, session_timeout_seconds=30) as manager:
        hold = manager.acquire(TABLE)
        client = manager._session.client
        for bad_certificate in (unknown_authority.file.read_bytes(), b""):
            trusted_file.write_bytes(bad_certificate)
            proxy.drop()
            eventually(lambda: client.problem is not None)
            is_tls_error = bool(bad_certificate)
            eventually(lambda expected=is_tls_error: client.problem.startswith("TLS: ") == expected)
            assert client.refusal is None
            trusted_file.write_bytes(authority.file.read_bytes())
            hold.check(timeout_seconds=20)
            assert client.problem is None
        hold.release()


@pytest.mark.full
def test_sasl_within_tls_needs_both_credentials(authority):
    security = ServerSecurity(
        key_store=authority.store("both", "127.0.0.1"),
        trust_store=authority.file,
        sasl_users={"etl": PASSWORD},
        schemes=("sasl",),
    )
    with EmbeddedZooKeeper(security=security) as server:
        user = authority.client("job", auth="sasl", username="etl", password=PASSWORD)
        acquire_and_check(server, user)
        refusal(server, authority.client("job"))
        refusal(server, replace(user, password=WRONG_PASSWORD))


def test_decrypted_data_makes_a_tls_socket_readable(authority):
    """Two answers arrive in one TLS record. Kazoo's own select would not report the second one."""
    certificate, key = authority.issue("pair", "localhost")
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificate, key)
    client_end, server_end = socket.socketpair()
    server = server_context.wrap_socket(server_end, server_side=True, do_handshake_on_connect=False)
    client = (
        Security(tls_ca=str(authority.file))
        .tls_context()
        .wrap_socket(client_end, server_hostname="localhost", do_handshake_on_connect=False)
    )
    handshake = in_new_thread(server.do_handshake)
    client.do_handshake()
    handshake.result()
    with client, server:
        server.sendall(b"onetwo")
        assert client.recv(3) == b"one"
        handler = Client("127.0.0.1:1", 4.0, lambda _: None, Security()).handler
        assert handler.select([client, server], [], [], 0)[0] == [client]
        assert client.recv(3) == b"two"
        assert handler.select([client, server], [], [], 0)[0] == []


# -- ACL -----------------------------------------------------------------------------------------------------------


def acls_of_all_kinds(manager: ZookeeperLockManager, client: KazooClient) -> set[tuple[tuple[str, str, int], ...]]:
    """Create a znode of each kind, and return their ACLs."""
    with manager.acquire(TABLE) as hold, manager.acquire(TABLE + "_shared", shared=True):
        hold.intend(1, txn="t", attempt="a")
        acls_by_path = acls(client, "/locks")
    znodes = LockZnodes(client, TABLE)
    levels = {
        path.removeprefix(znodes.path).partition("__")[0].count("/")
        for path in acls_by_path
        if path.startswith(znodes.path)
    }
    assert levels == {0, 1, 2}
    assert parse_queue([path.rpartition("/")[2] for path in acls_by_path])
    assert znodes.intents_path in acls_by_path
    assert any(path.startswith(f"{znodes.intents_path}/") for path in acls_by_path)
    return set(acls_by_path.values())


def test_every_znode_is_for_the_sasl_user_alone():
    with EmbeddedZooKeeper(security=SASL) as server:
        options = {"sasl_options": {"mechanism": "DIGEST-MD5", "username": "etl", "password": PASSWORD}}
        with connected_client(server.hosts, **options) as client, manager_of(server, USER) as manager:
            assert acls_of_all_kinds(manager, client) == {(("sasl", "etl", 31),)}
        # The server knows the second user, but the ACL does not contain it.
        message = refusal(server, SECOND_USER)
        assert "NoAuthError" in message
        assert "ACL" in message


@pytest.mark.full
def test_every_znode_is_for_the_certificate_alone(authority):
    with EmbeddedZooKeeper(
        security=ServerSecurity(key_store=authority.store("acl", "127.0.0.1"), trust_store=authority.file)
    ) as server:
        security = authority.client("job")
        with (
            connected_client(server.hosts, **tls_options(security)) as client,
            manager_of(server, security) as manager,
        ):
            assert acls_of_all_kinds(manager, client) == {(("x509", "CN=job", 31),)}
        assert "NoAuthError" in refusal(server, authority.client("somebody"))


def test_digest_protects_our_znodes_and_no_other_znodes():
    with EmbeddedZooKeeper() as server:
        security = Security(auth="digest", username="etl", password=PASSWORD)
        auth_data = [("digest", f"etl:{PASSWORD}")]
        with connected_client(server.hosts, auth_data=auth_data) as client, manager_of(server, security) as manager:
            user = make_digest_acl("etl", PASSWORD, all=True).id.id
            assert acls_of_all_kinds(manager, client) == {(("digest", user, 31),)}
        for stranger in (Security(), replace(security, password=WRONG_PASSWORD)):
            assert "NoAuthError" in refusal(server, stranger)
            # Digest alone does not authenticate clients: the stranger may use another lock root.
            acquire_and_check(server, stranger, lock_root=f"/elsewhere_{stranger.auth}")


def test_negative_control_without_credentials_every_znode_is_open():
    """The ACLs in the tests above are the manager's, not the server's default."""
    with (
        EmbeddedZooKeeper() as server,
        connected_client(server.hosts) as client,
        manager_of(server, Security()) as manager,
    ):
        assert acls_of_all_kinds(manager, client) == {(("world", "anyone", 31),)}


def test_an_acl_lets_several_identities_share_a_queue():
    acl = "sasl:etl:cdrwa,sasl:ops:cdrwa,world:anyone:r"
    with (
        EmbeddedZooKeeper(security=SASL) as server,
        manager_of(server, replace(USER, acl=acl)) as manager,
        manager_of(server, replace(SECOND_USER, acl=acl)) as second_manager,
    ):
        with manager.acquire(TABLE):
            assert len(second_manager.queue(TABLE)) == 1
        with second_manager.acquire(TABLE):
            assert len(manager.queue(TABLE)) == 1


def test_a_root_whose_acl_excludes_the_client_is_refused(open_server):
    with connected_client(open_server.hosts, auth_data=[("digest", "owner:x")]) as client:
        owner_acl = [make_digest_acl("owner", "x", all=True)]
        client.create("/excluded", acl=owner_acl)
        assert "NoAuthError" in refusal(open_server, Security(), lock_root="/excluded/tables")
        read_only = [*owner_acl, *acl_of(Security(acl="world:anyone:r"))]
        client.create("/excluded/tables", b'{"format": 1, "ensemble": "x"}', acl=read_only)
        client.set_acls("/excluded", read_only)
        assert "NoAuthError" in refusal(open_server, Security(), lock_root="/excluded/tables")


def test_an_acl_of_an_unauthenticated_client_is_refused(open_server):
    message = refusal(open_server, Security(acl="auth::cdrwa"), lock_root="/unknown")
    assert "InvalidACLError" in message
    assert "SLUICE_ZK_ACL" in message


# -- secrets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("auth", ["sasl", "digest"])
def test_no_secret_is_in_logs_or_reprs(sasl_server, open_server, caplog, auth):
    caplog.set_level(1)
    security = Security(auth=auth, username="etl", password=PASSWORD)
    server = sasl_server if auth == "sasl" else open_server
    with manager_of(server, security, lock_root="/locks/logged") as manager, manager.acquire(TABLE):
        session_password = manager._session.client.client_id[1]
        texts = [repr(manager.settings), str(manager.settings), repr(manager), repr(manager._session.client)]
    texts.append(refusal(server, replace(security, password=WRONG_PASSWORD), lock_root="/locks/logged"))
    output = caplog.text + "".join(texts)
    assert "Sending request" in output  # Kazoo logs at its most detailed level.
    assert logging.getLogger("kazoo.client").isEnabledFor(1)
    for secret in (PASSWORD, WRONG_PASSWORD, session_password.hex(), repr(session_password)):
        assert secret not in output


def test_negative_control_kazoo_alone_logs_the_password(open_server, caplog):
    caplog.set_level(logging.DEBUG)
    with connected_client(open_server.hosts, auth_data=[("digest", f"etl:{PASSWORD}")]):
        pass
    assert PASSWORD in caplog.text
