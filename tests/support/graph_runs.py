"""Imported models for tests: run without a device, and taken apart."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.compiler.host.segments import from_buffer, run_host, to_buffer
from weft.compiler.interpret import run_ops
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.ir.model import Graph, HostSegment


def run_graph(graph: Graph, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A whole model: device segments by micro-ops, host segments by the host's evaluator. States are as at first."""
    return run_kept(graph, values, {state.source: state.initial for state in graph.states})


def run_kept(
    graph: Graph, values: dict[str, np.ndarray], states: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The same with `states`, which become what they are in the next run."""
    values = values | states
    for segment in graph.segments:
        if isinstance(segment, HostSegment):
            values |= run_host(segment, values)
            continue
        read = {view.buffer.name for op in segment.ops for view in op.sources}
        made = {op.dst.buffer.name for op in segment.ops} | segment.states.keys()
        entering = [item for item in graph.to_device if item.buffer.name in read]
        memory = run_ops(
            segment, {item.buffer.name: to_buffer(item, values[item.value]) for item in entering}
        )
        for item in graph.from_device:
            if item.buffer.name in made:
                values[item.value] = from_buffer(item, memory[item.buffer.name])
    states.update({state.source: values[state.target] for state in graph.states})
    return {name: values[name] for name in graph.outputs}


def device_ops(graph: Graph) -> list[Any]:
    return [op for segment in graph.segments if isinstance(segment, DeviceSegment) for op in segment.ops]


def on_host(graph: Graph) -> dict[str, str]:
    """Reasons by node, without the graph's boundary."""
    return {
        name: reason
        for name, _, place, reason in graph.assignment
        if place == "host" and not reason.startswith("graph boundary")
    }
