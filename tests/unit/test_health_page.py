"""The health page: its content, its well-formed HTML, and its layout in a real browser."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import CHROMIUM
from writer_jobs.errors import StorageError
from writer_jobs.job.maintain.publisher import HealthPublisher
from writer_jobs.job.output import JobOutput
from writer_jobs.maintenance.findings import find
from writer_jobs.maintenance.health import (
    SIZE_BOUNDS,
    FileTotals,
    FolderHealth,
    LogHealth,
    PartitionHealth,
    TableHealth,
)
from writer_jobs.maintenance.policy import Action, Policy
from writer_jobs.maintenance.result import MaintenanceReport, UnitResult
from writer_jobs.page.health import page

MIB = 1 << 20
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NEXT_EXPIRY = NOW + timedelta(days=30)
#: Number of size classes in a histogram of file sizes.
SIZE_CLASSES = len(SIZE_BOUNDS) + 1
#: Script that is added to a page. It stores the layout of the page in its title.
MEASURE = """<script>
const box = element => { const r = element.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; };
const all = (selector, measure) => [...document.querySelectorAll(selector)].map(measure);
document.title = JSON.stringify({
  width: document.documentElement.clientWidth, scroll: document.documentElement.scrollWidth,
  svgs: all("svg", box), bars: all("svg rect.bar", box), after: all("svg rect.after", box),
  findings: all(".findings li", item => [box(item)[3], item.innerText]),
  links: all("table.overview a", link => document.querySelector(link.getAttribute("href"))?.innerText),
  resources: performance.getEntriesByType("resource").map(entry => entry.name),
  ink: getComputedStyle(document.body).color, paper: getComputedStyle(document.body).backgroundColor,
});
</script>"""


def histogram_of(*counts: int) -> tuple[int, ...]:
    """Return the numbers of files by size class. Size classes without an argument have no file."""
    return (*counts, *(0,) * (SIZE_CLASSES - len(counts)))


def health(**changes: Any) -> TableHealth:
    partitions = (
        PartitionHealth(
            values={"day": "2013-01-01", "place": None},
            total=FileTotals(40, 40 * MIB), small=FileTotals(40, 40 * MIB), with_deleted_rows=FileTotals(4, 4 * MIB),
            rows=9000, deleted_rows=1000, histogram=histogram_of(10, 0, 20, 10),
        ),
        PartitionHealth(
            values={"day": "<script>alert(1)</script>", "place": "a&b"},
            total=FileTotals(20, 200 * MIB), small=FileTotals(10, 10 * MIB),
            rows=10_000, histogram=histogram_of(5, 0, 5, 10),
        ),
    )  # fmt: skip
    log = LogHealth(
        total=FileTotals(1300, 9 * MIB), first_version=0, versions=1235, expired_versions=500,
        checkpoint_version=1200, checkpointed_at=NOW, since_checkpoint=34, checkpoint_interval=10,
        retention_seconds=30 * 86_400, writers_clean=True,
    )  # fmt: skip
    folder = FolderHealth(
        removed=FileTotals(10, 120 * MIB), orphans=FileTotals(7, 60 * MIB), retention_seconds=7 * 86_400
    )
    table = TableHealth(
        table="s3://lake/flights", table_id="id", version=1234,
        committed_at=NOW, measured_at=NOW, measuring_seconds=1.5,
        partition_columns=("day", "place"), target_file_size=128 * MIB, partitions=partitions, log=log, folder=folder,
        growth_per_day=-5.0 * MIB, commits_per_day=120.5, pins=("2013-01",), next_pin_expiry=NEXT_EXPIRY,
    )  # fmt: skip
    return replace(table, **changes)


def report(table: TableHealth, **fields: Any) -> MaintenanceReport:
    return MaintenanceReport(before=table, findings=tuple(find(table, Policy())), **fields)


def maintenance_report() -> MaintenanceReport:
    """Return the report of a run that compacts the first partition and fails to vacuum."""
    table = health()
    file = FileTotals(1, 40 * MIB)
    part = replace(table.partitions[0], total=file, small=file, histogram=histogram_of(0, 0, 0, 0, 0, 0, 1))
    table_after = replace(table, version=1235, partitions=(part, table.partitions[1]))
    compaction = UnitResult(
        action=Action.COMPACT, partitions=(table.partitions[0].values,), version=1235, seconds=12.0, held_seconds=0.2,
        removed=FileTotals(40, 40 * MIB), added=FileTotals(1, 39 * MIB),
    )  # fmt: skip
    vacuum = UnitResult(action=Action.VACUUM, problem="another writer has changed <it>")
    return report(
        table, done=(compaction, vacuum), left=3, after=table_after, findings_after=tuple(find(table_after, Policy()))
    )


class StrictParser(HTMLParser):
    """A parser that raises an AssertionError at an element that is not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def table_without_partitions() -> TableHealth:
    return health(table="s3://lake/empty", partitions=(), partition_columns=(), growth_per_day=None, pins=())


