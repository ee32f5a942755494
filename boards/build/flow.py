"""Steps of a build, from RTLIL to bitstream: Yosys (pyosys), nextpnr, and the bitstream writers (YoWASP, Apicula)."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from weft.boards.board import Board
from weft.boards.build.tools import ToolError, run, versions
from weft.boards.families.family import Family, Resources
from weft.hdl.verilog import yosys_command

Progress = Callable[[str], None]


_COMMON = ("amaranth", "amaranth-boards", "pyosys")
"""Distributions whose versions affect the result on every family."""


class _Pace:
    """Rate limiter for a tool's progress messages: the longer the tool has run, the fewer pass."""

    def __init__(self, progress: Progress, stage: str) -> None:
        self.progress = progress
        self.stage = stage
        self.began = self.last = time.monotonic()
        self.last_message = stage
        progress(stage)

    def report(self, text: str) -> None:
        # The interval between messages grows from 1 s to 10 s within three minutes.
        now = time.monotonic()
        message = f"{self.stage}: {text}"
        if message != self.last_message and now - self.last >= min(10.0, 1 + (now - self.began) / 20):
            self.last, self.last_message = now, message
            self.progress(message)


def synthesis(command: str) -> list[str]:
    """Return Yosys commands for `command`, for example ``synth_ecp5`` with its options, that avoid a bug in ABC9.

    When ABC9 writes its netlist back, it invents names for the bits of wide wires. If a wire already has such a name,
    an assertion fails (``count_id(wire->name) == 0``, Yosys issues 4349 and 4451). Splitting all wires first prevents
    such names.
    """
    return [f"{command} -run begin:map_luts", "splitnets", f"{command} -run map_luts:"]


def synthesis_commands(board: Board, *options: str) -> list[str]:
    """Return Yosys commands from ``top.il`` to ``top.json`` and ``stat.json``; `options` are appended to
    ``synth_*``."""
    return [
        "read_rtlil top.il",
        *synthesis(" ".join((board.synthesis, "-top top", *options))),
        "tee -q -o stat.json stat -json -top top",
        "write_json top.json",
    ]


def synthesise(board: Board, folder: Path, progress: Progress) -> list[str]:
    """Run `synthesis_commands` in `folder`; return notes for the report.

    Raises `weft.boards.build.tools.ToolError`.
    """
    pace = _Pace(progress, "synthesising")

    def line(text: str) -> None:
        if step := re.match(r"[\d.]+ Executing (.+?)[.]?$", text):
            pace.report(step[1])

    try:
        run("yosys", yosys_command(*synthesis_commands(board)), folder, line)
    except ToolError as error:
        # ABC9 of Yosys 0.70 fails on some valid netlists; the older ABC maps all of them.
        if "rtlil.cc" not in str(error) or not board.family.falls_back:
            raise
        progress("synthesising again: ABC9 failed")
        run("yosys", yosys_command(*synthesis_commands(board, "-noabc9")), folder, line)
        return ["LUTs were mapped by ABC, because ABC9 of this Yosys fails on this design"]
    return []


def place(board: Board, folder: Path, clock: float, seed: int, progress: Progress) -> None:
    """Place and route ``top.json`` for a clock in Hz; write ``placed.json`` and ``timing.json``. A missed clock is no
    error.

    Raises `weft.boards.build.tools.ToolError`.
    """
    pace = _Pace(progress, "placing and routing")

    def line(text: str) -> None:
        if text.startswith("Preparing to run"):
            progress("preparing nextpnr (only the first time)")
        elif left := re.fullmatch(r"Info:(?: +\d+ +\|)(?:[ \d]+\|){2} *(\d+)\|[ \d.|]*", text):
            pace.report(f"{int(left[1]):,} arcs left")
        elif (text.startswith("Info:") and text.endswith((".", "..", "%"))) or "iteration" in text:
            pace.report(text.removeprefix("Info:").strip().rstrip("."))

    family = board.family
    megahertz = f"{family.requested_clock(clock) / 1e6:.3f}"
    # A missed clock is reported by `weft.boards.build.build`, not by nextpnr.
    files = f"--json top.json --seed {seed} --freq {megahertz} --report timing.json".split()
    options = (*board.place, *files, "--detailed-timing-report", "--timing-allow-fail")
    command = family.place(options, f"top{family.constraints}", f"top{family.routed}")
    run("nextpnr", command, folder, line)


def pack(board: Board, folder: Path, progress: Progress) -> None:
    """Write the bitstream, ``top`` with the family's suffix. Raises `weft.boards.build.tools.ToolError`."""
    progress("writing the bitstream")
    family = board.family
    run("pack", family.pack(board.pack, f"top{family.routed}", f"top{family.bitstream}"), folder)


def tool_versions(family: Family) -> list[str]:
    """Return ``name version`` of every distribution that affects the result."""
    return versions(*_COMMON, *family.packages)


def read_resources(family: Family, folder: Path) -> Resources:
    """Return the resources of the netlist that `synthesise` wrote."""
    stat = json.loads((folder / "stat.json").read_text())
    return family.needs(stat["design"]["num_cells_by_type"], folder / "top.json")


COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#ff9da7", "#9c755f")
OTHER = "#bab0ac"
TILE = 8


def floorplan(placed: dict[str, Any], title: str) -> str:
    """Return an SVG of nextpnr's JSON netlist (``--write``), with each tile in the colour of its most frequent unit.

    The legend lists the cells per unit. Units beyond the number of colours count as "other".
    """
    module = next(item for item in placed["modules"].values() if item.get("cells"))
    tiles: dict[tuple[int, int], Counter[str]] = {}
    totals: Counter[str] = Counter()
    for name, cell in module["cells"].items():
        site = re.match(r"X(\d+)/?Y(\d+)", cell["attributes"].get("NEXTPNR_BEL", ""))
        if not site:
            continue
        unit = _unit(name)
        totals[unit] += 1
        tiles.setdefault((int(site[1]), int(site[2])), Counter())[unit] += 1
    # The largest units get colours of their own.
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
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 -28 {size[0]} {size[1] + 28}" '
        f'font-family="sans-serif" font-size="13">\n<title>{escape(title)}</title>\n'
        f'<rect y="-28" width="{size[0]}" height="{size[1] + 28}" fill="white"/>\n'
        f'<text x="4" y="-10" font-size="15">{escape(title)}</text>\n'
    )
    return head + "\n".join(shapes) + "\n</svg>\n"


def _unit(name: str) -> str:
    """Return the unit of a cell at the depth of the legend: ``core.mm`` for ``top.core.mm.array.row3...``."""
    parts = [part for part in name.split(".")[:-1] if part != "top"]
    return ".".join(parts[:2]) if parts else "other"
