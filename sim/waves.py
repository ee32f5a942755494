"""Waveform files of the RTL device: the cycles that they cover, their variables, and set-ups for viewers."""

from __future__ import annotations

import enum
import io
import itertools
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from vcd.gtkw import GTKWSave

from weft.sim.verilate import Trace

_HIERARCHY_LZ4 = 6  # type of the block in an FST file that holds the LZ4-compressed scopes and variables
_SHORTEST_MATCH = 4


class _Entry(enum.IntEnum):
    """Types of entries in the hierarchy of an FST file; smaller numbers are types of variables."""

    ATTRIBUTE = 252
    ATTRIBUTE_END = 253
    SCOPE = 254
    UPSCOPE = 255


@dataclass(frozen=True)
class Variable:
    """A signal: its scopes, its name, and its range of bits such as ``[7:0]`` (empty for one bit)."""

    scopes: tuple[str, ...]
    name: str
    range: str

    @property
    def path(self) -> str:
        """Scopes and name joined by dots, without the range."""
        return ".".join((*self.scopes, self.name))


def variables(path: Path) -> list[Variable]:
    """Return all variables of a waveform file, in the file's order.

    Raises
    ------
    ValueError
        If an FST file has no hierarchy.
    """
    with path.open("rb") as file:
        return list(_fst(_hierarchy(file)) if path.suffix == ".fst" else _vcd(file))


def _variable(scopes: list[str], words: list[str]) -> Variable:
    return Variable(tuple(scopes), words[0], "".join(words[1:]))


def _vcd(file: BinaryIO) -> Iterator[Variable]:
    scopes: list[str] = []
    for line in file:
        match line.decode().split():
            case ["$scope", _, name, "$end"]:
                scopes.append(name)
            case ["$upscope", "$end"]:
                scopes.pop()
            case ["$var", _, _, _, *words, "$end"]:
                yield _variable(scopes, words)
            case ["$enddefinitions", "$end"]:
                return


def _hierarchy(file: BinaryIO) -> io.BytesIO:
    """Return the unpacked hierarchy of an FST file."""
    # A block is a byte of type, 8 bytes of length (which count themselves), and contents.
    while len(head := file.read(9)) == 9:
        kind, length = struct.unpack(">BQ", head)
        if kind == _HIERARCHY_LZ4:
            size = int.from_bytes(file.read(8))
            return io.BytesIO(unpack(file.read(length - 16), size))  # 16: length and size
        file.seek(length - 8, io.SEEK_CUR)
    raise ValueError(f"{file.name} has no hierarchy")


def _fst(file: io.BytesIO) -> Iterator[Variable]:
    scopes: list[str] = []
    while kind := file.read(1):
        match kind[0]:
            case _Entry.SCOPE:
                file.read(1)  # type of scope
                scopes.append(_text(file))
                _text(file)  # name of the module
            case _Entry.UPSCOPE:
                scopes.pop()
            case _Entry.ATTRIBUTE:
                file.read(2)  # type and subtype
                _text(file)
                _number(file)
            case _Entry.ATTRIBUTE_END:
                pass
            case _:
                file.read(1)  # direction
                yield _variable(scopes, _text(file).split())
                _number(file)  # length
                _number(file)  # alias


def _text(file: io.BytesIO) -> str:
    return b"".join(itertools.takewhile(lambda byte: byte != b"\0", iter(lambda: file.read(1), b""))).decode()


def _number(file: io.BytesIO) -> int:
    """Read a LEB128 number: seven bits a byte, low bits first; the top bit is set if more bytes follow."""
    value = shift = 0
    while (byte := file.read(1)[0]) & 128:
        value, shift = value | (byte & 127) << shift, shift + 7
    return value | byte << shift


