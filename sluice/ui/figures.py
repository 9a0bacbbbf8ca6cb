"""Figures of the tables from Prometheus, which the pages show beside the locks."""

from __future__ import annotations

import base64
import json
import math
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from lock_manager.errors import SettingsError
from sluice.errors import CommandError

_SECONDS = 5.0


def _increase(metric: str) -> str:
    """Return the increase of a counter in the last hour, with the whole value of a series that began within it.

    The panels of grafana/sluice.json show the same.
    """
    base = metric.removesuffix("_total")
    last = f"last_over_time({metric}[1h])"
    new = f"({last} and (last_over_time({base}_created[1h]) > time() - 3600))"
    increase = f"increase({metric}[1h])"
    return f"{new} >= ({increase} or 0 * {last}) or {increase}"


QUERIES: Mapping[str, str] = {
    "refused": f"sum by (table) ({_increase('sluice_commit_refusals_total')})",
    "lost": f"sum by (table) ({_increase('sluice_lock_losses_total')})",
    # A process that has ended leaves its series, so the newest value of each stream counts.
    "newest": "min by (table) (max by (table, source, trigger) "
    "(last_over_time(sluice_feed_newest_timestamp_seconds[1d])))",
    "pin_expiry": "max by (table) (last_over_time(sluice_table_next_pin_expiry_timestamp_seconds[2d]))",
    "findings": "max by (table, code) (last_over_time(sluice_table_finding_worth[1d])) > 0",
}
"""Queries of the figures, by name. Each result has the label ``table``."""


@dataclass(frozen=True)
class TableFigures:
    """The figures of one table.

    Attributes:
        refused, lost: Refused commits and lost holds of the last hour.
        newest: Newest source time that the slowest stream into the table has applied, seconds since the epoch; None
            without streams.
        pin_expiry: When the next pin expires, seconds since the epoch; None without pins.
        findings: Worth of each finding of the last measurement, by code.

    """

    refused: float = 0.0
    lost: float = 0.0
    newest: float | None = None
    pin_expiry: float | None = None
    findings: Mapping[str, float] = field(default_factory=dict)


#: The figures of a table without metrics.
NO_FIGURES = TableFigures()


class Prometheus:
    """A Prometheus server.

    Args:
        url: Its address, such as ``http://127.0.0.1:9090``.

    Raises:
        SettingsError: The address is no URL of HTTP.

    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        try:
            port = "" if parts.port is None else f":{parts.port}"
        except ValueError:
            port = None
        if parts.scheme not in ("http", "https") or not parts.hostname or port is None:
            raise SettingsError("--prometheus must be an address such as http://127.0.0.1:9090")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        #: Its address without user and password.
        self.url = f"{parts.scheme}://{host}{port}{parts.path}".rstrip("/")
        self._headers = {}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"

    def read(self) -> dict[str, TableFigures]:
        """Return the figures by table.

        Raises:
            CommandError: The server does not answer, or refuses a query.

        """
        values: dict[str, dict[str, Any]] = defaultdict(dict)
        for name, query in QUERIES.items():
            for labels, value in self._query(query):
                if math.isnan(value):
                    # Metrics have no value for something that does not exist, such as a pin.
                    continue
                table = values[labels.get("table", "")]
                if name == "findings":
                    table.setdefault(name, {})[labels.get("code", "")] = value
                else:
                    table[name] = value
        return {table: TableFigures(**fields) for table, fields in values.items()}

    def _query(self, query: str) -> list[tuple[dict[str, str], float]]:
        address = f"{self.url}/api/v1/query?{urlencode({'query': query})}"
        try:
            request = urllib.request.Request(address, headers=self._headers)  # noqa: S310 (checked above)
            with urllib.request.urlopen(request, timeout=_SECONDS) as response:  # noqa: S310
                result = json.load(response)["data"]["result"]
            return [(sample["metric"], float(sample["value"][1])) for sample in result]
        except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise CommandError(f"Prometheus at {self.url} gives no figures: {reason}") from error
