"""Write one version to the local disk by the guarded log store, in processes whose links end with an error.

``without_hard_links.py TABLE LOG ERRNO [later]``. A seccomp filter hands every ``link`` and ``linkat`` to this process,
which answers with the error; the JVM that is started here inherits it. ``EPERM`` is what FAT says. With ``later`` the
first link is made all the same, half a second after its answer, as a server of NFS may do it.
Prints what the log store raised, as JSON.
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
"""Numbers of ``link`` and ``linkat`` by machine; whether folders come before the names."""
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
    """Answers every link of this thread and the processes that it starts.

    Attributes:
        asked: how many were asked for.

    """

    def __init__(self, error: int, *, later: bool) -> None:
        self.asked = 0
        self._error = error
        self._later = later
        # The filter is of the thread that sets it. This one, which makes links, is there before.
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
            name, pid, _, number, _, _, *arguments = _QUESTION.unpack(question)
            self.asked += 1
            if self._later and self.asked == 1:
                first = 1 if SYSTEM_CALLS[platform.machine()][number] else 0
                source, target = (_text(pid, arguments[at]) for at in (first, 2 * first + 1))
                # Under another name of its own: the log store removes what it was to be made of.
                kept = f"{target}.kept"
                os.link(source, kept)
                threading.Timer(_LATER_SECONDS, os.rename, (kept, target)).start()
            fcntl.ioctl(self._listener, _SEND, _ANSWER.pack(name, 0, -self._error, 0))


def _text(pid: int, address: int) -> str:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        return os.fsdecode(memory.read(4096).split(b"\0", 1)[0])


def _filter_links() -> int:
    numbers = SYSTEM_CALLS[platform.machine()]
    code = [(_LOAD, 0, 0, 0)]
    # To the question, which comes behind the permission.
    code += [(_JUMP_IF_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ASK)]
    filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(filters)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    listener: int = libc.syscall(_SECCOMP[platform.machine()], _SET_MODE_FILTER, _NEW_LISTENER, program)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return listener


class _Pass:
    def __init__(self) -> None:
        self.attempt = ""

    def check(self, request: str) -> str:
        asked = json.loads(request)
        self.attempt = asked["attempt"]
        return json.dumps({"holds": [asked["blocks"]], "stamp": {}})


def main() -> None:
    table, errors, error, *later = sys.argv[1:]
    links, guard = Links(getattr(errno, error), later=bool(later)), _Pass()
    jvm = StoreJvm(hadoop={}, guard=guard, mode="required", conditional=True, errors=Path(errors))
    said: dict[str, Any] = {}
    try:
        jvm.write(table, 0, ['{"commitInfo":{"txnId":"a"}}'], block="hold")
    except WriteError as failure:
        said = {"kind": failure.kind, "reason": failure.reason, "message": str(failure)}
    outcomes = [attempt["outcome"] for attempt in jvm.attempts("hold")]
    jvm.close()
    sys.stdout.write(json.dumps({**said, "outcomes": outcomes, "links": links.asked, "attempt": guard.attempt}))


if __name__ == "__main__":
    main()
