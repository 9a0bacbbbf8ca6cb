"""Everything that this project raises on purpose.

::

    SluiceError
    ├── ResourceError (ValueError)                 a table's name that is no usable URI or path
    ├── SettingsError (ValueError)                 a setting outside its range, a malformed host list
    ├── EnsembleUnavailableError (ConnectionError) no answer from ZooKeeper in time
    ├── EnsembleRefusedError (PermissionError)     ZooKeeper answered, and said no, or is not trusted
    ├── EnsembleFormatError (RuntimeError)         the lock root was written by an unknown release
    ├── LocalServerError (RuntimeError)            the embedded ZooKeeper could not be started
    ├── ClosedError (RuntimeError)                 the manager was closed, or belongs to the parent of a fork
    ├── NoChrootError (RuntimeError)               the chroot of the connection string does not exist
    ├── MetricsError (RuntimeError)                metrics cannot be served
    ├── PinError (ValueError)                      a pin that cannot be made, is not there, or no longer holds
    ├── NotStagedError (RuntimeError)              a write has to be done again, with the lock from its beginning
    └── LockError
        ├── LockTimeoutError (TimeoutError)        not acquired before the deadline
        ├── LockCancelledError (RuntimeError)      a waiting acquire was cancelled
        ├── LockOrderError (RuntimeError)          a nested acquire that could deadlock
        ├── UnguardedError (RuntimeError)          partitions are asked for, and no guard would keep to them
        ├── LockNotHeldError (RuntimeError)        released or used, but not held
        ├── AdoptionMismatchError (RuntimeError)   held, but not the lock that counts for the table
        │   ├── EnsembleMismatchError              it is of an ensemble that is not the table's
        │   └── TableNameMismatchError             it is of a name that is not the table's
        └── LockLostError (ConnectionError)        held once, and lost: work since then is not covered

Each one carries what a program needs as attributes, survives pickling (it may cross a process pool), and its message
says what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class SluiceError(Exception):
    """Base of every error raised on purpose by this project."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by state: subclasses compute their message from keyword arguments."""
        return _restore, (type(self), self.args, self.__dict__)


def _restore(cls: type[SluiceError], args: tuple[Any, ...], state: dict[str, Any]) -> SluiceError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ResourceError(SluiceError, ValueError):
    """A table's name is no URI or path that could be locked."""


class PinError(SluiceError, ValueError):
    """A pin cannot be made, is not there, or no longer holds."""


class SettingsError(SluiceError, ValueError):
    """A setting is malformed or outside its range."""


class EnsembleUnavailableError(SluiceError, ConnectionError):
    """ZooKeeper did not answer in time.

    Attributes:
        hosts: the connection string that was tried.
        waited_seconds: how long.
        problem: what the last attempt to connect met, if that is known.

    """

    def __init__(
        self, hosts: str, waited_seconds: float, doing: str = "connect", *, problem: str | None = None
    ) -> None:
        last = f"; the last attempt met: {problem}" if problem else ""
        super().__init__(
            f"ZooKeeper at {hosts} did not answer within {waited_seconds:.1f} s ({doing}{last}): "
            "check the host list, the network path to the client port, and that a quorum is up"
        )
        self.hosts = hosts
        self.waited_seconds = waited_seconds
        self.problem = problem


_NO_PERMISSION = (
    "a lock needs READ, CREATE, DELETE and WRITE below the lock root; look at its ACL and at this client's credentials"
)
_NOT_ACCEPTED = (
    "it demands credentials that this client did not give, or that are wrong; look at SLUICE_ZK_AUTH and its "
    "neighbours (docs/security.md)"
)
_ADVICE = {
    "AuthFailedError": _NOT_ACCEPTED,
    "SessionClosedRequireSaslError": _NOT_ACCEPTED,
    "SASLException": "its SASL exchange comes to no end, most likely for it has no users (a JAAS file) to compare with",
    "InvalidACLError": (
        "the ACL for new znodes is malformed, or is for whom the server knows this client as, and it knows nobody; "
        "look at SLUICE_ZK_ACL, and whether the server verifies credentials or client certificates at all"
    ),
    "TLS": (
        "look at tls_ca, at tls_certificate, and whether the host list has the names that are in the servers' "
        "certificates (docs/security.md)"
    ),
}


class EnsembleRefusedError(SluiceError, PermissionError):
    """ZooKeeper rejected the request (permission, credentials), or TLS verification failed on either side.

    Attributes:
        hosts: the connection string.
        refusal: name of ZooKeeper's error, or ``TLS: `` and what the handshake failed on.

    """

    def __init__(self, hosts: str, refusal: str) -> None:
        advice = _ADVICE.get(refusal.partition(":")[0], _NO_PERMISSION)
        super().__init__(f"ZooKeeper at {hosts} refused a request ({refusal}): {advice}")
        self.hosts = hosts
        self.refusal = refusal


class EnsembleFormatError(SluiceError, RuntimeError):
    """The lock root holds something that this release does not know."""


class LocalServerError(SluiceError, RuntimeError):
    """The embedded ZooKeeper could not be started."""


class ClosedError(SluiceError, RuntimeError):
    """The manager was closed, or was made before a fork by the parent process."""


class NoChrootError(SluiceError, RuntimeError):
    """There is no node at all above the lock root."""

    def __init__(self) -> None:
        super().__init__("the chroot of the connection string does not exist: create it")


