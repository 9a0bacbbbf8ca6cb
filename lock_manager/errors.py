"""The base class of this project's errors, and the errors of the lock.

``writer_jobs.errors`` and ``sluice.errors`` define further subclasses.

::

    SluiceError
    ├── ResourceError (ValueError)                 a table's name or a partition that cannot be locked
    ├── SettingsError (ValueError)                 a setting outside its range, a malformed host list
    ├── EnsembleUnavailableError (ConnectionError) no answer from the coordinator in time
    ├── EnsembleRefusedError (PermissionError)     the coordinator refused the request, or is not trusted
    ├── EnsembleFormatError (RuntimeError)         the lock root was written by an unknown release
    ├── LocalServerError (RuntimeError)            an embedded ZooKeeper did not start, or does not run
    ├── ClosedError (RuntimeError)                 the manager was closed, or belongs to the parent of a fork
    ├── NoChrootError (RuntimeError)               the chroot of the connection string does not exist
    ├── MetricsError (RuntimeError)                metrics cannot be exported
    ├── PinError (ValueError)                      a pin that cannot be created, does not exist, or is no longer valid
    ├── NotStagedError (RuntimeError)              a write must run again, with the lock from its beginning
    └── LockError
        ├── LockTimeoutError (TimeoutError)        not acquired before the deadline
        ├── LockCancelledError (RuntimeError)      a waiting acquire was cancelled
        ├── ContenderGoneError (RuntimeError)      a waiting request was removed from the queue
        ├── LockOrderError (RuntimeError)          a nested acquire that could deadlock
        ├── UnguardedError (RuntimeError)          a lock on partitions without a commit guard
        ├── UnsupportedLockError (RuntimeError)    a lock that the coordinator does not have
        ├── LockNotHeldError (RuntimeError)        released without a hold, or a commit that no hold covers
        ├── AdoptionMismatchError (RuntimeError)   held, but another lock counts for the table
        │   ├── EnsembleMismatchError              acquired in another ensemble than the table's
        │   ├── TableNameMismatchError             acquired on another name than the table's
        │   └── NotAdoptedError                    other writers may rely on a lock that this one may do without
        └── LockLostError (ConnectionError)        the hold was lost: later work is not covered
            └── VersionTakenError                  without a lock, another writer has committed first

Each error has the attributes that a program needs, and can be pickled (it may cross a process pool). Its message names
the next step if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class SluiceError(Exception):
    """Base of every error of this project."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the state, because subclasses compute their message from keyword arguments."""
        return _restore, (type(self), self.args, self.__dict__)


def _restore(cls: type[SluiceError], args: tuple[Any, ...], state: dict[str, Any]) -> Exception:
    error = (OSError if issubclass(cls, OSError) else cls).__new__(cls)  # RuntimeError.__new__ creates no OSError
    error.args = args
    error.__dict__.update(state)
    return error


class ResourceError(SluiceError, ValueError):
    """A table's name is not a usable URI or path, or its partitions cannot be locked as requested."""


class PinError(SluiceError, ValueError):
    """A pin cannot be created, does not exist, or is no longer valid."""


class SettingsError(SluiceError, ValueError):
    """A setting is malformed or outside its range."""


@dataclass(frozen=True)
class Service:
    """The service of a coordinator, for messages.

    Attributes:
        name: Its name.
        unavailable: Advice for a service that does not answer.
        refused: Advice for a service that refuses a request.

    """

    name: str
    unavailable: str
    refused: str


#: The service of :class:`~lock_manager.zookeeper.manager.ZookeeperLockManager`.
ZOOKEEPER = Service(
    "ZooKeeper",
    "check the host list, the network path to the client port, and that a quorum is up",
    "a lock needs READ, CREATE, DELETE and WRITE below the lock root; check its ACL and this client's credentials",
)
#: The service of :class:`~lock_manager.s3_lease.manager.S3LeaseManager`.
S3 = Service(
    "S3",
    "check the endpoint, the region and the network path",
    "a lock needs s3:GetObject and s3:PutObject below the prefix and s3:ListBucket on the bucket; check the bucket and "
    "the credentials of this process",
)


class EnsembleUnavailableError(SluiceError, ConnectionError):
    """The coordinator did not answer in time.

    Attributes:
        hosts: Connection string of ZooKeeper, or URL of the coordinator.
        waited_seconds: Seconds waited for an answer.
        problem: Why the last attempt to connect failed; None if unknown.

    """

    def __init__(
        self,
        hosts: str,
        waited_seconds: float,
        request_name: str = "connect",
        *,
        problem: str | None = None,
        service: Service = ZOOKEEPER,
    ) -> None:
        cause = f"; the last attempt failed: {problem}" if problem else ""
        super().__init__(
            f"{service.name} at {hosts} did not answer within {waited_seconds:.1f} s ({request_name}{cause}): "
            f"{service.unavailable}"
        )
        self.hosts = hosts
        self.waited_seconds = waited_seconds
        self.problem = problem


