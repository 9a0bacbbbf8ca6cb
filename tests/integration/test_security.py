"""Who may talk to the ensemble, and what is seen of it: against real servers that really demand it."""

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
    TableResource,
    ZookeeperLockManager,
)
from lock_manager.testing.embedded import EmbeddedZooKeeper
from lock_manager.testing.server_security import ServerSecurity
from lock_manager.zookeeper.client import Client, acl_of
from lock_manager.zookeeper.znodes import parse_queue, table_node
from soak.tcp_proxy import Link
from tests.support.authority import Authority

TABLE = "s3://lake/secured"
ROOT = "/locks/delta_tables"
NODE = table_node(ROOT, TableResource.of(TABLE))
PASSWORD = "the-right-one-7f3a"  # noqa: S105
WRONG = "the-wrong-one-1c9e"
USERS = {"etl": PASSWORD, "ops": WRONG}
USER = Security(auth="sasl", username="etl", password=PASSWORD)
REFUSED_WITHIN = 12.0
PATIENCE = 60.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki") / "own")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory) -> Authority:
    """An authority that the servers do not know, with the same name."""
    return Authority(tmp_path_factory.mktemp("pki") / "other")


@pytest.fixture(scope="module")
def sasl_server() -> Iterator[EmbeddedZooKeeper]:
    """Sessions are for its users only."""
    with EmbeddedZooKeeper(
        security=ServerSecurity(sasl_users={"etl": PASSWORD, "ops": WRONG}, schemes=("sasl",))
    ) as embedded:
        yield embedded


@pytest.fixture(scope="module")
def tls_server(authority) -> Iterator[EmbeddedZooKeeper]:
    """Speaks TLS only, with clients that have a certificate of the authority."""
    with EmbeddedZooKeeper(
        security=ServerSecurity(key_store=authority.store("server", "127.0.0.1"), trust_store=authority.file)
    ) as embedded:
        yield embedded


@pytest.fixture(scope="module")
def open_server() -> Iterator[EmbeddedZooKeeper]:
    """ServerSecurity nothing, as ZooKeeper does by default."""
    with EmbeddedZooKeeper() as embedded:
        yield embedded


def managed(server: EmbeddedZooKeeper | str, security: Security, **more: Any) -> ZookeeperLockManager:
    hosts = server if isinstance(server, str) else server.hosts
    return ZookeeperLockManager(LockSettings(zk_hosts=hosts, timeout_seconds=PATIENCE, security=security, **more))


def refusal(server: EmbeddedZooKeeper | str, security: Security, **more: Any) -> str:
    """Be refused in a fraction of the time that there is, and return the message."""
    with managed(server, security, **more) as manager:
        started = time.monotonic()
        with pytest.raises(EnsembleRefusedError) as told:
            manager.acquire(TABLE)
        assert time.monotonic() - started < REFUSED_WITHIN
    return str(told.value)


def gets_a_lock(server: EmbeddedZooKeeper | str, security: Security, **more: Any) -> None:
    with managed(server, security, **more) as manager, manager.acquire(TABLE) as hold:
        hold.check()


def acls(client: KazooClient, path: str) -> dict[str, list[tuple[str, str, int]]]:
    """Return the ACL of a znode and of all below it, as (scheme, id, permissions)."""
    found = {path: [(each.id.scheme, each.id.id, each.perms) for each in client.get_acls(path)[0]]}
    for name in client.get_children(path):
        found |= acls(client, f"{path}/{name}")
    return found


def look(server: EmbeddedZooKeeper, **options: Any) -> KazooClient:
    client = KazooClient(server.hosts, **options)
    client.start()
    return client


def stop(client: KazooClient) -> None:
    client.stop()
    client.close()


# -- the negative control ------------------------------------------------------------------------------------------


def test_a_server_without_demands_lets_the_same_strangers_in(open_server):
    gets_a_lock(open_server, Security())
    gets_a_lock(open_server, Security(auth="digest", username="etl", password=WRONG), lock_root="/locks/by_digest")


# -- SASL ----------------------------------------------------------------------------------------------------------


def test_sasl_lets_a_known_user_in(sasl_server):
    gets_a_lock(sasl_server, USER)


def test_sasl_refuses_who_says_nothing(sasl_server):
    assert "SessionClosedRequireSaslError" in refusal(sasl_server, Security())


def test_sasl_refuses_a_made_up_digest(sasl_server):
    assert "SLUICE_ZK_AUTH" in refusal(sasl_server, Security(auth="digest", username="etl", password=PASSWORD))


