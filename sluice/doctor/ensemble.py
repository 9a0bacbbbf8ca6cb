"""Checks the ensemble: the state of each server, and the quorum through a session like a writer's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from lock_manager.deadline import Deadline
from lock_manager.errors import EnsembleFormatError, EnsembleRefusedError, EnsembleUnavailableError, NoChrootError
from lock_manager.settings import LockSettings
from lock_manager.zookeeper import lock_root
from lock_manager.zookeeper.acl_survey import survey_acls
from lock_manager.zookeeper.scratch_node import nearest_node, scratch_node, try_session
from lock_manager.zookeeper.session import Session
from sluice.doctor.finding import Finding, failed, note, ok
from sluice.ensemble.members import NO_ANSWER_TO_SRVR, Server, ask_servers, dotted

#: Seconds for a session with all its requests.
SESSION_SECONDS = 10.0
# Tolerated difference of clocks, as the default of `sluice verify --clock-skew`.
_SKEW_SECONDS = 1.0
_REQUESTS = 20
_SLOW_MS = 50.0
_OLDEST_VERSION = (3, 5, 0)
# The first releases with fixes for CVE-2023-44981 and CVE-2024-23944, by minor version.
_FIXED_VERSIONS: dict[tuple[int, ...], tuple[int, ...]] = {(3, 8): (3, 8, 4), (3, 9): (3, 9, 2)}


def ensemble_findings(settings: LockSettings) -> list[Finding]:
    """Query every server, then open a session and write an ephemeral scratch node through the quorum."""
    return [*server_findings(ask_servers(settings)), *_session_findings(settings)]


def server_findings(servers: Sequence[Server]) -> list[Finding]:
    """Return the findings for the servers' states, for each one and for all together."""
    findings = []
    for server in servers:
        check = f"server {server.address}"
        if server.problem is not None:
            findings.append(failed(check, server.problem))
        elif server.version is None or server.mode is None:
            findings.append(note(check, NO_ANSWER_TO_SRVR))
        else:
            findings.append(ok(check, f"{server.mode}, ZooKeeper {dotted(server.version)}"))
    serving_servers = [server for server in servers if server.mode is not None]
    return [*findings, *_version_findings(serving_servers), *_mode_findings(serving_servers, len(servers))]


def _version_findings(serving_servers: Sequence[Server]) -> list[Finding]:
    versions = sorted({server.version for server in serving_servers if server.version is not None})
    check = "versions"
    if not versions:
        return []
    if versions[0] < _OLDEST_VERSION:
        return [failed(check, f"{dotted(versions[0])} is too old: the lock needs ZooKeeper 3.5 (create2); use 3.9.5")]
    vulnerable = (version for version in versions if version < _FIXED_VERSIONS.get(version[:2], (3, 8)))
    if (version := next(vulnerable, None)) is not None:
        return [note(check, f"{dotted(version)} has CVE-2023-44981 or CVE-2024-23944: update; 3.9.5 is tested")]
    if len(versions) > 1:
        return [
            note(check, f"the servers have different versions: {', '.join(map(dotted, versions))}; finish the update")
        ]
    return [ok(check, f"ZooKeeper {dotted(versions[0])}")]


def _mode_findings(serving_servers: Sequence[Server], server_count: int) -> list[Finding]:
    modes = [server.mode for server in serving_servers]
    check = "quorum"
    if not modes:
        return []
    if "standalone" in modes and server_count > 1:
        return [failed(check, "a standalone server is named with others: they form no ensemble, and grant a lock each")]
    if modes.count("leader") > 1:
        return [failed(check, "two leaders are named: the servers are of two ensembles, which grant a lock each")]
    if "standalone" in modes:
        return [note(check, "a standalone server: no lock can be acquired while it is down; run an ensemble of three")]
    if server_count == 1:
        return [note(check, "one server of an ensemble is named: name all, so that clients can use the others")]
    counts = [(modes.count(mode), mode) for mode in ("leader", "follower", "observer")]
    return [ok(check, ", ".join(f"{count} {mode}{'s' if count > 1 else ''}" for count, mode in counts if count))]


def _session_findings(settings: LockSettings) -> list[Finding]:
    session, deadline = Session(settings), Deadline(SESSION_SECONDS)

    def run_checks() -> list[Finding]:
        return [
            _timeout_finding(session, settings),
            *_login_findings(session),
            *_lock_root_findings(session, deadline),
            *_scratch_findings(session, deadline),
        ]

    try:
        return try_session(session, deadline, run_checks)
    except (EnsembleRefusedError, EnsembleUnavailableError) as error:
        return [failed("session", str(error))]
    finally:
        session.close()


