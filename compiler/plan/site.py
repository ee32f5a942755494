"""What an operator finds where it runs: its tensors, the configuration, and its part of the scratchpad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from weft.compiler.ir.graph import DeviceOp, Region, View
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.memory import Allocation, TensorRef
from weft.compiler.machine.target import Target
from weft.hdl.isa.config import Config

Held = tuple[tuple[int, int] | None, ...]


def held(op: DeviceOp, resident: Mapping[str, int]) -> Held:
    """Where operands and the result of an operator are that stay on chip: the address of the buffer, and the view's
    first row; None for those in memory. Empty if nothing stays."""
    if not resident:
        return ()
    views = (*op.sources, op.dst)
    return tuple(
        (resident[view.buffer.name], view.y) if view.buffer.name in resident else None for view in views
    )


@dataclass(frozen=True)
class Site:
    """Where one operator is planned and lowered: `sources` and `dst` are the tensors that it reads and writes, `target`
    is what the program is for, and `region` the part of the scratchpad that is free for it (all if None).
    """

    sources: tuple[TensorRef, ...]
    dst: TensorRef
    target: Target
    region: Region | None = None

    @classmethod
    def of(cls, op: DeviceOp, allocation: Allocation, target: Target, region: Region | None = None) -> Site:
        """The site of an operator whose buffers lie as `allocation` has them."""

        def at(view: View) -> TensorRef:
            """Rows of what is on chip lie as far from its start as their vectors tell."""
            found = allocation.reference(view)
            if found.resident is None or not view.y:
                return found
            ahead = view.y * view.buffer.shape[2] * ceil_div(view.shape[3], target.config.n)
            return replace(found, resident=found.resident + ahead)

        return cls(tuple(map(at, op.sources)), at(op.dst), target, region)

    @property
    def config(self) -> Config:
        return self.target.config

    @property
    def room(self) -> Region:
        """The part of the scratchpad that is free."""
        return self.region or (0, self.config.scratchpad_size)

    def flattened(self) -> Site:
        """The same with all tensors as single rows of pixels, if the rows of each of them join; else as it is."""
        if not all(item.flattens for item in (*self.sources, self.dst)):
            return self
        return replace(
            self, sources=tuple(item.flattened() for item in self.sources), dst=self.dst.flattened()
        )
