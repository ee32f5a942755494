"""Layouts of the data between the stages of the vector unit, and the kinds of its instructions.

The stages after the reads never wait, so their streams have no ``ready``: a payload is present for one cycle, and
contains its own valid bits.
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
    """Return the view of an instruction word as an instruction of this kind."""
    return data.View(kind.layout(), Value.cast(payload))


def is_kind(kind: type[Instruction], payload: data.View) -> Value:
    return payload.opcode == int(kind.OPCODE)


def is_one_of(kinds: Sequence[type[Instruction]], payload: data.View) -> Value:
    return Cat(is_kind(kind, payload) for kind in kinds).any()


def vector_kinds(config: Config) -> list[type[Instruction]]:
    """Return the kinds of instructions that pass the stages from reader to writer, all but the kernel engine's."""
    return [kind for kind in kinds_of(Queue.VEC, config) if kind.REQUIRES is not Feature.KERNEL]


def kinds_without_parameters(config: Config) -> list[type[Instruction]]:
    """Return the kinds of `vector_kinds` that have no parameter block."""
    kinds = vector_kinds(config)
    return [kind for kind in kinds if all(operand.name != "params" for operand in kind.OPERANDS)]


def unbounded_kinds(config: Config) -> list[type[Instruction]]:
    """Return the kinds of `vector_kinds` whose source has no bounds: they read all elements."""
    kinds = vector_kinds(config)
    sources = {kind: [operand for operand in kind.OPERANDS if operand.name == "src"] for kind in kinds}
    return [kind for kind, src in sources.items() if src and not any(operand.bounds for operand in src)]


def bytewise_kinds(config: Config) -> list[type[Instruction]]:
    """Return the kinds of `vector_kinds` that write the bytes of vectors to a table, and no vectors."""

    def writes(kind: type[Instruction]) -> bool:
        return any(operand.write and operand.memory is Memory.SCRATCHPAD for operand in kind.OPERANDS)

    return [kind for kind in vector_kinds(config) if not writes(kind)]


def as_vec(m: Module, payload: data.View, config: Config) -> data.View:
    """Return a `Vec` with the loops, source and destination of the instruction in `payload`.

    The second operand is at the address of the alignments, and is not added. Unless the instruction is a `Vec`,
    coordinates and parameters are undefined.
    """
    vec = Signal(Vec.layout())
    m.d.comb += vec.eq(payload)
    once = {"ry": 1, "rx": 1, "reduce": int(Reduce.NONE), "add": 0, "multiply": 0}
    for kind in (Softmax, Normalise) if config.softmax else ():
        fields = view(kind, payload)
        values: dict[str, Any] = once | {"b": fields.alignment}
        values |= {f"b_{loop}": fields[f"alignment_{loop}"] for loop in _STRIDES}
        if kind is Softmax:
            values |= {"zero": 0}
        else:
            values |= {name: fields[name] for name in ("zero", "low", "high")}
        _override(m, kind, payload, vec, values)
    for filling in bytewise_kinds(config):
        fields = view(filling, payload)
        one_by_one = {"source": int(Source.SCRATCHPAD), "ob": 1, "oy": 1, "src_ox": 1}
        _override(m, filling, payload, vec, once | one_by_one | {"ox": fields.vectors, "src": fields.src})
    return vec


def _override(
    m: Module, kind: type[Instruction], payload: data.View, vec: data.View, values: dict[str, Any]
) -> None:
    with m.If(is_kind(kind, payload)):
        m.d.comb += [vec[name].eq(value) for name, value in values.items()]


def row_strides(m: Module, payload: data.View) -> dict[str, Any]:
    """Return the first row state of the instruction in `payload`, and its stride for each of the outer loops."""
    softmax, normalise = view(Softmax, payload), view(Normalise, payload)
    strides = Signal(data.StructLayout({f"state_{loop}": 16 for loop in _STRIDES} | {"state": 16}))
    with m.If(is_kind(Softmax, payload)):
        m.d.comb += [strides[name].eq(softmax[name]) for name in ("state", "state_oy", "state_ox")]
    with m.Else():
        m.d.comb += [strides[name].eq(normalise[name]) for name in ("state", "state_ob", "state_oy")]
    return {name: strides[name] for name in ("state", *(f"state_{loop}" for loop in _STRIDES))}


def second_width(config: Config) -> int:
    """Return the width in bits that holds addresses of the second operand and of alignments."""
    alignment = (config.alignments - 1).bit_length() if config.softmax else 0
    return max(config.widths.scratchpad_address, alignment)


def index_range(config: Config) -> range:
    """Return the range of indices of lane groups."""
    return range(max(config.groups, 2))