_NOT_AUTHENTICATED = (
    "credentials are missing or wrong; check SLUICE_ZK_AUTH and its related settings (docs/security.md)"
)
_ADVICE = {
    "AuthFailedError": _NOT_AUTHENTICATED,
    "SessionClosedRequireSaslError": _NOT_AUTHENTICATED,
    "SASLException": "the SASL exchange does not end; most likely the server has no users: give it a JAAS file",
    "InvalidACLError": (
        "the ACL for new znodes is malformed, or it grants rights to this client's identity although the server has "
        "not authenticated the client; check SLUICE_ZK_ACL, and that the server verifies credentials or client "
        "certificates"
    ),
    "Kerberos": (
        "check kerberos_principal, the keytab or the ticket cache (klist; kinit renews it), and that the KDC has a "
        "principal for each name in the host list (docs/security.md)"
    ),
    "TLS": (
        "check tls_ca, tls_certificate, and that the host list uses the names in the servers' certificates "
        "(docs/security.md)"
    ),
}


class EnsembleRefusedError(SluiceError, PermissionError):
    """The coordinator rejected the request (permission, credentials), or TLS or Kerberos failed on either side.

    Attributes:
        hosts: Connection string of ZooKeeper, or URL of the coordinator.
        refusal: Name of the service's error, or ``TLS: `` or ``Kerberos: `` and the reason why the handshake failed.

    """

    def __init__(self, hosts: str, refusal: str, *, service: Service = ZOOKEEPER) -> None:
        advice = _ADVICE.get(refusal.partition(":")[0], service.refused)
        super().__init__(f"{service.name} at {hosts} refused a request ({refusal}): {advice}")
        self.hosts = hosts
        self.refusal = refusal


class EnsembleFormatError(SluiceError, RuntimeError):
    """The lock root was written by an unknown release."""


class LocalServerError(SluiceError, RuntimeError):
    """An embedded ZooKeeper did not start, or does not run."""


class ClosedError(SluiceError, RuntimeError):
    """The manager was closed, or belongs to the parent process of a fork."""


class NoChrootError(SluiceError, RuntimeError):
    """The chroot of the connection string does not exist."""

    def __init__(self) -> None:
        super().__init__(
            "the chroot of the connection string does not exist: create it, or correct the path after the hosts"
        )


class MetricsError(SluiceError, RuntimeError):
    """Metrics cannot be exported: a package is missing, the port is taken, or the folder does not exist."""


class NotStagedError(SluiceError, RuntimeError):
    """The commit of a write cannot wait for the lock: the write runs again, with the lock held from its beginning.

    The writer handles it, or the log store for an unchanged program; callers never see it.
    """


class LockError(SluiceError):
    """Base of the errors of a lock.

    Attributes:
        resource: Names of the tables and partitions, for people; for one whole table its canonical URI.

    """

    def __init__(self, message: str, *, resource: str) -> None:
        super().__init__(message)
        self.resource = resource


def describe_queue(count: int, holder: Mapping[str, Any] | None) -> str:
    """Return a phrase for a message: the number of contenders ahead and, if known, host, pid and job of the first."""
    if holder is None:
        return f"{count} ahead"
    process = f"{holder.get('host', 'an unknown host')} pid {holder.get('pid', '?')}"
    job = f", job {holder['job']}" if holder.get("job") else ""
    return f"{count} ahead; first in the queue is {process}{job}"


class LockTimeoutError(LockError, TimeoutError):
    """The lock was not acquired before the deadline. The entry in the queue is deleted.

    Attributes:
        timeout_seconds: Time limit of the acquire, in seconds.
        ahead: Number of contenders still ahead; None if the queue could not be read.
        holder: Data of the first contender (``host``, ``pid``, ``job`` and so on); None if it could not be read.

    """

    def __init__(
        self, *, resource: str, timeout_seconds: float, ahead: int | None, holder: dict[str, Any] | None
    ) -> None:
        queue = "" if ahead is None else f": {describe_queue(ahead, holder)}"
        super().__init__(
            f"lock on {resource} not acquired within {timeout_seconds:g} s{queue}. "
            "Wait longer (timeout_seconds), or check the job that holds the lock",
            resource=resource,
        )
        self.timeout_seconds = timeout_seconds
        self.ahead = ahead
        self.holder = holder


class LockCancelledError(LockError, RuntimeError):
    """A waiting acquire was cancelled by another thread, or by closing its manager."""

    def __init__(self, *, resource: str) -> None:
        super().__init__(f"waiting for the lock on {resource} was cancelled", resource=resource)


class ContenderGoneError(LockError, RuntimeError):
    """A waiting request with an offer has left the queue: a holder may have committed the offer for it.

    The writer handles it; callers never see it.
    """

    def __init__(self, *, resource: str) -> None:
        super().__init__(f"the request for {resource} is no longer in the queue", resource=resource)


