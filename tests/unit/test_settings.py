"""Settings from keywords, environment and URL; an error shows the invalid value or the setting's name."""

from __future__ import annotations

import dataclasses

import pytest

from lock_manager import LockSettings, SettingsError, ZookeeperLockManager


@pytest.mark.parametrize(
    "hosts", ["a:2181", "a", "a:2181,b:2182, c:2183", "a:1/chroot/below", "[::1]:2181", "10.0.0.1:2181"]
)
def test_host_lists_are_accepted(hosts):
    assert LockSettings(zk_hosts=hosts).zk_hosts == hosts


@pytest.mark.parametrize(
    "hosts", ["", " ", "a:", "a:0", "a:99999", "a:x", "a,,b", "a b", "a:1/", "a:1//b", "a:1/../b", None]
)
def test_an_error_shows_a_malformed_host_list(hosts):
    with pytest.raises(SettingsError) as error:
        LockSettings(zk_hosts=hosts)
    assert repr(hosts) in str(error.value)
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    "setting",
    [
        {"timeout_seconds": -1},
        {"timeout_seconds": float("nan")},
        {"timeout_seconds": "5"},
        {"timeout_seconds": True},
        {"session_timeout_seconds": 0.5},
        {"session_timeout_seconds": 1e9},
        {"lock_root": "locks"},
        {"lock_root": "/"},
        {"lock_root": "/a//b"},
        {"lock_root": "/a/../b"},
    ],
)
def test_values_outside_their_range_are_refused(setting):
    (name,) = setting
    with pytest.raises(SettingsError, match=name):
        LockSettings(zk_hosts="a", **setting)


def test_keywords_win_over_the_environment():
    environ = {"SLUICE_ZK_HOSTS": "a:1", "SLUICE_TIMEOUT_SECONDS": "7", "SLUICE_JOB": "nightly", "SLUICE_OTHER": "x"}
    settings = LockSettings.from_env(environ, timeout_seconds=9.0)
    assert (settings.zk_hosts, settings.timeout_seconds, settings.job) == ("a:1", 9.0, "nightly")
    with pytest.raises(SettingsError, match="SLUICE_ZK_HOSTS"):
        LockSettings.from_env({})
    with pytest.raises(SettingsError, match="no ensemble given: set SLUICE_ZK_HOSTS"):
        LockSettings.from_env({"SLUICE_ZK_HOSTS": " "})
    assert LockSettings.from_env({"SLUICE_ZK_HOSTS": ""}, zk_hosts="a").zk_hosts == "a"
    with pytest.raises(SettingsError, match="'soon'"):
        LockSettings.from_env({"SLUICE_ZK_HOSTS": "a", "SLUICE_TIMEOUT_SECONDS": "soon"})


def test_settings_come_from_a_url():
    settings = LockSettings.from_url("zk://a:1,b:2/chroot?timeout_seconds=7&job=nightly%20load", app_id="x")
    assert settings == LockSettings(zk_hosts="a:1,b:2/chroot", timeout_seconds=7.0, job="nightly load", app_id="x")
    assert LockSettings.from_url("zookeeper://a:1?timeout_seconds=7") == LockSettings(zk_hosts="a:1", timeout_seconds=7)
    for malformed_url in ("http://a", "zk://a?color=red", "zk://a?zk_hosts=b", "zk://"):
        with pytest.raises(SettingsError):
            LockSettings.from_url(malformed_url)


