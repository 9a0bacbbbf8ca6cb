"""Run an operation for ``scale.py`` and print its seconds and peak memory, a line of JSON for each measurement.

``scale_operation.py append|pin TABLE HOSTS [LOCK_ROOT]`` measures the operation in a running driver, an append twice.
``scale_operation.py sluice ARGUMENTS…`` measures a command from its start.
"""

from __future__ import annotations

import time

BEGAN = time.perf_counter()

import io  # noqa: E402 (the imports are part of a command's time)
import json  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
from contextlib import redirect_stderr, redirect_stdout  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402


def peak_mib(pid: int) -> float | None:
    """Return the peak resident size of a process in MiB (proc(5), VmHWM); None if the process is gone."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), None)


def report(operation: str, seconds: float, **fields: Any) -> None:
    """Print a measurement, with the peaks of this process and of its driver's JVM in MiB (null without one)."""
    command = ["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())]
    children = subprocess.run(command, check=False, capture_output=True, text=True).stdout.splitlines()
    jvms = [int(child.split()[0]) for child in children if child.split()[1] == "java"]
    jvm = max((peak for peak in map(peak_mib, jvms) if peak is not None), default=None)
    figures = {"operation": operation, "seconds": seconds, "python_mib": peak_mib(os.getpid()), "jvm_mib": jvm}
    print(json.dumps(figures | fields), flush=True)


def run_command(arguments: list[str]) -> None:
    from sluice.commands.app import app  # noqa: PLC0415

    output, error = io.StringIO(), ""
    with redirect_stdout(output), redirect_stderr(output):
        try:
            app(arguments)
        except SystemExit as end:
            # A command that is too large for its limits is a result.
            error = f"exit code {end.code}: {output.getvalue()[-500:]}" if end.code else ""
    report(f"sluice {arguments[0]}", time.perf_counter() - BEGAN, error=error)


def run_in_driver(operation: str, table: str, hosts: str, lock_root: str | None = None) -> None:
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415

    from bench_session import bench_session  # noqa: PLC0415

    from lock_manager import ZookeeperLockManager  # noqa: PLC0415
    from writer_jobs import LockedDeltaWriter, take_pin  # noqa: PLC0415

    spark = bench_session("scale", {})
    spark.range(1).collect()
    with ZookeeperLockManager(hosts, timeout_seconds=600, lock_root=lock_root) as manager:
        if operation == "pin":
            now = datetime.now(UTC)
            began = time.perf_counter()
            take_pin(
                spark,
                {table: "at"},
                name="scale",
                at=now - timedelta(hours=1),
                expires_at=now + timedelta(hours=1),
                manager=manager,
            )
            report("take_pin", time.perf_counter() - began)
        else:
            writer = LockedDeltaWriter(spark, manager, table)
            for name in ("append, new driver", "append, same driver"):
                rows = spark.range(1).selectExpr("-1 - id AS id", "timestamp_seconds(0) AS at", "'0' AS part")
                began = time.perf_counter()
                result = writer.append(rows.coalesce(1), partition_by=["part"])
                seconds, held_seconds = time.perf_counter() - began, result.held_seconds
                report(name, seconds, acquired_at=result.acquired_at, held_seconds=held_seconds)
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1] == "sluice":
        run_command(sys.argv[2:])
    else:
        run_in_driver(*sys.argv[1:])