def _timeout_finding(session: Session, settings: LockSettings) -> Finding:
    requested, granted = settings.session_timeout_seconds, session.granted_seconds
    if granted < requested:
        return note(
            "session",
            f"{granted:g} s granted instead of {requested:g}: raise maxSessionTimeout if writers pause for longer",
        )
    return ok("session", f"timeout {granted:g} s")


def _login_findings(session: Session) -> list[Finding]:
    """Report the mechanism and the name of this client. The server has accepted both, or there would be no session."""
    security, login = session.settings.security, session.client.login
    if security.auth is None:
        return []
    mechanism = "SASL DIGEST-MD5" if security.auth == "sasl" else "digest"
    return [ok("login", login or f"{mechanism}, {security.username}")]


def _lock_root_findings(session: Session, deadline: Deadline) -> list[Finding]:
    root, check = session.settings.lock_root, "lock root"
    try:
        ensemble = lock_root.read_ensemble_id(session, deadline)
    except EnsembleFormatError as error:
        return [failed(check, str(error))]
    except EnsembleRefusedError as error:
        return [failed(check, f"{root} cannot be read ({error.refusal}): check its ACL and this client's credentials")]
    if ensemble is None:
        return [note(check, f"{root} does not exist yet: the first lock creates it")]
    return [ok(check, f"{root}, ensemble {ensemble}"), _acl_finding(session, deadline)]


def _acl_finding(session: Session, deadline: Deadline) -> Finding:
    """Check whether every client may delete contenders. Read ACLs of the lock root and some tables and partitions."""
    survey = survey_acls(session, deadline)
    sample = (
        f"{survey.tables_checked} of {survey.tables} tables and {survey.partitions_checked} partitions were checked"
    )
    if survey.open_node is None:
        return ok("ACL", f"not every client may delete contenders; {sample}")
    table = "" if survey.open_table is None else f", {survey.open_table}"
    return note(
        "ACL",
        f"every client may delete contenders, and so break any lock, below {survey.open_node}{table} ({sample}): "
        "restrict the clients that can connect, or set an ACL there, and in the settings for new znodes "
        "(docs/security.md)",
    )


def _scratch_findings(session: Session, deadline: Deadline) -> list[Finding]:
    """Create, write and delete a scratch node. Measure the latency of a write and the leader's clock."""
    try:
        base = nearest_node(session, deadline)
    except NoChrootError as error:
        return [failed("permission", str(error))]
    try:
        sent_at = time.time()
        with scratch_node(session, base, deadline) as scratch:
            answered_at = time.time()
            latencies = []
            for _ in range(_REQUESTS):
                started = time.perf_counter()
                session.wait(session.client.set_async(scratch.path, b""), deadline)
                latencies.append(1000 * (time.perf_counter() - started))
    except EnsembleRefusedError as error:
        return [
            failed(
                "permission",
                f"a scratch node below {base} was refused ({error.refusal}): a lock needs READ, CREATE, DELETE and "
                "WRITE there; check the ACL and this client's credentials",
            )
        ]
    return [
        ok("permission", f"may create, write and delete below {base}"),
        _latency_finding(latencies),
        clock_finding(scratch.created_at, sent_at, answered_at),
    ]


def _latency_finding(milliseconds: Sequence[float]) -> Finding:
    median, slowest = statistics.median(milliseconds), max(milliseconds)
    text = f"{median:.1f} ms for a write through the quorum (median of {len(milliseconds)}, slowest {slowest:.1f} ms)"
    if median > _SLOW_MS:
        return note("latency", f"{text}: put ZooKeeper's transaction log on its own disk, or check the network")
    return ok("latency", text)


def clock_finding(leader_time: float, sent_at: float, answered_at: float) -> Finding:
    """Compare the time that the leader recorded for a request with this machine's times before and after it.

    Times are seconds since the epoch.
    """
    skew = max(sent_at - leader_time, leader_time - answered_at, 0.0)
    if skew > _SKEW_SECONDS:
        return failed(
            "clock",
            f"at least {skew:.2f} s from the leader's: run NTP. The lock does not depend on clocks, but the times of "
            "`sluice status` and `sluice log` do",
        )
    difference = f"at most {_SKEW_SECONDS:g} s from" if skew else "equal to"
    return ok("clock", f"{difference} the leader's, within one request")