def many_partitions() -> TableHealth:
    part = health().partitions[1]
    return health(
        partitions=tuple(
            replace(part, values={"day": f"{day}", "place": None}, small=FileTotals(day, day)) for day in range(5000)
        )
    )


REPORTS = {
    "one table": lambda: [report(health())],
    "maintained table": lambda: [maintenance_report()],
    "several tables": lambda: [
        maintenance_report(), report(health(table="s3://lake/airports")), report(table_without_partitions())
    ],
    "no table": list,
    "empty table": lambda: [report(table_without_partitions())],
    "many partitions": lambda: [report(many_partitions())],
}  # fmt: skip


@pytest.mark.parametrize("name", REPORTS)
def test_the_page_is_one_well_formed_file_without_requests(name: str) -> None:
    text = page(REPORTS[name]())
    elements = StrictParser(text).elements
    assert "script" not in {tag for tag, _ in elements}
    assert not [attributes for _, attributes in elements if {"src", "srcset", "onload"} & attributes.keys()]
    assert all(str(attributes["href"]).startswith("#") for _, attributes in elements if "href" in attributes)
    assert "url(" not in text
    assert "@import" not in text
    assert len(text) < 500_000


def test_the_page_shows_findings_and_work() -> None:
    text = page([maintenance_report()])
    for fragment in (
        "s3://lake/flights",
        "&lt;script&gt;alert(1)&lt;/script&gt;",
        "place=null",
        "another writer has changed &lt;it&gt;",
        "3 units of work were left for the next run",
        "version 1,200, 0.0 hours old; 34 versions since",
        "-5.0 MiB",
        "maintain.py --vacuum",
        "7, 60.0 MiB",
    ):
        assert fragment in text, fragment
    assert "4,900 more partitions" in page([report(many_partitions())])
    assert "No findings." in page([MaintenanceReport(before=health(), findings=())])


def test_the_text_of_a_histogram_has_the_numbers_before_and_after() -> None:
    assert "<desc>&lt; 16 KiB: 15; " in page([report(health())])
    assert "<desc>&lt; 16 KiB: 15 before, 5 after; " in page([maintenance_report()])