def instruction_layout(config: Config) -> data.StructLayout:
    """Return the layout of an instruction's settings until its last write, without loops and addresses.

    ``bounded``: elements are only read if their coordinates are in range. ``bytewise``: vectors are read once for each
    of their bytes, which are written to a table. ``second``: there is a second operand. ``same_row``, ``same_column``:
    all rows, or all columns, of outputs share the second operand. ``lookup``, ``table``: results are looked up, in this
    table.
    """
    fields = {"source": 1, "h": 16, "w": 16, "pad": signed(8), "signal": SEMAPHORES}
    kinds = {"bounded": 1, "bytewise": 1, "second": 1, "same_row": 1, "same_column": 1} | (
        {"multiply": 1} if config.multiply else {}
    )
    tables = {"lookup": 1, "table": range(max(config.lookup_tables, 2))} if config.lookup_tables else {}
    return data.StructLayout(fields | kinds | tables | {"settings": settings_layout(config)})


def tag_layout(config: Config) -> data.StructLayout:
    """Return the layout of the data that accompanies a lane group of an output.

    ``index`` of the lane group. ``last``: it is the last of its output. ``end``: it is the last of its instruction.
    ``dst``: address of the output.
    """
    return data.StructLayout(
        {"index": index_range(config), "last": 1, "end": 1, "dst": config.widths.scratchpad_address}
    )


def element_layout(config: Config) -> data.StructLayout:
    """Return the layout of an element between read and requantisation.

    ``in_range``; ``first`` and ``last`` of its reduction. With softmax also ``row``: the element is the first of a row.
    With tables of any kind also ``lane``, the lane of the byte if vectors are read bytewise.
    """
    optional: dict[str, ShapeLike] = {"row": 1} if config.softmax else {}
    if bytewise_kinds(config):
        optional |= {"lane": range(max(config.lanes, 2))}
    return data.StructLayout({"in_range": 1, "first": 1, "last": 1, "tag": tag_layout(config)} | optional)


def arrival_layout(config: Config) -> data.StructLayout:
    """Return the layout that describes the data of a read: a vector of parameters, a second operand, or an element
    (``valid``)."""
    return data.StructLayout({"parameter": 1, "second": 1, "valid": 1, "element": element_layout(config)})


def operands_layout(config: Config) -> data.StructLayout:
    """Return the layout of the input of requantisation, see `weft.hdl.vector.requantise.Requantise`."""
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
    """Return the layout of a lane group of results.

    ``bytes`` belong to lane group ``index`` of the vector at ``dst``. ``write``: the group is the last of its output.
    ``end``: it is the last of its instruction.
    """
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
"""Position of the unit's loop nest."""


def note_layout(config: Config) -> data.StructLayout:
    """Return the layout of the data about a vector of scores that is stored when its read is requested.

    ``state``: address of its row state. ``fresh``: the state restarts. ``by_length``, ``by_diagonal``: numbers of valid
    columns, see `weft.hdl.vector.softmax.Mask`.
    """
    return data.StructLayout(
        {
            "state": range(config.row_states),
            "fresh": 1,
            "by_length": range(config.n + 1),
            "by_diagonal": range(config.n + 1),
        }
    )


def grant_layout(config: Config) -> data.StructLayout:
    """Return the layout of a grant: the read of a lane group is granted, or the group needs no read.

    ``dst``: address of its output. ``first``, ``last``: it is the first or last group of its output. ``end``: it is the
    last of its instruction. With softmax also the note of the vector, and the address of its alignment.
    """
    optional = {"note": note_layout(config), "alignment": range(config.alignments)} if config.softmax else {}
    dst = config.widths.scratchpad_address
    return data.StructLayout(optional | {"granted": 1, "dst": dst, "first": 1, "last": 1, "end": 1})


class VecSequence(wiring.Signature):
    """Sequence of reads, seen from the read stage.

    ``load`` : the instruction in ``payload`` starts. ``place`` : position of the loop nest. ``step`` : the nest
    advances. ``may_step`` : the nest advances unless ``hold`` is 1. ``hold`` : the nest must wait. ``note`` : only with
    softmax, data about the vector of a ``step``, which returns in its ``grant``.
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
"""Loop ``g`` iterates over lane groups."""


def loop_nest(config: Config) -> LoopNest:
    """Return the loop nest of `WALK`; alignments share the tracker of the second operand."""
    second = second_width(config)
    trackers = WALK.trackers(config) | {"b": (second, dict.fromkeys(("ob", "oy", "ox"), second))}
    return LoopNest(counters(config), trackers)


def counters(config: Config) -> dict[str, int]:
    """Return the loops of the nest with the widths of their counts."""
    most = config.n if bytewise_kinds(config) else config.groups
    loops = WALK.counters(config) | {"g": most.bit_length()}
    if most == 1:
        del loops["g"]
    return loops
