"""What travels between the stages of the vector unit.

The stages behind the reads never wait, so their streams have no ``ready``: a payload is there for one cycle, and its
own bits say what of it is valid.
"""

from __future__ import annotations

from amaranth.hdl import ShapeLike, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import SEMAPHORES, Vec
from weft.hdl.isa.config import Config
from weft.hdl.vector.requantise import column_layout, settings_layout
from weft.hdl.vector.vec_kinds import bytewise


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


class Sequence(wiring.Signature):
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
