"""Run a user's Spark program unchanged, so that each of its commits waits for the lock on its table."""

from __future__ import annotations

import importlib.util
import os
import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from sluice.errors import BadInputError
from sluice.submit.distribution import conf_arguments, jar_arguments, plugin_settings, session_settings

_SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"


def run_program(target: str, arguments: Sequence[str], *, is_module: bool, settings: dict[str, str]) -> None:
    """Run a script or a module in this process, as ``python`` does.

    The session that it starts gets the jars of this installation, Delta and the plugin. Its own settings win.

    Args:
        target: Path of the script, or name of the module.
        arguments: Its command line arguments.
        settings: More settings of the session.

    Raises:
        BadInputError: There is no such script or module.
        JarsError: A jar is missing. The message names the command that downloads it.

    """
    words = [*jar_arguments(), *conf_arguments(session_settings() | plugin_settings() | settings)]
    own_arguments = os.environ.get(_SUBMIT_ARGUMENTS, "pyspark-shell")
    os.environ[_SUBMIT_ARGUMENTS] = f"{shlex.join(words)} {own_arguments}"
    sys.argv = [target, *arguments]
    if is_module:
        sys.path.insert(0, "")
        try:
            spec = importlib.util.find_spec(target)
        except ModuleNotFoundError:
            # A package of its name is missing.
            spec = None
        if spec is None:
            raise BadInputError(f"there is no module {target}")
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return
    script = Path(target)
    if not script.is_file():
        raise BadInputError(f"there is no script {target}")
    sys.path.insert(0, str(script.parent.absolute()))
    runpy.run_path(target, run_name="__main__")
