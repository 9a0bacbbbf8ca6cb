"""The surroundings of a load: its output folder, and the services that it uses."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.audit.log_folder import s3_client
from sluice.errors import OutputFolderError
from sluice.local.chosen_s3 import ChosenS3
from sluice.local.s3 import LocalS3, past_proxies

_MARKER = ".sluice-demo"
_WORK = ("logs", "source", "tables")
_BUCKET = "lake"


def clear_output(folder: Path) -> Path:
    """Make an output folder without the logs and tables of an earlier demo, and return its absolute path.

    The earlier report and pictures stay until they are overwritten: a demo that fails leaves them.

    Raises:
        OutputFolderError: it holds other things, or cannot be made.

    """
    folder = folder.resolve()
    try:
        if folder.exists() and any(folder.iterdir()):
            if not (folder / _MARKER).is_file():
                raise OutputFolderError(f"{folder} is not empty, and not from an earlier demo: choose another --output")
            for name in _WORK:
                _remove(folder / name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARKER).touch()
    except OSError as error:
        raise OutputFolderError(f"{folder} cannot be used: {error.strerror}") from error
    return folder


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Store:
    """Where tables go.

    Attributes:
        root: URI below which tables are made.
        where: the same for people.
        environment: variables with which writers and readers find it.
        spark_conf: Spark properties with which writers find it.
        bucket: of an S3, with a prefix if tables are below one; None on disk.

    """

    root: str
    where: str
    environment: Mapping[str, str] = field(default_factory=dict)
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    bucket: str | None = None

    def table(self, name: str) -> str:
        """Return a table's URI."""
        return f"{self.root}/{name}"


@contextmanager
def open_store(kind: str, folder: Path, chosen: ChosenS3 | None = None) -> Iterator[Store]:
    """Start an embedded S3 with a bucket (``s3``), or use the one that was chosen, or the disk (``local``)."""
    if kind == "local":
        yield Store(f"file:{folder / 'tables'}", str(folder / "tables"))
        return
    if chosen is not None:
        with _environment(chosen.environment), chosen:
            where = f"s3a://{chosen.root} on {chosen.endpoint or 'AWS'}"
            yield Store(f"s3a://{chosen.root}", where, chosen.environment, chosen.spark_conf, chosen.root)
        return
    with LocalS3(log=folder / "logs" / "s3.log") as s3, _environment(past_proxies()):
        s3.create_bucket(_BUCKET)
        where = f"s3a://{_BUCKET} on {s3.endpoint}"
        yield Store(f"s3a://{_BUCKET}", where, s3.environment, s3.spark_conf, _BUCKET)


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Have variables in the environment, where boto3 and ``deltalake`` look for proxies and credentials."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def open_services(
    kind: str, folder: Path, console: Console, chosen: ChosenS3 | None = None
) -> Iterator[tuple[Store, str]]:
    """Start what a demo needs; yield the store and the ensemble's connection string."""
    with ExitStack() as stack:
        with console.status("Starting the embedded servers …"):
            store = stack.enter_context(open_store(kind, folder, chosen))
            hosts = stack.enter_context(EmbeddedZooKeeper()).hosts
        console.print(f"ZooKeeper serves on {hosts}, tables go to {store.where}", soft_wrap=True)
        yield store, hosts


def keep_tables(store: Store, folder: Path) -> None:
    """Bring every table of an S3 to disk; tables on disk are there already."""
    if store.bucket is None:
        return
    client = s3_client(store.environment)
    bucket, _, prefix = store.bucket.partition("/")
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for entry in page.get("Contents", ()):
            path = folder / entry["Key"].removeprefix(prefix).lstrip("/")
            if not entry["Key"].endswith("/"):  # S3A marks folders so
                path.parent.mkdir(parents=True, exist_ok=True)
                client.download_file(bucket, entry["Key"], str(path))
