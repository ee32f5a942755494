"""Timelines as one static SVG: a row for each track, over cycles, with what the bus and the scratchpad do below.

Its size does not grow with the program: what is narrower than a pixel is drawn together, in the colours of its layers,
of waiting and of nothing at all, mixed by their parts of the time.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from xml.sax.saxutils import escape

from weft.hdl.schema import printable
from weft.report import cut
from weft.run.trace import LAYERS, TRACKS, Slice, Timeline

_WIDTH = 1400  # of the time axis; everything in pixels
_LEFT, _TOP, _ROW, _GAP, _CHART = 110, 40, 26, 6, 60
_COLUMNS, _LINE = 4, 18  # of the legend
_NAME = 60  # characters of a name that are shown
_LEGEND = 400  # layers that the legend names
_WAITING = "#d9d9d9"
_READ, _WRITTEN, _VECTORS = "#3b6fb6", "#c8553d", "#6a8d4f"

Point = tuple[float, float]


def svg(timelines: Sequence[Timeline], size: int) -> str:
    """The drawing. `size` is the number of vectors that the scratchpad has."""
    total = timelines[-1].origin + timelines[-1].cycles
    scale = _WIDTH / max(total, 1)
    layers = [name for timeline in timelines for name in timeline.layers]
    bottom = _TOP + len(TRACKS) * (_ROW + _GAP)
    parts = [*_rows(timelines, scale), *_charts(timelines, scale, bottom, size)]
    bottom += 2 * (_CHART + _GAP)
    parts += [*_axis(total, scale, bottom), *_borders(timelines, scale, bottom)]
    parts += _legend(layers, bottom + 3 * _LINE)
    height = bottom + (4 + -(-min(len(layers), _LEGEND) // _COLUMNS) + 2) * _LINE
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 20}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>\n",
    ])  # fmt: skip


def colour(layer: int) -> str:
    """Of a layer, by its index over all timelines: neighbours differ by the golden angle."""
    red, green, blue = colorsys.hls_to_rgb(layer * 0.381966 % 1.0, 0.45 + 0.15 * (layer % 2), 0.55)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def _shown(name: str) -> str:
    return escape(cut(printable(name), _NAME))


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{_shown(text)}</text>'


def _rows(timelines: Sequence[Timeline], scale: float) -> Iterator[str]:
    for row, track in enumerate(TRACKS):
        y = _TOP + row * (_ROW + _GAP)
        yield _text(8, y + 17, track)
        yield f'<g transform="translate({_LEFT} {y})">'
        first = 0
        for timeline in timelines:
            yield from _track(timeline, track, first, scale)
            first += len(timeline.layers)
        yield "</g>"


def _track(timeline: Timeline, track: str, first: int, scale: float) -> Iterator[str]:
    """Rectangles of one track; `first` is the index over all timelines of this one's first layer."""

    def column(item: Slice) -> int:
        """Slices of a pixel or more are groups of their own, the others are drawn by the pixel they start in."""
        wide = (item.end - item.start) * scale >= 1
        return -1 - item.start if wide else int((timeline.origin + item.start) * scale)

    for _, group in groupby((item for item in timeline.tracks[track] if item.end > item.start), column):
        items = list(group)
        start, end = timeline.origin + items[0].start, timeline.origin + items[-1].end
        fills = (_WAITING if item.waits else colour(first + item.layer) for item in items)
        fill = _mix(
            (shade, (item.end - item.start) / (end - start)) for shade, item in zip(fills, items, strict=True)
        )
        title = _title(items[0], timeline, track) if len(items) == 1 and (end - start) * scale >= 1 else ""
        yield _rectangle(start * scale, (end - start) * scale, fill, title)


def _mix(shares: Iterable[tuple[str, float]]) -> str:
    """Colours mixed by their shares; what is missing to 1 is white."""
    mixed = [255.0] * 3
    for shade, share in shares:
        for channel, value in enumerate(bytes.fromhex(shade[1:])):
            mixed[channel] += (value - 255) * share
    return "#" + bytes(round(value) for value in mixed).hex()


def _rectangle(x: float, width: float, fill: str, title: str) -> str:
    head = f'<rect x="{x:.1f}" width="{max(width, 0.5):.1f}" height="{_ROW}" fill="{fill}"'
    return f"{head}><title>{title}</title></rect>" if title else f"{head}/>"


