"""Asks each server of a connection string for its state: four-letter words, over TLS if the settings say so."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lock_manager.settings import LockSettings
from lock_manager.zookeeper.connection import WORD_SECONDS, ask_four_letter_word, members_of, reason

_SRVR = re.compile(
    r"Zookeeper version: (?P<version>[0-9.]+).*?Connections: (?P<connections>\d+).*?Outstanding: (?P<outstanding>\d+)"
    r".*?Zxid: 0x(?P<zxid>[0-9a-f]+).*?Mode: (?P<mode>\w+)",
    re.DOTALL,
)
_COUNTER_BITS = 32
#: Says of a server why nothing is known of it, though it answers.
SAYS_NOTHING = "answers, but not to srvr: it allows no four-letter words (4lw.commands.whitelist=srvr,mntr)"


@dataclass(frozen=True)
class Server:
    """One server of the connection string.

    Attributes:
        address: ``host:port``.
        problem: why it does not serve; None if it does, as far as it is known.
        version: of the software; None if it does not say, and so with all that follows.
        mode: standalone, leader, follower or observer.
        zxid: of the last transaction that it has applied.
        connections: open ones, this one included.
        outstanding: requests that it has taken and not answered.
        synced_followers: of a leader.
        sessions: of the whole ensemble.

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
        """How many leaders had been elected when that transaction was made."""
        return None if self.zxid is None else self.zxid >> _COUNTER_BITS

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints of it."""
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
    """Return a version as people write it."""
    return ".".join(map(str, version))


def _address_of(host: str, port: int) -> str:
    """Return ``host:port``, as a connection string has it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def ask_servers(settings: LockSettings) -> list[Server]:
    """Ask every server of the connection string at the same moment.

    Raises:
        SettingsError: the files of TLS cannot be used any more.

    """
    members = members_of(settings.zk_hosts)
    tls = settings.security.tls_context() if settings.security.tls else None
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(lambda member: ask_server(member[0], member[1], tls), members))


def ask_server(host: str, port: int, tls: ssl.SSLContext | None = None) -> Server:
    """Ask one server by ``srvr``, which is allowed by default, and by ``mntr``, which is not."""
    address = _address_of(host, port)
    try:
        text = ask_four_letter_word((host, port), b"srvr", tls).decode(errors="replace")
    except OSError as error:
        return Server(address, _why(error, tls))
    if "not currently serving" in text:
        return Server(address, "runs, but serves nobody: it sees no quorum of its ensemble; look at the others")
    said = _SRVR.search(text)
    if said is None:
        return Server(address)
    counts: Mapping[str, str] = {}
    with suppress(OSError):
        counts = _fields(ask_four_letter_word((host, port), b"mntr", tls).decode(errors="replace"))
    return Server(
        address,
        version=tuple(map(int, said["version"].strip(".").split("."))),
        mode=said["mode"],
        zxid=int(said["zxid"], 16),
        connections=int(said["connections"]),
        outstanding=int(said["outstanding"]),
        synced_followers=_number(counts, "zk_synced_followers"),
        sessions=_number(counts, "zk_global_sessions"),
    )


def _why(error: OSError, tls: ssl.SSLContext | None) -> str:
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        return (
            f"no trust (TLS: {reason(error)}): look at the server's certificate, and at SLUICE_ZK_TLS_CA and "
            "SLUICE_ZK_TLS_CERTIFICATE here (docs/security.md)"
        )
    wants = "speaks no TLS, which is set here" if tls else "wants TLS, which is not set here"
    if isinstance(error, TimeoutError):
        return (
            f"does not answer within {WORD_SECONDS:g} s: it stands still, is behind a firewall, or {wants} "
            "(docs/security.md)"
        )
    if isinstance(error, ssl.SSLEOFError | ConnectionResetError):
        return f"hangs up: it is on its way down, or {wants} (docs/security.md)"
    return f"cannot be reached ({error.strerror or error}): is it up, and the way to it open?"


def _fields(text: str) -> dict[str, str]:
    """Return the lines of ``mntr``: a name, a tab, a value."""
    pairs = (line.partition("\t") for line in text.splitlines())
    return {name: value for name, tab, value in pairs if tab}


def _number(fields: Mapping[str, str], name: str) -> int | None:
    value = fields.get(name, "").strip()
    return int(value) if value.isdecimal() else None
