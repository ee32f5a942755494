"""From a board's RTLIL to its bitstream: Yosys (pyosys), nextpnr and the bitstream writers (YoWASP, Apicula)."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

from weft.boards.board import Board
from weft.boards.family import Family, Resources
from weft.boards.tools import ToolError, run, versions
from weft.hdl.verilog import yosys_command

Progress = Callable[[str], None]


_COMMON = ("amaranth", "amaranth-boards", "pyosys")
"""Distributions that decide the result for every family."""


class _Pace:
    """Lets through some lines of a talkative tool: the longer it has run, the fewer."""

    def __init__(self, progress: Progress, stage: str) -> None:
        self.progress = progress
        self.stage = stage
        self.began = self.last = time.monotonic()
        self.said = stage
        progress(stage)

    def tell(self, text: str) -> None:
        now = time.monotonic()
        said = f"{self.stage}: {text}"
        if said != self.said and now - self.last >= min(10.0, 1 + (now - self.began) / 20):
            self.last, self.said = now, said
            self.progress(said)


def synthesis(command: str) -> list[str]:
    """`command` (``synth_ecp5`` for example, with its options) as Yosys commands that succeed.

    When ABC9 writes its netlist back, it makes up names for the bits of wide wires, and fails an assertion
    (``count_id(wire->name) == 0``, Yosys issues 4349 and 4451) where a wire has that name already. There is no such
    name if all wires are split before.
    """
    return [f"{command} -run begin:map_luts", "splitnets", f"{command} -run map_luts:"]


def synthesis_commands(board: Board, *options: str) -> list[str]:
    """Yosys commands from ``top.il`` to ``top.json`` and ``stat.json``; `options` are more of ``synth_*``."""
    return [
        "read_rtlil top.il",
        *synthesis(" ".join((board.synthesis, "-top top", *options))),
        "tee -q -o stat.json stat -json -top top",
        "write_json top.json",
    ]


def synthesise(board: Board, folder: Path, progress: Progress) -> list[str]:
    """Run `synthesis_commands` in `folder`; returns what its reader must know.

    Raises `weft.boards.tools.ToolError`.
    """
    pace = _Pace(progress, "synthesising")

    def line(text: str) -> None:
        found = re.match(r"[\d.]+ Executing (.+?)[.]?$", text)
        if found:
            pace.tell(found[1])

    try:
        run("yosys", yosys_command(*synthesis_commands(board)), folder, line)
    except ToolError as error:
        # Some netlists trip ABC9 of Yosys 0.70, whatever is in them; its older mapper takes all of them.
        if "rtlil.cc" not in str(error) or not board.family.falls_back:
            raise
        progress("synthesising again: ABC9 failed")
        run("yosys", yosys_command(*synthesis_commands(board, "-noabc9")), folder, line)
        return ["LUTs were mapped by ABC, because ABC9 of this Yosys fails on this design"]
    return []


def place(board: Board, folder: Path, clock: float, seed: int, progress: Progress) -> None:
    """Place and route ``top.json`` for a clock in Hz; leaves ``placed.json`` and ``timing.json``. Never refuses for
    timing.

    Raises `weft.boards.tools.ToolError`.
    """
    pace = _Pace(progress, "placing and routing")

    def line(text: str) -> None:
        if text.startswith("Preparing to run"):
            progress("preparing nextpnr (only the first time)")
        elif left := re.fullmatch(r"Info:(?: +\d+ +\|)(?:[ \d]+\|){2} *(\d+)\|[ \d.|]*", text):
            pace.tell(f"{int(left[1]):,} arcs left")
        elif (text.startswith("Info:") and text.endswith((".", "..", "%"))) or "iteration" in text:
            pace.tell(text.removeprefix("Info:").strip().rstrip("."))

    family = board.family
    megahertz = f"{family.requested_clock(clock) / 1e6:.3f}"
    options = (*board.place, "--json", "top.json", "--seed", str(seed), "--freq", megahertz, "--report", "timing.json",
               "--detailed-timing-report", "--timing-allow-fail")  # fmt: skip
    command = family.place(options, f"top{family.constraints}", f"top{family.routed}")
    run("nextpnr", command, folder, line)


def pack(board: Board, folder: Path, progress: Progress) -> None:
    """Write the bitstream, ``top`` with the family's suffix. Raises `weft.boards.tools.ToolError`."""
    progress("writing the bitstream")
    family = board.family
    run("pack", family.pack(board.pack, f"top{family.routed}", f"top{family.bitstream}"), folder)


def tool_versions(family: Family) -> list[str]:
    """``name version`` of all that decides the result."""
    return versions(*_COMMON, *family.packages)


def synthesised(family: Family, folder: Path) -> Resources:
    """What the netlist of `synthesise` needs."""
    stat = json.loads((folder / "stat.json").read_text())
    return family.needs(stat["design"]["num_cells_by_type"], folder / "top.json")
