"""`sluice config from-stack` writes a stack's outputs as files that a shell, Spark and the lock read."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from lock_manager import LockSettings, aws_secret
from sluice.commands.app import app
from sluice.doctor.finding import Verdict
from sluice.doctor.spark import settings_finding
from writer_jobs.delta.session import DEFAULTS, DELTA_EXTENSION, KERNEL_LOG_STORE_SETTINGS, LOG_STORE, LOG_STORE_SETTING

ROOT = Path(__file__).parents[2]
DEFAULTS_FILE, ENVIRONMENT_FILE = "spark-defaults.conf", "sluice.env"
FILES = {DEFAULTS_FILE, ENVIRONMENT_FILE}
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
#: Outputs of a stack with locks on S3 that differ from ``OUTPUTS``.
LOCKS_ON_S3: dict[str, Any] = {
    "lock_url": "s3-lease://sluice-prod-locks-7f3a/locks",
    "zookeeper_connection_string": None,
    "lock_root": None,
    "secret_arns": {},
}
# Spark's Utils.getPropertiesFromFile uses java.util.Properties and trims the values.
PROPERTY = re.compile(r"([^\s=:]+)[\s=:]\s*(.*?)\s*")


@dataclass
class ConfigCommand:
    """The command, with outputs in ``folder`` and written files in ``folder/conf``."""

    folder: Path

    def __post_init__(self) -> None:
        self.conf = self.folder / "conf"
        self.defaults_file, self.environment_file = self.conf / DEFAULTS_FILE, self.conf / ENVIRONMENT_FILE

    def run(self, *arguments: str, stdin: str | None = None, **changes: Any) -> Result:
        """Run the command on changed outputs; the value ``...`` removes an output."""
        outputs = {name: value for name, value in {**OUTPUTS, **changes}.items() if value is not ...}
        file = self.folder / "outputs.json"
        file.write_text(json.dumps(outputs), encoding="utf-8")
        source = [] if stdin is not None else [str(file)]
        command = ["config", "from-stack", *source, "--output", str(self.conf), *arguments]
        return CliRunner().invoke(app, command, input=stdin)

    def refusal(self, *arguments: str, code: int = 2, stdin: str | None = None, **changes: Any) -> str:
        """Run the command, which fails with one line on stderr and nothing on stdout; return that line."""
        result = self.run(*arguments, stdin=stdin, **changes)
        assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (code, "", 1)
        return result.stderr

    def files(self) -> set[str]:
        return {path.name for path in self.conf.iterdir()} if self.conf.exists() else set()

    def properties(self) -> dict[str, str]:
        """Return the written Spark properties."""
        lines = self.defaults_file.read_text(encoding="utf-8").splitlines()
        return {match[1]: match[2] for line in lines if (match := PROPERTY.fullmatch(line))}

    def variables(self) -> dict[str, str]:
        """Return the variables that a shell with an empty environment gets from the file."""
        print_environment = "import json, os; print(json.dumps(dict(os.environ)))"
        program = f"set -a; . {self.environment_file}; {sys.executable} -c '{print_environment}'"
        output = subprocess.run(["sh", "-ec", program], env={}, check=True, capture_output=True, text=True).stdout
        return {name: value for name, value in json.loads(output).items() if name.startswith(("SLUICE_", "AWS_"))}


@pytest.fixture
def config(tmp_path: Path) -> ConfigCommand:
    return ConfigCommand(tmp_path)


def test_the_lock_reads_the_outputs_of_the_stack(config: ConfigCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    result = config.run()
    assert result.exit_code == 0, result.output
    variables = config.variables()
    assert variables == {
        "SLUICE_ZK_HOSTS": OUTPUTS["zookeeper_connection_string"],
        "SLUICE_LOCK_ROOT": "/locks/delta_tables",
        "SLUICE_ZK_SECRET": OUTPUTS["secret_arns"]["appender"],
        "AWS_REGION": "eu-central-1",
        "AWS_DEFAULT_REGION": "eu-central-1",
    }
    arns: list[str] = []
    monkeypatch.setattr(aws_secret, "fetch_secret", lambda arn: arns.append(arn) or '{"acl": "world:anyone:r"}')
    settings = LockSettings.from_env(variables)
    assert arns == [OUTPUTS["secret_arns"]["appender"]]
    assert (settings.zk_hosts, settings.lock_root) == (OUTPUTS["zookeeper_connection_string"], OUTPUTS["lock_root"])
    assert settings.security.acl == "world:anyone:r"


@pytest.mark.parametrize("role", ["appender", "operator"])
def test_a_stack_with_locks_on_s3_gives_their_url(config: ConfigCommand, role: str) -> None:
    result = config.run("--role", role, **LOCKS_ON_S3)
    assert result.exit_code == 0, result.output
    variables = config.variables()
    assert variables == {
        "SLUICE_LOCK_URL": "s3-lease://sluice-prod-locks-7f3a/locks",
        "AWS_REGION": "eu-central-1",
        "AWS_DEFAULT_REGION": "eu-central-1",
    }
    assert LockSettings.from_env(variables).lock_url == variables["SLUICE_LOCK_URL"]
    assert "secret" not in result.stdout


@pytest.mark.parametrize(
    ("value", "message"),
    [("", "is empty"), ("[secret]", "--show-secrets"), (7, "must be a text"), ("a b", "needs no quotes"),
     ("s3://locks/locks", "write s3-lease://BUCKET/PREFIX")],
)  # fmt: skip
def test_an_unusable_lock_url_is_refused(config: ConfigCommand, value: object, message: str) -> None:
    assert message in config.refusal(**{**LOCKS_ON_S3, "lock_url": value})
    assert not config.conf.exists()


def test_a_lock_url_and_an_ensemble_are_refused(config: ConfigCommand) -> None:
    assert "give one of them" in config.refusal(lock_url=LOCKS_ON_S3["lock_url"])


def test_docker_and_systemd_read_the_same_values_as_a_shell(config: ConfigCommand) -> None:
    """Docker does not remove quotes from a value, so the file must not contain any."""
    config.run()
    lines = config.environment_file.read_text(encoding="utf-8").splitlines()
    assert dict(line.split("=", 1) for line in lines) == config.variables()


def test_spark_gets_the_guarded_log_store(config: ConfigCommand) -> None:
    config.run()
    properties = config.properties()
    assert settings_finding(config.folder, properties).verdict is Verdict.OK
    assert {key: properties[key] for key in DEFAULTS} == dict(DEFAULTS)
    assert properties["spark.sql.extensions"] == DELTA_EXTENSION
    assert {properties[key] for key in (LOG_STORE_SETTING, *KERNEL_LOG_STORE_SETTINGS)} == {LOG_STORE}
    assert properties["spark.hadoop.fs.s3a.endpoint.region"] == "eu-central-1"


def test_spark_submit_reads_the_file(config: ConfigCommand) -> None:
    """spark-submit puts the settings into the program's SparkConf. This program starts no Spark context."""
    config.run()
    program = config.folder / "program.py"
    program.write_text(
        "import json\n"
        "from pyspark import SparkConf, SparkContext\n"
        "SparkContext._ensure_initialized()\n"
        "print(json.dumps(dict(SparkConf().getAll())))\n"
    )
    submit = Path(sys.executable).with_name("spark-submit")
    command = [str(submit), "--properties-file", str(config.defaults_file), str(program)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, env=environment).stdout
    assert json.loads(output.splitlines()[-1]).items() >= config.properties().items()


