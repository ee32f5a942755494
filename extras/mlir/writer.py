"""Write a graph as TOSA text that computes the same bytes as the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.ir.model import Graph, HostSegment, Transfer
from weft.compiler.ir.network import Node
from weft.extras.mlir.program import import_with_xdsl


@dataclass(frozen=True)
class End:
    """An argument or a result of the function.

    `value` is its value in the model, `name` the input or output, which has real numbers if `notes` hold a
    quantisation.
    """

    value: str
    name: str
    notes: Mapping[str, Any]


def write_tosa(graph: Graph) -> str:
    """Return a graph as a TOSA module whose function ``main`` takes and returns 8-bit integers.

    The quantisation of float inputs and outputs is in attributes of arguments and results (``weft.scale``,
    ``weft.zero_point``); reading the text restores it.

    Raises
    ------
    CompileError
        If anything but the quantisation of inputs and outputs runs on the host, if TOSA cannot compute an operator's
        bytes, or if xDSL is not installed.
    """
    if graph.states:
        raise CompileError("the model keeps state between runs, which TOSA does not support")
    arguments, results, constants = _ends(graph)
    return import_with_xdsl("graph_text").GraphText(graph, arguments, results, constants).text()


def _ends(graph: Graph) -> tuple[list[End], list[End], dict[str, np.ndarray]]:
    """Return arguments, results, and the constants that the host writes into buffers."""
    arguments: dict[str, End] = {}
    results: dict[str, End] = {}
    constants: dict[str, np.ndarray] = {}
    for segment in graph.segments:
        if not isinstance(segment, HostSegment):
            continue
        network = segment.network
        constants |= {name: network.constants[name] for name in segment.outputs if name in network.constants}
        for node in network.nodes:
            if node.operator == "QuantizeLinear" and node.inputs[0] in graph.inputs:
                if any(end.name == node.inputs[0] for end in arguments.values()):
                    raise CompileError(
                        f"input {node.inputs[0]!r} is quantised twice, so it cannot be printed as TOSA"
                    )
                arguments[node.outputs[0]] = _end(node, node.inputs[0], node.outputs[0], graph, segment)
            elif node.operator == "DequantizeLinear" and node.outputs[0] in graph.outputs:
                results[node.outputs[0]] = _end(node, node.outputs[0], node.inputs[0], graph, segment)
            else:
                raise _host_error(node, segment)
    quantised = {end.name for end in arguments.values()}
    taken = [End(name, name, {}) for name in graph.inputs if name not in quantised]
    outputs = [results.get(name, End(name, name, {})) for name in graph.outputs]
    return [*arguments.values(), *taken], outputs, constants


def _end(node: Node, name: str, value: str, graph: Graph, segment: HostSegment) -> End:
    """Return the end that a host node quantises."""
    constants = [segment.network.constants.get(item) for item in node.inputs[1:]]
    scale, zero = (*constants, np.zeros(1, np.int8))[:2]
    dtype = (graph.inputs | graph.outputs)[name][0]
    if (
        scale is None
        or zero is None
        or scale.size != 1
        or zero.dtype not in (np.int8, np.uint8)
        or dtype != "float32"
    ):
        raise _host_error(node, segment)
    # The device stores uint8 as int8, less 128.
    stored = int(zero.reshape(-1)[0]) - (128 if zero.dtype == np.uint8 else 0)
    notes = {"weft.scale": float(np.float32(scale.reshape(-1)[0])), "weft.zero_point": stored}
    return End(value, name, notes)


def _host_error(node: Node, segment: HostSegment) -> CompileError:
    reason = next((why for name, _, why in segment.nodes if name == node.name), "")
    explanation = f": {reason}" if reason else ""
    return CompileError(
        f"{node.label} runs on the host{explanation}; only nodes that the device runs can be printed as TOSA, and the "
        "quantisation of inputs and outputs by one scale"
    )


def check_transfer(transfer: Transfer) -> None:
    """Raise `CompileError` if a transferred value is not an 8-bit tensor."""
    if transfer.wide or transfer.index or transfer.rows is not None:
        kind = "of 16 bits" if transfer.wide else "of indices"
        raise CompileError(f"value {transfer.value!r} is {kind}, so it cannot be printed as TOSA")


def check_segment(segment: DeviceSegment) -> None:
    """Raise `CompileError` if passes have changed a segment."""
    if segment.rows or segment.resident or segment.states:
        raise CompileError(
            f"segment {segment.name!r} is planned already; print the graph that the front end makes"
        )
