"""Imported models for tests: run without a device, and taken apart."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.ir.model import Graph
from weft.compiler.verify import run_model


def run_graph(graph: Graph, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a whole model from fresh states: device segments by micro-ops, host segments by the host's evaluator."""
    return run_with_states(graph, values, {state.source: state.initial for state in graph.states})


def run_with_states(
    graph: Graph, values: dict[str, np.ndarray], states: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Run a whole model from `states`, and update them for the next run."""
    found = run_model(graph, values | states)
    states.update({state.source: found[state.target] for state in graph.states})
    return {name: found[name] for name in graph.outputs}


def device_ops(graph: Graph) -> list[Any]:
    return [op for segment in graph.segments if isinstance(segment, DeviceSegment) for op in segment.ops]


def on_host(graph: Graph) -> dict[str, str]:
    """Return the reasons for host nodes, without the graph's boundary."""
    return {
        name: reason
        for name, _, place, reason in graph.assignment
        if place == "host" and not reason.startswith("graph boundary")
    }
