"""Test each supported pair of Spark and Delta Lake, and print the table of docs/compatibility.md.

    python scripts/matrix.py                      # all pairs: about 12 minutes each
    python scripts/matrix.py 4.1/4.2.0 --quick    # one pair, the tests of CI
    python scripts/matrix.py 4.2/4.4.0 --python 3.13   # another Python; JAVA_HOME chooses another Java

For each pair it creates a virtual environment below build/matrix, installs the wheel with that PySpark and Delta,
downloads the jars, appends a file from an empty folder as a user without a clone does, runs the demo with two writers,
and runs the core tests of this clone. The output of each step is in build/matrix/PAIR/STEP.log.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
BUILD = ROOT / "build" / "matrix"
#: The newest release of each line that its Delta accepts.
PYSPARK = {"4.2": "4.2.0", "4.1": "4.1.1", "4.0": "4.0.2"}
#: Requirements that depend on the pair.
_OF_THE_PAIR = ("pyspark", "py4j", "delta-spark", "importlib-metadata")

CORE = (
    "tests/faults/test_promises.py",
    "tests/integration/test_log_store.py",
    "tests/integration/test_conditional_put.py",
    "tests/integration/test_guard.py",
    "tests/integration/test_gate.py",
    "tests/integration/test_gate_same.py",
    "tests/integration/test_writer.py",
    "tests/integration/test_every_way.py",
    "tests/integration/test_append_job.py",
    "tests/integration/test_upsert_job.py",
    "tests/integration/test_standalone.py",
)
#: One test of each promise that depends on the calls that differ between the releases.
QUICK = (
    "tests/integration/test_conditional_put.py::test_a_store_that_ignores_the_condition_gets_no_commit",
    "tests/integration/test_conditional_put.py::test_a_store_that_honours_the_condition_loses_no_commit",
    "tests/integration/test_guard.py::test_on_s3_a_commit_needs_the_lock",
    "tests/integration/test_guard.py::test_another_hold_of_the_process_does_not_replace_a_lost_one",
    "tests/integration/test_guard.py::test_ctrl_c_releases_the_lock_and_refuses_the_commit",
    "tests/integration/test_gate.py::test_rows_are_written_before_the_lock",
    "tests/integration/test_gate.py::test_a_lock_lost_before_the_put_commits_nothing",
    "tests/integration/test_gate.py::test_ctrl_c_ends_a_write_that_waits_at_the_gate",
)


class StepError(Exception):
    """A step failed; the message names the log."""


@dataclass
class Pair:
    """A Spark line and a Delta release with the environment in which they are tested."""

    spark: str
    delta: str
    python: str = sys.executable
    seconds: dict[str, float] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)

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
        kept = {name: value for name, value in os.environ.items() if not removed.fullmatch(name)}
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return {**kept, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", "VIRTUAL_ENV": str(self.folder / "venv")}

    def run(self, step: str, *command: object, folder: Path = ROOT) -> str:
        """Run a command with its output in the step's log; return the output.

        Raises:
            StepError: The command failed.

        """
        log = self.folder / f"{step}.log"
        with log.open("a", encoding="utf-8") as output:
            process = subprocess.run(
                [str(word) for word in command], cwd=folder, env=self.environment(), stdout=output,
                stderr=subprocess.STDOUT, check=False,
            )  # fmt: skip
        text = log.read_text(encoding="utf-8")
        if process.returncode != 0:
            raise StepError(f"{self.name}: {step} ended with {process.returncode}, see {log.relative_to(ROOT)}")
        return text

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a step and announce it."""
        print(f"{self.name}: {name} …", file=sys.stderr, flush=True)
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - started


def install(pair: Pair, wheel: Path) -> None:
    """Create the environment: the pinned requirements, this pair's PySpark and Delta, the wheel and the jars."""
    shutil.rmtree(pair.folder, ignore_errors=True)
    pair.folder.mkdir(parents=True)
    pinned = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    requirements = pair.folder / "requirements.txt"
    others = [line for line in pinned if line.partition("==")[0] not in _OF_THE_PAIR]
    requirements.write_text("\n".join(others) + "\n", encoding="utf-8")
    pair.run("install", UV, "venv", "--quiet", "--python", pair.python, pair.folder / "venv")
    spark, delta = f"pyspark=={PYSPARK[pair.spark]}", f"delta-spark=={pair.delta}"
    pair.run("install", UV, "pip", "install", "--quiet", "-r", requirements, spark, delta, f"{wheel}[spark,cli]")
    pair.run("install", pair.bin / "sluice", "jars", folder=pair.folder)
    findings = pair.run("doctor", "bash", "-c", "sluice doctor --json || true", folder=pair.folder)
    (releases,) = (finding["says"] for finding in json.loads(findings) if finding["what"] == "spark")
    for name in ("Hadoop", "Java"):
        pair.results[name.lower()] = re.findall(rf"{name} ([\d.]+)", releases)[0]
    pair.results["python"] = re.findall(r"[\d.]+", pair.run("python", pair.bin / "python", "--version"))[0]


