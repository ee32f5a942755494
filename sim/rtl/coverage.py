"""What of a core's Verilog was covered: reads and merges Verilator's counts, and checks explanations of the rest.

A `Point` is a line that was carried out, a side of a branch that was taken, or a bit that changed in one direction.
Counts of several configurations are merged: a point is covered if any of them covers it. No points are bits that Yosys
finds to be constant, as nothing can change them; words of memories, of which the ports are covered; and results within
an expression.
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
_UNNAMED = re.compile(r"\$(?!signal)|port\$")
"""What has no name in the sources: results within an expression."""
_MEMORY = re.compile(r"\[\d+\]\[\d+\]:")
"""A bit of a word of a memory, whose ports are covered in its place."""


class CoverageError(WeftError, ValueError):
    """A file that is not what it should be."""


class Point(NamedTuple):
    """Something to cover.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    unit : str
        Path of the unit in the core, ``core`` for the core itself.
    name : str
        Of a toggle ``signal[bit]:0->1``; of a line or a side of a branch what is assigned there, and how many such
        there are ahead of it in the unit.
    """

    kind: str
    unit: str
    name: str


Counts = dict[Point, int]


def read(path: Path, verilog: str) -> Counts:
    """How often each point was covered, from the file that Verilator wrote of a model of `verilog`.

    Raises `CoverageError` if it is no such file.
    """
    lines = path.read_text(errors="replace").splitlines()
    if not lines or not lines[0].startswith("# SystemC::Coverage"):
        raise CoverageError(f"{path} is no file of Verilator's coverage: its first line is not its mark")
    source = verilog.splitlines()
    toggles: Counts = collections.defaultdict(int)
    others: list[tuple[str, str, int, int, str, int]] = []
    for line in lines[1:]:
        text, _, count = line.rpartition("' ")
        fields = dict(part.split("\x02", 1) for part in text.split("\x01")[1:])
        if not fields or not count.isdigit():
            raise CoverageError(f"{path}: {line[:60]!r} is no count of coverage")
        unit = _decoded(fields["h"]).removeprefix(_TOP).lstrip(".") or "core"
        if fields["t"] == "toggle":
            name = _decoded(fields["o"])
            if not _UNNAMED.match(name) and not _MEMORY.search(name):
                toggles[Point("toggle", unit, name)] += int(count)
        else:
            others.append((fields["t"], unit, int(fields["l"]), int(fields["n"]), fields["o"], int(count)))
    return {**toggles, **_named(others, source)}


def _decoded(name: str) -> str:
    """A name as it is in the Verilog."""
    return re.sub("__0([0-9A-Fa-f]{2})", lambda match: chr(int(match[1], 16)), name)


def _named(found: list[tuple[str, str, int, int, str, int]], source: list[str]) -> Counts:
    """Lines and branches by what they assign, as their numbers differ between configurations."""
    counts: Counts = collections.defaultdict(int)
    numbers: dict[tuple[str, str, str], int] = collections.Counter()
    for kind, unit, line, _column, side, count in sorted(found):
        target = _target(source, line)
        base = f"{target} {side}"
        numbers[kind, unit, base] += 1
        counts[Point(kind, unit, f"{base} {numbers[kind, unit, base]}")] += count
    return counts


def _target(source: list[str], line: int) -> str:
    """What is assigned in a line of Verilog, or in the next one that assigns."""
    for text in source[line - 1 : line + 3]:
        if match := re.search(r"(?:assign |\) |^\s+|else )(\S+)(?: \[[^\]]*\])? <?= ", text):
            return match[1].lstrip("\\")
    return "?"


def merge(parts: Iterable[Mapping[Point, int]]) -> Counts:
    """The sum of counts."""
    total: Counts = collections.defaultdict(int)
    for part in parts:
        for point, count in part.items():
            total[point] += count
    return total


@dataclass(frozen=True)
class Explanation:
    """Why some points are not covered.

    Attributes
    ----------
    line : int
        In the file.
    core, kind, unit, name : str
        Patterns, in which ``*`` is any text. A name may end in bits: ``address[31:18]``.
    reason : str
    """

    line: int
    core: str
    kind: str
    unit: str
    name: str
    reason: str

    def fits(self, core: str, point: Point) -> bool:
        """Whether it is about this point."""
        return (
            _like(self.core, core)
            and _like(self.kind, point.kind)
            and _like(self.unit, point.unit)
            and self._named(point.name)
        )

    def may_be_of(self, core: str) -> bool:
        """Whether it may be about a core of this name."""
        return _like(self.core, core)

    def _named(self, name: str) -> bool:
        if bits := re.fullmatch(r"(.*)\[(\d+):(\d+)\]", self.name):
            own = re.fullmatch(r"(.*)\[(\d+)\](?::.->.)?", name)
            return bool(own) and _like(bits[1], own[1]) and int(bits[3]) <= int(own[2]) <= int(bits[2])  # type: ignore[index]
        return _like(self.name, name) or _like(self.name, name.partition(":")[0])


def _like(pattern: str, text: str) -> bool:
    if "*" not in pattern:
        return pattern == text
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None


def explanations(path: Path) -> list[Explanation]:
    """Those of a file with lines ``core kind unit name: reason``; blank lines and such that begin with # say nothing.

    Raises `CoverageError` naming the line that is not of that form.
    """
    found = []
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
        found.append(Explanation(number, core, kind, unit, " ".join(name), reason.strip()))
    return found


@dataclass
class Closure:
    """Coverage of one core, against explanations.

    Attributes
    ----------
    covered, total : dict
        Points by kind.
    unexplained : list of Point
        Not covered, and nothing says why.
    explained : dict
        By `Explanation` the points that it is about which are not covered.
    units : dict
        By unit and kind the points covered and all.
    """

    covered: dict[str, int]
    total: dict[str, int]
    unexplained: list[Point]
    explained: dict[Explanation, list[Point]]
    units: dict[str, dict[str, tuple[int, int]]]

    def explained_of(self, kind: str) -> int:
        """Points of a kind that are not covered, and explained."""
        return sum(point.kind == kind for points in self.explained.values() for point in points)


def close(
    core: str, counts: Mapping[Point, int], constant: set[tuple[str, str]], why: list[Explanation]
) -> Closure:
    """Compare counts of one `core` with explanations.

    Parameters
    ----------
    core : str
        Its name.
    counts : mapping
    constant : set of (str, str)
        Unit and signal of bits, ``signal[bit]`` or ``signal``, that cannot change.
    why : list of Explanation
    """
    points = {
        point: count
        for point, count in counts.items()
        if point.kind != "toggle" or (point.unit, point.name.rpartition(":")[0]) not in constant
    }
    covered: dict[str, int] = collections.Counter(point.kind for point, count in points.items() if count)
    total: dict[str, int] = collections.Counter(point.kind for point in points)
    units: dict[str, dict[str, tuple[int, int]]] = collections.defaultdict(dict)
    for point, count in points.items():
        done, every = units[point.unit].get(point.kind, (0, 0))
        units[point.unit][point.kind] = done + bool(count), every + 1
    explained: dict[Explanation, list[Point]] = collections.defaultdict(list)
    unexplained = []
    for point in sorted(point for point, count in points.items() if not count):
        fitting = next((item for item in why if item.fits(core, point)), None)
        if fitting is None:
            unexplained.append(point)
        else:
            explained[fitting].append(point)
    return Closure(dict(covered), dict(total), unexplained, dict(explained), dict(units))


class HostedRtl(RtlDevice):
    """A `weft.sim.rtl.device.RtlDevice` with `write_bytes`, whose memory may be anywhere.

    Parameters
    ----------
    config : Config
    memory_bytes : int
    origin : int
        Address of the core's bus at which memory begins, a multiple of 4096. Addresses of this class are those within
        memory, as they are everywhere else: programs, and base registers that the host sets, are moved by `origin`.
    **options
        Those of `RtlDevice`.
    """

    DRIVER = "rtl_host.cpp"

    def __init__(self, config: Config, memory_bytes: int, *, origin: int = 0, **options: Any) -> None:
        super().__init__(config, memory_bytes, **options)
        self.origin = origin
        self._library.weft_origin.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        self._library.weft_origin(self._handle, origin)

    def set_base(self, index: int, address: int) -> None:
        """Set base register `index` to an address within memory, or beyond it."""
        super().set_base(index, (address + self.origin) % (1 << 32))

    @property
    def fault(self) -> Fault:
        """The first error on the bus of the last program, at an address within memory."""
        told = super().fault
        return (
            told if told.address is None else replace(told, address=(told.address - self.origin) % (1 << 32))
        )

    def _begin(self, register: Reg, address: int, command: int) -> None:
        super()._begin(register, (address + self.origin) % (1 << 32), command)

    def write_bytes(
        self, address: int, value: int, strobe: int, *, protection: int = 0, lead: int = 0
    ) -> None:
        """Write some bytes of a register.

        Parameters
        ----------
        address, value : int
            Of a word of 32 bits.
        strobe : int
            Bit i is set if byte i is written.
        protection : int
            AWPROT, and ARPROT from now on.
        lead : int
            Cycles by which data are ahead of the address, negative if they are behind it.

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
        """The register at byte `address`, a word of 32 bits. Raises `DeviceError` if the core does not answer."""
        return self._read_register(address)

    def poke(self, address: int, value: int) -> None:
        """Write the register at byte `address`. Raises `DeviceError` if the core does not answer."""
        self._write_register(address, value)

    def begin(self, program: int) -> None:
        """Start the program at byte address `program`, wherever that is. Raises as `poke` does."""
        self.poke(Reg.PROGRAM, program)
        self.poke(Reg.CONTROL, START)
        self._started = True

    def spend(self) -> None:
        """Spend what memory of a limited bandwidth has saved up."""
        self._library.weft_spend.argtypes = [ctypes.c_void_p]
        self._library.weft_spend(self._handle)

    def reset(self) -> None:
        """Reset the core, in whatever it is doing. Memory stays."""
        self._library.weft_reset(self._handle)
        self._started = self._failed = False


