"""Write one version to the local disk by the guarded log store, in processes for which no file system makes links.

A seccomp filter answers ``link`` and ``linkat`` with EPERM, as FAT does; the JVM that is started here inherits it.
Prints what the log store raised, as JSON.
"""

from __future__ import annotations

import ctypes
import errno
import json
import platform
import struct
import sys
from pathlib import Path

from sluice.soak.jvm import StoreJvm, WriteError

SYSTEM_CALLS = {"x86_64": (86, 265), "aarch64": (37,)}
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ERROR, _ALLOW = 0x0005_0000, 0x7FFF_0000


def refuse_links() -> None:
    """Have this process and its children make none any more."""
    numbers = SYSTEM_CALLS[platform.machine()]
    code = [(_LOAD, 0, 0, 0)]
    # To the refusal, which comes behind the permission.
    code += [(_JUMP_IF_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERROR | errno.EPERM)]
    filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(filters)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _FILTER, program, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


class _Pass:
    def check(self, request: str) -> str:
        return json.dumps({"holds": [json.loads(request)["holds"]], "stamp": {}})


def main() -> None:
    table, errors = sys.argv[1], Path(sys.argv[2])
    refuse_links()
    jvm = StoreJvm(hadoop={}, guard=_Pass(), mode="required", conditional=True, errors=errors)
    said = {}
    try:
        jvm.write(table, 0, ['{"commitInfo":{"txnId":"a"}}'], holds="hold")
    except WriteError as error:
        said = {"kind": error.kind, "reason": error.reason, "message": str(error)}
    outcomes = [attempt["outcome"] for attempt in jvm.attempts("hold")]
    jvm.close()
    sys.stdout.write(json.dumps({**said, "outcomes": outcomes}))


if __name__ == "__main__":
    main()
