"""Ctrl-C raises KeyboardInterrupt, even if PySpark's signal handler fails because it interrupts a call of py4j."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest
from py4j.protocol import Py4JError

from tests.support.new_thread import in_new_thread
from writer_jobs.delta.session import repair_interrupts


def handler(_number: int, _frame: FrameType | None) -> None:
    raise Py4JError("An error occurred while calling o1.cancelAllJobs")


@pytest.fixture(autouse=True)
def pyspark_handler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(handler, "__module__", "pyspark.context")
    original = signal.signal(signal.SIGINT, handler)
    yield
    signal.signal(signal.SIGINT, original)


def test_a_failing_handler_of_pyspark_raises_keyboard_interrupt() -> None:
    repair_interrupts()
    repaired = signal.getsignal(signal.SIGINT)
    repair_interrupts()
    assert signal.getsignal(signal.SIGINT) is repaired, "repaired twice"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("module", [None, "sluice.interrupts"])
def test_the_handler_of_another_module_stays(module: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "__module__", module)
    repair_interrupts()
    assert signal.getsignal(signal.SIGINT) is handler


def test_another_thread_changes_no_handler() -> None:
    in_new_thread(repair_interrupts).result()
    assert signal.getsignal(signal.SIGINT) is handler