@pytest.mark.parametrize(("username", "password"), [("etl", WRONG), ("nobody", PASSWORD)])
def test_sasl_refuses_wrong_credentials(sasl_server, username, password):
    told = refusal(sasl_server, Security(auth="sasl", username=username, password=password))
    assert "credentials" in told
    assert password not in told


def test_sasl_with_a_server_that_has_no_users_comes_to_an_end(open_server):
    """It answers each question with nothing, and kazoo would ask for ever, a thousand times a second."""
    assert "SASLException" in refusal(open_server, USER)


@pytest.mark.full
def test_a_refused_manager_is_let_in_once_the_server_knows_it(tmp_path):
    """It tries again at the next call, and no thread of it goes on forever in between."""
    security = ServerSecurity(sasl_users={"etl": WRONG}, schemes=("sasl",))
    with EmbeddedZooKeeper(security=security, data_dir=tmp_path) as embedded, managed(embedded, USER) as manager:
        with pytest.raises(EnsembleRefusedError):
            manager.acquire(TABLE)
        (server,) = embedded.servers
        server.stop()
        replace(security, sasl_users={"etl": PASSWORD}).java_options(server.folder)
        server.start()
        server.wait_until_serving(time.monotonic() + PATIENCE)
        manager.acquire(TABLE).release()


def test_a_server_that_hangs_up_in_the_sasl_exchange_is_tried_again(sasl_server):
    """Kazoo would take it for a refusal, and end the session with every hold of it."""
    with Link(sasl_server.hosts) as proxy, managed(proxy.hosts, USER, session_timeout_seconds=20) as manager:
        hold = manager.acquire(TABLE)
        client = manager._session.client
        original, met = client._connection._authenticate_with_sasl, threading.Event()

        def cut(*arguments: Any) -> Any:
            if not met.is_set():
                met.set()
                proxy.drop()
            return original(*arguments)

        client._connection._authenticate_with_sasl = cut
        proxy.drop()
        assert met.wait(PATIENCE)
        hold.check(timeout_seconds=15)
        assert hold.is_valid()
        hold.release()


# -- TLS -----------------------------------------------------------------------------------------------------------


def test_tls_lets_a_client_with_a_certificate_in(tls_server, authority):
    gets_a_lock(tls_server, authority.client("job"))


def test_tls_takes_pem_text_and_an_encrypted_key(tls_server, authority):
    certificate, key = authority.issue("text", password=PASSWORD)
    security = Security(
        tls_ca=authority.file.read_text(),
        tls_certificate=certificate.read_text(),
        tls_key=key.read_text(),
        tls_key_password=PASSWORD,
    )
    gets_a_lock(tls_server, security, lock_root="/by_text")


def test_tls_refuses_a_client_without_a_certificate(tls_server, authority):
    assert "TLS: " in refusal(tls_server, Security(tls_ca=str(authority.file)))


def test_tls_refuses_a_certificate_of_another_authority(tls_server, authority, stranger):
    assert "TLS: " in refusal(tls_server, replace(stranger.client("job"), tls_ca=str(authority.file)))


def test_a_server_of_another_authority_is_refused(tls_server, authority, stranger):
    told = refusal(tls_server, replace(authority.client("job"), tls_ca=str(stranger.file)))
    assert "TLS: " in told
    assert "tls_ca" in told


def test_a_certificate_for_another_host_name_is_refused(tls_server, authority):
    """The server's is for 127.0.0.1; it says nothing of localhost, which is the same machine."""
    port = tls_server.servers[0].client_port
    security = authority.client("job")
    assert "Hostname mismatch" in refusal(f"localhost:{port}", security)
    gets_a_lock(f"127.0.0.1:{port}", security)
    # The control: but for the name, that server would have been taken, as kazoo does by default.
    client = KazooClient(
        f"localhost:{port}",
        use_ssl=True,
        ca=security.tls_ca,
        certfile=security.tls_certificate,
        keyfile=security.tls_key,
    )
    client.start()
    stop(client)


def test_plain_words_to_a_tls_port_are_unavailable_and_the_message_says_why(tls_server):
    with managed(tls_server, Security()) as manager:
        started = time.monotonic()
        with pytest.raises(EnsembleUnavailableError, match="demands TLS"):
            manager.connect(timeout_seconds=2)
        assert time.monotonic() - started < REFUSED_WITHIN


def test_tls_to_a_plain_port_never_falls_back_to_plain_words(open_server, authority):
    with (
        managed(open_server, authority.client("job")) as manager,
        pytest.raises((EnsembleRefusedError, EnsembleUnavailableError)),
    ):
        manager.connect(timeout_seconds=2)


