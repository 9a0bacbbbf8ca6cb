"""The queue and the thread of OpenLineage events, and the decision whether there are any."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from writer_jobs.lineage import log_once, sender
from writer_jobs.lineage.records import Connection, RunName, RunRecord
from writer_jobs.lineage.sender import PROCESS_SENDER, Sender, is_configured

RECORD = RunRecord(state="START", run=RunName.new("job"), parent=None, job_type="JOB")


def close_nothing(_: float) -> None:
    """Close a connection that has nothing to send."""


@pytest.mark.parametrize(
    ("variables", "configured"),
    [
        ({}, False),
        ({"OPENLINEAGE_NAMESPACE": "n", "OPENLINEAGE_PARENT_ID": "a/b/c"}, False),
        ({"OPENLINEAGE_URL": "http://127.0.0.1"}, True),
        ({"OPENLINEAGE_CONFIG": "a.yml"}, True),
        ({"OPENLINEAGE__TRANSPORT__TYPE": "file"}, True),
        ({"OPENLINEAGE__TRANSPORT": "{}"}, True),
        ({"OPENLINEAGE_URL": "http://127.0.0.1", "OPENLINEAGE_DISABLED": "True"}, False),
    ],
)
def test_events_need_a_configured_transport(
    variables: dict[str, str], *, configured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert is_configured(variables) == configured


def test_the_library_s_file_configures_a_transport(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / ".openlineage" / "openlineage.yml"
    file.parent.mkdir()
    file.touch()
    assert is_configured({})
    assert not is_configured({"OPENLINEAGE_DISABLED": "true"})


def test_a_folder_that_cannot_be_read_configures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    home = "/" + 300 * "x"
    with pytest.raises(OSError, match="name too long"):
        Path(home, ".openlineage").is_file()
    monkeypatch.setenv("HOME", home)
    assert not is_configured({})


def test_a_failed_decision_sends_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> bool:
        raise PermissionError

    monkeypatch.setattr(sender, "is_configured", fail)
    monkeypatch.setattr(log_once, "_logged_texts", set())
    PROCESS_SENDER.reset()
    try:
        assert PROCESS_SENDER.get() is PROCESS_SENDER.get() is None
    finally:
        PROCESS_SENDER.reset()
    assert caplog.messages == ["lineage events are incomplete, because of a PermissionError"]


@pytest.mark.parametrize(("variables", "imported"), [({}, False), ({"OPENLINEAGE__TRANSPORT__TYPE": "noop"}, True)])
def test_without_a_transport_nothing_is_imported(variables: dict[str, str], *, imported: bool, tmp_path: Path) -> None:
    """The control has a transport."""
    program = (
        "import sys, threading, writer_jobs\n"
        "from writer_jobs.lineage.sender import PROCESS_SENDER\n"
        "from writer_jobs.lineage.records import RunName, RunRecord\n"
        "sender = PROCESS_SENDER.get()\n"
        "if sender: sender.put(RunRecord(state='START', run=RunName.new('j'), parent=None, job_type='JOB'))\n"
        "PROCESS_SENDER.reset()\n"
        "print('openlineage' in sys.modules, sender is not None)\n"
    )
    environment = {"HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2]), **variables}
    command = [sys.executable, "-c", program]
    process = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert process.stdout.split() == [str(imported)] * 2


def test_a_full_queue_drops_events_and_counts_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, eventually: Callable[..., None]
) -> None:
    """The control has a collector that answers at last, and gets all other events."""
    monkeypatch.setattr(sender, "MAX_WAITING", 2)
    is_open, sent = threading.Event(), []

    def send(record: RunRecord) -> None:
        sent.append(record)
        is_open.wait()

    full_sender = Sender(lambda: Connection(send, close_nothing))
    full_sender.put(RECORD)
    eventually(lambda: sent)
    for _ in range(4):
        full_sender.put(RECORD)
    is_open.set()
    full_sender.close()
    assert len(sent) == 3
    dropped, total = caplog.messages
    assert "2 events wait" in dropped
    assert total == "2 of 5 lineage events were not sent"


def test_a_sender_without_a_connection_logs_the_reason_and_keeps_nothing(
    caplog: pytest.LogCaptureFixture, eventually: Callable[..., None]
) -> None:
    def connect() -> Connection:
        raise ValueError("no such transport")

    broken_sender = Sender(connect)
    broken_sender.put(RECORD)
    eventually(lambda: caplog.messages)
    broken_sender.put(RECORD)
    broken_sender.close()
    assert caplog.messages == ["no lineage events are sent: no such transport", "2 of 2 lineage events were not sent"]


def test_failed_events_are_counted_and_the_last_ones_are_awaited(caplog: pytest.LogCaptureFixture) -> None:
    """A transport with a thread of its own gets the rest of the time at the end."""
    outcomes = iter([None, OSError("refused by http://user:secret@host/"), None])
    closed: list[float] = []

    def send(_: RunRecord) -> None:
        if (error := next(outcomes)) is not None:
            raise error

    sometimes_failing = Sender(lambda: Connection(send, closed.append))
    for _ in range(3):
        sometimes_failing.put(RECORD)
    sometimes_failing.close()
    assert caplog.messages == [
        "a lineage event was not sent: refused by http://host/",
        "1 of 3 lineage events were not sent",
    ]
    assert 0 < closed[0] <= sender.CLOSE_SECONDS


def test_a_missing_library_is_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1")
    monkeypatch.setattr(sender.importlib.util, "find_spec", lambda _: None)
    PROCESS_SENDER.reset()
    try:
        assert PROCESS_SENDER.get() is PROCESS_SENDER.get() is None
    finally:
        PROCESS_SENDER.reset()
    (record,) = caplog.records
    assert (record.levelno, "install the extra lineage" in record.message) == (logging.WARNING, True)
