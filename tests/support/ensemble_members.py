"""An ensemble whose members a test starts, stops and destroys one by one, as an operator does.

Each member has two folders, like the two volumes of a node: ``data`` (snapshots, ``myid``, epochs) and ``log``
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
from typing import Self

from lock_manager.errors import LocalServerError
from lock_manager.testing.embedded import EmbeddedServer, free_ports, server_configuration
from lock_manager.testing.server_security import ServerSecurity
from sluice.ensemble.members import Server, ask_server

LET_VOTE = Path(__file__).parents[2] / "infra/node/sluice-let-vote"
TICK_MS = 500
MAX_SESSION_MS = 60_000
SYNC_SECONDS = 90.0
EPOCH_INCREASE = 1_000_000
"""Number that :func:`recover` adds to the survivor's epoch, as docs/runbooks.md does."""
_POLL_SECONDS = 0.05


class Members:
    """The members of an ensemble. A test starts each member with a server list. The end of the block stops all.

    Args:
        folder: Folder for the files of all members.
        ids: Ids of all members. A member keeps its ports when it is started again.

    Attributes:
        running: The running members by id.
        autocreate: ZooKeeper's ``db.autocreate``: whether a member without data votes. Only controls set it to true.

    """

    def __init__(self, folder: Path, ids: Iterable[int]) -> None:
        self.running: dict[int, EmbeddedServer] = {}
        self.autocreate = False
        self._folder = folder
        members = list(ids)
        ports = iter(free_ports(3 * len(members)))
        self._client_ports = {member: next(ports) for member in members}
        self._lines = {member: f"server.{member}=127.0.0.1:{next(ports)}:{next(ports)}\n" for member in members}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(*self.running)

    def hosts(self, *members: int) -> str:
        """Return the connection string of these members."""
        return ",".join(f"127.0.0.1:{self._client_ports[member]}" for member in members)

    def folder(self, member: int) -> Path:
        """Return the folder with a member's ``data`` and ``log``."""
        return self._folder / f"member-{member}" / "var/lib/zookeeper"

    def initialize(self, *members: int) -> None:
        """Let members without data vote once, as the bootstrap of a new ensemble does."""
        for member in members:
            log = self.folder(member) / "log"
            log.mkdir(parents=True, exist_ok=True)
            (log / "initialize").touch()

    def let_vote(self, member: int) -> None:
        """Let a stopped member without data vote, by the script ``sluice-let-vote`` of the nodes."""
        self.folder(member).mkdir(parents=True, exist_ok=True)
        for name in ("data", "log"):
            (self.folder(member) / name).mkdir(exist_ok=True)
        commands = self._folder / "bin"
        commands.mkdir(exist_ok=True)
        (commands / "systemctl").write_text("#!/bin/sh\n")
        (commands / "systemctl").chmod(0o755)
        env = os.environ | {
            "SLUICE_ROOT": str(self._folder / f"member-{member}"),
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        }
        subprocess.run(["bash", str(LET_VOTE)], env=env, check=True)

    def start(self, *members: int, server_list: Iterable[int]) -> None:
        """Start members with a static server list; :meth:`wait_until_in_sync` waits until they serve."""
        lines = "".join(self._lines[member] for member in server_list)
        for member in members:
            folder = self.folder(member)
            (folder / "log").mkdir(parents=True, exist_ok=True)
            configuration = (
                server_configuration(folder / "data", TICK_MS, MAX_SESSION_MS, lines)
                + f"dataLogDir={folder / 'log'}\nstandaloneEnabled=false\nreconfigEnabled=false\n"
                + f"db.autocreate={str(self.autocreate).lower()}\n"
                + ServerSecurity().configuration(self._client_ports[member])
            )
            self.running[member] = EmbeddedServer(member, self._client_ports[member], folder, configuration)
            self.running[member].start()

    def stop(self, *members: int) -> None:
        """Stop members and keep their files."""
        for member in members:
            self.running.pop(member).stop()

    def lose(self, *members: int) -> None:
        """Kill members and delete their files, as if their machines and volumes were lost."""
        for member in members:
            self.running.pop(member).kill()
            shutil.rmtree(self.folder(member))

    def mode(self, member: int) -> str:
        """Return ``leader`` or ``follower``, or "" if the member does not serve."""
        return self._state(member).mode or ""

    def _state(self, member: int) -> Server:
        return ask_server("127.0.0.1", self._client_ports[member])

    def election_timeouts(self, member: int) -> int:
        """Return the number of rounds of a member's leader elections that ended without a decision."""
        return (self.folder(member) / "server.log").read_text(errors="replace").count("Notification time out")

    def leaders(self) -> list[int]:
        """Return the members that serve as leader."""
        return [member for member in self.running if self.mode(member) == "leader"]

    def metric(self, member: int, name: str) -> int:
        """Return a metric that ``mntr`` reports, without its prefix ``zk_``; -1 if the member does not report it."""
        match = re.search(rf"^zk_{name}\t(\d+)".encode(), self.running[member].command(b"mntr"), re.MULTILINE)
        return int(match[1]) if match else -1

    def in_sync(self) -> bool:
        """Return whether all running members serve and the followers are in sync with the leader."""
        return is_in_sync([self._state(member) for member in self.running])

    def wait_until_in_sync(self) -> int:
        """Wait for :meth:`in_sync`; return the leader.

        Raises:
            LocalServerError: The members are not in sync within ``SYNC_SECONDS``.

        """
        deadline = time.monotonic() + SYNC_SECONDS
        while time.monotonic() < deadline:
            with suppress(IndexError):
                if self.in_sync():
                    return self.leaders()[0]
            time.sleep(_POLL_SECONDS)
        modes = {member: self.mode(member) or "does not serve" for member in self.running}
        raise LocalServerError(f"the members are not in sync within {SYNC_SECONDS:g} s: {modes}")


def is_in_sync(states: Sequence[Server]) -> bool:
    """Return whether one server leads and all other servers follow it and are in sync."""
    followers = len(states) - 1
    if sorted(str(state.mode) for state in states) != ["follower"] * followers + ["leader"]:
        return False
    return {state.synced_followers for state in states} - {None} == {followers}


def recover(members: Members, survivor: int, lost: Sequence[int]) -> int:
    """Follow docs/runbooks.md from the higher epoch to the end of the old sessions; return the new epoch.

    At the call no member may run. No client may connect before the function returns.
    """
    all_members = sorted([survivor, *lost])
    epoch_file = members.folder(survivor) / "data" / "version-2" / "acceptedEpoch"
    raised_epoch = int(epoch_file.read_text()) + EPOCH_INCREASE
    epoch_file.write_text(f"{raised_epoch}\n")
    members.start(survivor, server_list=all_members)
    members.let_vote(lost[0])
    for member in lost:
        members.start(member, server_list=all_members)
        leader = members.wait_until_in_sync()
    deadline = time.monotonic() + SYNC_SECONDS
    while members.metric(leader, "ephemerals_count") != 0:
        if time.monotonic() > deadline:
            raise LocalServerError(f"old sessions have not ended within {SYNC_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)
    return raised_epoch + 1
