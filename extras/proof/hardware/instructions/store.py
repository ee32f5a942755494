"""The effect of STORE: which vectors it reads, and where in memory their bytes go, for instructions of any length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import ago
from weft.extras.proof.hardware.property import Bench, Induction, Property
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import Order, assume_stable
from weft.extras.proof.hardware.walks import Walked, held, skid_slots
from weft.hdl.isa.operands import READ_LATENCY
from weft.hdl.store import READS, StoreReader, StoreRequests, vector_layout

_LOOPS = {"rows": 12, "pixels": 16, "vectors": 16}


class RequestsBench(Bench):
    """For every STORE, of any length and with any fields, runs of bytes are asked for in the order of its loops, where
    they are defined and of as many bytes; the last one bears the mask; the reader is told of each.

    What turns STORE into runs of bytes, in free inputs; base registers have any value when it is taken.

    Assumed: an instruction stands until it is taken, with its counts and its length at least 1. All other fields are
    any.
    """

    UNIT = StoreRequests

    def watch(self, m: Module) -> None:
        dut, op = self.dut, self.dut.instruction.payload
        self.free_inputs(m)
        assume_stable(m, self, dut.instruction, "instruction")
        load = Signal(name="loads")
        m.d.comb += load.eq(dut.instruction.valid & dut.instruction.ready)
        self.assume(~load | ((op.length != 0) & (op.pixels != 0)))
        merged = (op.pitch == op.length) | (op.pixels == 1)
        first = (dut.bases[op.base[:3]] + op.offset)[:32]
        step = dut.run.valid & dut.run.ready
        walked = Walked(
            m,
            self,
            "nest",
            {"rows": 12, "pixels": 16},
            {"address": (32, {"rows": 32, "pixels": 17})},
            load=load,
            step=step,
            counts={"rows": op.rows, "pixels": Mux(merged, 1, op.pixels)},
            bases={"address": first},
            strides={"address": {"rows": op.row_pitch, "pixels": op.pitch}},
        )
        self.claim(
            "taken when the one before is through", dut.instruction.ready == (~walked.on & dut.read.ready)
        )
        self._runs(m, walked, load, merged)
        self._described(first, merged, load)
        waited = ago(m, dut.run.valid & ~dut.run.ready, 1, "waited", reset=True)
        before = ago(m, dut.run.payload.as_value(), 1, "before")
        self.claim("a run stays", ~waited | (dut.run.valid & (dut.run.payload.as_value() == before)))

    def _runs(self, m: Module, walked: Walked, load: Value, merged: Value) -> None:
        """Runs in the order of loops: of a pixel's bytes, or of all of a row where pixels follow each other."""
        op, run = self.dut.instruction.payload, self.dut.run
        length, factor, mask = (
            Signal(16, name="length"),
            Signal(16, name="factor_kept"),
            Signal.like(op.signal, name="mask"),
        )
        place = Signal(range(17), name="place")
        with m.If(load):
            m.d.sync += [
                length.eq(op.length),
                factor.eq(Mux(merged, op.pixels, 1)),
                mask.eq(op.signal),
                place.eq(0),
            ]
        left, counted, addend = self.peek("factor", 16), self.peek("counted", 1), self.peek("addend", 32)
        # The product of the two, by the method of paper and pencil.
        so_far = Signal(32, name="bytes_so_far")
        with m.If(load):
            m.d.sync += so_far.eq(0)
        with m.Elif(~counted & (place != 16)):
            m.d.sync += place.eq(place + 1)
            m.d.sync += so_far.eq(so_far + Mux(factor.bit_select(place, 1), (length << place)[:32], 0))
        on = walked.on
        self.claim("counted so far", ~on | (run.payload.bytes == so_far))
        self.claim("what is left to count", ~on | (left == (factor >> place)))
        self.claim("the next part", ~on | (addend == (length << place)[:32]))
        self.claim("bits of the count", place <= 16)
        self.claim("some is left", ~on | counted | (place != 16))
        self.claim("nothing is left when all is counted", ~(on & counted) | (left == 0))
        self.claim("counts", ~on | ((length != 0) & (factor != 0)))
        self.claim("the mask is kept", ~on | (self.peek("signal", len(mask)) == mask))
        self.claim("a run", run.valid == (on & counted))
        self.claim("where it begins", ~on | (run.payload.address == walked.values["address"]))
        self.claim("its bytes", ~run.valid | ((factor >> place) == 0))
        self.claim("its tag", ~on | (run.payload.tag == Mux(walked.ends, Cat(1, mask), 0)))
        self.cover(
            "the last of several runs", run.valid & walked.ends & ~walked.at_start("rows") & (length > 4)
        )
        self.cover("a run of several pixels", run.valid & (factor == 3) & (length == 3))

    def _described(self, first: Value, merged: Value, load: Value) -> None:
        """What the reader is told."""
        op, read, n = self.dut.instruction.payload, self.dut.read, self.config.n
        told, width = read.payload, len(self.dut.read.payload.src)
        vectors = ((op.length + (n - 1)) // n)[:16]
        fields: dict[str, Any] = {
            "merged": merged,
            "rows": op.rows,
            "pixels": op.pixels,
            "vectors": vectors,
            "src": op.src[:width],
            "src_rows": op.src_row.as_unsigned()[:width],
            "src_pixels": op.src_pixel.as_unsigned()[:width],
            "src_vectors": op.src_vector.as_unsigned()[:width],
            "pointer": first[:12],
            "pointer_rows": op.row_pitch.as_unsigned()[:12],
            "pointer_pixels": op.pitch[:12],
            "pointer_vectors": n,
        }
        self.claim("the reader is told of each", (read.valid & read.ready) == load)
        for name, value in fields.items():
            self.claim(f"{name} is told", ~load | (told[name] == value))
        self.claim("the last vector's bytes", ~load | ((told.tail + (vectors - 1) * n)[:17] == op.length))


class ReadsBench(Bench):
    """For every STORE, of any length and with any fields, vectors are read in the order of its loops, each once and
    where it is defined; with its data come its place in memory, its bytes, and whether it ends a run.

    What reads the vectors of STORE, in free inputs: reads are refused at any time.

    Assumed: what is to be read stands until it is taken, with counts of at least 1; all other fields are any.

    Each vector is followed, by what is defined of it, from the loop nest to its read and on to the next stage.
    """

    UNIT = StoreReader

    def watch(self, m: Module) -> None:
        dut, op = self.dut, self.dut.read.payload
        self.free_inputs(m)
        assume_stable(m, self, dut.read, "read")
        load = Signal(name="loads")
        m.d.comb += load.eq(dut.read.ready)
        step = self.peek("nest.step", 1)
        widths = {"src": self.config.widths.scratchpad_address, "pointer": 12}
        walked = Walked(
            m,
            self,
            "nest",
            _LOOPS,
            {name: (width, dict.fromkeys(_LOOPS, width)) for name, width in widths.items()},
            load=load,
            step=step,
            counts={loop: op[loop] for loop in _LOOPS},
            bases={name: op[name] for name in widths},
            strides={name: {loop: op[f"{name}_{loop}"].as_signed() for loop in _LOOPS} for name in widths},
        )
        self.claim("taken if it is there", ~load | dut.read.valid)
        self.claim("taken when all before is on its way", ~load | ~walked.on)
        self._reads(m, walked, load)

    def _reads(self, m: Module, walked: Walked, load: Value) -> None:
        dut, op, n = self.dut, self.dut.read.payload, self.config.n
        merged, tail = Signal(name="merged"), Signal.like(op.tail, name="tail")
        with m.If(load):
            m.d.sync += [merged.eq(op.merged), tail.eq(op.tail)]
        kept_op = op.shape()(self.peek("op", op.shape().size))
        self.claim("what is kept", ~walked.on | ((kept_op.merged == merged) & (kept_op.tail == tail)))
        layout = vector_layout(self.config)
        defined = Signal(layout, name="defined")
        width, values = self.config.widths.scratchpad_address, walked.values
        m.d.comb += [
            defined.pointer.eq(values["pointer"]),
            defined.count.eq(Mux(walked.at_end("vectors"), tail, n)),
            defined.last.eq(walked.at_end("vectors") & (walked.at_end("pixels") | ~merged)),
        ]
        word = Cat(values["src"], defined.as_value())
        size = width + layout.size
        coming = self.peek("skid.i__payload", size)
        self.claim("the vector that comes", ~walked.on | (coming == word))
        port = dut.scratchpad
        slots = skid_slots(self, size)
        following = slots[0][1]
        granted = port.valid & port.ready
        order = Order(m, self, push=walked.step, i=word, pop=granted, o=following, most=2)
        held(self, order, slots, "a vector on its way")
        self.claim("read where it is", port.address == following[:width])
        self._arrive(m, granted, layout(following[width:]))
        self.cover("the last vector of several rows", granted & ~walked.on & walked.last["rows"])

    def _arrive(self, m: Module, granted: Value, told: Any) -> None:
        """What is told of a vector comes with its data to the queue, in which there is room."""
        dut, layout = self.dut, told.shape()
        due, valid = told.as_value(), granted
        on_the_way: Value = Const(0)
        for stage in range(READ_LATENCY):
            due = ago(m, due, 1, f"told{stage}", reset=True)
            valid = ago(m, valid, 1, f"granted{stage}", reset=True)
            on_the_way = on_the_way + valid
            self.claim(f"on the way {stage}", self.peek(f"stage{stage}", layout.size) == due)
            self.claim(f"valid on the way {stage}", self.peek(f"valid{stage}", 1) == valid)
        arrived = layout(self.peek("queue.w_data", layout.size))
        self.claim("a vector arrives", self.peek("queue.w_en", 1) == valid)
        for name in ("pointer", "count", "last"):
            self.claim(f"its {name}", ~valid | (arrived[name] == layout(due)[name]))
        self.claim("its data", ~valid | (arrived.data == dut.scratchpad.data))
        level, credits = (
            self.peek("queue.level", READS.bit_length()),
            self.peek("credits", READS.bit_length()),
        )
        self.claim(
            "there is room", (credits + level + on_the_way == READS) & (credits <= READS) & (level <= READS)
        )
        leaves = dut.vector.valid & dut.vector.ready
        self.claim("none leaves an empty queue", ~leaves | (level != 0))
        self.cover("the queue is full", level == READS)


def properties() -> Iterator[Property]:
    yield RequestsBench.proves("store/store", "runs of STORE", Induction(4), SMALLEST, cover=16)
    yield ReadsBench.proves("store/store", "vectors of STORE", Induction(4), SMALLEST, cover=16)
