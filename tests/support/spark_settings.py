"""Change Spark settings for one block of a test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

#: Spark generates code, as in production. The drivers of tests interpret expressions, which is faster for few rows.
GENERATED_CODE = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


@contextmanager
def spark_settings(conf: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """Set values in the ``conf`` of a session; restore the previous values at the end of the block.

    The ``conf`` of a driver works, too, for settings that are set already.
    """
    previous = {name: conf.get(name, None) for name in settings}
    for name, value in settings.items():
        conf.set(name, value)
    try:
        yield
    finally:
        for name, value in previous.items():
            conf.unset(name) if value is None else conf.set(name, value)
