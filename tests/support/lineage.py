"""Collectors of OpenLineage events, and a check of events by OpenLineage's own schema.

``tests/data/openlineage`` has the schema files of https://github.com/OpenLineage/OpenLineage (folder ``spec``, commit
8f02abfb, Apache License 2.0).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource

from writer_jobs.lineage import sender
from writer_jobs.lineage.sender import PROCESS_SENDER

SCHEMAS = Path(__file__).parents[1] / "data" / "openlineage"
RUN_EVENT = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"

Event = dict[str, Any]


@cache
def _registry() -> Registry[Any]:
    schemas = (json.loads(path.read_text(encoding="utf-8")) for path in SCHEMAS.glob("*.json"))
    return Registry().with_resources((schema["$id"], Resource.from_contents(schema)) for schema in schemas)


def check_event(event: Event) -> None:
    """Check an event, and each of its facets, by the schema that it names."""
    assert event["schemaURL"] == RUN_EVENT
    assert event["producer"].startswith("pkg:pypi/delta-sluice@")
    _check(event, RUN_EVENT)
    datasets = [*event["inputs"], *event["outputs"]]
    parts: list[Mapping[str, Any]] = [event["run"], event["job"], *datasets]
    facets = [facet for part in parts for facet in part.get("facets", {}).values()]
    facets += [facet for dataset in event["outputs"] for facet in dataset.get("outputFacets", {}).values()]
    for facet in facets:
        _check(facet, facet["_schemaURL"])


def _check(value: Any, url: str) -> None:
    Draft202012Validator({"$ref": url}, registry=_registry(), format_checker=FormatChecker()).validate(value)


class EventFile:
    """The events of this process in a file, by the library's transport ``file``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Settings of the transport, as environment variables.
        self.variables = {
            "OPENLINEAGE__TRANSPORT__TYPE": "file",
            "OPENLINEAGE__TRANSPORT__LOG_FILE_PATH": str(path),
            "OPENLINEAGE__TRANSPORT__APPEND": "true",
            "OPENLINEAGE_NAMESPACE": "tests",
        }

    def read(self) -> list[Event]:
        """Wait until the events are sent, check them, and return them."""
        with pytest.MonkeyPatch.context() as patch:
            # The first event of a process imports the library.
            patch.setattr(sender, "CLOSE_SECONDS", 60)
            PROCESS_SENDER.reset()
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        events: list[Event] = [json.loads(line) for line in lines]
        for event in events:
            check_event(event)
        return events

    def ends(self, operation: str) -> list[Event]:
        """Return the last events of the operations with this name, such as ``merge``."""
        ends = [event for event in self.read() if event["eventType"] != "START"]
        return [event for event in ends if write_of(event).get("operation") == operation]


def write_of(event: Event) -> dict[str, Any]:
    """Return the facet of a write; empty for the event of a job."""
    facet: dict[str, Any] = event["run"]["facets"].get("sluice_write", {})
    return facet


def names(datasets: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(dataset["namespace"], dataset["name"]) for dataset in datasets}


class Collector:
    """An HTTP collector, which answers with a status code, or not at all.

    Attributes:
        events: The events that it has received.
        status: Status code of its answers; None: it does not answer until it is closed.

    """

    def __init__(self, status: int | None) -> None:
        self.status = status
        self.events: list[Event] = []
        self.closing = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.events.append(json.loads(body))
                if collector.status is None:
                    collector.closing.wait()
                self.send_response(collector.status or 503)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @classmethod
    @contextmanager
    def running(cls, status: int | None) -> Iterator[Collector]:
        collector = cls(status)
        thread = threading.Thread(target=collector._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            collector.closing.set()
            collector._server.shutdown()
            collector._server.server_close()
            thread.join()
