"""What travels between the stages of the vector unit.

The stages behind the reads never wait, so their streams have no ``ready``: a payload is there for one cycle, and its
own bits say what of it is valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Module, ShapeLike, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import (
    SEMAPHORES,
    Count,
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
from weft.hdl.lib.loopnest import LoopNest, Walk
from weft.hdl.vector.requantise import column_layout, settings_layout

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


def second_width(config: Config) -> int:
    """Width of addresses of the second operand, and of alignments."""
    alignment = (config.alignments - 1).bit_length() if config.softmax else 0
    return max(config.widths.scratchpad_address, alignment)


def index_range(config: Config) -> range:
    """Indices of lane groups."""
    return range(max(config.groups, 2))


def instruction_layout(config: Config) -> data.StructLayout:
    """Fields of an instruction that are needed until its last write, apart from those of loops and addresses:
    ``bounded`` and ``bytewise`` tell whether coordinates have to be in range, and whether vectors are read once for
    each of their bytes, which then go to a table: nothing is written; ``second`` whether there is a second operand, and
    ``same_row`` and ``same_column`` whether that is the same for all rows and for all columns of outputs; ``lookup``
    and ``table`` whether results are looked up, and where."""
    own = {"source": 1, "h": 16, "w": 16, "pad": signed(8), "signal": SEMAPHORES}
    kinds = {"bounded": 1, "bytewise": 1, "second": 1, "same_row": 1, "same_column": 1} | (
        {"multiply": 1} if config.multiply else {}
    )
    tables = {"lookup": 1, "table": range(max(config.lookup_tables, 2))} if config.lookup_tables else {}
    return data.StructLayout(own | kinds | tables | {"settings": settings_layout(config)})


def tag_layout(config: Config) -> data.StructLayout:
    """What travels with a lane group of an output: its index, whether it is the output's last one, whether it is the
    instruction's last one, and the address of the output."""
    return data.StructLayout(
        {"index": index_range(config), "last": 1, "end": 1, "dst": config.widths.scratchpad_address}
    )


def element_layout(config: Config) -> data.StructLayout:
    """An element on its way: whether it is in range, the first and the last of its reduction. With softmax also
    whether it is the first of a row; with tables of any kind its lane, if vectors are read bytewise."""
    own: dict[str, ShapeLike] = {"row": 1} if config.softmax else {}
    if bytewise(config):
        own |= {"lane": range(max(config.lanes, 2))}
    return data.StructLayout({"in_range": 1, "first": 1, "last": 1, "tag": tag_layout(config)} | own)


def arrival_layout(config: Config) -> data.StructLayout:
    """What reads of a cycle were for: a vector of parameters, a second operand, an element."""
    return data.StructLayout({"parameter": 1, "second": 1, "valid": 1, "element": element_layout(config)})


def operands_layout(config: Config) -> data.StructLayout:
    """The input of requantisation: see `weft.hdl.vector.requantise.Requantise`."""
    lanes = config.lanes
    return data.StructLayout(
        {
            "valid": 1,
            "first": 1,
            "last": 1,
            "elements": data.ArrayLayout(signed(32), lanes),
            "second": data.ArrayLayout(signed(8), lanes),
            "columns": data.ArrayLayout(column_layout(config), lanes),
            "tag": tag_layout(config),
        }
    )


def results_layout(config: Config) -> data.StructLayout:
    """A lane group of results: ``write`` with the last one of an output, ``end`` with the last one of an instruction.
    The bytes belong to lane group ``index`` of the vector at ``dst``."""
    return data.StructLayout(
        {
            "write": 1,
            "end": 1,
            "index": index_range(config),
            "dst": config.widths.scratchpad_address,
            "bytes": data.ArrayLayout(8, config.lanes),
        }
    )


PLACE = data.StructLayout(
    dict.fromkeys(("first_ob", "first_ox", "first_g", "last_oy", "last_ox", "last_g"), 1)
)
"""The position of the unit's loop nest."""


def note_layout(config: Config) -> data.StructLayout:
    """Facts about a vector of scores, noted when its read is requested: its row state, whether that is new, and how
    many of its lanes each mask leaves."""
    return data.StructLayout(
        {
            "state": range(config.row_states),
            "fresh": 1,
            "by_length": range(config.n + 1),
            "by_diagonal": range(config.n + 1),
        }
    )


def grant_layout(config: Config) -> data.StructLayout:
    """The read of a lane group that is granted, or for which there was nothing to read: the address of its vector,
    whether it is the vector's first or last one, and the instruction's last; with softmax also the note of the vector
    and its address in alignments."""
    own = {"note": note_layout(config), "alignment": range(config.alignments)} if config.softmax else {}
    dst = config.widths.scratchpad_address
    return data.StructLayout(own | {"granted": 1, "dst": dst, "first": 1, "last": 1, "end": 1})


class VecSequence(wiring.Signature):
    """The sequence of reads, seen from the stage that makes it.

    ``load`` : an instruction, which stands in ``payload``, starts. ``place`` : where the loop nest stands. ``step`` :
    it goes on; ``may_step`` : it goes on unless there is ``hold``. ``hold`` : it must not go on yet. ``note`` : what
    belongs to the vector of a ``step``, with softmax only; it comes back in ``grant``.
    """

    def __init__(self, config: Config) -> None:
        note = {"note": In(note_layout(config))} if config.softmax else {}
        super().__init__(
            {
                "load": Out(1),
                "payload": Out(Vec.layout()),
                "place": Out(PLACE),
                "step": Out(1),
                "may_step": Out(1),
                "hold": In(1),
                **note,
                "grant": Out(grant_layout(config)),
            }
        )


WALK = Walk(
    Vec,
    ("ob", "oy", "ox", "g", "ry", "rx"),
    ("src", "dst", "b"),
    own={"g": Count(parameters=("groups",))},
)
"""Loop ``g`` is over lane groups."""


def loop_nest(config: Config) -> LoopNest:
    """The nest of `WALK`; alignments share the tracker of the second operand."""
    second = second_width(config)
    trackers = WALK.trackers(config) | {"b": (second, dict.fromkeys(("ob", "oy", "ox"), second))}
    return LoopNest(counters(config), trackers)


def counters(config: Config) -> dict[str, int]:
    """The loops of the nest, and bits of their counts."""
    most = config.n if bytewise(config) else config.groups
    loops = WALK.counters(config) | {"g": most.bit_length()}
    if most == 1:
        del loops["g"]
    return loops
