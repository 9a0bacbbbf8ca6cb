"""The log on S3 is listed from a version on: the files that Delta's own store finds, no page before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest
from py4j.protocol import Py4JJavaError

from sluice.local.s3 import LocalS3
from soak.jvm import StoreJvm
from tests.support.gateway import Gateway, served

VERSIONS = 30
PAGE = 10
"""Of objects, which S3 gives in one answer: 1,000 are its most."""
NAMES = [f"{version:020d}.{kind}" for version in range(VERSIONS) for kind in ("crc", "json")] + [
    f"{20:020d}.checkpoint.parquet",
    "_last_checkpoint",
    f"_sidecars/{20:020d}.checkpoint.0000000001.0000000001.a.parquet",
    "_staged_commits/a.json",
]
STARTS = {
    "a version": f"{25:020d}.",
    "a file": f"{25:020d}.json",
    "the newest": f"{VERSIONS - 1:020d}.",
    "the first": f"{0:020d}.",
    "what is not there yet": f"{VERSIONS:020d}.json",
    "no version": "_last_checkpoint",
    "nothing": f"{VERSIONS:020d}z",
}


class Counting(Gateway):
    """Counts the answers of lists."""

    lists: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        if "list-type" in parse_qs(urlsplit(self.path).query):
            self.lists.append(self.path)
        self.forward()


class Passing:
    """A guard that nobody asks."""

    def check(self, request: str) -> str:
        raise AssertionError(request)


@pytest.fixture(scope="module")
def s3() -> Iterator[LocalS3]:
    with LocalS3() as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        running.create_bucket("lake")
        client = boto3.client("s3")
        for name in NAMES:
            client.put_object(Bucket="lake", Key=f"table/_delta_log/{name}", Body=name.encode())
        yield running


@pytest.fixture(scope="module")
def jvm(s3: LocalS3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreJvm]:
    with served(Counting, s3.endpoint) as endpoint:
        settings = {name.removeprefix("spark.hadoop."): value for name, value in s3.spark_conf.items()}
        settings |= {"fs.s3a.endpoint": endpoint, "fs.s3a.paging.maximum": str(PAGE)}
        errors = tmp_path_factory.mktemp("jvm") / "jvm.log"
        made = StoreJvm(hadoop=settings, guard=Passing(), mode="required", conditional=True, errors=errors)
        yield made
        made.close()


Listing = Callable[[Any, str], list[tuple[str, int, int]]]


@pytest.fixture
def listed(jvm: StoreJvm) -> Listing:
    """List with a store: names, lengths and times."""

    def of(store: Any, uri: str) -> list[tuple[str, int, int]]:
        found = []
        each = store.listFrom(jvm._jvm.org.apache.hadoop.fs.Path(uri), jvm._conf)
        while each.hasNext():
            status = each.next()
            # What S3A says of the length and the time of a folder is its own invention.
            time = 0 if status.isDirectory() else status.getModificationTime()
            found.append((status.getPath().toString(), status.getLen() * status.isFile(), time))
        return found

    return of


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_it_finds_what_delta_s_own_store_finds(jvm: StoreJvm, listed: Listing, start: str) -> None:
    uri = f"s3a://lake/table/_delta_log/{start}"
    delta = jvm._jvm.io.delta.storage.S3SingleDriverLogStore(jvm._conf)
    assert listed(jvm._guarded, uri) == listed(delta, uri)


@pytest.mark.parametrize("folder", ["file:/nowhere", "s3a://lake/nowhere"])
def test_a_folder_that_is_not_there_is_said_to_be_missing(jvm: StoreJvm, listed: Listing, folder: str) -> None:
    with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
        listed(jvm._guarded, f"{folder}/_delta_log/{0:020d}.json")


def test_pages_of_what_comes_before_are_not_asked_for(jvm: StoreJvm, listed: Listing) -> None:
    uri = f"s3a://lake/table/_delta_log/{VERSIONS - 2:020d}."
    Counting.lists.clear()
    listed(jvm._guarded, uri)
    assert len(Counting.lists) == 1
    # The negative control.
    listed(jvm._jvm.io.delta.storage.S3SingleDriverLogStore(jvm._conf), uri)
    assert len(Counting.lists) > 1 + len(NAMES) // PAGE


def test_a_store_that_cannot_list_in_this_way_is_listed_as_before(
    jvm: StoreJvm, listed: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"s3a://lake/table/_delta_log/{VERSIONS - 2:020d}."
    conf = jvm._jvm.org.apache.hadoop.conf.Configuration(jvm._conf)
    conf.set("fs.s3a.list.version", "1")
    # With smaller pages moto says the same folder twice.
    conf.set("fs.s3a.paging.maximum", "1000")
    conf.set("fs.s3a.impl.disable.cache", "true")
    expected = listed(jvm._guarded, uri)
    monkeypatch.setattr(jvm, "_conf", conf)
    Counting.lists.clear()
    assert listed(jvm._guarded, uri) == expected
    assert Counting.lists == []
