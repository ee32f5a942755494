"""Write the segments of a graph as TOSA: buffers and views become values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.ir.model import Graph, Transfer
from weft.compiler.ir.views import View
from weft.extras.mlir.device_text import convert_signedness, refuse, write_operator
from weft.extras.mlir.printing import Body, Ssa, module_text
from weft.extras.mlir.writer import End, check_segment, check_transfer


class Piece(NamedTuple):
    """Part of a buffer that an operator has written."""

    view: View
    value: Ssa


class GraphText:
    """Writer of the function of a graph."""

    def __init__(
        self,
        graph: Graph,
        arguments: Sequence[End],
        results: Sequence[End],
        constants: Mapping[str, np.ndarray],
    ) -> None:
        self.graph, self.arguments, self.results = graph, arguments, results
        types = []
        for end in arguments:
            dtype, shape = graph.inputs[end.name]
            dtype = "int8" if end.notes else dtype
            if dtype not in ("int8", "uint8"):
                raise CompileError(
                    f"input {end.name!r} is of {dtype}; TOSA text takes 8 bits, or floats that are quantised"
                )
            types.append((dtype, shape))
        self.body = Body(types)
        self.values = {end.value: value for end, value in zip(arguments, self.body.arguments, strict=True)}
        self.constants = constants
        self.buffers: dict[str, list[Piece]] = {}

    def text(self) -> str:
        """Return the module's text."""
        for segment in self.graph.segments:
            if isinstance(segment, DeviceSegment):
                check_segment(segment)
                self._segment(segment)
        results = [self._result(end) for end in self.results]
        notes = [
            [{"weft.name": end.name, **end.notes} for end in ends] for ends in (self.arguments, self.results)
        ]
        return module_text(self.body, results, *notes)

    def _segment(self, segment: DeviceSegment) -> None:
        # Buffers that no operator writes come from the host, and become arguments or constants.
        names = {view.buffer.name for op in segment.ops for view in op.sources}
        written = {op.dst.buffer.name for op in segment.ops}
        for transfer in self.graph.to_device:
            if transfer.buffer.name in names and transfer.buffer.name not in written:
                check_transfer(transfer)
                self.buffers[transfer.buffer.name] = [Piece(_all(transfer), self._load_input(transfer))]
        for op in segment.ops:
            sources = tuple(self._read(op, view) for view in op.sources)
            value = write_operator(self.body, op, sources)
            if value.shape != op.dst.shape:
                raise refuse(op, f"makes {value.shape} for {op.dst.shape}")
            self.buffers.setdefault(op.dst.buffer.name, []).append(Piece(op.dst, value))
        for transfer in self.graph.from_device:
            if transfer.buffer.name in written:
                check_transfer(transfer)
                self.values[transfer.value] = self._store_output(transfer)

    # Values and buffers

    def _load_input(self, transfer: Transfer) -> Ssa:
        """Return the contents of a buffer that the host writes."""
        value = self.values.get(transfer.value)
        if value is None and transfer.value in self.constants:
            stored = self.constants[transfer.value]
            # The device stores uint8 as int8, less 128.
            stored = (stored.astype(np.int16) - 128 * transfer.unsigned).astype(np.int8)
            value = self.body.constant(stored)
        if value is None:
            raise CompileError(
                f"value {transfer.value!r} comes from the host, so it cannot be printed as TOSA"
            )
        if value.dtype == "uint8":
            value = convert_signedness(self.body, value, "int8")
        value = self.body.reshape(value, transfer.shape)
        if transfer.perm is not None:
            value = self.body.transpose(value, transfer.perm)
        return self.body.reshape(value, transfer.nhwc)

    def _store_output(self, transfer: Transfer) -> Ssa:
        """Return a buffer's contents as a value of the model, in the device's stored form."""
        value = self._contents(transfer.buffer.name, transfer.nhwc)
        perm = transfer.perm or tuple(range(len(transfer.shape)))
        value = self.body.reshape(value, [transfer.shape[axis] for axis in perm])
        value = self.body.transpose(value, np.argsort(perm).tolist())
        return self.body.reshape(value, transfer.model_shape or transfer.shape)

    def _result(self, end: End) -> Ssa:
        value = self.values.get(end.value)
        if value is None:
            raise CompileError(f"output {end.name!r} comes from the host, so it cannot be printed as TOSA")
        dtype, shape = self.graph.outputs[end.name]
        if value.shape != tuple(shape):
            value = self.body.reshape(value, shape)
        if end.notes or dtype == value.dtype:
            return value
        if dtype not in ("int8", "uint8"):
            raise CompileError(
                f"output {end.name!r} is of {dtype}; TOSA text gives 8 bits, or floats that are dequantised"
            )
        return convert_signedness(self.body, value, dtype)

    def _read(self, op: object, view: View) -> Ssa:
        """Return the part of a buffer that a view covers."""
        n, h, w, c = view.shape
        if view.image or 0 in view.step:
            raise refuse(op, "reads planes of 16 bits, or repeats one row or column")
        contents = self._contents(view.buffer.name, view.buffer.shape)
        rows, columns = ((count - 1) * step + 1 for count, step in zip((h, w), view.step, strict=True))
        box = self.body.slice(contents, (0, view.y, view.x, view.c), (n, rows, columns, c))
        if view.step == (1, 1):
            return box
        # TOSA's slice has no strides; a pool with 1 x 1 windows does.
        return self.body.op(
            "tosa.max_pool2d", (box,), "int8", view.shape, kernel=[1, 1], stride=list(view.step), pad=[0] * 4
        )

    def _contents(self, name: str, shape: Sequence[int]) -> Ssa:
        """Return the contents of a buffer in a shape."""
        pieces = self.buffers.get(name, [])
        if not pieces:
            raise CompileError(
                f"buffer {name!r} is read before it is written, so it cannot be printed as TOSA"
            )
        if len(pieces) > 1 or not pieces[0].view.contiguous:
            value = self._join(name, pieces)
            self.buffers[name] = pieces = [Piece(_full_view(pieces[0].view), value)]
        value = pieces[0].value
        if math.prod(value.shape) != math.prod(shape):
            raise CompileError(
                f"buffer {name!r} is seen in shapes of other sizes, so it cannot be printed as TOSA"
            )
        return self.body.reshape(value, shape)

    def _join(self, name: str, pieces: Sequence[Piece]) -> Ssa:
        """Concatenate all pieces of a buffer."""
        shape = pieces[0].view.buffer.shape
        if any(
            piece.view.buffer.shape != shape or piece.view.step != (1, 1) or piece.view.image
            for piece in pieces
        ):
            raise CompileError(
                f"buffer {name!r} is written in pieces of several shapes, so it cannot be printed as TOSA"
            )
        return self._box(name, list(pieces), (0, 0, 0), shape[1:])

    def _box(self, name: str, pieces: list[Piece], start: tuple[int, ...], size: tuple[int, ...]) -> Ssa:
        """Return the contents of a box: one piece, or boxes that are concatenated along an axis."""
        if len(pieces) == 1 and (_start(pieces[0]), pieces[0].view.shape[1:]) == (start, size):
            return pieces[0].value
        for axis in (2, 0, 1):  # channels first: most pieces come from Concat along channels
            groups: list[list[Piece]] = []
            end = start[axis]
            for piece in sorted(pieces, key=lambda item: _start(item)[axis]):
                if _start(piece)[axis] >= end:
                    groups.append([])
                groups[-1].append(piece)
                end = max(end, _start(piece)[axis] + piece.view.shape[1 + axis])
            if len(groups) > 1:
                return self._concatenate(name, groups, axis, start, size)
        raise CompileError(
            f"buffer {name!r} is not filled by pieces beside each other, so it cannot be printed as TOSA"
        )

    def _concatenate(
        self, name: str, groups: list[list[Piece]], axis: int, start: tuple[int, ...], size: tuple[int, ...]
    ) -> Ssa:
        firsts = [min(_start(piece)[axis] for piece in group) for group in groups]
        ends = [*firsts[1:], start[axis] + size[axis]]
        parts = []
        for group, first, end in zip(groups, firsts, ends, strict=True):
            inner_start, inner_size = list(start), list(size)
            inner_start[axis], inner_size[axis] = first, end - first
            parts.append(self._box(name, group, tuple(inner_start), tuple(inner_size)))
        if firsts[0] != start[axis]:
            raise CompileError(f"buffer {name!r} is not filled, so it cannot be printed as TOSA")
        return self.body.concat(parts, 1 + axis)


def _start(piece: Piece) -> tuple[int, int, int]:
    return piece.view.y, piece.view.x, piece.view.c


def _all(transfer: Transfer) -> View:
    return View(transfer.buffer, transfer.nhwc)


def _full_view(view: View) -> View:
    return View(view.buffer, view.buffer.shape)
