"""Checks the ensemble: each server on its own, and all of them through a session like a writer's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from lock_manager.deadline import Deadline
from lock_manager.errors import EnsembleFormatError, EnsembleRefusedError, EnsembleUnavailableError, NoChrootError
from lock_manager.settings import LockSettings
from lock_manager.zookeeper import lock_root
from lock_manager.zookeeper.scratch_node import nearest_node, scratch_node, try_session
from lock_manager.zookeeper.session import Session
from sluice.doctor.acl import acl_finding
from sluice.doctor.finding import Finding, failed, note, ok
from sluice.ensemble.members import SAYS_NOTHING, Server, ask_servers, dotted

#: How long the doctor waits for a session.
CONNECT_SECONDS = 10.0
_SKEW_SECONDS = 1.0
"""How far clocks may differ: as much as `sluice verify` forgives by default."""

_REQUESTS = 20
_SLOW_MS = 50.0
_OLDEST = (3, 5, 0)
# CVE-2023-44981 and CVE-2024-23944 are mended from here on, by line of releases.
_MENDED: dict[tuple[int, ...], tuple[int, ...]] = {(3, 8): (3, 8, 4), (3, 9): (3, 9, 2)}


def ensemble_findings(settings: LockSettings) -> list[Finding]:
    """Ask every server, then open a session and write through the quorum, below a scratch node that is ephemeral."""
    return [*server_findings(ask_servers(settings)), *_session_findings(settings)]


def server_findings(servers: Sequence[Server]) -> list[Finding]:
    """Judge what the servers say, each for itself and together."""
    found = []
    for server in servers:
        what = f"server {server.address}"
        if server.problem is not None:
            found.append(failed(what, server.problem))
        elif server.version is None or server.mode is None:
            found.append(note(what, SAYS_NOTHING))
        else:
            found.append(ok(what, f"{server.mode}, ZooKeeper {dotted(server.version)}"))
    told = [server for server in servers if server.mode is not None]
    return [*found, *_versions(told), *_modes(told, len(servers))]


def _versions(told: Sequence[Server]) -> list[Finding]:
    versions = sorted({server.version for server in told if server.version is not None})
    what = "versions"
    if not versions:
        return []
    if versions[0] < _OLDEST:
        return [failed(what, f"{dotted(versions[0])} is too old: the lock needs ZooKeeper 3.5 (create2); use 3.9.5")]
    if versions[0] < (3, 8) or versions[0] < _MENDED.get(versions[0][:2], (0,)):
        return [note(what, f"{dotted(versions[0])} has CVE-2023-44981 or CVE-2024-23944: update, 3.9.5 is tested")]
    if len(versions) > 1:
        return [note(what, f"the servers differ: {', '.join(map(dotted, versions))}; finish the update")]
    return [ok(what, f"ZooKeeper {dotted(versions[0])}")]


def _modes(told: Sequence[Server], named: int) -> list[Finding]:
    modes = [server.mode for server in told]
    what = "quorum"
    if not modes:
        return []
    if "standalone" in modes and named > 1:
        return [
            failed(
                what, "a server that runs alone is named beside others: they are no ensemble, and hand out a lock each"
            )
        ]
    if modes.count("leader") > 1:
        return [failed(what, "two leaders are named: these servers are of two ensembles, which hand out a lock each")]
    if "standalone" in modes:
        return [note(what, "one server alone: no lock while it is down; an ensemble has three")]
    if named == 1:
        return [note(what, "one server of an ensemble is named: name all, so that a client can go to the next")]
    counts = [(modes.count(mode), mode) for mode in ("leader", "follower", "observer")]
    return [ok(what, ", ".join(f"{count} {mode}{'s' if count > 1 else ''}" for count, mode in counts if count))]


def _session_findings(settings: LockSettings) -> list[Finding]:
    session, deadline = Session(settings), Deadline(CONNECT_SECONDS)

    def ask() -> list[Finding]:
        return [_granted(session, settings), *_lock_root(session, deadline), *_written(session, deadline)]

    try:
        return try_session(session, deadline, ask)
    except (EnsembleRefusedError, EnsembleUnavailableError) as error:
        return [failed("session", str(error))]
    finally:
        session.close()


def _granted(session: Session, settings: LockSettings) -> Finding:
    asked, granted = settings.session_timeout_seconds, session.granted_seconds
    if granted < asked:
        return note(
            "session",
            f"{granted:g} s granted instead of {asked:g}: raise maxSessionTimeout if writers pause for longer",
        )
    return ok("session", f"time-out {granted:g} s")


def _lock_root(session: Session, deadline: Deadline) -> list[Finding]:
    root, what = session.settings.lock_root, "lock root"
    try:
        ensemble = lock_root.read_ensemble_id(session, deadline)
        if ensemble is None:
            return [note(what, f"{root} is not there yet: the first lock makes it")]
        found = ok(what, f"{root}, ensemble {ensemble}")
    except EnsembleFormatError as error:
        return [failed(what, str(error))]
    except EnsembleRefusedError as error:
        return [failed(what, f"{root} cannot be read ({error.refusal}): look at its ACL and this client's credentials")]
    return [found, acl_finding(session, deadline)]


def _written(session: Session, deadline: Deadline) -> list[Finding]:
    """Create, write, check and delete a scratch node, as a lock does; learn the ensemble's clock and pace from it."""
    try:
        base = nearest_node(session, deadline)
    except NoChrootError as error:
        return [failed("permission", str(error))]
    try:
        before = time.time()
        with scratch_node(session, base, deadline) as scratch:
            after = time.time()
            paces = []
            for _ in range(_REQUESTS):
                started = time.perf_counter()
                session.wait(session.client.set_async(scratch.path, b""), deadline)
                paces.append(1000 * (time.perf_counter() - started))
    except EnsembleRefusedError as error:
        return [
            failed(
                "permission",
                f"a scratch node below {base} was refused ({error.refusal}): a lock needs READ, CREATE, DELETE and "
                "WRITE there; look at the ACL and this client's credentials",
            )
        ]
    return [
        ok("permission", f"may create, write and delete below {base}"),
        _pace(paces),
        clock_finding(scratch.created, before, after),
    ]


def _pace(milliseconds: Sequence[float]) -> Finding:
    median, slowest = statistics.median(milliseconds), max(milliseconds)
    said = f"{median:.1f} ms for a write through the quorum (median of {len(milliseconds)}, slowest {slowest:.1f} ms)"
    if median > _SLOW_MS:
        return note("latency", f"{said}: give ZooKeeper's transaction log a disk of its own, or look at the network")
    return ok("latency", said)


def clock_finding(theirs: float, before: float, after: float) -> Finding:
    """Judge the difference of clocks.

    Args:
        theirs: what the ensemble's leader noted, seconds since the epoch.
        before: this machine's clock when the request was sent.
        after: when its answer was there.

    """
    skew = before - theirs if theirs < before else max(0.0, theirs - after)
    said = f"{skew:.2f} s at least from the leader's"
    if skew > _SKEW_SECONDS:
        return failed(
            "clock",
            f"{said}: run NTP. The lock does not rely on clocks, but the times that `sluice status` and `log` tell do",
        )
    return ok(
        "clock", f"less than {_SKEW_SECONDS:g} s from the leader's" if skew else "as the leader's, within one request"
    )
