"""Coverage of a core's Verilog: read and merge Verilator's counts, and match explanations with uncovered points.

A `Point` is a line, one side of a branch, or a change of one bit in one direction. Counts of several configurations are
merged: a point is covered if any of them covers it. Excluded are bits that Yosys proves constant, words of memories
(their ports are covered instead), and intermediate results of expressions.
"""

from __future__ import annotations

import collections
import ctypes
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from weft.hdl.errors import WeftError
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import START, Fault, Reg
from weft.sim.device import DeviceError
from weft.sim.rtl.device import RtlDevice

KINDS = ("line", "branch", "toggle")
_TOP = "TOP.weft"
# Intermediate results of expressions, which have no name in the sources
_UNNAMED = re.compile(r"\$")
# Bits of words of a memory
_MEMORY = re.compile(r"\[\d+\]\[\d+\]:")


class CoverageError(WeftError, ValueError):
    """Malformed file of coverage or explanations."""


class Point(NamedTuple):
    """A coverage point.

    Attributes
    ----------
    kind : str
        Element of `KINDS`.
    unit : str
        Path of the unit in the core, ``core`` for the core itself.
    name : str
        ``signal[bit]:0->1`` for a toggle. For a line or a side of a branch, the assigned signal and the point's number
        among such points of the unit.
    """

    kind: str
    unit: str
    name: str


Counts = dict[Point, int]


def read(path: Path, verilog: str) -> Counts:
    """Read the counts of all points from Verilator's coverage file of a model of `verilog`.

    Raises `CoverageError` if `path` is not a coverage file.
    """
    lines = path.read_text(errors="replace").splitlines()
    if not lines or not lines[0].startswith("# SystemC::Coverage"):
        raise CoverageError(f"{path} is no file of Verilator's coverage: its first line is not its mark")
    source = verilog.splitlines()
    toggles: Counts = collections.defaultdict(int)
    others: list[tuple[str, str, int, int, str, int]] = []
    for line in lines[1:]:
        # A record is C '...' COUNT, with fields KEY \x02 VALUE that begin with \x01.
        text, _, count = line.rpartition("' ")
        fields = dict(part.split("\x02", 1) for part in text.split("\x01")[1:])
        if not fields or not count.isdigit():
            raise CoverageError(f"{path}: {line[:60]!r} is no count of coverage")
        unit = _verilog_name(fields["h"]).removeprefix(_TOP).lstrip(".") or "core"
        if fields["t"] == "toggle":
            name = _verilog_name(fields["o"])
            if not _UNNAMED.match(name) and not _MEMORY.search(name):
                toggles[Point("toggle", unit, name)] += int(count)
        else:
            others.append((fields["t"], unit, int(fields["l"]), int(fields["n"]), fields["o"], int(count)))
    return {**toggles, **_name_lines(others, source)}


def _verilog_name(name: str) -> str:
    # Verilator writes special characters as __0 and two hexadecimal digits.
    return re.sub("__0([0-9A-Fa-f]{2})", lambda match: chr(int(match[1], 16)), name)


def _name_lines(records: list[tuple[str, str, int, int, str, int]], source: list[str]) -> Counts:
    """Name lines and branches by the signals that they assign: line numbers differ between configurations."""
    counts: Counts = collections.defaultdict(int)
    numbers: dict[tuple[str, str, str], int] = collections.Counter()
    for kind, unit, line, _column, side, count in sorted(records):
        target = _target(source, line)
        base = f"{target} {side}"
        numbers[kind, unit, base] += 1
        counts[Point(kind, unit, f"{base} {numbers[kind, unit, base]}")] += count
    return counts


def _target(source: list[str], line: int) -> str:
    """Return the signal assigned in `line`, or in the next line with an assignment."""
    # A record names the line of `if` or `case`; its assignment is at most three lines below.
    for text in source[line - 1 : line + 3]:
        if match := re.search(r"(?:assign |\) |^\s+|else )(\S+)(?: \[[^\]]*\])? <?= ", text):
            return match[1].lstrip("\\")
    return "?"


def merge(parts: Iterable[Mapping[Point, int]]) -> Counts:
    """Add counts point by point."""
    total: Counts = collections.defaultdict(int)
    for part in parts:
        for point, count in part.items():
            total[point] += count
    return total


