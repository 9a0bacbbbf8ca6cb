"""The page of tables' health: what it says, that it is well-formed, and how a real browser lays it out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

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
from writer_jobs.maintenance.page import page
from writer_jobs.maintenance.policy import Action, Policy
from writer_jobs.maintenance.result import MaintenanceReport, UnitResult

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
MIB = 1 << 20
NOW = datetime(2026, 1, 1, tzinfo=UTC)
CLASSES = len(SIZE_BOUNDS) + 1
#: Appended to a page: it says how the browser has laid it out.
MEASURE = """<script>
const box = each => { const r = each.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; };
const all = (what, how) => [...document.querySelectorAll(what)].map(how);
document.title = JSON.stringify({
  width: document.documentElement.clientWidth, scroll: document.documentElement.scrollWidth,
  svgs: all("svg", box), bars: all("svg rect.bar", box), after: all("svg rect.after", box),
  findings: all(".findings li", each => [box(each)[3], each.innerText]),
  links: all("table.overview a", each => document.querySelector(each.getAttribute("href"))?.innerText),
  resources: performance.getEntriesByType("resource").map(each => each.name),
  ink: getComputedStyle(document.body).color, paper: getComputedStyle(document.body).backgroundColor,
});
</script>"""


def classes(*numbers: int) -> tuple[int, ...]:
    return (*numbers, *(0,) * (CLASSES - len(numbers)))


def health(**changes: Any) -> TableHealth:
    parts = (
        PartitionHealth(
            values={"day": "2013-01-01", "place": None},
            total=FileTotals(40, 40 * MIB),
            small=FileTotals(40, 40 * MIB),
            rows=9000,
            deleted_rows=1000,
            with_deleted_rows=FileTotals(4, 4 * MIB),
            histogram=classes(10, 0, 20, 10),
        ),
        PartitionHealth(
            values={"day": "<script>alert(1)</script>", "place": "a&b"},
            total=FileTotals(20, 200 * MIB),
            small=FileTotals(10, 10 * MIB),
            rows=10_000,
            histogram=classes(5, 0, 5, 10),
        ),
    )
    made = TableHealth(
        table="s3://lake/flights",
        table_id="id",
        version=1234,
        committed_at=NOW,
        measured_at=NOW,
        measuring_seconds=1.5,
        partition_columns=("day", "place"),
        target_file_size=128 * MIB,
        partitions=parts,
        log=LogHealth(
            total=FileTotals(1300, 9 * MIB),
            first_version=0,
            versions=1235,
            checkpoint_version=1200,
            checkpointed_at=NOW,
            since_checkpoint=34,
            checkpoint_interval=10,
            expired_versions=500,
            retention_seconds=30 * 86_400,
            writers_clean=True,
        ),
        folder=FolderHealth(
            removed=FileTotals(10, 120 * MIB),
            orphans=FileTotals(7, 60 * MIB),
            retention_seconds=7 * 86_400,
        ),
        growth_per_day=-5.0 * MIB,
        commits_per_day=120.5,
        pins=("2013-01",),
    )
    return replace(made, **changes)


def report(found: TableHealth, **changes: Any) -> MaintenanceReport:
    return MaintenanceReport(before=found, findings=tuple(find(found, Policy())), **changes)


def cared_for() -> MaintenanceReport:
    before = health()
    part = replace(
        before.partitions[0],
        total=FileTotals(1, 40 * MIB),
        small=FileTotals(1, 40 * MIB),
        histogram=classes(0, 0, 0, 0, 0, 0, 1),
    )
    after = replace(before, version=1235, partitions=(part, before.partitions[1]))
    done = (
        UnitResult(
            action=Action.COMPACT,
            partitions=(before.partitions[0].values,),
            version=1235,
            seconds=12.0,
            held_seconds=0.2,
            removed=FileTotals(40, 40 * MIB),
            added=FileTotals(1, 39 * MIB),
        ),
        UnitResult(action=Action.VACUUM, problem="another writer has changed <it>"),
    )
    return report(before, done=done, left=3, after=after, findings_after=tuple(find(after, Policy())))


class WellFormed(HTMLParser):
    """Fails at an element that is not closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def many_partitions() -> TableHealth:
    one = health().partitions[1]
    return health(
        partitions=tuple(
            replace(one, values={"day": f"{day}", "place": None}, small=FileTotals(day, day)) for day in range(5000)
        )
    )


PAGES = {
    "one": lambda: [report(health())],
    "cared for": lambda: [cared_for()],
    "a fleet": lambda: [cared_for(), report(health(table="s3://lake/airports")), report(empty())],
    "nothing": list,
    "empty": lambda: [report(empty())],
    "many partitions": lambda: [report(many_partitions())],
}


def empty() -> TableHealth:
    return health(table="s3://lake/empty", partitions=(), partition_columns=(), growth_per_day=None, pins=())


