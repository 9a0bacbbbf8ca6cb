"""Pictures of a health page: bars, as SVG within HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence

from writer_jobs.maintenance.findings import size_text
from writer_jobs.maintenance.health import SIZE_BOUNDS

_WIDTH = 480
_LABEL = 170
_NUMBER = 160
_ROW = 24
_BAR = 14
_LONGEST_LABEL = 24


def bars(title: str, rows: Sequence[tuple[str, float, str]]) -> str:
    """Return horizontal bars; the longest fills the picture.

    Args:
        title: what it shows.
        rows: name, value and what is written behind the bar.

    """
    most = max((value for _, value, _ in rows), default=0) or 1
    room = _WIDTH - _LABEL - _NUMBER
    parts = []
    for number, (name, value, says) in enumerate(rows):
        y = number * _ROW
        length = room * value / most
        parts.append(
            f'<text x="{_LABEL - 8}" y="{y + 15}" text-anchor="end">{html.escape(_short(name))}'
            f"<title>{html.escape(name)}</title></text>"
            f'<rect class="track" x="{_LABEL}" y="{y + 4}" width="{room}" height="{_BAR}"></rect>'
            f'<rect class="bar" x="{_LABEL}" y="{y + 4}" width="{length:.1f}" height="{_BAR}"></rect>'
            f'<text class="quiet" x="{_LABEL + room + 6}" y="{y + 15}">{html.escape(says)}</text>'
        )
    return _picture(title, rows, len(rows) * _ROW + 4, parts)


def histogram(title: str, before: Sequence[int], after: Sequence[int] | None = None) -> str:
    """Return the number of files by size, and beside it that of later.

    Args:
        title: what it shows.
        before: number of files in each class of :data:`SIZE_BOUNDS`, and above the last.
        after: likewise, of later.

    """
    names = [f"< {size_text(bound).replace('.0 ', ' ')}" for bound in SIZE_BOUNDS]
    names.append(f"≥ {size_text(SIZE_BOUNDS[-1]).replace('.0 ', ' ')}")
    most = max(*before, *(after or ()), 1)
    room = _WIDTH - _LABEL - _NUMBER
    height = _ROW + (_BAR if after is not None else 0)
    parts = []
    for number, name in enumerate(names):
        y = number * height
        parts.append(f'<text x="{_LABEL - 8}" y="{y + 15}" text-anchor="end">{html.escape(name)}</text>')
        shown = [("bar", before[number], "")] if after is None else []
        if after is not None:
            shown = [("bar", before[number], " before"), ("after", after[number], " after")]
        for place, (kind, value, word) in enumerate(shown):
            top = y + 4 + place * _BAR
            parts.append(
                f'<rect class="{kind}" x="{_LABEL}" y="{top}" width="{room * value / most:.1f}" height="{_BAR - 1}">'
                f"</rect>"
                f'<text class="quiet" x="{_LABEL + room + 6}" y="{top + 11}">{value:,}{word}</text>'
            )
    said = [(name, before[number], f"{before[number]:,}") for number, name in enumerate(names)]
    return _picture(title, said, len(names) * height + 4, parts)


def _picture(title: str, rows: Sequence[tuple[str, float, str]], height: int, parts: Sequence[str]) -> str:
    says = html.escape("; ".join(f"{name}: {text}" for name, _, text in rows))
    return (
        f'<svg role="img" viewBox="0 0 {_WIDTH} {height}"><title>{html.escape(title)}</title><desc>{says}</desc>'
        f"{''.join(parts)}</svg>"
    )


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_LABEL else f"…{name[-_LONGEST_LABEL + 1 :]}"
