"""Run a user's Spark program unchanged, so that each of its commits waits for the lock on its table."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import runpy
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from sluice.errors import BadInputError
from sluice.submit.distribution import conf_arguments, jar_arguments, plugin_settings, session_settings

_SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"


def run_program(target: str, arguments: Sequence[str], *, is_module: bool, settings: dict[str, str]) -> None:
    """Run a script or a module in this process, as ``python`` does: an uncaught exception ends it with code 1.

    The session that it starts gets the jars of this installation, Delta and the plugin, in addition to the ``--jars``
    of ``PYSPARK_SUBMIT_ARGS``. Its own settings win.

    Args:
        target: Path of the script, or name of the module.
        arguments: Its command line arguments.
        settings: More settings of the session.

    Raises:
        BadInputError: There is no such script or module.
        JarsError: A jar is missing. The message names the command that downloads it.

    """
    own_words = shlex.split(os.environ.get(_SUBMIT_ARGUMENTS, "pyspark-shell"))
    os.environ[_SUBMIT_ARGUMENTS] = shlex.join(_submit_words(own_words, settings))
    sys.argv = [target, *arguments]
    if not is_module and not Path(target).is_file():
        raise BadInputError(f"there is no script {target}")
    sys.path.insert(0, "" if is_module else str(Path(target).parent.absolute()))
    run = functools.partial(runpy.run_module, alter_sys=True) if is_module else runpy.run_path
    try:
        is_missing = is_module and not _has_module(target)
        if not is_missing:
            run(target, run_name="__main__")
    except Exception:  # noqa: BLE001 (as the interpreter does)
        traceback.print_exc()
        sys.exit(1)
    if is_missing:
        raise BadInputError(f"there is no module {target}")


def _submit_words(own_words: Sequence[str], settings: dict[str, str]) -> list[str]:
    """Return the arguments of ``spark-submit`` for these settings and the user's own arguments."""
    # spark-submit takes the last --jars only.
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--jars")
    options, other_words = parser.parse_known_args(own_words)
    option, jars = jar_arguments()
    conf = conf_arguments(session_settings() | plugin_settings() | settings)
    return [option, ",".join(filter(None, (jars, options.jars))), *conf, *other_words]


def _has_module(name: str) -> bool:
    """Return whether there is a module, after an import of its packages."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            # A package imports another module, which is missing.
            raise
        return False
