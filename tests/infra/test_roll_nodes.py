"""The script that replaces or restarts members one by one, against commands that write down how they were called."""

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


def rolled(commands: Path, *arguments: str, **environment: str) -> tuple[int, list[str]]:
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    told = {**os.environ, "PATH": path, "CALLS": str(commands / "calls"), **environment}
    done = subprocess.run(["bash", str(SCRIPT), *arguments], env=told, capture_output=True, timeout=60, check=False)
    calls = commands / "calls"
    return done.returncode, calls.read_text().splitlines() if calls.exists() else []


def test_shellcheck_finds_nothing() -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([str(shellcheck), str(SCRIPT)], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_each_is_replaced_by_an_up_of_its_own_and_the_ensemble_is_whole_between(commands: Path) -> None:
    code, calls = rolled(commands, "replace")
    assert code == 0
    each = [
        f"pulumi config set replaceNode {node};pulumi up --yes --skip-preview;pulumi config rm replaceNode;"
        "sluice ensemble ready --expect 3 --wait 900"
        # The leader last.
        for node in (1, 3, 2)
    ]
    assert ";".join(calls[2:]) == ";".join(each)
    assert calls[1] == "sluice ensemble ready --expect 3 --wait 60"


def test_members_of_another_ensemble_are_not_touched(commands: Path) -> None:
    (commands / "pulumi").write_text(PULUMI.replace("echo 3", "echo 5"))
    code, calls = rolled(commands, "restart")
    assert code == 1
    assert calls == ["pulumi stack output zookeeper_members"]


def test_the_next_is_not_touched_when_one_does_not_come_back(commands: Path) -> None:
    code, calls = rolled(commands, "replace", NOT_READY_AT="2")
    assert code != 0
    assert [call for call in calls if "config set" in call] == ["pulumi config set replaceNode 1"]


def test_nothing_is_done_to_an_ensemble_that_is_not_whole(commands: Path) -> None:
    code, calls = rolled(commands, "replace", NOT_READY_AT="1")
    assert code == 1
    assert not [call for call in calls if "up" in call.split()]


def test_members_are_restarted_where_they_are(commands: Path) -> None:
    code, calls = rolled(commands, "restart", "2")
    assert code == 0
    [sent] = [call for call in calls if "send-command" in call]
    assert sent.startswith("aws ssm send-command --instance-ids i-2")
    assert not [call for call in calls if call.startswith("pulumi up")]


@pytest.mark.parametrize("arguments", [(), ("reboot",), ("replace", "4"), ("replace", "one")])
def test_a_wrong_argument_does_nothing(commands: Path, arguments: tuple[str, ...]) -> None:
    code, calls = rolled(commands, *arguments)
    assert code == 2
    assert calls in ([], ["pulumi stack output zookeeper_members"])
