"""Site of an operator: its tensors, the target, and its part of the scratchpad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from weft.compiler.ir.graph import DeviceOp, Region
from weft.compiler.ir.views import View
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.memory import Allocation
from weft.compiler.machine.target import Target
from weft.compiler.machine.tensors import TensorRef
from weft.hdl.isa.config import Config

ResidentPositions = tuple[tuple[int, int] | None, ...]
"""Position of each operand and of the result on chip, see `resident_positions`."""


def resident_positions(op: DeviceOp, resident: Mapping[str, int]) -> ResidentPositions:
    """Return where an operator's operands and result are resident.

    Each entry is the buffer's address and the view's first row, or None for a tensor in memory. It is empty if
    nothing is resident.
    """
    if not resident:
        return ()
    views = (*op.sources, op.dst)
    return tuple(
        (resident[view.buffer.name], view.y) if view.buffer.name in resident else None for view in views
    )


@dataclass(frozen=True)
class Site:
    """Site of one operator, where it is planned and lowered.

    `sources` and `dst` are the tensors that it reads and writes. `region` is the free part of the scratchpad (None:
    all).
    """

    sources: tuple[TensorRef, ...]
    dst: TensorRef
    target: Target
    region: Region | None = None

    @classmethod
    def of(cls, op: DeviceOp, allocation: Allocation, target: Target, region: Region | None = None) -> Site:
        """Return the site of an operator whose buffers are placed by `allocation`."""

        def at(view: View) -> TensorRef:
            tensor = allocation.reference(view)
            if tensor.resident is None or not view.y:
                return tensor
            offset = view.y * view.buffer.shape[2] * ceil_div(view.shape[3], target.config.n)
            return replace(tensor, resident=tensor.resident + offset)

        return cls(tuple(map(at, op.sources)), at(op.dst), target, region)

    @property
    def config(self) -> Config:
        return self.target.config

    @property
    def room(self) -> Region:
        """Free part of the scratchpad."""
        return self.region or (0, self.config.scratchpad_size)

    def flatten(self) -> Site:
        """Return the site with all tensors as single rows of pixels, if the rows of each are adjacent; else itself."""
        if not all(item.can_flatten for item in (*self.sources, self.dst)):
            return self
        return replace(self, sources=tuple(item.flatten() for item in self.sources), dst=self.dst.flatten())
