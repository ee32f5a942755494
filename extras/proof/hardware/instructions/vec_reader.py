"""Properties of the reads of VEC: parameters, second operands and elements, for instructions of any length."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import ago, follow, latch
from weft.extras.proof.hardware.property import Bench, Induction, proves
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import Order, assume_stable, transfer
from weft.extras.proof.hardware.walks import WalkModel, claim_slots, skid_slots, walk_fields
from weft.hdl.isa import PARAMETER_VECTORS, Opcode, Source, Vec
from weft.hdl.isa.config import Config
from weft.hdl.isa.operands import READ_LATENCY
from weft.hdl.vector.requantise import settings_layout
from weft.hdl.vector.vec_reader import SETTLING, VecReader, _request_layout
from weft.hdl.vector.vec_streams import (
    WALK,
    arrival_layout,
    as_vec,
    counters,
    instruction_layout,
    second_width,
)

_ALIGNED = ("ob", "oy", "ox")
"""Loops that move the alignment of a vector."""
_RESULT = READ_LATENCY + 1
"""Results come later than this number of cycles after the last read."""


@proves(
    "vector/vec_reader",
    "reads of VEC",
    Induction(4),
    SMALLEST.replace(lanes=1, lookup_tables=0, probability_bits=0),
    cover=22,
)
@proves(
    "vector/vec_reader",
    "reads of SOFTMAX, NORMALISE and VEC",
    Induction(2),
    SMALLEST.replace(lanes=1, lookup_tables=0, probability_bits=8),
    cover=22,
    claim="In any mix of these instructions, each reads its parameter block, if it has one, and then all "
    "elements in the order of its loops. The note of a vector and the address of its alignment go with "
    "it. Later stages get the description of an element with its data, the fields of its instruction, "
    "and the position in the loops.",
)
class ReaderBench(Bench, unit=VecReader):
    """For every VEC, of any length and with any fields, the parameter block is read, then elements in the order of its
    loops, at their addresses and if they are in range, each after its second operand. Later stages get the description
    of an element with its data, and the fields of its instruction.

    The inputs are free: reads are refused at any time. Assumed: an instruction stays until it is taken, and its counts
    are at least 1; results come after the reads of their operands. All other fields are unconstrained. The model
    defines each element, and follows it from the loop nest to its read.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config, serial=False)
        self.kinds = (Opcode.VEC, Opcode.SOFTMAX, Opcode.NORMALISE) if config.softmax else (Opcode.VEC,)

    def watch(self, m: Module) -> None:
        dut, config = self.dut, self.config
        assume_stable(m, self, dut.instruction, "instruction")
        kinds = Cat(*(dut.instruction.payload.opcode == kind for kind in self.kinds)).any()
        self.assume(~dut.instruction.valid | kinds)
        # Properties of `weft.hdl.vector.vec_streams` prove the translation of SOFTMAX and NORMALISE.
        coming = as_vec(m, dut.instruction.payload, config) if config.softmax else dut.instruction.payload
        self.load = transfer(dut.instruction)
        self.op, self.older = (Signal(Vec.layout(), name=name) for name in ("op", "older"))
        self.known, self.older_known = Signal(name="known"), Signal(name="older_known")
        with m.If(self.load):
            m.d.sync += [self.op.eq(coming), self.older.eq(self.op)]
            m.d.sync += [self.known.eq(1), self.older_known.eq(self.known)]
        trackers = WALK.trackers(config)
        if config.softmax:  # alignments have a width of their own
            trackers = trackers | {"b": (second_width(config), dict.fromkeys(_ALIGNED, second_width(config)))}
        fields = walk_fields(coming, counters(config), trackers)
        fields["counts"]["g"] = config.groups
        self.walk = WalkModel(m, self, "nest", load=self.load, **fields)
        self.granted = arrival_layout(config)(self.peek("granted"))
        self.request = _request_layout(config)(self.peek("request"))
        self._claim_elements(m)
        self._claim_instructions(m)
        self._claim_parameters(m)
        self._claim_reads(m)
        self._claim_arrivals(m)
        self._claim_settings(m)
        if config.softmax:
            self._claim_sequence()

    def _claim_elements(self, m: Module) -> None:
        """Claim that elements are read in order, each as the instruction defines it."""
        walk, op, layout, config = self.walk, self.op, _request_layout(self.config), self.config
        defined = Signal(layout, name="defined")
        element, values = defined.element, walk.values
        y, x = (values[name].as_signed() for name in ("y", "x"))
        inside = (y >= 0) & (y < op.h) & (x >= 0) & (x < op.w) | (op.opcode != Opcode.VEC)
        m.d.comb += [
            defined.valid.eq(1),
            defined.ask_second.eq(op.add & self._reads_second(m)),
            defined.ask_source.eq(inside),
            defined.second.eq(values["b"]),
            defined.source.eq(values["src"]),
            element.in_range.eq(inside),
            element.first.eq(walk.at_start("ry", "rx")),
            element.last.eq(walk.at_end("ry", "rx")),
            element.tag.index.eq(walk.index["g"]),
            element.tag.last.eq(walk.at_end("g")),
            element.tag.end.eq(walk.ends),
            element.tag.dst.eq(values["dst"]),
        ]
        if config.softmax:
            m.d.comb += [element.row.eq(walk.at_start("ox", "g")), defined.note.eq(self.dut.sequence.note)]
        with self.during(walk.on):
            self.claim("the element that comes", self.peek("skid.i__payload") == defined.as_value())
            self.claim("as many lane groups as there are", walk.count["g"] == config.groups)
        self.claim("lane groups begin at 0", walk.on | (self.peek("index") == 0))
        self.pop, request = self.granted.valid, self.request
        slots = [(request.valid, request.as_value()), *skid_slots(self)]
        words = [layout(word) for _, word in slots]
        self.order = Order(
            m, self, i=(walk.step, _without_ask(defined)), o=(self.pop, _without_ask(request)), most=3
        )
        every = [(valid, _without_ask(word)) for (valid, _), word in zip(slots, words, strict=True)]
        for (valid, _), word in zip(slots[1:], words[1:], strict=True):
            self.claim(f"an element there {len(self.claims)}", ~valid | word.valid)
        claim_slots(self, self.order, every, "an element on its way")
        self._claim_second(m, defined, slots, words)
        # An instruction's last element is the youngest one of those on their way once the loops have ended.
        younger: Value = walk.on
        for (valid, _), word in reversed(list(zip(slots, words, strict=True))):
            self.claim(f"the last one {len(self.claims)}", ~valid | (word.element.tag.end == ~younger))
            younger = younger | valid
        self.under_way = younger
        self.cover("an element out of range", self.pop & ~request.element.in_range)

    def _reads_second(self, m: Module) -> Value:
        """Return whether the second operand must be read: at the first element of each output, if it has moved."""
        walk, op = self.walk, self.op
        starts = walk.at_start("g", "ry", "rx")
        same = (op.b_ox == 0) & ~(walk.at_start("ox") & ((op.b_oy != 0) | walk.at_start("oy")))
        before, any_before = Signal.like(walk.values["b"], name="b_before"), Signal(name="b_is_before")
        with m.If(self.load):
            m.d.sync += any_before.eq(0)
        with m.Elif(walk.step):
            m.d.sync += [before.eq(walk.values["b"]), any_before.eq(1)]
        with self.during(walk.on):
            where = any_before & (before == walk.values["b"])
            self.claim("the second operand is where it was", (starts & ~same) | where)
            for loop, stride in (("ox", op.b_ox), ("oy", op.b_oy)):
                moved, own = walk.moved["b", loop], walk.strides["b", loop]
                self.claim(f"the stride along {loop}", own == stride[: len(own)].as_signed())
                self.claim(f"no way along {loop}", (stride != 0) | (moved == 0))
        moves: Value = starts & ~same
        return moves

    def _claim_second(self, m: Module, defined: Any, slots: Any, words: Any) -> None:
        """Claim that the second operand of an element is read once, before the element."""
        order, granted = self.order, self.granted
        done = Signal(name="second_is_read")
        asked = latch(m, self.walk.step & ~order.watched, defined.ask_second, 1, "asks_second")
        m.d.sync += done.eq((done | granted.second) & ~self.pop)
        older: Value = Value.cast(0)
        for number, ((valid, _), word) in enumerate(zip(slots, words, strict=True)):
            here = order.watched & valid & (order.ahead == older)
            expected = asked & ~done if number == 0 else asked
            self.claim(f"asks for a second operand {number}", ~here | (word.ask_second == expected))
            older = older + valid
        oldest = order.watched & (order.ahead == 0) & self.request.valid
        self.claim("read because it was asked for", ~(oldest & done) | asked)
        read = order.watched & (order.ahead == 0) & self.pop
        self.claim("its second operand is read if it is needed", ~read | (done == asked))
        self.claim("not asked for again", ~(done & self.request.ask_second))
        self.claim("once", ~granted.second | ~done)
        self.claim("nothing is read for none", ~done | self.request.valid)
        self.cover("an element after its second operand", read & done)

    def _claim_instructions(self, m: Module) -> None:
        dut, op = self.dut, self.op
        inside, unread = Signal(range(4), name="instructions"), Signal(name="unread")
        ended = Signal(range(4), name="instructions_ended")
        end = self.pop & self.request.element.tag.end
        late, on_the_way = end, Value.cast(0)
        self.ends: list[Value] = []
        for cycle in range(_RESULT):
            late = ago(m, late, 1, f"ended{cycle}", reset=True)
            on_the_way = on_the_way + late
            self.ends.append(late)
        m.d.sync += [
            inside.eq(inside + self.load - dut.finish),
            ended.eq(ended + late - dut.finish),
            unread.eq(self.load | (unread & ~end)),
        ]
        self.assume(~dut.finish | (ended != 0))
        second, reads_none = self.peek("behind"), _reads_none(dut.instruction.payload)
        self.claim("two instructions at most", inside == dut.active + second)
        self.claim("read to the end", ~self.known | (self.peek("read") == ~unread))
        self.claim("elements are of an instruction", unread == self.under_way)
        self.claim("of one that was taken", (inside == 0) | self.known)
        self.claim("the others are ended", inside == ended + on_the_way + unread)
        self.claim("taken when all before is read", ~self.load | ~unread)
        self.claim("one that is early reads no vectors", ~(self.load & dut.active) | reads_none)
        self.claim("what is offered stands", ~self.peek("offered") | (dut.instruction.valid & reads_none))
        self.claim("its mask", (inside == 0) | (dut.signal == Mux(inside == 2, self.older.signal, op.signal)))
        with self.during(second):
            self.claim("the second one follows another", dut.active)
            self.claim("the second one of another", self.older_known)
            self.claim("the mask before", self.peek("before") == self.older.signal)
        self.inside = inside
        self.cover("an instruction after another one", self.load & dut.active)
        self.cover("the end", end & (op.signal != 0) & (self.request.element.tag.index == 1))

    def _claim_parameters(self, m: Module) -> None:
        """Claim that the vectors of the parameter block are read in order, before all other reads."""
        granted, port = self.granted, self.dut.scratchpad
        done = Signal(range(PARAMETER_VECTORS + 1), name="parameters", init=PARAMETER_VECTORS)
        without = self.dut.instruction.payload.opcode == Opcode.NORMALISE
        with m.If(self.load):
            m.d.sync += done.eq(Mux(without, PARAMETER_VECTORS, 0))
        with m.Elif(granted.parameter):
            m.d.sync += done.eq(done + 1)
        self.claim("one of its vectors", ~granted.parameter | (done < PARAMETER_VECTORS))
        self.left, place = self.peek("left"), self.peek("address")
        following = (self.op.params + done)[: len(place)]
        self.claim("vectors that are left", self.left == PARAMETER_VECTORS - done)
        self.claim("read where it is", ~granted.parameter | (port.address == following))
        with self.during(done != PARAMETER_VECTORS):
            self.claim("all of them ahead of elements", ~(granted.valid | granted.second))
            self.claim("where the next one is", place == following)
            self.claim("they are of an instruction", self.under_way)

    def _claim_reads(self, m: Module) -> None:
        """Claim that each granted read was requested, and that nothing else is read."""
        granted, request, op = self.granted, self.request, self.op
        scratchpad, accumulator = self.dut.scratchpad, self.dut.accumulator
        from_scratchpad = op.source == Source.SCRATCHPAD
        element = granted.valid & request.ask_source
        rows, vectors = transfer(accumulator), transfer(scratchpad)
        wanted = granted.parameter | granted.second | (element & from_scratchpad)
        place = Mux(granted.second, request.second, request.source)[: len(scratchpad.address)]
        self.claim("a row for an element", rows == (element & ~from_scratchpad))
        self.claim("its row", ~rows | (accumulator.address == request.source[: len(accumulator.address)]))
        self.claim("a vector for each", vectors == wanted)
        self.claim("its vector", ~vectors | granted.parameter | (scratchpad.address == place))
        self.claim("of an element that waits", ~(granted.valid | granted.second) | request.valid)
        with self.during(granted.valid):
            self.claim("not both at once", ~(granted.second | granted.parameter))
            self.claim("its description", granted.element.as_value() == request.element.as_value())

    def _claim_arrivals(self, m: Module) -> None:
        """Claim that the description of a granted read comes with its data."""
        stages = (self.peek(f"arrival_{stage}") for stage in range(READ_LATENCY))
        due = follow(m, self, self.granted.as_value(), stages, "an arrival")
        self.claim("it arrives", self.dut.arrival.as_value() == due)

    def _claim_sequence(self) -> None:
        """Claim that stages that follow the sequence get the position in the loops, and the granted reads."""
        sequence, walk, request = self.dut.sequence, self.walk, self.request
        place, grant, tag = sequence.place, sequence.grant, self.request.element.tag
        self.claim("instruction of the sequence", sequence.load == self.load)
        self.claim("step of the sequence", sequence.step == walk.step)
        steps = sequence.may_step & ~sequence.hold
        self.claim("it steps if it may and is not held", sequence.step == steps)
        self.claim("no step after the end", ~sequence.may_step | walk.on)
        with self.during(walk.on):
            for loop in ("ob", "ox", "g"):
                self.claim(f"first of {loop}", place[f"first_{loop}"] == walk.first[loop])
            for loop in ("oy", "ox", "g"):
                self.claim(f"last of {loop}", place[f"last_{loop}"] == walk.last[loop])
        grants = {
            "granted": self.pop,
            "dst": tag.dst,
            "first": tag.index == 0,
            "last": tag.last,
            "end": tag.end,
            "alignment": request.second[: len(grant.alignment)],
        }
        for name, value in grants.items():
            self.claim(f"granted {name}", grant[name] == value)
        self.claim("granted note", grant.note.as_value() == request.note.as_value())
        ours = self.pop & (self.op.opcode == Opcode.SOFTMAX)
        self.cover("a second vector of scores", ours & tag.last & (request.second == 5) & (tag.dst == 3))

    def _claim_settings(self, m: Module) -> None:
        """Claim that later stages see the fields of the instruction whose elements they process."""
        settling = self.peek("settling")
        own, older = (
            self._define_fields(m, op, name) for op, name in ((self.op, "own"), (self.older, "old"))
        )
        self.claim("what is taken", ~self.known | (self.peek("instruction") == own.as_value()))
        current = self.dut.current.as_value()
        since = Signal(range(16), name="since", init=15)
        m.d.sync += since.eq(Mux(self.load, 0, since + (since != 15)))
        before = ago(m, settling, 1, "settling", reset=True)
        self.claim("just taken", (since != 0) | self.under_way)
        early = ago(m, self.load & self.dut.active, 1, "early", reset=True)
        self.claim("settling", (settling == 0) | (self.older_known & (settling + since == SETTLING)))
        changes = (settling != 0) | (before != 0) | early
        steady = ~changes | ~self.older_known
        self.claim("current while it settles", steady | (current == older.as_value()))
        settled = self.known & ~changes & (since != 0)
        self.claim("current", ~settled | (current == own.as_value()))
        ends = self.ends[0] & (settling <= 2) | self.ends[1] & (settling <= 1)
        self.claim("settled before its end", (settling == 0) | self.under_way | ends)
        self.claim("parameters while it settles", self.left + 3 >= settling)

    def _define_fields(self, m: Module, op: Any, name: str) -> Any:
        fields = Signal(instruction_layout(self.config), name=f"taken_{name}")
        m.d.comb += [fields[field].eq(op[field]) for field in ("source", "h", "w", "pad", "signal")]
        m.d.comb += [fields.settings[field].eq(op[field]) for field, _ in settings_layout(self.config)]
        m.d.comb += [
            fields.bounded.eq(op.opcode == Opcode.VEC),
            fields.second.eq(op.add),
            fields.same_row.eq(op.b_oy == 0),
            fields.same_column.eq(op.b_ox == 0),
            fields.multiply.eq(op.multiply),
            fields.settings.add.eq(op.add & ~op.multiply),
        ]
        return fields


def _reads_none(op: Any) -> Value:
    reads_none: Value = (op.opcode == Opcode.VEC) & (op.source == Source.ACCUMULATOR) & ~op.add
    return reads_none


def _without_ask(request: Any) -> Value:
    """Return a request without `ask_second`, which changes while the request waits."""
    return Cat(*(Value.cast(request[name]) for name, _ in request.shape() if name != "ask_second"))
