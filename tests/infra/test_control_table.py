"""The table of AWS Security Hub's controls says what the rules check, and the documentation has that table."""

from __future__ import annotations

import subprocess
import sys

from rules import RULES
from rules.controls import CONTROLS, Verdict, table

from tests.support.graph import ROOT

BY_ID = {each.id: each for each in CONTROLS}
CHECKED = {control for rule in RULES for control in rule.controls}


def test_the_documentation_has_the_table_of_today() -> None:
    text = (ROOT / "infra" / "policy" / "README.md").read_text(encoding="utf-8")
    found = text.partition("<!-- controls -->\n")[2].partition("\n<!-- /controls -->")[0]
    assert found == table(RULES), "run: python scripts/control_table.py infra/policy/README.md"


def test_the_script_prints_the_table() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "control_table.py")]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == table(RULES) + "\n"


def test_each_control_is_listed_once() -> None:
    assert len(BY_ID) == len(CONTROLS)


def test_controls_that_rules_check_are_listed() -> None:
    assert CHECKED - BY_ID.keys() == set()


def test_no_control_is_called_met_unless_a_rule_keeps_it_so() -> None:
    met = {each.id for each in CONTROLS if each.verdict is Verdict.MET}
    assert met <= CHECKED


def test_a_control_that_is_not_met_has_a_reason() -> None:
    assert [each.id for each in CONTROLS if not each.why and each.verdict in (Verdict.NOT_MET, Verdict.SETTING)] == []


def test_a_rule_checks_no_control_that_is_not_met() -> None:
    not_met = {each.id for each in CONTROLS if each.verdict in (Verdict.NOT_MET, Verdict.ACCOUNT)}
    assert not CHECKED & not_met
