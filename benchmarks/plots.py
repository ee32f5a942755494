"""Bar charts of utilisation as static SVGs, for light and dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_LEFT, _WIDTH, _RIGHT = 200, 560, 116  # of labels, of the bars' 100 %, of figures; everything in pixels
_BAR, _GAP, _HEAD, _LINE = 7, 8, 30, 18
_COLOURS = ("#98a1ab", "#4f86c6", "#d9642c")
_BEYOND = "#edb08f"
_THICK = 15
_PARTS = ("#d9642c", "#edb08f", "#4f86c6", "#8db3de", "#7a9e7e", "#98a1ab")
# The drawing has a background of its own: a page whose scheme is not the browser's does not make it unreadable.
_STYLE = """<style>
  .page { fill: #fff } text { fill: #1f2328 } .grid { stroke: #d5d9de }
  @media (prefers-color-scheme: dark) { .page { fill: #161b22 } text { fill: #dde3ea } .grid { stroke: #3a424d } }
</style>"""


@dataclass(frozen=True)
class Row:
    """Bars below each other, in parts of 1; `beyond` follows the last bar, in a lighter colour."""

    label: str
    bars: tuple[float, ...]
    beyond: float


def chart(title: str, legend: Sequence[str], figures: str, sections: Mapping[str, Sequence[Row]]) -> str:
    """Return the drawing; `legend` names the bars of every row, and at its end the part after the last.

    `figures` names the numbers beside the rows: the longest bar except the last, and the last.
    """
    top = _top(legend)
    parts: list[str] = []
    y = top
    for name, rows in sections.items():
        parts.append(_text(12, y + 20, name, ' font-weight="bold"'))
        y += _HEAD
        for item in rows:
            parts += _row(item, y)
            y += len(item.bars) * _BAR + _GAP
    return _page(title, _legend(legend, (*_COLOURS, _BEYOND)), figures, top, y + 4, parts)


def stacked_chart(
    title: str, legend: Sequence[str], figures: str, rows: Mapping[str, Sequence[float]]
) -> str:
    """Return a drawing with a bar for each label, of parts that add up to 1. `legend` names the parts, and `figures`
    the number beside the rows: the first part."""
    top = _top(legend)
    parts: list[str] = []
    for index, (label, shares) in enumerate(rows.items()):
        y = top + 16 + index * (_THICK + _GAP)
        parts.append(_text(_LEFT - 8, y + 11, label, ' text-anchor="end"'))
        at = 0.0
        for share, fill, name in zip(shares, _PARTS, legend, strict=True):
            if share > 0:
                parts.append(
                    f'<rect x="{_LEFT + at * _WIDTH:.1f}" y="{y}" width="{share * _WIDTH:.1f}" height="{_THICK}" '
                    f'fill="{fill}"><title>{escape(name)}: {share:.1%}</title></rect>'
                )
            at += share
        parts.append(_text(_LEFT + _WIDTH + 8, y + 11, f"{shares[0]:.1%}"))
    bottom = top + 16 + len(rows) * (_THICK + _GAP)
    return _page(title, _legend(legend, _PARTS), figures, top, bottom, parts)


def _top(legend: Sequence[str]) -> int:
    return 2 * _LINE + -(-len(legend) // 2) * _LINE + 10


def _page(
    title: str, legend: Iterable[str], figures: str, top: int, bottom: int, parts: Sequence[str]
) -> str:
    size = f"{_LEFT + _WIDTH + _RIGHT} {bottom + 2 * _LINE}"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="11" '
        f'role="img" aria-label="{escape(title)}">',
        _STYLE, '<rect class="page" width="100%" height="100%" rx="8"/>',
        _text(12, 24, title, ' font-size="15" font-weight="bold"'),
        *legend, _text(_LEFT + _WIDTH + 8, top + 2, figures), *_grid(top, bottom), *parts, "</svg>\n",
    ])  # fmt: skip


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"{more}>{escape(text)}</text>'


def _rectangle(y: float, share: float, fill: str, title: str = "") -> str:
    head = f'<rect x="{_LEFT}" y="{y}" width="{share * _WIDTH:.1f}" height="{_BAR - 1}" fill="{fill}"'
    return f"{head}><title>{escape(title)}</title></rect>" if title else f"{head}/>"


def _row(item: Row, y: float) -> Iterator[str]:
    middle = y + len(item.bars) * _BAR / 2 + 3.5
    yield _text(_LEFT - 8, middle, item.label, ' text-anchor="end"')
    yield _rectangle(y + (len(item.bars) - 1) * _BAR, item.beyond, _BEYOND, f"{item.beyond:.1%}")
    for index, (share, fill) in enumerate(zip(item.bars, _COLOURS, strict=True)):
        yield _rectangle(y + index * _BAR, share, fill, f"{share:.1%}")
    yield _text(_LEFT + _WIDTH + 8, middle, f"{max(item.bars[:-1]):.1%} : {item.bars[-1]:.1%}")


def _legend(names: Sequence[str], colours: Sequence[str]) -> Iterator[str]:
    for index, (name, fill) in enumerate(zip(names, colours, strict=True)):
        x, y = 12 + index % 2 * 340, 2 * _LINE + 6 + index // 2 * _LINE
        yield f'<rect x="{x}" y="{y}" width="11" height="11" fill="{fill}"/>' + _text(x + 18, y + 9.5, name)


def _grid(top: float, bottom: float) -> Iterator[str]:
    for percent in range(0, 101, 20):
        x = _LEFT + percent / 100 * _WIDTH
        yield f'<path class="grid" d="M{x:g} {top + 8}V{bottom}"/>'
        yield _text(x, bottom + 15, f"{percent} %", ' text-anchor="middle"')
