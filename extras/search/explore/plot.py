"""The front as one static page: plots of two objectives each, and a table. For light and dark screens.

Nothing of the page is loaded from elsewhere, and nothing of it runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from weft.cli.trace_svg import colour
from weft.extras.search.explore.explore import Exploration
from weft.extras.search.explore.front import front
from weft.extras.search.explore.point import OBJECTIVES, Measured
from weft.hdl.schema import printable
from weft.report import cut

_WIDTH, _HEIGHT = 600, 340  # of the area of a plot, which may be higher; everything in pixels
_LEFT, _TOP, _RIGHT, _BOTTOM = 56, 34, 16, 44
_ROW, _LETTER, _NAME = 13, 6.6, 28  # of labels: their height, the width of a letter, and the most letters
_SLOTS, _BESIDE = 3, 20  # labels that fit beside each other; how far one may be from its mark without a line
_FAR, _TICKS = 5, 9  # between an axis' values, from where on it is logarithmic; ticks at most
_ROOM = 0.05  # beyond the values, in parts of the axis
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


def page(found: Exploration) -> str:
    """The page of a search: plots of the first objective over each other one, or over LUTs if it is the only one."""
    best = found.front
    title = f"weft explore: least {', '.join(escape(OBJECTIVES[name]) for name in found.objectives)}"
    nothing = ["<p>Nothing was measured that is a solution, so there is no front.</p>"]
    body = [*_summary(found, best), *_plots(found, best), *_table(found, best)] if best else nothing
    return "\n".join([
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>",
        *body, "</body>\n</html>\n",
    ])  # fmt: skip


@dataclass(frozen=True)
class _Axis:
    """The values at the ends of an axis; on one of whole numbers, ticks are whole."""

    low: float
    high: float
    logarithmic: bool
    whole: bool

    @classmethod
    def of(cls, values: Sequence[float]) -> _Axis:
        """For values that are not negative, of which there is at least one."""
        low, high = min(values), max(values)
        whole = all(isinstance(value, int) for value in values)
        if 0 < low * _FAR < high:
            room = (high / low) ** _ROOM
            return cls(low / room, high * room, True, whole)
        span = high - low
        room = span * _ROOM if span > 1e-9 * high else high / 2 or 1.0
        return cls(low - room, high + room, False, whole)

    def at(self, value: float) -> float:
        """Where a value is, in parts of the axis."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Round numbers on the axis, a few."""
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for factors in ((1, 2, 3, 5, 7), (1, 2, 5), (1,)):
                ticks = [factor * 10.0**power for power in powers for factor in factors]
                found = [tick for tick in ticks if self.low <= tick <= self.high]
                if len(found) <= _TICKS:
                    break
            return found[:: -(-len(found) // _TICKS)]
        span = self.high - self.low
        least = max(math.floor(math.log10(span)) - 1, 0 if self.whole else -400)
        steps = (factor * 10.0**power for power in (least, least + 1, least + 2) for factor in (1, 2, 5))
        step = next(step for step in steps if step * _TICKS >= span)
        first, last = max(0, math.ceil(self.low / step)), math.floor(self.high / step)
        return [index * step for index in range(first, last + 1)]


@dataclass(frozen=True)
class _Area:
    """The area of a plot, and the names of its objectives: across and up."""

    names: tuple[str, str]
    x: _Axis
    y: _Axis
    height: float

    @classmethod
    def of(cls, found: Exploration, names: tuple[str, str]) -> _Area:
        """High enough for all labels: each is in the way of others in two slots of two rows at most."""
        x, y = (_Axis.of([item.values[name] for item in found.measured]) for name in names)
        labels = sum(map(_is_reference, found.measured))
        return cls(names, x, y, max(_HEIGHT, _ROW * (4 * labels // _SLOTS + 3)))

    def at(self, item: Measured) -> _Spot:
        across, up = (item.values[name] for name in self.names)
        return _LEFT + _WIDTH * self.x.at(across), _TOP + self.height * (1 - self.y.at(up))


def _is_reference(item: Measured) -> bool:
    return item.origin.startswith(("preset ", "board "))


def _text(text: str) -> str:
    return escape(printable(text))


def _colours(found: Exploration) -> dict[str, str]:
    """Of places, by name."""
    names = dict.fromkeys(item.point.place.name for item in found.measured)
    return {name: colour(index) for index, name in enumerate(names)}


def _summary(found: Exploration, best: Sequence[Measured]) -> Iterator[str]:
    """What the page shows, and a legend."""
    yield (
        f"<p>{len(found.measured):,} points were measured, {len(best):,} of them are on the front: none beats them in "
        "everything. Further down and left is better. Marks have all numbers of their points as tooltips.</p>"
    )
    entries = [(_mark("point", (10, 7)), "measured")]
    for name in dict.fromkeys(item.point.place.name for item in best):
        entries.append((_mark("front", (10, 7), _colours(found)[name]), f"on the front: {_text(name)}"))
    entries.append((_mark("reference", (10, 7)), "presets and boards' own, coloured on the front"))
    entries.append(('<path class="stairs" d="M1 4H10V11H19"/>', "front of the two objectives alone"))
    spans = (f'<span><svg viewBox="0 0 20 14">{mark}</svg> {text}</span>' for mark, text in entries)
    yield f'<div class="legend">{"".join(spans)}</div>'


def _plots(found: Exploration, best: Sequence[Measured]) -> Iterator[str]:
    first, *others = found.objectives
    yield '<div class="plots">'
    for other in others or ["ms" if first == "lut" else "lut"]:
        area = _Area.of(found, (other, first))
        label = escape(f"{OBJECTIVES[first]} over {OBJECTIVES[other]}")
        yield (
            f'<figure><svg class="plot" viewBox="0 0 {_LEFT + _WIDTH + _RIGHT} {_TOP + area.height + _BOTTOM}" '
            f'font-family="sans-serif" font-size="11" role="img" aria-label="{label}">'
        )
        lines, labels = _labels(found, best, area)
        yield from (*_frame(area), _stairs(found, area), *lines, *_marks(found, best, area), *labels)
        yield "</svg></figure>"
    yield "</div>"


def _frame(area: _Area) -> Iterator[str]:
    """The axes."""
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


def _stairs(found: Exploration, area: _Area) -> str:
    """The front of the two objectives; what it dominates is above and to the right."""
    spots = [area.at(item) for item in reversed(front(found.measured, (area.names[1], area.names[0])))]
    steps = "".join(f"H{x:.2f}V{y:.2f}" for x, y in spots)
    return f'<path class="stairs" d="M{spots[0][0]:.2f} {_TOP}{steps}H{_LEFT + _WIDTH}"/>'


def _marks(found: Exploration, best: Sequence[Measured], area: _Area) -> Iterator[str]:
    """Of all points: those of the front are drawn last, presets and boards before them."""
    known, fills = {id(item) for item in best}, _colours(found)
    for item in sorted(found.measured, key=lambda item: (id(item) in known, _is_reference(item))):
        kinds = ["reference"] * _is_reference(item) + ["front"] * (id(item) in known)
        fill = fills[item.point.place.name] if id(item) in known else ""
        yield _mark(" ".join(kinds or ["point"]), area.at(item), fill, _about(item))


def _mark(kinds: str, spot: _Spot, fill: str = "", about: str = "") -> str:
    size = 5 if "front" in kinds else 2.5
    name, shape = ("path", f'd="{_DIAMOND}"') if "reference" in kinds else ("circle", f'r="{size}"')
    style = f' style="fill: {fill}"' if fill else ""
    head = f'<{name} class="{kinds}" transform="translate({spot[0]:.2f} {spot[1]:.2f})" {shape}{style}>'
    return f"{head}<title>{about}</title></{name}>" if about else f"{head}</{name}>"


def _about(item: Measured) -> str:
    """All of a point, in lines."""
    measures = (f"{escape(OBJECTIVES[name])}: {_number(value)}" for name, value in item.values.items())
    config = ", ".join(f"{name} {value}" for name, value in item.point.config.to_dict().items())
    head = f"{_text(item.point.place.name)}, {item.point.clock / 1e6:g} MHz ({_text(item.origin)})"
    return "\n".join([head, *measures, config])


def _number(value: float) -> str:
    """A count in full, or four digits of a measure."""
    if isinstance(value, int) or value == 0:
        return f"{value:,.0f}"
    return f"{value:,.{max(0, 3 - math.floor(math.log10(value)))}f}"


def _labels(found: Exploration, best: Sequence[Measured], area: _Area) -> tuple[list[str], list[str]]:
    """Names of presets and boards, nowhere over each other, and lines to those that are not beside their marks."""
    references = [item for item in found.measured if _is_reference(item)]
    marks = [(x - 6, y - 6, x + 6, y + 6) for x, y in map(area.at, [*references, *best])]
    several = len(_colours(found)) > 1
    taken: list[_Box] = []
    lines, labels = [], []
    for item in references:
        kind, name = item.origin.split(" ", 1)
        whole = f"{name} on {item.point.place.name}" if several and kind == "preset" else name
        text, (x, y) = cut(printable(whole), _NAME), area.at(item)
        free = [box for box in _boxes((x, y), len(text) * _LETTER, area.height) if not _hits(box, taken)]
        box = next((box for box in free if not _hits(box, marks)), free[0])
        taken.append(box)
        if _distance((x, y), box) > _BESIDE:
            end = min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3])
            lines.append(f'<path class="leader" d="M{x:.2f} {y:.2f}L{end[0]:.2f} {end[1]:.2f}"/>')
        labels.append(f'<text class="label" x="{box[0]:.2f}" y="{box[3] - 2:.2f}">{escape(text)}</text>')
    return lines, labels


def _boxes(spot: _Spot, width: float, height: float) -> list[_Box]:
    """Where the label of a mark may be, the nearest first."""
    x, y = spot
    rows = range(-math.floor((y - _TOP) / _ROW), math.floor((_TOP + height - y) / _ROW) + 1)
    slots = [_LEFT + 4 + index * _WIDTH / _SLOTS for index in range(_SLOTS)]
    lefts = [left for left in (x + 9, x - 9 - width, x - width / 2) if _LEFT < left < _LEFT + _WIDTH - width]
    tops = [y + (row - 0.49) * _ROW for row in rows]
    found = [(left, top, left + width, top + 0.98 * _ROW) for top in tops for left in (*lefts, *slots)]
    return sorted(found, key=lambda box: _distance(spot, box))


def _distance(spot: _Spot, box: _Box) -> float:
    """From a mark to a label; above and below count as twice as far."""
    across = max(box[0] - spot[0], 0, spot[0] - box[2])
    return math.hypot(across, 2 * max(box[1] - spot[1], 0, spot[1] - box[3]))


def _hits(a: _Box, others: Sequence[_Box]) -> bool:
    return any(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for b in others)


def _table(found: Exploration, best: Sequence[Measured]) -> Iterator[str]:
    """The points of the front; of their configurations what differs, and below what does not."""
    configs = [item.point.config.to_dict() for item in best]
    differing = [name for name in configs[0] if len({config[name] for config in configs}) > 1]
    sought = dict.fromkeys(found.objectives, ' class="sought"')
    head = "".join(f"<th{sought.get(name, '')}>{escape(unit)}</th>" for name, unit in OBJECTIVES.items())
    head = f"<th>place</th><th>from</th>{head}" + "".join(f"<th>{name}</th>" for name in ("MHz", *differing))
    yield f'<h1>The front</h1><div class="wide"><table><thead><tr>{head}</tr></thead><tbody>'
    for item, config in zip(best, configs, strict=True):
        measures = (_number(item.values[name]) for name in OBJECTIVES)
        cells = [_text(item.point.place.name), _text(item.origin), *measures, f"{item.point.clock / 1e6:g}"]
        cells += [str(config[name]) for name in differing]
        yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    yield "</tbody></table></div>"
    same = ", ".join(f"{name} {value}" for name, value in configs[0].items() if name not in differing)
    yield f"<p>The same in all: {same or 'nothing'}.</p>"
