"""An ensemble by its members: what each is told, has and loses is the test's to say, as it is an operator's.

Each member has two folders, as a node has two volumes: ``data`` (snapshots, ``myid``, epochs) and ``log``
(transactions).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from lock_manager.errors import LocalServerError
from lock_manager.testing.embedded import EmbeddedServer, free_ports, server_configuration
from lock_manager.testing.server_security import ServerSecurity
from sluice.ensemble.members import Server, ask_server

LET_VOTE = Path(__file__).parents[2] / "infra/node/sluice-let-vote"
TICK_MS = 500
MOST_SESSION_MS = 60_000
SETTLED_SECONDS = 90.0
HIGHER_EPOCH = 1_000_000
_LOOK_SECONDS = 0.05


class Members:
    """Members that are started one by one, each with a list of its own. Leaving the ``with`` block ends them.

    Args:
        folder: for all that they keep.
        ids: of all that there may be; each keeps its ports.

    Attributes:
        running: the members that were started, by id.
        autocreate: whether a member without data votes, as it does unless one forbids it; for controls.

    """

    def __init__(self, folder: Path, ids: Iterable[int]) -> None:
        self.running: dict[int, EmbeddedServer] = {}
        self.autocreate = False
        self._folder = folder
        known = list(ids)
        ports = iter(free_ports(3 * len(known)))
        self._client_ports = {each: next(ports) for each in known}
        self._lines = {each: f"server.{each}=127.0.0.1:{next(ports)}:{next(ports)}\n" for each in known}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(*self.running)

    def hosts(self, *ids: int) -> str:
        """Return the connection string of these members."""
        return ",".join(f"127.0.0.1:{self._client_ports[each]}" for each in ids)

    def folder(self, member: int) -> Path:
        """Return where a member keeps ``data`` and ``log``."""
        return self._folder / f"member-{member}" / "var/lib/zookeeper"

    def initialize(self, *members: int) -> None:
        """Let members vote though they have no data, once: as the bootstrap of a new ensemble does."""
        for member in members:
            log = self.folder(member) / "log"
            log.mkdir(parents=True, exist_ok=True)
            (log / "initialize").touch()

    def let_vote(self, member: int) -> None:
        """Let a member vote that lost its data, by the node's own script; it does not run meanwhile."""
        self.folder(member).mkdir(parents=True, exist_ok=True)
        for kept in ("data", "log"):
            (self.folder(member) / kept).mkdir(exist_ok=True)
        commands = self._folder / "bin"
        commands.mkdir(exist_ok=True)
        (commands / "systemctl").write_text("#!/bin/sh\n")
        (commands / "systemctl").chmod(0o755)
        env = os.environ | {
            "SLUICE_ROOT": str(self._folder / f"member-{member}"),
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        }
        subprocess.run(["bash", str(LET_VOTE)], env=env, check=True)

    def start(self, *members: int, of: Iterable[int]) -> None:
        """Start members with the static list ``of``; :meth:`wait_until_in_sync` tells when they serve."""
        lines = "".join(self._lines[each] for each in of)
        for member in members:
            folder = self.folder(member)
            (folder / "log").mkdir(parents=True, exist_ok=True)
            configuration = (
                server_configuration(folder / "data", TICK_MS, MOST_SESSION_MS, lines)
                + f"dataLogDir={folder / 'log'}\nstandaloneEnabled=false\nreconfigEnabled=false\n"
                + f"db.autocreate={str(self.autocreate).lower()}\n"
                + ServerSecurity().configuration(self._client_ports[member])
            )
            self.running[member] = EmbeddedServer(member, self._client_ports[member], folder, configuration)
            self.running[member].start()

    def stop(self, *members: int) -> None:
        """End members; they keep what they have on disk."""
        for member in list(members):
            self.running.pop(member).stop()

    def lose(self, *members: int) -> None:
        """End members at once and delete all that they have: machine and volumes."""
        for member in members:
            self.running.pop(member).kill()
            shutil.rmtree(self.folder(member))

    def mode(self, member: int) -> str:
        """Return ``leader`` or ``follower``, or "" if it serves nobody."""
        return self._asked(member).mode or ""

    def _asked(self, member: int) -> Server:
        return ask_server("127.0.0.1", self._client_ports[member])

    def looks_for_a_leader(self, member: int) -> int:
        """Return how often a member has waited in vain for a vote that decides."""
        return (self.folder(member) / "server.log").read_text(errors="replace").count("Notification time out")

    def leaders(self) -> list[int]:
        """Return all who lead, and serve, at the moment."""
        return [each for each in self.running if self.mode(each) == "leader"]

    def figure(self, member: int, name: str) -> int:
        """Return a figure of ``mntr``, -1 if the member does not tell it."""
        found = re.search(rf"^zk_{name}\t(\d+)".encode(), self.running[member].command(b"mntr"), re.MULTILINE)
        return int(found[1]) if found else -1

    def in_sync(self) -> bool:
        """Tell whether all that run serve, one leads, and all others follow it and have what it has."""
        said = [self._asked(each) for each in self.running]
        if sorted(str(each.mode) for each in said) != ["follower"] * (len(said) - 1) + ["leader"]:
            return False
        return {each.synced_followers for each in said} - {None} == {len(said) - 1}

    def wait_until_in_sync(self) -> int:
        """Wait for :meth:`in_sync`; return who leads.

        Raises:
            LocalServerError: it did not come true in time.

        """
        deadline = time.monotonic() + SETTLED_SECONDS
        while time.monotonic() < deadline:
            with suppress(IndexError):
                if self.in_sync():
                    return self.leaders()[0]
            time.sleep(_LOOK_SECONDS)
        modes = {each: self.mode(each) or "serves nobody" for each in self.running}
        raise LocalServerError(f"the members are not in sync within {SETTLED_SECONDS:g} s: {modes}")


def recover(members: Members, survivor: int, lost: Sequence[int]) -> int:
    """Follow docs/runbooks.md from the higher epoch to the end of the old sessions, and return the new epoch.

    Nobody runs at the beginning; clients are kept out until the end.
    """
    everyone = sorted([survivor, *lost])
    accepted = members.folder(survivor) / "data" / "version-2" / "acceptedEpoch"
    higher = int(accepted.read_text()) + HIGHER_EPOCH
    accepted.write_text(f"{higher}\n")
    members.start(survivor, of=everyone)
    members.let_vote(lost[0])
    for each in lost:
        members.start(each, of=everyone)
        leader = members.wait_until_in_sync()
    deadline = time.monotonic() + SETTLED_SECONDS
    while members.figure(leader, "ephemerals_count") != 0:
        if time.monotonic() > deadline:
            raise LocalServerError(f"sessions of before are still there after {SETTLED_SECONDS:g} s")
        time.sleep(_LOOK_SECONDS)
    return higher + 1
