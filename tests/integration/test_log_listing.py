"""The guarded log store lists a log on S3 or on a local disk from a start version.

It lists the same files as Delta's own store, but does not request the pages of earlier versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest
from py4j.protocol import Py4JJavaError

from sluice.local.s3 import LocalS3
from soak.jvm import StoreJvm
from tests.support.gateway import Gateway, serve_gateway

VERSIONS = 30
PAGE_SIZE = 10
"""Objects in one response of S3, which sends up to 1,000."""
NAMES = [f"{version:020d}.{kind}" for version in range(VERSIONS) for kind in ("crc", "json")] + [
    f"{20:020d}.checkpoint.parquet",
    "_last_checkpoint",
    f"_sidecars/{20:020d}.checkpoint.0000000001.0000000001.a.parquet",
    "_staged_commits/a.json",
]
STARTS = {
    "version": f"{25:020d}.",
    "file": f"{25:020d}.json",
    "newest version": f"{VERSIONS - 1:020d}.",
    "version 0": f"{0:020d}.",
    "next version": f"{VERSIONS:020d}.json",
    "no version file": "_last_checkpoint",
    "after every version": f"{VERSIONS:020d}z",
}


class CountingGateway(Gateway):
    """Records the requests of the newer list API, which have the parameter ``list-type``."""

    list_requests: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        if "list-type" in parse_qs(urlsplit(self.path).query):
            self.list_requests.append(self.path)
        self.forward()


class UnusedGuard:
    """Fails if it is called."""

    def check(self, request: str) -> str:
        raise AssertionError(request)


@pytest.fixture(scope="module")
def s3() -> Iterator[LocalS3]:
    with LocalS3() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        server.create_bucket("lake")
        client = boto3.client("s3")
        for name in NAMES:
            client.put_object(Bucket="lake", Key=f"table/_delta_log/{name}", Body=name.encode())
        yield server


@dataclass
class LogLister:
    """Lists the log with the guarded log store or with Delta's own store."""

    jvm: StoreJvm

    def guarded(self, uri: str) -> list[tuple[str, int, int]]:
        return self._list(self.jvm._guarded, uri)

    def delta(self, uri: str) -> list[tuple[str, int, int]]:
        stores = self.jvm._jvm.io.delta.storage
        store = stores.S3SingleDriverLogStore if uri.startswith("s3a:") else stores.HDFSLogStore
        return self._list(store(self.jvm._conf), uri)

    def _list(self, store: Any, uri: str) -> list[tuple[str, int, int]]:
        """Return the path, length and modification time of each file."""
        files = []
        listing = store.listFrom(self.jvm._jvm.org.apache.hadoop.fs.Path(uri), self.jvm._conf)
        while listing.hasNext():
            status = listing.next()
            # S3A invents the length and the time of a folder.
            time = 0 if status.isDirectory() else status.getModificationTime()
            files.append((status.getPath().toString(), status.getLen() * status.isFile(), time))
        return files


@pytest.fixture(scope="module")
def lister(s3: LocalS3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogLister]:
    with serve_gateway(CountingGateway, s3.endpoint) as endpoint:
        settings = {name.removeprefix("spark.hadoop."): value for name, value in s3.spark_conf.items()}
        settings |= {"fs.s3a.endpoint": endpoint, "fs.s3a.paging.maximum": str(PAGE_SIZE)}
        errors = tmp_path_factory.mktemp("jvm") / "jvm.log"
        jvm = StoreJvm(hadoop=settings, guard=UnusedGuard(), mode="required", conditional=True, stderr_path=errors)
        yield LogLister(jvm)
        jvm.close()


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_list_equals_the_list_of_delta_s_own_store(lister: LogLister, start: str) -> None:
    uri = f"s3a://lake/table/_delta_log/{start}"
    assert lister.guarded(uri) == lister.delta(uri)


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_list_of_a_disk_equals_the_list_of_delta_s_own_store(lister: LogLister, start: str, tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    for name in (*NAMES, f".{20:020d}.json.crc", f"{28:020d}.json:Zone.Identifier", "a b%20c"):
        (log / name).parent.mkdir(parents=True, exist_ok=True)
        (log / name).write_text(name)
    (log / f"{29:020d}.link").symlink_to(log / NAMES[0])
    assert lister.guarded(f"{log.as_uri()}/{start}") == lister.delta(f"{log.as_uri()}/{start}")


@pytest.mark.parametrize("folder", ["file:/nowhere", "s3a://lake/nowhere"])
def test_a_missing_folder_is_reported_as_missing(lister: LogLister, folder: str) -> None:
    with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
        lister.guarded(f"{folder}/_delta_log/{0:020d}.json")


def test_earlier_pages_of_a_list_are_not_requested(lister: LogLister) -> None:
    uri = f"s3a://lake/table/_delta_log/{VERSIONS - 2:020d}."
    CountingGateway.list_requests.clear()
    lister.guarded(uri)
    assert len(CountingGateway.list_requests) == 1
    # The negative control: Delta's own store requests all pages.
    lister.delta(uri)
    assert len(CountingGateway.list_requests) > 1 + len(NAMES) // PAGE_SIZE


def test_a_store_with_the_old_list_api_is_listed_with_it(lister: LogLister, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"s3a://lake/table/_delta_log/{VERSIONS - 2:020d}."
    expected = lister.guarded(uri)
    conf = lister.jvm._jvm.org.apache.hadoop.conf.Configuration(lister.jvm._conf)
    conf.set("fs.s3a.list.version", "1")
    # With smaller pages moto lists the same folder twice.
    conf.set("fs.s3a.paging.maximum", "1000")
    conf.set("fs.s3a.impl.disable.cache", "true")
    monkeypatch.setattr(lister.jvm, "_conf", conf)
    CountingGateway.list_requests.clear()
    assert lister.guarded(uri) == expected
    assert CountingGateway.list_requests == []