def layout_of(text: str, folder: Path, width: int = 1280) -> dict[str, Any]:
    """Open a page in Chromium, in a window of this width; return its layout."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    file = folder / "page.html"
    file.write_text(text.replace("</body>", MEASURE + "</body>"), encoding="utf-8")
    process = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900",
            "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr",
            "--virtual-time-budget=2000", "--dump-dom", file.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in process.stderr, process.stderr
    title = re.search(r"<title>(.*?)</title>", process.stdout, re.DOTALL)
    assert title is not None
    layout: dict[str, Any] = json.loads(title[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    return layout


@pytest.mark.parametrize("width", [1280, 500])
@pytest.mark.parametrize("name", ["several tables", "many partitions", "empty table"])
def test_a_browser_shows_the_page_without_overflow(name: str, width: int, tmp_path: Path) -> None:
    reports = REPORTS[name]()
    layout = layout_of(page(reports), tmp_path, width)
    assert layout["resources"] == []
    assert layout["width"] <= width
    assert layout["scroll"] <= layout["width"]
    assert all(w > 100 and h > 20 and x >= 0 and x + w <= layout["width"] for x, _, w, h in layout["svgs"])
    findings = [report.findings_after if report.after else report.findings for report in reports]
    codes = [finding.code for finding in itertools.chain.from_iterable(findings)]
    assert [text.split()[0] for _, text in layout["findings"]] == codes
    assert all(height > 20 for height, _ in layout["findings"])
    assert layout["links"] == ([report.before.table for report in reports] if len(reports) > 1 else [])
    assert layout["ink"] != layout["paper"]


def test_negative_control_a_page_that_is_too_wide_overflows(tmp_path: Path) -> None:
    text = page([report(health())]).replace("<h1>", '<div style="width: 3000px">x</div><h1>', 1)
    layout = layout_of(text, tmp_path)
    assert layout["scroll"] > layout["width"]


def test_the_lengths_of_bars_are_proportional_to_the_figures(tmp_path: Path) -> None:
    table = health()
    lengths = [width for _, _, width, _ in layout_of(page([report(table)]), tmp_path)["bars"]]
    bytes_by_state = [table.total.total.size, 120 * MIB, 0, 0, 0, 0, 60 * MIB, 9 * MIB]
    partitions_start = SIZE_CLASSES + len(bytes_by_state)
    assert_proportional(lengths[:SIZE_CLASSES], table.total.histogram)
    assert_proportional(lengths[SIZE_CLASSES:partitions_start], bytes_by_state)
    assert_proportional(lengths[partitions_start:], [40, 10])
    layout = layout_of(page([maintenance_report()]), tmp_path)
    assert_proportional([width for _, _, width, _ in layout["after"]], histogram_of(5, 0, 5, 10, 0, 0, 1))


def assert_proportional(lengths: list[float], values: Any) -> None:
    longest, largest = max(lengths), max(values)
    assert longest > 50
    assert [length / longest for length in lengths] == pytest.approx([value / largest for value in values], abs=0.01)


def test_the_page_lists_tables_that_failed() -> None:
    text = page([report(health())], {"s3://lake/<b>gone</b>": "there is no Delta table & no log"})
    assert "<code>s3://lake/&lt;b&gt;gone&lt;/b&gt;</code>: there is no Delta table &amp; no log" in text
    assert "<h3>Failed</h3>" not in page([report(health())])


class UnreliableStore:
    """A store whose writes fail while ``unavailable`` is true."""

    def __init__(self) -> None:
        self.pages: list[str] = []
        self.unavailable = True

    def status(self, _: str) -> str | None:
        return self.pages[-1] if self.pages else None

    def write_text(self, _: str, text: str) -> None:
        if self.unavailable:
            raise StorageError("503")
        self.pages.append(text)


def test_tables_are_maintained_while_the_page_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    store = UnreliableStore()
    summaries: list[Any] = []
    monkeypatch.setattr("writer_jobs.job.maintain.publisher.HadoopFiles.of", lambda _: store)
    session: Any = None
    publisher = HealthPublisher(
        JobOutput(None), lambda **facts: summaries.append(facts), session, page_uri="s3a://lake/health.html"
    )
    with pytest.raises(StorageError):
        publisher.start()
    store.unavailable = False
    publisher.start()
    store.unavailable = True
    publisher.publish_failure("s3a://lake/gone", "there is no Delta table", 2)
    publisher.publish_table(report(health()))
    with pytest.raises(StorageError):
        publisher.finish()
    store.unavailable = False
    publisher.finish()
    assert "<h3>Failed</h3>" in store.pages[-1]
    assert "s3://lake/flights" in store.pages[-1]
    assert len(summaries[-1]["tables"]) == 2
    # The publisher does not write the finished page a second time.
    publisher.finish()
    assert len(store.pages) == 2
