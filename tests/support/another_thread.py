"""Hold a lock in another thread: those of one thread are nested in each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

_BEGIN_SECONDS = 60


@contextmanager
def in_another_thread(hold: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Be in a context that another thread makes, enters, and leaves at the end of the block."""
    begun, over = threading.Event(), threading.Event()

    def run() -> None:
        with hold():
            begun.set()
            over.wait()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert begun.wait(_BEGIN_SECONDS), "the lock was not had"
    try:
        yield
    finally:
        over.set()
        thread.join()
