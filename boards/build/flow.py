"""Steps of a build, from RTLIL to bitstream (Yosys, nextpnr, writers of bitstreams), and the reports of the tools."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from typing import Any

from weft.boards.board import RATE_ERROR, Board
from weft.boards.build.tools import run, versions
from weft.boards.errors import ToolError
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


def synthesis(command: str, script: str = "") -> list[str]:
    """Return Yosys commands for `command`, for example ``synth_ecp5`` with its options, that avoid a bug in ABC9.

    `script` is as in `weft.boards.families.family.Family`.

    When ABC9 writes its netlist back, it invents names for the bits of wide wires. If a wire already has such a name,
    an assertion fails (``count_id(wire->name) == 0``, Yosys issues 4349 and 4451). Splitting all wires first prevents
    such names.
    """
    chosen = [f"scratchpad -copy abc9.script.{script} abc9.script"] if script else []
    return [f"{command} -run begin:map_luts", "splitnets", *chosen, f"{command} -run map_luts:"]


def synthesis_commands(board: Board, *options: str) -> list[str]:
    """Return Yosys commands from ``top.il`` to ``top.json`` and ``stat.json``; `options` are appended to
    ``synth_*``."""
    return [
        "read_rtlil top.il",
        *synthesis(" ".join((board.synthesis, "-top top", *options)), board.family.script),
        "tee -q -o stat.json stat -json -top top",
        "write_json top.json",
    ]


def synthesise(board: Board, folder: Path, progress: Progress) -> list[str]:
    """Run `synthesis_commands` in `folder`; return notes for the report.

    Raises `weft.boards.errors.ToolError`.
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

    Raises `weft.boards.errors.ToolError`.
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
    """Write the bitstream, ``top`` with the family's suffix. Raises `weft.boards.errors.ToolError`."""
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


MAX_SLOWEST_UNITS = 10
"""Largest number of units in a report's list of slowest paths."""


def slow_link_notes(board: Board, clock: float) -> list[str]:
    """Return a note if the serial link cannot run at the board's highest rate at a clock in Hz."""
    line = board.line(clock)
    if line.baud == board.baud:
        return []
    return [
        f"the serial link runs at {line.baud:,} baud: {clock / 1e6:g} MHz does not make {board.baud:,} within "
        f"{RATE_ERROR:.0%}"
    ]


def usage(board: Board, need: Resources, places: dict[str, dict[str, int]]) -> dict[str, dict[str, Any]]:
    """Return ``synthesised``, ``placed``, ``available`` and ``percent`` for each of `Resources.NAMES`.

    `need` are the netlist's resources, and `places` is nextpnr's utilization.
    """
    rows = {}
    for name, count in need.items():
        placed = places.get(board.family.placed.get(name, ""), {}).get("used", count)
        available = getattr(board.available, name)
        rows[name] = {
            "synthesised": count,
            "placed": placed,
            "available": available,
            "percent": round(100 * placed / available, 1),
        }
    return rows


def timing(raw: dict[str, Any], clock: float, safe_clock: Callable[[float], float]) -> dict[str, Any]:
    """Return clocks and critical path from nextpnr's report.

    ``clocks_hz``: nextpnr's maximum of each clock; ``fmax_hz``: `safe_clock` of the slowest; ``met``: whether that
    reaches `clock`; ``critical_path``: its steps; ``slowest``: see `_slowest`.
    """
    clocks = {name.removeprefix("$glbnet$"): values["achieved"] * 1e6 for name, values in raw["fmax"].items()}
    # A design without a register-to-register path has no maximum clock.
    slowest = min(raw["fmax"], key=lambda name: raw["fmax"][name]["achieved"], default=None)
    fmax = safe_clock(min(clocks.values())) if clocks else float("inf")
    paths = [
        path
        for path in raw["critical_paths"]
        if path["from"].split()[-1] == path["to"].split()[-1] == str(slowest)
    ]
    return {
        "clocks_hz": {name: round(value) for name, value in clocks.items()},
        "fmax_hz": round(fmax) if clocks else None,
        "met": fmax >= clock,
        "critical_path": [_step(step) for path in paths[:1] for step in path["path"]],
        "slowest": _slowest(raw.get("detailed_net_timings", ()), str(slowest)),
    }


def _slowest(nets: Iterable[dict[str, Any]], clock: str) -> list[dict[str, Any]]:
    """Return the units with the slowest paths into registers of `clock`, at most `MAX_SLOWEST_UNITS`.

    Each has ``ns``, ``unit`` and the last ``net`` of the path. `nets` is nextpnr's ``detailed_net_timings``.
    """
    # Slowest delay per unit where the path ends, with the net of its last connection.
    worst: dict[str, tuple[float, str]] = {}
    for net in nets:
        for end in net["endpoints"]:
            if clock in end["event"] and clock in net["event"]:
                unit = unit_of(end["cell"])
                worst[unit] = max(worst.get(unit, (0.0, "")), (max(end["delay"]), net["net"]))
    ranked = sorted(worst.items(), key=lambda item: item[1], reverse=True)[:MAX_SLOWEST_UNITS]
    return [{"ns": round(ns, 2), "unit": unit, "net": net} for unit, (ns, net) in ranked]


def unit_of(cell: str) -> str:
    """Return the unit of a netlist cell: ``core.load.unpacker`` for ``top.core.load.unpacker.at[4]_TRELLIS_FF_Q``."""
    names = re.sub(r"[\[$].*|_(TRELLIS|SB|DFF|LUT|DP16|MULT|CCU|PFU|L6).*", "", cell).split(".")
    return ".".join(names[1:-1] if names[0] == "top" else names[:-1]) or "top"


def _step(step: dict[str, Any]) -> dict[str, Any]:
    """Return one step of a path: ``ns``, ``kind``, the cell where it ends, its net, and its source locations in
    weft."""
    sources = [source for source in step.get("sources", ()) if "site-packages" not in source]
    return {
        "ns": round(step["delay"], 2),
        "kind": step["type"],
        "cell": step["to"]["cell"],
        "net": step.get("net"),
        "sources": [_short(source) for source in sources],
    }


def _short(source: str) -> str:
    """Shorten a source location: ``matrix/pe.py:84`` for ``/any/where/hdl/matrix/pe.py:84``."""
    return "/".join(source.rsplit("/", 2)[-2:])
