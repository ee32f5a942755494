"""The effect of VEC, its reads: parameters, second operands and elements, for instructions of any length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import ago
from weft.extras.proof.hardware.property import Bench, Induction, Property
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import Order, assume_stable
from weft.extras.proof.hardware.walks import Walked, held, skid_slots, taken
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

_RESULT = READ_LATENCY + 1
"""Results come more than so many cycles behind the last read, at least."""


class ReaderBench(Bench):
    """The reader of the vector unit, for VEC, in free inputs: reads are refused at any time.

    Assumed: an instruction stands until it is taken, and its counts are at least 1; results come behind the reads that
    they are made of. All other fields are any.

    Each element is followed, by what the instruction defines of it, from the loop nest to its read.
    """

    UNIT = VecReader

    def __init__(self, config: Config) -> None:
        super().__init__(config, serial=False)
        self.kinds = (Opcode.VEC, Opcode.SOFTMAX, Opcode.NORMALISE) if config.softmax else (Opcode.VEC,)

    def watch(self, m: Module) -> None:
        dut, config = self.dut, self.config
        self.free_inputs(m)
        assume_stable(m, self, dut.instruction, "instruction")
        kinds = Cat(*(dut.instruction.payload.opcode == kind for kind in self.kinds)).any()
        self.assume(~dut.instruction.valid | kinds)
        # What that makes of SOFTMAX and NORMALISE is proven of `weft.hdl.vector.vec_streams`.
        coming = as_vec(m, dut.instruction.payload, config) if config.softmax else dut.instruction.payload
        self.load = Signal(name="loads")
        m.d.comb += self.load.eq(dut.instruction.valid & dut.instruction.ready)
        self.op, self.older = (Signal(Vec.layout(), name=name) for name in ("op", "older"))
        self.known, self.older_known = Signal(name="known"), Signal(name="older_known")
        with m.If(self.load):
            m.d.sync += [self.op.eq(coming), self.older.eq(self.op)]
            m.d.sync += [self.known.eq(1), self.older_known.eq(self.known)]
        fields = taken(WALK, config, coming)
        fields["counts"]["g"] = config.groups
        if config.softmax:  # alignments have a width of their own
            width = second_width(config)
            fields["trackers"] = fields["trackers"] | {"b": (width, dict.fromkeys(("ob", "oy", "ox"), width))}
            fields["strides"]["b"] = {loop: coming[f"b_{loop}"] for loop in ("ob", "oy", "ox")}
        loops = counters(config)
        self.walked = Walked(m, self, "nest", loops, load=self.load, step=self.peek("nest.step", 1), **fields)
        self.granted = self._view(arrival_layout(config), "granted")
        self.request = self._view(_request_layout(config), "request")
        self._elements(m)
        self._instructions(m)
        self._parameters(m)
        self._reads(m)
        self._arrivals(m)
        self._settings(m)
        if config.softmax:
            self._follow()

    def _view(self, layout: Any, path: str) -> Any:
        return layout(self.peek(path, layout.size))

    def _elements(self, m: Module) -> None:
        """Elements are read in their order, each as the instruction defines it."""
        walked, op, layout, config = self.walked, self.op, _request_layout(self.config), self.config
        defined = Signal(layout, name="defined")
        element, values = defined.element, walked.values
        y, x = (values[name].as_signed() for name in ("y", "x"))
        inside = (y >= 0) & (y < op.h) & (x >= 0) & (x < op.w) | (op.opcode != Opcode.VEC)
        m.d.comb += [
            defined.valid.eq(1),
            defined.ask_second.eq(op.add & self._moved(m)),
            defined.ask_source.eq(inside),
            defined.second.eq(values["b"]),
            defined.source.eq(values["src"]),
            element.in_range.eq(inside),
            element.first.eq(walked.at_start("ry", "rx")),
            element.last.eq(walked.at_end("ry", "rx")),
            element.tag.index.eq(walked.index["g"]),
            element.tag.last.eq(walked.at_end("g")),
            element.tag.end.eq(walked.ends),
            element.tag.dst.eq(values["dst"]),
        ]
        if config.softmax:
            m.d.comb += [
                element.row.eq(walked.at_start("ox", "g")),
                defined.note.eq(self.dut.sequence.note),
            ]
        coming = self.peek("skid.i__payload", layout.size)
        self.claim("the element that comes", ~walked.on | (coming == defined.as_value()))
        self.claim("as many lane groups as there are", ~walked.on | (walked.count["g"] == config.groups))
        place = self.peek("index", (config.groups - 1).bit_length())
        self.claim("lane groups begin at 0", walked.on | (place == 0))
        self.pop = self.granted.valid
        there = self.request.valid
        slots = [(there, self.request.as_value()), *skid_slots(self, layout.size)]
        self.order = Order(
            m, self, push=walked.step, i=_but(defined), pop=self.pop, o=_but(self.request), most=3
        )
        words = [layout(word) for _, word in slots]
        every = [(valid, _but(word)) for (valid, _), word in zip(slots, words, strict=True)]
        for (valid, _), word in zip(slots[1:], words[1:], strict=True):
            self.claim(f"an element there {len(self.claims)}", ~valid | word.valid)
        held(self, self.order, every, "an element on its way")
        self._second(m, defined, slots, words)
        # An instruction's last element is the youngest one of those on their way once the loops have ended.
        younger: Value = walked.on
        for (valid, _), word in reversed(list(zip(slots, words, strict=True))):
            self.claim(f"the last one {len(self.claims)}", ~valid | (word.element.tag.end == ~younger))
            younger = younger | valid
        self.under_way = younger
        self.cover("an element out of range", self.pop & ~self.request.element.in_range)

    def _moved(self, m: Module) -> Value:
        """Whether the second operand has to be read: at the first element of each output, unless it is
        where it was."""
        walked, op = self.walked, self.op
        starts = walked.at_start("g", "ry", "rx")
        same = (op.b_ox == 0) & ~(walked.at_start("ox") & ((op.b_oy != 0) | walked.at_start("oy")))
        before, any_before = Signal.like(walked.values["b"], name="b_before"), Signal(name="b_is_before")
        with m.If(self.load):
            m.d.sync += any_before.eq(0)
        with m.Elif(walked.step):
            m.d.sync += [before.eq(walked.values["b"]), any_before.eq(1)]
        still = ~starts | same
        self.claim(
            "the second operand is where it was",
            ~(walked.on & still) | (any_before & (before == walked.values["b"])),
        )
        for loop, stride in (("ox", op.b_ox), ("oy", op.b_oy)):
            moved, kept = walked.moved["b", loop], walked.strides["b", loop]
            self.claim(f"the stride along {loop}", ~walked.on | (kept == stride[: len(kept)].as_signed()))
            self.claim(f"no way along {loop}", ~walked.on | (stride != 0) | (moved == 0))
        moves: Value = starts & ~same
        return moves

    def _second(self, m: Module, defined: Any, slots: Any, words: Any) -> None:
        """The second operand of an element is read before it, once."""
        order, granted = self.order, self.granted
        asked, done = Signal(name="asks_second"), Signal(name="second_is_read")
        with m.If(self.walked.step & ~order.watched):
            m.d.sync += asked.eq(defined.ask_second)
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
        self.cover("an element behind its second operand", read & done)

    def _instructions(self, m: Module) -> None:
        """When instructions are taken and done."""
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
        behind, read = self.peek("behind", 1), self.peek("read", 1)
        self.claim("two instructions at most", inside == dut.active + behind)
        self.claim("the second one is behind another", ~behind | dut.active)
        self.claim("read to the end", ~self.known | (read == ~unread))
        self.claim("elements are of an instruction", unread == self.under_way)
        self.claim("of one that was taken", (inside == 0) | self.known)
        self.claim("the second one of another", ~behind | self.older_known)
        self.claim("the others are ended", inside == ended + on_the_way + unread)
        self.claim("taken when all before is read", ~self.load | ~unread)
        self.claim(
            "one that is early reads no vectors",
            ~(self.load & dut.active) | _reads_none(dut.instruction.payload),
        )
        offered = self.peek("offered", 1)
        stands = dut.instruction.valid & _reads_none(dut.instruction.payload)
        self.claim("what is offered stands", ~offered | stands)
        self.claim("its mask", (inside == 0) | (dut.signal == Mux(inside == 2, self.older.signal, op.signal)))
        self.claim("the mask before", ~behind | (self.peek("before", len(op.signal)) == self.older.signal))
        self.inside = inside
        self.cover("an instruction behind another one", self.load & dut.active)
        self.cover("the end", end & (op.signal != 0) & (self.request.element.tag.index == 1))

    def _parameters(self, m: Module) -> None:
        """Vectors of the parameter block are read in their order, ahead of everything else."""
        granted, port = self.granted, self.dut.scratchpad
        done = Signal(range(PARAMETER_VECTORS + 1), name="parameters", init=PARAMETER_VECTORS)
        without = self.dut.instruction.payload.opcode == Opcode.NORMALISE
        with m.If(self.load):
            m.d.sync += done.eq(Mux(without, PARAMETER_VECTORS, 0))
        with m.Elif(granted.parameter):
            m.d.sync += done.eq(done + 1)
        self.claim("one of its vectors", ~granted.parameter | (done < PARAMETER_VECTORS))
        whole = done == PARAMETER_VECTORS
        self.claim("all of them ahead of elements", whole | ~(granted.valid | granted.second))
        self.left = self.peek("left", len(done))
        self.claim("vectors that are left", self.left == PARAMETER_VECTORS - done)
        place = self.peek("address", len(port.address))
        self.claim("where the next one is", whole | (place == (self.op.params + done)[: len(place)]))
        self.claim("they are of an instruction", whole | self.under_way)
        self.claim(
            "read where it is", ~granted.parameter | (port.address == (self.op.params + done)[: len(place)])
        )

    def _reads(self, m: Module) -> None:
        """What is granted was asked for in its place, and nothing else is read."""
        granted, request, op = self.granted, self.request, self.op
        scratchpad, accumulator = self.dut.scratchpad, self.dut.accumulator
        from_scratchpad = op.source == Source.SCRATCHPAD
        element = granted.valid & request.ask_source
        rows = accumulator.valid & accumulator.ready
        self.claim("a row for an element", rows == (element & ~from_scratchpad))
        self.claim("its row", ~rows | (accumulator.address == request.source[: len(accumulator.address)]))
        vectors = scratchpad.valid & scratchpad.ready
        self.claim(
            "a vector for each", vectors == (granted.parameter | granted.second | (element & from_scratchpad))
        )
        place = Mux(granted.second, request.second, request.source)[: len(scratchpad.address)]
        self.claim("its vector", ~vectors | granted.parameter | (scratchpad.address == place))
        self.claim("of an element that waits", ~(granted.valid | granted.second) | request.valid)
        self.claim("not both at once", ~granted.valid | ~(granted.second | granted.parameter))
        self.claim(
            "what is told of it", ~granted.valid | (granted.element.as_value() == request.element.as_value())
        )

    def _arrivals(self, m: Module) -> None:
        """What was granted is told when its data comes."""
        layout = self.granted.shape()
        due = self.granted.as_value()
        for stage in range(READ_LATENCY):
            due = ago(m, due, 1, f"arrival{stage}", reset=True)
            self.claim(f"on the way {stage}", self.peek(f"arrival_{stage}", layout.size) == due)
        self.claim("it arrives", self.dut.arrival.as_value() == due)

    def _follow(self) -> None:
        """Stages that follow the sequence are told where the loops stand, and what is granted."""
        sequence, walked, request = self.dut.sequence, self.walked, self.request
        place, grant, tag = sequence.place, sequence.grant, self.request.element.tag
        self.claim("a new instruction is told", sequence.load == self.load)
        self.claim("a step is told", sequence.step == walked.step)
        held = sequence.may_step & ~sequence.hold
        self.claim("it steps if it may and is not held", sequence.step == held)
        self.claim("it may behind no end", ~sequence.may_step | walked.on)
        for loop in ("ob", "ox", "g"):
            self.claim(f"first of {loop}", ~walked.on | (place[f"first_{loop}"] == walked.first[loop]))
        for loop in ("oy", "ox", "g"):
            self.claim(f"last of {loop}", ~walked.on | (place[f"last_{loop}"] == walked.last[loop]))
        told = {
            "granted": self.pop,
            "dst": tag.dst,
            "first": tag.index == 0,
            "last": tag.last,
            "end": tag.end,
            "alignment": request.second[: len(grant.alignment)],
        }
        for name, value in told.items():
            self.claim(f"{name} is told", grant[name] == value)
        self.claim("its note is told", grant.note.as_value() == request.note.as_value())
        ours = self.pop & (self.op.opcode == Opcode.SOFTMAX)
        self.cover("a second vector of scores", ours & tag.last & (request.second == 5) & (tag.dst == 3))

    def _settings(self, m: Module) -> None:
        """Later stages see the fields of the instruction whose elements they work on."""
        settling = self.peek("settling", 4)
        kept = self._view(instruction_layout(self.config), "instruction")
        own, older = (self._taken(m, op, name) for op, name in ((self.op, "own"), (self.older, "old")))
        self.claim("what is taken", ~self.known | (kept.as_value() == own.as_value()))
        current = self.dut.current.as_value()
        since = Signal(range(16), name="since", init=15)
        m.d.sync += since.eq(Mux(self.load, 0, since + (since != 15)))
        before = ago(m, settling, 1, "settling", reset=True)
        self.claim("just taken", (since != 0) | self.under_way)
        early = ago(m, self.load & self.dut.active, 1, "early", reset=True)
        self.claim("settling", (settling == 0) | (self.older_known & (settling + since == SETTLING)))
        changes = (settling != 0) | (before != 0)
        self.claim(
            "current while it settles", ~(changes | early) | ~self.older_known | (current == older.as_value())
        )
        settled = self.known & ~changes & ~early & (since != 0)
        self.claim("current", ~settled | (current == own.as_value()))
        ends = self.ends[0] & (settling <= 2) | self.ends[1] & (settling <= 1)
        self.claim("settled before its end", (settling == 0) | self.under_way | ends)
        self.claim("parameters while it settles", self.left + 3 >= settling)

    def _taken(self, m: Module, op: Any, name: str) -> Any:
        """What stages need of an instruction."""
        found = Signal(instruction_layout(self.config), name=f"taken_{name}")
        m.d.comb += [found[field].eq(op[field]) for field in ("source", "h", "w", "pad", "signal")]
        m.d.comb += [found.settings[field].eq(op[field]) for field, _ in settings_layout(self.config)]
        m.d.comb += [
            found.bounded.eq(op.opcode == Opcode.VEC),
            found.second.eq(op.add),
            found.same_row.eq(op.b_oy == 0),
            found.same_column.eq(op.b_ox == 0),
            found.multiply.eq(op.multiply),
            found.settings.add.eq(op.add & ~op.multiply),
        ]
        return found


def _reads_none(op: Any) -> Value:
    reads_none: Value = (op.opcode == Opcode.VEC) & (op.source == Source.ACCUMULATOR) & ~op.add
    return reads_none


def _but(request: Any) -> Value:
    """A request without the bit that changes while it waits."""
    return Cat(*(Value.cast(request[name]) for name, _ in request.shape() if name != "ask_second"))


def properties() -> Iterator[Property]:
    yield ReaderBench.proves(
        "vector/vec_reader",
        "reads of VEC",
        Induction(4),
        SMALLEST.replace(lanes=1, lookup_tables=0, probability_bits=0),
        claim="For every VEC, of any length and with any fields, the parameter block is read, then elements "
        "in the order of its loops, where they are defined and unless they are out of range, each behind its "
        "second operand; later stages are told with the data what it is, and have the fields of its "
        "instruction.",
        cover=22,
    )
    yield ReaderBench.proves(
        "vector/vec_reader",
        "reads of SOFTMAX, NORMALISE and VEC",
        Induction(2),
        SMALLEST.replace(lanes=1, lookup_tables=0, probability_bits=8),
        claim="In any mix of them, each reads its parameter block, if it has one, then all elements in the "
        "order of its loops; what is noted of a vector goes with it, and the address of its alignment; later "
        "stages are told with the data what it is, have the fields of its instruction, and are told where the "
        "loops stand.",
        cover=22,
    )
