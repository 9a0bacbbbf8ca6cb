"""Every benchmark runs at its smallest size and prints a row of figures for each system that it compares."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.local.spark import FEW_ROWS, QUICK_JVM
from tests.support.kdc import missing_requirement

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
TIMEOUT_SECONDS = 900


@dataclass(frozen=True)
class Smoke:
    """The smallest run of a benchmark.

    Attributes:
        arguments: Arguments of the command line, separated by spaces.
        tables: For each table in the output, how the first cell of each row begins.
        writes_json: Whether the benchmark has ``--output``.

    """

    arguments: str
    tables: tuple[tuple[str, ...], ...]
    writes_json: bool = True


PHASES = ("work", "queue", "look", "guard", "put", "give back", "after", "all")
LOCKS = ("one table lock", "partitions", "tables")
COMMANDS = ("sluice verify", "sluice log", "sluice health")
APPENDS = ("append, new driver", "append, same driver")
STATUS_AND_APPEND = ("sluice status", "append")
STATUS_AND_APPENDS = ("sluice status, no table locked", *APPENDS, "sluice status, each table locked")
TRACES = ("off", "not sampled", "on")
SMOKES = {
    "changes.py": Smoke(
        "--rows 100 --changes 100 --cells 0 --rounds 1 --warm-up 0", (("plain MERGE", "apply_changes"),)
    ),
    "contention.py": Smoke(
        "--writers 1 --work 0 --seconds 0 --flights 100 --modes gate stock s3-lease automatic agent",
        (("limit", "gate", "stock", "s3-lease", "automatic", "agent"),),
    ),
    "coordinators.py": Smoke(
        "--writers 1 2 --s3-delay-ms 1 --seconds 0 --rounds 1 --kills 1 --session-timeout 4",
        (("zookeeper", "s3-lease", "optimistic") * 2, ("zookeeper", "s3-lease")),
    ),
    "granularity.py": Smoke("--writers 1,2 --commits 1 --work 0", (LOCKS * 2,)),
    "guard.py": Smoke("--commits 1 --warm-up 1", (("file", "s3a"),)),
    "kafka_lag.py": Smoke("--rows 20 --rate 10 --seconds 2 --warm-up 0", (("cdc.py", "plain MERGE"),)),
    # The first 15,000 flights include the 15th of January, whose rows are late.
    "late_rows.py": Smoke(
        "--copies 1 --files 1 --rounds 1 --warm-up 0 --flights 15000", (("plain MERGE", "apply_rows"),)
    ),
    "lock.py": Smoke(
        "--rounds 1 --per-round 1 --waiters 1 --contended-rounds 1",
        (("sluice", "kazoo Lock", "Curator InterProcessMutex"), ("sluice", "kazoo Lock")),
    ),
    "maintenance.py": Smoke(
        "--files 4 --partitions 2 --runs plain maintain --quiet 0",
        (
            ("1", "2", "3"),
            ("plain OPTIMIZE, alone", "maintain.py --compact, beside an appender"),
            ("before maintain.py --compact", "during maintain.py --compact"),
            ("[",),
        ),
    ),
    "one_writer.py": Smoke("--rounds 1 --warm-up 1", (PHASES, ("gate", "automatic", "plain"))),
    "operations.py": Smoke("--writers 1 --seconds 0 --modes gate --only update", (("update", "update"),)),
    # Iceberg is excluded because it downloads 0.5 GB. tests/unit/test_iceberg_environment.py tests its set-up.
    "peers/peers.py": Smoke(
        "--systems sluice deltalake --writers 1 --appends 1 --rounds 1 --warm-up 1 --s3-delay-ms 1",
        (("sluice", "deltalake"),),
    ),
    "platforms.py": Smoke(
        "--platforms standalone HDFS --writers 1 --commits 1 --warm-up 0 --rounds 1", (("standalone", "HDFS"),)
    ),
    "s3_requests.py": Smoke(
        "--rounds 1",
        (
            (
                "Delta alone, no lock",
                "lock over the write",
                "lock over the write: while it is held",
                "lock for the commit",
                "lock for the commit: while it is held",
            ),
        ),
        writes_json=False,
    ),
    # One Spark driver for each part. The longer run also measures `sluice health`, and `take_pin` in part "versions".
    "scale.py": Smoke(
        "--part contenders tables files --contenders 2 --tables 2 --files 20 --commands verify log",
        (STATUS_AND_APPEND, STATUS_AND_APPENDS, ("sluice verify", "sluice log", *APPENDS)),
    ),
    "snapshots.py": Smoke(
        "--copies 1 --batches 2 --rounds 1 --warm-up 0 --moment 0.3 --flights 1000",
        (("rows_since", "filter over all data"),),
    ),
    "tracing.py": Smoke("--rounds 1 --warm-up 1", (TRACES, TRACES)),
    "ui.py": Smoke(
        "--tables 20 --contenders 5 --seconds 0.2",
        (("none", "sluice ui", "status --watch --interval 2", "status --watch --interval 1"),),
    ),
}
LABELS_ALONE = (
    "plain OPTIMIZE, alone",
    "maintain.py --compact, alone",
    "maintain.py --compact --parallel 1, alone",
    "maintain.py --compact --partitions-per-commit 16, alone",
)
LABELS_BESIDE_APPENDER = (
    "maintain.py --compact",
    "maintain.py --compact, a partition changes all the time",
    'optimize(lock_during="write")',
)
CONTENTION_MODES = ("gate", "whole write", "optimistic", "stock")
#: Longer runs, which take a minute of processor time.
LONGER_RUNS = {
    "changes.py": Smoke(
        "--rows 100 --changes 100 --cells 100 --rounds 1",
        (("plain MERGE", "apply_changes"), ("plain MERGE", "apply_cells")),
    ),
    "contention.py": Smoke(
        "--writers 1 2 --work 0 cpu --seconds 0 --flights 100",
        (("limit", *(*CONTENTION_MODES, *CONTENTION_MODES[::-1]) * 2),),
    ),
    "maintenance.py": Smoke(
        "--files 4 --partitions 2 --quiet 2",
        (
            ("1", "2", "3"),
            (*LABELS_ALONE, *(f"{name}, beside an appender" for name in LABELS_BESIDE_APPENDER)),
            tuple(row for name in LABELS_BESIDE_APPENDER for row in (f"before {name}", f"during {name}")),
            ("[",),
        ),
    ),
    "operations.py": Smoke(
        "--writers 2 --seconds 0 --files 2",
        (
            tuple(name for name in ("merge", "update", "overwrite") for _ in range(6)),
            ("gate", "whole write", "optimistic"),
        ),
    ),
    "peers/peers.py": Smoke(
        "--systems sluice-groups delta --storage s3 disk --writers 1 2 --appends 1 --rounds 1 --warm-up 1",
        (("sluice-groups", "delta") * 4,),
    ),
    "platforms.py": Smoke(
        "--writers 2 --commits 2 --warm-up 1 --rounds 2",
        (("standalone", "HDFS", *(() if missing_requirement() else ("Kerberos",)), "YARN"),),
    ),
    "scale.py": Smoke(
        "--contenders 1 2 --tables 1 2 --versions 3 4 --files 20 40",
        (STATUS_AND_APPEND, STATUS_AND_APPENDS, (*COMMANDS, *APPENDS, "take_pin"), (*COMMANDS, *APPENDS)),
    ),
}
#: Programs that a benchmark, or a module of benchmarks, starts.
STARTED_BY = {
    "CuratorBench.java": "lock.py",
    "KafkaChanges.java": "kafka_lag.py",
    "contention_writer.py": "contention.py",
    "coordinators_writer.py": "coordinators.py",
    "kafka_stock.py": "kafka_lag.py",
    "maintenance_appender.py": "maintenance.py",
    "peers/IcebergRest.java": "peers/iceberg_rest.py",
    "scale_operation.py": "scale.py",
    "peers/peers_writer.py": "peers/peers.py",
    "trace_collector.py": "tracing.py",
}
#: Benchmarks with a test of their own.
TESTED_SEPARATELY = {"contention_plot.py", "trace_plot.py"}
#: Modules that benchmarks import.
MODULES = {
    "bench_session.py",
    "counted_s3.py",
    "figures.py",
    "forged_table.py",
    "peers/iceberg_environment.py",
    "peers/iceberg_rest.py",
    "turns.py",
}


@contextmanager
def start(*command: object, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program, and kill its process group at the end."""
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **variables},
        start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def output_of(*command: object, **variables: str) -> str:
    """Run a program with these environment variables, and return its standard output."""
    with start(*command, **variables) as process:
        output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, output + errors[-5000:]
    return output


