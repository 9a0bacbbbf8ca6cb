"""docs/platforms.md is correct where that can be checked here: settings, manifest, build and the arguments of jobs."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from lock_manager.releases import ALLOW_UNTESTED, TESTED
from sluice.commands.app import app
from writer_jobs import append
from writer_jobs.delta.session import LOG_STORE_SETTING, cluster_defaults
from writer_jobs.job.append.arguments import AppendArguments, parse_arguments
from writer_jobs.job.exit_codes import BAD_ARGUMENTS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
#: Files that a recipe may name; the commands of the first section create them.
BUILT = ("sluice-log-store.jar", "sluice.zip", "append.py")
#: The arguments that Glue adds to those of the job (awsglue/job.py and awsglue/utils.py).
GLUE_ARGUMENTS = [
    "--JOB_ID", "j_1", "--JOB_RUN_ID", "jr_1", "--JOB_NAME", "a job", "--SECURITY_CONFIGURATION", "c",
    "--TempDir", "s3://BUCKET/temp/", "--job-bookmark-option", "job-bookmark-disable",
]  # fmt: skip
#: Required fields of SparkApplication's spec (sparkoperator.k8s.io_sparkapplications.yaml, v1beta2).
REQUIRED_FIELDS = {"driver", "executor", "mainApplicationFile", "sparkVersion", "type"}


def block(language: str, section: str | None = None) -> str:
    """Return the first block of code in a language, in a section or in the whole page."""
    text = TEXT if section is None else SECTIONS[section]
    match = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert match
    return match[1]


def words_of(command: str) -> list[str]:
    """Split a command into words."""
    return shlex.split(command.replace("\\\n", " "))


def pairs_of(settings: list[str]) -> dict[str, str]:
    """Return the settings ``KEY=VALUE`` by key."""
    return dict(setting.split("=", 1) for setting in settings)


def confs_in(words: list[str]) -> dict[str, str]:
    """Return the settings of the arguments ``--conf``."""
    return pairs_of([value for option, value in itertools.pairwise(words) if option == "--conf"])


def glue_parameters() -> dict[str, str]:
    parameters: dict[str, str] = json.loads(block("json", "AWS Glue 6"))
    return parameters


def emr_arguments() -> list[str]:
    (step,) = json.loads(block("json", "EMR Spark 8"))
    assert (step["Type"], step["ActionOnFailure"]) == ("Spark", "CONTINUE")
    arguments: list[str] = step["Args"]
    return arguments


def manifest() -> dict[str, Any]:
    fields: dict[str, Any] = yaml.safe_load(block("yaml", "Kubernetes, Spark operator"))
    return fields


def settings_of(platform: str) -> dict[str, str]:
    """Return the Spark settings of a recipe."""
    match platform:
        case "Glue":
            return confs_in(["--conf", *shlex.split(glue_parameters()["--conf"])])
        case "EMR":
            return confs_in(emr_arguments())
        case "Kubernetes":
            return dict(manifest()["spec"]["sparkConf"])
    return pairs_of(block("properties").splitlines())


def job_arguments_of(platform: str) -> list[str]:
    """Return the arguments of ``append.py`` in a recipe."""
    match platform:
        case "cluster":
            words = words_of(block("sh", "A cluster with Delta"))
            return words[words.index("append.py") + 1 :]
        case "Dataproc":
            words = words_of(block("sh", "Dataproc"))
            return words[words.index("--") + 1 :]
        case "Glue":
            return shlex.split(glue_parameters()["--sluice"])[1:]
        case "EMR":
            words = emr_arguments()
            return words[words.index("s3://BUCKET/append.py") + 1 :]
    return [str(argument) for argument in manifest()["spec"]["arguments"]]


def parsed(arguments: list[str]) -> AppendArguments:
    """Parse and check the arguments of ``append.py``."""
    job_arguments = parse_arguments(arguments)
    job_arguments.check()
    return job_arguments


@pytest.fixture
def run_glue_script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the page's script for Glue with a value of ``--sluice`` and Glue's own arguments; return its exit code."""

    def run(command_line: str) -> int:
        half = len(GLUE_ARGUMENTS) // 2
        argv = ["/tmp/script.py", *GLUE_ARGUMENTS[:half], "--sluice", command_line, *GLUE_ARGUMENTS[half:]]  # noqa: S108
        monkeypatch.setattr(sys, "argv", argv)
        try:
            exec(compile(block("python", "AWS Glue 6"), "script.py", "exec"), {})  # noqa: S102 (our own page)
        except SystemExit as error:
            return int(error.code or 0)
        return 0

    return run


