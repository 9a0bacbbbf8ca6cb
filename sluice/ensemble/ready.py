"""``sluice ensemble ready``: all expected servers are in one quorum, in step, and serve sessions.

What a server says of itself does not tell which ensemble it is of: two ensembles may be at the same epoch. So a node is
written through one server and looked for through each of the others, which also shows that each of them serves.
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
from sluice.ensemble.members import SAYS_NOTHING, Server, ask_servers

_SESSION_SECONDS = 10.0
"""For a session with one server, and what is asked of it."""

_LOOK_AGAIN_SECONDS = 1.0
_WRITTEN = b"ready?"


@dataclass(frozen=True)
class Readiness:
    """What was found.

    Attributes:
        expected: how many servers are meant to be there.
        servers: what each of the connection string says.
        wrong: a sentence for each thing that is; empty if the ensemble is ready.

    """

    expected: int
    servers: tuple[Server, ...]
    wrong: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether all of them serve one quorum in step."""
        return not self.wrong

    def to_json(self) -> dict[str, Any]:
        """Return what ``sluice ensemble ready --json`` prints."""
        servers = [server.to_json() for server in self.servers]
        return {"ready": self.ready, "expected": self.expected, "wrong": list(self.wrong), "servers": servers}


def wait_until_ready(
    settings: LockSettings, expected: int | None, seconds: float, tell: Callable[[Readiness, float], None]
) -> Readiness:
    """Look until the ensemble is ready or the time is over, and return what was found last.

    Args:
        settings: of the lock.
        expected: how many servers there are; as many as the connection string names, more than one, if None.
        seconds: to wait; 0 to look once.
        tell: called with what was found, and the seconds that are left, before each wait.

    """
    deadline = Deadline(seconds)
    while True:
        found = look(settings, expected)
        if found.ready or deadline.remaining() == 0:
            return found
        tell(found, deadline.remaining())
        time.sleep(min(_LOOK_AGAIN_SECONDS, deadline.remaining()))


def look(settings: LockSettings, expected: int | None) -> Readiness:
    """Look once: ask all servers, write through those that serve, and ask again what they have applied since."""
    servers = ask_servers(settings)
    number = len(servers) if expected is None else expected
    wrong = [*faults_of(servers, number, alone=expected == 1), *_written(settings, servers)]
    if not wrong:
        # Until the first write of an epoch a follower tells the zxid, and so the epoch, of the one before.
        servers = ask_servers(settings)
        wrong = [*faults_of(servers, number, alone=expected == 1), *epoch_faults(servers)]
    return Readiness(number, tuple(servers), tuple(wrong))


def faults_of(servers: Sequence[Server], expected: int, *, alone: bool) -> list[str]:
    """Judge what the servers say, each for itself and together.

    Args:
        servers: of the connection string.
        expected: how many there are meant to be.
        alone: whether one that runs alone is wanted.

    """
    wrong = []
    if len(servers) != expected:
        wrong.append(
            f"the connection string names {_count(len(servers))} instead of {expected}: name every one, and no others"
        )
    for server in servers:
        if server.problem is not None:
            wrong.append(f"{server.address} {server.problem}")
        elif server.mode is None:
            wrong.append(f"{server.address} {SAYS_NOTHING}")
        elif server.mode == "standalone" and not (alone and len(servers) == 1):
            wrong.append(
                f"{server.address} runs alone (standalone), in no ensemble: give it the list of members, or say "
                "--expect 1 if it is all that there is meant to be"
            )
        elif server.mode == "observer":
            wrong.append(f"{server.address} is an observer, which has no vote: make it a participant")
    return wrong + _leader_faults([server for server in servers if server.mode == "leader"], servers, expected)


def _leader_faults(leaders: Sequence[Server], servers: Sequence[Server], expected: int) -> list[str]:
    if len(leaders) > 1:
        named = ", ".join(server.address for server in leaders)
        return [
            f"there are {len(leaders)} leaders ({named}): these are servers of several ensembles; name those of one"
        ]
    if not leaders:
        # One that does not tell its mode may be the leader.
        follow = all(server.mode for server in servers) and any(server.mode == "follower" for server in servers)
        return ["no leader is among those that are named: name every server of the ensemble"] if follow else []
    (leader,) = leaders
    synced = leader.synced_followers
    if synced is None:
        return [f"{leader.address} leads, and does not tell who is in step: allow mntr (4lw.commands.whitelist)"]
    if synced != expected - 1:
        return [f"{leader.address} leads with {_count(synced, 'follower')} in step instead of {expected - 1}"]
    return []


def epoch_faults(servers: Sequence[Server]) -> list[str]:
    """Judge whether all follow the same leader: a follower may be some transactions behind, but not an epoch."""
    led = [server.epoch for server in servers if server.mode == "leader"]
    return [
        f"{server.address} is at epoch {server.epoch}, and the leader at {led[0]}: it has not caught up"
        for server in servers
        if led and server.epoch != led[0]
    ]


def _written(settings: LockSettings, servers: Sequence[Server]) -> list[str]:
    """Write and read below the lock root through one of those that serve, and look for it through each of them."""
    serving = [server.address for server in servers if server.mode is not None]
    if not serving:
        return []
    session, deadline = _session(settings, ",".join(serving)), Deadline(_SESSION_SECONDS)

    def ask() -> list[str]:
        with scratch_node(session, nearest_node(session, deadline), deadline) as scratch:
            session.wait(session.client.set_async(scratch.path, _WRITTEN), deadline)
            with ThreadPoolExecutor(len(serving)) as pool:
                said = pool.map(lambda address: _looked_for(settings, address, scratch.path), serving)
                return [each for each in said if each is not None]

    try:
        return try_session(session, deadline, ask)
    except (NoChrootError, EnsembleRefusedError, EnsembleUnavailableError) as error:
        return [str(error)]
    finally:
        session.close()


def _looked_for(settings: LockSettings, address: str, path: str) -> str | None:
    """Return what is wrong with one server: no session, or not what was written."""
    session, deadline = _session(settings, address), Deadline(_SESSION_SECONDS)

    try:
        data = read_after_sync(session, path, deadline)
    except (EnsembleRefusedError, EnsembleUnavailableError) as error:
        return str(error)
    else:
        if data is None:
            return f"{address} does not know what was written through the others: it is of another ensemble"
        return None if data == _WRITTEN else f"{address} reads something else than what was written"
    finally:
        session.close()


def _session(settings: LockSettings, hosts: str) -> Session:
    _, slash, chroot = settings.zk_hosts.partition("/")
    return Session(replace(settings, zk_hosts=hosts + slash + chroot))


def _count(number: int, what: str = "server") -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
