"""Agents and drivers of unchanged programs, killed or paused at a step of a commit; a second program commits meanwhile.

One of the programs is at one of six steps when its agent, its driver or both get a signal. The second program commits
in spite of it, and a fault may strike its put. Then the paused processes go on, and a late put arrives.
"""

from __future__ import annotations

import itertools
import random
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

import pytest

from lock_manager import ZookeeperLockManager
from lock_manager.testing.embedded import EmbeddedZooKeeper, send_signal
from soak.s3_faults import FaultyS3, S3Fault
from tests.support.driver_process import LAKE, WAIT
from tests.support.java_program import JavaProgram, build_program, running_programs, submit_words
from tests.support.s3_table import read, rows, tokens
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.s3]

#: The wait for the lock, the put, and the steps of ``stopping_agent.py``.
STEPS = ("wait", "turn", "commit", "allowed", "put", "outcome")
VICTIMS = ("agent", "driver", "both")
#: Faults of the second program's put, as arguments of :class:`S3Fault`.
PUT_FAULTS: tuple[dict[str, Any], ...] = (
    {}, {"status": 503}, {"status": 500, "stored": True}, {"lost": True}, {"lost": True, "stored": True},
)  # fmt: skip
STOPPING_AGENT = Path(__file__).parents[1] / "support" / "stopping_agent.py"
#: The plugin starts the agent of a driver again at most ten times within an hour.
MAX_KILLS = 8


