"""What a soak's command makes of what it found: the exit, the sentence and ``verdict.json``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from sluice.soak import command
from sluice.soak.evidence import Evidence
from sluice.soak.options import SoakOptions
from sluice.soak.run import Progress
from tests.support.soak_history import sound


class OverSoak:
    """A soak that is over, and left this behind."""

    left: Evidence

    def __init__(self, _: SoakOptions) -> None:
        counts = Counter(event["event"] for event in self.left.history)
        self.progress = Progress(counts=counts, faults=Counter(["pause-both"]))

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
    def run(faults: tuple[str, ...], left: Evidence, **more: Any) -> bool:
        monkeypatch.setattr(OverSoak, "left", left, raising=False)
        monkeypatch.setattr(command, "Soak", OverSoak)
        return command.run_soak(SoakOptions(faults=faults, output=tmp_path), as_json=True, **more)

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
