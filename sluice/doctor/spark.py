"""Checks that the defaults of this machine's ``spark-submit`` send every commit through the guarded log store.

A driver takes its log stores and the guard's mode from ``spark-defaults.conf``, unless its command line or
:func:`writer_jobs.build_session` overrides them. Delta has one setting for all schemes or one for each scheme, and
refuses both together (``checkLogStoreConfConflicts`` in its ``LogStore.scala``). Delta Kernel has one for each scheme.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path

from sluice.doctor.finding import Finding, failed, note, ok

_CHECK = "spark defaults"
# The usual form of java.util.Properties: a key, then blanks, an equals sign or a colon, then the value.
_SETTING = re.compile(r"\s*([^\s=:#!]+)\s*[\s=:]\s*(.*?)\s*")
_SCHEME_SETTING = re.compile(r"spark\.delta\.logStore\.[^.]+\.impl")
_LOG_STORE_SETTING_NAME = re.compile(r"spark\.(delta\.logStore\.|hadoop\.io\.delta\.kernel\.logStore\.).+")


def defaults_finding() -> Finding:
    """Check the ``spark-defaults.conf`` that ``spark-submit`` reads on this machine."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return note(_CHECK, "not checked: PySpark is not installed in this Python environment")
    path = _defaults_file(Path(spec.origin).parent)
    if not path.is_file():
        return note(_CHECK, "no spark-defaults.conf here: pass the output of `sluice submit-args` to every job")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return failed(_CHECK, f"{path} cannot be read: {error}")
    matches = map(_SETTING.fullmatch, text.splitlines())
    return settings_finding(path, {match[1]: match[2] for match in matches if match})


def settings_finding(path: Path, settings: Mapping[str, str]) -> Finding:
    """Return the finding for the settings of a ``spark-defaults.conf``."""
    from writer_jobs.delta.session import LOG_STORE_SETTING  # noqa: PLC0415 (PySpark takes 0.4 s)

    fault = _log_store_fault(path, settings) or _guard_fault(path, settings)
    if fault is not None:
        return fault
    if LOG_STORE_SETTING not in settings:
        return note(_CHECK, f"{path} names no log store: pass the output of `sluice submit-args` to every job")
    return ok(_CHECK, f"{path} sets the guarded log store for Delta and Delta Kernel")


def _log_store_fault(path: Path, settings: Mapping[str, str]) -> Finding | None:
    from writer_jobs.delta.session import KERNEL_LOG_STORE_SETTINGS, LOG_STORE, LOG_STORE_SETTING  # noqa: PLC0415

    scheme_settings = [key for key in settings if _SCHEME_SETTING.fullmatch(key)]
    if scheme_settings and LOG_STORE_SETTING in settings:
        settings_text = f"{LOG_STORE_SETTING} and {scheme_settings[0]}"
        return failed(_CHECK, f"{path} sets {settings_text}; Delta refuses both together: remove {scheme_settings[0]}")
    unguarded_settings = [
        key for key, value in settings.items() if _LOG_STORE_SETTING_NAME.fullmatch(key) and value != LOG_STORE
    ]
    if unguarded_settings:
        setting = f"{unguarded_settings[0]}={settings[unguarded_settings[0]]}"
        return failed(_CHECK, f"{path} sets {setting}, so commits bypass the guarded log store: set it to {LOG_STORE}")
    if scheme_settings:
        return note(
            _CHECK,
            f"{path} sets the guarded log store for some schemes only: put {LOG_STORE_SETTING}="
            f"{LOG_STORE} in place of {', '.join(scheme_settings)}",
        )
    missing_settings = [key for key in KERNEL_LOG_STORE_SETTINGS if key not in settings]
    if missing_settings and LOG_STORE_SETTING in settings:
        return failed(
            _CHECK,
            f"{path} sets the guarded log store for Delta, but not for Delta Kernel: {len(missing_settings)} settings "
            f"are missing (the first: {missing_settings[0]} {LOG_STORE}); `sluice submit-args` prints all of them",
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
                _CHECK,
                f"{path} sets {GUARD_MODE}=observe: the guard allows commits without the lock, and `sluice verify` "
                "lists them. Remove the setting when every writer takes the lock",
            )
        case "off":
            return failed(
                _CHECK, f"{path} sets {GUARD_MODE}=off, so every job commits without asking for the lock: remove it"
            )
        case _:
            return failed(_CHECK, f"{path} sets {GUARD_MODE}={mode}: choose required, observe or off")


def _defaults_file(pyspark: Path) -> Path:
    """Return the path that ``spark-submit`` reads: below SPARK_CONF_DIR, SPARK_HOME/conf, or PySpark's own folder."""
    home = Path(os.environ.get("SPARK_HOME") or pyspark)
    return Path(os.environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
