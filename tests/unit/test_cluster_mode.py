"""docs/how-to/cluster-mode.md is correct where that can be checked without a cluster."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest

from tests.support import cluster_mode_page as page
from writer_jobs.job.append.arguments import parse_arguments
from writer_jobs.job.exit_codes import EXIT_CODES

SUBMIT = page.SUBMIT.replace("$(sluice submit-args append)", "append.py")
SCRIPT = page.submit_script().removesuffix(" || true\n")


def containers(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all containers of a Job's pod."""
    pod = page.pod_of(job)
    return [*pod.get("initContainers", []), *pod["containers"]]


@pytest.mark.parametrize(
    "words", [page.words_of(SUBMIT), page.client_command(), page.words_of(SCRIPT)], ids=["yarn", "client", "cluster"]
)
def test_the_job_accepts_its_arguments(words: list[str]) -> None:
    arguments = page.job_arguments(words)
    assert dict(zip(arguments[::2], arguments[1::2], strict=True)) == page.JOB
    parse_arguments(arguments).check()


def test_a_job_repeats_its_pod_unless_the_exit_code_forbids_it() -> None:
    spec = page.CLIENT_MODE["spec"]
    (rule,) = spec["podFailurePolicy"]["rules"]
    (container,) = page.pod_of(page.CLIENT_MODE)["containers"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"] == {
        "containerName": container["name"],
        "operator": "In",
        "values": [row.code for row in EXIT_CODES if row.repeat == "no"],
    }
    # The API accepts a pod failure policy with this restart policy only.
    assert page.pod_of(page.CLIENT_MODE)["restartPolicy"] == "Never"


@pytest.mark.parametrize("job", [page.CLIENT_MODE, page.CLUSTER_MODE], ids=["client", "cluster"])
def test_manifests_have_the_required_fields(job: dict[str, Any]) -> None:
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", job["metadata"]["name"])
    pod = page.pod_of(job)
    # A Job accepts no other restart policy than these two.
    assert pod["restartPolicy"] in ("Never", "OnFailure")
    for container in containers(job):
        assert {"name", "image", "command"} <= container.keys()
        assert all(isinstance(word, str) for word in [*container["command"], *container.get("args", [])])


@pytest.mark.parametrize("words", [page.client_command(), page.words_of(SCRIPT)], ids=["client", "cluster"])
def test_executors_have_the_image_of_the_container(words: list[str]) -> None:
    images = {word for word in words if word.removeprefix("--conf=").startswith("spark.kubernetes.container.image=")}
    assert [word.rpartition("=")[2] for word in images] == ["YOUR-IMAGE"]
    assert {container["image"] for job in (page.CLIENT_MODE, page.CLUSTER_MODE) for container in containers(job)} == {
        "YOUR-IMAGE"
    }


def test_variables_of_a_command_are_those_of_its_container() -> None:
    (container,) = page.pod_of(page.CLIENT_MODE)["containers"]
    used = set(re.findall(r"\$\((\w+)\)", " ".join(container["command"])))
    assert used == {variable["name"] for variable in container["env"]}


def test_the_submitting_container_succeeds_whatever_spark_submit_returns() -> None:
    assert page.submit_script().endswith(" || true\n")


@pytest.mark.parametrize(
    ("report", "code"),
    [('{"exit_code": 0}', 0), ('{"exit_code": 5}', 5), ('{"exit_code": null}', 1), ("", 1)],
    ids=["done", "failed", "not ended", "no report"],
)
@pytest.mark.parametrize("command", [page.CHECK, page.report_script()], ids=["yarn", "kubernetes"])
def test_the_check_ends_with_the_code_of_the_report(command: str, report: str, code: int) -> None:
    reader, check = command.split("|\n")
    assert page.words_of(reader)[-2:] == ["-cat", page.REPORT]
    process = subprocess.run(["sh", "-c", check], input=report, text=True, capture_output=True, check=False)
    assert process.returncode == code, process.stderr
