"""The instructions of the vector unit's queue, told apart, and put as the `Vec` that makes the same accesses."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Any

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import data

from weft.hdl.isa import INSTRUCTIONS, Instruction, Normalise, Queue, Reduce, Softmax, Source, Table, Vec

_STRIDES = ("ob", "oy", "ox")


def view(kind: type[Instruction], payload: data.View) -> data.View:
    """The fields of an instruction word of this kind."""
    return data.View(kind.layout(), Value.cast(payload))


def is_kind(kind: type[Instruction], payload: data.View) -> Value:
    return payload.opcode == int(kind.OPCODE)


def is_one_of(kinds: Iterable[type[Instruction]], payload: data.View) -> Value:
    return reduce(or_, (is_kind(kind, payload) for kind in kinds))


def without_parameters() -> list[type[Instruction]]:
    """The instructions of the queue that have no parameter block."""
    kinds = [kind for kind in INSTRUCTIONS.values() if kind.QUEUE is Queue.VEC]
    return [kind for kind in kinds if all(operand.name != "params" for operand in kind.OPERANDS)]


def unbounded() -> list[type[Instruction]]:
    """The instructions of the queue that read all elements of their source, wherever those are."""
    kinds = [kind for kind in INSTRUCTIONS.values() if kind.QUEUE is Queue.VEC]
    sources = {kind: [operand for operand in kind.OPERANDS if operand.name == "src"] for kind in kinds}
    return [kind for kind, found in sources.items() if found and not any(item.bounds for item in found)]


def as_vec(m: Module, payload: data.View) -> data.View:
    """A `Vec` whose loops, source and destination are those of the instruction in `payload`, and whose second operand
    stands where the alignments do, but is not added. Coordinates and parameters of the others have no meaning."""
    vec = Signal(Vec.layout())
    m.d.comb += vec.eq(payload)
    once = {"ry": 1, "rx": 1, "reduce": int(Reduce.NONE), "add": 0}
    for kind in (Softmax, Normalise):
        fields = view(kind, payload)
        given: dict[str, Any] = once | {"b": fields.alignment}
        given |= {f"b_{loop}": fields[f"alignment_{loop}"] for loop in _STRIDES}
        if kind is Softmax:
            given |= {"zero": 0}
        else:
            given |= {name: fields[name] for name in ("zero", "low", "high")}
        _override(m, kind, payload, vec, given)
    table = view(Table, payload)
    bytes_of = {"source": int(Source.SCRATCHPAD), "ob": 1, "oy": 1, "ox": table.vectors, "src": table.src}
    _override(m, Table, payload, vec, once | bytes_of | {"src_ox": 1})
    return vec


def _override(
    m: Module, kind: type[Instruction], payload: data.View, vec: data.View, given: dict[str, Any]
) -> None:
    with m.If(is_kind(kind, payload)):
        m.d.comb += [vec[name].eq(value) for name, value in given.items()]


def row_strides(m: Module, payload: data.View) -> dict[str, Any]:
    """Row states of the instruction in `payload`: their first one, and a stride for each of the outer loops."""
    softmax, normalise = view(Softmax, payload), view(Normalise, payload)
    strides = Signal(data.StructLayout({f"state_{loop}": 16 for loop in _STRIDES} | {"state": 16}))
    with m.If(is_kind(Softmax, payload)):
        m.d.comb += [strides[name].eq(softmax[name]) for name in ("state", "state_oy", "state_ox")]
    with m.Else():
        m.d.comb += [strides[name].eq(normalise[name]) for name in ("state", "state_ob", "state_oy")]
    return {name: strides[name] for name in ("state", *(f"state_{loop}" for loop in _STRIDES))}
