"""Run a command in this process's group, and end the whole group when the parent is gone. Started by file name.

What the parent writes is handed on to the command's standard input. When the parent closes it, exits or is killed, the
group gets SIGKILL: its members may be stopped, and would not hear of anything else. To be started in a new session.
"""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress


def main(command: list[str]) -> None:
    """Run ``command`` until it ends and standard input does."""
    child = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert child.stdin is not None  # noqa: S101 (a pipe was asked for)
    # The end of its output is how the parent learns of the command's end.
    os.close(1)
    threading.Thread(target=child.wait, daemon=True).start()
    while said := os.read(0, 4096):
        with suppress(OSError):
            os.write(child.stdin.fileno(), said)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
