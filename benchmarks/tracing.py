"""Measure the cost of OpenTelemetry traces: appends of one writer to one table on S3, with traces and without.

Each round has three appends, in alternating order. *off*: the program has no tracer provider. *not sampled*: the SDK
drops the trace. *on*: the SDK sends the spans in batches to a collector in another process. The processor time is
that of the driver's Python and JVM. Ratios are to *off*, with intervals as in ``one_writer.py``. The second table is
the processor time of one span that has a parent, in a loop without an append. Everything runs on this machine: S3 is
moto, ZooKeeper one embedded server.

The output file also has the spans of one append that waits for its lock; ``trace_plot.py`` draws them.

    python benchmarks/tracing.py [--rounds 100]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from bench_session import bench_session
from figures import cpu_seconds, named, percentile, print_table, ratio, save
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from lock_manager.testing.embedded import EmbeddedZooKeeper
from lock_manager.tracing import span
from sluice.local.s3 import LocalS3
from writer_jobs import LockedDeltaWriter

TABLE = "s3a://bench/traced"
WAIT_SECONDS = 0.1
LOOPS = 2000


@contextmanager
def use_provider(provider: TracerProvider | None) -> Iterator[None]:
    """Set the tracer provider of this process. The API lets a program set it only once."""
    previous, trace._TRACER_PROVIDER = trace._TRACER_PROVIDER, provider
    try:
        yield
    finally:
        trace._TRACER_PROVIDER = previous


@contextmanager
def collector() -> Iterator[int]:
    """Start a collector and yield its port."""
    command = [sys.executable, str(Path(__file__).with_name("trace_collector.py"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def count_spans(port: int) -> int:
    """Return the number of spans that the collector has received."""
    connection = HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/")
    count = int(connection.getresponse().read())
    connection.close()
    return count


def appends_in_turn(spark: SparkSession, writer: LockedDeltaWriter, providers: Any, options: Any) -> dict[str, Any]:
    durations: dict[str, list[float]] = {name: [] for name in providers}
    processor: dict[str, list[float]] = {name: [] for name in providers}
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    for number in range(options.warm_up + options.rounds):
        for name in (tuple(providers), tuple(providers)[::-1])[number % 2]:
            with use_provider(providers[name]):
                cpu_start, began = cpu_seconds(jvm), time.perf_counter()
                writer.append(spark.range(3).coalesce(1))
                durations[name].append(time.perf_counter() - began)
                processor[name].append(cpu_seconds(jvm) - cpu_start)
    measured = {name: values[options.warm_up :] for name, values in durations.items()}
    used = {name: values[options.warm_up :] for name, values in processor.items()}
    return {
        name: {
            "p50_s": statistics.median(measured[name]),
            "p95_s": percentile(measured[name], 0.95),
            "cpu_s": statistics.mean(used[name]),
            **named("time", ratio(measured[name], measured["off"], statistics.median)),
            **named("cpu", ratio(used[name], used["off"], sum)),
        }
        for name in providers
    }


def microseconds_per_span(provider: TracerProvider | None) -> float:
    with use_provider(provider), span("loop"):
        began = time.process_time()
        for _ in range(LOOPS):
            with span("step", {"sluice.version": 1}):
                pass
        return 1e6 * (time.process_time() - began) / LOOPS


def trace_of_a_waiting_append(
    append: Callable[[], Any], table: str, rival: ZookeeperLockManager
) -> list[dict[str, Any]]:
    """Return the spans of an append whose lock another writer holds at first."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with ThreadPoolExecutor(1) as pool:
        hold = rival.acquire(table)
        with use_provider(provider):
            running = pool.submit(append)
            while len(rival.queue(table)) < 2 and not running.done():
                time.sleep(0.01)
            time.sleep(WAIT_SECONDS)
            hold.release()
            running.result()
    finished = exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in finished}
    return [
        {
            "name": span.name,
            "parent": names.get(span.parent.span_id) if span.parent else None,
            "start_ns": span.start_time,
            "end_ns": span.end_time,
        }
        for span in sorted(finished, key=lambda span: span.start_time or 0)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="measured rounds of three appends (100)")
    parser.add_argument("--warm-up", type=int, default=20, metavar="ROUNDS", help="first rounds, not measured (20)")
    parser.add_argument("--output", type=Path, default=Path("build/bench/tracing.json"))
    options = parser.parse_args()
    with ExitStack() as stack:
        port = stack.enter_context(collector())
        zookeeper = stack.enter_context(EmbeddedZooKeeper())
        s3 = stack.enter_context(LocalS3())
        s3.create_bucket("bench")
        os.environ.update(s3.environment)
        spark = bench_session("tracing", s3.spark_conf)
        stack.callback(spark.stop)
        manager, rival = (stack.enter_context(ZookeeperLockManager(zookeeper.hosts)) for _ in range(2))
        on = TracerProvider(shutdown_on_exit=False)
        on.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"http://127.0.0.1:{port}/v1/traces")))
        providers = {"off": None, "not sampled": TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False), "on": on}
        writer = LockedDeltaWriter(spark, manager, TABLE)
        appends = appends_in_turn(spark, writer, providers, options)
        on.force_flush()
        spans_per_append = count_spans(port) / (options.warm_up + options.rounds)
        if spans_per_append < 8:
            raise SystemExit(
                f"the figures are invalid: {spans_per_append:.1f} spans per append arrived at the collector"
            )
        costs = {name: microseconds_per_span(provider) for name, provider in providers.items()}
        append = partial(writer.append, spark.range(3).coalesce(1))
        spans = trace_of_a_waiting_append(append, writer.table, rival)
        on.shutdown()
    print_table([{"traces": name, **row} for name, row in appends.items()])
    print_table([{"traces": name, "cpu_us_per_span": cost} for name, cost in costs.items()])
    print(f"spans per append: {spans_per_append:.1f}; load average {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores")
    figures = {"rounds": options.rounds, "appends": appends, "us_per_span": costs, "spans_per_append": spans_per_append}
    save(options.output, {"tracing": figures, "trace": spans})


if __name__ == "__main__":
    main()
