from __future__ import annotations

import pytest

from lock_manager import ResourceError, SettingsError
from writer_jobs.errors import ArgumentsError, RunError
from writer_jobs.job.append.arguments import parse_arguments
from writer_jobs.job.arguments import HelpShown

LEAST = ["--zookeeper", "zk:2181", "--table", "s3a://lake/t", "--source", "a.csv"]


def test_what_is_not_given_has_its_default() -> None:
    found = parse_arguments(LEAST)
    assert (found.zookeeper, found.table, found.sources) == ("zk:2181", "s3a://lake/t", ("a.csv",))
    assert (found.format, found.options, found.partition_by, found.commits) == (None, {}, (), 1)
    assert (found.lock_timeout, found.run_id, found.report, found.verbose) == (None, None, None, False)
    assert found.metrics is None
    assert found.lock_settings().timeout_seconds == 300
    found.check()


def test_everything_can_be_given() -> None:
    found = parse_arguments([
        *LEAST, "b.csv", "--source", "c.csv", "--format", "csv", "--partition-by", "year, month", "--commits", "8",
        "--lock-timeout", "2.5", "--run-id", "r", "--report", "s3a://lake/r.json", "--option", "sep==",
        "--option", "a=", "--null-value", "NA", "--metrics", "9464", "--verbose",
    ])  # fmt: skip
    assert found.sources == ("a.csv", "b.csv", "c.csv")
    assert found.partition_by == ("year", "month")
    assert found.options == {"sep": "=", "a": "", "nullValue": "NA"}
    assert (found.commits, found.run_id, found.report, found.verbose) == (8, "r", "s3a://lake/r.json", True)
    assert found.metrics == "9464"
    assert found.lock_settings().timeout_seconds == 2.5


def test_the_ensemble_may_come_from_the_environment_and_the_line_goes_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICE_ZK_HOSTS", "other:1")
    monkeypatch.setenv("SLUICE_SESSION_TIMEOUT_SECONDS", "7")
    settings = parse_arguments(LEAST[2:]).lock_settings()
    assert (settings.zk_hosts, settings.session_timeout_seconds) == ("other:1", 7)
    assert parse_arguments(LEAST).lock_settings().zk_hosts == "zk:2181"


@pytest.mark.parametrize(
    "more",
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
def test_what_cannot_be_parsed_is_one_sentence(more: list[str]) -> None:
    arguments = [*LEAST[:4], *more, *LEAST[4:]]
    with pytest.raises(ArgumentsError, match="--help explains") as refused:
        parse_arguments(arguments)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (["--zookeeper", "zk1,,zk2"], SettingsError),
        (["--lock-timeout", "-1"], SettingsError),
        (["--table", "s3a:///no-bucket"], ResourceError),
        (["--run-id", "two\nlines"], RunError),
        (["--metrics", "metrics.txt"], SettingsError),
        (["--run-id", "x" * 129], RunError),
    ],
)
def test_values_are_checked_before_anything_is_started(more: list[str], error: type[Exception]) -> None:
    with pytest.raises(error):
        parse_arguments([*LEAST, *more]).check()


@pytest.mark.parametrize("name", ["fs.s3a.secret.key", "FS.azure.account.key", " Fs.s3a.endpoint"])
def test_settings_of_a_file_system_are_no_reader_options(name: str) -> None:
    found = parse_arguments([*LEAST, "--option", "sep=;", "--option", f"{name}=a-secret"])
    with pytest.raises(ArgumentsError, match=f"--conf spark.hadoop.{name.strip()}=") as refused:
        found.check()
    assert "a-secret" not in f"{refused.value} {found!r}"


def test_without_an_ensemble_the_option_and_the_variable_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_ZK_HOSTS", raising=False)
    with pytest.raises(SettingsError, match="set SLUICE_ZK_HOSTS=host:port,… or give --zookeeper host:port,…"):
        parse_arguments(LEAST[2:]).check()


def test_an_option_without_a_value_is_not_repeated() -> None:
    with pytest.raises(ArgumentsError, match="expected KEY=VALUE") as refused:
        parse_arguments([*LEAST, "--option", "a-secret"])
    assert "a-secret" not in str(refused.value)


def test_help_is_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HelpShown):
        parse_arguments(["-h"])
    said = capsys.readouterr().out
    assert "exit codes:" in said
    assert max(map(len, said.splitlines())) <= 120
