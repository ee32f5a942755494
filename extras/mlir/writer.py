"""A graph as text of TOSA: its function computes the bytes that the device does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.compiler.ir.graph import CompileError, DeviceSegment
from weft.compiler.ir.model import Graph, HostSegment, Transfer
from weft.compiler.ir.network import Node
from weft.extras.mlir.program import import_with_xdsl


@dataclass(frozen=True)
class End:
    """An argument or a result: the value of the model that it is, and the input or output that has its real numbers, if
    that is another, by the parameters of the node between them."""

    value: str
    name: str
    notes: Mapping[str, Any]


def write_tosa(graph: Graph) -> str:
    """A graph as a module of TOSA, whose function ``main`` takes and gives integers of 8 bits.

    Where the model has real numbers at its ends, their quantisation is in attributes of arguments and results
    (``weft.scale``, ``weft.zero_point``), and reading the text gives a model with the same ends.

    Raises
    ------
    CompileError
        If something but the quantisation of inputs and outputs runs on the host, an operator is none that TOSA has
        with the device's bytes, or xDSL is not installed.
    """
    if graph.states:
        raise CompileError("the model keeps values from run to run, which TOSA does not")
    arguments, results, constants = _ends(graph)
    return import_with_xdsl("graph_text").GraphText(graph, arguments, results, constants).text()


def _ends(graph: Graph) -> tuple[list[End], list[End], dict[str, np.ndarray]]:
    """Arguments and results, and the constants that the host writes into buffers."""
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
                raise _hosted(node, segment)
    quantised = {end.name for end in arguments.values()}
    taken = [End(name, name, {}) for name in graph.inputs if name not in quantised]
    given = [results.get(name, End(name, name, {})) for name in graph.outputs]
    return [*arguments.values(), *taken], given, constants


def _end(node: Node, name: str, value: str, graph: Graph, segment: HostSegment) -> End:
    """An end that a node of the host quantises."""
    found = [segment.network.constants.get(item) for item in node.inputs[1:]]
    scale, zero = (*found, np.zeros(1, np.int8))[:2]
    dtype = (graph.inputs | graph.outputs)[name][0]
    if (
        scale is None
        or zero is None
        or scale.size != 1
        or zero.dtype not in (np.int8, np.uint8)
        or dtype != "float32"
    ):
        raise _hosted(node, segment)
    stored = int(zero.reshape(-1)[0]) - (128 if zero.dtype == np.uint8 else 0)
    notes = {"weft.scale": float(np.float32(scale.reshape(-1)[0])), "weft.zero_point": stored}
    return End(value, name, notes)


def _hosted(node: Node, segment: HostSegment) -> CompileError:
    reason = next((why for name, _, why in segment.nodes if name == node.name), "")
    told = f": {reason}" if reason else ""
    return CompileError(
        f"{node.label} runs on the host{told}; only what the device runs is printed as TOSA, and the quantisation of "
        "inputs and outputs by one scale"
    )


def check_transfer(transfer: Transfer) -> None:
    """Raise `CompileError` for a value that is no tensor of 8 bits."""
    if transfer.wide or transfer.index or transfer.rows is not None:
        kind = "of 16 bits" if transfer.wide else "of indices"
        raise CompileError(f"value {transfer.value!r} is {kind}, so it cannot be printed as TOSA")


def check_segment(segment: DeviceSegment) -> None:
    """Raise `CompileError` for a segment that passes have changed."""
    if segment.rows or segment.resident or segment.states:
        raise CompileError(
            f"segment {segment.name!r} is planned already; print the graph that the front end makes"
        )
