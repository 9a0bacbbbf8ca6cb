"""A real Prometheus server for tests."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

RULES_FILE = Path(__file__).parents[2] / "prometheus" / "alerts.yml"
PROMETHEUS = shutil.which("prometheus")

needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None, reason="prometheus is not on the PATH (Debian: apt-get install prometheus)"
)


class PrometheusServer:
    """A Prometheus that scrapes targets and evaluates the rules every second."""

    def __init__(self, folder: Path, targets: Sequence[str], stack: ExitStack) -> None:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{server.getsockname()[1]}"
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES_FILE)],
            "scrape_configs": [{"job_name": "sluice", "static_configs": [{"targets": [*targets]}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        command = [
            str(PROMETHEUS), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self.address}",
        ]  # fmt: skip
        log = stack.enter_context((folder / "prometheus.log").open("w"))
        process = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
        stack.callback(process.terminate)

    def get(self, path: str) -> Any:
        """Return the data of an API call; None while the server does not answer."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{self.address}/api/v1/{path}", timeout=30) as response:
                return json.load(response)["data"]
        except OSError:
            return None

    def value(self, query: str) -> float | None:
        result = (self.get(f"query?query={query}") or {"result": []})["result"]
        return float(result[0]["value"][1]) if result else None

    @property
    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that fire."""
        return [alert for alert in self.get("alerts")["alerts"] if alert["state"] == "firing"]
