"""Checks whether the defaults of this machine's ``spark-submit`` send every commit through the guarded log store.

A driver takes its log stores and the guard's mode from ``spark-defaults.conf``, unless its command line or
:func:`writer_jobs.build_session` says otherwise. Delta has one setting for all schemes, or one for each, and refuses
both together (``checkLogStoreConfConflicts`` in its ``LogStore.scala``); Delta Kernel has one for each scheme.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path

from sluice.doctor.finding import Finding, failed, note, ok

_WHAT = "spark defaults"
# Of java.util.Properties, as far as anybody writes it: key, then blanks, an equals sign or a colon.
_SETTING = re.compile(r"\s*([^\s=:#!]+)\s*[\s=:]\s*(.*?)\s*")
_ONE_SCHEME = re.compile(r"spark\.delta\.logStore\.[^.]+\.impl")
_OTHER_STORE = re.compile(r"spark\.(delta\.logStore\.|hadoop\.io\.delta\.kernel\.logStore\.).+")


def defaults_finding() -> Finding:
    """Read the ``spark-defaults.conf`` that ``spark-submit`` takes here, and judge it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return note(_WHAT, "not looked at: PySpark is not installed, so that no driver starts here")
    path = _defaults_file(Path(spec.origin).parent)
    if not path.is_file():
        return note(_WHAT, "no spark-defaults.conf here: give every job what `sluice submit-args` prints")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return failed(_WHAT, f"{path} cannot be read: {error}")
    found = (_SETTING.fullmatch(line) for line in text.splitlines())
    return judge(path, {match[1]: match[2] for match in found if match})


def judge(path: Path, settings: Mapping[str, str]) -> Finding:
    """Judge the settings of a ``spark-defaults.conf``."""
    from writer_jobs.delta.session import LOG_STORE_SETTING  # noqa: PLC0415 (PySpark takes 0.4 s)

    found = _log_store_fault(path, settings) or _guard_fault(path, settings)
    if found is not None:
        return found
    if LOG_STORE_SETTING not in settings:
        return note(_WHAT, f"{path} names no log store: give every job what `sluice submit-args` prints")
    return ok(_WHAT, f"{path} leads Delta and Delta Kernel through the guarded log store")


def _log_store_fault(path: Path, settings: Mapping[str, str]) -> Finding | None:
    from writer_jobs.delta.session import KERNEL_LOG_STORE_SETTINGS, LOG_STORE, LOG_STORE_SETTING  # noqa: PLC0415

    schemes = [key for key in settings if _ONE_SCHEME.fullmatch(key)]
    if schemes and LOG_STORE_SETTING in settings:
        return failed(
            _WHAT, f"{path} sets {LOG_STORE_SETTING} and {schemes[0]}; Delta refuses both together: remove {schemes[0]}"
        )
    others = [key for key, value in settings.items() if _OTHER_STORE.fullmatch(key) and value != LOG_STORE]
    if others:
        return failed(
            _WHAT, f"{path} sets {others[0]}={settings[others[0]]}, past the guarded log store: set it to {LOG_STORE}"
        )
    if schemes:
        return note(
            _WHAT,
            f"{path} leads Delta through the guarded log store for some schemes only: put {LOG_STORE_SETTING}="
            f"{LOG_STORE} in place of {', '.join(schemes)}",
        )
    missing = [key for key in KERNEL_LOG_STORE_SETTINGS if key not in settings]
    if missing and LOG_STORE_SETTING in settings:
        return failed(
            _WHAT,
            f"{path} leads Delta through the guarded log store, but not Delta Kernel: {len(missing)} settings are "
            f"missing (the first: {missing[0]} {LOG_STORE}); `sluice submit-args` prints all of them",
        )
    return None


def _guard_fault(path: Path, settings: Mapping[str, str]) -> Finding | None:
    from writer_jobs.delta.session import GUARD_MODE  # noqa: PLC0415

    mode = settings.get(GUARD_MODE, "required")
    match mode.lower():
        case "required":
            return None
        case "observe":
            return note(
                _WHAT,
                f"{path} sets {GUARD_MODE}=observe: commits without the lock pass, and are only listed by "
                "`sluice verify`. Remove it when every writer takes the lock",
            )
        case "off":
            return failed(
                _WHAT, f"{path} sets {GUARD_MODE}=off, so that every job commits without asking for the lock: remove it"
            )
        case _:
            return failed(_WHAT, f"{path} sets {GUARD_MODE}={mode}: choose required, observe or off")


def _defaults_file(pyspark: Path) -> Path:
    """Return what ``spark-submit`` reads: below SPARK_CONF_DIR, else SPARK_HOME/conf, else PySpark's own folder."""
    home = Path(os.environ.get("SPARK_HOME") or pyspark)
    return Path(os.environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
