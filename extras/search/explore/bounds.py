"""Lower bounds of cycles without compiling: the roofline of the models."""

from __future__ import annotations

from dataclasses import dataclass

from weft.compiler.ir.graph import Conv
from weft.compiler.onnx.model import COMPLETE
from weft.extras.search.explore.evaluate import Models, device_segments
from weft.extras.search.explore.point import Measured, Point, Timing


@dataclass(frozen=True)
class Roofline:
    """Roofline of models on any configuration that runs as much on the device as the largest one does.

    Attributes
    ----------
    macs : tuple of int
        Multiplications of each model.
    moved : tuple of int
        Minimum of bytes over the bus: weights once, of which two may share a byte, and inputs and outputs.
    """

    macs: tuple[int, ...]
    moved: tuple[int, ...]

    @classmethod
    def of(cls, models: Models) -> Roofline:
        macs, moved = [], []
        for graph in models.graphs(COMPLETE):
            ops = [op for segment in device_segments(graph) for op in segment.ops]
            macs.append(sum(op.macs for op in ops))
            weights = sum(op.weight.size for op in ops if isinstance(op, Conv))
            buffers = {view.buffer.name: view.buffer for op in ops for view in (*op.sources, op.dst)}
            ends = sum(buffer.size for buffer in buffers.values() if buffer.kind in ("input", "output"))
            moved.append(weights // 2 + ends)
        return cls(tuple(macs), tuple(moved))

    def bound(self, point: Point) -> Measured:
        """Return the lower bound for a point: N * N products per cycle, and the memory's peak bandwidth."""
        board, n = point.place.board, point.config.n
        memory_peak = point.place.bandwidth if board is None else board.memory.peak_bytes_per_cycle
        width = min(point.config.bus_bytes, memory_peak or point.config.bus_bytes)
        parallel_transfers = (
            2 if memory_peak is None or board is None else 1
        )  # without a board, reads and writes overlap
        cycles = [
            max(-(-macs // (n * n)), int(moved / width / parallel_transfers))
            for macs, moved in zip(self.macs, self.moved, strict=True)
        ]
        active = sum(-(-macs // (n * n)) for macs in self.macs)
        return Measured(
            point, point.resources(), Timing(cycles, sum(self.moved), sum(self.macs), active), "bound"
        )
