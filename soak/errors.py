"""Errors of the soak.

::

    SluiceError                                    (lock_manager.errors)
    ├── ContainerError (RuntimeError)              no Docker engine, or it cannot run the servers
    ├── JvmError (RuntimeError)                    a JVM did not start, or wrote in the wrong thread
    │   └── JvmGoneError                           the JVM has ended
    ├── VersionTakenError (FileExistsError)        another transaction has committed this version
    └── StoreError (RuntimeError)                  the log store, or S3 behind it, raised an error
        └── WriteError                             a write was refused, failed, or has no known outcome
"""

from __future__ import annotations

from lock_manager import SluiceError


class ContainerError(SluiceError, RuntimeError):
    """No Docker engine answers, or it cannot run the servers."""


class JvmError(SluiceError, RuntimeError):
    """The JVM did not start, or a commit was written in another Java thread than the one bound to the block."""


class JvmGoneError(JvmError):
    """The JVM has ended."""


class VersionTakenError(SluiceError, FileExistsError):
    """Another transaction has committed this version: java.nio's ``FileAlreadyExistsException``."""


class StoreError(SluiceError, RuntimeError):
    """An exception of the log store, or of S3 behind it.

    Attributes:
        reason: Simple name of the Java exception, or name of the guard's error.

    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class WriteError(StoreError):
    """A write that did not succeed, for another reason than a version that exists.

    Attributes:
        kind: ``refused`` by the guard, ``unknown`` to the log store, or ``failed``.

    """

    def __init__(self, kind: str, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.kind = kind
