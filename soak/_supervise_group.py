"""Run a command in this process's group, and kill the group when the parent ends. A script, started by file name.

The script passes its standard input on to the command. When the input ends (the parent closed it, exited or was
killed), the whole group gets SIGKILL, because its members may be stopped and would not handle another signal. The
parent must start the script in a new session.
"""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress


def main(command: list[str]) -> None:
    """Run ``command``, and kill the group when standard input ends."""
    child = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert child.stdin is not None  # noqa: S101 (stdin=PIPE)
    # Only the command keeps the output open, so the parent detects the end of the command by the end of the output.
    os.close(1)
    threading.Thread(target=child.wait, daemon=True).start()
    while text := os.read(0, 4096):
        with suppress(OSError):
            os.write(child.stdin.fileno(), text)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
