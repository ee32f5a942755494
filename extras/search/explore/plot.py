"""Plot of the Pareto front as one static HTML page: plots of two objectives each, and a table.

The page has light and dark styles. It loads nothing and runs no scripts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from weft.cli.timelines import colour
from weft.extras.search.explore.explore import Exploration
from weft.extras.search.explore.point import OBJECTIVES, Measured, pareto_front
from weft.hdl.schema import printable
from weft.report import cut

_WIDTH, _HEIGHT = 600, 340  # area of a plot in pixels, the minimum height
_LEFT, _TOP, _RIGHT, _BOTTOM = 56, 34, 16, 44
_ROW_HEIGHT, _LETTER_WIDTH, _MAX_LETTERS = 13, 6.6, 28  # of labels
_SLOTS, _MAX_DISTANCE = 3, 20  # label columns; distance from its mark above which a label gets a line
_LOGARITHMIC_RATIO, _MAX_TICKS = 5, 9  # largest by smallest value from which an axis is logarithmic
_MARGIN = 0.05  # beyond the values, as a fraction of the axis
_DIAMOND = "M0-6.5L6.5 0 0 6.5-6.5 0z"
_STYLE = """
  :root { color-scheme: light dark }
  body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; padding: 0 1em; max-width: 1440px }
  body { background: #fff; color: #1f2328 } h1 { font-size: 20px } figure { margin: 0 }
  .plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); gap: 1.5em }
  .legend { display: flex; flex-wrap: wrap; gap: 0 1.5em } .legend svg { width: 20px; height: 14px }
  .plot { width: 100%; max-width: 760px } .plot text { fill: #1f2328 } .grid { stroke: #e4e7eb }
  .edge, .stairs { fill: none } .edge, .leader { stroke: #98a1ab } .point { fill: #98a1ab; fill-opacity: 0.6 }
  .stairs { stroke: #57606a; stroke-width: 1.5 } .reference { fill: #fff; stroke: #1f2328; stroke-width: 1.5 }
  .label { paint-order: stroke; stroke: #fff; stroke-width: 3px; stroke-linejoin: round }
  .wide { overflow-x: auto } table { border-collapse: collapse; white-space: nowrap }
  th, td { padding: 2px 10px; text-align: right; border-bottom: 1px solid #d5d9de } th { font-weight: normal }
  .sought { font-weight: bold } tr :nth-child(-n + 2) { text-align: left }
  @media (prefers-color-scheme: dark) {
    body { background: #161b22; color: #dde3ea } .plot text { fill: #dde3ea } .grid { stroke: #2b323b }
    .reference { fill: #161b22; stroke: #dde3ea } .stairs { stroke: #b4bdc7 } .label { stroke: #161b22 }
    th, td { border-color: #3a424d }
  }
"""

_Spot = tuple[float, float]
_Box = tuple[float, float, float, float]  # left, top, right, bottom


def page(exploration: Exploration) -> str:
    """Return the page of a search, with plots of the first objective over each other one, or over LUTs if it is the
    only one.
    """
    front_points = exploration.pareto_front
    title = f"weft explore: least {', '.join(escape(OBJECTIVES[name]) for name in exploration.objectives)}"
    nothing = ["<p>No solution was measured, so there is no front.</p>"]
    body = (
        [
            *_summary(exploration, front_points),
            *_plots(exploration, front_points),
            *_table(exploration, front_points),
        ]
        if front_points
        else nothing
    )
    return "\n".join([
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>",
        *body, "</body>\n</html>\n",
    ])  # fmt: skip


@dataclass(frozen=True)
class _Axis:
    """Axis of a plot: ends, scale, and whether its ticks are integers."""

    low: float
    high: float
    logarithmic: bool
    integral: bool

    @classmethod
    def of(cls, values: Sequence[float]) -> _Axis:
        """Return an axis for one or more values, none of them negative."""
        low, high = min(values), max(values)
        integral = all(isinstance(value, int) for value in values)
        if 0 < low * _LOGARITHMIC_RATIO < high:
            room = (high / low) ** _MARGIN
            return cls(low / room, high * room, True, integral)
        span = high - low
        # Equal values get an axis around them.
        room = span * _MARGIN if span > 1e-9 * high else high / 2 or 1.0
        return cls(low - room, high + room, False, integral)

    def at(self, value: float) -> float:
        """Return the position of a value as a fraction of the axis."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return a few round numbers on the axis."""
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            # Fewer ticks per decade for more decades.
            for factors in ((1, 2, 3, 5, 7), (1, 2, 5), (1,)):
                ticks = [factor * 10.0**power for power in powers for factor in factors]
                visible = [tick for tick in ticks if self.low <= tick <= self.high]
                if len(visible) <= _MAX_TICKS:
                    break
            return visible[:: -(-len(visible) // _MAX_TICKS)]
        span = self.high - self.low
        # Ticks of an axis of integers are integers.
        min_power = max(math.floor(math.log10(span)) - 1, 0 if self.integral else -400)
        steps = (
            factor * 10.0**power
            for power in (min_power, min_power + 1, min_power + 2)
            for factor in (1, 2, 5)
        )
        step = next(step for step in steps if step * _MAX_TICKS >= span)
        first, last = max(0, math.ceil(self.low / step)), math.floor(self.high / step)
        return [index * step for index in range(first, last + 1)]


@dataclass(frozen=True)
class _Area:
    """Area of a plot, and the names of its objectives: across and up."""

    names: tuple[str, str]
    x: _Axis
    y: _Axis
    height: float

    @classmethod
    def of(cls, exploration: Exploration, names: tuple[str, str]) -> _Area:
        """Return an area with room for all labels: each blocks at most two slots of two rows for others."""
        x, y = (_Axis.of([item.values[name] for item in exploration.measured]) for name in names)
        labels = sum(map(_is_reference, exploration.measured))
        return cls(names, x, y, max(_HEIGHT, _ROW_HEIGHT * (4 * labels // _SLOTS + 3)))

    def at(self, item: Measured) -> _Spot:
        across, up = (item.values[name] for name in self.names)
        return _LEFT + _WIDTH * self.x.at(across), _TOP + self.height * (1 - self.y.at(up))


def _is_reference(item: Measured) -> bool:
    return item.origin.startswith(("preset ", "board "))


def _text(text: str) -> str:
    return escape(printable(text))


def _colours(exploration: Exploration) -> dict[str, str]:
    """Return the colours of places, by name."""
    names = dict.fromkeys(item.point.place.name for item in exploration.measured)
    return {name: colour(index) for index, name in enumerate(names)}


def _summary(exploration: Exploration, front_points: Sequence[Measured]) -> Iterator[str]:
    """Yield a description of the page, and a legend."""
    yield (
        f"<p>{len(exploration.measured):,} points were measured, {len(front_points):,} on the Pareto front: no other "
        "point beats them in all objectives. Down and left is better. "
        "Tooltips of marks show all figures of their points.</p>"
    )
    entries = [(_mark("point", (10, 7)), "measured")]
    for name in dict.fromkeys(item.point.place.name for item in front_points):
        entries.append((_mark("front", (10, 7), _colours(exploration)[name]), f"on the front: {_text(name)}"))
    entries.append((_mark("reference", (10, 7)), "presets and boards' own, coloured on the front"))
    entries.append(('<path class="stairs" d="M1 4H10V11H19"/>', "front of the two objectives alone"))
    spans = (f'<span><svg viewBox="0 0 20 14">{mark}</svg> {text}</span>' for mark, text in entries)
    yield f'<div class="legend">{"".join(spans)}</div>'


def _plots(exploration: Exploration, front_points: Sequence[Measured]) -> Iterator[str]:
    first, *others = exploration.objectives
    yield '<div class="plots">'
    for other in others or ["ms" if first == "lut" else "lut"]:
        area = _Area.of(exploration, (other, first))
        label = escape(f"{OBJECTIVES[first]} over {OBJECTIVES[other]}")
        yield (
            f'<figure><svg class="plot" viewBox="0 0 {_LEFT + _WIDTH + _RIGHT} {_TOP + area.height + _BOTTOM}" '
            f'font-family="sans-serif" font-size="11" role="img" aria-label="{label}">'
        )
        lines, labels = _labels(exploration, front_points, area)
        yield from (
            *_frame(area),
            _stairs(exploration, area),
            *lines,
            *_marks(exploration, front_points, area),
            *labels,
        )
        yield "</svg></figure>"
    yield "</div>"


def _frame(area: _Area) -> Iterator[str]:
    """Yield the axes."""
    bottom, middle = _TOP + area.height, _LEFT + _WIDTH / 2
    across, up = (escape(OBJECTIVES[name]) for name in area.names)
    for tick in area.x.ticks():
        x = _LEFT + _WIDTH * area.x.at(tick)
        yield f'<path class="grid" d="M{x:.2f} {_TOP}V{bottom}"/>'
        yield f'<text x="{x:.2f}" y="{bottom + 16}" text-anchor="middle">{_tick(tick)}</text>'
    for tick in area.y.ticks():
        y = bottom - area.height * area.y.at(tick)
        yield f'<path class="grid" d="M{_LEFT} {y:.2f}H{_LEFT + _WIDTH}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.2f}" text-anchor="end">{_tick(tick)}</text>'
    yield f'<rect class="edge" x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{area.height}"/>'
    yield f'<text x="{middle}" y="{bottom + 36}" font-size="13" text-anchor="middle">{across}</text>'
    yield f'<text x="8" y="{_TOP - 14}" font-size="13">{up}</text>'


def _tick(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.12g}{letter}"
    return f"{value:.12g}"


def _stairs(exploration: Exploration, area: _Area) -> str:
    """Return the front of the two objectives as a step line; dominated points are above and to the right."""
    spots = [
        area.at(item) for item in reversed(pareto_front(exploration.measured, (area.names[1], area.names[0])))
    ]
    steps = "".join(f"H{x:.2f}V{y:.2f}" for x, y in spots)
    return f'<path class="stairs" d="M{spots[0][0]:.2f} {_TOP}{steps}H{_LEFT + _WIDTH}"/>'


def _marks(exploration: Exploration, front_points: Sequence[Measured], area: _Area) -> Iterator[str]:
    """Yield the marks of all points: first others, then presets and boards, then the front."""
    # Marks that come later cover earlier ones.
    front_ids, fills = {id(item) for item in front_points}, _colours(exploration)
    for item in sorted(exploration.measured, key=lambda item: (id(item) in front_ids, _is_reference(item))):
        kinds = ["reference"] * _is_reference(item) + ["front"] * (id(item) in front_ids)
        fill = fills[item.point.place.name] if id(item) in front_ids else ""
        yield _mark(" ".join(kinds or ["point"]), area.at(item), fill, _about(item))


def _mark(kinds: str, spot: _Spot, fill: str = "", about: str = "") -> str:
    size = 5 if "front" in kinds else 2.5
    name, shape = ("path", f'd="{_DIAMOND}"') if "reference" in kinds else ("circle", f'r="{size}"')
    style = f' style="fill: {fill}"' if fill else ""
    head = f'<{name} class="{kinds}" transform="translate({spot[0]:.2f} {spot[1]:.2f})" {shape}{style}>'
    return f"{head}<title>{about}</title></{name}>" if about else f"{head}</{name}>"


def _about(item: Measured) -> str:
    """Return all figures of a point, one per line."""
    measures = (f"{escape(OBJECTIVES[name])}: {_number(value)}" for name, value in item.values.items())
    config = ", ".join(f"{name} {value}" for name, value in item.point.config.to_dict().items())
    head = f"{_text(item.point.place.name)}, {item.point.clock / 1e6:g} MHz ({_text(item.origin)})"
    return "\n".join([head, *measures, config])


def _number(value: float) -> str:
    """Return a count in full, or a measure with four digits."""
    if isinstance(value, int) or value == 0:
        return f"{value:,.0f}"
    return f"{value:,.{max(0, 3 - math.floor(math.log10(value)))}f}"


def _labels(
    exploration: Exploration, front_points: Sequence[Measured], area: _Area
) -> tuple[list[str], list[str]]:
    """Return leader lines and labels of presets and boards, without overlaps."""
    references = [item for item in exploration.measured if _is_reference(item)]
    marks = [(x - 6, y - 6, x + 6, y + 6) for x, y in map(area.at, [*references, *front_points])]
    several = len(_colours(exploration)) > 1
    occupied: list[_Box] = []
    lines, labels = [], []
    for item in references:
        kind, name = item.origin.split(" ", 1)
        label_text = f"{name} on {item.point.place.name}" if several and kind == "preset" else name
        text, (x, y) = cut(printable(label_text), _MAX_LETTERS), area.at(item)
        free = [
            box
            for box in _boxes((x, y), len(text) * _LETTER_WIDTH, area.height)
            if not _overlaps(box, occupied)
        ]
        # A label may cover marks if necessary, but never another label.
        box = next((box for box in free if not _overlaps(box, marks)), free[0])
        occupied.append(box)
        if _distance((x, y), box) > _MAX_DISTANCE:
            end = min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3])
            lines.append(f'<path class="leader" d="M{x:.2f} {y:.2f}L{end[0]:.2f} {end[1]:.2f}"/>')
        labels.append(f'<text class="label" x="{box[0]:.2f}" y="{box[3] - 2:.2f}">{escape(text)}</text>')
    return lines, labels


def _boxes(spot: _Spot, width: float, height: float) -> list[_Box]:
    """Return possible boxes for the label of a mark, nearest first."""
    x, y = spot
    rows = range(-math.floor((y - _TOP) / _ROW_HEIGHT), math.floor((_TOP + height - y) / _ROW_HEIGHT) + 1)
    slots = [_LEFT + 4 + index * _WIDTH / _SLOTS for index in range(_SLOTS)]
    lefts = [left for left in (x + 9, x - 9 - width, x - width / 2) if _LEFT < left < _LEFT + _WIDTH - width]
    # Boxes are a little lower than a row, so that those of adjacent rows do not overlap.
    tops = [y + (row - 0.49) * _ROW_HEIGHT for row in rows]
    boxes = [(left, top, left + width, top + 0.98 * _ROW_HEIGHT) for top in tops for left in (*lefts, *slots)]
    return sorted(boxes, key=lambda box: _distance(spot, box))


def _distance(spot: _Spot, box: _Box) -> float:
    """Return the distance of a mark and a label; vertical distance counts twice."""
    across = max(box[0] - spot[0], 0, spot[0] - box[2])
    return math.hypot(across, 2 * max(box[1] - spot[1], 0, spot[1] - box[3]))


def _overlaps(a: _Box, others: Sequence[_Box]) -> bool:
    return any(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for b in others)


def _table(exploration: Exploration, front_points: Sequence[Measured]) -> Iterator[str]:
    """Yield a table of the front, with the fields that differ, and a list of those that do not."""
    configs = [item.point.config.to_dict() for item in front_points]
    differing = [name for name in configs[0] if len({config[name] for config in configs}) > 1]
    sought = dict.fromkeys(exploration.objectives, ' class="sought"')
    head = "".join(f"<th{sought.get(name, '')}>{escape(unit)}</th>" for name, unit in OBJECTIVES.items())
    head = f"<th>place</th><th>from</th>{head}" + "".join(f"<th>{name}</th>" for name in ("MHz", *differing))
    yield f'<h1>The front</h1><div class="wide"><table><thead><tr>{head}</tr></thead><tbody>'
    for item, config in zip(front_points, configs, strict=True):
        measures = (_number(item.values[name]) for name in OBJECTIVES)
        cells = [_text(item.point.place.name), _text(item.origin), *measures, f"{item.point.clock / 1e6:g}"]
        cells += [str(config[name]) for name in differing]
        yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    yield "</tbody></table></div>"
    common = ", ".join(f"{name} {value}" for name, value in configs[0].items() if name not in differing)
    yield f"<p>Common to all: {common or 'nothing'}.</p>"
