"""The guard's refusals as typed Python errors, in every Spark call: an append, MERGE, OPTIMIZE, a stream.

Delta wraps the exceptions of its log store in up to six layers. PySpark converts the outermost into a Python exception,
in one function for all calls into the JVM. This module first looks for a refusal in the other layers. It also imports
Delta's own conversion of conflicts, which Delta before 4.4 leaves to the program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pyspark import SparkContext
from pyspark.errors.exceptions import captured

import lock_manager.errors
from lock_manager import LockLostError, LockNotHeldError, SluiceError
from lock_manager.errors import NotStagedError
from lock_manager.guard.commit_guard import CommitGuard
from writer_jobs.delta.jvm_errors import LOST_CONTACT, java_layers
from writer_jobs.errors import CommitUnknownError, GuardMissingError, TableError, UnsafeStoreError

# The Python package of Delta 4.0.0 lacks this module.
with suppress(ImportError):
    import delta.exceptions.captured  # noqa: F401

_PACKAGE = "io.deltasluice.storage."
_GUARD_ATTRIBUTE = "_sluice_guard"


def raise_refusals_as_python_errors(guard: CommitGuard) -> None:
    """Make every Spark call raise the guard's error if it fails because of a refused commit; idempotent."""
    convert: Callable[[Any], Exception] = captured.convert_exception
    if getattr(convert, _GUARD_ATTRIBUTE, None) is guard:
        return

    @functools.wraps(convert)
    def convert_exception(exception: Any) -> Exception:
        gateway: Any = SparkContext._gateway  # noqa: SLF001
        if gateway is not None and exception._gateway_client is not gateway._gateway_client:  # noqa: SLF001
            # PySpark would ask its own JVM about an object of another one. For an UnknownException it raises Py4J's own
            # error instead.
            foreign_error: Exception = captured.UnknownException(desc="an error of another JVM", stackTrace="")
            return foreign_error
        refusal = None
        with suppress(*LOST_CONTACT):  # the JVM died meanwhile: its exception is more useful
            refusal = _refusal(exception, guard)
        return refusal or convert(exception)

    setattr(convert_exception, _GUARD_ATTRIBUTE, guard)
    captured.convert_exception = convert_exception


def _refusal(exception: Any, guard: CommitGuard) -> SluiceError | None:
    for layer in java_layers(exception):
        name, message = str(layer.getClass().getName()), str(layer.getMessage() or "")
        if name == f"{_PACKAGE}CommitUnknownException":
            return CommitUnknownError(table=str(layer.table()), reason=message, commit_id=str(layer.attempt()))
        if name == f"{_PACKAGE}CommitRefusedException":
            return guard.refusal(str(layer.attempt())) or _error_by_name(str(layer.errorName()), message)
        if name == "py4j.Py4JException":
            # Python's own exception, raised in foreachBatch, went through the JVM as text.
            return guard.refusal_in(message)
    return None


def _error_by_name(name: str, message: str) -> SluiceError:
    for error in (GuardMissingError, NotStagedError, UnsafeStoreError, TableError):
        if name == error.__name__:
            return error(message)
    if name == LockLostError.__name__:
        lock_lost = LockLostError(resource="", hold_id="", reason=message)
        lock_lost.args = (f"{message}: the guard did not confirm the lock, so nothing was committed",)
        return lock_lost
    return LockNotHeldError(message, resource="") if hasattr(lock_manager.errors, name) else SluiceError(message)
