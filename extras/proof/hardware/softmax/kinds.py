"""Properties of `weft.hdl.vector.vec_streams`: SOFTMAX and NORMALISE put as the VEC that makes the same accesses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amaranth.hdl import Cat, Module, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.extras.proof.hardware.pipelines import ago, implies
from weft.extras.proof.hardware.property import Bench, Induction, Property
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.hdl.isa import Instruction, Normalise, Opcode, Reduce, Softmax, Vec
from weft.hdl.isa.config import Config
from weft.hdl.vector.vec_streams import (
    as_vec,
    is_one_of,
    kinds_without_parameters,
    row_strides,
    unbounded_kinds,
    view,
)

_LOOPS = ("ob", "oy", "ox")
_ROWS = data.StructLayout(dict.fromkeys(("state", *(f"state_{loop}" for loop in _LOOPS)), 16))
_ACCESSES = (
    *("opcode", "signal", "source", "src", "dst", *_LOOPS),
    *(f"{name}_{loop}" for name in ("src", "dst") for loop in _LOOPS),
)
"""Fields that mean the same in all of them."""


class Kinds(wiring.Component):
    """What stages of the vector unit make of an instruction word, without registers."""

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "payload": In(Vec.layout()),
                "vec": Out(Vec.layout()),
                "rows": Out(_ROWS),
                "unbounded": Out(1),
                "without_parameters": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        rows = row_strides(m, self.payload)
        m.d.comb += [
            self.vec.eq(as_vec(m, self.payload, self.config)),
            *(self.rows[name].eq(value) for name, value in rows.items()),
            self.unbounded.eq(is_one_of(unbounded_kinds(self.config), self.payload)),
            self.without_parameters.eq(is_one_of(kinds_without_parameters(self.config), self.payload)),
        ]
        return m


class KindsBench(Bench):
    """Both are put as the VEC with their loops, source and destination, one element for each output, and alignments in
    the place of a second operand that is not added; row states are at the strides of their definition; which of them
    have parameters is told.

    Any word of any opcode.
    """

    UNIT = Kinds

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.free_inputs(m)
        plain = dut.payload.opcode == Opcode.VEC
        self.claim("VEC is as it is", implies(plain, dut.vec.as_value() == dut.payload.as_value()))
        self.claim("VEC reads in range", implies(plain, ~dut.unbounded & ~dut.without_parameters))
        self._same(m, Softmax, {"zero": 0})
        own = view(Normalise, dut.payload)
        self._same(m, Normalise, {name: own[name] for name in ("zero", "low", "high")})
        self._states(Softmax, ("oy", "ox"))
        self._states(Normalise, ("ob", "oy"))
        is_softmax = dut.payload.opcode == Opcode.SOFTMAX
        params = view(Softmax, dut.payload).params
        self.claim("parameters of Softmax", implies(is_softmax, dut.vec.params == params))
        self.claim("Softmax has some", implies(is_softmax, ~dut.without_parameters))
        self.claim(
            "Normalise has none", implies(dut.payload.opcode == Opcode.NORMALISE, dut.without_parameters)
        )

    def _same(self, m: Module, kind: type[Instruction], given: dict[str, Any]) -> None:
        """Loops, source and destination are the instruction's; alignments stand in the place of the second operand,
        which is not added; each output is of one element."""
        dut = self.dut
        fields, is_kind, name = view(kind, dut.payload), dut.payload.opcode == int(kind.OPCODE), kind.__name__
        given = given | {"ry": 1, "rx": 1, "reduce": int(Reduce.NONE), "add": 0, "multiply": 0}
        given |= {field: fields[field] for field in _ACCESSES}
        given |= {"b": fields.alignment} | {f"b_{loop}": fields[f"alignment_{loop}"] for loop in _LOOPS}
        for field, value in given.items():
            self.claim(f"{field} of {name}", implies(is_kind, Value.cast(dut.vec[field] == value)))
        self.claim(f"{name} reads all elements", implies(is_kind, dut.unbounded))
        far = Cat(fields.alignment == 7, fields.alignment_ob == -3, fields.src_ox == 5).all()
        there = is_kind & far & (dut.vec.b_ob == -3)
        # ABC looks for covers of what has registers.
        self.cover(f"an alignment of {name}", ago(m, there, 1, f"there_{name}"))

    def _states(self, kind: type[Instruction], loops: tuple[str, ...]) -> None:
        """A row's state is at ``state`` plus its strides; loops that it has no stride for do not move it."""
        dut, fields = self.dut, view(kind, self.dut.payload)
        is_kind = dut.payload.opcode == int(kind.OPCODE)
        names = ("state", *(f"state_{loop}" for loop in _LOOPS))
        for name in names:
            value = fields[name] if name == "state" or name[len("state_") :] in loops else 0
            same = dut.rows[name] == Value.cast(value).as_unsigned()
            self.claim(f"{name} of {kind.__name__}", implies(is_kind, same))


def properties() -> Iterator[Property]:
    yield KindsBench.proves(
        "vector/vec_kinds",
        "SOFTMAX and NORMALISE as VEC",
        Induction(1),
        SMALLEST.replace(lanes=1, lookup_tables=0, probability_bits=8),
        cover=4,
    )