@pytest.mark.parametrize("which", PAGES)
def test_it_is_one_well_formed_file_that_asks_for_nothing_else(which: str) -> None:
    made = page(PAGES[which]())
    parsed = WellFormed(made)
    assert "script" not in {tag for tag, _ in parsed.seen}
    assert not [attrs for _, attrs in parsed.seen if {"src", "srcset", "onload"} & attrs.keys()]
    assert all(str(attrs["href"]).startswith("#") for _, attrs in parsed.seen if "href" in attrs)
    assert "url(" not in made
    assert "@import" not in made
    assert len(made) < 500_000


def test_it_says_what_was_found_and_what_was_done() -> None:
    made = page([cared_for()])
    for text in (
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
        assert text in made, text
    assert "4,900 more partitions" in page([report(many_partitions())])
    assert "Nothing to mend." in page([MaintenanceReport(before=health(), findings=())])


@pytest.mark.parametrize("width", [1280, 500])
@pytest.mark.parametrize("which", ["a fleet", "many partitions", "empty"])
def test_a_browser_lays_it_out(which: str, width: int, tmp_path: Path) -> None:
    reports = PAGES[which]()
    laid = in_browser(page(reports), tmp_path, width)
    assert laid["resources"] == []
    assert laid["width"] <= width
    assert laid["scroll"] <= laid["width"]
    assert all(w > 100 and h > 20 and x >= 0 and x + w <= laid["width"] for x, _, w, h in laid["svgs"])
    wanted = [found for each in reports for found in (each.findings_after if each.after else each.findings)]
    assert [text.split()[0] for _, text in laid["findings"]] == [found.code for found in wanted]
    assert all(height > 20 for height, _ in laid["findings"])
    assert laid["links"] == ([each.before.table for each in reports] if len(reports) > 1 else [])
    assert laid["ink"] != laid["paper"]


def test_bars_are_as_long_as_the_figures_say(tmp_path: Path) -> None:
    found = health()
    laid = in_browser(page([report(found)]), tmp_path, 1280)
    lengths = [width for _, _, width, _ in laid["bars"]]
    shown = found.total.histogram
    assert_proportional(lengths[:CLASSES], shown)
    places = [found.total.total.size, 120 * MIB, 0, 0, 0, 0, 60 * MIB, 9 * MIB]
    assert_proportional(lengths[CLASSES : CLASSES + len(places)], places)
    assert_proportional(lengths[CLASSES + len(places) :], [40, 10])
    laid = in_browser(page([cared_for()]), tmp_path, 1280)
    assert_proportional([width for _, _, width, _ in laid["after"]], classes(5, 0, 5, 10, 0, 0, 1))


def test_negative_control_what_is_too_wide_is_found(tmp_path: Path) -> None:
    wide = page([report(health())]).replace("<h1>", '<div style="width: 3000px">x</div><h1>', 1)
    laid = in_browser(wide, tmp_path, 1280)
    assert laid["scroll"] > laid["width"]


def assert_proportional(lengths: list[float], values: Any) -> None:
    longest, most = max(lengths), max(values)
    assert longest > 50
    assert [length / longest for length in lengths] == pytest.approx([value / most for value in values], abs=0.01)


def in_browser(text: str, folder: Path, width: int) -> dict[str, Any]:
    """Open a page by its file, and return how it is laid out."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    file = folder / "page.html"
    file.write_text(text.replace("</body>", MEASURE + "</body>"), encoding="utf-8")
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900",
            "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr",
            "--virtual-time-budget=2000", "--dump-dom", file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr, done.stderr
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title is not None
    laid: dict[str, Any] = json.loads(title[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    return laid


def test_a_table_that_could_not_be_looked_at_is_on_the_page() -> None:
    made = page([report(health())], {"s3://lake/<b>gone</b>": "there is no Delta table & no log"})
    assert "<code>s3://lake/&lt;b&gt;gone&lt;/b&gt;</code>: there is no Delta table &amp; no log" in made
    assert "<h3>Failed</h3>" not in page([report(health())])


def test_a_page_that_cannot_be_written_for_a_while_keeps_no_table_back(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    noted: list[Any] = []
    fails = [False]

    class Files:
        def status(self, _: str) -> str | None:
            return written[-1] if written else None

        def write_text(self, _: str, text: str) -> None:
            if fails[0]:
                raise StorageError("503")
            written.append(text)

    monkeypatch.setattr("writer_jobs.job.maintain.publisher.HadoopFiles.of", lambda _: Files())
    session: Any = None
    published = HealthPublisher(
        JobOutput(None), lambda **facts: noted.append(facts), session, page_uri="s3a://lake/health.html"
    )
    fails[0] = True
    with pytest.raises(StorageError):
        published.start()
    fails[0] = False
    published.start()
    fails[0] = True
    published.publish_failure("s3a://lake/gone", "there is no Delta table", 2)
    published.publish_table(report(health()))
    with pytest.raises(StorageError):
        published.finish()
    fails[0] = False
    published.finish()
    assert "<h3>Failed</h3>" in written[-1]
    assert "s3://lake/flights" in written[-1]
    assert len(noted[-1]["tables"]) == 2
    # What is written is not written again.
    published.finish()
    assert len(written) == 2
