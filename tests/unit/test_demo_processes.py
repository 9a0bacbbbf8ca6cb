"""The process of a demo writer: its events arrive and its children end. A small program stands in for Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.demo.processes import Events, WriterProcess, end_processes, spark_submit, submit_command
from sluice.errors import SparkSubmitError
from tests.support.running import is_running
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
# A parent and a child that ignore SIGTERM, as a JVM with its Python may.
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
    eventually(lambda: not any(map(is_running, pids)), within=15, label=f"the end of the processes {pids}")


def start(folder: Path, program: str, events: Events, number: int = 1) -> WriterProcess:
    """Start writer ``number`` with a program in the place of a job."""
    script = folder / f"program-{number}.py"
    script.write_text(program)
    return WriterProcess(number, [sys.executable, str(script)], {"ZK_GREETING": "hello"}, folder, events)


def test_printed_events_arrive_and_the_exit_is_the_last_one(tmp_path: Path) -> None:
    events = Events()
    program = (
        "import json, os, sys\n"
        "print('not json')\n"
        "print('[1]')\n"
        "print(json.dumps({'event': 'begun', 'greeting': os.environ['ZK_GREETING']}), flush=True)\n"
        "sys.stderr.write('a warning\\nthe reason\\n')\n"
        "sys.exit(5)\n"
    )
    writer = start(tmp_path, program, events, number=3)
    assert events.get(timeout=10) == (3, {"event": "begun", "greeting": "hello"})
    assert events.get(timeout=10) == (3, {"event": "exit", "code": 5})
    end_processes([writer])
    assert writer.stderr_tail == ["a warning", "the reason"]
    assert "not json" in (tmp_path / "writer-3.out").read_text()
    assert events.empty()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_writers_that_ignore_sigterm_end_with_their_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_writer_ends_when_the_demo_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom sluice.demo.processes import *\n"
        "events = Events()\n"
        "code = 'import os, time; print(\\'{\"pid\": %d}\\' % os.getpid(), flush=True); time.sleep(600)'\n"
        f"writer = WriterProcess(1, [sys.executable, '-c', code], {{}}, Path({str(tmp_path)!r}), events)\n"
        "print(events.get()[1]['pid'], flush=True)\ntime.sleep(600)\n"
    )
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.send_signal(signal.SIGKILL)
    wait_until_gone([pid])


def test_spark_submit_comes_from_spark_home_or_pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert spark_submit().name == "spark-submit"
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(SparkSubmitError, match=r"SPARK_HOME=.* has no bin/spark-submit"):
        spark_submit()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").touch()
    assert spark_submit() == tmp_path / "bin" / "spark-submit"


def test_a_writer_does_not_get_the_users_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_ZK_SECRET", "arn:aws:secretsmanager:…")
    events = Events()
    program = "import json, os; print(json.dumps({'event': [name for name in os.environ if 'ZK' in name]}))"
    writer = start(tmp_path, program, events)
    assert events.get(timeout=30)[1]["event"] == ["ZK_GREETING"]
    end_processes([writer])


def test_configured_settings_replace_the_demos_own() -> None:
    command = submit_command(Path("job.py"), ["--table", "t"], conf={"spark.ui.enabled": "true", "spark.x": "a b"})
    assert command[-3:] == ["job.py", "--table", "t"]
    assert "spark.ui.enabled=true" in command
    assert "spark.ui.enabled=false" not in command
    assert "spark.x=a b" in command
