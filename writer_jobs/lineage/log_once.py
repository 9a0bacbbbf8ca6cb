"""Log entries that do not repeat, because a stream makes events for as long as it runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

_MAX_TEXTS = 100

_logged_texts: set[str] = set()


def log_once(level: int, text: str) -> None:
    """Log a text at a level, unless this process has logged it; only the first texts of a process are logged."""
    if text not in _logged_texts and len(_logged_texts) < _MAX_TEXTS:
        _logged_texts.add(text)
        log.log(level, text)


@contextmanager
def errors_logged() -> Iterator[None]:
    """Log an error of the block instead of raising it, once for each class."""
    try:
        yield
    except Exception as error:
        log.debug("lineage events are incomplete", exc_info=True)
        log_once(logging.WARNING, f"lineage events are incomplete, because of a {type(error).__name__}")