@pytest.mark.parametrize("role", ["appender", "maintenance", "operator"])
def test_each_role_gets_the_arn_of_its_own_secret(config: ConfigCommand, role: str) -> None:
    assert config.run("--role", role).exit_code == 0
    assert config.variables()["SLUICE_ZK_SECRET"] == OUTPUTS["secret_arns"][role]


@pytest.mark.parametrize("arns", [{}, None, {"maintenance": OUTPUTS["secret_arns"]["maintenance"]}, ...])
def test_a_role_without_a_secret_gets_no_arn(config: ConfigCommand, arns: object) -> None:
    result = config.run(secret_arns=arns)
    assert result.exit_code == 0
    assert "no secret for the role appender" in result.stdout
    assert "SLUICE_ZK_SECRET" not in config.variables()


def test_the_command_prints_its_files_and_the_next_step(config: ConfigCommand) -> None:
    files_line, next_step = config.run().stdout.splitlines()
    assert files_line == f"wrote {config.defaults_file} and {config.environment_file}"
    assert f"spark-submit --properties-file {config.defaults_file} $(sluice submit-args) " in next_step
    assert "s3a://lake-7f3a/" in next_step
    assert config.files() == FILES


@pytest.mark.parametrize("arguments", [["-"], []])
def test_outputs_may_be_piped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["config", "from-stack", *arguments], input=json.dumps(OUTPUTS))
    assert result.exit_code == 0, result.output
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert "(set -a; . ./sluice.env; " in result.stdout


