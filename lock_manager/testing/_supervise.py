"""Run a command and end it when the parent ends. A script: ``python _supervise.py [--output-to-stderr] COMMAND…``.

The parent holds the other end of this process's standard input. The pipe closes when the parent closes it, exits or is
killed. Then the command gets SIGTERM, and SIGKILL after ``_GRACE_SECONDS``. The script prints the command's pid first.
On Linux the command also ends when this process is killed.

``--output-to-stderr`` is for a parent that reads only the pid: a command that writes into an unread pipe blocks when
the pipe is full.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading

_GRACE_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1
_OUTPUT_TO_STDERR = "--output-to-stderr"


def _end_with_supervisor() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(command: list[str]) -> None:
    """Run ``command`` until it ends, or until standard input closes."""
    output = None
    if command[0] == _OUTPUT_TO_STDERR:
        output, command = sys.stderr, command[1:]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, preexec_fn=_end_with_supervisor)  # noqa: PLW1509
    os.write(sys.stdout.fileno(), b"%d\n" % child.pid)
    threading.Thread(target=lambda: os._exit(child.wait() & 0xFF), daemon=True).start()
    while os.read(sys.stdin.fileno(), 4096):
        pass
    child.terminate()
    try:
        child.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
