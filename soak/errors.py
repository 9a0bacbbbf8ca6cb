"""Errors of the soak.

::

    SluiceError                                    (lock_manager.errors)
    ├── ContainerError (RuntimeError)              no Docker engine, or it cannot run the servers
    ├── JvmError (RuntimeError)                    a JVM did not start
    │   └── JvmGoneError                           it died
    ├── VersionTakenError (FileExistsError)        the version of the log is another transaction's
    └── StoreError (RuntimeError)                  the log store, or S3 behind it, raised an error
        └── WriteError                             a write was refused, failed, or has no known outcome
"""

from __future__ import annotations

from lock_manager import SluiceError


class ContainerError(SluiceError, RuntimeError):
    """No Docker engine answers, or it could not run the servers."""


class JvmError(SluiceError, RuntimeError):
    """The JVM did not start, or its thread is not the one that was bound to the hold."""


class JvmGoneError(JvmError):
    """The JVM died, whatever it was doing."""


class VersionTakenError(SluiceError, FileExistsError):
    """The version is another transaction's: java.nio's FileAlreadyExistsException."""


class StoreError(SluiceError, RuntimeError):
    """What the log store, or S3 behind it, raised.

    Attributes:
        reason: name of the error.

    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class WriteError(StoreError):
    """What else than success, or another's success, a write can end with.

    Attributes:
        kind: ``refused`` by the guard, ``unknown`` to the store, or ``failed``.

    """

    def __init__(self, kind: str, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.kind = kind
