"""A picture of where nextpnr put the units of a design."""

from __future__ import annotations

import re
from collections import Counter
from html import escape
from typing import Any

COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#ff9da7", "#9c755f")
OTHER = "#bab0ac"
TILE = 8


def floorplan(placed: dict[str, Any], title: str) -> str:
    """SVG of nextpnr's JSON netlist (``--write``): every tile in the colour of the unit that most of its cells are of.

    The legend gives the cells of each unit; those beyond the number of colours count as others.
    """
    module = next(item for item in placed["modules"].values() if item.get("cells"))
    tiles: dict[tuple[int, int], Counter[str]] = {}
    totals: Counter[str] = Counter()
    for name, cell in module["cells"].items():
        found = re.match(r"X(\d+)/?Y(\d+)", cell["attributes"].get("NEXTPNR_BEL", ""))
        if not found:
            continue
        unit = _unit(name)
        totals[unit] += 1
        tiles.setdefault((int(found[1]), int(found[2])), Counter())[unit] += 1
    named = [unit for unit, _ in totals.most_common() if unit != "other"][: len(COLOURS)]
    colours = dict(zip(named, COLOURS, strict=False))
    height = max((y for _, y in tiles), default=0) + 1
    width = max((x for x, _ in tiles), default=0) + 1
    shapes = [
        f'<rect x="{x * TILE}" y="{y * TILE}" width="{TILE - 1}" height="{TILE - 1}" '
        f'fill="{colours.get(units.most_common(1)[0][0], OTHER)}"/>'
        for (x, y), units in sorted(tiles.items())
    ]
    legend = [(unit, colours[unit], totals[unit]) for unit in named]
    rest = sum(totals.values()) - sum(count for _, _, count in legend)
    legend += [("other", OTHER, rest)] if rest else []
    for row, (unit, colour, count) in enumerate(legend):
        y = 20 * row + 16
        shapes.append(f'<rect x="{width * TILE + 16}" y="{y}" width="12" height="12" fill="{colour}"/>')
        shapes.append(f'<text x="{width * TILE + 34}" y="{y + 11}">{escape(unit)}: {count:,} cells</text>')
    size = (width * TILE + 280, max(height * TILE, 20 * len(legend) + 32))
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 -28 {size[0]} {size[1] + 28}" '
            f'font-family="sans-serif" font-size="13">\n<title>{escape(title)}</title>\n'
            f'<rect y="-28" width="{size[0]}" height="{size[1] + 28}" fill="white"/>\n'
            f'<text x="4" y="-10" font-size="15">{escape(title)}</text>\n')  # fmt: skip
    return head + "\n".join(shapes) + "\n</svg>\n"


def _unit(name: str) -> str:
    """The unit of a cell: ``array`` of ``top.core.mm.array.row3...`` is too deep, ``core.mm`` is right."""
    parts = [part for part in name.split(".")[:-1] if part != "top"]
    return ".".join(parts[:2]) if parts else "other"
