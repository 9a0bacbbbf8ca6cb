"""Write one version to the local disk with the guarded log store, while every hard link fails.

``without_hard_links.py TABLE LOG ERRNO [later]``. A seccomp filter sends each ``link`` and ``linkat`` to this process,
which answers with the error. The JVM inherits the filter. ``EPERM`` is the error of FAT. With ``later`` the first link
is created half a second after the error, as an NFS server may do. The program prints the error of the log store as
JSON.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import platform
import struct
import sys
import threading
from pathlib import Path
from typing import Any

from soak.errors import WriteError
from soak.jvm import StoreJvm

SYSTEM_CALLS = {"x86_64": {86: False, 265: True}, "aarch64": {37: True}}
"""Numbers of ``link`` and ``linkat`` by machine, and whether their arguments include folders."""
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_PR_SET_NO_NEW_PRIVS, _SET_MODE_FILTER, _NEW_LISTENER = 38, 1, 8
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ASK, _ALLOW = 0x7FC0_0000, 0x7FFF_0000
_RECEIVE, _SEND = 0xC050_2100, 0xC018_2101
# struct seccomp_notif: id, pid, flags; struct seccomp_data: number, architecture, instruction, arguments.
_QUESTION = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")
_LATER_SECONDS = 0.5


class Links:
    """Answers every request for a link by this thread or by a process that it starts.

    Attributes:
        requests: Number of requested links.

    """

    def __init__(self, error: int, *, later: bool) -> None:
        self.requests = 0
        self._error = error
        self._later = later
        # A filter applies to the thread that installs it. The serving thread creates links, so it starts before.
        self._listener: int | None = None
        self._ready = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()
        self._listener = _filter_links()
        self._ready.set()

    def _serve(self) -> None:
        self._ready.wait()
        assert self._listener is not None
        while True:
            question = bytearray(_QUESTION.size)
            fcntl.ioctl(self._listener, _RECEIVE, question)
            request_id, pid, _, number, _, _, *arguments = _QUESTION.unpack(question)
            self.requests += 1
            if self._later and self.requests == 1:
                folders = 1 if SYSTEM_CALLS[platform.machine()][number] else 0
                source, target = (_read_text(pid, arguments[index]) for index in (folders, 2 * folders + 1))
                # A second link keeps the file, because the log store removes the source.
                second_link = f"{target}.link"
                os.link(source, second_link)
                threading.Timer(_LATER_SECONDS, os.rename, (second_link, target)).start()
            fcntl.ioctl(self._listener, _SEND, _ANSWER.pack(request_id, 0, -self._error, 0))


def _read_text(pid: int, address: int) -> str:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        return os.fsdecode(memory.read(4096).split(b"\0", 1)[0])


def _filter_links() -> int:
    """Install the filter for this thread; return the file descriptor that receives the requests."""
    numbers = SYSTEM_CALLS[platform.machine()]
    code = [(_LOAD, 0, 0, 0)]
    # Jump to the last instruction, which asks this process.
    code += [(_JUMP_IF_EQUAL, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ASK)]
    filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(filters)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    listener: int = libc.syscall(_SECCOMP[platform.machine()], _SET_MODE_FILTER, _NEW_LISTENER, program)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return listener


class _PermissiveGuard:
    def __init__(self) -> None:
        self.attempt = ""

    def check(self, request: str) -> str:
        commit = json.loads(request)
        self.attempt = commit["attempt"]
        return json.dumps({"holds": [commit["blocks"]], "stamp": {}})


def main() -> None:
    table, stderr_path, error, *later = sys.argv[1:]
    links, guard = Links(getattr(errno, error), later=bool(later)), _PermissiveGuard()
    jvm = StoreJvm(hadoop={}, guard=guard, mode="required", conditional=True, stderr_path=Path(stderr_path))
    report: dict[str, Any] = {}
    try:
        jvm.write(table, 0, ['{"commitInfo":{"txnId":"a"}}'], block="hold")
    except WriteError as failure:
        report = {"kind": failure.kind, "reason": failure.reason, "message": str(failure)}
    outcomes = [attempt["outcome"] for attempt in jvm.attempts("hold")]
    jvm.close()
    sys.stdout.write(json.dumps({**report, "outcomes": outcomes, "links": links.requests, "attempt": guard.attempt}))


if __name__ == "__main__":
    main()
