"""Resources, clock and critical path of a build, from the tools' reports."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from weft.boards.board import RATE_ERROR, Board
from weft.boards.families.family import Resources

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
