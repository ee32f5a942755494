"""Properties of LOAD: the bytes of its vectors, for short rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value

from weft.extras.proof.hardware.instructions.load import split_passes, unpack_fields
from weft.extras.proof.hardware.pipelines import ago
from weft.extras.proof.hardware.property import Bench, Bounded, Property
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import assume_stable, within
from weft.hdl.isa import WORD_BITS, Load
from weft.hdl.load.unpack import Unpacker

_DEPTH = 9


class BytesBench(Bench):
    """The unpacker puts the bytes of memory, or fill bytes, into vectors.

    The inputs are free: beats come, and vectors are taken, at any time. Assumed: the unpacker gets the fields that
    `RequestsBench` claims; rows are whole lines; beats stay until they are taken. Fields are limited by `MOST`: larger
    instructions do not fit into the cycles of the proof. All other fields are unconstrained.
    """

    MOST: ClassVar[dict[str, int]] = {"rows": 2, "pixels": 2, "length": 3, "pitch": 3, "before": 3, "run": 5}
    BEATS = 8

    UNIT = Unpacker

    def watch(self, m: Module) -> None:
        dut, config = self.dut, self.config
        self.free_inputs(m, "unpack")
        assume_stable(m, self, dut.beat, "beat")
        offered, self.first = Load.layout()(self.free(WORD_BITS, "offered")), self.free(32, "first_byte")
        m.d.comb += dut.unpack.valid.eq(self.free(1, "offers"))
        fields = unpack_fields(offered, self.first, config)
        m.d.comb += [dut.unpack.payload[name].eq(value) for name, value in fields.items()]
        self.load, self.op = Signal(name="loads"), Signal(Load.layout(), name="op")
        m.d.comb += self.load.eq(dut.unpack.valid & dut.unpack.ready)
        with m.If(self.load):
            m.d.sync += self.op.eq(offered)
        for name, most in self.MOST.items():
            least = 0 if name == "before" else 1
            self.assume(~self.load | ((offered[name] >= least) & (offered[name] <= most)))
        self.assume(~self.load | (offered.line == 1) | (offered.line == offered.rows))
        if config.int4:
            jump = (offered.row_pitch + offered.skip)[:32]
            aligned = Cat(
                value % config.bus_bytes == 0 for value in (self.first, offered.row_pitch, jump)
            ).all()
            self.assume(~self.load | ~offered.int4 | aligned)
        self.size = self.op.run[:4] << (self.op.int4 if config.int4 else 0)
        self.cut = self.peek("nest.step", 1)
        self._model_loops(m)
        self._record_beats(m)
        self._claim_bytes(m)

    def _model_loops(self, m: Module) -> None:
        """Count the row, the vector of a pixel, and the pixel that is cut next.

        Pixels are the inner loop where rows are read again for each vector.
        """
        op, cut, n = self.op, self.cut, self.config.n
        vectors, again = split_passes(op, self.config)
        row, pixel, vector = (Signal(4, name=name) for name in ("row", "pixel", "vector"))
        last_pixel, last_vector = pixel == op.pixels - 1, vector == vectors - 1
        self.pass_ends = last_pixel & (again | last_vector)
        row_ends = last_pixel & last_vector
        with m.If(self.load):
            m.d.sync += [row.eq(0), pixel.eq(0), vector.eq(0)]
        with m.Elif(cut):
            inner = Mux(again, last_pixel, last_vector)
            m.d.sync += pixel.eq(Mux(again | inner, Mux(last_pixel, 0, pixel + 1), pixel))
            m.d.sync += vector.eq(Mux(again & ~inner, vector, Mux(last_vector, 0, vector + 1)))
            m.d.sync += row.eq(row + row_ends)
        known = Signal(name="known")
        m.d.sync += known.eq(known | self.load)
        beat = self.dut.beat
        waits = known & ~self.load & (row < op.rows) & beat.valid & self.dut.vector.ready & ~cut & ~beat.ready
        within(m, self, waits, 5, "a vector is cut or a beat is taken")
        self.in_pixel, self.in_row = Signal(6, name="in_pixel"), Signal(8, name="in_row")
        m.d.comb += [self.in_pixel.eq(vector * n), self.in_row.eq(pixel * op.pitch[:3] + self.in_pixel)]
        # Where the row begins in its first word.
        bus, line_ends = self.config.bus_bytes, op.line == 1
        self.align = Signal(range(bus), name="align")
        with m.If(self.load):
            m.d.sync += self.align.eq(self.first)
        with m.Elif(cut & row_ends):
            m.d.sync += self.align.eq(self.align + op.row_pitch + Mux(line_ends, op.skip, 0))
        self.cover("a second row", cut & (row == 1) & (self.align == 3))
        self.cover("a second pass", cut & again & (vector == 1) & (pixel == 1))

    def _record_beats(self, m: Module) -> None:
        """Record the beats in their order; the beat that waits counts. The beats of a pass follow those of the pass
        before.
        """
        beat, op, bus = self.dut.beat, self.op, self.config.bus_bytes
        places = range(self.BEATS)
        self.came, self.begins = Signal(places, name="beats_came"), Signal(places, name="pass_begins")
        store = Array(Signal(len(beat.payload), name=f"beat{k}") for k in places)
        with m.If(beat.valid & beat.ready):
            m.d.sync += [store[self.came].eq(beat.payload), self.came.eq(self.came + 1)]
        beats = (self.align + op.run[:4] - 1) // bus + 1
        if self.config.int4:
            # Each word of the bus comes as two.
            beats = beats << op.int4
            self.claim("which words are widened", ~(beat.valid & beat.ready) | (self.dut.narrow == op.int4))
        with m.If(self.cut & self.pass_ends):
            m.d.sync += self.begins.eq(self.begins + beats)
        self.store = store

    def _claim_bytes(self, m: Module) -> None:
        """Claim that each lane has its byte of memory or the fill byte, two cycles after its vector is cut."""
        op, n, bus, beat = self.op, self.config.n, self.config.bus_bytes, self.dut.beat
        vector = self.dut.vector.payload.shape()(
            self.peek("queue.w_data", len(self.dut.vector.payload.as_value()))
        )
        written = ago(m, self.cut, 2, "cut", reset=True)
        self.claim("a vector for each", self.peek("queue.w_en", 1) == written)
        for lane in range(n):
            at = self.in_row + lane
            from_memory = (
                (self.in_pixel + lane < op.length) & (at >= op.before) & (at < op.before + self.size)
            )
            place = Signal(8, name=f"place{lane}")
            m.d.comb += place.eq(self.align + at - op.before)
            number = Signal(range(self.BEATS), name=f"beat_of{lane}")
            m.d.comb += number.eq(self.begins + place // bus)
            waits = number == self.came
            word = Mux(waits, beat.payload, self.store[number])
            self.claim(f"the beat of lane {lane} is there", ~(self.cut & from_memory & waits) | beat.valid)
            byte = Mux(from_memory, word.word_select(place % bus, 8), op.fill.as_unsigned())
            due = ago(m, byte, 2, f"byte{lane}")
            self.claim(f"lane {lane}", ~written | (vector.data.word_select(lane, 8) == due))
            known = ago(m, self.cut & from_memory, 2, f"from_memory{lane}", reset=True)
            self.cover(f"a byte of memory in lane {lane}", known & (due == 0x5A))
        self._claim_order(m, written, vector)

    def _claim_order(self, m: Module, written: Value, vector: Any) -> None:
        """Claim that vectors leave unchanged and in order; the watched vector may be any."""
        out, watched = self.dut.vector, self.constant(m, 3, "watched")
        came, gone, word = (
            Signal(3, name="vectors_came"),
            Signal(3, name="vectors_gone"),
            Signal(len(vector.as_value())),
        )
        with m.If(written):
            m.d.sync += came.eq(came + 1)
            with m.If(came == watched):
                m.d.sync += word.eq(vector.as_value())
        m.d.sync += gone.eq(gone + (out.valid & out.ready))
        self.claim("none leaves that did not come", ~out.valid | (came != gone))
        self.claim("one that came stands", out.valid | (came == gone))
        leaves = out.valid & (gone == watched)
        self.claim("it leaves as it came", ~leaves | (out.payload.as_value() == word))
        self.cover("the second one leaves", leaves & (watched == 1) & out.ready)


def properties() -> Iterator[Property]:
    yield BytesBench.proves(
        "load/unpack",
        "bytes of vectors",
        Bounded(_DEPTH),
        SMALLEST.replace(int4=0),
        claim="Each lane of a vector has the byte of memory that LOAD defines, or the fill byte, for rows of "
        "up to 2 pixels of up to 3 bytes, whether they overlap or not.",
        cover=_DEPTH,
    )
    yield BytesBench.proves(
        "load/unpack",
        "bytes of vectors, values of 4 bits",
        Bounded(_DEPTH),
        SMALLEST.replace(int4=1),
        claim="As without values of 4 bits, where words of the bus hold such values, and the widener makes two "
        "words of each.",
        cover=_DEPTH,
        part=True,
    )