@dataclass
class Programs:
    """Two programs that write to one S3. The agent of the first one stops at a step.

    Attributes:
        start: Starts a program with this name in S3's requests, and these Spark settings.
        folder: Folder of ``stopping_agent.py``.
        table: The table of the test.

    """

    start: Callable[..., JavaProgram]
    folder: Path
    s3: FaultyS3
    manager: ZookeeperLockManager
    table: str = ""
    first: JavaProgram = field(init=False)
    second: JavaProgram = field(init=False)
    kills: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Start both programs."""
        python = self.folder / "python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STOPPING_AGENT}" "{self.folder}"\n')
        python.chmod(0o755)
        self.start_first()
        self.second = self.start("writer-2")

    def start_first(self) -> None:
        self.first = self.start("writer-1", **{"spark.sluice.python": str(self.folder / "python")})
        self.kills = 0

    def create_table(self) -> None:
        self.table = f"s3a://{LAKE[0]}/{uuid.uuid4().hex}"
        assert self.second.sql(f"CREATE TABLE delta.`{self.table}` (id BIGINT) USING delta") == "done []"

    def insert(self, row: int) -> str:
        return f"INSERT INTO delta.`{self.table}` VALUES ({row})"

    def begin_until(self, step: str, stack: ExitStack) -> None:
        """Begin to insert row 1 in the first program until a step. It goes on when ``stack`` is closed."""
        if step == "wait":
            stack.enter_context(self.manager.acquire(self.table))
            self.first.begin(self.insert(1))
            eventually(lambda: len(self.manager.queue(self.table)) == 2, within=WAIT, label="a commit that waits")
        elif step == "put":
            fault = self.s3.gate.arm("writer-1", S3Fault(held=True))
            stack.callback(fault.ended.wait, WAIT)
            stack.callback(fault.release.set)
            self.first.begin(self.insert(1))
            assert fault.arrived.wait(WAIT)
        else:
            stopped = self.folder / "stopped"
            (self.folder / "stop-at").write_text(step)
            self.first.begin(self.insert(1))
            eventually(stopped.exists, within=WAIT, label=f"the step {step}")
            stack.callback(stopped.unlink)

    def strike(self, step: str, victim: str, number: signal.Signals, put_fault: dict[str, Any]) -> str:
        """Send a signal to the first program at a step, and commit row 2 by the second one; return the first's answer.

        The answer is empty if the signal ended the first program.
        """
        pids = {"agent": [self.first.agent()], "driver": [self.first.process.pid]}
        pids["both"] = pids["agent"] + pids["driver"]
        with ExitStack() as stack:
            self.begin_until(step, stack)
            for pid in pids[victim]:
                send_signal(pid, number)
            self.kills += number is SIGKILL
            if step == "wait":
                stack.close()
            if put_fault:
                self.s3.gate.arm("writer-2", S3Fault(**put_fault))
            try:
                assert self.second.sql(self.insert(2)) == "done []"
            finally:
                self.s3.gate.disarm("writer-2")
        for pid in pids[victim]:
            send_signal(pid, SIGCONT)
        return self.first.answer()

    def commit_again(self) -> None:
        """Insert row 3 in the first program, which is started again if it has ended, or if its agent ended often."""
        if self.first.process.poll() is not None or self.kills == MAX_KILLS:
            self.first.kill()
            self.start_first()
        eventually(lambda: self.first.sql(self.insert(3)) == "done []", within=WAIT, label="a commit")


@pytest.fixture(scope="module")
def running(
    s3: FaultyS3, ensemble_of_drivers: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Programs]:
    folder = tmp_path_factory.mktemp("programs")
    jar = build_program(folder)
    hosts = ensemble_of_drivers.hosts
    with running_programs() as programs, ZookeeperLockManager(hosts) as manager:

        def start(name: str, **settings: str) -> JavaProgram:
            arguments = submit_words(
                hosts,
                {
                    "spark.sluice.sessionTimeoutSeconds": "4", "spark.sluice.maxHoldSeconds": "8",
                    "spark.hadoop.fs.s3a.user.agent.prefix": name, "spark.databricks.delta.snapshotPartitions": "1",
                    **s3.spark_conf, **settings,
                },
            )  # fmt: skip
            programs.append(JavaProgram(jar, folder / f"{name}-{len(programs)}.log", arguments))
            return programs[-1]

        running = Programs(start, folder, s3, manager)
        yield running
        agent = running.second.agent()
        running.second.kill()
        eventually(lambda: not Path(f"/proc/{agent}").exists(), within=WAIT, label="the end of the agent")


@pytest.fixture
def programs(running: Programs) -> Programs:
    running.create_table()
    return running


def check(programs: Programs, step: str, victim: str, number: signal.Signals, put_fault: dict[str, Any]) -> None:
    """Strike, and check that the table has the acknowledged rows, in the order of the locks."""
    answer = programs.strike(step, victim, number, put_fault)
    # A paused agent that waited requests the lock again.
    is_stored = step == "outcome" or (step == "wait" and answer.startswith("done"))
    if number is SIGKILL and victim != "agent":
        assert answer == ""
    else:
        assert answer.startswith("done" if is_stored else "CommitRefusedException"), answer
    programs.commit_again()
    assert rows(programs.table) == ([1] if is_stored else []) + [2, 3]
    order = tokens(programs.s3, programs.table)
    assert order == sorted(set(order))


@pytest.mark.parametrize(
    ("step", "victim", "number"),
    [
        ("wait", "agent", SIGKILL),
        ("commit", "agent", SIGSTOP),
        pytest.param("put", "both", SIGKILL, marks=pytest.mark.full),
        pytest.param("outcome", "agent", SIGKILL, marks=pytest.mark.full),
        pytest.param("allowed", "driver", SIGSTOP, marks=pytest.mark.full),
    ],
)
def test_a_killed_or_paused_agent_or_driver_commits_nothing_later(
    programs: Programs, step: str, victim: str, number: signal.Signals
) -> None:
    check(programs, step, victim, number, {})


@pytest.mark.soak
@pytest.mark.parametrize(("step", "victim", "number"), [*itertools.product(STEPS, VICTIMS, (SIGKILL, SIGSTOP))])
def test_each_fault_at_each_step_with_a_fault_of_the_second_put(
    programs: Programs, step: str, victim: str, number: signal.Signals
) -> None:
    check(programs, step, victim, number, random.Random(f"{step} {victim} {number}").choice(PUT_FAULTS))


@pytest.mark.full
def test_an_agent_that_does_not_answer_is_replaced(programs: Programs) -> None:
    answer_seconds, stopped = programs.folder / "answer-seconds", programs.folder / "stopped"
    answer_seconds.write_text("10")
    programs.first.kill()
    programs.start_first()
    try:
        agent = programs.first.agent()
        (programs.folder / "stop-at").write_text("commit")
        answer = programs.first.sql(programs.insert(1))
        assert stopped.exists()
        assert answer.startswith("CommitRefusedException")
        assert "did not answer for 10 s" in answer
        programs.commit_again()
        assert programs.first.agent() != agent
        assert rows(programs.table) == [3]
    finally:
        answer_seconds.unlink()
        stopped.unlink(missing_ok=True)
        programs.first.kill()
        programs.start_first()


def test_negative_control_without_the_check_a_paused_agent_commits_later(programs: Programs) -> None:
    unprotected = programs.folder / "unprotected"
    unprotected.touch()
    try:
        assert programs.strike("commit", "agent", SIGSTOP, {}) == "done []"
    finally:
        unprotected.unlink()
    assert read(programs.table)["ids"] == [1, 2]
    assert read(programs.table)["problems"]
    order = tokens(programs.s3, programs.table)
    assert order != sorted(order)
