"""The questions of ``sluice doctor``; each gives one finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sluice.doctor.finding import Finding, Verdict, failed

if TYPE_CHECKING:
    from rich.console import Console

    from lock_manager import LockSettings

_MISSING = (
    "none is given, so that no lock can be tried: give --zookeeper host:port,… or set SLUICE_ZK_HOSTS "
    "(`sluice zookeeper` runs one to try things with)"
)


def examine(
    settings: LockSettings | None, store: str | None, storage_options: Mapping[str, str], *, table: str | None = None
) -> list[Finding]:
    """Ask everything, and return what was found; what is wrong is a finding, not an error.

    Args:
        settings: of the lock; None if no ensemble is given, which is a fault.
        store: ``s3://BUCKET[/PREFIX]``, ``file:…`` or a path, to try its conditional PUT; None to leave that out.
        storage_options: as ``deltalake`` takes them; what is missing comes from the environment (``AWS_*``).
        table: its location, to ask whether this is the ensemble that has adopted it; None to leave that out.

    Raises:
        LogAccessError, ResourceError: ``store`` is of a kind that cannot be tried, or malformed.

    """
    from sluice.doctor.adoption import adoption_finding  # noqa: PLC0415
    from sluice.doctor.ensemble import ensemble_findings  # noqa: PLC0415
    from sluice.doctor.machine import machine_findings  # noqa: PLC0415
    from sluice.doctor.scratch import scratch_objects  # noqa: PLC0415
    from sluice.doctor.spark import defaults_finding  # noqa: PLC0415
    from sluice.doctor.store import store_findings  # noqa: PLC0415

    scratch = None if store is None else scratch_objects(store, storage_options)
    ensemble = [failed("ensemble", _MISSING)] if settings is None else ensemble_findings(settings)
    findings = [*ensemble, *machine_findings(), defaults_finding()]
    findings += [] if scratch is None else store_findings(scratch)
    if table is not None and settings is not None:
        findings.append(adoption_finding(settings, table, storage_options))
    return findings


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print a line for each finding."""
    from rich.text import Text  # noqa: PLC0415 (only people need it)

    styles = {Verdict.OK: "green", Verdict.NOTE: "yellow", Verdict.FAILED: "bold red"}
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        mark = Text(f"{finding.verdict.value:<6}  ", styles[finding.verdict])
        console.print(Text.assemble(mark, f"{finding.what:<{width}}  {finding.says}"), soft_wrap=True)
    failed = sum(finding.failed for finding in findings)
    if failed:
        said = f"{failed} {'thing is' if failed == 1 else 'things are'} wrong"
        console.print(Text(said, style="bold red"))
    else:
        console.print(Text("nothing is wrong", style="bold green"))
