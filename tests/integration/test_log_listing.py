"""The guarded log store lists a log on S3 from a version on: the files of Delta's own store, without earlier pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest
from py4j.protocol import Py4JJavaError

from sluice.local.s3 import LocalS3
from soak.jvm import StoreJvm
from tests.support.gateway import Gateway, serve_gateway

VERSIONS = 30
PAGE = 10
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
    "after every file": f"{VERSIONS:020d}z",
}


class CountingGateway(Gateway):
    """Records the requests for lists."""

    lists: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        if "list-type" in parse_qs(urlsplit(self.path).query):
            self.lists.append(self.path)
        self.forward()


class UnusedGuard:
    """Fails when it is asked."""

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
class Lists:
    """Lists of the log by the guarded log store and by Delta's own."""

    jvm: StoreJvm

    def guarded(self, uri: str) -> list[tuple[str, int, int]]:
        return self._list(self.jvm._guarded, uri)

    def delta(self, uri: str) -> list[tuple[str, int, int]]:
        return self._list(self.jvm._jvm.io.delta.storage.S3SingleDriverLogStore(self.jvm._conf), uri)

    def _list(self, store: Any, uri: str) -> list[tuple[str, int, int]]:
        """Return names, lengths and times."""
        files = []
        listing = store.listFrom(self.jvm._jvm.org.apache.hadoop.fs.Path(uri), self.jvm._conf)
        while listing.hasNext():
            status = listing.next()
            # S3A invents the length and the time of a folder.
            time = 0 if status.isDirectory() else status.getModificationTime()
            files.append((status.getPath().toString(), status.getLen() * status.isFile(), time))
        return files


@pytest.fixture(scope="module")
def lists(s3: LocalS3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lists]:
    with serve_gateway(CountingGateway, s3.endpoint) as endpoint:
        settings = {name.removeprefix("spark.hadoop."): value for name, value in s3.spark_conf.items()}
        settings |= {"fs.s3a.endpoint": endpoint, "fs.s3a.paging.maximum": str(PAGE)}
        errors = tmp_path_factory.mktemp("jvm") / "jvm.log"
        jvm = StoreJvm(hadoop=settings, guard=UnusedGuard(), mode="required", conditional=True, stderr_path=errors)
        yield Lists(jvm)
        jvm.close()


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_list_equals_the_list_of_delta_s_own_store(lists: Lists, start: str) -> None:
    uri = f"s3a://lake/table/_delta_log/{start}"
    assert lists.guarded(uri) == lists.delta(uri)


@pytest.mark.parametrize("folder", ["file:/nowhere", "s3a://lake/nowhere"])
def test_a_missing_folder_is_reported_as_missing(lists: Lists, folder: str) -> None:
    with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
        lists.guarded(f"{folder}/_delta_log/{0:020d}.json")


def test_earlier_pages_of_a_list_are_not_requested(lists: Lists) -> None:
    uri = f"s3a://lake/table/_delta_log/{VERSIONS - 2:020d}."
    CountingGateway.lists.clear()
    lists.guarded(uri)
    assert len(CountingGateway.lists) == 1
    # The negative control: Delta's own store requests all pages.
    lists.delta(uri)
    assert len(CountingGateway.lists) > 1 + len(NAMES) // PAGE


def test_a_store_with_the_old_list_api_is_listed_with_it(lists: Lists, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"s3a://lake/table/_delta_log/{VERSIONS - 2:020d}."
    expected = lists.guarded(uri)
    conf = lists.jvm._jvm.org.apache.hadoop.conf.Configuration(lists.jvm._conf)
    conf.set("fs.s3a.list.version", "1")
    # With smaller pages moto lists the same folder twice.
    conf.set("fs.s3a.paging.maximum", "1000")
    conf.set("fs.s3a.impl.disable.cache", "true")
    monkeypatch.setattr(lists.jvm, "_conf", conf)
    CountingGateway.lists.clear()
    assert lists.guarded(uri) == expected
    assert CountingGateway.lists == []
