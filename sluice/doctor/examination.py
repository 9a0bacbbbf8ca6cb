"""Runs the checks of ``sluice doctor``, and prints their findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from lock_manager import LockSettings
from sluice.audit.checks import count_text
from sluice.doctor.finding import Finding, Verdict, failed, note

_NO_COORDINATOR = (
    "no ensemble is given, so no lock can be checked: give --zookeeper host:port,… or set SLUICE_ZK_HOSTS "
    "(`sluice zookeeper` runs an ensemble for first tries), or give --lock-url s3-lease://BUCKET/PREFIX"
)


def examine(
    settings: LockSettings | None, store: str | None, storage_options: Mapping[str, str], *, table: str | None = None
) -> list[Finding]:
    """Run all checks, and return their findings. A fault is a finding, not an error.

    Args:
        settings: Settings of the lock. None if no coordinator is given: a fault, and the adoption is not checked.
        store: ``s3://BUCKET[/PREFIX]``, ``file:…`` or a path, to check its conditional PUT; None to omit that check.
        table: Location of a table, to check its adoption; None to omit that check.

    Raises:
        LogAccessError, ResourceError: ``store`` is malformed, or of a kind that cannot be checked.
        SettingsError: The locks are on S3, and boto3 is not installed.

    """
    from sluice.doctor.adoption import adoption_finding  # noqa: PLC0415
    from sluice.doctor.machine import machine_findings  # noqa: PLC0415
    from sluice.doctor.scratch import scratch_objects  # noqa: PLC0415
    from sluice.doctor.spark import defaults_finding  # noqa: PLC0415
    from sluice.doctor.store import store_findings  # noqa: PLC0415

    scratch = None if store is None else scratch_objects(store, storage_options)
    findings = [*_coordinator_findings(settings), *machine_findings(), defaults_finding()]
    findings += [] if scratch is None else store_findings(scratch)
    if table is not None and settings is not None:
        findings.append(adoption_finding(settings, table, storage_options))
    return findings


def _coordinator_findings(settings: LockSettings | None) -> list[Finding]:
    from sluice.doctor.ensemble import ensemble_findings  # noqa: PLC0415
    from sluice.doctor.lock_bucket import lock_bucket_findings  # noqa: PLC0415

    if settings is None:
        return [failed("ensemble", _NO_COORDINATOR)]
    if settings.lock_url and not settings.is_optimistic:
        return lock_bucket_findings(settings)
    findings = [] if settings.lock_url else ensemble_findings(settings)
    if settings.is_optimistic:
        findings.append(note("locks", f"{settings.coordinator}: no lock, a write that loses a race is repeated"))
    return findings


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print a line for each finding."""
    styles = {Verdict.OK: "green", Verdict.NOTE: "yellow", Verdict.FAILED: "bold red"}
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        verdict = Text(f"{finding.verdict.value:<6}  ", styles[finding.verdict])
        console.print(Text.assemble(verdict, f"{finding.check:<{width}}  {finding.message}"), soft_wrap=True)
    failures = sum(finding.failed for finding in findings)
    if failures:
        console.print(Text(f"{count_text(failures, 'check')} failed", style="bold red"))
    else:
        console.print(Text("no check failed", style="bold green"))
