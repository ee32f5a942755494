"""Comparison of a compiled program with its model, except for the device's programs, which proofs compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weft.compiler.artefact import Compiled
from weft.compiler.ir.model import Graph, HostSegment
from weft.compiler.ir.network import State, encode
from weft.hdl.schema import short_repr


def differences(compiled: Compiled, graph: Graph) -> list[str]:
    """Compare a program's inputs, outputs, states, transfers and host parts with those of a model.

    Parameters
    ----------
    compiled : Compiled
        The program.
    graph : Graph
        The model, imported by the front end for the program's configuration.

    Returns
    -------
    list of str
        A clause for each difference.
    """
    return [
        *_compare_signatures("input", compiled.inputs, graph.inputs),
        *_compare_signatures("output", compiled.outputs, graph.outputs),
        *_compare_lists("state", map(_state_key, compiled.states), map(_state_key, graph.states)),
        *_compare_lists("value to the device", compiled.to_device, graph.to_device),
        *_compare_lists("value from the device", compiled.from_device, graph.from_device),
        *_compare_segments(compiled.segments, graph.segments),
    ]


def _compare_signatures(kind: str, actual: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    return [
        f"{kind} {short_repr(name)} is {_type(actual.get(name))}, the model's {_type(expected.get(name))}"
        for name in dict.fromkeys((*actual, *expected))
        if actual.get(name) != expected.get(name)
    ]


def _type(tensor: tuple[str, tuple[int, ...]] | None) -> str:
    return "missing" if tensor is None else f"{tensor[0]} {'x'.join(map(str, tensor[1]))}".rstrip()


def _state_key(state: State) -> tuple[object, ...]:
    initial = state.initial
    content = initial.tolist() if initial.dtype.hasobject else initial.tobytes()
    return state.source, state.target, initial.dtype.name, initial.shape, content


def _compare_lists(kind: str, actual: Iterable[object], expected: Iterable[object]) -> list[str]:
    # In order, because the order in which values are written may matter.
    own, others = list(actual), list(expected)
    if len(own) != len(others):
        return [f"it has {len(own)} of {kind}, and the model {len(others)}"]
    return [
        f"{kind} {index} is not the model's"
        for index, (item, other) in enumerate(zip(own, others, strict=True))
        if item != other
    ]


def _compare_segments(actual: Sequence[Any], expected: Sequence[Any]) -> list[str]:
    own, others = (list(map(_segment_title, segments)) for segments in (actual, expected))
    if own != others:
        return [f"its parts are {', '.join(own) or 'none'}, the model's {', '.join(others) or 'none'}"]
    return [
        f"the host's part {short_repr(segment.name)} is another network"
        for segment, other in zip(actual, expected, strict=True)
        if isinstance(segment, HostSegment) and encode(segment.network) != encode(other.network)
    ]


def _segment_title(segment: Any) -> str:
    return f"{'host' if isinstance(segment, HostSegment) else 'device'} {short_repr(segment.name)}"
