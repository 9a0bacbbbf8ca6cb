"""The output folder of a demo, its store, and its coordinator."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from lock_manager.settings import S3_LEASE
from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.audit.log_folder import s3_client
from sluice.demo.hdfs_folder import HdfsFolder
from sluice.errors import OutputFolderError
from sluice.local.chosen_s3 import ChosenS3
from sluice.local.s3 import LocalS3, no_proxy_variables

_MARKER = ".sluice-demo"
_BUCKET = "lake"
# Prefix of the locks in the store.
_LOCKS = "locks"


def clear_output(folder: Path) -> Path:
    """Create the output folder, or delete an earlier demo's logs, sources and tables in it. Return its absolute path.

    The report and the pictures of an earlier demo stay until they are overwritten, so a demo that fails keeps them.

    Raises:
        OutputFolderError: The folder contains other files, or cannot be created.

    """
    folder = folder.resolve()
    try:
        if folder.exists() and any(folder.iterdir()):
            if not (folder / _MARKER).is_file():
                raise OutputFolderError(f"{folder} is not empty, and not from an earlier demo: choose another --output")
            for path in (folder / name for name in ("logs", "source", "tables")):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARKER).touch()
    except OSError as error:
        raise OutputFolderError(f"{folder} cannot be used: {error.strerror}; choose another --output") from error
    return folder


@dataclass(frozen=True)
class Store:
    """The store of a demo's tables.

    Attributes:
        root: URI below which tables are created.
        description: Description of the location for people.
        environment: Environment variables that configure writers and readers.
        spark_conf: Spark properties that configure writers.
        bucket: ``BUCKET`` or ``BUCKET/PREFIX`` of an S3; None elsewhere.
        hdfs: Folder on an HDFS; None elsewhere.

    """

    root: str
    description: str
    environment: Mapping[str, str] = field(default_factory=dict)
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    bucket: str | None = None
    hdfs: HdfsFolder | None = None

    def table(self, name: str) -> str:
        """Return the URI of a table."""
        return f"{self.root}/{name}"

    def readable_table(self, name: str, folder: Path) -> str:
        """Return the URI that ``deltalake`` reads: the table's, or that of a copy in a folder for a table on HDFS."""
        return self.table(name) if self.hdfs is None else f"file:{self.hdfs.copy(name, folder)}"


@contextmanager
def open_store(kind: str, folder: Path, user_store: ChosenS3 | HdfsFolder | None = None) -> Iterator[Store]:
    """Yield a store: the disk if ``kind`` is ``local``, else ``user_store``, or an embedded S3 if that is None."""
    if isinstance(user_store, HdfsFolder):
        with user_store:
            yield Store(user_store.root, user_store.root, hdfs=user_store)
        return
    if kind == "local":
        yield Store(f"file:{folder / 'tables'}", str(folder / "tables"))
        return
    if user_store is not None:
        with set_environment(user_store.environment), user_store as s3:
            description = f"s3a://{s3.root} on {s3.endpoint or 'AWS'}"
            yield Store(f"s3a://{s3.root}", description, s3.environment, s3.spark_conf, s3.root)
        return
    with LocalS3(log=folder / "logs" / "s3.log") as s3, set_environment(no_proxy_variables()):
        s3.create_bucket(_BUCKET)
        description = f"s3a://{_BUCKET} on {s3.endpoint}"
        yield Store(f"s3a://{_BUCKET}", description, s3.environment, s3.spark_conf, _BUCKET)


@contextmanager
def set_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a block: boto3 and ``deltalake`` read proxies and credentials from there."""
    previous = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def open_services(
    kind: str,
    folder: Path,
    console: Console,
    user_store: ChosenS3 | HdfsFolder | None = None,
    *,
    locks_on_s3: bool = False,
) -> Iterator[tuple[Store, list[str]]]:
    """Start the store, and ZooKeeper unless the locks are on S3. Yield the store and a job's options for the lock."""
    with ExitStack() as stack:
        with console.status("Starting the embedded servers …"):
            store = stack.enter_context(open_store(kind, folder, user_store))
            if locks_on_s3:
                url = f"{S3_LEASE}://{store.bucket}/{_LOCKS}"
                arguments, place = ["--lock-url", url], f"Locks go to {url}"
            else:
                hosts = stack.enter_context(EmbeddedZooKeeper()).hosts
                arguments, place = ["--zookeeper", hosts], f"ZooKeeper serves on {hosts}"
        console.print(f"{place}, tables go to {store.description}", soft_wrap=True)
        yield store, arguments


def download_tables(store: Store, folder: Path) -> None:
    """Copy the tables from an S3 to a folder. Tables on HDFS were copied there to be read."""
    if store.bucket is None:
        return
    client = s3_client(store.environment)
    bucket, _, folder_key = store.bucket.partition("/")
    # The slash excludes folders whose names only begin with this one.
    prefix = f"{folder_key}/" if folder_key else ""
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for entry in page.get("Contents", ()):
            name = entry["Key"].removeprefix(prefix)
            # With a slash at the end it is S3A's marker of a folder.
            if not name.endswith("/") and not name.startswith(f"{_LOCKS}/"):
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                client.download_file(bucket, entry["Key"], str(path))
