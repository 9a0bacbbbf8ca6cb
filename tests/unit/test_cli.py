"""The command line: what it prints where, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from arro3.core import Array, DataType, Table
from deltalake import write_deltalake
from typer.testing import CliRunner

from lock_manager.column_names import split_column_names
from sluice.commands.app import app

ROOT = Path(__file__).parents[2]
COMMANDS = [
    "demo", "verify", "log", "adopt", "pins", "health", "jars", "dist", "status", "break", "doctor",
    "submit-args", "sample", "zookeeper", "ensemble", "config",
]  # fmt: skip


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def run() -> CliRunner:
    return CliRunner()


@pytest.fixture
def table(tmp_path: Path) -> str:
    for _ in range(2):
        data = Table.from_pydict({"id": Array([1, 2, 3], type=DataType.int64())})
        write_deltalake(tmp_path / "flights", data, mode="append")
    return str(tmp_path / "flights")


def sluice(*arguments: str, program: str = "from sluice.cli import main; main()") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)


def test_help_names_every_command_and_every_command_has_help(run: CliRunner) -> None:
    top = run.invoke(app, ["--help"])
    assert top.exit_code == 0
    for command in COMMANDS:
        assert command in top.output
        answer = run.invoke(app, [command, "--help"])
        assert answer.exit_code == 0
        assert f"Usage: sluice {command}" in answer.output
        assert "<bool>" not in answer.output
    for group, command in (("ensemble", "status"), ("ensemble", "ready"), ("config", "from-stack")):
        assert command in run.invoke(app, [group, "--help"]).output
        answer = run.invoke(app, [group, command, "--help"])
        assert answer.exit_code == 0
        assert f"Usage: sluice {group} {command}" in answer.output
    assert "sluice demo --compare" in run.invoke(app, ["demo", "-h"]).output


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("id, flight", ("id", "flight")),
        (" `a,b` ,c", ("a,b", "c")),
        ("c,`x``y`", ("c", "x`y")),
        ("", ("",)),
        ("a,,b,", ("a", "", "b", "")),
        ("a b", ("a b",)),
    ],
)
def test_backticks_quote_a_column_name_with_a_comma(text: str, names: tuple[str, ...]) -> None:
    assert split_column_names(text) == names
    for torn in (f"`a,{text}", f"`a`b,{text}"):
        with pytest.raises(ValueError, match="backtick"):
            split_column_names(torn.replace("``", ""))


def test_a_sound_table_is_exit_code_0(run: CliRunner, table: str) -> None:
    answer = run.invoke(app, ["verify", table])
    assert answer.exit_code == 0
    assert "sound" in answer.output
    assert "NOT SOUND" not in answer.output


def test_a_check_that_fails_is_exit_code_1_and_is_told(run: CliRunner, table: str) -> None:
    answer = run.invoke(app, ["verify", table, "--key", " id "])
    assert answer.exit_code == 1
    assert "problem: 3 duplicate rows by (id), for example (1) 2 times; (2) 2 times; (3) 2 times" in answer.output
    assert "NOT SOUND" in answer.output


def test_sample_writes_flights_once(run: CliRunner, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "landing"
    answer = run.invoke(app, ["sample", str(folder)])
    assert (answer.exit_code, answer.stderr) == (0, "")
    paths = [Path(line) for line in answer.stdout.splitlines()]
    assert [path.name for path in paths] == ["flights-2013-01.csv", "flights-2013-10.csv", "flights-2013-11.csv"]
    texts = [path.read_text() for path in paths]
    assert [len(text.splitlines()) for text in texts] == [31, 31, 31]
    assert ",NA," not in "".join(texts)
    times = [path.stat().st_mtime_ns for path in paths]
    assert run.invoke(app, ["sample", str(folder)]).exit_code == 0
    assert [path.stat().st_mtime_ns for path in paths] == times
    paths[0].write_text("mine\n")
    for target in (folder, paths[0]):
        answer = run.invoke(app, ["sample", str(target)])
        assert (answer.exit_code, answer.stdout) == (2, "")
        assert "choose another folder" in answer.stderr
    assert paths[0].read_text() == "mine\n"


def test_json_is_for_programs(run: CliRunner, table: str) -> None:
    answer = run.invoke(app, ["verify", table, "--key", "id", "--json"])
    assert answer.exit_code == 1
    found = json.loads(answer.stdout)
    assert (found["ok"], found["duplicate_rows"], found["rows_found"]) == (False, 3, 6)
    assert len(found["problems"]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing/here"], "there is no Delta table at"),
        (["gs://bucket/table"], "only s3://, s3a://, file: and local paths"),
        (["TABLE", "--key", "id,flight"], "the table has no column 'flight'; it has id"),
        (["TABLE", "--key", "id,`a,b`"], "the table has no column 'a,b'; it has id"),
    ],
)
def test_bad_arguments_are_one_sentence_and_exit_code_2(
    run: CliRunner, table: str, arguments: list[str], said: str
) -> None:
    answer = run.invoke(app, ["verify", *(table if word == "TABLE" else word for word in arguments)])
    assert answer.exit_code == 2
    assert answer.stdout == ""
    assert answer.stderr.startswith("sluice: ")
    assert said in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_verbose_adds_the_stack_trace(run: CliRunner) -> None:
    answer = run.invoke(app, ["verify", "nothing/here", "--verbose"])
    assert answer.exit_code == 2
    assert "Traceback" in answer.stderr
    assert answer.stderr.splitlines()[-1].startswith("sluice: there is no Delta table")


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "t", "--storage-option", "novalue"],
        ["verify", "t", "--clock-skew", "-1"],
        ["demo", "--storage", "tape"],
        ["demo", "--writers", "0"],
        ["demo", "--writers", "3", "--commits", "2"],
        ["zookeeper", "--servers", "2"],
        ["status", "t", "--zookeeper", "127.0.0.1:1"],
        ["status", "--zookeeper", "no host"],
        ["status", "--zookeeper", "127.0.0.1:1", "--fail-if-waiting", "-1"],
        ["break"],
        ["doctor", "--zookeeper", "127.0.0.1:1", "--table", "s3://lake/t", "--bucket", "lake"],
        ["doctor", "--zookeeper", "127.0.0.1:1", "--table", "gs://lake/t"],
        ["ensemble", "status", "--zookeeper", "no host"],
        ["ensemble", "ready", "--zookeeper", "127.0.0.1:1", "--expect", "0"],
        ["ensemble", "ready", "--zookeeper", "127.0.0.1:1", "--wait", "-1"],
        ["no-such-command"],
    ],
)
def test_options_out_of_range_are_exit_code_2(run: CliRunner, arguments: list[str]) -> None:
    answer = run.invoke(app, arguments)
    assert answer.exit_code == 2
    assert "Traceback" not in answer.output


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["break", "/t"], ["adopt", "/t"], ["ensemble", "status"], ["ensemble", "ready"]],
)
def test_without_an_ensemble_the_option_and_the_variable_are_named(
    run: CliRunner, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICE_ZK_HOSTS", raising=False)
    answer = run.invoke(app, arguments)
    assert answer.exit_code == 2
    assert "no ensemble given: set SLUICE_ZK_HOSTS=host:port,… or give --zookeeper host:port,…" in answer.stderr
    assert "zk_hosts" not in answer.output


def test_doctor_without_an_ensemble_checks_the_machine(
    run: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLUICE_ZK_HOSTS", " ")
    answer = run.invoke(app, ["doctor", "--json", "--table", str(tmp_path)])
    assert answer.exit_code == 1
    verdicts = {finding["what"]: finding["verdict"] for finding in json.loads(answer.stdout)}
    assert list(verdicts) == ["ensemble", "python", "java", "jars", "log store", "spark defaults", "put-if-absent"]
    assert [check for check, verdict in verdicts.items() if verdict == "failed"] == ["ensemble"]


def test_missing_jars_are_told_before_anything_is_started(
    run: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_JARS", str(tmp_path / "empty"))
    answer = run.invoke(app, ["demo", "--output", str(tmp_path / "demo")])
    assert answer.exit_code == 1
    assert "run `sluice jars` once" in answer.stderr
    assert not (tmp_path / "demo").exists()


def test_a_folder_of_somebody_else_is_not_used_for_output(run: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    answer = run.invoke(app, ["demo", "--output", str(tmp_path)])
    assert answer.exit_code == 2
    assert "choose another --output" in answer.stderr


def test_the_zip_is_built_and_named_in_the_spark_submit_arguments(run: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "with space" / "sluice.zip"
    built = run.invoke(app, ["dist", "--output", str(path)])
    assert built.exit_code == 0
    assert built.stdout == f"{path}\n"
    assert path.is_file()
    answer = run.invoke(app, ["submit-args", "--zip", str(path)])
    assert answer.exit_code == 0
    assert f"--py-files '{path}'" in answer.stdout


def test_the_command_and_the_module_are_the_same_program() -> None:
    version = sluice("--version")
    assert version.returncode == 0
    assert version.stdout.startswith("sluice ")
    module = sluice("--version", program="import runpy, sys; runpy.run_module('sluice', run_name='__main__')")
    assert module.stdout == version.stdout
    assert sluice("verify", "nothing/here").returncode == 2


@pytest.mark.parametrize(
    ("package", "arguments"), [("typer", ["--help"]), ("rich", ["--help"]), ("deltalake", ["verify", "t"])]
)
def test_a_missing_package_of_the_extra_is_told_in_a_sentence(package: str, arguments: list[str]) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; from sluice.cli import main; main()"
    answer = sluice(*arguments, program=program)
    assert answer.returncode == 1
    assert answer.stderr == f"sluice: {package} is not installed: pip install '.[cli]' in a clone of Sluice\n"


def test_a_missing_module_of_another_kind_is_a_bug_and_is_shown_as_one() -> None:
    program = "import sys; sys.modules['json'] = None; from sluice.cli import main; main()"
    answer = sluice("--help", program=program)
    assert answer.returncode == 1
    assert "Traceback" in answer.stderr
