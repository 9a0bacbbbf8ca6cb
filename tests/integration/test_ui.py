"""`sluice ui`: what its pages show in a real browser, who may open them, and that it changes nothing."""

from __future__ import annotations

import html
import http.client
import itertools
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake
from kazoo.client import KazooClient
from prometheus_client import start_http_server

from lock_manager import LockCancelledError, LockLostError, LockSettings, TableResource, commit_metadata
from lock_manager.courtesy_queue import FALLBACK_FIELD
from lock_manager.events import Event, emit
from lock_manager.metrics import MetricsExporter
from lock_manager.table_records.commit_stamp import note_as_user_metadata, note_of_write
from lock_manager.table_records.pins import PINS_FOLDER, Pin, PinnedTable
from lock_manager.testing.embedded import EmbeddedZooKeeper
from lock_manager.zookeeper.znodes import Mode, new_contender_path, table_node
from sluice.audit.log_folder import s3_client
from sluice.local.s3 import LocalS3
from sluice.ui.history import Operation
from sluice.ui.log_tail import LogTail
from sluice.ui.server import TOKEN_VARIABLE, find_token, open_socket, page_address
from sluice.ui.timeline import timeline
from tests.support.browser import Browser, running_browser
from tests.support.prometheus import PrometheusServer, needs_prometheus
from tests.support.rivals import RivalManager
from tests.unit.test_grafana_board import exported
from tests.unit.test_health_page import maintenance_report
from writer_jobs.maintenance.findings import find
from writer_jobs.maintenance.gauges import record_health
from writer_jobs.maintenance.policy import Policy
from writer_jobs.streaming.feed_metrics import FeedProgress

TABLE = "s3://lake/flights"
#: A name that is HTML.
HOSTILE = "s3://lake/<img src=x onerror=alert(1)>&'\""
JOB = "nightly <b>load</b>"
WIDTHS = (pytest.param(1280, marks=pytest.mark.full), 390)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
#: Milliseconds to wait for a page after ZooKeeper has ended, which it shows after 15 s.
PATIENCE = 120_000
TOKEN = "s3cret"  # noqa: S105 (of a test)