class CoveredRtl(HostedRtl):
    """A `HostedRtl` that counts lines, branches and toggles, several times as slow as others."""

    COVERAGE = True

    def write_coverage(self, path: Path) -> None:
        """Write what was covered since the device was made, for `weft.sim.rtl.coverage.read`."""
        self._library.weft_coverage.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self._library.weft_coverage(self._handle, str(path).encode())


Bit = tuple[str, int]
"""The name of a wire, and which of its bits."""


def is_memory(cell: Any) -> bool:
    return str(cell.type).startswith("$mem")


def is_register(cell: Any) -> bool:
    return "dff" in str(cell.type)


def bits_of(signal: Any) -> list[Bit | None]:
    """The bits of a signal; None for constants."""
    return [(str(bit.wire.name), bit.offset) if bit.is_wire() else None for bit in signal.to_sigbit_vector()]


class Connections:
    """The wires of a module that are only other names of others."""

    def __init__(self, module: Any) -> None:
        self._behind = {
            left: right
            for one, other in module.connections_
            for left, right in zip(bits_of(one), bits_of(other), strict=True)
        }

    def source(self, bit: Bit | None) -> Bit | None:
        """The bit that another one is a name of."""
        while bit in self._behind:
            bit = self._behind[bit]
        return bit

    def sources(self, signal: Any) -> list[Bit | None]:
        return [self.source(bit) for bit in bits_of(signal)]
