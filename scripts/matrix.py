"""Test each supported pair of Spark and Delta Lake, and print a table of the results for docs/compatibility.md.

    python scripts/matrix.py                      # all pairs: about 7 minutes each on two processors
    python scripts/matrix.py 4.1/4.2.0 --quick    # one pair, only the demo and the tests of CI
    python scripts/matrix.py 4.2/4.4.0 --python 3.13   # another Python; JAVA_HOME chooses another Java

For each pair it creates a virtual environment below build/matrix, installs the wheel with that PySpark and Delta,
downloads the jars, appends a file from an empty folder as a user without a clone does, runs the demo with two writers,
and runs the core tests of this clone. The output of each step is in build/matrix/PAIR/STEP.log. A pair that fails does
not stop the other pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from lock_manager.releases import TESTED
from lock_manager.testing.embedded import free_ports

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
BUILD = ROOT / "build" / "matrix"
#: The newest PySpark of each Spark line that the Delta releases of the line accept.
PYSPARK = {"4.2": "4.2.0", "4.1": "4.1.1", "4.0": "4.0.2"}
#: Seconds for a command of a step.
LIMITS = {"install": 900, "append": 600, "demo": 600, "tests": 1800}
#: Seconds between SIGTERM and SIGKILL.
GRACE = 15
#: Rows of ``sluice sample``.
SAMPLE_ROWS = 90
#: The results of a pair in the order of the table's columns, with the step of each.
RESULTS = {
    "hadoop": "install", "java": "install", "python": "install", "append": "append", "tests": "tests", "demo": "demo",
}  # fmt: skip
#: Requirements that depend on the pair.
_PAIR_REQUIREMENTS = ("pyspark", "py4j", "delta-spark", "importlib-metadata")

#: The log store, the guard, the gate, the writer and its jobs, faults of S3, and the calls that differ between releases
#: (``writer_jobs/delta/releases.py``, ``DeltaApi.java``).
CORE = (
    "tests/faults/test_promises.py",
    "tests/faults/test_machinery.py",
    "tests/integration/test_log_store.py",
    "tests/integration/test_log_listing.py",
    "tests/integration/test_conditional_put.py",
    "tests/integration/test_guard.py",
    "tests/integration/test_gate.py",
    "tests/integration/test_gate_hooks.py",
    "tests/integration/test_gate_reads.py",
    "tests/integration/test_gate_same.py",
    "tests/integration/test_group_commits.py",
    "tests/integration/test_light_commits.py",
    "tests/integration/test_automatic.py",
    "tests/integration/test_checkpoints.py",
    "tests/integration/test_writer.py",
    "tests/integration/test_every_way.py",
    # A merge confined to partitions: ConfinedTransaction.
    "tests/integration/test_writer_operations.py::test_unmatched_rows_are_changed_in_the_listed_partitions_only",
    "tests/integration/test_writer_operations.py::test_negative_control_delta_reads_all_partitions_for_unmatched_rows",
    "tests/integration/test_append_job.py",
    "tests/integration/test_upsert_job.py",
    "tests/integration/test_standalone.py",
    # A program with SluicePlugin.
    "tests/integration/test_unchanged_programs.py::test_a_python_program_runs_unchanged",
    # Plans that Spark analyzed, and progress of Spark's jobs.
    "tests/integration/test_lineage.py",
    "tests/integration/test_progress.py",
    "tests/unit/test_matrix.py",
    # Versions beyond the retention, and checkpoints: snapshot_at, has_checkpoint.
    "tests/integration/test_pins.py::test_a_pinned_version_is_readable_without_the_earlier_log",
    "tests/integration/test_pins.py::test_files_of_one_version_are_compared_with_another_version",
    "tests/integration/test_pins.py::test_changes_between_the_moment_and_the_pin_are_counted",
    "tests/integration/test_pins.py::test_vacuum_keeps_pinned_files_and_removes_unpinned_ones",
    "tests/integration/test_snapshot_job.py::test_changes_before_the_log_s_retention_are_not_counted",
    "tests/integration/test_maintenance.py::test_growth_is_the_average_of_the_last_week",
    # Removal of old versions: DeltaApi.cleanUpExpiredLogs.
    "tests/integration/test_maintenance_keeps.py::test_the_expired_log_is_removed_up_to_a_checkpoint",
    "tests/integration/test_maintenance_keeps.py::test_the_log_keeps_the_versions_of_a_pin_and_a_stream",
    # Deletion vectors and compaction.
    "tests/integration/test_maintenance.py::test_small_files_are_compacted_by_partition",
    "tests/integration/test_maintenance.py::test_deleted_rows_are_purged",
    # Faults of a put, and a writer that continues after the loss of its lock.
    "tests/faults/test_unknown.py::test_a_writer_finds_its_commit_after_lost_reply_and_lock",
    "tests/faults/test_unknown.py::test_a_later_block_of_the_hold_fills_the_version_of_a_put",
    "tests/faults/test_spark_drivers.py::test_responses_of_s3_neither_lose_nor_duplicate_a_commit",
    "tests/faults/test_spark_drivers.py::test_a_cut_off_holder_is_refused_after_a_takeover",
    "tests/faults/test_spark_drivers.py::test_negative_control_without_the_guard_a_cut_off_holder_commits",
)
#: Core tests that are not run with some pairs.
EXCLUDED = {
    # Delta 4.0 reads versions beyond the retention, so their changes are counted.
    "tests/integration/test_snapshot_job.py::test_changes_before_the_log_s_retention_are_not_counted": (
        "4.0/4.0.1", "4.0/4.0.0",
    ),
    # REORG fails with Delta 4.0.0 on Spark 4.0.1 and later.
    "tests/integration/test_maintenance.py::test_deleted_rows_are_purged": ("4.0/4.0.0",),
}  # fmt: skip
#: One test of each promise that depends on the calls that differ between the releases.
QUICK = (
    "tests/integration/test_conditional_put.py::test_a_store_that_ignores_the_condition_gets_no_commit",
    "tests/integration/test_conditional_put.py::test_a_store_that_honours_the_condition_loses_no_commit",
    "tests/integration/test_guard.py::test_on_s3_a_commit_needs_the_lock",
    "tests/integration/test_guard.py::test_another_hold_of_the_process_does_not_replace_a_lost_one",
    "tests/integration/test_guard.py::test_ctrl_c_releases_the_lock_and_refuses_the_commit",
    "tests/integration/test_group_commits.py::test_the_checksum_of_a_group_commit_covers_all_of_its_files",
    "tests/integration/test_gate.py::test_rows_are_written_before_the_lock",
    "tests/integration/test_gate.py::test_a_lock_lost_before_the_put_commits_nothing",
    "tests/integration/test_gate.py::test_ctrl_c_ends_a_write_that_waits_at_the_gate",
    "tests/integration/test_writer_operations.py::test_unmatched_rows_are_changed_in_the_listed_partitions_only",
    "tests/integration/test_lineage.py::test_a_merge_names_its_sources_its_table_and_its_version",
    "tests/integration/test_progress.py::test_a_terminal_shows_the_wait_with_its_holder",
)


class StepError(Exception):
    """A step failed; the message names the log."""


@dataclass
class Pair:
    """A Spark line, a Delta release, and their test environment."""

    spark: str
    delta: str
    python: str = sys.executable
    seconds: dict[str, float] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    processes: set[subprocess.Popen[bytes]] = field(default_factory=set, repr=False)

    @property
    def name(self) -> str:
        """The name on the command line."""
        return f"{self.spark}/{self.delta}"

    @property
    def folder(self) -> Path:
        """The folder of the environment and the logs."""
        return BUILD / f"spark-{self.spark}-delta-{self.delta}"

    @property
    def bin(self) -> Path:
        """The environment's programs."""
        return self.folder / "venv" / "bin"

    def environment(self) -> dict[str, str]:
        """Return the variables of its processes, without those that select another Spark or Python."""
        removed = re.compile(r"SPARK_.*|HADOOP_CONF_DIR|PYSPARK_.*|PYTHONPATH|SLUICE_(JARS|DELTA)|VIRTUAL_ENV")
        variables = {name: value for name, value in os.environ.items() if not removed.fullmatch(name)}
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return {**variables, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", "VIRTUAL_ENV": str(self.folder / "venv")}

    @contextmanager
    def start(self, log: Path, *command: object, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Start a command with its output in a log; at the end of the block, stop it and its children."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                [str(word) for word in command], cwd=folder, env=self.environment(), stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.processes.add(process)
        try:
            yield process
        finally:
            stop(process)
            self.processes.discard(process)

    def run(self, step: str, *command: object, folder: Path = ROOT, log: str = "") -> str:
        """Run a command with its output in the step's log; return the log.

        Args:
            step: Name of the step, which limits the time of the command.
            command: Program and arguments.
            folder: Working directory.
            log: Name of the log if it is not the step's.

        Raises:
            StepError: The command failed, or was stopped because it took too long.

        """
        path = self.folder / f"{log or step}.log"
        limit = LIMITS[step]
        with self.start(path, *command, folder=folder) as process:
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                raise StepError(f"{self.name}: {step} took more than {limit} s, see {path}") from None
        if code != 0:
            raise StepError(f"{self.name}: {step} ended with {code}, see {path}")
        return path.read_text(encoding="utf-8", errors="replace")

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a step and announce it."""
        print(f"{self.name}: {name} …", file=sys.stderr, flush=True)
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - started
            print(f"{self.name}: {name}: {self.seconds[name]:.0f} s", file=sys.stderr, flush=True)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process and its children: SIGTERM if it still runs, then SIGKILL."""
    if process.poll() is None:
        signal_group(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    signal_group(process, signal.SIGKILL)
    process.wait()


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a process and its children, if one of them still runs."""
    # macOS refuses a signal to a group whose processes have ended.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def install(pair: Pair, wheel: Path) -> None:
    """Create the environment: the pinned requirements, this pair's PySpark and Delta, the wheel and the jars."""
    shutil.rmtree(pair.folder, ignore_errors=True)
    pair.folder.mkdir(parents=True)
    pinned = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    requirements = pair.folder / "requirements.txt"
    independent = "".join(line for line in pinned if line.partition("==")[0] not in _PAIR_REQUIREMENTS)
    requirements.write_text(independent, encoding="utf-8")
    pair.run("install", UV, "venv", "--quiet", "--python", pair.python, pair.folder / "venv")
    spark, delta = f"pyspark=={PYSPARK[pair.spark]}", f"delta-spark=={pair.delta}"
    pair.run("install", UV, "pip", "install", "--quiet", "-r", requirements, spark, delta, f"{wheel}[spark,cli]")
    pair.run("install", pair.bin / "sluice", "jars", folder=pair.folder)
    doctor = ("bash", "-c", "sluice doctor --json || true")
    findings = pair.run("install", *doctor, folder=pair.folder, log="doctor")
    (releases,) = (finding["says"] for finding in json.loads(findings) if finding["what"] == "spark")
    for name in ("Hadoop", "Java"):
        pair.results[name.lower()] = re.findall(rf"{name} ([\d.]+)", releases)[0]
    version = pair.run("install", pair.bin / "python", "--version", log="python")
    pair.results["python"] = re.findall(r"[\d.]+", version)[0]


def append(pair: Pair) -> None:
    """Append a file under the lock as a user without a clone does, from an empty folder."""
    folder = pair.folder / "user"
    folder.mkdir()
    pair.run("append", pair.bin / "sluice", "sample", "landing", folder=folder)
    (port,) = free_ports(1)
    hosts = f"127.0.0.1:{port}"
    ensemble = (pair.bin / "sluice", "zookeeper", "--port", port)
    with pair.start(pair.folder / "zookeeper.log", *ensemble, folder=folder):
        pair.run(
            "append", "bash", "-c",
            f"sluice ensemble ready --zookeeper {hosts} --expect 1 --wait 60 && spark-submit --master 'local[2]' "
            f"$(sluice submit-args append) --zookeeper {hosts} --table lake/flights --source landing/*.csv --commits 2 "
            "&& sluice verify lake/flights",
            folder=folder,
        )  # fmt: skip
    # A reader that is not Spark.
    count = "from deltalake import DeltaTable; print(DeltaTable('lake/flights').count())"
    rows = int(pair.run("append", pair.bin / "python", "-c", count, folder=folder, log="rows"))
    if rows != SAMPLE_ROWS:
        raise StepError(f"{pair.name}: the appended table has {rows} rows, not {SAMPLE_ROWS}")
    pair.results["append"] = f"{rows} rows"


def demo(pair: Pair) -> None:
    """Run the demo with two writers on an emulated S3."""
    output = pair.folder / "demo"
    options = ("--writers", "2", "--commits", "6", "--rows", "20000", "--output", output)
    pair.run("demo", pair.bin / "sluice", "demo", *options, folder=pair.folder)
    report = json.loads((output / "report.json").read_text(encoding="utf-8"))
    pair.results["demo"] = f"{report['rows_found']:,} rows, {report['lost_commits']} lost commits"


def core_tests(pair: Pair, tests: Sequence[str], workers: int, *, quick: bool) -> None:
    """Run tests of this clone in the environment of the pair; with ``quick``, none may be skipped."""
    command = (
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not soak", "-n", workers, "--no-loadscope-reorder",
    )  # fmt: skip
    excluded = [] if quick else [test for test, pairs in EXCLUDED.items() if pair.name in pairs]
    selection = [*tests, *(word for test in excluded for word in ("--deselect", test))]
    counts = outcomes(pair.run("tests", pair.bin / "python", *command, *selection))
    summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    if quick and (set(counts) != {"passed"} or counts["passed"] < len(tests)):
        log = pair.folder / "tests.log"
        raise StepError(f"{pair.name}: each test of CI must pass, but pytest reports {summary or 'no test'}; see {log}")
    pair.results["tests"] = f"{summary}, {len(excluded)} excluded" if excluded else summary


def outcomes(text: str) -> dict[str, int]:
    """Return the number of tests of each outcome from the last line of pytest's output."""
    summaries = re.findall(r"^(?:=+ )?(\d+ [a-z]+(?:, \d+ [a-z]+)*) in [\d.]+s", text, re.MULTILINE)
    counts = re.findall(r"(\d+) ([a-z]+)", summaries[-1] if summaries else "")
    return {outcome: int(count) for count, outcome in counts if not outcome.startswith(("warning", "deselected"))}


def table(pairs: Sequence[Pair], *, quick: bool = False) -> str:
    """Return the results as a Markdown table, for docs/compatibility.md."""
    tests = "tests of CI" if quick else "core tests"
    columns = ("Spark", "Delta Lake", "Hadoop", "Java", "Python", "append", tests, "demo, two writers", "seconds")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for pair in pairs:
        # The last step is the one that failed, if one failed.
        last = next(reversed(pair.seconds), "")
        results = [pair.results.get(key, "**failed**" if step == last else "not run") for key, step in RESULTS.items()]
        cells = [PYSPARK[pair.spark], pair.delta, *results, f"{sum(pair.seconds.values()):.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def durations(pair: Pair) -> str:
    """Return one line with the seconds of each step."""
    return f"{pair.name}: " + ", ".join(f"{step} {seconds:.0f} s" for step, seconds in pair.seconds.items())


def examine(pair: Pair, wheel: Path, workers: int, *, quick: bool) -> str | None:
    """Run the steps of a pair, with ``quick`` without the append; return the error of the step that failed."""
    steps: dict[str, Callable[[], None]] = {
        "install": lambda: install(pair, wheel),
        "append": lambda: append(pair),
        "demo": lambda: demo(pair),
        "tests": lambda: core_tests(pair, QUICK if quick else CORE, workers, quick=quick),
    }
    if quick:
        del steps["append"]
    for name, run in steps.items():
        try:
            with pair.step(name):
                run()
        except StepError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 (the other pairs and the table do not depend on this one)
            return f"{pair.name}: {name}: {type(error).__name__}: {error}; see the logs in {pair.folder}"
    return None


def main() -> None:
    """Test the pairs of the command line."""
    tested = [f"{spark}/{delta}" for spark in TESTED for delta in TESTED[spark]]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="*", metavar="SPARK/DELTA", help=f"pairs to test (default: {' '.join(tested)})")
    parser.add_argument("--quick", action="store_true", help="run only the demo and tests of CI, two pairs at a time")
    parser.add_argument("--python", default=sys.executable, help="interpreter, such as 3.13 (default: this one)")
    parser.add_argument("--workers", type=int, default=3, help="processes of pytest (default: %(default)s)")
    options = parser.parse_args()
    if unknown := sorted(set(options.pairs) - set(tested)):
        parser.error(f"{unknown[0]}: choose among {' '.join(tested)}")
    names = [name.partition("/") for name in options.pairs or tested]
    pairs = [Pair(spark, delta, options.python) for spark, _, delta in names]
    BUILD.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(BUILD / "wheel", ignore_errors=True)
    subprocess.run([UV, "build", "--quiet", "--wheel", "--out-dir", BUILD / "wheel", ROOT], check=True)
    (wheel,) = (BUILD / "wheel").glob("*.whl")
    signal.signal(signal.SIGTERM, interrupt)
    errors = examine_all(pairs, wheel, options.workers, quick=options.quick)
    print(table(pairs, quick=options.quick))
    print("", *map(durations, pairs), sep="\n")
    if failures := [error for error in errors if error]:
        sys.exit("\n".join(failures))


def interrupt(*_: object) -> None:
    """Treat the first SIGTERM, such as that of ``timeout``, as Ctrl-C."""
    # make and timeout may both send it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def examine_all(pairs: Sequence[Pair], wheel: Path, workers: int, *, quick: bool) -> list[str | None]:
    """Examine the pairs, with ``quick`` two at a time, until all are examined or Ctrl-C; return the error of each."""
    with ThreadPoolExecutor(2 if quick else 1) as pool:
        runs = [pool.submit(examine, pair, wheel, workers, quick=quick) for pair in pairs]
        try:
            wait(runs)
        except KeyboardInterrupt:
            for run in runs:
                run.cancel()
            # A step may start another process.
            while wait(runs, timeout=1).not_done:
                for process in [process for pair in pairs for process in tuple(pair.processes)]:
                    signal_group(process, signal.SIGTERM)
    return [f"{pair.name}: not run" if run.cancelled() else run.result() for pair, run in zip(pairs, runs, strict=True)]


if __name__ == "__main__":
    main()