@dataclass
class Ui:
    """A running `sluice ui`."""

    process: subprocess.Popen[str]
    address: str
    errors: Path

    @property
    def port(self) -> int:
        return int(re.search(r":(\d+)/", self.address)[1])  # type: ignore[index]

    def table_address(self, table: str) -> str:
        return f"{self.address}table?uri={quote(table, safe='')}"

    def get(self, path: str = "/", **headers: str) -> tuple[int, dict[str, str], str]:
        """Return status, headers and text of an answer; redirections are not followed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read().decode()
        finally:
            connection.close()

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@dataclass
class Lake:
    """An empty lock root with two managers."""

    settings: LockSettings
    folder: Path
    stack: ExitStack
    eventually: Callable[..., None]
    waiters: list[threading.Thread] = field(default_factory=list)
    awaited_tables: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.writer = self.manager(JOB)
        self.rival = self.manager("optimize")

    def manager(self, job: str) -> RivalManager:
        return self.stack.enter_context(RivalManager(self.settings, job=job))

    def wait_in_queue(self, table: str, count: int = 1) -> None:
        """Request the lock in threads. They wait until the request is cancelled, at the latest after the test."""
        self.awaited_tables.add(table)

        def acquire() -> None:
            with suppress(LockCancelledError):
                self.rival.acquire(table).release()

        for _ in range(count):
            thread = threading.Thread(target=acquire, daemon=True)
            thread.start()
            self.waiters.append(thread)

    def commit(self, table: Path, number: int, *, locked: bool = True) -> None:
        """Append a row with delta-rs."""
        row = pa.table({"id": [number]})
        if not locked:
            write_deltalake(table, row, mode="append")
            return
        with self.writer.acquire(table) as hold:
            metadata = commit_metadata(hold, job=JOB)
            write_deltalake(table, row, mode="append", commit_properties=CommitProperties(custom_metadata=metadata))

    @contextmanager
    def ui(self, *arguments: str, listen: str = "127.0.0.1:0", **variables: str) -> Iterator[Ui]:
        """Run `sluice ui` in a process of its own."""
        errors = self.folder / f"ui-{uuid.uuid4()}.txt"
        options = ["--zookeeper", self.settings.zk_hosts, "--lock-root", self.settings.lock_root, "--listen", listen]
        with errors.open("w") as error_file:
            process = subprocess.Popen(
                [sys.executable, "-m", "sluice", "ui", *options, *arguments],
                stdout=subprocess.PIPE, stderr=error_file, text=True, env={**os.environ, **variables},
            )  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "(Ctrl-C ends it)" in line, errors.read_text()
            yield Ui(process, line.split()[0], errors)
        finally:
            process.kill()
            process.communicate()


@pytest.fixture
def lake(zookeeper: Any, tmp_path: Path, eventually: Callable[..., None]) -> Iterator[Lake]:
    settings = LockSettings(zk_hosts=zookeeper.hosts, lock_root=f"/{uuid.uuid4()}", timeout_seconds=600)
    with ExitStack() as stack:
        lake = Lake(settings, tmp_path, stack, eventually)
        yield lake
        for table in lake.awaited_tables:
            lake.rival.cancel(table)
        for waiter in lake.waiters:
            waiter.join(30)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running
        assert running.problems == []


def znodes(client: KazooClient, path: str) -> dict[str, int]:
    """Return the version of the children of each znode below a path."""
    data, stat = client.get(path)
    nodes = {path: (stat.cversion, stat.version, data)}
    for name in client.get_children(path):
        nodes |= znodes(client, f"{path}/{name}")
    return nodes


def test_the_page_of_all_tables_follows_the_locks(lake: Lake, browser: Browser) -> None:
    lake.rival.acquire("s3://lake/airports").release()
    with lake.ui() as ui:
        page = browser.open(ui.address)
        page.get_by_text("1 table, 0 holders, 0 waiting requests").wait_for()
        page.get_by_text("No table is locked.").wait_for()
        with lake.writer.acquire(TABLE):
            page.get_by_text("2 tables, 1 holder, 0 waiting requests").wait_for()
            lake.wait_in_queue(TABLE, 3)
            page.get_by_text("2 tables, 1 holder, 3 waiting requests").wait_for()
            text = page.locator("#busy").inner_text()
            host = f"{socket.gethostname()} pid {os.getpid()}"
            held = rf"{re.escape(JOB)}, {host} holds the table for \d+ s, since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC\n"
            assert re.search(held, text), text
            assert re.search(rf"optimize, {host} and 2 more wait for it, the first for \d+ s", text), text
            assert "1 holding, 3 waiting" in page.locator("table.tables").inner_text()
            lake.rival.cancel(TABLE)
            page.get_by_text("2 tables, 1 holder, 0 waiting requests").wait_for()
        page.get_by_text("2 tables, 0 holders, 0 waiting requests").wait_for()
        page.close()


def test_the_page_of_a_table_shows_queue_last_hour_commits_and_pins(lake: Lake, browser: Browser) -> None:
    table = lake.folder / "flights"
    uri = TableResource.of(table).uri
    for number in range(3):
        lake.commit(table, number)
    lake.commit(table, 3, locked=False)
    expiry = datetime(2099, 1, 2, 3, 4, 5, tzinfo=UTC)
    pinned = PinnedTable(
        table=uri, location=str(table), table_id="id", version=2, committed_at=NOW, passed_version=None, event_time=None
    )
    pin = Pin(name="q3", pin_id="1", at=None, created_at=NOW, expires_at=expiry, tables=(pinned,), job="<audit>")
    (table / PINS_FOLDER).mkdir()
    (table / PINS_FOLDER / "q3.json").write_text(json.dumps(pin.to_json()))
    with lake.ui() as ui:
        page = browser.open(ui.address)
        page.get_by_text("1 table,").wait_for()
        # Keyboard alone: find the table, go to it, open its page.
        page.keyboard.press("/")
        page.keyboard.type("FLIGHTS")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.locator("h1", has_text=uri).wait_for()
        page.locator("table.commits tbody tr").nth(3).wait_for()
        commits = [row.split("\t") for row in page.locator("table.commits tbody").inner_text().splitlines()]
        assert [(row[0], row[2], row[3], row[4]) for row in commits] == [
            ("3", "WRITE", "no lock", "1"), *((str(number), "WRITE", JOB, "1") for number in (2, 1, 0)),
        ]  # fmt: skip
        assert all(row[6].isdecimal() for row in commits[1:])
        page.get_by_text("<audit>").wait_for()
        assert "2099-01-02 03:04:05\t2\t<audit>" in page.locator("table.pins").inner_text()
        page.get_by_text("Nobody holds the lock or waits for it.").wait_for()
        # A commit that is made now.
        lake.commit(table, 4)
        page.locator("table.commits tbody tr").nth(4).wait_for()
        page.get_by_text("As a table").click()
        page.locator("table.operations tbody tr", has_text=JOB).first.wait_for()
        page.locator("svg.timeline line.commit").nth(4).wait_for(state="attached")
        with lake.writer.acquire(table):
            page.locator("table.queue tbody tr", has_text="holds").wait_for()
            # The list that was opened stays open.
            assert page.locator("table.operations").is_visible()
        page.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_pages_fit_on_screens_and_show_hostile_names_as_text(lake: Lake, browser: Browser, width: int) -> None:
    lake.writer.acquire("s3://lake/" + "a-long-name-" * 12).release()
    with lake.writer.acquire(HOSTILE), lake.ui() as ui:
        lake.wait_in_queue(HOSTILE)
        page = browser.open(ui.address, width)
        page.get_by_text("1 waiting request").wait_for()
        for step in ("all tables", "one table"):
            assert page.evaluate("document.documentElement.scrollWidth") <= width, step
            assert page.locator("img").count() == 0
            assert page.get_by_text(HOSTILE).first.is_visible()
            if step == "all tables":
                page.locator("#busy a").click()
                page.locator("table.queue").wait_for()
        queue = page.locator("table.queue")
        assert JOB in queue.inner_text()
        # The last cell of a narrow screen is not outside of it.
        assert queue.evaluate("queue => queue.parentElement.scrollWidth") <= width
        assert page.get_by_text(f"sluice break {shlex.quote(HOSTILE)} --token ").is_visible()
        page.close()


def test_the_command_of_a_page_removes_the_holder_that_it_shows(lake: Lake) -> None:
    table = "s3://lake/$(touch planted) & 'flights'"
    hold = lake.writer.acquire(table)
    lake.wait_in_queue(table)
    with lake.ui() as ui:
        address = f"/table?uri={quote(TableResource.of(table).uri, safe='')}"
        lake.eventually(lambda: "<code>" in ui.get(address)[2], within=30)
        (text,) = re.findall(r"<code>sluice (.*)</code>", ui.get(address)[2])
    # The options of `sluice ui` are in the command.
    result = subprocess.run(
        ["/bin/sh", "-c", f"exec {shlex.quote(sys.executable)} -m sluice {html.unescape(text)} --yes"],
        cwd=lake.folder, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=True, timeout=60,
        capture_output=True, text=True,
    )  # fmt: skip
    assert "removed: " in result.stdout
    assert not (lake.folder / "planted").exists()
    with pytest.raises(LockLostError):
        hold.release()


def test_a_holder_that_goes_on_without_the_lock_is_marked(lake: Lake, ensemble_client: KazooClient) -> None:
    lake.writer.acquire(TABLE).release()
    node = table_node(lake.settings.lock_root, TableResource.of(TABLE))
    path = new_contender_path(node, "0" * 32, Mode.EXCLUSIVE)
    ensemble_client.create(path, json.dumps({FALLBACK_FIELD: True}).encode(), ephemeral=True, sequence=True)
    with lake.ui() as ui:
        lake.eventually(lambda: "goes on without the lock (fallback)" in ui.get()[2], within=30)
        assert "goes on without the lock (fallback)" in ui.get(f"/table?uri={quote(TABLE, safe='')}")[2]


@pytest.mark.full
def test_a_page_reports_that_zookeeper_does_not_answer(
    tmp_path: Path, eventually: Callable[..., None], browser: Browser
) -> None:
    with EmbeddedZooKeeper() as zookeeper, ExitStack() as stack:
        lake = Lake(LockSettings(zk_hosts=zookeeper.hosts, timeout_seconds=600), tmp_path, stack, eventually)
        lake.writer.acquire(TABLE).release()
        with lake.ui() as ui:
            page = browser.open(ui.address)
            page.get_by_text("1 table, 0 holders").wait_for()
            (server,) = zookeeper.servers
            server.kill()
            page.get_by_role("alert").wait_for(timeout=PATIENCE)
            assert "ZooKeeper at" in page.get_by_role("alert").inner_text()
            server.start()
            page.get_by_role("alert").wait_for(state="detached", timeout=PATIENCE)
            with lake.writer.acquire(TABLE):
                page.get_by_text("1 table, 1 holder").wait_for(timeout=PATIENCE)
            page.close()


@pytest.mark.full
def test_a_page_without_its_server_says_so(lake: Lake, browser: Browser) -> None:
    count = len(browser.problems)
    with lake.ui() as ui:
        page = browser.open(ui.address)
        page.get_by_text("0 tables").wait_for()
        ui.stop()
        page.get_by_text("sluice ui does not answer").wait_for()
        with lake.ui(listen=f"127.0.0.1:{ui.port}"):
            page.get_by_text("0 tables").wait_for()
        page.close()
    # The browser reports that the connection was refused.
    assert all("net::ERR_" in problem for problem in browser.problems[count:])
    del browser.problems[count:]


def test_nothing_is_written_and_no_lock_is_taken(lake: Lake, ensemble_client: KazooClient) -> None:
    table = lake.folder / "flights"
    lake.commit(table, 1)
    uri = TableResource.of(table).uri
    before = znodes(ensemble_client, lake.settings.lock_root)
    files = {path: path.stat().st_mtime_ns for path in table.rglob("*")}
    with lake.ui() as ui:
        lake.eventually(lambda: "1 table," in ui.get()[2], within=30)
        lake.eventually(lambda: 'table class="commits"' in ui.get(f"/table?uri={quote(uri, safe='')}")[2], within=30)
    assert znodes(ensemble_client, lake.settings.lock_root) == before
    assert {path: path.stat().st_mtime_ns for path in table.rglob("*")} == files
    # Negative control: a lock changes the znodes.
    lake.writer.acquire(table).release()
    assert znodes(ensemble_client, lake.settings.lock_root) != before


def test_a_table_whose_znode_is_removed_leaves_the_page(
    lake: Lake, browser: Browser, ensemble_client: KazooClient
) -> None:
    removed, nameless, permanent = "s3://lake/airports", "s3://lake/planes", "s3://lake/weather"
    nodes = {
        name: table_node(lake.settings.lock_root, TableResource.of(name)) for name in (removed, nameless, permanent)
    }
    for table in (TABLE, removed, permanent):
        lake.rival.acquire(table).release()
    ensemble_client.create(nodes[nameless])
    with lake.ui(permanent) as ui:
        page = browser.open(ui.address)
        rows = page.locator("table.tables tbody tr")
        page.get_by_text("4 tables").wait_for()
        assert "znode " in rows.all_inner_texts()[-1]
        for name in (removed, permanent):
            ensemble_client.delete(nodes[name], recursive=True)
        page.get_by_text("3 tables").wait_for()
        ensemble_client.delete(nodes[nameless])
        lake.rival.acquire(nameless).release()
        rows.get_by_text(nameless).wait_for()
        assert [text.split()[0] for text in rows.all_inner_texts()] == [TABLE, nameless, permanent]
        assert ui.get(f"/table?uri={quote(removed, safe='')}")[0] == 404
        page.close()


def test_only_known_tables_are_read(lake: Lake) -> None:
    (lake.folder / "secret").mkdir()
    address = f"/table?uri={quote(TableResource.of(lake.folder / 'secret').uri, safe='')}"
    with lake.ui() as ui:
        assert ui.get(address)[0] == ui.get(address.replace("/table", "/live"))[0] == 404
    with lake.ui(str(lake.folder / "secret")) as ui:
        assert ui.get(address)[0] == 200


def test_other_machines_need_the_token_and_pages_of_other_sites_are_refused(lake: Lake) -> None:
    with lake.ui() as ui:
        assert ui.address.endswith("/")
        status, headers, _ = ui.get()
        assert status == 200
        assert "default-src 'none'" in headers["content-security-policy"]
        assert ui.get(Host="attacker.example")[0] == ui.get("/live", Host="attacker.example")[0] == 403
        assert ui.get("/live", **{"Sec-Fetch-Site": "cross-site"})[0] == 403
        status, headers, _ = ui.get(Host="[::1")
        assert status == 403
        assert "content-security-policy" in headers
    with lake.ui(SLUICE_UI_TOKEN=TOKEN) as ui:
        assert ui.address.endswith(f"/?token={TOKEN}")
        for path in ("/", "/table?uri=a", "/live", "/page.js", "/?token=wrong", "/?token=%C3%A4"):
            assert ui.get(path)[0] == 401, path
        assert ui.get(f"/?token={TOKEN}", Host="[::1")[0] == 403
        assert ui.get(Authorization="Bearer wrong")[0] == 401
        status, headers, _ = ui.get(f"/?token={TOKEN}")
        assert (status, headers["location"]) == (303, "/")
        cookie = headers["set-cookie"]
        name, _, value = cookie.partition(";")[0].partition("=")
        assert value == TOKEN
        assert ui.get(Cookie=f"{name}=wrong")[0] == ui.get(Cookie=f"sluice_token={TOKEN}")[0] == 401
        assert "HttpOnly" in cookie
        assert "Secure" not in cookie
        assert "Secure" in ui.get(f"/?token={TOKEN}", **{"X-Forwarded-Proto": "https"})[1]["set-cookie"]
        # Behind a proxy.
        assert ui.get(Host="sluice.example", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert ui.get(Cookie=cookie.partition(";")[0])[0] == ui.get(Authorization=f"Bearer {TOKEN}")[0] == 200


def test_a_link_of_another_site_logs_in_until_the_token_changes(lake: Lake, browser: Browser) -> None:
    count = len(browser.problems)
    page = browser.open("about:blank")
    with lake.ui(SLUICE_UI_TOKEN=TOKEN) as ui:
        link = f'<a href="{ui.address}">locks</a>'
        page.route("http://chat.example/", lambda route: route.fulfill(content_type="text/html", body=link))
        page.goto("http://chat.example/")
        page.get_by_role("link").click()
        page.get_by_text("0 tables").wait_for()
        assert page.url == f"http://127.0.0.1:{ui.port}/"
        # Another server of this host does not log it out.
        with lake.ui(SLUICE_UI_TOKEN=f"{TOKEN}2") as second_ui:
            page.goto(second_ui.address)
            page.get_by_text("0 tables").wait_for()
        page.goto(f"http://127.0.0.1:{ui.port}/")
        page.get_by_text("0 tables").wait_for()
        ui.stop()
    with lake.ui(listen=f"127.0.0.1:{ui.port}", SLUICE_UI_TOKEN=f"{TOKEN}3") as ui:
        page.get_by_text("Open the address that sluice ui has printed").wait_for()
        page.evaluate("address => fetch(address)", ui.address)
        page.get_by_text("0 tables").wait_for()
        page.close()
    assert all("net::ERR_" in problem or "status of 401" in problem for problem in browser.problems[count:])
    del browser.problems[count:]


def test_every_other_address_than_this_machine_s_own_gets_a_token() -> None:
    assert [find_token(host, {}) for host in ("127.0.0.1", "localhost", "::1")] == [None] * 3
    tokens = [find_token(host, {}) for host in ("0.0.0.0", "::", "192.168.0.1", "sluice.example", "0.0.0.0")]  # noqa: S104
    assert len(set(tokens)) == len(tokens)
    assert all(token is not None and len(token) >= 32 for token in tokens)
    assert find_token("127.0.0.1", {TOKEN_VARIABLE: TOKEN}) == find_token("::", {TOKEN_VARIABLE: TOKEN}) == TOKEN


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "localhost"),
        ("0.0.0.0", socket.gethostname()),  # noqa: S104
    ],
)
def test_the_printed_address_is_one_that_browsers_can_open(host: str, name: str) -> None:
    with open_socket(host, 0) as listener:
        port = listener.getsockname()[1]
        assert page_address(host, listener, None) == f"http://{name}:{port}/"
        assert page_address(host, listener, "a&b") == f"http://{name}:{port}/?token=a%26b"


def test_a_short_locked_commit_is_on_the_first_page(lake: Lake, browser: Browser) -> None:
    table = lake.folder / "flights"
    with lake.ui() as ui:
        page = browser.open(ui.address)
        page.get_by_text("0 tables").wait_for()
        for number in range(3):
            lake.commit(table, number)
        page.locator("table.tables path.commit").wait_for(state="attached")
        lake.eventually(lambda: page.locator("table.tables tbody tr").inner_text().split("\t")[-1] == "3")
        page.close()


def test_a_table_that_is_dropped_and_created_again_has_only_its_own_commits(tmp_path: Path) -> None:
    table = tmp_path / "flights"
    write_deltalake(table, pa.table({"id": [1]}))
    tail = LogTail(str(table), {})
    assert [commit.version for commit in tail.read()] == [0]
    assert tail.read() == []
    shutil.rmtree(table)
    assert tail.read() == list(tail.commits) == []
    for _ in range(3):
        write_deltalake(table, pa.table({"name": ["a"]}), mode="append")
    assert [commit.version for commit in tail.read()] == [0, 1, 2]
    shutil.rmtree(table)
    for number in range(5):
        write_deltalake(table, pa.table({"id": [number]}), mode="append")
    assert [commit.version for commit in tail.read()] == [0, 1, 2, 3, 4]
    assert len(tail.commits) == 5


@pytest.mark.parametrize(("interval", "count"), [(30, 200), (10, 400), (1, 1000)])
def test_the_log_is_read_for_an_hour_back(tmp_path: Path, interval: int, count: int) -> None:
    table, now = tmp_path / "flights", time.time()
    (table / "_delta_log").mkdir(parents=True)
    for version in range(1100):
        info = {"timestamp": int(1000 * (now - interval * (1099 - version)))}
        (table / "_delta_log" / f"{version:020}.json").write_text(json.dumps({"commitInfo": info}))
    (table / "_delta_log" / "_last_checkpoint").write_text('{"version": 1090}')
    tail = LogTail(str(table), {})
    assert [commit.version for commit in tail.read()] == list(range(1100 - count, 1100))
    assert [commit.version for commit in tail.commits if not isinstance(commit, str)] == list(range(900, 1100))
    assert tail.read() == []


def test_a_picture_names_what_it_leaves_out() -> None:
    operations = [Operation(str(number), job=f"job {number % 50}", ended_at=1000.0) for number in range(700)]
    assert "<p>and 10 more writers; the newest 600 of 700 operations</p>" in timeline(operations, 1000.0)
    assert "<p>" not in timeline(operations[:40], 1000.0)


@pytest.mark.parametrize("times", [{"requested_at": 10**400}, {"requested_at": float("nan")}, {"acquired_at": "soon"}])
def test_values_of_other_programs_break_no_page(
    lake: Lake, ensemble_client: KazooClient, times: dict[str, Any]
) -> None:
    lake.writer.acquire(TABLE).release()
    node = table_node(lake.settings.lock_root, TableResource.of(TABLE))
    path = new_contender_path(node, "0" * 32, Mode.EXCLUSIVE)
    data = {"job": ["no text"], "pid": "7", **times}
    ensemble_client.create(path, json.dumps(data).encode(), ephemeral=True, sequence=True)
    with lake.ui() as ui:
        lake.eventually(lambda: "1 table, 1 holder" in ui.get()[2], within=30)
        assert "unknown writer" in ui.get()[2]
        assert ui.get(f"/table?uri={quote(TABLE, safe='')}")[0] == 200


def test_the_end_does_not_wait_for_a_store_that_does_not_answer(lake: Lake) -> None:
    with socket.create_server(("127.0.0.1", 0)) as store:
        store.settimeout(60)
        lake.writer.acquire(TABLE).release()
        address = f"http://127.0.0.1:{store.getsockname()[1]}"
        variables = {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
        with lake.ui(**variables) as ui:
            lake.eventually(lambda: "1 table," in ui.get()[2], within=30)
            assert "The log is being read" in ui.get(f"/table?uri={quote(TABLE, safe='')}")[2]
            with store.accept()[0]:
                started_at = time.monotonic()
                assert ui.stop() == 130
                # The two attempts of boto3 take 10 s each.
                assert time.monotonic() - started_at < 20


@pytest.mark.full
def test_eight_pages_can_be_open(lake: Lake, browser: Browser) -> None:
    with lake.ui() as ui:
        pages = [browser.open(ui.address) for _ in range(8)]
        with lake.writer.acquire(TABLE):
            for page in pages:
                page.bring_to_front()
                page.get_by_text("1 table, 1 holder").wait_for()
        for page in pages:
            page.close()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_a_signal_ends_it_while_a_page_is_open(lake: Lake, number: signal.Signals) -> None:
    with lake.ui() as ui:
        with socket.create_connection(("127.0.0.1", ui.port)) as connection:
            connection.sendall(b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            started_at = time.monotonic()
            assert ui.stop(number) == 128 + number
            assert time.monotonic() - started_at < 20
        assert ui.errors.read_text().startswith("sluice: stopped by ")
        assert "Traceback" not in ui.errors.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--listen", "here"], 2, "--listen='here': must be PORT or HOST:PORT"),
        (["--listen", "127.0.0.1:70000"], 2, "must be PORT or HOST:PORT"),
        (["--listen", "no.such.host.invalid:0"], 1, "no.such.host.invalid:0 cannot be used: "),
        (["--prometheus", "prometheus:9090"], 2, "must be an address such as http://127.0.0.1:9090"),
        (["--prometheus", "http://user:secret@prometheus:port"], 2, "--prometheus must be an address such as"),
        (["--lock-url", "optimistic://"], 2, "optimistic:// has no locks to show"),
        (["--report", "hdfs://nn/report.json"], 2, "only s3://, s3a://, file: and local paths can be read"),
        (["--listen", "TAKEN"], 1, "cannot be used: Address already in use; choose another --listen"),
    ],
)
def test_bad_arguments_are_one_sentence(lake: Lake, arguments: list[str], code: int, message: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        arguments = [argument.replace("TAKEN", f"127.0.0.1:{taken.getsockname()[1]}") for argument in arguments]
        options = [*([] if "--lock-url" in arguments else ["--zookeeper", lake.settings.zk_hosts]), *arguments]
        result = subprocess.run(
            [sys.executable, "-m", "sluice", "ui", *options], capture_output=True, text=True, timeout=60, check=False
        )
    assert (result.returncode, result.stdout) == (code, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


JOBS = {"nightly": (25, 2, "WRITE"), "cdc orders": (3, 4, "MERGE"), "optimize": (90, 1, "OPTIMIZE")}


def forge_last_hour(put: Callable[[str, str], None], now: float) -> None:
    """Put versions of several jobs, as they could have been committed within the last hour."""
    numbers = random.Random(3)
    free_at = now - 3500
    for version in itertools.count():
        job = numbers.choice(list(JOBS))
        work, held, operation = JOBS[job]
        requested_at = free_at + numbers.uniform(-20, 100)
        acquired_at = max(requested_at + 0.02, free_at)
        free_at = acquired_at + numbers.uniform(0.5, 2) * held
        if free_at > now - 60:
            return
        stamp = {
            "hold": f"{version:032x}", "ensemble": "e", "commit_id": f"c{version}", "job": job,
            "nodes": [{"key": "k", "mode": "exclusive", "token": 8000 + version}],
            "requested_at": requested_at, "acquired_at": acquired_at,
        }  # fmt: skip
        note = note_of_write({}, f"c{version}", requested_at - numbers.uniform(0.5, 1.5) * work)
        info = {
            "timestamp": int(free_at * 1000), "operation": operation, "sluice": stamp,
            "operationMetrics": {"numOutputRows": str(numbers.randint(100, 9000))},
            "userMetadata": note_as_user_metadata(note), "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0",
        }  # fmt: skip
        put(f"flights/_delta_log/{version:020}.json", json.dumps({"commitInfo": info}))


@pytest.mark.full
def test_pictures_of_the_pages(lake: Lake, browser: Browser) -> None:
    """With SLUICE_TEST_SCREENSHOTS=FOLDER they are written there: docs/images has them."""
    screenshots = Path(os.environ.get("SLUICE_TEST_SCREENSHOTS", lake.folder / "screenshots"))
    screenshots.mkdir(exist_ok=True)
    table = "s3://lake/flights"
    nightly, orders = lake.manager("nightly"), lake.manager("cdc orders")
    with LocalS3() as s3:
        s3.create_bucket("lake")
        client = s3_client({"endpoint_url": s3.endpoint, "access_key_id": "any", "secret_access_key": "any"})
        forge_last_hour(lambda key, text: client.put_object(Bucket="lake", Key=key, Body=text), time.time())
        for name in ("airports", "carriers", "planes", "weather"):
            lake.rival.acquire(f"s3://lake/{name}").release()
        with nightly.acquire("s3://lake/weather"), orders.acquire(table), lake.ui(**s3.environment) as ui:
            lake.wait_in_queue(table, 2)
            page = browser.open(ui.address, 1100, 700)
            page.locator("table.tables path.commit").wait_for(state="attached")
            page.get_by_text("2 holders, 2 waiting requests").wait_for()
            page.screenshot(path=screenshots / "ui.png")
            page.locator("#busy a").first.click()
            page.locator("table.commits tbody tr").nth(20).wait_for()
            for part in ("work", "wait", "hold"):
                assert page.locator(f"svg.timeline rect.{part}").count() > 5
            page.set_viewport_size({"width": 1100, "height": 900})
            page.screenshot(path=screenshots / "ui-table.png")
            page.close()
            lake.rival.cancel(table)
            for waiter in lake.waiters:
                waiter.join(30)
    assert all(file.stat().st_size > 20_000 for file in screenshots.glob("ui*.png"))


@pytest.mark.full
def test_the_report_of_maintenance_is_on_the_pages(lake: Lake, browser: Browser) -> None:
    path = lake.folder / "report.json"
    failed = {"table": "s3://lake/missing", "error": "there is no <table>", "exit_code": 3}
    with lake.ui("--report", str(path)) as ui:
        # The file appears later than the server, as that of the first night.
        lake.eventually(lambda: "report.json cannot be read: No such file" in ui.get()[2], within=30)
    path.write_text(json.dumps({"tables": [{**maintenance_report().to_json(), "table": TABLE}, failed]}))
    with lake.ui("--report", str(path)) as ui:
        page = browser.open(ui.address)
        row = page.locator("table.tables tbody tr", has_text=TABLE)
        row.get_by_text("small-files").wait_for()
        page.locator("table.tables tbody tr", has_text="missing").get_by_text("maintenance failed").wait_for()
        row.get_by_role("link").click()
        storage = page.locator("#storage")
        storage.get_by_text("maintain.py --compact").first.wait_for()
        assert storage.locator("svg").count() >= 2
        page.goto(ui.table_address("s3://lake/missing"))
        page.get_by_text("The last maintenance failed: there is no <table>").wait_for()
        page.close()


@pytest.mark.full
@needs_prometheus
def test_figures_of_prometheus_are_on_the_pages(lake: Lake, browser: Browser) -> None:
    expiry = datetime(2099, 1, 2, 3, 4, 5, tzinfo=UTC)
    health = replace(maintenance_report().before, table=TABLE, next_pin_expiry=expiry)
    # Another instance has run the stream and the maintenance before, and has left its series.
    with exported() as old_registry:
        FeedProgress(TABLE, "orders", "10 seconds").record(time.time() - 40_000)
        record_health(replace(health, next_pin_expiry=expiry - timedelta(days=1)), [])
    with ExitStack() as stack, MetricsExporter("0") as exporter:
        old_server, _ = start_http_server(0, "127.0.0.1", registry=old_registry)
        stack.callback(old_server.server_close)
        stack.callback(old_server.shutdown)
        lake.writer.acquire(TABLE).release()
        lake.writer.acquire("s3://lake/airports").release()
        emit(Event.REFUSED, TABLE, error="LockNotHeldError")
        emit(Event.LOST, TABLE)
        FeedProgress(TABLE, "orders", "10 seconds").record(time.time() - 90)
        record_health(health, find(health, Policy()))
        targets = [str(exporter.address).split("/")[2], f"127.0.0.1:{old_server.server_port}"]
        prometheus = PrometheusServer(lake.folder, targets, stack)
        # sluice ui reads the figures every 15 s, with a query for each.
        lake.eventually(lambda: prometheus.value("count(sluice_table_measured_timestamp_seconds)") == 2, within=120)
        with lake.ui("--prometheus", f"http://user:secret@{prometheus.address}") as ui:
            page = browser.open(ui.address)
            row = page.locator("table.tables tbody tr", has_text=TABLE)
            row.get_by_text("small-files").wait_for()
            cells = row.inner_text().split("\t")
            assert (cells[0], cells[4], cells[5]) == (TABLE, "1", "1")
            assert re.fullmatch(r"[1-9] min \d+ s", cells[6])
            assert {"small-files", "orphans"} <= set(cells[7].split(", "))
            row.get_by_role("link").click()
            page.get_by_text("2099-01-02 03:04:05").wait_for()
            figures = page.locator("#figures").inner_text()
            assert "refused commits, last hour\n1\n" in figures
            assert "lost locks, last hour\n1\n" in figures
            assert re.search(r"lag of the slowest stream\n[1-9] min ", figures)
            page.goto(ui.table_address("s3://lake/airports"))
            page.locator("#figures").get_by_text("no stream").wait_for()
            assert "secret" not in page.content()
            page.close()
    with lake.ui("--prometheus", "http://user:secret@127.0.0.1:9") as ui:
        lake.eventually(lambda: "Prometheus at http://127.0.0.1:9 gives no figures" in ui.get()[2], within=30)
