"""The instructions of the vector unit's queue, told apart, and put as the `Vec` that makes the same accesses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import data

from weft.hdl.isa import (
    Feature,
    Instruction,
    Memory,
    Normalise,
    Queue,
    Reduce,
    Softmax,
    Source,
    Vec,
    kinds_of,
)
from weft.hdl.isa.config import Config

_STRIDES = ("ob", "oy", "ox")


def view(kind: type[Instruction], payload: data.View) -> data.View:
    """The fields of an instruction word of this kind."""
    return data.View(kind.layout(), Value.cast(payload))


def is_kind(kind: type[Instruction], payload: data.View) -> Value:
    return payload.opcode == int(kind.OPCODE)


def is_one_of(kinds: Sequence[type[Instruction]], payload: data.View) -> Value:
    return Cat(is_kind(kind, payload) for kind in kinds).any()


def vector_kinds(config: Config) -> list[type[Instruction]]:
    """The instructions that go through the stages from reader to writer; those of the kernel engine do not."""
    return [kind for kind in kinds_of(Queue.VEC, config) if kind.REQUIRES is not Feature.KERNEL]


def without_parameters(config: Config) -> list[type[Instruction]]:
    """Those that have no parameter block."""
    kinds = vector_kinds(config)
    return [kind for kind in kinds if all(operand.name != "params" for operand in kind.OPERANDS)]


def unbounded(config: Config) -> list[type[Instruction]]:
    """Those that read all elements of their source, wherever those are."""
    kinds = vector_kinds(config)
    sources = {kind: [operand for operand in kind.OPERANDS if operand.name == "src"] for kind in kinds}
    return [kind for kind, found in sources.items() if found and not any(item.bounds for item in found)]


def bytewise(config: Config) -> list[type[Instruction]]:
    """Those that fill a table with the bytes of vectors, and write no vectors."""

    def writes(kind: type[Instruction]) -> bool:
        return any(operand.write and operand.memory is Memory.SCRATCHPAD for operand in kind.OPERANDS)

    return [kind for kind in vector_kinds(config) if not writes(kind)]


def as_vec(m: Module, payload: data.View, config: Config) -> data.View:
    """A `Vec` whose loops, source and destination are those of the instruction in `payload`, and whose second operand
    stands where the alignments do, but is not added. Coordinates and parameters of the others have no meaning."""
    vec = Signal(Vec.layout())
    m.d.comb += vec.eq(payload)
    once = {"ry": 1, "rx": 1, "reduce": int(Reduce.NONE), "add": 0, "multiply": 0}
    for kind in (Softmax, Normalise) if config.softmax else ():
        fields = view(kind, payload)
        given: dict[str, Any] = once | {"b": fields.alignment}
        given |= {f"b_{loop}": fields[f"alignment_{loop}"] for loop in _STRIDES}
        if kind is Softmax:
            given |= {"zero": 0}
        else:
            given |= {name: fields[name] for name in ("zero", "low", "high")}
        _override(m, kind, payload, vec, given)
    for filling in bytewise(config):
        fields = view(filling, payload)
        one_by_one = {"source": int(Source.SCRATCHPAD), "ob": 1, "oy": 1, "src_ox": 1}
        _override(m, filling, payload, vec, once | one_by_one | {"ox": fields.vectors, "src": fields.src})
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
