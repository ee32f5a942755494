"""Sizes that a model may have, checked in front of all work: what is larger is refused in a sentence.

Devices have 32-bit addresses, so that no value of 2**32 bytes could lie in their memory; elements of values on the host
have up to 8 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import onnx

from weft.compiler.ir.graph import CompileError

ELEMENTS = 1 << 30
"""Of one value."""
NODES = 200_000
"""Of a model, with all local functions written out."""
WINDOW = (1 << 16) - 1
"""Kernels, strides, dilations and pads: coordinates have 16 bits."""
MEMORY = 1 << 32
"""Bytes of one device program with its constants and buffers."""
_WINDOWS = ("kernel_shape", "strides", "dilations", "pads", "output_padding")

_Function = tuple[str, str, str]


def check_values(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `CompileError` for a value of more than `ELEMENTS` elements."""
    for name, shape in shapes.items():
        if min(shape, default=1) >= 0 and math.prod(shape) > ELEMENTS:
            size = f"shape {'x'.join(map(str, shape))}, {math.prod(shape):,} elements"
            raise CompileError(f"value {name!r} has {size}; weft takes values of up to {ELEMENTS:,}")


def check_windows(graph: onnx.GraphProto) -> None:
    """Raise `CompileError` for a kernel, stride, dilation or pad above `WINDOW`."""
    for node in nodes_of(graph):
        for attribute in node.attribute:
            if attribute.name in _WINDOWS and max(attribute.ints, default=0) > WINDOW:
                raise CompileError(
                    f"node {node.name!r} ({node.op_type}) has {attribute.name} {list(attribute.ints)}; "
                    f"weft takes numbers of up to {WINDOW:,} there"
                )


def check_functions(model: onnx.ModelProto) -> None:
    """Raise `CompileError` if local functions call each other in a circle, or make more than `NODES` nodes."""
    bodies = {_key(function): function for function in model.functions}
    sizes: dict[_Function, int] = {}
    calls: list[_Function] = []

    def written_out(nodes: Iterable[onnx.NodeProto]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            total += size(key) if key in bodies else 1
            total += sum(written_out(graph.node) for graph in _graphs(node))
        return total

    def size(key: _Function) -> int:
        if key in calls:
            raise CompileError(f"the model's function {key[1]!r} calls itself; ONNX does not allow that")
        if key not in sizes:
            if len(calls) >= _DEPTH:
                raise CompileError(f"the model's functions call each other more than {_DEPTH} deep")
            calls.append(key)
            sizes[key] = written_out(bodies[key].node)
            calls.pop()
        return sizes[key]

    total = written_out(model.graph.node)
    if total > NODES:
        raise CompileError(
            f"the model has {total:,} nodes with its functions written out; weft takes up to {NODES:,}"
        )


def check_memory(name: str, total: int) -> None:
    """Raise `CompileError` for a device program of more bytes in `total` than addresses of 32 bits reach."""
    if total > MEMORY:
        raise CompileError(
            f"{name} needs {total:,} bytes of the device's memory for constants, instructions and buffers; "
            f"addresses reach {MEMORY:,}: split the model, or take fewer images at once"
        )


_DEPTH = 100
"""Of calls of functions; each is several of Python's."""


def nodes_of(graph: onnx.GraphProto) -> Iterable[onnx.NodeProto]:
    """The nodes of a graph and of the graphs inside them."""
    for node in graph.node:
        yield node
        for inner in _graphs(node):
            yield from nodes_of(inner)


def _graphs(node: onnx.NodeProto) -> Iterable[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _key(function: onnx.FunctionProto) -> _Function:
    return function.domain, function.name, function.overload