class LockOrderError(LockError, RuntimeError):
    """A nested acquire could deadlock with another job or with this thread itself."""


class UnguardedError(LockError, RuntimeError):
    """Partitions cannot be locked without the commit guard: it keeps each commit within the locked partitions."""

    def __init__(self, *, resource: str) -> None:
        super().__init__(
            f"{resource}: partitions can be locked only where the commit guard checks each commit; "
            "call attach(spark) in a driver with spark.sluice.guard=required, or lock the whole table",
            resource=resource,
        )


class UnsupportedLockError(LockError, RuntimeError):
    """The coordinator has no such lock: ``optimistic://`` excludes no other writer."""

    def __init__(self, request: str, *, resource: str) -> None:
        super().__init__(
            f"{resource}: this work {request}, and optimistic:// has no locks; use zookeeper:// without a fallback, or "
            "s3-lease://, for it",
            resource=resource,
        )


class LockNotHeldError(LockError, RuntimeError):
    """A lock that is not held was released or used, or a commit is not covered by the locks of its thread."""


class AdoptionMismatchError(LockError, RuntimeError):
    """The acquired lock is not the one under which the table is adopted; nothing was written."""


class EnsembleMismatchError(AdoptionMismatchError):
    """The table is adopted by another ensemble than the one that granted the lock; nothing was written.

    Attributes:
        ensemble: UUID of the ensemble that granted the lock.
        adopted_by: UUID of the ensemble that has adopted the table.

    """

    def __init__(self, *, resource: str, ensemble: str, adopted_by: str) -> None:
        super().__init__(
            f"{resource} is adopted by ensemble {adopted_by}, but the lock was acquired in ensemble {ensemble} and "
            "excludes no other writer of the table: use the table's own ZooKeeper or lock URL, or move the table to "
            "this one with `sluice adopt TABLE --move` and this writer's --zookeeper or --lock-url",
            resource=resource,
        )
        self.ensemble = ensemble
        self.adopted_by = adopted_by


class TableNameMismatchError(AdoptionMismatchError):
    """The table is adopted under another name than the one that was locked; nothing was written.

    Two names lead to one table (an S3 access point and its bucket, two mounts), or the table was copied or moved.

    Attributes:
        adopted_name: Canonical URI under which the table is adopted. ``resource`` is the name that was locked.

    """

    def __init__(self, *, resource: str, adopted_name: str) -> None:
        super().__init__(
            f"{resource} is adopted under the name {adopted_name}, and a lock on another name excludes no writer: "
            "if both names lead to one table, use the adopted name; if the table was copied or moved here, give it its "
            f"own name with `sluice adopt {resource} --move` and this writer's --zookeeper or --lock-url",
            resource=resource,
        )
        self.adopted_name = adopted_name


class NotAdoptedError(AdoptionMismatchError):
    """A writer with ``fallback=optimistic`` writes only adopted tables; nothing was written.

    The adoption makes sure that no other writer relies on the lock.
    """

    def __init__(self, *, resource: str) -> None:
        super().__init__(
            f"{resource} is not adopted, so other writers may rely on its lock, and this writer goes on without it if "
            "ZooKeeper fails (fallback=optimistic): write the first version of a new table without a fallback, and run "
            "`sluice adopt TABLE --lock-url URL` with this writer's URL",
            resource=resource,
        )


def format_versions(commits: Mapping[str, tuple[int, ...]]) -> str:
    """Return the committed versions as text, with the tables if there are several."""
    return " and ".join(
        f"version {', '.join(map(str, versions))}" + (f" of {table}" if len(commits) > 1 else "")
        for table, versions in commits.items()
    )


class LockLostError(LockError, ConnectionError):
    """A lock was lost while it was held; it covers no later commit.

    Attributes:
        hold_id: Id of the lost hold.
        reason: How the loss was noticed.
        commits: Versions that were committed while the lock was held, by table. They are durable.

    """

    def __init__(
        self, *, resource: str, hold_id: str, reason: str, commits: Mapping[str, tuple[int, ...]] | None = None
    ) -> None:
        if commits:
            advice = f"committed before the loss: {format_versions(commits)}; check the table for later commits"
        else:
            advice = "check the table before writing again"
        super().__init__(f"lock on {resource} was lost ({reason}); {advice}", resource=resource)
        self.hold_id = hold_id
        self.reason = reason
        self.commits = dict(commits or {})


class VersionTakenError(LockLostError):
    """A commit without a lock was refused: another writer has committed since the table was read. Nothing was written.

    Attributes:
        version: The first version of another writer.

    """

    def __init__(self, *, resource: str, hold_id: str, version: int) -> None:
        reason = f"another writer has committed version {version} since the table was read"
        super().__init__(resource=resource, hold_id=hold_id, reason=reason)
        self.args = (f"a commit to {resource} without a lock was refused, because {reason}: write again",)
        self.version = version
