"""What a compiled program has otherwise than its model: all but the words of the device, which proofs are for."""

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
        The model, as the front end makes it for the program's configuration.

    Returns
    -------
    list of str
        A clause for each thing that differs.
    """
    return [
        *_signature("input", compiled.inputs, graph.inputs),
        *_signature("output", compiled.outputs, graph.outputs),
        *_named("state", map(_state, compiled.states), map(_state, graph.states)),
        *_named("value to the device", compiled.to_device, graph.to_device),
        *_named("value from the device", compiled.from_device, graph.from_device),
        *_segments(compiled.segments, graph.segments),
    ]


def _signature(what: str, own: Mapping[str, Any], meant: Mapping[str, Any]) -> list[str]:
    return [
        f"{what} {short_repr(name)} is {_type(own.get(name))}, the model's {_type(meant.get(name))}"
        for name in dict.fromkeys((*own, *meant))
        if own.get(name) != meant.get(name)
    ]


def _type(kind: tuple[str, tuple[int, ...]] | None) -> str:
    return "missing" if kind is None else f"{kind[0]} {'x'.join(map(str, kind[1]))}".rstrip()


def _state(state: State) -> tuple[object, ...]:
    initial = state.initial
    content = initial.tolist() if initial.dtype.hasobject else initial.tobytes()
    return state.source, state.target, initial.dtype.name, initial.shape, content


def _named(what: str, own: Iterable[object], meant: Iterable[object]) -> list[str]:
    """Items in order, as the order in which values are written may matter."""
    mine, theirs = list(own), list(meant)
    if len(mine) != len(theirs):
        return [f"there are {len(mine)} of {what}, the model has {len(theirs)}"]
    return [
        f"{what} {index} is not the model's"
        for index, (one, other) in enumerate(zip(mine, theirs, strict=True))
        if one != other
    ]


def _segments(own: Sequence[Any], meant: Sequence[Any]) -> list[str]:
    if list(map(_part, own)) != list(map(_part, meant)):
        mine, theirs = (", ".join(map(_part, segments)) or "none" for segments in (own, meant))
        return [f"its parts are {mine}, the model's {theirs}"]
    return [
        f"the host's part {short_repr(mine.name)} is another network"
        for mine, theirs in zip(own, meant, strict=True)
        if isinstance(mine, HostSegment) and encode(mine.network) != encode(theirs.network)
    ]


def _part(segment: Any) -> str:
    return f"{'host' if isinstance(segment, HostSegment) else 'device'} {short_repr(segment.name)}"
