"""The loop nest of a unit, derived from the operands that its instruction declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from weft.hdl.isa import Bound, Count, Instruction, Operand, places
from weft.hdl.isa.config import Config


@dataclass(frozen=True)
class Walk:
    """Loops around some operands of an instruction, in the order in which a unit goes through them.

    Parameters
    ----------
    kind : type of Instruction
    loops : tuple of str
        Outermost first. Loops that an operand does not have do not move its address.
    operands : tuple of str
        Each has an address that the nest keeps; behind it come the coordinates of its bounds.
    own : mapping of str to Count
        Loops that only the unit has, and their iterations.
    """

    kind: type[Instruction]
    loops: tuple[str, ...]
    operands: tuple[str, ...]
    own: Mapping[str, Count] = field(default_factory=dict)

    def count(self, loop: str) -> str | Count:
        """Iterations of a loop: a field, or what is computed."""
        if loop in self.own:
            return self.own[loop]
        return next(item.count for operand in self._all() for item in operand.loops if item.name == loop)

    def values(self) -> Iterator[tuple[str, Operand | Bound]]:
        """The addresses and coordinates that the nest keeps, by the field with their first value."""
        for name in self.operands:
            operand = next(self._named(name))
            yield name, operand
            for bound in operand.bounds:
                yield bound.name, bound

    def counters(self, config: Config) -> dict[str, int]:
        """The loops with the width of each one's count, for `weft.hdl.lib.loopnest.LoopNest`."""
        return {loop: self._count_width(self.count(loop), config) for loop in self.loops}

    def trackers(self, config: Config) -> dict[str, tuple[int, dict[str, int]]]:
        """The addresses and coordinates with their widths, and the width of the stride for each loop that moves one."""
        return {name: self._tracker(name, value, config) for name, value in self.values()}

    def _tracker(self, name: str, value: Operand | Bound, config: Config) -> tuple[int, dict[str, int]]:
        moved = {loop: stride for loop in self.loops if (stride := value.stride(loop)) != 0}
        if isinstance(value, Bound):
            fields = places(self.kind.OPCODE)
            return fields[name].width, {loop: fields[str(stride)].width for loop, stride in moved.items()}
        width = max(operand.memory.width(config) for operand in self._named(name))
        return width, dict.fromkeys(moved, width)

    def _count_width(self, count: str | Count, config: Config) -> int:
        if isinstance(count, str):
            return places(self.kind.OPCODE)[count].width
        return count.of(None, config).bit_length()

    def _all(self) -> Iterator[Operand]:
        for name in self.operands:
            yield from self._named(name)

    def _named(self, name: str) -> Iterator[Operand]:
        return (operand for operand in self.kind.OPERANDS if operand.name == name)
