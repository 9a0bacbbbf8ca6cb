"""The agent of a Spark driver without Python: it requests locks, and decides on the driver's commits.

``io.deltasluice.SluicePlugin`` starts it as ``python -m lock_manager.agent``. It reads one line from standard input, a
JSON object with ``conf`` (the driver's settings that start with ``spark.sluice.``), ``releases`` (the fields of
:class:`~lock_manager.releases.Releases`), ``app_id`` and ``app_name``. It answers with one line on standard output: a
JSON object with ``name`` and ``path`` of its guard's socket and ``timeout_ms``, the milliseconds to wait for an answer,
or with ``error``, one sentence. When standard input ends, the driver has ended: the agent releases its locks and exits.
"""

from __future__ import annotations

import json
import logging
import signal
import sys

from lock_manager import LockSettings, SluiceError, tracing
from lock_manager.guard.automatic_ticket import AutomaticTickets
from lock_manager.guard.commit_guard import CommitGuard
from lock_manager.guard.guard_server import ANSWER_SECONDS, GuardServer
from lock_manager.managers import manager_of
from lock_manager.opentelemetry_metrics import OpenTelemetryMetrics
from lock_manager.releases import ALLOW_UNTESTED, Releases


def main() -> int:
    """Run the agent until standard input ends; return the exit code."""
    # Ctrl-C in a shell is for the statement that runs. The agent ends with its driver.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="sluice agent: %(levelname)s %(message)s")
    tracing.start_sdk()
    if "opentelemetry.metrics" in sys.modules:
        # Until the process ends. Without an exporter of metrics, OpenTelemetry drops them.
        OpenTelemetryMetrics()
    driver = json.loads(sys.stdin.readline())
    refusal = Releases(**driver["releases"]).refusal(driver["conf"].get(ALLOW_UNTESTED, "false"))
    if refusal is not None:
        _answer(error=refusal)
        return 2
    try:
        manager = manager_of(LockSettings.from_spark(driver["conf"], app_id=driver["app_id"]))
    except SluiceError as error:
        _answer(error=str(error))
        return 2
    guard = CommitGuard()
    guard.automatic = AutomaticTickets(manager, driver["app_name"])
    try:
        server = GuardServer(guard, guard.client_ended)
    except OSError as error:
        manager.close()
        _answer(error=f"the agent cannot create its socket in the folder for temporary files: {error}; set TMPDIR")
        return 2
    try:
        _answer(name=server.name, path=server.path, timeout_ms=1000 * ANSWER_SECONDS)
        sys.stdin.read()
    finally:
        server.close()
        guard.client_ended()
        manager.close()
    return 0


def _answer(**fields: str | int) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
