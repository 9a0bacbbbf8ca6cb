"""The files below a table's location, as data frames."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.delta.log_store import log_store
from writer_jobs.delta.session import session_with
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.table_log import LOG_FOLDER

# Of what changed, if that is kept: not of a version, but VACUUM removes it, too.
_CHANGE_DATA = "_change_data"
# Parts of checkpoints.
_SIDECARS = "_sidecars"
# Spark plans tasks by what files have in them, 4 MiB at least: 10,000 version files are 312 tasks. Here each core gets
# one part of them.
_A_TASK_FOR_EACH_CORE = {"spark.sql.files.maxPartitionBytes": str(1 << 60)}


def listed_files(spark: SparkSession, snapshot: Snapshot) -> DataFrame:
    """Return all files below a table's location that Delta's VACUUM would look at, as they are now.

    By what the store's listings say, without a request for any file.

    Args:
        spark: a session with the guarded log store.
        snapshot: of the table.

    Returns:
        ``path`` below the location, not percent-encoded, ``length`` in bytes, ``modified_ms`` since the epoch.

    """
    return _listed(spark, snapshot.location, own_folders(snapshot))


def own_folders(snapshot: Snapshot) -> list[str]:
    """Return how names of a table's own folders begin: its partitions', up to the equals sign, and change data's."""
    state = snapshot.state
    return [_CHANGE_DATA, *(f"{name}=" for name in (() if state is None else state.partition_folders))]


def listed_log(spark: SparkSession, location: str) -> DataFrame:
    """Return the files of a table's log, as they are now.

    Returns:
        ``name`` without its folder, ``length`` in bytes, ``modified_ms`` since the epoch.

    """
    found = _listed(spark, f"{location}/{LOG_FOLDER}", [_SIDECARS])
    # What else somebody keeps in it is not of the log.
    found = found.where(~F.col("path").contains("/") | F.col("path").startswith(f"{_SIDECARS}/"))
    return found.select(F.element_at(F.split("path", "/"), -1).alias("name"), "length", "modified_ms")


def session_for_many_files(spark: SparkSession) -> SparkSession:
    """Return a session that reads many files in as many tasks as there are cores."""
    return session_with(spark, _A_TASK_FOR_EACH_CORE)


def _listed(spark: SparkSession, folder: str, shown: list[str]) -> DataFrame:
    found = log_store(spark, "FileListing").of(spark._jsparkSession, folder, shown)  # noqa: SLF001
    return DataFrame(found, spark)
