"""Hold a lock in another thread, because locks of one thread are nested and do not exclude each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

_ACQUIRE_SECONDS = 60


@contextmanager
def in_another_thread(hold: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Enter a context in another thread, and leave it at the end of the block."""
    acquired, finished = threading.Event(), threading.Event()

    def run() -> None:
        with hold():
            acquired.set()
            finished.wait()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert acquired.wait(_ACQUIRE_SECONDS), "the lock was not acquired"
    try:
        yield
    finally:
        finished.set()
        thread.join()