def _title(item: Slice, timeline: Timeline, track: str) -> str:
    start, end = timeline.origin + item.start, timeline.origin + item.end
    return f"{'' if track == LAYERS else track + ' '}{_shown(item.name)}: {start:,} to {end:,}"


def _charts(timelines: Sequence[Timeline], scale: float, y: float, size: int) -> Iterator[str]:
    read, written, vectors = _curves(timelines)
    most = max((value for curve in (read, written) for _, value in curve), default=0.0) or 1.0
    yield _text(8, y + 14, "bytes per cycle")
    yield _text(8, y + 30, "read", f' fill="{_READ}"') + _text(50, y + 30, "written", f' fill="{_WRITTEN}"')
    yield _text(8, y + 46, f"to {most:.1f}")
    for curve, stroke in ((read, _READ), (written, _WRITTEN)):
        yield _curve(curve, scale, y, most, stroke)
    y += _CHART + _GAP
    yield _text(8, y + 14, "scratchpad") + _text(8, y + 30, "vectors in use")
    yield _text(8, y + 46, f"of {size:,}")
    yield _curve(vectors, scale, y, size, _VECTORS)


def _curves(timelines: Sequence[Timeline]) -> tuple[list[Point], list[Point], list[Point]]:
    """Bytes a cycle read and written, and vectors in use, as (cycle, value) from where they hold."""
    read: list[Point] = []
    written: list[Point] = []
    vectors: list[Point] = []
    for timeline in timelines:
        for window in timeline.windows:
            at, length = timeline.origin + window.start, window.end - window.start
            read.append((at, window.read / length))
            written.append((at, window.written / length))
        vectors += [(timeline.origin + cycle, value) for cycle, value in timeline.vectors]
    end = timelines[-1].origin + timelines[-1].cycles
    return [*read, (end, 0)], [*written, (end, 0)], [(0, 0), *vectors, (end, 0)]


def _curve(curve: Iterable[Point], scale: float, y: float, most: float, stroke: str) -> str:
    """A line of steps, with the largest value of every pixel."""
    columns: dict[int, float] = {}
    last = 0.0
    for cycle, value in curve:
        column = int(cycle * scale)
        columns[column] = max(value, columns.get(column, last if cycle * scale > column else 0.0))
        last = value
    steps = [(float(x), value) for x, value in sorted(columns.items())]
    corners = [point for (x, value), (after, _) in pairwise(steps) for point in ((x, value), (after, value))]
    points = " ".join(f"{_LEFT + x:.0f},{y + _CHART * (1 - value / most):.1f}" for x, value in corners)
    return f'<polyline points="{points}" fill="none" stroke="{stroke}"/>'


def _axis(total: int, scale: float, y: float) -> Iterator[str]:
    step = next(
        factor * 10**power for power in range(20) for factor in (1, 2, 5) if factor * 10**power * 10 >= total
    )
    yield f'<path d="M{_LEFT} {y}h{_WIDTH}" stroke="#000"/>'
    for cycle in range(0, total + 1, step):
        x = _LEFT + cycle * scale
        yield f'<path d="M{x:.1f} {y}v5" stroke="#000"/>'
        yield _text(x, y + 17, f"{cycle:,}", ' text-anchor="middle"')
    yield _text(8, y + 17, "cycles")


def _borders(timelines: Sequence[Timeline], scale: float, bottom: float) -> Iterator[str]:
    """Names of the timelines where they start, and lines between them; only where there is room."""
    free = -1.0
    for timeline in timelines:
        x = _LEFT + timeline.origin * scale
        if x <= free:
            continue
        yield f'<path d="M{x:.1f} {_TOP - 8}V{bottom}" stroke="#999" stroke-dasharray="3 3"/>'
        yield _text(x + 3, _TOP - 12, timeline.name)
        free = x + 7 * min(len(timeline.name), _NAME)


def _legend(layers: Sequence[str], y: float) -> Iterator[str]:
    entries = [(colour(index), name) for index, name in enumerate(layers[:_LEGEND])]
    if len(layers) > _LEGEND:
        entries.append(("none", f"and {len(layers) - _LEGEND} more layers"))
    for index, (fill, name) in enumerate([*entries, (_WAITING, "waits")]):
        x = _LEFT + index % _COLUMNS * (_WIDTH // _COLUMNS)
        at = y + index // _COLUMNS * _LINE
        yield f'<rect x="{x}" y="{at - 10}" width="12" height="12" fill="{fill}"/>' + _text(x + 18, at, name)
