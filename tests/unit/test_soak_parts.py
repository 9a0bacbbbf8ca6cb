"""Parts of the soak that need no writer process: options, the plan of faults, waits, the command line."""

from __future__ import annotations

import itertools
import re
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lock_manager import SettingsError
from lock_manager.settings import S3_LEASE
from soak.__main__ import app
from soak.command import choose_faults
from soak.controls import add_stamp
from soak.fault_context import OFFERS, PUT, advance, is_from, is_from_hold, is_takeover, wait_for
from soak.faults import CLASSES
from soak.options import ZOOKEEPER, SoakOptions
from soak.pairs import ALONE, GROUP, NEXT_HOLD, ONE_HOLD, Pair
from soak.plan import plan_faults
from soak.s3_faults import FaultGate
from soak.steps import steps_of
from soak.tcp_proxy import Link


def options(**changes: Any) -> SoakOptions:
    return SoakOptions(**{"output": Path("unused"), **changes})


def options_with_all_faults(**changes: Any) -> SoakOptions:
    """Return options with every class of faults that the coordinator allows."""
    image = {} if changes.get("coordinator") == S3_LEASE else {"zookeeper_image": "zookeeper:3.9.5"}
    possible = options(**image, **changes)
    return replace(possible, faults=possible.available_faults())


@pytest.mark.parametrize("coordinator", [ZOOKEEPER, S3_LEASE])
def test_each_seed_has_its_own_plan_with_all_classes(coordinator: str) -> None:
    classes = options_with_all_faults(coordinator=coordinator).faults

    def plan(seed: int) -> list[Pair]:
        chosen = options_with_all_faults(coordinator=coordinator, seed=seed)
        return list(itertools.islice(plan_faults(chosen, None), 2 * len(classes)))

    assert plan(1) == plan(1) != plan(2)
    for half in (plan(1)[: len(classes)], plan(1)[len(classes) :]):
        # Each class has its own turn, and may be a partner in others.
        names = [fault.name for pair in half for fault in (pair.first, pair.second) if fault is not None]
        assert set(names) == set(classes)
        assert {pair.meeting for pair in half} == {ALONE, NEXT_HOLD, ONE_HOLD}
    assert all(PUT not in (pair.point, pair.second_point) for pair in plan(1))


@pytest.mark.parametrize("changes", [{}, {"group_commits": False}, {"lock_during": "write"}, {"engine": "store"}])
def test_only_writers_that_make_group_commits_are_struck_in_groups(changes: dict[str, Any]) -> None:
    makes_groups = not changes
    plan = plan_faults(options_with_all_faults(**{"engine": "spark", **changes}), FaultGate(lambda *_: []))
    pairs = list(itertools.islice(plan, 500))
    assert any(pair.meeting == GROUP for pair in pairs) is makes_groups
    assert any(OFFERS in (pair.point, pair.second_point) for pair in pairs) is makes_groups


def test_faults_that_cannot_meet_strike_alone() -> None:
    plan = itertools.islice(plan_faults(options(faults=("expire-queued", "cut-s3")), None), 20)
    assert {(pair.second, pair.meeting) for pair in plan} == {(None, ALONE)}


@pytest.mark.parametrize(("engine", "unreachable"), [("store", {"checked"}), ("spark", {"checked", OFFERS, PUT})])
def test_without_the_guard_no_fault_waits_at_a_missing_point(engine: str, unreachable: set[str]) -> None:
    gate = FaultGate(lambda *_: [])

    def points(**changes: Any) -> set[str]:
        pairs = itertools.islice(plan_faults(options_with_all_faults(engine=engine, **changes), gate), 500)
        return {point for pair in pairs for point in (pair.point, pair.second_point)}

    assert points() - points(without="guard") == unreachable


def test_each_class_has_a_description_and_points() -> None:
    assert len(CLASSES) >= 8
    assert all(fault.description and fault.points for fault in CLASSES.values())


@pytest.mark.parametrize(("changes", "gap"), [({}, 5), ({"commits": 5000}, 50), ({"commits": 5000, "gap": 3}, 3)])
def test_faults_are_a_hundredth_of_the_commits_apart(changes: dict[str, int], gap: int) -> None:
    assert options(**changes).commits_between_faults == gap


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"faults": ("nonsense",)}, "choose none, all, or among"),
        ({"faults": ("s3-500",), "table": "s3a://b/t"}, "needs an embedded S3"),
        ({"faults": ("zookeeper-quorum",), "zookeeper": "h:1"}, "needs an embedded ZooKeeper"),
        ({"faults": ("zookeeper-leader-cut",)}, "needs --zookeeper-image"),
        ({"zookeeper": "h:1", "zookeeper_image": "i"}, "either --zookeeper or --zookeeper-image"),
        ({"faults": ("pause-both",), "writers": 1}, "at least two writers"),
        ({"faults": ("cut-zookeeper",), "coordinator": S3_LEASE}, "needs --coordinator zookeeper"),
        ({"faults": ("zookeeper-quorum",), "coordinator": S3_LEASE}, "needs --coordinator zookeeper"),
        ({"faults": ("lease-cut",)}, "needs --coordinator s3-lease"),
        ({"faults": ("lease-cut",), "coordinator": S3_LEASE, "table": "s3a://b/t"}, "needs an embedded S3"),
        ({"coordinator": S3_LEASE, "zookeeper": "h:1"}, "uses no ZooKeeper"),
        ({"coordinator": S3_LEASE, "session_seconds": 1.5}, "at least 2 seconds"),
        ({"coordinator": S3_LEASE, "without": "version"}, "only --coordinator zookeeper"),
        ({"coordinator": S3_LEASE, "engine": "spark", "without": "member-asks"}, "only --coordinator zookeeper"),
        ({"without": "lease-condition"}, "only --coordinator s3-lease"),
        ({"commits": None}, "either --commits or --minutes"),
        ({"minutes": 1.0}, "either --commits or --minutes"),
        ({"without": "member-asks"}, "only --engine spark at the gate"),
        ({"without": "member-asks", "engine": "spark", "group_commits": False}, "only --engine spark at the gate"),
    ],
)
def test_invalid_options_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        options(**changes)


