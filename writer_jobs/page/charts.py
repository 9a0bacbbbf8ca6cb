"""Charts, as SVG within HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence

from writer_jobs.maintenance.findings import size_text
from writer_jobs.maintenance.health import SIZE_BOUNDS
from writer_jobs.page.elements import Html

_WIDTH = 480
_LABEL_WIDTH = 170
_NUMBER_WIDTH = 160
_ROW_HEIGHT = 24
_BAR_HEIGHT = 14
_LONGEST_LABEL = 24


def bars(title: str, rows: Sequence[tuple[str, float, str]]) -> Html:
    """Return a bar chart. A row has a name, a value, and the text after its bar; the longest bar fills the width."""
    largest = max((value for _, value, _ in rows), default=0) or 1
    width = _WIDTH - _LABEL_WIDTH - _NUMBER_WIDTH
    elements = []
    for index, (name, value, text) in enumerate(rows):
        y = index * _ROW_HEIGHT
        length = width * value / largest
        elements.append(
            f'<text x="{_LABEL_WIDTH - 8}" y="{y + 15}" text-anchor="end">{html.escape(_short(name))}'
            f"<title>{html.escape(name)}</title></text>"
            f'<rect class="track" x="{_LABEL_WIDTH}" y="{y + 4}" width="{width}" height="{_BAR_HEIGHT}"></rect>'
            f'<rect class="bar" x="{_LABEL_WIDTH}" y="{y + 4}" width="{length:.1f}" height="{_BAR_HEIGHT}"></rect>'
            f'<text class="quiet" x="{_LABEL_WIDTH + width + 6}" y="{y + 15}">{html.escape(text)}</text>'
        )
    return _svg(title, [(name, text) for name, _, text in rows], len(rows) * _ROW_HEIGHT + 4, elements)


def histogram(title: str, before: Sequence[int], after: Sequence[int] | None = None) -> Html:
    """Return a histogram of the number of files in each class of :data:`SIZE_BOUNDS`, of one series or two."""
    names = [f"< {size_text(bound).replace('.0 ', ' ')}" for bound in SIZE_BOUNDS]
    names.append(f"≥ {size_text(SIZE_BOUNDS[-1]).replace('.0 ', ' ')}")
    largest = max(*before, *(after or ()), 1)
    width = _WIDTH - _LABEL_WIDTH - _NUMBER_WIDTH
    series = [("bar", before, "")] if after is None else [("bar", before, " before"), ("after", after, " after")]
    height = _ROW_HEIGHT + _BAR_HEIGHT * (len(series) - 1)
    rows, elements = [], []
    for index, name in enumerate(names):
        y = index * height
        elements.append(f'<text x="{_LABEL_WIDTH - 8}" y="{y + 15}" text-anchor="end">{html.escape(name)}</text>')
        texts = [f"{numbers[index]:,}{suffix}" for _, numbers, suffix in series]
        rows.append((name, ", ".join(texts)))
        for position, (style, numbers, _) in enumerate(series):
            top = y + 4 + position * _BAR_HEIGHT
            elements.append(
                f'<rect class="{style}" x="{_LABEL_WIDTH}" y="{top}" width="{width * numbers[index] / largest:.1f}" '
                f'height="{_BAR_HEIGHT - 1}"></rect>'
                f'<text class="quiet" x="{_LABEL_WIDTH + width + 6}" y="{top + 11}">{texts[position]}</text>'
            )
    return _svg(title, rows, len(names) * height + 4, elements)


def _svg(title: str, rows: Sequence[tuple[str, str]], height: int, elements: Sequence[str]) -> Html:
    """Return an SVG image; its description lists the rows (name and text) for screen readers."""
    description = html.escape("; ".join(f"{name}: {text}" for name, text in rows))
    return Html(
        f'<svg role="img" viewBox="0 0 {_WIDTH} {height}"><title>{html.escape(title)}</title><desc>{description}</desc>'
        f"{''.join(elements)}</svg>"
    )


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_LABEL else f"…{name[-_LONGEST_LABEL + 1 :]}"
