"""The result of ``python -m soak``: its return value, its messages and ``verdict.json``."""

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
from tests.support.soak_history import event, sound_evidence


class FinishedSoak:
    """A soak that has ended with this evidence."""

    result: Evidence

    def __init__(self, _: SoakOptions) -> None:
        counts = Counter(event["event"] for event in self.result.history)
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
        return self.result


@pytest.fixture
def run_soak(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., bool]:
    def run(faults: tuple[str, ...], evidence: Evidence, *, as_json: bool = True, **options: Any) -> bool:
        monkeypatch.setattr(FinishedSoak, "result", evidence, raising=False)
        monkeypatch.setattr(command, "Soak", FinishedSoak)
        return command.run_soak(SoakOptions(faults=faults, output=tmp_path), as_json=as_json, **options)

    return run


def test_a_listed_class_that_never_struck_fails_the_soak(
    run_soak: Callable[..., bool], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_soak(("pause-both",), sound_evidence(), must_strike=True)
    assert capsys.readouterr().err == ""
    assert not run_soak(("pause-both", "s3-500"), sound_evidence(), must_strike=True)
    output = capsys.readouterr()
    assert output.err.startswith("s3-500 never struck, so this run does not test it: raise --commits")
    assert output.err.count("\n") == 1
    assert json.loads(output.out)["violations"] == 0


def test_a_class_selected_by_all_need_not_strike(run_soak: Callable[..., bool]) -> None:
    assert run_soak(("pause-both", "s3-500"), sound_evidence(), must_strike=False)


FAULTS = ("pause-both", "s3-403", "s3-500")


def evidence_with_step() -> Evidence:
    """Return evidence with three holds of first threads, one of a second thread, and a step without a violation."""
    evidence = sound_evidence()
    fields = {"again": "same", "order": "LockOrderError", "connected": True, "lost": False}
    step = event("step", 2.15, worker="writer-1", incarnation=1, token=9, kind="two-managers", **fields)
    second_thread_hold = event("holding", 3.0, worker="writer-1", incarnation=1, token=11, thread=2)
    return replace(evidence, history=[*evidence.history, step, second_thread_hold])


def test_the_verdict_has_the_shares_of_faults_and_steps(
    run_soak: Callable[..., bool], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_soak(FAULTS, evidence_with_step())
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["fault_shares"] == {
        "pause-both": {"times": 1, "chances": 4, "share": 0.25},
        "s3-403": {"times": 0, "chances": 2, "share": 0.0},
        "s3-500": {"times": 0, "chances": 0, "share": None},
    }
    assert verdict["step_shares"] == {
        "two-managers": {"times": 1, "chances": 3, "share": 0.333},
        "stalled-listing": {"times": 0, "chances": 3, "share": 0.0},
        "second-block": {"times": 0, "chances": 0, "share": None},
    }
    assert (verdict["faults"], verdict["did_not_strike"]) == ({"pause-both": 1}, ["s3-403", "s3-500"])
    assert json.loads((tmp_path / "verdict.json").read_text())["fault_shares"] == verdict["fault_shares"]


def test_the_printed_verdict_has_the_shares(run_soak: Callable[..., bool], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_soak(FAULTS, evidence_with_step(), as_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["fault", "pause-both", "1", "of", "4", "(25%)"] in lines
    assert ["fault", "s3-403", "0", "of", "2", "(0%)"] in lines
    assert ["step", "two-managers", "1", "of", "3", "(33%)"] in lines
    assert ["these", "faults", "had", "no", "turn", "in", "this", "run:", "s3-500"] in lines


def evidence_with_pairs() -> Evidence:
    """Return evidence with two pairs whose faults met, one pair whose faults did not meet, and a single fault."""
    evidence = sound_evidence()
    next_hold = {"first": "kill-both", "second": "break-lock", "meeting": "next hold"}
    pairs = [
        event("pair", 3.0, **next_hold, met=True),
        event("pair", 4.0, **next_hold, met=False),
        event("pair", 5.0, first="break-lock", second="s3-500", meeting="one hold", met=True),
        event("pair", 6.0, first="s3-500", second=None, meeting="alone", met=True),
    ]
    return replace(evidence, history=[*evidence.history, *pairs])


def test_the_verdict_has_the_shares_of_pairs(run_soak: Callable[..., bool], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_soak((), evidence_with_pairs())
    report = json.loads(capsys.readouterr().out)
    shares = [(pair["first"], pair["second"], pair["times"], pair["chances"]) for pair in report["pair_shares"]]
    assert shares == [("break-lock", "s3-500", 1, 1), ("kill-both", "break-lock", 1, 2), ("s3-500", None, 1, 1)]
    assert report["pairs_by_effect"] == {
        "PUT of unknown outcome alone": 1,
        "lost hold, PUT of unknown outcome": 1,
        "unfinished intent, lost hold": 1,
    }
    assert run_soak((), evidence_with_pairs(), as_json=False)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "pair kill-both, break-lock (next hold) 1 of 2 (50%)" in lines
    assert "pair s3-500 (alone) 1 of 1 (100%)" in lines
    assert "unfinished intent, lost hold 1" in lines


def test_a_run_without_acknowledged_commits_fails(
    run_soak: Callable[..., bool], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence = sound_evidence()
    history = [event for event in evidence.history if event["event"] != "acknowledged"]
    assert not run_soak((), replace(evidence, history=history))
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert verdict["violations_by_invariant"] == {"I9": 1}
    assert verdict["shown"][0]["sentence"] == "nothing was acknowledged"
    assert {"seed", "writers", "acknowledged", "refused", "unknown", "violations", "faults"} <= verdict.keys()
    assert json.loads(capsys.readouterr().out)["violations"] == 1
