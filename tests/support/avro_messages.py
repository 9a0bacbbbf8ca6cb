"""Messages in Avro with Confluent's header, and a schema registry that serves their schemas."""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def avro_bytes(schema: Any, value: Any) -> bytes:
    """Encode a value by the Avro specification, "Binary encoding". A union is that of null and one type."""
    names: dict[str, Any] = {}
    _add_names(schema, names)
    return _encode(schema, value, names)


def _add_names(schema: Any, names: dict[str, Any]) -> None:
    """Add the named types of a schema, by their short and full names."""
    if isinstance(schema, list):
        for member in schema:
            _add_names(member, names)
    if not isinstance(schema, dict):
        return
    if "name" in schema and "type" in schema and schema["type"] in ("record", "enum", "fixed"):
        names[f"{schema.get('namespace', '')}.{schema['name']}"] = names[schema["name"]] = schema
    for part in (schema["type"], schema.get("items"), schema.get("values"), schema.get("fields")):
        _add_names(part, names)


def _encode(schema: Any, value: Any, names: dict[str, Any]) -> bytes:  # noqa: PLR0911 (one for each type)
    if isinstance(schema, str):
        return _encode_primitive(schema, value) if schema not in names else _encode(names[schema], value, names)
    if isinstance(schema, list):
        branch = next(index for index, member in enumerate(schema) if (member == "null") == (value is None))
        content = b"" if value is None else _encode(schema[branch], value, names)
        return _long(branch) + content
    kind = schema["type"]
    if kind == "record":
        return b"".join(_encode(part["type"], value.get(part["name"]), names) for part in schema["fields"])
    if kind == "enum":
        return _long(schema["symbols"].index(value))
    if kind == "fixed":
        return bytes(value)
    if kind == "array":
        items = [_encode(schema["items"], item, names) for item in value]
        return (_long(len(items)) + b"".join(items) if items else b"") + _long(0)
    if kind == "map":
        items = [_encode("string", key, names) + _encode(schema["values"], item, names) for key, item in value.items()]
        return (_long(len(items)) + b"".join(items) if items else b"") + _long(0)
    return _encode(kind, value, names)


def _encode_primitive(kind: str, value: Any) -> bytes:
    if kind in ("int", "long"):
        return _long(value)
    if kind == "boolean":
        return bytes([value])
    if kind in ("float", "double"):
        return struct.pack("<f" if kind == "float" else "<d", value)
    octets = value.encode() if kind == "string" else value
    return _long(len(octets)) + bytes(octets)


def _long(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    octets = bytearray()
    while zigzag > 0x7F:
        octets.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*octets, zigzag])


@dataclass
class Registry:
    """A schema registry on 127.0.0.1.

    Attributes:
        url: Its address.
        answers: Answers to ``GET /schemas/ids/ID``, by id.
        failures: Number of requests that it answers with status 503 before it answers others.
        credentials: ``user:password`` that it demands; None for no authentication.
        requests: Ids that were requested.

    """

    url: str = ""
    answers: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    failures: int = 0
    credentials: str | None = None
    requests: list[int] = field(default_factory=list)

    def add(self, schema: Any, **fields: Any) -> int:
        """Add a schema and return its id."""
        number = 1000 + len(self.answers)
        self.answers[number] = {"schema": json.dumps(schema), **fields}
        return number

    def message(self, number: int, value: Any) -> bytes:
        """Encode a value with the header of a schema."""
        return b"\0" + number.to_bytes(4, "big") + avro_bytes(json.loads(self.answers[number]["schema"]), value)


@contextmanager
def running_registry() -> Iterator[Registry]:
    """Run a schema registry within the block."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = int(self.path.removeprefix("/schemas/ids/"))
            registry.requests.append(number)
            if registry.failures:
                registry.failures -= 1
                self._answer(503, {"error_code": 50003})
            elif registry.credentials is not None and self.headers["Authorization"] != _basic(registry.credentials):
                self._answer(401, {"error_code": 40101})
            elif number not in registry.answers:
                self._answer(404, {"error_code": 40403})
            else:
                self._answer(200, registry.answers[number])

        def _answer(self, status: int, body: Mapping[str, Any]) -> None:
            octets = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(octets)))
            self.end_headers()
            self.wfile.write(octets)

        def log_message(self, *_: object) -> None:
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, name="schema registry")
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _basic(credentials: str) -> str:
    return f"Basic {base64.b64encode(credentials.encode()).decode()}"