@dataclass(frozen=True)
class Explanation:
    """The reason why some points are not covered.

    Attributes
    ----------
    line : int
        Line number in the file of explanations.
    core, kind, unit, name : str
        Patterns, in which ``*`` matches any text. A name may end in a range of bits: ``address[31:18]``.
    reason : str
    """

    line: int
    core: str
    kind: str
    unit: str
    name: str
    reason: str

    def matches(self, core: str, point: Point) -> bool:
        return (
            _like(self.core, core)
            and _like(self.kind, point.kind)
            and _like(self.unit, point.unit)
            and self._matches_name(point.name)
        )

    def matches_core(self, core: str) -> bool:
        return _like(self.core, core)

    def _matches_name(self, name: str) -> bool:
        # A pattern with a range of bits matches single bits within that range.
        if bits := re.fullmatch(r"(.*)\[(\d+):(\d+)\]", self.name):
            bit = re.fullmatch(r"(.*)\[(\d+)\](?::.->.)?", name)
            return bool(bit) and _like(bits[1], bit[1]) and int(bits[3]) <= int(bit[2]) <= int(bits[2])  # type: ignore[index]
        return _like(self.name, name) or _like(self.name, name.partition(":")[0])


def _like(pattern: str, text: str) -> bool:
    if "*" not in pattern:
        return pattern == text
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None


def explanations(path: Path) -> list[Explanation]:
    """Read explanations from lines ``core kind unit name | reason``. Skips blank lines and lines that begin with #.

    Raises `CoverageError` naming the first malformed line.
    """
    result = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        pattern, _, reason = line.partition(" | ")
        words = pattern.split()
        if len(words) < 4 or not reason.strip():
            raise CoverageError(
                f"{path}, line {number}: {line.strip()[:60]!r} is not of the form 'core kind unit name | reason'"
            )
        core, kind, unit, *name = words
        result.append(Explanation(number, core, kind, unit, " ".join(name), reason.strip()))
    return result


@dataclass
class Closure:
    """Coverage closure of one core.

    Attributes
    ----------
    covered, total : dict
        Numbers of points by kind.
    unexplained : list of Point
        Uncovered points without an explanation.
    explained : dict
        Uncovered points by `Explanation`.
    units : dict
        Numbers of covered points and of all points, by unit and kind.
    """

    covered: dict[str, int]
    total: dict[str, int]
    unexplained: list[Point]
    explained: dict[Explanation, list[Point]]
    units: dict[str, dict[str, tuple[int, int]]]

    def count_explained(self, kind: str) -> int:
        """Return the number of uncovered points of a kind that have an explanation."""
        return sum(point.kind == kind for points in self.explained.values() for point in points)


def close(
    core: str, counts: Mapping[Point, int], constant: set[tuple[str, str]], why: list[Explanation]
) -> Closure:
    """Match the uncovered points of a core with explanations.

    Parameters
    ----------
    core : str
        Name of the core.
    counts : mapping
    constant : set of (str, str)
        Unit and ``signal[bit]`` or ``signal`` of all bits that cannot change.
    why : list of Explanation
    """
    # Drop toggles of bits that cannot change.
    points = {
        point: count
        for point, count in counts.items()
        if point.kind != "toggle" or (point.unit, point.name.rpartition(":")[0]) not in constant
    }
    covered: dict[str, int] = collections.Counter(point.kind for point, count in points.items() if count)
    total: dict[str, int] = collections.Counter(point.kind for point in points)
    units: dict[str, dict[str, tuple[int, int]]] = collections.defaultdict(dict)
    for point, count in points.items():
        hits, size = units[point.unit].get(point.kind, (0, 0))
        units[point.unit][point.kind] = hits + bool(count), size + 1
    explained: dict[Explanation, list[Point]] = collections.defaultdict(list)
    unexplained = []
    for point in sorted(point for point, count in points.items() if not count):
        explanation = next((item for item in why if item.matches(core, point)), None)
        if explanation is None:
            unexplained.append(point)
        else:
            explained[explanation].append(point)
    return Closure(dict(covered), dict(total), unexplained, dict(explained), dict(units))


