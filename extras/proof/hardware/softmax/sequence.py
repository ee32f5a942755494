"""Properties of `weft.hdl.vector.vec_softmax`: the rows of SOFTMAX's vectors and of NORMALISE's divisions."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import ago, implies
from weft.extras.proof.hardware.property import Bench, Induction, proves
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.walks import WalkModel
from weft.hdl.isa import BASES, Normalise, Opcode, Softmax
from weft.hdl.vector.vec_softmax import _IN_FLIGHT, CHOSEN, VecSoftmax, settings_layout
from weft.hdl.vector.vec_streams import view

_PLAIN = SMALLEST.replace(lanes=1, lookup_tables=0, probability_bits=8, table_depth=256, mantissa_bits=16)
_COUNTED_CYCLES = CHOSEN
"""Cycles after its last grant in which a vector of two lane groups counts as under way."""
_LOOPS = dict.fromkeys(("ob", "oy", "ox"), 12)


@proves(
    "vector/vec",
    "rows of softmax's states",
    Induction(2),
    _PLAIN,
    cover=30,
    part=True,
    proven=("pipe", "rows", "divider", "mask"),
)
class SequenceBench(Bench, unit=VecSoftmax, drives=("sequence",)):
    """Each vector of SOFTMAX continues with the address of its row's state, the columns that masks leave, and whether
    the state starts anew. It waits while the last vector of its row counts as under way. The divider gets the sums of
    NORMALISE's rows in order, and no row begins before its division is ready.

    The inputs are free, after a reader's sequence of SOFTMAX, NORMALISE and VEC. Assumed, as the reader's loop nest
    guarantees: it steps whenever it may and is not held, for SOFTMAX not after the last vector, and reports its
    position in the instruction's loops; counts are at least 1. Only steps are granted, at most three vectors wait for
    their grant, and none when the next instruction comes.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.sequence = sequence = dut.sequence
        self.payload = payload = sequence.payload
        self._connect_inputs(m)
        self.softmax, self.normalise = self.peek("softmax"), dut.normalise
        opcode = payload.opcode
        kinds = (Opcode.VEC, Opcode.SOFTMAX, Opcode.NORMALISE)
        self.assume(implies(sequence.load, Cat(*(opcode == kind for kind in kinds)).any()))
        self.step = self.peek("rows.step")
        self.rows = self._model_rows(m)
        place = sequence.place
        self.assume(implies(self.softmax & sequence.may_step, self.rows.on))
        for loop in ("ob", "ox"):
            self.assume(implies(self.softmax, place[f"first_{loop}"] == self.rows.first[loop]))
        for loop in ("oy", "ox"):
            self.assume(implies(self.softmax, place[f"last_{loop}"] == self.rows.last[loop]))
        self.settings = settings_layout(self.config)(self.peek("settings"))
        self._claim_vectors(m)
        self._claim_divisions(m)
        self._claim_states(m)
        self._claim_table(m)

    def _connect_inputs(self, m: Module) -> None:
        """Connect free inputs; the sequence steps when it may and is not held."""
        sequence = self.sequence
        for name in ("load", "may_step", "payload", "place", "grant"):
            value = Value.cast(getattr(sequence, name))
            m.d.comb += value.eq(self.free(len(value), f"sequence_{name}"))
        m.d.comb += sequence.step.eq(sequence.may_step & ~sequence.hold)

    def _model_rows(self, m: Module) -> WalkModel:
        """Return the model of row states, in the order of SOFTMAX's vectors and of NORMALISE's rows."""
        payload, load = self.payload, self.sequence.load
        softmax, normalise = view(Softmax, payload), view(Normalise, payload)
        is_softmax = payload.opcode == Opcode.SOFTMAX
        counts: dict[str, Any] = {loop: payload[loop] for loop in _LOOPS}
        counts["ox"] = Mux(payload.opcode == Opcode.NORMALISE, 1, payload.ox)
        strides: dict[str, Value] = {
            "ob": Mux(is_softmax, 0, normalise.state_ob),
            "oy": Mux(is_softmax, softmax.state_oy, normalise.state_oy),
            "ox": Mux(is_softmax, softmax.state_ox, 0),
        }
        width = (self.config.row_states - 1).bit_length()
        return WalkModel(
            m, self, "rows", _LOOPS, {"state": (width, dict.fromkeys(_LOOPS, width))}, load=load, counts=counts,
            bases={"state": Mux(is_softmax, softmax.state, normalise.state)}, strides={"state": strides},
        )  # fmt: skip

    def _claim_vectors(self, m: Module) -> None:
        """Claim that each vector of SOFTMAX continues with its row's state, and with its masks when they are ready."""
        sequence, softmax, rows = self.sequence, self.softmax, self.rows
        note, place, step = sequence.note, sequence.place, sequence.step
        moves = step & place.last_g
        self.claim("on to the next vector's row", implies(softmax, self.step == moves))
        state = rows.values["state"]
        self.claim("the state of its row", implies(softmax & step, note.state == state))
        fresh = self.settings.first & rows.first["ob"]
        self.claim("whether that starts anew", implies(softmax & step, note.fresh == fresh))
        for name in ("by_length", "by_diagonal"):
            limit = self.peek(f"mask.{name}")
            self.claim(f"columns {name}", note[name] == limit)
        self.masked = self.peek("mask.ready")
        self.claim("masks are ready", implies(softmax & step, self.masked))
        self.claim("masks follow", self.peek("mask.step") == (softmax & moves))
        self.claim("masks start", self.peek("mask.start") == sequence.load)
        for loop in ("oy", "ox"):
            at_end = self.peek(f"mask.last_{loop}")
            self.claim(f"masks follow {loop}", implies(softmax, at_end == rows.last[loop]))
        for name in ("causal", "relative", "register", "length", "diagonal"):
            width = min(
                len(Value.cast(self.settings[name])), (BASES - 1).bit_length() if name == "register" else 16
            )
            field = Value.cast(self.settings[name]).as_unsigned()[:width]
            self.claim(f"mask's {name}", self.peek(f"mask.{name}").as_unsigned() == field)
        self.cover(
            "a vector of another row", softmax & step & (state == 3) & rows.last["ox"] & (note.by_length == 1)
        )

    def _claim_divisions(self, m: Module) -> None:
        """Claim that the divider gets the rows of NORMALISE in order, and that a row's first element waits for it."""
        sequence, normalise, rows = self.sequence, self.normalise, self.rows
        place = sequence.place
        begins = normalise & place.first_ox & place.first_g
        ready, issue = self.peek("divider.ready"), self.peek("divider.issue")
        self.claim("a row is issued with its first element", issue == (begins & sequence.step))
        self.claim("not before it is ready", implies(issue, ready))
        row, step = self.peek("divider.row"), self.peek("divider.step")
        self.claim("there is a row to divide for", row == (normalise & rows.on))
        self.claim("on to the next row", implies(normalise, self.step == step))
        self.claim("for rows alone", implies(~self.softmax & ~normalise, ~self.step))
        at = self.peek("pipe.row")
        self.claim("the row that is divided for", implies(rows.on, at == rows.values["state"]))
        self.claim("whether it is divided", self.peek("pipe.dividing") == normalise)
        self.claim("one kind at a time", ~(self.softmax & normalise))
        start = self.peek("divider.start")
        self.claim("a new instruction", start == sequence.load)
        for name in ("scale", "exponent", "v_zero"):
            field = Value.cast(self.settings[name])
            self.claim(f"field {name}", self.peek(f"divider.{name}").as_unsigned() == field.as_unsigned())
        sums = self.peek("divider.sum") == self.peek("pipe.sum")
        self.claim("the sum of the row", sums)
        # As a helper: nothing is fetched for no row.
        fetched, normal = self.peek("divider.fetched"), self.peek("divider.normal")
        self.claim("a sum of a row", implies(fetched, row))
        self.claim("a sum that is shifted", implies(normal, fetched))
        self.cover("a second row", normalise & self.step & (rows.index["oy"] == 1))

    def _claim_states(self, m: Module) -> None:
        """Claim that a vector waits while as many vectors are under way as there are rows, because one of them is of
        its row.
        """
        sequence, softmax, rows, ready = self.sequence, self.softmax, self.rows, self.masked
        begins = softmax & sequence.step & sequence.place.first_g
        granted = softmax & sequence.grant.granted & sequence.grant.last
        asked, count = Signal(range(4), name="asked"), Signal(range(_IN_FLIGHT + 1), name="rows_seen")
        m.d.sync += asked.eq(asked + begins - granted)
        # A request and a skid buffer are between a step and its grant.
        self.assume(implies(granted, asked != 0))
        self.assume(implies(begins, (asked != 3) | granted))
        at_rest = (asked == 0) & ~sequence.may_step & ~sequence.grant.granted
        self.assume(implies(sequence.load, at_rest))
        with m.If(sequence.load):
            m.d.sync += count.eq(0)
        with m.Elif(begins & rows.first["ob"] & (count != _IN_FLIGHT)):
            m.d.sync += count.eq(count + 1)
        inside, first = Value.cast(asked), granted
        for cycle in range(_COUNTED_CYCLES):
            granted = ago(m, granted, 1, f"granted{cycle}", reset=True)
            inside = inside + granted
            first = granted if cycle == 0 else first
            if cycle:
                self.claim(f"granted {cycle} cycles ago", self.peek(f"ends_{cycle - 1}") == granted)
        layout = self.sequence.grant.shape()
        grant = layout(self.peek("grant"))
        noted = softmax & grant.granted & grant.last
        self.claim("the grant before", noted == first)
        self.claim("vectors in flight", self.peek("in_flight") == inside)
        self.claim("rows of a group", self.peek("row_count") == count)
        excess = self.peek("excess").as_unsigned()
        self.claim("more of them than rows", excess == (inside - count)[:5])
        again = begins & ~rows.first["ob"]
        self.claim("the last update of the row is not under way", implies(again, inside < count))
        waits = softmax & sequence.may_step & ~sequence.step & sequence.place.first_g
        self.cover("a vector waits for its state", waits & ready & ~rows.first["ob"])

    def _claim_table(self, m: Module) -> None:
        dut = self.dut
        table = self.peek("table")
        filled = ago(m, table & dut.byte_valid, 1, "filled", reset=True)
        self.claim("a byte for each element", self.peek("pipe.table_fill") == filled)
        byte = ago(m, dut.byte, 1, "byte")
        self.claim("which it is", implies(filled, self.peek("pipe.table_byte") == byte))
        self.claim("the table starts", self.peek("pipe.table_start") == self.sequence.load)
