"""Checks whether this lock counts for a table, by the table's adoption (``sluice adopt``)."""

from __future__ import annotations

from collections.abc import Mapping

from lock_manager import Adoption, canonical_table_uri
from lock_manager.errors import LockError, ResourceError
from lock_manager.settings import LockSettings
from lock_manager.zookeeper.inspector import LockInspector
from sluice.audit.log_files import version_files
from sluice.audit.log_folder import LogFolder, open_log, open_table
from sluice.doctor.finding import Finding, failed, note, ok
from sluice.errors import AdoptionError, LogAccessError

_WHAT = "adoption"


def adoption_finding(settings: LockSettings, table: str, storage_options: Mapping[str, str]) -> Finding:
    """Compare the adopting ensemble and the adopted name of the table with the ensemble that answers and this name.

    Args:
        settings: of the lock.
        table: ``s3://…``, ``s3a://…``, ``file:…`` or a path.
        storage_options: as ``deltalake`` takes them.

    """
    try:
        log = open_log(table, storage_options)
        if not version_files(log.names()):
            return note(_WHAT, f"there is no Delta table at {table} yet: adopt it when its first version is written")
        adoption = _adoption(log)
        with LockInspector(settings) as inspector:
            here = inspector.ensemble_id()
        return judge(table, adoption, here, canonical_table_uri(log.uri))
    except (AdoptionError, LogAccessError, LockError, ResourceError) as error:
        return failed(_WHAT, f"could not be compared: {error}")


def judge(table: str, adoption: Adoption | None, here: str | None, name: str) -> Finding:
    """Judge an adoption.

    Args:
        table: as the user named it.
        adoption: of the table; None if nobody adopted it.
        here: UUID of the ensemble that answers; None below a new lock root.
        name: canonical URI of the table, by the name that the user gave.

    """
    if adoption is None:
        return note(
            _WHAT,
            "no ensemble has adopted the table, so that the lock of any other one passes for its lock, too: "
            f"`sluice adopt {table}`",
        )
    if adoption.table not in (None, name):
        return failed(
            _WHAT,
            f"the table is adopted under the name {adoption.table}, but this is {name}: commits under a lock on it "
            "will be refused. If both are one table, use that name; if it was copied or moved here: "
            f"`sluice adopt {table} --move`",
        )
    if adoption.ensemble != here:
        what = "nothing was ever locked below this lock root" if here is None else f"this is ensemble {here}"
        return failed(
            _WHAT,
            f"the table is adopted by ensemble {adoption.ensemble}, but {what}: commits will be refused. Name the "
            f"table's own ZooKeeper and lock root, or move the table to this one: `sluice adopt {table} --move`",
        )
    if adoption.table is None:
        return note(
            _WHAT,
            f"the table is adopted by this ensemble, {here}, but not under its name, because an earlier release "
            f"adopted it. A lock on another name of the table passes for its lock: run `sluice adopt {table}`",
        )
    return ok(_WHAT, f"the table is adopted by this ensemble, {here}, and under this name")


def _adoption(log: LogFolder) -> Adoption | None:
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 (0.2 s that a look at the ensemble alone need not pay)

    try:
        table = open_table(log)
    except (DeltaError, OSError) as error:
        raise AdoptionError(f"deltalake cannot open the table: {str(error).splitlines()[0]}") from error
    return Adoption.of(table.metadata().configuration)