def test_one_server_with_a_bad_certificate_does_not_keep_us_from_the_others(tls_server, authority):
    port = tls_server.servers[0].client_port
    for _ in range(3):  # kazoo takes them in random order
        gets_a_lock(f"localhost:{port},127.0.0.1:{port}", authority.client("job"))


def test_files_are_read_again_and_a_session_survives_a_while_of_bad_ones(
    tls_server, authority, stranger, tmp_path, eventually
):
    """What is final before the first session is an outage after it: the hold may still stand."""
    trusted = tmp_path / "authority.pem"
    trusted.write_bytes(authority.file.read_bytes())
    security = replace(authority.client("job"), tls_ca=str(trusted))
    with Link(tls_server.hosts) as proxy, managed(proxy.hosts, security, session_timeout_seconds=30) as manager:
        hold = manager.acquire(TABLE)
        client = manager._session.client
        for bad in (stranger.file.read_bytes(), b""):
            trusted.write_bytes(bad)
            proxy.drop()
            eventually(lambda: client.problem is not None)
            eventually(lambda bad=bad: client.problem.startswith("TLS: ") == bool(bad))
            assert client.refusal is None
            trusted.write_bytes(authority.file.read_bytes())
            hold.check(timeout_seconds=20)
            assert client.problem is None
        hold.release()


@pytest.mark.full
def test_sasl_within_tls(authority):
    security = ServerSecurity(
        key_store=authority.store("both", "127.0.0.1"),
        trust_store=authority.file,
        sasl_users={"etl": PASSWORD},
        schemes=("sasl",),
    )
    with EmbeddedZooKeeper(security=security) as server:
        right = authority.client("job", auth="sasl", username="etl", password=PASSWORD)
        gets_a_lock(server, right)
        refusal(server, authority.client("job"))
        refusal(server, replace(right, password=WRONG))


def test_what_tls_has_decrypted_already_is_not_left_lying(authority):
    """Two answers in one TLS record: kazoo's own select would not see the second one."""
    certificate, key = authority.issue("pair", "localhost")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    here, there = socket.socketpair()
    server = serving.wrap_socket(there, server_side=True, do_handshake_on_connect=False)
    client = (
        Security(tls_ca=str(authority.file))
        .tls_context()
        .wrap_socket(here, server_hostname="localhost", do_handshake_on_connect=False)
    )
    shaking = threading.Thread(target=server.do_handshake)
    shaking.start()
    client.do_handshake()
    shaking.join()
    with client, server:
        server.sendall(b"onetwo")
        assert client.recv(3) == b"one"
        handler = Client("127.0.0.1:1", 4.0, lambda _: None, Security()).handler
        assert handler.select([client, server], [], [], 0)[0] == [client]
        assert client.recv(3) == b"two"
        assert handler.select([client, server], [], [], 0)[0] == []


# -- ACL -----------------------------------------------------------------------------------------------------------


def everything_below_the_root(manager: ZookeeperLockManager, client: KazooClient) -> dict[str, Any]:
    """Have one znode of each kind, and return their ACLs."""
    with manager.acquire(TABLE) as hold, manager.acquire(TABLE + "_shared", shared=True):
        hold.intend(1, txn="t", attempt="a")
        found = acls(client, "/locks")
    kinds = {path.removeprefix(NODE).partition("__")[0].count("/") for path in found if path.startswith(NODE)}
    assert kinds == {0, 1, 2}
    assert parse_queue([path.rpartition("/")[2] for path in found])
    assert f"{NODE}/intents" in found
    assert any(path.startswith(f"{NODE}/intents/") for path in found)
    return found


def test_every_znode_is_for_the_sasl_user_alone():
    with EmbeddedZooKeeper(
        security=ServerSecurity(sasl_users={"etl": PASSWORD, "ops": WRONG}, schemes=("sasl",))
    ) as server:
        client = look(server, sasl_options={"mechanism": "DIGEST-MD5", "username": "etl", "password": PASSWORD})
        with managed(server, USER) as manager:
            found = everything_below_the_root(manager, client)
        assert set(map(tuple, found.values())) == {(("sasl", "etl", 31),)}
        stop(client)
        # Another user, whom the server knows, but not the ACL.
        told = refusal(server, Security(auth="sasl", username="ops", password=WRONG))
        assert "NoAuthError" in told
        assert "ACL" in told


