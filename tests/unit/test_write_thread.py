"""The thread in which a write runs: an interrupt of its start must not lose sight of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from pyspark import InheritableThread

from writer_jobs.commit.execution import WriteThread


def made(write: Callable[[], object]) -> WriteThread:
    return WriteThread(write, "w", lambda: None)


def run(thread: WriteThread) -> None:
    ends = time.monotonic() + 50
    thread.wait(lambda: time.monotonic() > ends)
    assert thread.has_ended


def test_it_ends_with_what_the_work_raised():
    def fail() -> None:
        raise IndexError

    thread = made(fail)
    thread.begin()
    assert thread.interrupt is None
    run(thread)
    assert isinstance(thread.failure, IndexError)


def test_interrupted_after_the_work_began_it_is_waited_for(monkeypatch):
    began, go_on, done = threading.Event(), threading.Event(), []
    start = threading.Thread.start

    def interrupted(self: threading.Thread) -> None:
        start(self)
        began.wait(30)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    thread = made(lambda: (began.set(), go_on.wait(30), done.append(True)))
    thread.begin()
    assert isinstance(thread.interrupt, KeyboardInterrupt)
    assert not thread.has_ended
    go_on.set()
    run(thread)
    assert done == [True]
    assert thread.failure is None


def test_a_thread_that_ends_before_the_work_begins_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[bool] = []
    # Spark sets its properties before the work, which fails if the JVM is gone.
    monkeypatch.setattr(InheritableThread, "run", lambda _: None)
    thread = made(lambda: done.append(True))
    thread.begin()
    assert thread.interrupt is None
    run(thread)
    assert done == []
    assert isinstance(thread.failure, RuntimeError)


def test_interrupted_before_the_work_began_it_never_does(monkeypatch):
    done, held_back = [], []
    start = threading.Thread.start

    def interrupted(self: threading.Thread) -> None:
        held_back.append(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    thread = made(lambda: done.append(True))
    thread.begin()
    assert isinstance(thread.interrupt, KeyboardInterrupt)
    assert thread.has_ended
    # The system starts it all the same, late.
    start(held_back[0])
    held_back[0].join()
    assert done == []
    assert isinstance(thread.failure, RuntimeError)
