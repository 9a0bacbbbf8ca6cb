"""The S3 that the tests use: ``make test-s3`` refuses to run without an external S3."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.lake import BUCKET, ENDPOINT, describe_s3

ROOT = Path(__file__).parents[2]


def make_test_s3(**variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``make test-s3`` with a pytest that only prints its version."""
    # A `make` that runs these tests passes its options through the environment.
    removed_names = (ENDPOINT, BUCKET, "MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    environment = {name: value for name, value in os.environ.items() if name not in removed_names}
    # --assume-old keeps make from building the jar again.
    command = ["make", "--no-print-directory", "--assume-old=sluice/sluice-log-store.jar", "test-s3", "ARGS=--version"]
    return subprocess.run(
        command, cwd=ROOT, env={**environment, **variables}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("variables", [{}, {ENDPOINT: ""}, {"SLUICE_TEST_S3_ENPOINT": "http://127.0.0.1:9000"}])
def test_without_a_variable_test_s3_runs_no_test(variables: dict[str, str]) -> None:
    process = make_test_s3(**variables)
    assert process.returncode != 0
    assert process.stderr.splitlines()[0] == (
        "test-s3 needs your own S3: set SLUICE_TEST_S3_ENDPOINT=URL or SLUICE_TEST_S3_BUCKET=NAME "
        "(docs/compatibility.md)"
    )
    assert "pytest" not in process.stdout + process.stderr


@pytest.mark.parametrize("variables", [{ENDPOINT: "http://127.0.0.1:9000"}, {BUCKET: "scratch"}])
def test_either_variable_lets_test_s3_run(variables: dict[str, str]) -> None:
    process = make_test_s3(**variables)
    assert process.returncode == 0, process.stderr
    assert "pytest" in process.stdout + process.stderr


def test_the_header_of_pytest_names_the_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (ENDPOINT, BUCKET, "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    assert describe_s3() == "embedded"
    monkeypatch.setenv(BUCKET, "scratch")
    assert describe_s3() == "AWS"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    assert describe_s3() == "http://127.0.0.1:9000"
    monkeypatch.delenv(BUCKET)
    assert describe_s3() == "embedded"
    monkeypatch.setenv(ENDPOINT, "https://s3.example.com")
    assert describe_s3() == "https://s3.example.com"