def unpack(packed: bytes, size: int) -> bytes:
    """Decompress an LZ4 block of `size` bytes.

    Raises
    ------
    ValueError
        If `packed` is not an LZ4 block of this size.
    """
    file, out = io.BytesIO(packed), bytearray()
    while token := file.read(1):
        literals, match = token[0] >> 4, token[0] & 15
        out += file.read(_length(file, literals))
        if not (distance := int.from_bytes(file.read(2), "little")):  # the last sequence has no match
            break
        start, count = len(out) - distance, _length(file, match) + _SHORTEST_MATCH
        if start < 0:
            break
        # A match may overlap its own output: then its first `distance` bytes repeat.
        run = bytes(out[start : start + count])
        out += (run * (count // len(run) + 1))[:count]
    if len(out) != size:
        raise ValueError(f"{len(packed)} bytes are no LZ4 block of {size}")
    return bytes(out)


def _length(file: io.BytesIO, four_bits: int) -> int:
    """Read the rest of a length: if the token's four bits are 15, add bytes up to the first that is not 255."""
    length = four_bits
    while four_bits == 15:
        byte = file.read(1)[0]
        length += byte
        if byte != 255:
            break
    return length


CYCLE_TIME = 10
"""Length of a cycle in the file's unit of time; must equal the constant in rtl_model.cpp."""
FORMATS = (".fst", ".vcd")


@dataclass
class Waves:
    """Options of a waveform file.

    Attributes
    ----------
    path : Path
        The file: FST if its suffix is ``.fst``, else VCD.
    first : int
        First cycle to record, counted from the start of the program.
    cycles : int or None
        Number of cycles to record; None for all. Without `first` and `cycles`, the file begins at the reset.
    zero : int or None
        Time of the program's cycle 0 in the file; set when the program starts.
    ran : int
        Cycles that the program has run for; updated while it runs.
    """

    path: Path
    first: int = 0
    cycles: int | None = None
    zero: int | None = None
    ran: int = 0

    @property
    def has_window(self) -> bool:
        """True if only a window of cycles is recorded."""
        return self.first > 0 or self.cycles is not None

    @property
    def begin(self) -> int:
        """Time of cycle `first` in the file; valid once the program has started."""
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
"""Groups in a viewer: patterns of signal names by component of `weft.hdl.core.Core` (empty: the core's own ports)."""


def group_variables(variables: Sequence[Variable]) -> dict[str, list[Variable]]:
    """Return the variables of each group, sorted by name within a component, with ports of streams last."""
    scopes: dict[tuple[str, ...], list[Variable]] = {}  # variables by scope
    for variable in variables:
        scopes.setdefault(variable.scopes, []).append(variable)
    return {
        title: [
            variable
            for component, pattern in parts.items()
            for variable in sorted(scopes.get((*_TOP, component) if component else _TOP, ()), key=_sort_key)
            if re.fullmatch(pattern, variable.name)
        ]
        for title, parts in GROUPS.items()
    }


def _sort_key(variable: Variable) -> tuple[bool, str]:
    return "__" in variable.name, variable.name


def gtkw(variables: Sequence[Variable], waves: Waves, path: Path) -> str:
    """Return a save file for GTKWave, to be stored next to the waveform at `path`."""
    text = io.StringIO()
    save = GTKWSave(text)
    save.dumpfile(str(path))
    save.savefile(str(path.with_suffix(".gtkw")))
    save.timestart(waves.begin)
    save.zoom_markers(-2.0, waves.begin)  # at this zoom, single cycles are visible
    for title, members in group_variables(variables).items():
        with save.group(title):
            for variable in members:
                save.trace(variable.path + variable.range)
    return text.getvalue()


def sucl(variables: Sequence[Variable], waves: Waves) -> str:
    """Return commands for Surfer that arrange an open waveform."""
    lines = []
    for title, members in group_variables(variables).items():
        lines += [f"divider_add {title}", *(f"variable_add {variable.path}" for variable in members)]
    return "\n".join([*lines, f"cursor_set {waves.begin}", ""])