def tables_in(output: str) -> list[list[list[str]]]:
    """Return the cells of every row, without the header, of each table that ``print_table`` wrote."""
    tables = re.findall(r"^\|.*\|\n\|[-|]+\|\n((?:\|.*\|\n)+)", output, re.MULTILINE)
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in rows.splitlines()] for rows in tables]


def figures_in(cells: list[str]) -> list[float]:
    return [float(number) for cell in cells for number in re.findall(r"-?\b(?:\d+(?:\.\d+)?|nan|inf)\b", cell)]


def check_tables(output: str, expected: tuple[tuple[str, ...], ...]) -> None:
    """Check that the tables have the expected rows, and that each row has finite figures, not all of them 0."""
    tables = tables_in(output)
    assert len(tables) == len(expected), output
    for rows, labels in zip(tables, expected, strict=True):
        assert len(rows) == len(labels), output
        assert all(row[0].startswith(label) for row, label in zip(rows, labels, strict=True)), output
        for row in rows:
            figures = figures_in(row[1:] or row)
            assert all(map(math.isfinite, figures)), output
            assert any(figures), output


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Environment variables for JVMs that start faster and a Spark that compiles less."""
    (tmp_path / "conf").mkdir()
    settings = {**FEW_ROWS, "spark.databricks.delta.snapshotPartitions": "1"}
    lines = "".join(f"{name} {value}\n" for name, value in settings.items())
    (tmp_path / "conf" / "spark-defaults.conf").write_text(lines)
    return {"JAVA_TOOL_OPTIONS": QUICK_JVM, "SPARK_CONF_DIR": str(tmp_path / "conf")}


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.parametrize(
    ("script", "smoke"),
    [
        *(pytest.param(script, smoke, id=script) for script, smoke in SMOKES.items()),
        *(
            pytest.param(script, smoke, id=f"longer {script}", marks=pytest.mark.soak)
            for script, smoke in LONGER_RUNS.items()
        ),
    ],
)
def test_a_benchmark_prints_its_figures(script: str, smoke: Smoke, tmp_path: Path, environment: dict[str, str]) -> None:
    output_file = tmp_path / "output.json"
    arguments = smoke.arguments.split() + (["--output", str(output_file)] if smoke.writes_json else [])
    output = output_of(sys.executable, BENCHMARKS / script, *arguments, **environment)
    check_tables(output, smoke.tables)
    assert not smoke.writes_json or json.loads(output_file.read_text())


@pytest.mark.parametrize(
    "rows",
    [
        "",
        "| gate | - |\n",
        "| gate | 0.00 |\n",
        "| gate | nan |\n",
        "| gate | inf |\n",
        "| stock | 1 |\n",
        2 * "| gate | 1 |\n",
    ],
)
def test_negative_control_wrong_rows_or_figures_fail(rows: str) -> None:
    header, expected = "| mode | commits |\n|------|---------|\n", (("gate",),)
    check_tables(header + "| gate | 1 |\n", expected)
    with pytest.raises(AssertionError):
        check_tables(header + rows, expected)


def test_the_figures_of_contention_are_plotted(tmp_path: Path) -> None:
    rows = [{"mode": "gate", "work_s": 0, "writers": writers, "commits_per_s": 1.5} for writers in (1, 2)]
    (tmp_path / "contention.json").write_text(json.dumps({"contention": rows}))
    picture = tmp_path / "contention.png"
    output_of(sys.executable, BENCHMARKS / "contention_plot.py", tmp_path / "contention.json", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_trace_is_plotted(tmp_path: Path) -> None:
    names = {"sluice.append": None, "sluice.queue": "sluice.append", "sluice.hold": "sluice.append"}
    spans = [
        {"name": name, "parent": parent, "start_ns": 1000 * number, "end_ns": 1_000_000 * (4 - number)}
        for number, (name, parent) in enumerate(names.items())
    ]
    (tmp_path / "tracing.json").write_text(json.dumps({"trace": spans}))
    picture = tmp_path / "trace.svg"
    output_of(sys.executable, BENCHMARKS / "trace_plot.py", tmp_path / "tracing.json", picture)
    text = picture.read_text()
    assert [name in text for name in (">append<", "queue<", "hold<", "4.0 ms", "2.0 ms")] == [True] * 5


def test_the_order_of_the_modes_of_contention_alternates() -> None:
    program = (
        "from contention import MODES, planned_cells\n"
        "print(','.join(mode for _, _, mode in planned_cells(['0'], [1, 2, 4], MODES)))"
    )
    modes = output_of(sys.executable, "-c", program, PYTHONPATH=str(BENCHMARKS)).strip().split(",")
    assert modes == [*CONTENTION_MODES, *CONTENTION_MODES[::-1], *CONTENTION_MODES]


def test_waits_before_and_during_a_compaction_are_separated() -> None:
    appends = [
        {"asked_at": asked_at, "took_s": took, "waited_s": waited}
        for asked_at, took, waited in ((0, 1, 0.1), (9, 12, 11.5), (19, 2, 0.2), (22, 1, 0.3))
    ]
    program = f"from maintenance import waits\nprint(waits({appends}, 10, 20))"
    assert output_of(sys.executable, "-c", program, PYTHONPATH=str(BENCHMARKS)) == "([0.1], [11.5, 0.2])\n"


def test_a_failed_operation_of_scale_is_reported(tmp_path: Path) -> None:
    program = (
        "import scale\n"
        "scale.PARTS['files'] = lambda place, size: scale.command('verify', str(place.folder)), [7]\n"
        "scale.main()"
    )
    arguments = ("--part", "files", "--output", tmp_path / "output.json")
    with start(sys.executable, "-c", program, *arguments, PYTHONPATH=f"{BENCHMARKS}{os.pathsep}{ROOT}") as process:
        output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 1, output + errors
    assert re.search(r"\| sluice verify +\| [\d.]+ \(failed\)", output), output
    assert "files, 7: sluice verify failed: exit code 2: " in errors


def test_delayed_s3_requests_wait_in_parallel() -> None:
    program = (
        "import counted_s3\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from threading import Barrier\n"
        "barrier = Barrier(2)\n"
        "counted_s3.time.sleep = lambda _: barrier.wait(60)\n"
        "with counted_s3.CountedS3() as s3, ThreadPoolExecutor(2) as pool:\n"
        "    s3.counting.delay_seconds = 1\n"
        "    list(pool.map(s3.create_bucket, ('one', 'two')))\n"
        "    print(*(request.operation for request in s3.counting.requests))"
    )
    assert output_of(sys.executable, "-c", program, PYTHONPATH=str(BENCHMARKS)).split()[-2:] == ["PUT", "PUT"]


def source_files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for suffix in ("py", "java") for file in folder.rglob(f"*.{suffix}")}


def bench_targets(makefile: str) -> dict[str, set[str]]:
    """Return the benchmarks that each ``bench`` target runs."""
    recipes = re.findall(r"^(bench[\w-]*):.*\n((?:\t.*\n)*)", makefile, re.MULTILINE)
    return {target: set(re.findall(r"benchmarks/(\S+\.\w+)", recipe)) for target, recipe in recipes}


def without_smoke_test(folder: Path, makefile: str) -> set[str]:
    """Return the files and the ``bench`` targets that no smoke test covers.

    Such a file is neither tested nor a known module. Such a target runs no benchmark, or one without a smoke test.
    """
    targets = bench_targets(makefile)
    unknown = {target for target, scripts in targets.items() if not scripts or scripts - set(SMOKES)}
    return unknown | source_files(folder) - {*SMOKES, *STARTED_BY, *TESTED_SEPARATELY, *MODULES}


def test_every_benchmark_has_a_smoke_test() -> None:
    assert without_smoke_test(BENCHMARKS, (ROOT / "Makefile").read_text()) == set()
    assert {*SMOKES, *STARTED_BY, *TESTED_SEPARATELY, *MODULES} == source_files(BENCHMARKS)
    for program, starter in STARTED_BY.items():
        assert starter in {*SMOKES, *MODULES}
        assert Path(program).name in (BENCHMARKS / starter).read_text()


def test_negative_control_a_benchmark_without_a_smoke_test_is_found(tmp_path: Path) -> None:
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "new.py").write_text('print("| 1 |")\n')
    (tmp_path / "turns.py").write_text("SIZE = 1\n")
    makefile = "bench-new: jar ## New\n\t@$(PY) benchmarks/peers/new.py\n\nbench-old:\n\t@$(PY) benchmarks/lock.py\n"
    assert without_smoke_test(tmp_path, makefile) == {"peers/new.py", "bench-new"}