@pytest.mark.parametrize("platform", ["Spark and Dataproc", "Glue", "EMR", "Kubernetes"])
def test_each_recipe_has_the_settings_of_a_session(platform: str) -> None:
    settings = settings_of(platform)
    # EMR's and Glue's Spark are builds of their own.
    assert settings.pop(ALLOW_UNTESTED, None) == ("true" if platform in ("EMR", "Glue") else None)
    keys = ("spark.sql.extensions", "spark.sql.catalog.spark_catalog", LOG_STORE_SETTING)
    assert settings == {key: cluster_defaults()[key] for key in keys}


def test_gcloud_and_spark_can_read_the_properties_file() -> None:
    # gcloud takes PROPERTY=VALUE only; java.util.Properties, which Spark uses, takes spaces, too.
    assert all(re.fullmatch(r"[\w.]+=[\w.]+", line) for line in block("properties").splitlines())
    for section in ("A cluster with Delta", "Dataproc"):
        assert "--properties-file" in block("sh", section)
        assert "sluice.conf" in block("sh", section)


@pytest.mark.parametrize("platform", ["cluster", "Glue", "Dataproc", "EMR", "Kubernetes"])
def test_the_job_accepts_the_arguments_of_each_recipe(platform: str) -> None:
    arguments = parsed(job_arguments_of(platform))
    assert arguments.table == ("gs" if platform == "Dataproc" else "s3a") + "://lake/flights"
    assert arguments.zookeeper == "zk1:2181"
    assert len(arguments.sources) == 1


def test_a_retried_application_has_a_run_id() -> None:
    spec = manifest()["spec"]
    assert spec["restartPolicy"]["onFailureRetries"] > 0
    assert parsed(job_arguments_of("Kubernetes")).run_id


def test_the_manifest_has_the_required_fields() -> None:
    application = manifest()
    assert (application["apiVersion"], application["kind"]) == ("sparkoperator.k8s.io/v1beta2", "SparkApplication")
    spec = application["spec"]
    assert spec.keys() >= REQUIRED_FIELDS
    assert (spec["type"], spec["mode"], spec["pythonVersion"]) == ("Python", "cluster", "3")
    files = [spec["mainApplicationFile"], *spec["deps"]["jars"], *spec["deps"]["pyFiles"]]
    assert sorted(files) == sorted(f"local:///opt/sluice/{name}" for name in BUILT)


def test_a_class_path_with_the_log_store_has_delta_storage() -> None:
    # The log store's class extends a class of delta-storage.
    words = emr_arguments()
    jars = [Path(jar).name for jar in words[words.index("--jars") + 1].split(",")]
    assert jars == ["delta-spark.jar", "delta-storage.jar", "sluice-log-store.jar"]


def test_the_glue_script_passes_only_the_job_s_arguments(run_glue_script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[list[str]] = []
    monkeypatch.setattr(append, "main", lambda argv: received.append(list(argv)) or 5)
    assert run_glue_script(glue_parameters()["--sluice"]) == 5
    assert received == [job_arguments_of("Glue")]


def test_the_glue_script_runs_the_job(run_glue_script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_glue_script("append.py --help") == 0
    assert "usage: append.py" in capsys.readouterr().out
    assert run_glue_script("append.py --table s3a://lake/flights") == BAD_ARGUMENTS


def test_negative_control_the_job_refuses_glue_s_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert append.main([*GLUE_ARGUMENTS, *job_arguments_of("Glue")]) == BAD_ARGUMENTS
    assert "unrecognized arguments: --JOB_ID" in capsys.readouterr().err


def test_the_build_creates_the_files_that_recipes_name(tmp_path: Path) -> None:
    setup, _, _, dist, copy = (shlex.split(line, comments=True) for line in block("sh").splitlines())
    assert re.search(rf"^{setup[1]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    archive = tmp_path / dist[-1]
    assert CliRunner().invoke(app, [*dist[1:-1], str(archive)]).exit_code == 0
    assert all((ROOT / path).is_file() for path in copy[1:-1])
    assert {archive.name, *(Path(path).name for path in copy[1:-1])} == set(BUILT)


@pytest.mark.parametrize("pins", re.findall(r"pyspark==(\S+) delta-spark==([\d.]+)", TEXT))
def test_zips_are_built_for_tested_releases(pins: tuple[str, str]) -> None:
    spark, delta = pins
    assert delta in TESTED[".".join(spark.split(".")[:2])]


@pytest.mark.parametrize("section", SECTIONS)
def test_each_recipe_has_the_same_parts(section: str) -> None:
    parts = re.findall(r"^- \*\*(.*?)\*\*", SECTIONS[section], re.MULTILINE)
    assert [part.replace("Settings", "Command") for part in parts] == ["Versions", "Upload", "Command", "Not run"]
