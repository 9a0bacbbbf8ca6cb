"""`sluice config from-stack`: what it makes of a stack's outputs, read as a shell, Spark and the lock read it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from lock_manager import LockSettings, aws_secret
from sluice.commands.app import app
from sluice.doctor.finding import Verdict
from sluice.doctor.spark import judge
from writer_jobs.delta.session import DEFAULTS, DELTA_EXTENSION, KERNEL_LOG_STORE_SETTINGS, LOG_STORE, LOG_STORE_SETTING

ROOT = Path(__file__).parents[2]
DEFAULTS_FILE, ENVIRONMENT_FILE = "spark-defaults.conf", "sluice.env"
NAMES = {DEFAULTS_FILE, ENVIRONMENT_FILE}
OUTPUTS: dict[str, Any] = {
    "region": "eu-central-1",
    "delta_lake_bucket_name": "lake-7f3a",
    "zookeeper_connection_string": "10.20.0.10:2281,10.20.16.10:2281,10.20.32.10:2281",
    "zookeeper_members": 3,
    "lock_root": "/locks/delta_tables",
    "secret_arns": {
        role: f"arn:aws:secretsmanager:eu-central-1:123456789012:secret:lake-{role}-AbCdEf"
        for role in ("appender", "maintenance", "operator")
    },
    "policy_arns": {"appender": "arn:aws:iam::123456789012:policy/appender"},
    "commit_policy_statements": [{"Sid": "x"}],
}
# What Spark's SparkSubmitUtils does with a properties file: java.util.Properties, whose values are trimmed.
PROPERTY = re.compile(r"([^\s=:]+)[\s=:]\s*(.*?)\s*")


@pytest.fixture
def stack(tmp_path: Path) -> Callable[..., Result]:
    """Run the command on changed outputs, into ``conf``."""

    def run(*arguments: str, piped: str | None = None, **changes: Any) -> Result:
        outputs = {name: value for name, value in {**OUTPUTS, **changes}.items() if value is not ...}
        file = tmp_path / "outputs.json"
        file.write_text(json.dumps(outputs), encoding="utf-8")
        given = [] if piped is not None else [str(file)]
        command = ["config", "from-stack", *given, "--output", str(tmp_path / "conf"), *arguments]
        return CliRunner().invoke(app, command, input=piped)

    return run


def properties(folder: Path) -> dict[str, str]:
    lines = (folder / DEFAULTS_FILE).read_text(encoding="utf-8").splitlines()
    found = [PROPERTY.fullmatch(line) for line in lines]
    return {match[1]: match[2] for match in found if match}


def variables(folder: Path) -> dict[str, str]:
    """Return what a shell has of the file, with none of its own."""
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    program = f"set -a; . {folder / ENVIRONMENT_FILE}; {sys.executable} -c '{show}'"
    said = subprocess.run(["sh", "-ec", program], env={}, check=True, capture_output=True, text=True).stdout
    return {name: value for name, value in json.loads(said).items() if name.startswith(("SLUICE_", "AWS_"))}


def test_the_lock_reads_back_what_the_stack_said(
    stack: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = stack()
    assert answer.exit_code == 0, answer.output
    found = variables(tmp_path / "conf")
    assert found == {
        "SLUICE_ZK_HOSTS": OUTPUTS["zookeeper_connection_string"],
        "SLUICE_LOCK_ROOT": "/locks/delta_tables",
        "SLUICE_ZK_SECRET": OUTPUTS["secret_arns"]["appender"],
        "AWS_REGION": "eu-central-1",
        "AWS_DEFAULT_REGION": "eu-central-1",
    }
    asked: list[str] = []
    monkeypatch.setattr(aws_secret, "fetch", lambda arn: asked.append(arn) or '{"acl": "world:anyone:r"}')
    settings = LockSettings.from_env(found)
    assert asked == [OUTPUTS["secret_arns"]["appender"]]
    assert (settings.zk_hosts, settings.lock_root) == (OUTPUTS["zookeeper_connection_string"], OUTPUTS["lock_root"])
    assert settings.security.acl == "world:anyone:r"


def test_the_lines_need_no_quotes_so_that_docker_and_systemd_read_the_same(
    stack: Callable[..., Result], tmp_path: Path
) -> None:
    stack()
    text = (tmp_path / "conf" / ENVIRONMENT_FILE).read_text(encoding="utf-8")
    assert dict(line.split("=", 1) for line in text.splitlines()) == variables(tmp_path / "conf")


def test_spark_is_led_through_the_guarded_log_store(stack: Callable[..., Result], tmp_path: Path) -> None:
    stack()
    found = properties(tmp_path / "conf")
    assert judge(tmp_path, found).verdict is Verdict.OK
    assert {key: found[key] for key in DEFAULTS} == dict(DEFAULTS)
    assert found["spark.sql.extensions"] == DELTA_EXTENSION
    assert {found[key] for key in (LOG_STORE_SETTING, *KERNEL_LOG_STORE_SETTINGS)} == {LOG_STORE}
    assert found["spark.hadoop.fs.s3a.endpoint.region"] == "eu-central-1"


def test_spark_submit_takes_the_file(stack: Callable[..., Result], tmp_path: Path) -> None:
    """A program that knows nothing of us has the settings in its SparkConf; no context is started."""
    stack()
    program = tmp_path / "program.py"
    program.write_text(
        "import json\n"
        "from pyspark import SparkConf, SparkContext\n"
        "SparkContext._ensure_initialized()\n"
        "print(json.dumps(dict(SparkConf().getAll())))\n"
    )
    submit = Path(sys.executable).with_name("spark-submit")
    command = [str(submit), "--properties-file", str(tmp_path / "conf" / DEFAULTS_FILE), str(program)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, env=environment).stdout
    taken = json.loads(said.splitlines()[-1])
    expected = properties(tmp_path / "conf")
    assert {key: taken.get(key) for key in expected} == expected


@pytest.mark.parametrize("role", ["appender", "maintenance", "operator"])
def test_each_role_gets_the_arn_of_its_own_secret(stack: Callable[..., Result], tmp_path: Path, role: str) -> None:
    assert stack("--role", role).exit_code == 0
    assert variables(tmp_path / "conf")["SLUICE_ZK_SECRET"] == OUTPUTS["secret_arns"][role]


@pytest.mark.parametrize("arns", [{}, None, {"maintenance": OUTPUTS["secret_arns"]["maintenance"]}, ...])
def test_a_stack_without_a_secret_for_the_role_names_none(
    stack: Callable[..., Result], tmp_path: Path, arns: object
) -> None:
    answer = stack(secret_arns=arns)
    assert answer.exit_code == 0
    assert "no secret for the role appender" in answer.stdout
    assert "SLUICE_ZK_SECRET" not in variables(tmp_path / "conf")


def test_it_says_what_was_written_and_how_to_go_on(stack: Callable[..., Result], tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    wrote, line = stack().stdout.splitlines()
    assert wrote == f"wrote {conf / DEFAULTS_FILE} and {conf / ENVIRONMENT_FILE}"
    assert f"spark-submit --properties-file {conf / DEFAULTS_FILE} $(sluice submit-args) " in line
    assert "s3a://lake-7f3a/" in line
    assert {path.name for path in conf.iterdir()} == NAMES


@pytest.mark.parametrize("dash", [["-"], []])
def test_outputs_may_be_piped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dash: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(app, ["config", "from-stack", *dash], input=json.dumps(OUTPUTS))
    assert answer.exit_code == 0, answer.output
    assert {path.name for path in tmp_path.iterdir()} == NAMES
    assert "(set -a; . ./sluice.env; " in answer.stdout


def test_nobody_is_asked_to_type_the_outputs(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    program = [sys.executable, "-c", "from sluice.cli import main; main()", "config", "from-stack"]
    answer = subprocess.run(
        [*program, "--output", str(tmp_path)], stdin=theirs, capture_output=True, text=True, timeout=60, check=False,
        cwd=ROOT,
    )  # fmt: skip
    os.close(ours)
    os.close(theirs)
    assert answer.returncode == 2
    assert answer.stderr.startswith("sluice: no outputs; give a file, or pipe: pulumi stack output --json")


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["region", "delta_lake_bucket_name", "zookeeper_connection_string", "lock_root"])
@pytest.mark.parametrize(
    ("value", "said"),
    [(..., "is missing"), (None, "is empty"), ("", "is empty"), ("[secret]", "--show-secrets"), (7, "must be a text"),
     ("a b", "needs no quotes"), ("$(rm -r .)", "needs no quotes"), ("a\nB=c", "needs no quotes")],
)  # fmt: skip
def test_an_output_that_cannot_be_used_is_named_and_nothing_is_written(
    stack: Callable[..., Result], tmp_path: Path, name: str, value: object, said: str
) -> None:
    answer = stack(**{name: value})
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert (name in answer.stderr, said in answer.stderr) == (True, True)
    assert len(answer.stderr.splitlines()) == 1
    assert not (tmp_path / "conf").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"zookeeper_connection_string": "zk1:99999"}, "is not host:port"),
        ({"lock_root": "locks"}, "absolute znode path"),
        ({"secret_arns": "x"}, "object of ARNs by role"),
    ],
)
def test_what_the_lock_would_not_take_is_not_written(
    stack: Callable[..., Result], tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    answer = stack(**changes)
    assert (answer.exit_code, said in answer.stderr, len(answer.stderr.splitlines())) == (2, True, 1)
    assert not (tmp_path / "conf").exists()


def test_a_secret_in_the_place_of_an_arn_is_neither_written_nor_shown(
    stack: Callable[..., Result], tmp_path: Path
) -> None:
    answer = stack(secret_arns={"appender": "hunter2"})
    assert answer.exit_code == 2
    assert "secret_arns.appender must be arn:aws:secretsmanager" in answer.stderr
    assert "hunter2" not in answer.output
    assert not (tmp_path / "conf").exists()


@pytest.mark.parametrize(
    ("text", "said"), [("{", "is not a JSON object"), ("", "is not a JSON object"), ("[1]", "is not a JSON object")]
)
def test_what_is_no_json_object_is_told_in_a_sentence(stack: Callable[..., Result], text: str, said: str) -> None:
    answer = stack(piped=text)
    assert (answer.exit_code, said in answer.stderr, len(answer.stderr.splitlines())) == (2, True, 1)


def test_an_unknown_role_and_a_file_that_is_not_there_are_exit_code_2(
    stack: Callable[..., Result], tmp_path: Path
) -> None:
    assert stack("--role", "king").exit_code == 2
    answer = CliRunner().invoke(app, ["config", "from-stack", str(tmp_path / "none.json")])
    assert (answer.exit_code, answer.stderr.count("\n")) == (2, 1)
    assert "none.json cannot be read" in answer.stderr


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_file_that_is_there_is_replaced_only_by_force(
    stack: Callable[..., Result], tmp_path: Path, name: str
) -> None:
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / name).write_text("mine\n")
    answer = stack()
    assert (answer.exit_code, "--force" in answer.stderr) == (2, True)
    assert [path.name for path in conf.iterdir()] == [name]
    assert (conf / name).read_text() == "mine\n"
    assert stack("--force").exit_code == 0
    assert {path.name for path in conf.iterdir()} == NAMES
    assert "mine" not in (conf / name).read_text()


def test_if_one_cannot_be_written_the_other_is_not_either(stack: Callable[..., Result], tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    (conf / ENVIRONMENT_FILE).mkdir(parents=True)
    (conf / DEFAULTS_FILE).write_text("mine\n")
    answer = stack("--force")
    assert (answer.exit_code, len(answer.stderr.splitlines())) == (1, 1)
    assert f"{conf / ENVIRONMENT_FILE} cannot be written: it is a folder" in answer.stderr
    assert (conf / DEFAULTS_FILE).read_text() == "mine\n"
    assert {path.name for path in conf.iterdir()} == NAMES


def test_a_folder_that_is_a_file_is_told_in_a_sentence(stack: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "conf").write_text("a file\n")
    answer = stack()
    assert (answer.exit_code, "cannot be written" in answer.stderr, len(answer.stderr.splitlines())) == (1, True, 1)
