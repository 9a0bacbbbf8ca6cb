"""Run a function in a thread that holds no lock yet."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def in_new_thread(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> Future[T]:
    """Call a function in a new thread; return the future result of the call."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function, *arguments, **options)
    pool.shutdown(wait=False)
    return future
