"""Is this the ensemble whose lock counts for a table? By the table's own word, see ``sluice adopt``."""

from __future__ import annotations

from collections.abc import Mapping

from lock_manager.errors import ENSEMBLE_PROPERTY, LockError, SluiceError
from lock_manager.inspector import LockInspector
from lock_manager.settings import LockSettings
from sluice.delta_log import version_files
from sluice.finding import Finding, failed, note, ok
from sluice.log_folder import LogAccessError, open_log

_WHAT = "pin"


class PinError(SluiceError, RuntimeError):
    """The table's property cannot be read."""


def pin_finding(settings: LockSettings, table: str, storage_options: Mapping[str, str]) -> Finding:
    """Compare the ensemble that the table is pinned to with the one that answers.

    Args:
        settings: of the lock.
        table: ``s3://…``, ``s3a://…``, ``file:…`` or a path.
        storage_options: as ``deltalake`` takes them.

    """
    try:
        pinned = _pin(table, storage_options)
        if pinned is None:
            return note(_WHAT, f"there is no Delta table at {table} yet: adopt it when its first version is written")
        with LockInspector(settings) as inspector:
            here = inspector.ensemble_id()
    except (PinError, LogAccessError, LockError) as error:
        return failed(_WHAT, f"could not be compared: {error}")
    return judge(table, pinned, here)


def judge(table: str, pinned: str, here: str | None) -> Finding:
    """Judge the two UUIDs; ``pinned`` is empty for a table that is pinned to none, ``here`` None below a new root."""
    if not pinned:
        return note(
            _WHAT,
            "the table is pinned to no ensemble, so that the lock of any other one passes for its lock, too: "
            f"`sluice adopt {table}`",
        )
    if pinned == here:
        return ok(_WHAT, f"the table is pinned to this ensemble, {here}")
    what = "nothing was ever locked below this lock root" if here is None else f"this is ensemble {here}"
    return failed(
        _WHAT,
        f"the table is pinned to ensemble {pinned}, but {what}: commits will be refused. Name the table's own "
        f"ZooKeeper and lock root, or move the table to this one: `sluice adopt {table} --move`",
    )


def _pin(table: str, storage_options: Mapping[str, str]) -> str | None:
    """Return the UUID to which a table is pinned, "" if to none; None if there is no table."""
    from deltalake import DeltaTable  # noqa: PLC0415 (0.2 s that a look at the ensemble alone need not pay)
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    log = open_log(table, storage_options)
    if not version_files(log.names()):
        return None
    try:
        found = DeltaTable(log.uri, storage_options=log.options or None)
    except (DeltaError, OSError) as error:
        raise PinError(f"deltalake cannot open the table: {str(error).splitlines()[0]}") from error
    return str(found.metadata().configuration.get(ENSEMBLE_PROPERTY) or "")
