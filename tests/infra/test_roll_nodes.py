"""scripts/roll_nodes.sh replaces or restarts members one by one; stand-ins for the commands record their arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.graph import ROOT

SCRIPT = ROOT / "scripts/roll_nodes.sh"
PULUMI = """#!/bin/bash
echo "pulumi $*" >> "$CALLS"
case "$*" in
  "stack output zookeeper_members") echo 3 ;;
  "stack output zookeeper_instance_ids --json") echo '["i-1", "i-2", "i-3"]' ;;
esac
"""
SLUICE = """#!/bin/bash
if [[ "$*" == "ensemble status --json" ]]; then
  echo '{"servers": [{"mode": "follower"}, {"mode": "leader"}, {"mode": "follower"}]}'
  exit
fi
echo "sluice $*" >> "$CALLS"
[[ $(grep -c '^sluice' "$CALLS") -lt ${NOT_READY_AT:-99} ]]
"""
AWS = '#!/bin/bash\necho "aws $*" >> "$CALLS"\n'


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    for name, text in {"pulumi": PULUMI, "sluice": SLUICE, "aws": AWS}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def roll_nodes(commands: Path, *arguments: str, **variables: str) -> tuple[int, list[str]]:
    """Run the script; return its exit code and the calls of the stand-ins."""
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "CALLS": str(commands / "calls"), **variables}
    command = ["bash", str(SCRIPT), *arguments]
    process = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    calls = commands / "calls"
    return process.returncode, calls.read_text().splitlines() if calls.exists() else []


def test_shellcheck_accepts_the_script() -> None:
    command = [str(Path(sys.executable).with_name("shellcheck")), str(SCRIPT)]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert process.returncode == 0, process.stdout


def test_nodes_are_replaced_one_by_one_in_a_complete_ensemble(commands: Path) -> None:
    code, calls = roll_nodes(commands, "replace")
    assert code == 0
    replacements = [
        f"pulumi config set replaceNode {node};pulumi up --yes --skip-preview;pulumi config rm replaceNode;"
        "sluice ensemble ready --expect 3 --wait 900"
        # The leader is the last one.
        for node in (1, 3, 2)
    ]
    assert ";".join(calls[2:]) == ";".join(replacements)
    assert calls[1] == "sluice ensemble ready --expect 3 --wait 60"


def test_an_ensemble_of_another_size_is_not_changed(commands: Path) -> None:
    (commands / "pulumi").write_text(PULUMI.replace("echo 3", "echo 5"))
    code, calls = roll_nodes(commands, "restart")
    assert code == 1
    assert calls == ["pulumi stack output zookeeper_members"]


def test_a_node_that_does_not_come_back_ends_the_script(commands: Path) -> None:
    code, calls = roll_nodes(commands, "replace", NOT_READY_AT="2")
    assert code != 0
    assert [call for call in calls if "config set" in call] == ["pulumi config set replaceNode 1"]
    assert calls[-1] == "sluice ensemble ready --expect 3 --wait 900"


def test_an_incomplete_ensemble_is_not_changed(commands: Path) -> None:
    code, calls = roll_nodes(commands, "replace", NOT_READY_AT="1")
    assert code == 1
    assert calls == ["pulumi stack output zookeeper_members", "sluice ensemble ready --expect 3 --wait 60"]


def test_a_restart_keeps_the_machine(commands: Path) -> None:
    code, calls = roll_nodes(commands, "restart", "2")
    assert code == 0
    [restart] = [call for call in calls if "send-command" in call]
    assert restart.startswith("aws ssm send-command --instance-ids i-2")
    assert not [call for call in calls if call.startswith("pulumi up")]


@pytest.mark.parametrize("arguments", [(), ("reboot",), ("replace", "4"), ("replace", "one")])
def test_a_wrong_argument_changes_nothing(commands: Path, arguments: tuple[str, ...]) -> None:
    code, calls = roll_nodes(commands, *arguments)
    assert code == 2
    assert calls in ([], ["pulumi stack output zookeeper_members"])
