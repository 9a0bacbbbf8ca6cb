"""HTML elements as text. Every text is escaped unless it is :class:`Html`, which only this package's functions make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

#: Elements without an end tag.
_VOID = frozenset({"br", "input", "link", "meta"})

#: Style of every page.
STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --quiet: #5c6670; --paper: #fff; --line: #d8dde2; --bar: #2f6fb2;
  --after: #2e8b57; --warn: #b25e00; --panel: #f5f7f9; --wait: #d9a441; --work: #b9c4ce; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --quiet: #9aa4ae; --paper: #14181c; --line: #333b43;
  --bar: #6aa7e8; --after: #5fc48a; --warn: #f0a04b; --panel: #1c2228; --wait: #c9922e; --work: #4a5560; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 80rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; border-top: 2px solid var(--line);
  padding-top: 1rem; } h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; }
p, .quiet { color: var(--quiet); } a { color: var(--bar); } .warn { color: var(--warn); }
:focus-visible { outline: 2px solid var(--bar); outline-offset: 2px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: normal; } th:first-child, td:first-child, .text { text-align: left; overflow-wrap: anywhere;
  min-width: 6rem; }
th { color: var(--quiet); font-weight: 600; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: .5rem; margin: .5rem 0; }
dl div { background: var(--panel); border-radius: .4rem; padding: .5rem .7rem; } dt { color: var(--quiet);
  font-size: .85rem; } dd { margin: 0; font-size: 1.05rem; font-weight: 600; }
.findings { list-style: none; padding: 0; } .findings li { border-left: 4px solid var(--warn); background: var(--panel);
  padding: .5rem .8rem; margin: .5rem 0; } .findings code { font-weight: 700; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
svg { width: 100%; max-width: 36rem; height: auto; display: block; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .bar { fill: var(--bar); } svg .after { fill: var(--after); } svg .track { fill: var(--panel); }
svg .quiet { fill: var(--quiet); }
@media print { body { max-width: none; } h2 { break-before: auto; } svg, li, dl { break-inside: avoid; } }
"""


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element.

    Args:
        name: Tag.
        children: Content; texts are escaped, None is left out.
        attributes: ``class_="text"`` is ``class="text"``, ``data_since=1`` is ``data-since="1"``. An attribute that is
            None or false is left out; one that is true has no value.

    """
    texts = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        texts.append(f" {attribute}" if value is True else f' {attribute}="{escape(str(value))}"')
    start = f"<{name}{''.join(texts)}>"
    return Html(start if name in _VOID else f"{start}{join(*children)}</{name}>")


def join(*children: object) -> Html:
    """Return texts and elements one after the other; None is left out."""
    texts = (child if isinstance(child, Html) else escape(str(child)) for child in children if child is not None)
    return Html("".join(texts))


def table(name: str, titles: Iterable[str], rows: Iterable[Sequence[object]], *, text_columns: int = 1) -> Html:
    """Return a table of this class. The first ``text_columns`` are aligned left; the others have numbers."""
    titles = tuple(titles)

    def line(cell_name: str, cells: Iterable[object]) -> Html:
        return element(
            "tr",
            *(
                # With the title, a style can show each row as a list.
                element(cell_name, cell, class_="text" if index < text_columns else None, data_title=title)
                for index, (cell, title) in enumerate(zip(cells, titles, strict=True))
            ),
        )

    head, body = element("thead", line("th", titles)), element("tbody", *(line("td", row) for row in rows))
    return element("div", element("table", head, body, class_=name), class_="scroll")


def figures(named_figures: Iterable[tuple[str, object]]) -> Html:
    """Return a list of figures, each with its name."""
    return element(
        "dl", *(element("div", element("dt", name), element("dd", figure)) for name, figure in named_figures)
    )


def document(title: str, *body: object, style: str = "", head: Html | None = None) -> str:
    """Return a page with the common style, as one file that loads no other resource by itself."""
    parts = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Html(STYLE + style)),
        head,
    )
    return f"<!DOCTYPE html>\n{element('html', parts, element('body', *body), lang='en')}\n"
