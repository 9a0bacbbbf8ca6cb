"""What a soak's command makes of what it found: the exit, the sentence and ``verdict.json``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from soak import command
from soak.evidence import Evidence
from soak.options import SoakOptions
from soak.run import Progress
from tests.support.soak_history import event, sound


class OverSoak:
    """A soak that is over, and left this behind."""

    left: Evidence

    def __init__(self, _: SoakOptions) -> None:
        counts = Counter(event["event"] for event in self.left.history)
        chances = Counter({"pause-both": 4, "s3-403": 2})
        self.progress = Progress(counts=counts, faults=Counter(["pause-both"]), chances=chances)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start_writers(self) -> None:
        pass

    def run(self, show: Callable[[Progress], None]) -> None:
        show(self.progress)

    def evidence(self) -> Evidence:
        return self.left


@pytest.fixture
def soaked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., bool]:
    def run(faults: tuple[str, ...], left: Evidence, *, as_json: bool = True, **more: Any) -> bool:
        monkeypatch.setattr(OverSoak, "left", left, raising=False)
        monkeypatch.setattr(command, "Soak", OverSoak)
        return command.run_soak(SoakOptions(faults=faults, output=tmp_path), as_json=as_json, **more)

    return run


def test_a_class_that_was_named_and_never_struck_is_a_failure(
    soaked: Callable[..., bool], capsys: pytest.CaptureFixture[str]
) -> None:
    assert soaked(("pause-both",), sound(), must_strike=True)
    assert capsys.readouterr().err == ""
    assert not soaked(("pause-both", "s3-500"), sound(), must_strike=True)
    said = capsys.readouterr()
    assert said.err.startswith("s3-500 never struck, and so nothing is known about it: ask for more --commits")
    assert said.err.count("\n") == 1
    assert json.loads(said.out)["violations"] == 0


def test_of_all_classes_some_may_not_come_up(soaked: Callable[..., bool]) -> None:
    assert soaked(("pause-both", "s3-500"), sound(), must_strike=False)


FAULTS = ("pause-both", "s3-403", "s3-500")


def after_a_step() -> Evidence:
    """Three holds of first threads, one of a second thread; one step, which is as it must be."""
    evidence = sound()
    fine = {"again": "same", "order": "LockOrderError", "connected": True, "lost": False}
    step = event("step", 2.15, worker="writer-1", incarnation=1, token=9, kind="two-managers", **fine)
    second = event("holding", 3.0, worker="writer-1", incarnation=1, token=11, thread=2)
    return replace(evidence, history=[*evidence.history, step, second])


def test_it_is_said_how_often_each_class_struck_and_each_step_was_taken_of_how_many_chances(
    soaked: Callable[..., bool], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert soaked(FAULTS, after_a_step())
    said = json.loads(capsys.readouterr().out)
    assert said["fault_shares"] == {
        "pause-both": {"times": 1, "chances": 4, "share": 0.25},
        "s3-403": {"times": 0, "chances": 2, "share": 0.0},
        "s3-500": {"times": 0, "chances": 0, "share": None},
    }
    assert said["step_shares"] == {
        "two-managers": {"times": 1, "chances": 3, "share": 0.333},
        "stalled-listing": {"times": 0, "chances": 3, "share": 0.0},
        "second-block": {"times": 0, "chances": 0, "share": None},
    }
    assert (said["faults"], said["did_not_strike"]) == ({"pause-both": 1}, ["s3-403", "s3-500"])
    assert json.loads((tmp_path / "verdict.json").read_text())["fault_shares"] == said["fault_shares"]


def test_the_shares_are_shown_to_people_too(soaked: Callable[..., bool], capsys: pytest.CaptureFixture[str]) -> None:
    assert soaked(FAULTS, after_a_step(), as_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["fault", "pause-both", "1", "of", "4", "(25%)"] in lines
    assert ["fault", "s3-403", "0", "of", "2", "(0%)"] in lines
    assert ["step", "two-managers", "1", "of", "3", "(33%)"] in lines
    assert ["had", "no", "chance", "in", "so", "short", "a", "run:", "s3-500"] in lines


def after_pairs() -> Evidence:
    """Two pairs that met, one that did not, and a fault alone."""
    evidence = sound()
    one = {"first": "kill-both", "second": "break-lock", "meeting": "next hold"}
    pairs = [
        event("pair", 3.0, **one, met=True),
        event("pair", 4.0, **one, met=False),
        event("pair", 5.0, first="break-lock", second="s3-500", meeting="one hold", met=True),
        event("pair", 6.0, first="s3-500", second=None, meeting="alone", met=True),
    ]
    return replace(evidence, history=[*evidence.history, *pairs])


def test_it_is_reported_how_often_each_pair_met(
    soaked: Callable[..., bool], capsys: pytest.CaptureFixture[str]
) -> None:
    assert soaked((), after_pairs())
    report = json.loads(capsys.readouterr().out)
    shares = [(pair["first"], pair["second"], pair["times"], pair["chances"]) for pair in report["pair_shares"]]
    assert shares == [("break-lock", "s3-500", 1, 1), ("kill-both", "break-lock", 1, 2), ("s3-500", None, 1, 1)]
    assert report["pairs_by_effect"] == {
        "PUT of unknown outcome alone": 1,
        "lost hold, PUT of unknown outcome": 1,
        "unfinished intent, lost hold": 1,
    }
    assert soaked((), after_pairs(), as_json=False)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "pair kill-both, break-lock (next hold) 1 of 2 (50%)" in lines
    assert "pair s3-500 (alone) 1 of 1 (100%)" in lines
    assert "unfinished intent, lost hold 1" in lines


def test_a_run_in_which_nothing_was_acknowledged_fails(
    soaked: Callable[..., bool], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence = sound()
    nothing = [event for event in evidence.history if event["event"] != "acknowledged"]
    assert not soaked((), replace(evidence, history=nothing))
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert verdict["violations_by_invariant"] == {"I9": 1}
    assert verdict["shown"][0]["sentence"] == "nothing was acknowledged"
    assert {"seed", "writers", "acknowledged", "refused", "unknown", "violations", "faults"} <= verdict.keys()
    assert json.loads(capsys.readouterr().out)["violations"] == 1
