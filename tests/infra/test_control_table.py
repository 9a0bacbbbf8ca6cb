"""The table of AWS Security Hub's controls: it matches the rules and is part of the documentation."""

from __future__ import annotations

import subprocess
import sys

from rules import RULES
from rules.controls import CONTROLS, Verdict, table

from tests.support.graph import ROOT

CHECKED_CONTROLS = {control for rule in RULES for control in rule.controls}


def controls(*verdicts: Verdict) -> set[str]:
    return {control.id for control in CONTROLS if control.verdict in verdicts}


def test_the_documentation_contains_the_current_table() -> None:
    text = (ROOT / "infra" / "policy" / "README.md").read_text(encoding="utf-8")
    documented = text.partition("<!-- controls -->\n")[2].partition("\n<!-- /controls -->")[0]
    assert documented == table(RULES), "run: python scripts/control_table.py infra/policy/README.md"


def test_the_script_prints_the_table() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "control_table.py")]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == table(RULES) + "\n"


def test_each_control_is_listed_once() -> None:
    assert len({control.id for control in CONTROLS}) == len(CONTROLS)


def test_verdicts_match_the_controls_that_rules_check() -> None:
    assert controls(*Verdict) >= CHECKED_CONTROLS
    assert controls(Verdict.MET) <= CHECKED_CONTROLS
    assert not CHECKED_CONTROLS & controls(Verdict.NOT_MET, Verdict.ACCOUNT)


def test_a_control_not_met_by_default_has_an_explanation() -> None:
    unmet = [control for control in CONTROLS if control.verdict in (Verdict.NOT_MET, Verdict.SETTING)]
    assert [control.id for control in unmet if not control.comment] == []