def test_all_selects_the_classes_that_the_services_allow(capsys: pytest.CaptureFixture[str]) -> None:
    lease_classes = [name for name in CLASSES if name.startswith("lease-")]
    no_lease = f"left out: {', '.join(lease_classes)} (needs --coordinator s3-lease)\n"
    assert set(CLASSES) - set(choose_faults("all", options(zookeeper_image="i"))) == set(lease_classes)
    assert capsys.readouterr().err == no_lease
    assert set(CLASSES) - set(choose_faults("all", options())) == {"zookeeper-leader-cut", *lease_classes}
    assert capsys.readouterr().err == f"left out: zookeeper-leader-cut (needs --zookeeper-image)\n{no_lease}"
    zookeeper_classes = set(CLASSES) - set(choose_faults("all", options(coordinator=S3_LEASE)))
    assert zookeeper_classes >= {"cut-zookeeper", "expire-queued", "lost-zookeeper-reply", "zookeeper-quorum"}
    assert not zookeeper_classes.intersection(lease_classes)
    assert capsys.readouterr().err.count("\n") == 1
    classes_for_own_services = choose_faults("all", options(table="s3a://b/t", zookeeper="h:1"))
    assert re.search(
        r"^left out: cut-s3, s3-lost-reply, .* \(needs an embedded S3\)$", capsys.readouterr().err, re.MULTILINE
    )
    assert "pause-both" in classes_for_own_services
    assert not [name for name in classes_for_own_services if name.startswith(("s3-", "zookeeper-", "lease-"))]
    assert choose_faults("all", options(writers=1)) == choose_faults("none", options()) == ()
    assert choose_faults("s3-500, pause-both,s3-500", options()) == ("s3-500", "pause-both")


def test_a_wait_ends_with_its_event_or_its_time() -> None:
    results: list[Any] = []

    def wait(seconds: float) -> Any:
        results.append((yield from wait_for(seconds, is_from("writer-1", "ready"))))

    incident = advance(wait(60), None)
    for event in (None, {"event": "ready", "worker": "writer-2"}, {"event": "ended", "worker": "writer-1"}):
        assert incident is not None
        incident = advance(incident, event)
    assert incident is not None
    assert advance(incident, {"event": "ready", "worker": "writer-1"}) is None
    expired_wait = advance(wait(-1), None)
    assert expired_wait is not None
    assert advance(expired_wait, None) is None
    assert results == [{"event": "ready", "worker": "writer-1"}, None]


def test_a_takeover_is_a_later_hold_of_the_same_table() -> None:
    stop = {"event": "stopped", "worker": "writer-1", "table": "t", "token": 5}
    later_read = {"event": "read", "worker": "writer-2", "table": "t", "token": 6}
    matches = is_takeover(stop, "read")
    assert matches(later_read)
    assert matches({**later_read, "worker": "writer-1", "thread": 2})
    for changes in ({"token": 4}, {"table": "u"}, {"event": "holding"}, {"worker": "writer-1"}):
        assert not matches({**later_read, **changes})


def test_events_of_different_holds_are_distinguished() -> None:
    matches = is_from_hold({"event": "stopped", "worker": "writer-1", "token": 5}, "unknown", "ended")
    assert matches({"event": "unknown", "worker": "writer-1", "token": 5})
    assert matches({"event": "ended", "worker": "writer-1"})
    for changes in ({"token": 6}, {"worker": "writer-2"}, {"event": "refused"}):
        assert not matches({"event": "unknown", "worker": "writer-1", "token": 5, **changes})


def test_a_listing_of_intents_can_stall_on_zookeeper_only() -> None:
    assert set(steps_of("store", has_lease=False)) - set(steps_of("store", has_lease=True)) == {"stalled-listing"}
    assert set(steps_of("spark", has_lease=True)) - set(steps_of("store", has_lease=True)) == {"two-threads"}


def test_the_control_without_condition_stamps_like_the_store() -> None:
    line = add_stamp('{"commitInfo":{"txnId":"a"}}', '{"hold":"h","stamp":{"hold":"h"}}', "x")
    assert line == '{"commitInfo":{"sluice":{"hold":"h","attempt":"x"},"txnId":"a"}}'


def test_a_cut_link_delays_data_and_forgets_ended_connections(eventually: Callable[..., None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, Link(f"127.0.0.1:{server.getsockname()[1]}") as link:
        host, _, port = link.hosts.partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            connection, _ = server.accept()
            link.cut()
            client.sendall(b"late")
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connection.recv(10)
            link.mend()
            connection.settimeout(10)
            assert connection.recv(10) == b"late"
        assert connection.recv(10) == b""
        connection.close()
        eventually(lambda: not link._pairs)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--list-faults"], 0, "pause-both"),
        (["--faults", "nonsense"], 2, "choose none, all, or among"),
        (["--engine", "spark", "--without", "condition"], 2, "only --engine store"),
        (["--commits", "5", "--minutes", "1"], 2, "either --commits or --minutes"),
        (["--without", "luck"], 2, "luck"),
        (["--without", "identity"], 2, "only --engine spark"),
        (["--coordinator", "s3-lease", "--faults", "expire-queued"], 2, "needs --coordinator zookeeper"),
    ],
)
def test_the_command_exits_with_a_code_and_a_message(arguments: list[str], code: int, message: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code
    assert message in result.output
