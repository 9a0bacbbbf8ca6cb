"""Only refused connections and unknown host names prove that no ZooKeeper server can be reached."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import pytest

from lock_manager import EnsembleUnavailableError, ZookeeperLockManager
from lock_manager.testing.embedded import free_ports

UNKNOWN = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
TRANSIENT = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
NAMES = "zk1.nowhere:2181,zk2.nowhere:2181"
NO_ADDRESS = "no address is known for the host name zk1.nowhere, zk2.nowhere"


def fail_lookups(monkeypatch: pytest.MonkeyPatch, errors: Iterator[OSError]) -> list[str]:
    """Let each look-up of a host name in ``.nowhere`` fail with the next error; return the list of looked-up names."""
    real_getaddrinfo = socket.getaddrinfo
    names: list[str] = []

    def fail(host: str, *args: Any, **options: Any) -> Any:
        if not host.endswith(".nowhere"):
            return real_getaddrinfo(host, *args, **options)
        names.append(host)
        raise next(errors)

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    return names


def test_connect_retries_transient_resolver_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = 12
    names = fail_lookups(monkeypatch, chain(repeat(TRANSIENT, failures), repeat(UNKNOWN)))
    with ZookeeperLockManager(NAMES) as manager, pytest.raises(EnsembleUnavailableError, match=NO_ADDRESS):
        manager.connect(60)
    assert len(names) > failures


def test_check_reachable_names_all_unknown_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    names = fail_lookups(monkeypatch, repeat(UNKNOWN))
    with ZookeeperLockManager(NAMES) as manager, pytest.raises(EnsembleUnavailableError, match=NO_ADDRESS):
        manager.check_reachable(600)
    assert sorted(names) == ["zk1.nowhere", "zk2.nowhere"], "each name must be looked up exactly once"


@pytest.mark.parametrize(
    ("error", "is_proof"),
    [
        (UNKNOWN, True),
        (ConnectionRefusedError(111, "Connection refused"), True),
        (TRANSIENT, False),
        (TimeoutError("timed out"), False),
        (OSError(113, "No route to host"), False),
    ],
)
def test_only_refusals_and_unknown_names_prove_unreachability(
    error: OSError, monkeypatch: pytest.MonkeyPatch, *, is_proof: bool
) -> None:
    timeouts: list[float] = []

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        timeouts.append(timeout)
        raise error if address[0] == "zk2" else ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", connect)
    with ZookeeperLockManager("zk1:2181,zk2:2182") as manager:
        if is_proof:
            with pytest.raises(EnsembleUnavailableError, match=r"zk1:2181: .*refused; zk2:2182: "):
                manager.check_reachable(0.1)
        else:
            manager.check_reachable(0.1)
    assert set(timeouts) == {0.1}, "a server did not get the whole timeout"


def test_one_server_that_accepts_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        hosts = f"127.0.0.1:{free_ports(1)[0]},127.0.0.1:{server.getsockname()[1]}"
        with ZookeeperLockManager(hosts) as manager:
            manager.check_reachable(60)
