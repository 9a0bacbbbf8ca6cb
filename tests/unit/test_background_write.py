"""The thread in which a write runs: an interrupt of its start must not lose sight of it."""

from __future__ import annotations

import threading

import pytest
from pyspark import InheritableThread

from writer_jobs.commit.background_write import _WriteThread


def run(thread: _WriteThread) -> None:
    for _ in range(1000):
        if thread.over:
            return
        thread.wait(0.05)
    pytest.fail("the thread did not end")


def test_it_ends_with_what_the_work_raised():
    def fail() -> None:
        raise IndexError

    thread = _WriteThread(fail, "w")
    assert thread.begin() is None
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
    thread = _WriteThread(lambda: (began.set(), go_on.wait(30), done.append(True)), "w")
    assert isinstance(thread.begin(), KeyboardInterrupt)
    assert not thread.over
    go_on.set()
    run(thread)
    assert done == [True]
    assert thread.failure is None


def test_a_thread_that_ends_before_the_work_begins_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[bool] = []
    # Spark sets its properties before the work, which fails if the JVM is gone.
    monkeypatch.setattr(InheritableThread, "run", lambda _: None)
    thread = _WriteThread(lambda: done.append(True), "w")
    assert thread.begin() is None
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
    thread = _WriteThread(lambda: done.append(True), "w")
    assert isinstance(thread.begin(), KeyboardInterrupt)
    assert thread.over
    # The system starts it all the same, late.
    start(held_back[0])
    held_back[0].join()
    assert done == []
    assert isinstance(thread.failure, RuntimeError)
