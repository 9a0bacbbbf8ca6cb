"""Messages in Avro with Confluent's header, whose schemas are in a schema registry, as Kafka Connect's JSON.

Source: https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.errors import FeedError
from writer_jobs.feeds.debezium.connect_schema import connect_schema

#: Environment variable with ``user:password`` for the registry.
CREDENTIALS = "SLUICE_SCHEMA_REGISTRY_CREDENTIALS"
_TIMEOUT_SECONDS = 10.0
_ATTEMPTS = 5
_FIRST_PAUSE_SECONDS = 0.2
_UDF, _CONVERTER = "sluice_avro_json", "io.deltasluice.feeds.AvroJson"


@dataclass(frozen=True)
class SchemaRegistry:
    """A schema registry with Confluent's API.

    Attributes:
        url: Address, ``http://…`` or ``https://…``.
        credentials: ``user:password`` for HTTP basic authentication; None without it. Not in the repr.

    Raises:
        ValueError: The address is not one of HTTP.

    """

    url: str
    credentials: str | None = field(default=None, repr=False)
    _schemas: dict[int, str | None] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise ValueError(f"schema registry: expected https://HOST:PORT, with credentials in {CREDENTIALS}")

    def avro_schema(self, number: int) -> str | None:
        """Return the schema with an id; None if the registry has no Avro schema with this id.

        Raises:
            FeedError: The registry does not answer, refuses the request, or has a schema that refers to others.

        """
        if number not in self._schemas:
            self._schemas[number] = self._read(number)
        return self._schemas[number]

    def _read(self, number: int) -> str | None:
        request = urllib.request.Request(f"{self.url.rstrip('/')}/schemas/ids/{number}")  # noqa: S310 (checked above)
        request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
        if self.credentials is not None:
            token = base64.b64encode(self.credentials.encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {token}")
        for attempt in range(_ATTEMPTS):
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310 (checked above)
                    answer = json.loads(response.read())
                break
            except urllib.error.HTTPError as error:
                if error.code == 404:  # noqa: PLR2004 (the status)
                    return None
                reason, is_final = f"{error.code} {error.reason}", error.code < 500  # noqa: PLR2004 (the status)
            except (OSError, ValueError) as error:
                reason, is_final = str(error), False
            if is_final or attempt == _ATTEMPTS - 1:
                raise FeedError(f"the schema {number} cannot be read from the schema registry {self.url}: {reason}")
            time.sleep(_FIRST_PAUSE_SECONDS * 2**attempt)
        if answer.get("references"):
            raise FeedError(
                f"the schema {number} of the schema registry refers to other schemas, which is not supported"
            )
        return str(answer["schema"]) if answer.get("schemaType", "AVRO") == "AVRO" else None


def with_json(messages: DataFrame, registry: SchemaRegistry) -> DataFrame:
    """Replace Avro in ``key`` and ``value`` by the JSON with schemas that Kafka Connect's ``JsonConverter`` writes.

    Bytes that cannot be converted, or are not Avro, stay as they are. The messages are read twice.

    Raises:
        FeedError: See :meth:`SchemaRegistry.avro_schema`.

    """
    ids = F.array(_schema_id("key"), _schema_id("value"))
    numbers = [row[0] for row in messages.select(F.explode(F.array_compact(ids))).distinct().collect()]
    avro_schemas: dict[int, str] = {}
    connect_schemas: dict[int, str] = {}
    for number in sorted(numbers):
        if (schema := registry.avro_schema(number)) is not None:
            with suppress(ValueError):
                connect_schemas[number] = connect_schema(schema)
                avro_schemas[number] = schema
    if not avro_schemas:
        return messages
    messages.sparkSession.udf.registerJavaFunction(_UDF, _CONVERTER, "string")
    return messages.withColumns({name: _as_json(name, avro_schemas, connect_schemas) for name in ("key", "value")})


def _as_json(name: str, avro_schemas: dict[int, str], connect_schemas: dict[int, str]) -> Column:
    number = _schema_id(name)
    payload = F.call_udf(_UDF, F.col(name), _element_at(avro_schemas, number))
    text = F.concat(
        F.lit('{"schema":'), _element_at(connect_schemas, number), F.lit(',"payload":'), payload, F.lit("}")
    )
    return F.coalesce(F.encode(text, "UTF-8"), F.col(name))


def _element_at(texts: dict[int, str], number: Column) -> Column:
    entries = [column for key, text in texts.items() for column in (F.lit(key).cast("bigint"), F.lit(text))]
    return F.try_element_at(F.create_map(*entries), number)


def _schema_id(name: str) -> Column:
    """Return the schema's id in Confluent's header; null for other bytes."""
    has_header = (F.octet_length(name) > 5) & (F.hex(F.substring(name, 1, 1)) == "00")  # noqa: PLR2004 (the header)
    return F.when(has_header, F.conv(F.hex(F.substring(name, 2, 4)), 16, 10).cast("bigint"))