def test_the_manager_takes_settings_and_keywords():
    base = LockSettings(zk_hosts="a:1", timeout_seconds=7)
    assert ZookeeperLockManager(base, job="x").settings == dataclasses.replace(base, job="x")
    with pytest.raises(SettingsError):
        ZookeeperLockManager("a:1", timeout_seconds=-1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        base.job = "y"


LOCK_URL = "s3-lease://lake/locks"


def test_a_lock_url_names_another_coordinator() -> None:
    settings = LockSettings.from_url(f"{LOCK_URL}?session_timeout_seconds=20", job="nightly")
    assert settings == LockSettings(lock_url=LOCK_URL, session_timeout_seconds=20, job="nightly")
    assert settings.coordinator == LOCK_URL
    assert (
        LockSettings.from_env({"SLUICE_LOCK_URL": f"{LOCK_URL}?session_timeout_seconds=20"}, job="nightly") == settings
    )
    conf = {"spark.sluice.lockUrl": LOCK_URL, "spark.sluice.sessionTimeoutSeconds": "20"}
    assert LockSettings.from_spark(conf, {}, job="nightly") == settings
    assert LockSettings.from_env({}, lock_url="zookeeper://a:1") == LockSettings(zk_hosts="a:1")


def test_an_explicit_coordinator_replaces_that_of_the_environment() -> None:
    both = {"SLUICE_LOCK_URL": LOCK_URL, "SLUICE_ZK_HOSTS": "a:1"}
    with pytest.raises(SettingsError, match="give one of them"):
        LockSettings.from_env(both)
    assert LockSettings.from_env(both, zk_hosts="b:1") == LockSettings(zk_hosts="b:1")
    assert LockSettings.from_env(both, lock_url=LOCK_URL).lock_url == LOCK_URL
    assert LockSettings.from_env({"SLUICE_LOCK_URL": " ", "SLUICE_ZK_HOSTS": "a:1"}).zk_hosts == "a:1"


def test_settings_are_given_another_coordinator() -> None:
    settings = LockSettings(zk_hosts="a:1", job="nightly")
    on_s3 = settings.of_coordinator(LOCK_URL)
    assert on_s3 == LockSettings(lock_url=LOCK_URL, job="nightly")
    assert on_s3.of_coordinator("a:1") == settings
    assert on_s3.of_coordinator("zookeeper://a:1/b") == LockSettings(zk_hosts="a:1/b", job="nightly")


def test_a_fallback_is_a_setting_of_zookeeper() -> None:
    settings = LockSettings.from_url("zookeeper://a:1?fallback=optimistic")
    assert settings == LockSettings(zk_hosts="a:1", fallback="optimistic")
    assert settings == LockSettings.from_env({"SLUICE_ZK_HOSTS": "a:1", "SLUICE_FALLBACK": "optimistic"})
    assert settings == LockSettings.from_spark(
        {"spark.sluice.zookeeper": "a:1", "spark.sluice.fallback": "optimistic"}, {}
    )
    environment = {"SLUICE_ZK_HOSTS": "a:1", "SLUICE_FALLBACK": "optimistic"}
    for url in ("zookeeper://b:1", "optimistic://", LOCK_URL):
        assert not LockSettings.from_env(environment, lock_url=url).fallback
    assert not LockSettings.from_env(environment, zk_hosts="b:1").fallback
    assert (settings.is_optimistic, settings.coordinator) == (True, "a:1, else optimistic")
    assert settings.of_coordinator("a:1") == LockSettings(zk_hosts="a:1")
    assert settings.of_coordinator(LOCK_URL) == LockSettings(lock_url=LOCK_URL)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"zk_hosts": "a:1", "fallback": "none"}, "fallback='none': must be 'optimistic'"),
        ({"lock_url": LOCK_URL, "fallback": "optimistic"}, f"is for ZooKeeper, but the locks are {LOCK_URL}"),
        ({"lock_url": "optimistic://", "fallback": "optimistic"}, "is for ZooKeeper, but the locks are optimistic://"),
    ],
)
def test_an_impossible_fallback_is_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        LockSettings(**settings)


def test_a_manager_of_locks_refuses_a_fallback() -> None:
    with pytest.raises(SettingsError, match=r"lock_manager\.connect"):
        ZookeeperLockManager(LockSettings(zk_hosts="a:1", fallback="optimistic"))


@pytest.mark.parametrize("url", ["s3-lease://", "s3-lease:///locks", "s3-lease://lake/../locks", "s3://lake/locks"])
def test_a_malformed_lock_url_is_refused(url: str) -> None:
    for settings in (lambda: LockSettings(lock_url=url), lambda: LockSettings.from_env({"SLUICE_LOCK_URL": url})):
        with pytest.raises(SettingsError, match="s3-lease://BUCKET/PREFIX"):
            settings()
