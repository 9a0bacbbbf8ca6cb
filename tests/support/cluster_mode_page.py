"""The commands and manifests of docs/how-to/cluster-mode.md."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

_TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "cluster-mode.md").read_text(encoding="utf-8")
REPORT = "s3a://lake/_reports/flights-2026-11-21.json"
"""The report of every job of the page."""
JOB = {
    "--zookeeper": "zk1:2181,zk2:2181,zk3:2181",
    "--table": "s3a://lake/flights",
    "--source": "s3a://landing/2026-11-21/*.csv",
    "--run-id": "flights-2026-11-21",
    "--report": REPORT,
}
"""The arguments of every job of the page."""


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", _TEXT, re.DOTALL)


SUBMIT, CHECK, UNCHANGED = _blocks("sh")
CLIENT_MODE, CLUSTER_MODE = map(yaml.safe_load, _blocks("yaml"))


def words_of(command: str) -> list[str]:
    """Split a command of a shell into words."""
    return shlex.split(command.replace("\\\n", " "))


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    """Return the specification of a Job's pod."""
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    return pod


def client_command() -> list[str]:
    """Return the command of the pod that runs the driver."""
    (container,) = pod_of(CLIENT_MODE)["containers"]
    command: list[str] = container["command"]
    return command


def submit_script() -> str:
    """Return the script that submits the driver in cluster mode."""
    (container,) = pod_of(CLUSTER_MODE)["initContainers"]
    return str(container["args"][0])


def report_script() -> str:
    """Return the script that ends with the exit code of the report."""
    (container,) = pod_of(CLUSTER_MODE)["containers"]
    return str(container["args"][0])


def job_arguments(words: list[str]) -> list[str]:
    """Return the arguments of ``append.py`` in a command, each option and its value as a word of its own."""
    index = next(index for index, word in enumerate(words) if word.endswith("append.py"))
    return [part for word in words[index + 1 :] for part in (word.split("=", 1) if word[:2] == "--" else [word])]