class HostedRtl(RtlDevice):
    """A `weft.sim.rtl.device.RtlDevice` with access to single registers and bytes, and with a movable memory.

    Parameters
    ----------
    config : Config
    memory_bytes : int
    origin : int
        Bus address at which memory begins, a multiple of 4096. Methods take addresses relative to it, and add `origin`
        to program addresses and base registers.
    **options
        Options of `RtlDevice`.
    """

    DRIVER = "rtl_host.cpp"

    def __init__(self, config: Config, memory_bytes: int, *, origin: int = 0, **options: Any) -> None:
        super().__init__(config, memory_bytes, **options)
        self.origin = origin
        self._library.weft_origin.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        self._library.weft_origin(self._handle, origin)

    def set_base(self, index: int, address: int) -> None:
        """Set base register `index` to an address relative to `origin`, which may lie outside memory."""
        super().set_base(index, (address + self.origin) % (1 << 32))

    @property
    def fault(self) -> Fault:
        """First bus error of the last program, at an address relative to `origin`."""
        fault = super().fault
        if fault.address is None:
            return fault
        return replace(fault, address=(fault.address - self.origin) % (1 << 32))

    def _begin(self, register: Reg, address: int, command: int) -> None:
        super()._begin(register, (address + self.origin) % (1 << 32), command)

    def write_bytes(
        self, address: int, value: int, strobe: int, *, protection: int = 0, lead: int = 0
    ) -> None:
        """Write some bytes of a register.

        Parameters
        ----------
        address, value : int
            Address and value of the 32-bit register.
        strobe : int
            WSTRB: bit i is set to write byte i.
        protection : int
            AWPROT, and ARPROT from now on.
        lead : int
            Cycles from the data to the address on the bus; negative if the address comes first.

        Raises
        ------
        DeviceError
            If the core does not answer.
        """
        write = self._library.weft_write_bytes
        write.argtypes = [ctypes.c_void_p, *[ctypes.c_uint32] * 4, ctypes.c_int]
        if not write(self._handle, address, value, strobe, protection, lead):
            raise DeviceError(f"the core does not answer a write of register {address:#x}")

    def peek(self, address: int) -> int:
        """Return the 32-bit register at byte `address`. Raises `DeviceError` if the core does not answer."""
        return self._read_register(address)

    def poke(self, address: int, value: int) -> None:
        """Write the register at byte `address`. Raises `DeviceError` if the core does not answer."""
        self._write_register(address, value)

    def begin(self, program: int) -> None:
        """Start the program at byte address `program` without any check. Raises like `poke`."""
        self.poke(Reg.PROGRAM, program)
        self.poke(Reg.CONTROL, START)
        self._started = True

    def spend(self) -> None:
        """Use up the bytes that memory of a limited bandwidth has saved for a burst."""
        self._library.weft_spend.argtypes = [ctypes.c_void_p]
        self._library.weft_spend(self._handle)

    def reset(self) -> None:
        """Reset the core at once. Memory keeps its contents."""
        self._library.weft_reset(self._handle)
        self._started = self._failed = False


class CoveredRtl(HostedRtl):
    """A `HostedRtl` that counts lines, branches and toggles; several times slower."""

    COVERAGE = True

    def write_coverage(self, path: Path) -> None:
        """Write the counts since the device was opened, for `weft.sim.rtl.coverage.read`."""
        self._library.weft_coverage.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self._library.weft_coverage(self._handle, str(path).encode())


Bit = tuple[str, int]
"""Name of a wire, and number of the bit."""


def is_memory(cell: Any) -> bool:
    return str(cell.type).startswith("$mem")


def is_register(cell: Any) -> bool:
    return "dff" in str(cell.type)


def bits_of(signal: Any) -> list[Bit | None]:
    """Return the bits of a signal, with None for constants."""
    return [(str(bit.wire.name), bit.offset) if bit.is_wire() else None for bit in signal.to_sigbit_vector()]


class Connections:
    """Aliases between the wires of a module."""

    def __init__(self, module: Any) -> None:
        self._sources = {
            left: right
            for target, source in module.connections_
            for left, right in zip(bits_of(target), bits_of(source), strict=True)
        }

    def source(self, bit: Bit | None) -> Bit | None:
        """Return the bit that `bit` is an alias of."""
        while bit in self._sources:
            bit = self._sources[bit]
        return bit

    def sources(self, signal: Any) -> list[Bit | None]:
        return [self.source(bit) for bit in bits_of(signal)]