@pytest.mark.full
def test_every_znode_is_for_the_certificate_alone(authority):
    with EmbeddedZooKeeper(
        security=ServerSecurity(key_store=authority.store("acl", "127.0.0.1"), trust_store=authority.file)
    ) as server:
        security = authority.client("job")
        client = look(
            server, use_ssl=True, ca=security.tls_ca, certfile=security.tls_certificate, keyfile=security.tls_key
        )
        with managed(server, security) as manager:
            found = everything_below_the_root(manager, client)
        assert set(map(tuple, found.values())) == {(("x509", "CN=job", 31),)}
        stop(client)
        assert "NoAuthError" in refusal(server, authority.client("somebody"))


def test_digest_keeps_others_from_our_znodes_and_nobody_from_the_rest():
    with EmbeddedZooKeeper() as server:
        security = Security(auth="digest", username="etl", password=PASSWORD)
        client = look(server, auth_data=[("digest", f"etl:{PASSWORD}")])
        with managed(server, security) as manager:
            found = everything_below_the_root(manager, client)
        stop(client)
        ours = make_digest_acl("etl", PASSWORD, all=True)
        assert set(map(tuple, found.values())) == {(("digest", ours.id.id, 31),)}
        for other in (Security(), replace(security, password=WRONG)):
            assert "NoAuthError" in refusal(server, other)
            # Which is why digest alone is no way to know one's clients.
            gets_a_lock(server, other, lock_root=f"/elsewhere_{other.auth}")


def test_without_credentials_every_znode_is_open():
    """The control: what the tests above see is ours, not the server's default."""
    with EmbeddedZooKeeper() as server, managed(server, Security()) as manager:
        client = look(server)
        found = everything_below_the_root(manager, client)
        assert set(map(tuple, found.values())) == {(("world", "anyone", 31),)}
        stop(client)


def test_a_given_acl_lets_several_identities_share_a_queue():
    with EmbeddedZooKeeper(
        security=ServerSecurity(sasl_users={"etl": PASSWORD, "ops": WRONG}, schemes=("sasl",))
    ) as server:
        acl = "sasl:etl:cdrwa,sasl:ops:cdrwa,world:anyone:r"
        etl, ops = replace(USER, acl=acl), Security(auth="sasl", username="ops", password=WRONG, acl=acl)
        with managed(server, etl) as one, managed(server, ops) as other:
            with one.acquire(TABLE):
                assert len(other.queue(TABLE)) == 1
            with other.acquire(TABLE):
                assert len(one.queue(TABLE)) == 1


def test_a_root_whose_acl_excludes_us_is_refused_at_once(open_server):
    client = look(open_server, auth_data=[("digest", "owner:x")])
    owned = [make_digest_acl("owner", "x", all=True)]
    client.create("/excluded", acl=owned)
    assert "NoAuthError" in refusal(open_server, Security(), lock_root="/excluded/tables")
    read_only = [*owned, *acl_of(Security(acl="world:anyone:r"))]
    client.create("/excluded/tables", b'{"format": 1, "ensemble": "x"}', acl=read_only)
    client.set_acls("/excluded", read_only)
    assert "NoAuthError" in refusal(open_server, Security(), lock_root="/excluded/tables")
    stop(client)


def test_an_acl_for_a_client_whom_the_server_does_not_know_is_refused(open_server):
    told = refusal(open_server, Security(acl="auth::cdrwa"), lock_root="/unknown")
    assert "InvalidACLError" in told
    assert "SLUICE_ZK_ACL" in told


# -- secrets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("auth", ["sasl", "digest"])
def test_no_secret_is_logged_or_shown(sasl_server, open_server, caplog, auth):
    caplog.set_level(1)
    security = Security(auth=auth, username="etl", password=PASSWORD)
    server = sasl_server if auth == "sasl" else open_server
    with managed(server, security, lock_root="/locks/logged") as manager, manager.acquire(TABLE):
        session_password = manager._session.client.client_id[1]
        shown = [repr(manager.settings), str(manager.settings), repr(manager), repr(manager._session.client)]
    wrong = replace(security, password=WRONG)
    shown.append(refusal(server, wrong, lock_root="/locks/logged"))
    logged = caplog.text + "".join(shown)
    assert "Sending request" in logged  # it was on
    assert logging.getLogger("kazoo.client").isEnabledFor(1)
    for secret in (PASSWORD, WRONG, session_password.hex(), repr(session_password)):
        assert secret not in logged


def test_kazoo_by_itself_does_log_the_password(open_server, caplog):
    """The control of the test above."""
    caplog.set_level(logging.DEBUG)
    stop(look(open_server, auth_data=[("digest", f"etl:{PASSWORD}")]))
    assert PASSWORD in caplog.text
