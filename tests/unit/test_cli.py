"""The command line: its output, its error messages and its exit codes."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from arro3.core import Array, DataType, Table
from click.testing import Result
from deltalake import write_deltalake
from typer.testing import CliRunner

import writer_jobs
from lock_manager.column_names import split_column_names
from sluice.commands.app import app
from sluice.commands.cluster import Job

ROOT = Path(__file__).parents[2]
COMMANDS: list[tuple[str, ...]] = []
"""Each command without subcommands, with the name of its group."""
for name, command in typer.main.get_group(app).commands.items():
    COMMANDS += [(name, subcommand) for subcommand in getattr(command, "commands", ())] or [(name,)]


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.fixture
def table(tmp_path: Path) -> str:
    for _ in range(2):
        data = Table.from_pydict({"id": Array([1, 2, 3], type=DataType.int64())})
        write_deltalake(tmp_path / "flights", data, mode="append")
    return str(tmp_path / "flights")


def run_process(
    *arguments: str, program: str = "from sluice.cli import main; main()"
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)


def test_help_names_every_command_and_every_command_has_help() -> None:
    overview = run("--help")
    assert overview.exit_code == 0
    assert {("verify",), ("ensemble", "ready"), ("config", "from-stack")} <= set(COMMANDS)
    for command in COMMANDS:
        assert command[0] in overview.output
        assert command[-1] in run(*command[:-1], "--help").output
        result = run(*command, "--help")
        assert result.exit_code == 0
        assert f"Usage: sluice {' '.join(command)}" in result.output
        assert "<bool>" not in result.output
    assert "sluice demo --compare" in run("demo", "-h").output


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


@pytest.mark.parametrize("text", ["`a", "`a,b", "`a`b", "`a`b,c", "c,`a", "`a,`b`"])
def test_a_misplaced_backtick_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="backtick"):
        split_column_names(text)


def test_verify_of_a_sound_table_exits_with_code_0(table: str) -> None:
    result = run("verify", table)
    assert result.exit_code == 0
    assert "sound" in result.output
    assert "NOT SOUND" not in result.output


def test_a_failed_check_exits_with_code_1_and_a_message(table: str) -> None:
    result = run("verify", table, "--key", " id ")
    assert result.exit_code == 1
    assert "problem: 3 duplicate rows by (id), for example (1) 2 times; (2) 2 times; (3) 2 times" in result.output
    assert "NOT SOUND" in result.output


def test_sample_writes_flights_once(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "landing"
    result = run("sample", str(folder))
    assert (result.exit_code, result.stderr) == (0, "")
    paths = [Path(line) for line in result.stdout.splitlines()]
    assert [path.name for path in paths] == ["flights-2013-01.csv", "flights-2013-10.csv", "flights-2013-11.csv"]
    texts = [path.read_text() for path in paths]
    assert [len(text.splitlines()) for text in texts] == [31, 31, 31]
    assert ",NA," not in "".join(texts)
    modification_times = [path.stat().st_mtime_ns for path in paths]
    assert run("sample", str(folder)).exit_code == 0
    assert [path.stat().st_mtime_ns for path in paths] == modification_times
    paths[0].write_text("mine\n")
    for target in (folder, paths[0]):
        result = run("sample", str(target))
        assert (result.exit_code, result.stdout) == (2, "")
        assert "choose another folder" in result.stderr
    assert paths[0].read_text() == "mine\n"


def test_json_output_has_the_fields_of_verify(table: str) -> None:
    result = run("verify", table, "--key", "id", "--json")
    assert result.exit_code == 1
    output = json.loads(result.stdout)
    assert (output["ok"], output["duplicate_rows"], output["rows_found"]) == (False, 3, 6)
    assert len(output["problems"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing/here"], "there is no Delta table at"),
        (["gs://bucket/table"], "only s3://, s3a://, file: and local paths"),
        (["TABLE", "--key", "id,flight"], "the table has no column 'flight'; it has id"),
        (["TABLE", "--key", "id,`a,b`"], "the table has no column 'a,b'; it has id"),
    ],
)
def test_invalid_arguments_are_one_message_and_exit_code_2(table: str, arguments: list[str], message: str) -> None:
    result = run("verify", *(table if word == "TABLE" else word for word in arguments))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("sluice: ")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_verbose_adds_the_stack_trace() -> None:
    result = run("verify", "nothing/here", "--verbose")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("sluice: there is no Delta table")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("verify t --storage-option novalue", "--storage-option: expected KEY=VALUE"),
        ("verify t --clock-skew -1", "'--clock-skew': Input should be greater than or equal to 0"),
        ("demo --storage tape", "'tape' is not one of 's3', 'local'"),
        ("demo --writers 0", "'--writers': Input should be greater than or equal to 1"),
        ("demo --writers 3 --commits 2", "--commits 2: must be at least --writers 3"),
        ("zookeeper --servers 2", "--servers: must be 1 or 3"),
        ("status t --zookeeper 127.0.0.1:1", "'t' is neither a URI nor a path"),
        ("status --zookeeper 'no host'", "'no host' is not host:port"),
        ("status --zookeeper 127.0.0.1:1 --fail-if-waiting -1", "'--fail-if-waiting': Input should be greater than"),
        ("break", "Missing argument 'table'"),
        ("doctor --zookeeper 127.0.0.1:1 --table s3://lake/t --bucket lake", "--bucket: cannot be combined with"),
        ("doctor --zookeeper 127.0.0.1:1 --table gs://lake/t", "only s3://, s3a://, file: and local paths"),
        ("ensemble status --zookeeper 'no host'", "'no host' is not host:port"),
        ("ensemble ready --zookeeper 127.0.0.1:1 --expect 0", "'--expect': Input should be greater than or equal to 1"),
        ("ensemble ready --zookeeper 127.0.0.1:1 --wait -1", "'--wait': Input should be greater than or equal to 0"),
        ("no-such-command", "No such command 'no-such-command'"),
    ],
)
def test_invalid_arguments_exit_with_code_2_and_a_message(command: str, message: str) -> None:
    result = run(*shlex.split(command))
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["break", "/t"], ["adopt", "/t"], ["ensemble", "status"], ["ensemble", "ready"]],
)
def test_the_error_for_a_missing_ensemble_names_both_settings(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICE_ZK_HOSTS", raising=False)
    result = run(*arguments)
    assert result.exit_code == 2
    assert "no ensemble given: set SLUICE_ZK_HOSTS=host:port,… or give --zookeeper host:port,…" in result.stderr
    assert "zk_hosts" not in result.output


def test_doctor_without_an_ensemble_checks_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLUICE_ZK_HOSTS", " ")
    result = run("doctor", "--json", "--table", str(tmp_path))
    assert result.exit_code == 1
    verdicts = {finding["what"]: finding["verdict"] for finding in json.loads(result.stdout)}
    assert list(verdicts) == [
        "ensemble",
        "python",
        "java",
        "spark",
        "jars",
        "log store",
        "spark defaults",
        "put-if-absent",
    ]
    assert [check for check, verdict in verdicts.items() if verdict == "failed"] == ["ensemble"]


def test_the_demo_checks_its_jars_before_it_creates_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_JARS", str(tmp_path / "empty"))
    result = run("demo", "--output", str(tmp_path / "demo"))
    assert result.exit_code == 1
    assert "run `sluice jars` once" in result.stderr
    assert not (tmp_path / "demo").exists()


def test_the_demo_refuses_a_folder_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    result = run("demo", "--output", str(tmp_path))
    assert result.exit_code == 2
    assert "choose another --output" in result.stderr


def test_submit_args_names_the_zip_that_dist_builds(tmp_path: Path) -> None:
    path = tmp_path / "with space" / "sluice.zip"
    dist = run("dist", "--output", str(path))
    assert (dist.exit_code, dist.stdout) == (0, f"{path}\n")
    assert path.is_file()
    submit_args = run("submit-args", "--zip", str(path))
    assert submit_args.exit_code == 0
    assert f"--py-files '{path}'" in submit_args.stdout
    for job in Job:
        with_job = run("submit-args", job, "--zip", str(path))
        assert with_job.stdout == f"{submit_args.stdout.strip()} {Path(writer_jobs.__file__).with_name(f'{job}.py')}\n"
        assert Path(shlex.split(with_job.stdout)[-1]).is_file()


def test_the_command_and_the_module_are_the_same_program() -> None:
    version = run_process("--version")
    assert version.returncode == 0
    assert version.stdout.startswith("sluice ")
    module = run_process("--version", program="import runpy, sys; runpy.run_module('sluice', run_name='__main__')")
    assert module.stdout == version.stdout
    assert run_process("verify", "nothing/here").returncode == 2


@pytest.mark.parametrize(
    ("package", "arguments"), [("typer", ["--help"]), ("rich", ["--help"]), ("deltalake", ["verify", "t"])]
)
def test_the_error_for_a_missing_package_names_the_extra(package: str, arguments: list[str]) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; from sluice.cli import main; main()"
    process = run_process(*arguments, program=program)
    assert process.returncode == 1
    assert process.stderr == f"sluice: {package} is not installed: pip install '.[cli]' in a clone of Sluice\n"


def test_another_missing_module_is_a_bug_with_a_traceback() -> None:
    program = "import sys; sys.modules['json'] = None; from sluice.cli import main; main()"
    process = run_process("--help", program=program)
    assert process.returncode == 1
    assert "Traceback" in process.stderr
