"""Whether the defaults of this machine's ``spark-submit`` lead every commit through the guarded log store.

A driver takes its log stores from ``spark-defaults.conf``, unless its command line or :func:`writer_jobs.build_session`
says otherwise. Delta has one setting, Delta Kernel one for each scheme.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path

from sluice.finding import Finding, failed, note, ok

_WHAT = "spark defaults"
# Of java.util.Properties, as far as anybody writes it: key, then blanks, an equals sign or a colon.
_SETTING = re.compile(r"\s*([^\s=:#!]+)\s*[\s=:]\s*(.*?)\s*")
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
    from writer_jobs.session import (  # noqa: PLC0415 (PySpark takes 0.4 s)
        KERNEL_LOG_STORE_SETTINGS,
        LOG_STORE,
        LOG_STORE_SETTING,
    )

    others = [key for key, value in settings.items() if _OTHER_STORE.fullmatch(key) and value != LOG_STORE]
    if others:
        return failed(
            _WHAT, f"{path} sets {others[0]}={settings[others[0]]}, past the guarded log store: set it to {LOG_STORE}"
        )
    if settings.get(LOG_STORE_SETTING) != LOG_STORE:
        return note(_WHAT, f"{path} names no log store: give every job what `sluice submit-args` prints")
    missing = [key for key in KERNEL_LOG_STORE_SETTINGS if key not in settings]
    if missing:
        return failed(
            _WHAT,
            f"{path} leads Delta through the guarded log store, but not Delta Kernel: {len(missing)} settings are "
            f"missing (the first: {missing[0]} {LOG_STORE}); `sluice submit-args` prints all of them",
        )
    return ok(_WHAT, f"{path} leads Delta and Delta Kernel through the guarded log store")


def _defaults_file(pyspark: Path) -> Path:
    """Return what ``spark-submit`` reads: below SPARK_CONF_DIR, else SPARK_HOME/conf, else PySpark's own folder."""
    home = Path(os.environ.get("SPARK_HOME") or pyspark)
    return Path(os.environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
