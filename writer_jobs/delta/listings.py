"""List the files below a table's location, as data frames."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.delta.java_classes import log_store
from writer_jobs.delta.session import session_with
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.table_log import LOG_FOLDER

# Folder of change data files. VACUUM deletes expired files in it, although its name begins with an underscore.
_CHANGE_DATA = "_change_data"
# Folder of the sidecar files of V2 checkpoints.
_SIDECARS = "_sidecars"
# Spark plans tasks by file sizes and counts each file as at least 4 MiB, so 10,000 version files make 312 tasks. With
# this setting each core gets one task.
_A_TASK_FOR_EACH_CORE = {"spark.sql.files.maxPartitionBytes": str(1 << 60)}


def list_files(spark: SparkSession, snapshot: Snapshot) -> DataFrame:
    """Return the files that exist below a table's location, if Delta's VACUUM considers them.

    They need not belong to a version. The store is listed, without a request for each file. The columns are ``path``
    below the location, not percent-encoded; ``length`` in bytes; ``modified_ms`` since the epoch.
    """
    return _listed(spark, snapshot.location, table_folder_prefixes(snapshot))


def table_folder_prefixes(snapshot: Snapshot) -> list[str]:
    """Return prefixes of a table's folder names: ``_change_data``, and ``column=`` for each partition column."""
    state = snapshot.state
    return [_CHANGE_DATA, *(f"{name}=" for name in (() if state is None else state.partition_folders))]


def list_log(spark: SparkSession, location: str) -> DataFrame:
    """Return the files that exist in a table's log.

    The columns are ``name`` without its folder; ``length`` in bytes; ``modified_ms`` since the epoch.
    """
    # Files in other folders are not part of the log.
    is_of_log = ~F.col("path").contains("/") | F.col("path").startswith(f"{_SIDECARS}/")
    files = _listed(spark, f"{location}/{LOG_FOLDER}", [_SIDECARS]).where(is_of_log)
    return files.select(F.element_at(F.split("path", "/"), -1).alias("name"), "length", "modified_ms")


def session_for_many_files(spark: SparkSession) -> SparkSession:
    """Return a session that reads many files with one task for each core."""
    return session_with(spark, _A_TASK_FOR_EACH_CORE)


def _listed(spark: SparkSession, folder: str, visible_names: list[str]) -> DataFrame:
    return DataFrame(log_store(spark, "FileListing").of(spark._jsparkSession, folder, visible_names), spark)  # noqa: SLF001
