"""Arguments of the append job: defaults, values, and errors of one line without secrets."""

from __future__ import annotations

import pytest

from lock_manager import ResourceError, SettingsError
from writer_jobs.errors import ArgumentsError, RunError
from writer_jobs.job.append.arguments import parse_arguments
from writer_jobs.job.arguments import HelpShown, report_uri

REQUIRED = ["--zookeeper", "zk:2181", "--table", "s3a://lake/t", "--source", "a.csv"]


def test_options_have_defaults() -> None:
    arguments = parse_arguments(REQUIRED)
    assert (arguments.zookeeper, arguments.table, arguments.sources) == ("zk:2181", "s3a://lake/t", ("a.csv",))
    assert (arguments.format, arguments.options, arguments.partition_by, arguments.commits) == (None, {}, (), 1)
    assert (arguments.lock_timeout, arguments.run_id, arguments.report, arguments.verbose) == (None, None, None, False)
    assert arguments.metrics is None
    assert arguments.lock_settings().timeout_seconds == 300
    arguments.check()


def test_options_are_parsed() -> None:
    arguments = parse_arguments([
        *REQUIRED, "b.csv", "--source", "c.csv", "--format", "csv", "--partition-by", "year, month", "--commits", "8",
        "--lock-timeout", "2.5", "--run-id", "r", "--report", "s3a://lake/r.json", "--option", "sep==",
        "--option", "a=", "--null-value", "NA", "--metrics", "9464", "--verbose",
    ])  # fmt: skip
    assert arguments.sources == ("a.csv", "b.csv", "c.csv")
    assert arguments.partition_by == ("year", "month")
    assert arguments.options == {"sep": "=", "a": "", "nullValue": "NA"}
    assert (arguments.commits, arguments.run_id, arguments.report) == (8, "r", "s3a://lake/r.json")
    assert (arguments.verbose, arguments.metrics) == (True, "9464")
    assert arguments.lock_settings().timeout_seconds == 2.5


def test_the_command_line_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_ZK_HOSTS", "other:1")
    monkeypatch.setenv("SLUICE_SESSION_TIMEOUT_SECONDS", "7")
    settings = parse_arguments(REQUIRED[2:]).lock_settings()
    assert (settings.zk_hosts, settings.session_timeout_seconds) == ("other:1", 7)
    assert parse_arguments(REQUIRED).lock_settings().zk_hosts == "zk:2181"


@pytest.mark.parametrize(
    "extra",
    [
        ["--commits", "0"],
        ["--commits", "1.5"],
        ["--commits", "10001"],
        ["--partition-by", "a,A"],
        ["--partition-by", ""],
        ["--option", "=x"],
        ["--report", " "],
        ["--comm", "3"],
        ["surplus"],
    ],
)
def test_a_parse_error_is_one_line(extra: list[str]) -> None:
    arguments = [*REQUIRED[:4], *extra, *REQUIRED[4:]]
    with pytest.raises(ArgumentsError, match="see --help") as error:
        parse_arguments(arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("extra", "error"),
    [
        (["--zookeeper", "zk1,,zk2"], SettingsError),
        (["--lock-timeout", "-1"], SettingsError),
        (["--table", "s3a:///no-bucket"], ResourceError),
        (["--run-id", "two\nlines"], RunError),
        (["--metrics", "metrics.txt"], SettingsError),
        (["--run-id", "x" * 129], RunError),
    ],
)
def test_check_refuses_invalid_values(extra: list[str], error: type[Exception]) -> None:
    with pytest.raises(error):
        parse_arguments([*REQUIRED, *extra]).check()


@pytest.mark.parametrize("name", ["fs.s3a.secret.key", "FS.azure.account.key", " Fs.s3a.endpoint"])
def test_file_system_settings_are_refused_as_reader_options(name: str) -> None:
    arguments = parse_arguments([*REQUIRED, "--option", "sep=;", "--option", f"{name}=a-secret"])
    with pytest.raises(ArgumentsError, match=f"--conf spark.hadoop.{name.strip()}=") as error:
        arguments.check()
    assert "a-secret" not in f"{error.value} {arguments!r}"


def test_a_missing_ensemble_names_the_option_and_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_ZK_HOSTS", raising=False)
    with pytest.raises(SettingsError, match="set SLUICE_ZK_HOSTS=host:port,… or give --zookeeper host:port,…"):
        parse_arguments(REQUIRED[2:]).check()


def test_an_error_does_not_repeat_an_option_without_value() -> None:
    with pytest.raises(ArgumentsError, match="expected KEY=VALUE") as error:
        parse_arguments([*REQUIRED, "--option", "a-secret"])
    assert "a-secret" not in str(error.value)


@pytest.mark.parametrize(
    ("argv", "uri"),
    [
        (["--table", "t"], None),
        (["--commits", "0", "--report", "s3a://lake/r.json"], "s3a://lake/r.json"),
        (["--report=r.json", "--unknown", "x"], "r.json"),
        (["--report"], None),
        (["--report", " "], None),
    ],
)
def test_an_invalid_command_line_still_names_the_report(argv: list[str], uri: str | None) -> None:
    assert report_uri(argv) == uri


def test_help_lists_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HelpShown):
        parse_arguments(["-h"])
    help_text = capsys.readouterr().out
    assert "exit codes:" in help_text
    assert max(map(len, help_text.splitlines())) <= 120
