"""A writer's process, with a small program in Spark's place: what it says arrives, and it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sluice.demo.processes import Events, WriterProcess, end_processes, spark_submit, submit_command
from sluice.errors import SparkSubmitError
from tests.support.running import is_running

ROOT = Path(__file__).parents[2]
# A child that ignores SIGTERM, below a parent that does too, as a JVM with its Python might.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, __file__, "child"])
else:
    print('{"event": "pids", "pids": [%d, %d]}' % (os.getppid(), os.getpid()), flush=True)
time.sleep(600)
"""


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 15
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline, f"still running: {[pid for pid in pids if is_running(pid)]}"
        time.sleep(0.02)


def start(tmp_path: Path, program: str, events: Events, number: int = 1) -> WriterProcess:
    script = tmp_path / f"program-{number}.py"
    script.write_text(program)
    return WriterProcess(number, [sys.executable, str(script)], {"GREETING": "hello"}, tmp_path, events)


def test_what_a_writer_prints_arrives_and_its_end_is_the_last_event(tmp_path: Path) -> None:
    events = Events()
    program = (
        "import json, os, sys\n"
        "print('not json')\n"
        "print('[1]')\n"
        "print(json.dumps({'event': 'begun', 'says': os.environ['GREETING']}), flush=True)\n"
        "sys.stderr.write('a warning\\nthe reason\\n')\n"
        "sys.exit(5)\n"
    )
    writer = start(tmp_path, program, events, number=3)
    assert events.get(timeout=10) == (3, {"event": "begun", "says": "hello"})
    assert events.get(timeout=10) == (3, {"event": "exit", "code": 5})
    end_processes([writer])
    assert writer.stderr_tail == ["a warning", "the reason"]
    assert "not json" in (tmp_path / "writer-3.out").read_text()
    assert events.empty()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_writers_and_what_they_started_are_ended_even_if_they_do_not_want_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.demo.processes._GRACE_SECONDS", 0.2)
    events = Events()
    writers = [start(tmp_path, STUBBORN, events, number) for number in (1, 2)]
    pids = [pid for _ in writers for pid in events.get(timeout=10)[1]["pids"]]
    assert len(set(pids)) == 4
    assert all(map(is_running, pids))
    end_processes(writers)
    wait_until_gone(pids)
    end_processes(writers)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_writer_ends_with_this_process_even_if_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom sluice.demo.processes import *\n"
        "events = Events()\n"
        "code = 'import os, time; print(\\'{\"pid\": %d}\\' % os.getpid(), flush=True); time.sleep(600)'\n"
        f"writer = WriterProcess(1, [sys.executable, '-c', code], {{}}, Path({str(tmp_path)!r}), events)\n"
        "print(events.get()[1]['pid'], flush=True)\ntime.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.send_signal(signal.SIGKILL)
    wait_until_gone([pid])


def test_spark_submit_is_pysparks_own_or_that_of_spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert spark_submit().name == "spark-submit"
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(SparkSubmitError, match="SPARK_HOME"):
        spark_submit()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").touch()
    assert spark_submit() == tmp_path / "bin" / "spark-submit"


def test_a_writer_of_the_demo_does_not_get_the_users_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_ZK_SECRET", "arn:aws:secretsmanager:…")
    code = "import json, os; print(json.dumps({'event': [name for name in os.environ if 'ZK' in name]}))"
    events = Events()
    writer = WriterProcess(1, [sys.executable, "-c", code], {"ZK_OURS": "x"}, tmp_path, events)
    assert events.get(timeout=30)[1]["event"] == ["ZK_OURS"]
    end_processes([writer])


def test_settings_given_win_over_the_demos_own() -> None:
    command = submit_command(Path("job.py"), ["--table", "t"], conf={"spark.ui.enabled": "true", "spark.x": "a b"})
    assert command[-3:] == ["job.py", "--table", "t"]
    assert "spark.ui.enabled=true" in command
    assert "spark.ui.enabled=false" not in command
    assert "spark.x=a b" in command
