"""Timelines as static SVG, and as Trace Event JSON for ui.perfetto.dev.

The SVG has a row per track over cycles, with charts of bus traffic and scratchpad use below. Its size does not grow
with the program: slices narrower than a pixel are merged, and their colours mixed by their shares of the time.
"""

from __future__ import annotations

import colorsys
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any
from xml.sax.saxutils import escape

from weft.hdl.schema import printable
from weft.report import cut
from weft.run.trace import LAYERS, TRACKS, Slice, Timeline

# All lengths are in pixels.
_WIDTH = 1400  # of the time axis
_LEFT, _TOP, _ROW, _GAP, _CHART = 110, 40, 26, 6, 60
_COLUMNS, _LINE = 4, 18  # of the legend
_NAME = 60  # characters of a name that are shown
_LEGEND = 400  # maximum number of layers in the legend
_WAITING = "#d9d9d9"
_READ, _WRITTEN, _VECTORS = "#3b6fb6", "#c8553d", "#6a8d4f"

Point = tuple[float, float]


def svg(timelines: Sequence[Timeline], size: int) -> str:
    """Return the drawing as text. `size` is the capacity of the scratchpad in vectors."""
    total = timelines[-1].origin + timelines[-1].cycles
    scale = _WIDTH / max(total, 1)
    layers = [name for timeline in timelines for name in timeline.layers]
    # From top to bottom: tracks, charts, axis, legend.
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
    """Return the colour of a layer by its index over all timelines: hues of neighbours differ by the golden angle."""
    # Neighbours also differ in lightness.
    red, green, blue = colorsys.hls_to_rgb(layer * 0.381966 % 1.0, 0.45 + 0.15 * (layer % 2), 0.55)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def _escape(name: str) -> str:
    return escape(cut(printable(name), _NAME))


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{_escape(text)}</text>'


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
    """Yield the rectangles of one track. `first` is the index of the timeline's first layer over all timelines."""

    def column(item: Slice) -> int:
        """Return the group of a slice: its own if it is a pixel wide, else its pixel."""
        wide = (item.end - item.start) * scale >= 1
        return -1 - item.start if wide else int((timeline.origin + item.start) * scale)

    for _, group in groupby((item for item in timeline.tracks[track] if item.end > item.start), column):
        items = list(group)
        # Gaps inside the group are white: `_mix` gets their share as what is missing to 1.
        start, end = timeline.origin + items[0].start, timeline.origin + items[-1].end
        fills = (_WAITING if item.waits else colour(first + item.layer) for item in items)
        fill = _mix(
            (shade, (item.end - item.start) / (end - start)) for shade, item in zip(fills, items, strict=True)
        )
        # A tooltip for every merged slice would make the file grow with the program.
        title = _title(items[0], timeline, track) if len(items) == 1 and (end - start) * scale >= 1 else ""
        yield _rectangle(start * scale, (end - start) * scale, fill, title)


def _mix(shares: Iterable[tuple[str, float]]) -> str:
    """Mix colours by their shares; the remainder to 1 is white."""
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
    return f"{'' if track == LAYERS else track + ' '}{_escape(item.name)}: {start:,} to {end:,}"


def _charts(timelines: Sequence[Timeline], scale: float, y: float, size: int) -> Iterator[str]:
    read, written, vectors = _curves(timelines)
    # Both curves share one scale, so that they can be compared.
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
    """Return curves of bytes read and written per cycle, and of vectors in use, as (first cycle, value)."""
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
    """Return a step curve that shows the largest value in every pixel."""
    columns: dict[int, float] = {}  # pixel to its largest value
    last = 0.0
    for cycle, value in curve:
        column = int(cycle * scale)
        # A curve keeps its last value until the next point, which may be some pixels away.
        columns[column] = max(value, columns.get(column, last if cycle * scale > column else 0.0))
        last = value
    steps = [(float(x), value) for x, value in sorted(columns.items())]
    corners = [point for (x, value), (end, _) in pairwise(steps) for point in ((x, value), (end, value))]
    points = " ".join(f"{_LEFT + x:.0f},{y + _CHART * (1 - value / most):.1f}" for x, value in corners)
    return f'<polyline points="{points}" fill="none" stroke="{stroke}"/>'


def _axis(total: int, scale: float, y: float) -> Iterator[str]:
    # The smallest 1, 2 or 5 times a power of ten with at most ten steps.
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
    """Yield a line and a name where each timeline starts, if there is room."""
    free = -1.0
    for timeline in timelines:
        x = _LEFT + timeline.origin * scale
        # Names of short timelines would overlap.
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


Event = dict[str, Any]

BANDWIDTH = "DRAM bytes per cycle"
OCCUPANCY = "scratchpad vectors in use"


def events(timelines: Sequence[Timeline]) -> list[Event]:
    """Return Trace Events: a process per timeline, a thread per track; time stamps are in cycles and rise."""
    names = [event for pid, timeline in enumerate(timelines, 1) for event in _names(pid, timeline)]
    timed = [event for pid, timeline in enumerate(timelines, 1) for event in _timed_events(pid, timeline)]
    # Perfetto needs time stamps in order; names come first.
    return names + sorted(timed, key=lambda event: event["ts"])


def trace_json(timelines: Sequence[Timeline], metadata: dict[str, Any]) -> str:
    """Return the trace as JSON, one event per line."""
    head = {"time": "1 us of the trace is 1 clock cycle"} | metadata
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events(timelines))
    return f'{{"displayTimeUnit":"ns","otherData":{json.dumps(head)},"traceEvents":[\n{lines}\n]}}\n'


def _names(pid: int, timeline: Timeline) -> Iterator[Event]:
    yield _meta(pid, 0, "process_name", name=timeline.name)
    yield _meta(pid, 0, "process_sort_index", sort_index=pid)
    for tid, track in enumerate(TRACKS, 1):
        yield _meta(pid, tid, "thread_name", name=track)
        yield _meta(pid, tid, "thread_sort_index", sort_index=tid)


def _meta(pid: int, tid: int, kind: str, **args: Any) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": args}


def _timed_events(pid: int, timeline: Timeline) -> Iterator[Event]:
    for tid, track in enumerate(TRACKS, 1):
        for item in timeline.tracks[track]:
            yield _slice(pid, tid, timeline, item)
    for window in timeline.windows:
        # Counters hold from their time stamp on, so a rate is an average over the window that it begins.
        length = window.end - window.start
        rates = {"read": window.read / length, "written": window.written / length}
        yield _counter(pid, timeline, BANDWIDTH, window.start, rates)
    # Otherwise the last rate would seem to continue.
    yield _counter(pid, timeline, BANDWIDTH, timeline.cycles, {"read": 0, "written": 0})
    for cycle, vectors in timeline.vectors:
        yield _counter(pid, timeline, OCCUPANCY, cycle, {"vectors": vectors})


def _slice(pid: int, tid: int, timeline: Timeline, item: Slice) -> Event:
    event = {
        "ph": "X", "pid": pid, "tid": tid, "ts": timeline.origin + item.start, "dur": item.end - item.start,
        "name": item.name, "cat": "waits" if item.waits else "runs",
        "args": {"layer": timeline.layers[item.layer]} | item.details,
    }  # fmt: skip
    return event | {"cname": "grey"} if item.waits else event


def _counter(pid: int, timeline: Timeline, name: str, cycle: int, values: dict[str, float]) -> Event:
    rounded = {key: round(value, 4) for key, value in values.items()}
    return {"ph": "C", "pid": pid, "tid": 0, "ts": timeline.origin + cycle, "name": name, "args": rounded}