def append(pair: Pair) -> None:
    """Append a file under the lock as a user without a clone does, from an empty folder."""
    folder = pair.folder / "user"
    folder.mkdir()
    pair.run("append", pair.bin / "sluice", "sample", "landing", folder=folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (pair.folder / "zookeeper.log").open("w") as log:
        server = subprocess.Popen(
            [pair.bin / "sluice", "zookeeper", "--port", str(port)], cwd=folder, env=pair.environment(),
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        hosts = f"127.0.0.1:{port}"
        pair.run(
            "append", "bash", "-c",
            f"sluice ensemble ready --zookeeper {hosts} --expect 1 --wait 60 && spark-submit --master 'local[2]' "
            f"$(sluice submit-args append) --zookeeper {hosts} --table lake/flights --source landing/*.csv --commits 2 "
            "&& sluice verify lake/flights",
            folder=folder,
        )  # fmt: skip
    finally:
        server.terminate()
        server.wait(30)


def demo(pair: Pair) -> None:
    """Run the demo with two writers on an emulated S3."""
    output = pair.folder / "demo"
    options = ("--writers", "2", "--commits", "6", "--rows", "20000", "--output", output)
    pair.run("demo", pair.bin / "sluice", "demo", *options, folder=pair.folder)
    report = json.loads((output / "report.json").read_text(encoding="utf-8"))
    pair.results["demo"] = f"{report['rows_found']:,} rows, {report['lost_commits']} lost commits"


def core_tests(pair: Pair, tests: Sequence[str], workers: int) -> None:
    """Run tests of this clone in the environment of the pair."""
    command = (
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not soak",
        "-n",
        workers,
        "--no-loadscope-reorder",
    )
    text = pair.run("tests", pair.bin / "python", *command, *tests)
    pair.results["tests"] = re.findall(r"\d+ passed.* in ", text)[-1].removesuffix(" in ")


def table(pairs: Sequence[Pair]) -> str:
    """Return the Markdown table of docs/compatibility.md."""
    columns = ("Spark", "Delta Lake", "Hadoop", "Java", "Python", "core tests", "demo, two writers", "seconds")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for pair in pairs:
        results = [pair.results.get(step, "**failed**") for step in ("hadoop", "java", "python", "tests", "demo")]
        cells = [PYSPARK[pair.spark], pair.delta, *results, f"{sum(pair.seconds.values()):.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def examine(pair: Pair, wheel: Path, workers: int, *, quick: bool) -> str | None:
    """Run all steps of a pair; return the error of the step that failed."""
    steps: dict[str, Callable[[], None]] = {
        "install": lambda: install(pair, wheel),
        "append": lambda: append(pair),
        "demo": lambda: demo(pair),
        "tests": lambda: core_tests(pair, QUICK if quick else CORE, workers),
    }
    for name, run in steps.items():
        if quick and name == "append":
            continue
        try:
            with pair.step(name):
                run()
        except StepError as error:
            return str(error)
    return None


def main() -> None:
    """Test the pairs of the command line."""
    from writer_jobs.delta.releases import TESTED  # noqa: PLC0415 (after --help)

    known = [f"{spark}/{delta}" for spark in TESTED for delta in TESTED[spark]]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="*", metavar="SPARK/DELTA", help=f"pairs to test (default: {' '.join(known)})")
    parser.add_argument("--quick", action="store_true", help="run the tests of CI only, with two pairs at a time")
    parser.add_argument("--python", default=sys.executable, help="interpreter, such as 3.13 (default: this one)")
    parser.add_argument("--workers", type=int, default=3, help="processes of pytest (default: %(default)s)")
    options = parser.parse_args()
    if unknown := sorted(set(options.pairs) - set(known)):
        parser.error(f"{unknown[0]}: choose among {' '.join(known)}")
    names = [name.partition("/") for name in options.pairs or known]
    pairs = [Pair(spark, delta, options.python) for spark, _, delta in names]
    BUILD.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(BUILD / "wheel", ignore_errors=True)
    subprocess.run([UV, "build", "--quiet", "--wheel", "--out-dir", BUILD / "wheel", ROOT], check=True)
    (wheel,) = (BUILD / "wheel").glob("*.whl")
    with ThreadPoolExecutor(2 if options.quick else 1) as pool:
        errors = list(pool.map(lambda pair: examine(pair, wheel, options.workers, quick=options.quick), pairs))
    print(table(pairs))
    if failures := [error for error in errors if error]:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
