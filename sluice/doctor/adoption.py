"""Checks that a table's adoption (``sluice adopt``) allows commits under this lock."""

from __future__ import annotations

from collections.abc import Mapping

from lock_manager import Adoption, canonical_table_uri
from lock_manager.errors import SluiceError
from lock_manager.managers import inspector_of
from lock_manager.settings import LockSettings
from lock_manager.table_records.adoption import OPTIMISTIC_ENSEMBLE
from sluice.audit.log_files import versions_in
from sluice.audit.log_folder import LogFolder, error_text, open_log, open_table
from sluice.doctor.finding import Finding, failed, note, ok
from sluice.errors import LogAccessError

_CHECK = "adoption"


def adoption_finding(settings: LockSettings, table: str, storage_options: Mapping[str, str]) -> Finding:
    """Compare the table's adopting ensemble and adopted name with this ensemble and this name."""
    try:
        log = open_log(table, storage_options)
        if not versions_in(log.names()):
            return note(_CHECK, f"there is no Delta table at {table} yet: adopt it after its first version is written")
        adoption = _read_adoption(log)
        if adoption is None and settings.fallback:
            return failed(
                _CHECK,
                "the table is not adopted, so writers with a fallback are refused: run "
                f"`sluice adopt {table} --lock-url URL` with this URL",
            )
        return compare_adoption(table, adoption, _ensemble_id(settings), canonical_table_uri(log.uri))
    except SluiceError as error:
        return failed(_CHECK, f"could not be compared: {error}")


def compare_adoption(table: str, adoption: Adoption | None, ensemble: str | None, name: str) -> Finding:
    """Return the finding for an adoption.

    Args:
        table: The table as the user named it.
        adoption: The table's adoption; None if it is not adopted.
        ensemble: UUID of this ensemble; None if no table was ever locked in it.
        name: Canonical URI of the name that the user gave.

    """
    if adoption is None:
        return note(
            _CHECK,
            f"no ensemble has adopted the table, so the lock of any ensemble is accepted: run `sluice adopt {table}`",
        )
    if adoption.table not in (None, name):
        return failed(
            _CHECK,
            f"the table is adopted under the name {adoption.table}, but this is {name}: commits under the lock on "
            "this name will be refused. If both names mean one table, use the adopted name. If the table was copied or "
            f"moved: run `sluice adopt {table} --move`",
        )
    if adoption.ensemble != ensemble:
        this_ensemble = "nothing was ever locked in this one" if ensemble is None else f"this is ensemble {ensemble}"
        return failed(
            _CHECK,
            f"the table is adopted by ensemble {adoption.ensemble}, but {this_ensemble}: commits will be refused. Use "
            "the coordinator of the adopting ensemble (--zookeeper with --lock-root, or --lock-url), or move the table "
            "to this one: run "
            f"`sluice adopt {table} --move`",
        )
    if adoption.table is None:
        return note(
            _CHECK,
            f"the table is adopted by this ensemble, {ensemble}, but not under its name, because an earlier release "
            f"adopted it. So a lock on another name of the table is accepted: run `sluice adopt {table}`",
        )
    return ok(_CHECK, f"the table is adopted by this ensemble, {ensemble}, and under this name")


def _ensemble_id(settings: LockSettings) -> str | None:
    if settings.is_optimistic:
        return OPTIMISTIC_ENSEMBLE
    with inspector_of(settings) as inspector:
        return inspector.ensemble_id()


def _read_adoption(log: LogFolder) -> Adoption | None:
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 (the import takes 0.2 s)

    try:
        table = open_table(log)
    except (DeltaError, OSError) as error:
        raise LogAccessError(f"deltalake cannot open the table: {error_text(error)}") from error
    return Adoption.of(table.metadata().configuration)
