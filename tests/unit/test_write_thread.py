"""The thread of a write. If its start is interrupted, the caller can still see whether the write runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from pyspark import InheritableThread

from writer_jobs.commit.execution import WriteThread


def write_thread(write: Callable[[], object]) -> WriteThread:
    return WriteThread(write, "w", lambda: None)


def wait(thread: WriteThread) -> None:
    deadline = time.monotonic() + 50
    thread.wait(lambda: time.monotonic() > deadline)
    assert thread.has_ended


def test_an_error_of_the_write_is_the_failure_of_its_thread():
    def fail() -> None:
        raise IndexError

    thread = write_thread(fail)
    thread.begin()
    assert thread.interrupt is None
    wait(thread)
    assert isinstance(thread.failure, IndexError)


def test_a_write_interrupted_after_its_start_is_waited_for(monkeypatch):
    started, proceed, writes = threading.Event(), threading.Event(), []
    real_start = threading.Thread.start

    def interrupted_start(self: threading.Thread) -> None:
        real_start(self)
        started.wait(30)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted_start)
    thread = write_thread(lambda: (started.set(), proceed.wait(30), writes.append(True)))
    thread.begin()
    assert isinstance(thread.interrupt, KeyboardInterrupt)
    assert not thread.has_ended
    proceed.set()
    wait(thread)
    assert writes == [True]
    assert thread.failure is None


def test_a_thread_that_ends_before_its_write_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bool] = []
    # Spark sets its properties before the write. That fails if the JVM has ended.
    monkeypatch.setattr(InheritableThread, "run", lambda _: None)
    thread = write_thread(lambda: writes.append(True))
    thread.begin()
    assert thread.interrupt is None
    wait(thread)
    assert writes == []
    assert isinstance(thread.failure, RuntimeError)


def test_a_write_interrupted_before_its_start_never_runs(monkeypatch):
    writes, threads = [], []
    real_start = threading.Thread.start

    def interrupted_start(self: threading.Thread) -> None:
        threads.append(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted_start)
    thread = write_thread(lambda: writes.append(True))
    thread.begin()
    assert isinstance(thread.interrupt, KeyboardInterrupt)
    assert thread.has_ended
    # The operating system starts the thread late.
    real_start(threads[0])
    threads[0].join()
    assert writes == []
    assert isinstance(thread.failure, RuntimeError)
