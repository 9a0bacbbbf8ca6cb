"""A fair lock on Delta tables, granted by ZooKeeper. The package depends on kazoo only, not on Spark.

Use :class:`ZookeeperLockManager`, or :func:`connect` with the URL of a coordinator. Every error is a
:class:`SluiceError`; ``lock_manager.errors`` shows the tree.
"""

from lock_manager.coordinator import Hold, Intents, LockManager
from lock_manager.errors import (
    AdoptionMismatchError,
    ClosedError,
    EnsembleFormatError,
    EnsembleMismatchError,
    EnsembleRefusedError,
    EnsembleUnavailableError,
    LocalServerError,
    LockCancelledError,
    LockError,
    LockLostError,
    LockNotHeldError,
    LockOrderError,
    LockTimeoutError,
    NotAdoptedError,
    ResourceError,
    SettingsError,
    SluiceError,
    TableNameMismatchError,
    UnguardedError,
    UnsupportedLockError,
)
from lock_manager.managers import connect
from lock_manager.partitions import Partition, PartitionColumn, PartitionSchema
from lock_manager.queue_entry import QueueEntry
from lock_manager.resources import TableResource, canonical_table_uri
from lock_manager.scope import TableScope
from lock_manager.security import Security
from lock_manager.settings import LockSettings
from lock_manager.table_records.adoption import Adoption
from lock_manager.table_records.commit_stamp import commit_metadata
from lock_manager.zookeeper.held_lock import HeldLock
from lock_manager.zookeeper.inspector import LockInspector
from lock_manager.zookeeper.manager import ZookeeperLockManager
from lock_manager.zookeeper.session import SessionState

__all__ = [
    "Adoption",
    "AdoptionMismatchError",
    "ClosedError",
    "EnsembleFormatError",
    "EnsembleMismatchError",
    "EnsembleRefusedError",
    "EnsembleUnavailableError",
    "HeldLock",
    "Hold",
    "Intents",
    "LocalServerError",
    "LockCancelledError",
    "LockError",
    "LockInspector",
    "LockLostError",
    "LockManager",
    "LockNotHeldError",
    "LockOrderError",
    "LockSettings",
    "LockTimeoutError",
    "NotAdoptedError",
    "Partition",
    "PartitionColumn",
    "PartitionSchema",
    "QueueEntry",
    "ResourceError",
    "Security",
    "SessionState",
    "SettingsError",
    "SluiceError",
    "TableNameMismatchError",
    "TableResource",
    "TableScope",
    "UnguardedError",
    "UnsupportedLockError",
    "ZookeeperLockManager",
    "canonical_table_uri",
    "commit_metadata",
    "connect",
]
