"""Waveforms of the RTL device: which cycles of a program they show, and how viewers arrange their signals."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vcd.gtkw import GTKWSave

from weft.sim.verilator.verilate import Trace
from weft.sim.waves.wave_names import Variable

CYCLE_TIME = 10
"""A cycle, in units of the time in a file; as in rtl_model.cpp."""
FORMATS = (".fst", ".vcd")


@dataclass
class Waves:
    """Options of a waveform file.

    Attributes
    ----------
    path : Path
        The file: FST if it ends so, else VCD.
    first : int
        The cycle of the program with which to begin, counted from its start.
    cycles : int or None
        How many; None for all that follow. Without this and `first`, what comes before the program is shown as well.
    zero : int or None
        Time of the program's cycle 0 in the file; set when it starts.
    ran : int
        Cycles that it has taken; set while it runs.
    """

    path: Path
    first: int = 0
    cycles: int | None = None
    zero: int | None = None
    ran: int = 0

    @property
    def windowed(self) -> bool:
        """Whether something is left out."""
        return self.first > 0 or self.cycles is not None

    @property
    def begin(self) -> int:
        """Time of cycle `first` in the file, once the program has started."""
        return (self.zero or 0) + CYCLE_TIME * self.first

    @property
    def format(self) -> Trace:
        return "fst" if self.path.suffix == ".fst" else "vcd"


_TOP = ("TOP", "weft")
_QUEUE = r"instruction__(valid|ready)|waiting|empty"
_UNIT = (
    r"busy|stall_\w+|signal|row|bus__confirmed|"
    r"(scratchpad|accumulator|write|a|b|c|alignments|alignment_\w+|(bus|page)__(request|beat))__(valid|ready|address)"
)
_MEMORY = r"(read|write)__\d__(valid|ready|address)|(read|write|mm|vec)__(valid|ready|address)"
_BUS = r"m_axi_(ar|aw)(valid|ready|addr|len)|m_axi_[rw](valid|ready|data|last)|m_axi_b(valid|ready)"
GROUPS: dict[str, dict[str, str]] = {
    "program": {"": r"clk|rst|irq", "control": r"start|running|finished"},
    "fetch": {"fetch": r"idle|error|(load|mm|vec|store)__(valid|ready)|bus__(request|beat)__(valid|ready)"},
    **{unit.upper(): {f"{unit}_queue": _QUEUE, unit: _UNIT} for unit in ("load", "mm", "vec", "store")},
    "semaphores": {"semaphores": r"available|count_\d+"},
    "scratchpad": {"scratchpad": _MEMORY},
    "accumulator": {"accumulator": _MEMORY},
    "memory": {"": _BUS},
}
"""Groups in a viewer: by component of `weft.hdl.core.Core` (empty: its own ports), what names must match."""


def grouped(variables: Sequence[Variable]) -> dict[str, list[Variable]]:
    """The variables of each group, by name within a component: what stands for itself, then the ports."""
    scopes: dict[tuple[str, ...], list[Variable]] = {}
    for variable in variables:
        scopes.setdefault(variable.scopes, []).append(variable)
    return {
        title: [
            variable
            for component, pattern in parts.items()
            for variable in sorted(scopes.get((*_TOP, component) if component else _TOP, ()), key=_place)
            if re.fullmatch(pattern, variable.name)
        ]
        for title, parts in GROUPS.items()
    }


def _place(variable: Variable) -> tuple[bool, str]:
    return "__" in variable.name, variable.name


def gtkw(variables: Sequence[Variable], waves: Waves, path: Path) -> str:
    """A save file for GTKWave, to be written next to the waveform, which will be at `path`."""
    text = io.StringIO()
    save = GTKWSave(text)
    save.dumpfile(str(path))
    save.savefile(str(path.with_suffix(".gtkw")))
    save.timestart(waves.begin)
    save.zoom_markers(-2.0, waves.begin)  # a cycle is wide enough to see
    for title, members in grouped(variables).items():
        with save.group(title):
            for variable in members:
                save.trace(variable.path + variable.range)
    return text.getvalue()


def sucl(variables: Sequence[Variable], waves: Waves) -> str:
    """Commands that arrange the waveform in Surfer, which opens it before it runs them."""
    lines = []
    for title, members in grouped(variables).items():
        lines += [f"divider_add {title}", *(f"variable_add {variable.path}" for variable in members)]
    return "\n".join([*lines, f"cursor_set {waves.begin}", ""])