def test_the_command_does_not_read_a_terminal(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    program = [sys.executable, "-c", "from sluice.cli import main; main()", "config", "from-stack"]
    process = subprocess.run(
        [*program, "--output", str(tmp_path)], stdin=terminal, capture_output=True, text=True, timeout=60, check=False,
        cwd=ROOT,
    )  # fmt: skip
    os.close(controller)
    os.close(terminal)
    assert process.returncode == 2
    assert process.stderr.startswith("sluice: no outputs; give a file, or pipe: pulumi stack output --json")


@pytest.mark.parametrize("name", ["region", "delta_lake_bucket_name", "zookeeper_connection_string", "lock_root"])
@pytest.mark.parametrize(
    ("value", "message"),
    [(..., "is missing"), (None, "is empty"), ("", "is empty"), ("[secret]", "--show-secrets"), (7, "must be a text"),
     ("a b", "needs no quotes"), ("$(rm -r .)", "needs no quotes"), ("a\nB=c", "needs no quotes")],
)  # fmt: skip
def test_an_unusable_output_is_named_and_no_file_is_written(
    config: ConfigCommand, name: str, value: object, message: str
) -> None:
    error = config.refusal(**{name: value})
    assert (name in error, message in error) == (True, True)
    assert not config.conf.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"zookeeper_connection_string": "zk1:99999"}, "is not host:port"),
        ({"lock_root": "locks"}, "absolute znode path"),
        ({"secret_arns": "x"}, "object of ARNs by role"),
        ({"secret_arns": {"appender": "hunter2"}}, "secret_arns.appender must be arn:aws:secretsmanager"),
    ],
)
def test_values_that_the_lock_refuses_are_not_written(
    config: ConfigCommand, changes: dict[str, Any], message: str
) -> None:
    error = config.refusal(**changes)
    assert message in error
    assert "hunter2" not in error, "the error shows a value that is not an ARN and may be a secret"
    assert not config.conf.exists()


@pytest.mark.parametrize("text", ["{", "", "[1]"])
def test_outputs_must_be_a_json_object(config: ConfigCommand, text: str) -> None:
    assert "is not a JSON object" in config.refusal(stdin=text)


def test_an_unknown_role_exits_with_code_2(config: ConfigCommand) -> None:
    assert config.run("--role", "king").exit_code == 2


def test_a_missing_file_exits_with_code_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["config", "from-stack", str(tmp_path / "none.json")])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "none.json cannot be read" in result.stderr


@pytest.mark.parametrize("name", sorted(FILES))
def test_force_is_needed_to_replace_a_file(config: ConfigCommand, name: str) -> None:
    config.conf.mkdir()
    (config.conf / name).write_text("mine\n")
    assert "--force" in config.refusal()
    assert config.files() == {name}
    assert (config.conf / name).read_text() == "mine\n"
    assert config.run("--force").exit_code == 0
    assert config.files() == FILES
    assert "mine" not in (config.conf / name).read_text()


def test_both_files_are_written_or_none(config: ConfigCommand) -> None:
    config.environment_file.mkdir(parents=True)
    config.defaults_file.write_text("mine\n")
    error = config.refusal("--force", code=1)
    assert f"{config.environment_file} cannot be written: it is a folder" in error
    assert config.defaults_file.read_text() == "mine\n"
    assert config.files() == FILES


def test_an_output_folder_that_is_a_file_is_refused(config: ConfigCommand) -> None:
    config.conf.write_text("a file\n")
    assert "cannot be written" in config.refusal(code=1)