class MetricsError(SluiceError, RuntimeError):
    """Metrics cannot be served: no prometheus-client, a port that is taken, a folder that is not there."""


class NotStagedError(SluiceError, RuntimeError):
    """A write whose commit cannot be separated from its work: it is done again, with the lock held from its beginning.

    The writer handles it; its callers never see it.
    """


class LockError(SluiceError):
    """Base of what can happen to a lock.

    Attributes:
        resource: canonical URI of the table.

    """

    def __init__(self, message: str, *, resource: str) -> None:
        super().__init__(message)
        self.resource = resource


def describe_ahead(ahead: int, holder: dict[str, Any] | None) -> str:
    """Say how many contenders are ahead, and who is the first of them, by what it says of itself."""
    if holder is None:
        return f"{ahead} ahead"
    who = f"{holder.get('host', 'an unknown host')} pid {holder.get('pid', '?')}"
    job = f", job {holder['job']}" if holder.get("job") else ""
    return f"{ahead} ahead; first in the queue is {who}{job}"


class LockTimeoutError(LockError, TimeoutError):
    """The lock was not acquired before the deadline; nothing of the attempt is left in the queue.

    Attributes:
        timeout_seconds: the deadline that was given.
        ahead: how many contenders were still ahead, or None if that could not be read.
        holder: what the first of them says of itself, or None if that could not be read.

    """

    def __init__(
        self, *, resource: str, timeout_seconds: float, ahead: int | None, holder: dict[str, Any] | None
    ) -> None:
        who = "" if ahead is None else f": {describe_ahead(ahead, holder)}"
        super().__init__(
            f"lock on {resource} not acquired within {timeout_seconds:g} s{who}. "
            "Wait longer (timeout_seconds) or look at that job",
            resource=resource,
        )
        self.timeout_seconds = timeout_seconds
        self.ahead = ahead
        self.holder = holder


class LockCancelledError(LockError, RuntimeError):
    """A waiting acquire was cancelled by another thread, or its manager was closed."""

    def __init__(self, *, resource: str) -> None:
        super().__init__(f"waiting for the lock on {resource} was cancelled", resource=resource)


class LockOrderError(LockError, RuntimeError):
    """A nested acquire that could deadlock, with another job or with this thread itself."""


class UnguardedError(LockError, RuntimeError):
    """Partitions were asked for where no commit guard is: holders of different ones would race for one version."""

    def __init__(self, *, resource: str) -> None:
        super().__init__(
            f"{resource}: partitions can be locked only where the commit guard sees what is committed: "
            "attach(spark) with spark.sluice.guard=required, or lock the table",
            resource=resource,
        )


class LockNotHeldError(LockError, RuntimeError):
    """A lock was released or used that is not held."""


class AdoptionMismatchError(LockError, RuntimeError):
    """A lock was acquired that is not the one under which the table is adopted; nothing was written."""


class EnsembleMismatchError(AdoptionMismatchError):
    """The lock was acquired, but the table is adopted by another ensemble, whose lock counts; nothing was written.

    Attributes:
        ensemble: UUID of the ensemble that gave the lock.
        adopted_by: UUID of the ensemble that has adopted the table.

    """

    def __init__(self, *, resource: str, ensemble: str, adopted_by: str) -> None:
        super().__init__(
            f"{resource} is adopted by ensemble {adopted_by}, and the lock that was acquired is of ensemble "
            f"{ensemble}, which excludes nobody there: name the table's own ZooKeeper, or move the table to this one "
            "with `sluice adopt TABLE --zookeeper HOSTS --move`",
            resource=resource,
        )
        self.ensemble = ensemble
        self.adopted_by = adopted_by


class TableNameMismatchError(AdoptionMismatchError):
    """A lock was acquired, but the table is adopted under another name, whose lock alone counts; nothing was written.

    Two names lead to one table (an S3 access point and its bucket, two mounts), or the table was copied or moved.

    Attributes:
        adopted_name: canonical URI under which the table is adopted; ``resource`` is that of the lock.

    """

    def __init__(self, *, resource: str, adopted_name: str) -> None:
        super().__init__(
            f"{resource} is adopted under the name {adopted_name}, and a lock on another name excludes nobody there: "
            f"if both are one table, use that name; if this one was copied or moved here, give it its own name with "
            f"`sluice adopt {resource} --zookeeper HOSTS --move`",
            resource=resource,
        )
        self.adopted_name = adopted_name


def versions_of(commits: Mapping[str, tuple[int, ...]]) -> str:
    """Name versions by table, for a sentence about what is durable; the table only if there are several."""
    each = [
        f"version {', '.join(map(str, versions))}" + (f" of {table}" if len(commits) > 1 else "")
        for table, versions in commits.items()
    ]
    return " and ".join(each)


class LockLostError(LockError, ConnectionError):
    """A lock that was held has been lost; whatever was not committed before is not covered by it.

    Attributes:
        hold_id: of the hold that was lost.
        reason: how the loss showed.
        commits: by table, the versions that the block committed while the lock was still held. They are durable.

    """

    def __init__(
        self, *, resource: str, hold_id: str, reason: str, commits: Mapping[str, tuple[int, ...]] | None = None
    ) -> None:
        if commits:
            durable = f"committed before: {versions_of(commits)}; anything else is unknown"
        else:
            durable = "look into the table before writing again"
        super().__init__(f"lock on {resource} was lost ({reason}); {durable}", resource=resource)
        self.hold_id = hold_id
        self.reason = reason
        self.commits = dict(commits or {})
