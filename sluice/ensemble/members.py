"""Queries the state of each server by four-letter words, over TLS if the settings enable it."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lock_manager.settings import LockSettings
from lock_manager.zookeeper.connection import WORD_SECONDS, ask_four_letter_word, describe_error, members_of

_SRVR_RESPONSE = re.compile(
    r"Zookeeper version: (?P<version>[0-9.]+).*?Connections: (?P<connections>\d+).*?Outstanding: (?P<outstanding>\d+)"
    r".*?Zxid: 0x(?P<zxid>[0-9a-f]+).*?Mode: (?P<mode>\w+)",
    re.DOTALL,
)
#: The problem of a server that answers, but does not report its state.
NO_ANSWER_TO_SRVR = "answers, but not to srvr: set 4lw.commands.whitelist=srvr,mntr"


@dataclass(frozen=True)
class Server:
    """One server of the connection string.

    Attributes:
        address: ``host:port``.
        problem: Why it does not serve, as the predicate of a sentence about the server; None if no reason is known.
        version: Version of ZooKeeper. None if the server does not report it. The same holds for all fields below.
        mode: ``standalone``, ``leader``, ``follower`` or ``observer``.
        zxid: Id of the last transaction that it applied.
        connections: Number of open connections, including this one.
        outstanding: Number of requests that it has received and not answered.
        synced_followers: Number of followers in sync. Only a leader reports it.
        sessions: Number of sessions of the whole ensemble.

    """

    address: str
    problem: str | None = None
    version: tuple[int, ...] | None = None
    mode: str | None = None
    zxid: int | None = None
    connections: int | None = None
    outstanding: int | None = None
    synced_followers: int | None = None
    sessions: int | None = None

    @property
    def epoch(self) -> int | None:
        """The epoch of the last transaction: the upper 32 bits of its id, which increase with each election."""
        return None if self.zxid is None else self.zxid >> 32

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        return {
            "address": self.address,
            "problem": self.problem,
            "mode": self.mode,
            "version": None if self.version is None else dotted(self.version),
            "zxid": None if self.zxid is None else f"{self.zxid:#x}",
            "epoch": self.epoch,
            "synced_followers": self.synced_followers,
            "sessions": self.sessions,
            "connections": self.connections,
            "outstanding": self.outstanding,
        }


def dotted(version: tuple[int, ...]) -> str:
    """Return a version as text, such as ``3.9.5``."""
    return ".".join(map(str, version))


def ask_servers(settings: LockSettings) -> list[Server]:
    """Query all servers of the connection string in parallel.

    Raises:
        SettingsError: The TLS files cannot be read any more.

    """
    members = members_of(settings.zk_hosts)
    tls = settings.security.tls_context() if settings.security.tls else None
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(lambda member: ask_server(member[0], member[1], tls), members))


def ask_server(host: str, port: int, tls: ssl.SSLContext | None = None) -> Server:
    """Query one server by ``srvr`` and ``mntr``. By default ZooKeeper allows only ``srvr``."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        text = ask_four_letter_word((host, port), b"srvr", tls).decode(errors="replace")
    except OSError as error:
        return Server(address, _connection_problem(error, tls))
    if "not currently serving" in text:
        return Server(address, "runs, but serves no clients: it sees no quorum; check the other servers")
    srvr = _SRVR_RESPONSE.search(text)
    if srvr is None:
        return Server(address)
    mntr: Mapping[str, str] = {}
    with suppress(OSError):
        lines = ask_four_letter_word((host, port), b"mntr", tls).decode(errors="replace").splitlines()
        mntr = {name: number for name, _, number in (line.partition("\t") for line in lines)}
    return Server(
        address,
        version=tuple(map(int, srvr["version"].strip(".").split("."))),
        mode=srvr["mode"],
        zxid=int(srvr["zxid"], 16),
        connections=int(srvr["connections"]),
        outstanding=int(srvr["outstanding"]),
        synced_followers=_number_field(mntr, "zk_synced_followers"),
        sessions=_number_field(mntr, "zk_global_sessions"),
    )


def _connection_problem(error: OSError, tls: ssl.SSLContext | None) -> str:
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        return (
            f"does not pass TLS verification ({describe_error(error)}): check the server's certificate, and "
            "SLUICE_ZK_TLS_CA and SLUICE_ZK_TLS_CERTIFICATE of this client (docs/security.md)"
        )
    mismatch = "does not use TLS, which is set here" if tls else "requires TLS, which is not set here"
    if isinstance(error, TimeoutError):
        return (
            f"does not answer within {WORD_SECONDS:g} s: it is suspended, is behind a firewall, or {mismatch} "
            "(docs/security.md)"
        )
    if isinstance(error, ssl.SSLEOFError | ConnectionResetError):
        return f"closes the connection: it is shutting down, or {mismatch} (docs/security.md)"
    return f"cannot be reached ({error.strerror or error}): check that it runs, and the network path to its client port"


def _number_field(fields: Mapping[str, str], name: str) -> int | None:
    value = fields.get(name, "").strip()
    return int(value) if value.isdecimal() else None
