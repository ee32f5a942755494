"""Properties of `weft.hdl.vector.vec_streams`: translation of SOFTMAX and NORMALISE to a VEC with equal accesses."""

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
"""Fields with one meaning in all kinds."""


class Kinds(wiring.Component):
    """Results of stages of the vector unit for an instruction word, without registers."""

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


class KindsBench(Bench, unit=Kinds):
    """SOFTMAX and NORMALISE become the VEC with their loops, source and destination, and one element for each output.
    Alignments replace the second operand, which is not added. Row states are at the strides of their definition. The
    unit reports which kinds have parameters.

    The word and its opcode are unconstrained.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        plain = dut.payload.opcode == Opcode.VEC
        self.claim("VEC is as it is", implies(plain, dut.vec.as_value() == dut.payload.as_value()))
        self.claim("VEC reads in range", implies(plain, ~dut.unbounded & ~dut.without_parameters))
        self._claim_accesses(m, Softmax, {"zero": 0})
        own = view(Normalise, dut.payload)
        self._claim_accesses(m, Normalise, {name: own[name] for name in ("zero", "low", "high")})
        self._claim_states(Softmax, ("oy", "ox"))
        self._claim_states(Normalise, ("ob", "oy"))
        is_softmax = dut.payload.opcode == Opcode.SOFTMAX
        params = view(Softmax, dut.payload).params
        self.claim("parameters of Softmax", implies(is_softmax, dut.vec.params == params))
        self.claim("Softmax has some", implies(is_softmax, ~dut.without_parameters))
        self.claim(
            "Normalise has none", implies(dut.payload.opcode == Opcode.NORMALISE, dut.without_parameters)
        )

    def _claim_accesses(self, m: Module, kind: type[Instruction], expected: dict[str, Any]) -> None:
        """Claim the fields of the VEC: accesses are the instruction's, and alignments replace the second operand."""
        dut = self.dut
        fields, is_kind, name = view(kind, dut.payload), dut.payload.opcode == int(kind.OPCODE), kind.__name__
        expected = expected | {"ry": 1, "rx": 1, "reduce": int(Reduce.NONE), "add": 0, "multiply": 0}
        expected |= {field: fields[field] for field in _ACCESSES}
        expected |= {"b": fields.alignment} | {f"b_{loop}": fields[f"alignment_{loop}"] for loop in _LOOPS}
        for field, value in expected.items():
            self.claim(f"{field} of {name}", implies(is_kind, Value.cast(dut.vec[field] == value)))
        self.claim(f"{name} reads all elements", implies(is_kind, dut.unbounded))
        far = Cat(fields.alignment == 7, fields.alignment_ob == -3, fields.src_ox == 5).all()
        there = is_kind & far & (dut.vec.b_ob == -3)
        # ABC finds covers only in netlists with registers.
        self.cover(f"an alignment of {name}", ago(m, there, 1, f"there_{name}"))

    def _claim_states(self, kind: type[Instruction], loops: tuple[str, ...]) -> None:
        """Claim that a row's state is at ``state`` plus its strides; a loop without a stride does not move it."""
        dut, fields = self.dut, view(kind, self.dut.payload)
        is_kind = dut.payload.opcode == int(kind.OPCODE)
        names = ("state", *(f"state_{loop}" for loop in _LOOPS))
        for name in names:
            value = fields[name] if name == "state" or name[len("state_") :] in loops else 0
            same = dut.rows[name] == Value.cast(value).as_unsigned()
            self.claim(f"{name} of {kind.__name__}", implies(is_kind, same))


def properties() -> Iterator[Property]:
    config = SMALLEST.replace(lanes=1, lookup_tables=0, probability_bits=8)
    yield KindsBench.proves("vector/vec_kinds", "SOFTMAX and NORMALISE as VEC", Induction(1), config, cover=4)
