"""What a build used and how fast it is, from the reports of the tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.boards.board import RATE_ERROR, Board
from weft.boards.family import Resources


def slower_line(board: Board, clock: float) -> list[str]:
    """A note if a clock in Hz does not allow the rate that the board's serial link else has."""
    line = board.line(clock)
    if line.baud == board.baud:
        return []
    return [
        f"the serial link runs at {line.baud:,} baud: {clock / 1e6:g} MHz does not make {board.baud:,} within "
        f"{RATE_ERROR:.0%}"
    ]


def usage(board: Board, need: Resources, places: dict[str, dict[str, int]]) -> dict[str, dict[str, Any]]:
    """``synthesised``, ``placed``, ``available`` and ``percent`` for each of `Resources.NAMES`.

    `need` is what the netlist has, `places` what nextpnr filled.
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
    """Clocks and critical path of nextpnr's report.

    ``clocks``: the maximum of each in Hz as nextpnr says; ``fmax_hz``: `safe_clock` of the slowest;
    ``met``: whether that is at least `clock`; ``critical_path``: its steps.
    """
    clocks = {name.removeprefix("$glbnet$"): values["achieved"] * 1e6 for name, values in raw["fmax"].items()}
    # A design without a register to register path has no clock to speak of.
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
    }


def _step(step: dict[str, Any]) -> dict[str, Any]:
    """A step of a path: ``ns``, ``kind``, the cell it ends at, its net, and our sources that say where it is from."""
    sources = [source for source in step.get("sources", ()) if "site-packages" not in source]
    return {
        "ns": round(step["delay"], 2),
        "kind": step["type"],
        "cell": step["to"]["cell"],
        "net": step.get("net"),
        "sources": [_short(source) for source in sources],
    }


def _short(source: str) -> str:
    """``hdl/matrix/pe.py:84`` of ``/any/where/hdl/matrix/pe.py:84``."""
    return "/".join(source.rsplit("/", 2)[-2:])
