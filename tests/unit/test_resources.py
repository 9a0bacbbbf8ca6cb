"""One table, one lock: canonical URIs, keys and znodes."""

from __future__ import annotations

import hashlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lock_manager import ResourceError, TableResource, canonical_table_uri
from lock_manager.zookeeper.znodes import table_node


@pytest.mark.parametrize(
    ("spelling", "canonical"),
    [
        ("s3://Lake/a/b", "s3://lake/a/b"),
        ("S3A://lake/a/b/", "s3://lake/a/b"),
        ("s3n://lake//a///b", "s3://lake/a/b"),
        ("s3a://lake/a/./x/../b", "s3://lake/a/b"),
        ("s3a://lake", "s3://lake"),
        ("s3a://lake/", "s3://lake"),
        ("s3a://lake/Case/Stays", "s3://lake/Case/Stays"),
        ("s3a://lake/a%20b", "s3://lake/a%20b"),
        ("s3a://lake/a b#c?d=ü", "s3://lake/a b#c?d=ü"),
        ("hdfs://NN:8020/t", "hdfs://nn/t"),
        ("hdfs://nn:/t", "hdfs://nn/t"),
        ("hdfs://nn:9000/t", "hdfs://nn:9000/t"),
        ("abfss://Data@Account.dfs.core.windows.net/t/", "abfs://data@account.dfs.core.windows.net/t"),
        ("abfs://data@onelake.dfs.fabric.microsoft.com/t", "abfs://data@onelake.dfs.fabric.microsoft.com/t"),
        ("adl://Account.azuredatalakestore.net/t/", "adl://account.azuredatalakestore.net/t"),
        ("file:/no/such/t", "file:/no/such/t"),
        ("file:///no/such/t/", "file:/no/such/t"),
        ("file://localhost/no/such/t", "file:/no/such/t"),
        ("/no/such/../such/t", "file:/no/such/t"),
    ],
)
def test_a_spelling_has_one_canonical_uri(spelling, canonical):
    assert canonical_table_uri(spelling) == canonical
    assert canonical_table_uri(canonical) == canonical


@pytest.mark.parametrize(
    ("account", "cloud"),
    [
        ("account", "core.windows.net"),
        ("account", "core.chinacloudapi.cn"),
        ("account", "core.usgovcloudapi.net"),
        ("account", "core.cloudapi.de"),
        ("account.z07", "storage.azure.net"),
        ("account", "local.azurestack.external"),
        ("onelake", "fabric.microsoft.com"),
    ],
)
def test_both_azure_endpoints_of_an_account_are_one_store(account, cloud):
    names = {
        f"{scheme}://Data@{account.title()}.{endpoint}.{cloud}//a/./T/"
        for scheme in ("abfs", "abfss", "wasb", "WASBS")
        for endpoint in ("blob", "dfs", "BLOB")
    }
    assert {canonical_table_uri(name) for name in names} == {f"abfs://data@{account}.dfs.{cloud}/a/T"}


@pytest.mark.parametrize(
    ("uri", "other_uri"),
    [
        ("wasb://a@account.blob.core.windows.net/t", "wasb://b@account.blob.core.windows.net/t"),
        ("wasb://a@blob.dfs.core.windows.net/t", "wasb://a@account.dfs.core.windows.net/t"),
        ("abfs://a@account.blob.core.windows.net/blob", "abfs://a@account.blob.core.windows.net/dfs"),
        # These may be one table. Only its adoption can show it (docs/concepts.md).
        ("adl://account.azuredatalakestore.net/t", "abfs://gen1@account.dfs.core.windows.net/t"),
        ("wasb://a@lake.example.com/t", "wasb://a@account.blob.core.windows.net/t"),
    ],
)
def test_different_tables_have_different_uris(uri, other_uri):
    assert canonical_table_uri(uri) != canonical_table_uri(other_uri)


def test_an_account_named_like_an_endpoint_keeps_its_name():
    assert canonical_table_uri("wasb://a@blob.blob.core.windows.net/t") == "abfs://a@blob.dfs.core.windows.net/t"
    assert canonical_table_uri("s3a://a.blob.core.windows.net/t") == "s3://a.blob.core.windows.net/t"


def test_relative_paths_and_links_are_resolved(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    resolved_uri = f"file:{os.path.realpath(tmp_path / 'real')}/t"
    assert {canonical_table_uri(name) for name in ("./link/t", "link/t", tmp_path / "link" / "t")} == {resolved_uri}


@pytest.mark.parametrize(
    "name",
    [
        "", "  ", "flights", "db.flights", "s3a:///t", "s3a:t", "s3://lake/../t", "/../t", "file://host/t", "file:",
        " s3://lake/t", "s3://lake/t ", "s3a:lake/t", "dir:a/b", "a\nb/c",
    ],
)  # fmt: skip
def test_names_that_are_no_location_are_refused(name):
    with pytest.raises(ResourceError):
        canonical_table_uri(name)


def test_the_key_is_the_sha256_of_the_canonical_uri():
    resource = TableResource.of("s3a://lake/t")
    assert resource.key == hashlib.sha256(b"s3://lake/t").hexdigest()
    assert table_node("/locks/delta_tables", resource) == f"/locks/delta_tables/{resource.key}"
    assert TableResource.of(resource) is resource
    assert TableResource("S3A://Lake//t/") == resource


segments = st.lists(st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S"), exclude_characters="/")))


@settings(deadline=None)
@given(segments=segments, scheme=st.sampled_from(["s3", "s3a", "s3n", "S3A"]), slashes=st.integers(1, 3))
def test_canonical_uris_ignore_scheme_slashes_and_dots(segments, scheme, slashes):
    parts = [segment for segment in segments if segment not in ("", ".", "..")]
    spelling = f"{scheme}://Lake" + "".join("/" * slashes + part + "/." for part in parts)
    canonical = canonical_table_uri(spelling)
    assert canonical == "s3://lake" + "".join("/" + part for part in parts)
    assert canonical_table_uri(canonical) == canonical
