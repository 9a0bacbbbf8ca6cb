"""``sluice ensemble ready``: checks that all expected servers form one quorum, are in sync and serve sessions.

The state that a server reports does not identify its ensemble: two ensembles may be at the same epoch. So the check
writes a node through one server and reads it through each server. That also proves that each of them serves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from lock_manager.deadline import Deadline
from lock_manager.errors import EnsembleRefusedError, EnsembleUnavailableError, NoChrootError
from lock_manager.settings import LockSettings
from lock_manager.zookeeper.scratch_node import nearest_node, read_after_sync, scratch_node, try_session
from lock_manager.zookeeper.session import Session
from sluice.audit.checks import count_text
from sluice.ensemble.members import NO_ANSWER_TO_SRVR, Server, ask_servers

# Seconds for a session with all its requests.
_SESSION_SECONDS = 10.0
_CONTENT = b"ready?"


@dataclass(frozen=True)
class Readiness:
    """The result of one check.

    Attributes:
        expected: Number of servers that the ensemble should have.
        servers: The state of each server in the connection string.
        problems: One sentence for each problem. Empty if the ensemble is ready.

    """

    expected: int
    servers: tuple[Server, ...]
    problems: tuple[str, ...]

    @property
    def is_ready(self) -> bool:
        """Whether all expected servers serve one quorum in sync."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``sluice ensemble ready --json`` prints."""
        servers = [server.to_json() for server in self.servers]
        return {"ready": self.is_ready, "expected": self.expected, "wrong": list(self.problems), "servers": servers}


def wait_until_ready(
    settings: LockSettings, expected: int | None, seconds: float, report: Callable[[Readiness, float], None]
) -> Readiness:
    """Repeat the check until the ensemble is ready or the seconds have passed. Return the last result.

    Args:
        settings: Settings of the lock. Their connection string names the servers.
        expected: Number of servers. None for the number in the connection string; then a standalone server is a fault.
        seconds: Seconds to wait; 0 to check once.
        report: Called before each wait with the result and the seconds that are left.

    """
    deadline = Deadline(seconds)
    while True:
        readiness = check_readiness(settings, expected)
        if readiness.is_ready or deadline.remaining() == 0:
            return readiness
        report(readiness, deadline.remaining())
        time.sleep(min(1.0, deadline.remaining()))


def check_readiness(settings: LockSettings, expected: int | None) -> Readiness:
    """Check once: query all servers, write a node through one, read it through each, and query the transaction ids."""
    servers = ask_servers(settings)
    number = len(servers) if expected is None else expected
    problems = [*server_faults(servers, number, allow_standalone=expected == 1), *_session_faults(settings, servers)]
    if not problems:
        # Until the first write of an epoch a follower reports a zxid of the previous epoch.
        servers = ask_servers(settings)
        problems = [*server_faults(servers, number, allow_standalone=expected == 1), *epoch_faults(servers)]
    return Readiness(number, tuple(servers), tuple(problems))


def server_faults(servers: Sequence[Server], expected: int, *, allow_standalone: bool) -> list[str]:
    """Return the faults of the servers' states, of each one and of all together.

    ``expected`` is the number of servers that the ensemble should have. ``allow_standalone`` allows a single server
    that is not part of an ensemble.
    """
    faults = []
    if len(servers) != expected:
        number = count_text(len(servers), "server")
        faults.append(f"the connection string names {number} instead of {expected}: name every one, and no others")
    for server in servers:
        if server.problem is not None:
            faults.append(f"{server.address} {server.problem}")
        elif server.mode is None:
            faults.append(f"{server.address} {NO_ANSWER_TO_SRVR}")
        elif server.mode == "standalone" and not (allow_standalone and len(servers) == 1):
            faults.append(
                f"{server.address} is standalone, not part of an ensemble: configure the list of members, or pass "
                "--expect 1 if this server is the whole ensemble"
            )
        elif server.mode == "observer":
            faults.append(f"{server.address} is an observer, which has no vote: make it a participant")
    return faults + _leader_faults(servers, expected)


def _leader_faults(servers: Sequence[Server], expected: int) -> list[str]:
    leaders = [server for server in servers if server.mode == "leader"]
    if len(leaders) > 1:
        addresses = ", ".join(server.address for server in leaders)
        return [
            f"there are {len(leaders)} leaders ({addresses}): the servers are of several ensembles; name one ensemble"
        ]
    if not leaders:
        # A server that does not report its mode may be the leader.
        modes = [server.mode for server in servers]
        leader_is_unnamed = all(modes) and "follower" in modes
        return ["the connection string names no leader: name every server of the ensemble"] if leader_is_unnamed else []
    (leader,) = leaders
    synced_followers = leader.synced_followers
    if synced_followers is None:
        return [f"{leader.address} leads, but does not report synced followers: allow mntr (4lw.commands.whitelist)"]
    if synced_followers != expected - 1:
        return [
            f"{leader.address} leads with {count_text(synced_followers, 'follower')} in sync instead of {expected - 1}"
        ]
    return []


def epoch_faults(servers: Sequence[Server]) -> list[str]:
    """Return a fault for each server that is not at the leader's epoch. A follower may be some transactions behind."""
    leader = next((server for server in servers if server.mode == "leader"), None)
    if leader is None:
        return []
    return [
        f"{server.address} is at epoch {server.epoch}, but the leader at {leader.epoch}: it has not caught up"
        for server in servers
        if server.epoch != leader.epoch
    ]


def _session_faults(settings: LockSettings, servers: Sequence[Server]) -> list[str]:
    """Write a node below the lock root through one serving server, and read it through each. Return the faults."""
    serving_addresses = [server.address for server in servers if server.mode is not None]
    if not serving_addresses:
        return []
    session, deadline = _session(settings, ",".join(serving_addresses)), Deadline(_SESSION_SECONDS)

    def write_and_read() -> list[str]:
        with scratch_node(session, nearest_node(session, deadline), deadline) as scratch:
            session.wait(session.client.set_async(scratch.path, _CONTENT), deadline)
            with ThreadPoolExecutor(len(serving_addresses)) as pool:
                faults = pool.map(lambda address: _read_fault(settings, address, scratch.path), serving_addresses)
                return [fault for fault in faults if fault is not None]

    try:
        return try_session(session, deadline, write_and_read)
    except (NoChrootError, EnsembleRefusedError, EnsembleUnavailableError) as error:
        return [str(error)]
    finally:
        session.close()


def _read_fault(settings: LockSettings, address: str, path: str) -> str | None:
    """Read the scratch node through one server. Return the fault, or None if the content is as written."""
    session, deadline = _session(settings, address), Deadline(_SESSION_SECONDS)
    try:
        data = read_after_sync(session, path, deadline)
    except (EnsembleRefusedError, EnsembleUnavailableError) as error:
        return str(error)
    else:
        if data is None:
            return f"{address} does not have the node that was written through the others: it is of another ensemble"
        return None if data == _CONTENT else f"{address} returns other content than was written"
    finally:
        session.close()


def _session(settings: LockSettings, hosts: str) -> Session:
    _, slash, chroot = settings.zk_hosts.partition("/")
    return Session(replace(settings, zk_hosts=hosts + slash + chroot))
