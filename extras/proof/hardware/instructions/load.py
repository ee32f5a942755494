"""Properties of LOAD: its requests to memory, the places of its vectors, and their bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import ago, flag, implies, latch, latch_all, was
from weft.extras.proof.hardware.property import Bench, Bounded, Induction, proves
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import assume_stable, transfer, within
from weft.extras.proof.hardware.walks import WalkModel, walk_fields
from weft.hdl.isa import WORD_BITS, Load
from weft.hdl.isa.config import Config
from weft.hdl.isa.instructions import INT4_RUN_MAX
from weft.hdl.load.load import LoadRequests
from weft.hdl.load.unpack import Unpacker, unpack_layout

_VARIANTS = {
    "": SMALLEST,
    " with transposition and values of 4 bits": SMALLEST.replace(probability_bits=7, int4=1),
    " with blocks, and base registers in the offset": SMALLEST.replace(n=4, int4=2, loops=1),
}
_DEPTH = 9
"""Cycles of the proof of bytes; `BytesBench.MOST` limits instructions to those that fit."""
_LOOPS = {"rows": 12, "outer": 16, "inner": 16}
_PLACE = {"row": 12, "inside": 12, "number": 16}
"""Bits of the model of requests: the row, its number in its line, and its pass."""


def split_passes(op: Any, config: Config) -> tuple[Value, Value]:
    """Return the number of vectors of a pixel, and whether each row is read once for each of these vectors.

    Rows are read again where pixels of several vectors overlap.
    """
    vectors = ((op.length + (config.n - 1)) // config.n)[:16]
    return vectors, (op.pitch < op.length) & (vectors != 1) & (op.pixels != 1)


def unpack_fields(op: Any, first: Value, config: Config) -> dict[str, Any]:
    """Return the fields of `weft.hdl.load.unpack.unpack_layout` for an instruction whose first byte is at address
    `first`.
    """
    (vectors, again), bus, n = split_passes(op, config), config.bus_bytes, config.n
    rest = ((vectors - 1) * n)[:16]
    size, last = op.run, op.run - 1
    more: dict[str, Any] = {}
    if config.int4:
        # Each word of the bus becomes two.
        words = (op.run + (bus - 1)) // bus
        size, last = Mux(op.int4, op.run * 2, op.run), Mux(op.int4, words * (2 * bus) - 1, op.run - 1)
        more["int4"] = op.int4
    if config.softmax:
        more["transpose"] = op.transpose
    if config.blocks:
        more["blocks"] = op.blocks
    return more | {
        "signal": op.signal,
        "align": first % bus,
        "align_row": op.row_pitch.as_unsigned() % bus,
        "align_line": (op.row_pitch + op.skip)[:32] % bus,
        "line_last": op.line - 1,
        "before": op.before,
        "end": op.before + size,
        "run_last": last,
        "fill": op.fill.as_unsigned(),
        "tail": op.length - rest,
        "split": again,
        "split_last": Mux(again, rest, 0),
        "step_inner": Mux(again, op.pitch, n),
        "step_outer": (op.pitch - rest)[:16],
        "rows": op.rows,
        "outer": Mux(again, vectors, op.pixels),
        "inner": Mux(again, op.pixels, vectors),
        "dst": op.dst,
        "dst_rows": op.dst_row.as_unsigned(),
        "dst_outer": Mux(again, op.dst_vector, op.dst_pixel).as_unsigned(),
        "dst_inner": Mux(again, op.dst_pixel, op.dst_vector).as_unsigned(),
    }


@proves(
    "load/load", {f"runs of LOAD{name}": config for name, config in _VARIANTS.items()}, Induction(4), cover=16
)
class RequestsBench(Bench, unit=LoadRequests):
    """For every LOAD, of any length and with any fields, the unit requests runs of bytes row by row, at their addresses
    and of their lengths. Where pixels of several vectors overlap, it requests each row once for each vector. It
    describes each instruction to the unpacker.

    The inputs are free; base registers have any value when an instruction is taken. Assumed: an instruction stays until
    it is taken, its counts and lengths are at least 1, and its rows are whole lines; rows of values of 4 bits are no
    longer than the checker accepts. All other fields are unconstrained.
    """

    def watch(self, m: Module) -> None:
        dut, op = self.dut, self.dut.instruction.payload
        assume_stable(m, self, dut.instruction, "instruction")
        self.load = load = transfer(dut.instruction)
        counts = ("rows", "line", "pixels", "pitch", "length", "run")
        self.assume(implies(load, Cat(op[name] != 0 for name in counts).all()))
        if self.config.int4:
            self.assume(implies(load & op.int4, op.run <= INT4_RUN_MAX))
            self.assume(implies(load & op.blocks, op.int4))
        # With loops, the offset already contains the register.
        self.first = op.offset if self.config.loops else (dut.bases[op.base[:3]] + op.offset)[:32]
        self.vectors, self.again = split_passes(op, self.config)
        self._claim_runs(m)
        self._claim_unpack_fields()

    def _claim_runs(self, m: Module) -> None:
        op, load, run = self.dut.instruction.payload, self.load, self.dut.run
        # Every 16 values, which have half a byte each, come after their factor.
        factors = Mux(op.blocks, op.run // 16, 0) if self.config.blocks else 0
        fields = {name: op[name] for name in ("rows", "line", "row_pitch", "skip")}
        fields |= {"run": (op.run + factors)[: len(op.run)], "passes": Mux(self.again, self.vectors, 1)}
        rows, line, pitch, skip, size, passes = latch_all(m, load, fields).values()
        place, on, step = Signal(32, name="place"), Signal(name="on"), transfer(run)
        row, inside, number = (Signal(width, name=name) for name, width in _PLACE.items())
        last_pass, last_row, last_of_line = number == passes - 1, row == rows - 1, inside == line - 1
        with m.If(load):
            m.d.sync += [place.eq(self.first), on.eq(1), row.eq(0), inside.eq(0), number.eq(0)]
        with m.Elif(step & ~last_pass):
            m.d.sync += number.eq(number + 1)
        with m.Elif(step):
            m.d.sync += [number.eq(0), row.eq(row + 1), inside.eq(Mux(last_of_line, 0, inside + 1))]
            m.d.sync += [place.eq(place + pitch + Mux(last_of_line, skip, 0)), on.eq(~last_row)]
        self.claim("a run for each pass of each row", run.valid == on)
        with self.during(on):
            self.claim("where it begins", run.payload.address == place)
            self.claim("its bytes", run.payload.bytes == size)
            self.claim("counts", (row < rows) & (inside < line) & (number < passes))
            registers: dict[str, Value] = {"pitch": pitch.as_unsigned(), "jump": pitch + skip}
            registers |= {"rows": rows - 1 - row, "line": line - 1 - inside, "line_reload": line - 1}
            registers |= {"passes": passes - 1 - number, "passes_reload": passes - 1}
            self.claim_registers(registers, "register {}")
        self.cover("a second line of two rows", step & (row == 3) & (inside == 1) & (skip != 0))
        self.cover("a second pass", step & (number == 1) & (row == 0))

    def _claim_unpack_fields(self) -> None:
        unpack = self.dut.unpack
        fields = unpack_fields(self.dut.instruction.payload, self.first, self.config)
        assert set(fields) == set(unpack.payload.shape().members)
        self.claim("each is described to the unpacker", transfer(unpack) == self.load)
        with self.during(self.load):
            for name, value in fields.items():
                self.claim_equal(f"unpacker {name}", unpack.payload[name], value)


@proves(
    "load/unpack",
    {f"places of vectors{name}": config for name, config in list(_VARIANTS.items())[:2]},
    Induction(4),
    cover=16,
    part=True,
)
class PlacesBench(Bench, unit=Unpacker):
    """For every LOAD, of any length and with any fields, vectors are cut in the order of its loops, and each goes to
    its place; the last one carries the signal mask. Other properties prove the bytes of vectors, for short rows.

    The inputs are free: beats come, and vectors are taken, at any time. Assumed: counts are at least 1. All other
    fields are unconstrained.
    """

    def watch(self, m: Module) -> None:
        dut, op, config = self.dut, self.dut.unpack.payload, self.config
        load, width = transfer(dut.unpack), config.widths.scratchpad_address
        trackers = {"dst": (width, dict.fromkeys(_LOOPS, width))}
        walk = WalkModel(m, self, "nest", load=load, **walk_fields(op, _LOOPS, trackers))
        fields = latch_all(m, load, {"signal": op.signal, "fill": op.fill})
        stored = unpack_layout(config)(self.peek("op"))
        active, running, draining = (self.peek(name) for name in ("active", "running", "draining"))
        waits = self.peek("wait").any()
        with self.during(walk.on):
            self.claim("what is kept", Cat(stored[name] == field for name, field in fields.items()).all())
            self.claim("taken when all before is cut", ~load)
            self.claim("at work", active)
        self.claim("a pass runs for a vector", implies(running, walk.on))
        self.claim("the first pass comes for a vector", implies(waits, walk.on & ~running & ~draining))
        self.claim("no pass of none", active | ~(running | draining | waits))
        self.claim("a pass runs or ends", ~(running & draining))
        self._claim_vectors(m, walk, fields)

    def _claim_vectors(self, m: Module, walk: WalkModel, fields: Mapping[str, Value]) -> None:
        """Claim the destination and signal of a vector, which reach the queue two cycles after it is cut."""
        cut = ago(m, walk.step, 2, "cut", reset=True)
        vector = self.dut.vector.payload.shape()(self.peek("queue.w_data"))
        self.claim("a vector for each", self.peek("queue.w_en") == cut)
        with self.during(cut):
            self.claim("where it goes", vector.address == ago(m, walk.values["dst"], 2, "address"))
            self.claim(
                "its signal", vector.signal == ago(m, Mux(walk.ends, fields["signal"], 0), 2, "signal")
            )
        if self.config.softmax:
            self._claim_transposition(m, walk, vector, cut, fields["fill"])
        self.cover("the last one", cut & (vector.signal != 0) & ~walk.on)

    def _claim_transposition(self, m: Module, walk: WalkModel, vector: Any, cut: Value, fill: Value) -> None:
        op, stored = self.dut.unpack.payload, unpack_layout(self.config)(self.peek("op"))
        names = {"transpose": "transpose", "dst_group": "dst_rows"}
        names |= {"dst_pixel": "dst_outer", "dst_vector": "dst_inner"}
        fields = latch_all(m, walk.load, {name: Value.cast(op[of]) for name, of in names.items()})
        with self.during(walk.on):
            for name, field in fields.items():
                self.claim(f"{name} is kept", Value.cast(stored[names[name]]) == field)
        with self.during(cut):
            for name, field in (fields | {"fill": fill}).items():
                self.claim(f"{name} of a vector", Value.cast(vector[name]) == ago(m, field, 2, f"{name}_due"))
            self.claim("the last vector", vector.last == ago(m, walk.ends, 2, "ends"))
            pixel_ends = ago(m, walk.last["inner"], 2, "pixel_ends")
            self.claim("the last vector of a pixel", vector.pixel_end == pixel_ends)


@proves("load/unpack", "bytes of vectors", Bounded(_DEPTH), SMALLEST.replace(int4=0), cover=_DEPTH + 3)
@proves(
    "load/unpack",
    "bytes of vectors, values of 4 bits",
    Bounded(_DEPTH),
    SMALLEST.replace(int4=1),
    cover=_DEPTH + 3,
    part=True,
    claim="As without values of 4 bits, where words of the bus hold such values, and the widener makes two "
    "words of each.",
)
class BytesBench(Bench, unit=Unpacker, drives=("unpack",)):
    """Each lane of a vector has the byte of memory that LOAD defines, or the fill byte, for rows of up to 2 pixels of
    up to 3 bytes, whether they overlap or not.

    The inputs are free: beats come, and vectors are taken, at any time. Assumed: the unpacker gets the fields that
    `RequestsBench` claims; rows are whole lines; beats stay until they are taken. Fields are limited by `MOST`: larger
    instructions do not fit into the cycles of the proof. All other fields are unconstrained.
    """

    MOST: ClassVar[dict[str, int]] = {"rows": 2, "pixels": 2, "length": 3, "pitch": 3, "before": 3, "run": 5}
    BEATS = 8

    def watch(self, m: Module) -> None:
        dut, config = self.dut, self.config
        assume_stable(m, self, dut.beat, "beat")
        offered, self.first = Load.layout()(self.free(WORD_BITS, "offered")), self.free(32, "first_byte")
        m.d.comb += dut.unpack.valid.eq(self.free(1, "offers"))
        fields = unpack_fields(offered, self.first, config)
        m.d.comb += [dut.unpack.payload[name].eq(value) for name, value in fields.items()]
        self.load = transfer(dut.unpack)
        self.op = latch(m, self.load, offered, Load.layout(), "op")
        for name, most in self.MOST.items():
            least = 0 if name == "before" else 1
            self.assume(~self.load | ((offered[name] >= least) & (offered[name] <= most)))
        self.assume(~self.load | (offered.line == 1) | (offered.line == offered.rows))
        if config.int4:
            places = (self.first, offered.row_pitch, (offered.row_pitch + offered.skip)[:32])
            aligned = Cat(value % config.bus_bytes == 0 for value in places).all()
            self.assume(~self.load | ~offered.int4 | aligned)
        self.size = self.op.run[:4] << (self.op.int4 if config.int4 else 0)
        self.cut = self.peek("nest.step")
        self._model_loops(m)
        self._record_beats(m)
        self._claim_bytes(m)

    def _model_loops(self, m: Module) -> None:
        """Count the row, the vector of a pixel, and the pixel that is cut next.

        Pixels are the inner loop where rows are read again for each vector.
        """
        op, cut, beat = self.op, self.cut, self.dut.beat
        vectors, again = split_passes(op, self.config)
        row, pixel, vector = (Signal(4, name=name) for name in ("row", "pixel", "vector"))
        last_pixel, last_vector = pixel == op.pixels - 1, vector == vectors - 1
        self.pass_ends, row_ends = last_pixel & (again | last_vector), last_pixel & last_vector
        self.align = Signal(range(self.config.bus_bytes), name="align")  # of the row in its first word
        with m.If(self.load):
            m.d.sync += [row.eq(0), pixel.eq(0), vector.eq(0), self.align.eq(self.first)]
        with m.Elif(cut):
            inner = Mux(again, last_pixel, last_vector)
            m.d.sync += pixel.eq(Mux(again | inner, Mux(last_pixel, 0, pixel + 1), pixel))
            m.d.sync += vector.eq(Mux(again & ~inner, vector, Mux(last_vector, 0, vector + 1)))
            m.d.sync += row.eq(row + row_ends)
            with m.If(row_ends):
                m.d.sync += self.align.eq(self.align + op.row_pitch + Mux(op.line == 1, op.skip, 0))
        known = flag(m, self.load, 0, "known")
        waits = known & ~self.load & (row < op.rows) & beat.valid & self.dut.vector.ready & ~cut & ~beat.ready
        within(m, self, waits, 5, "a vector is cut or a beat is taken")
        self.in_pixel, self.in_row = Signal(6, name="in_pixel"), Signal(8, name="in_row")
        m.d.comb += self.in_pixel.eq(vector * self.config.n)
        m.d.comb += self.in_row.eq(pixel * op.pitch[:3] + self.in_pixel)
        self.cover("a second row", cut & (row == 1) & (self.align == 3))
        self.cover("a second pass", cut & again & (vector == 1) & (pixel == 1))

    def _record_beats(self, m: Module) -> None:
        """Record the beats in their order; the beat that waits counts. The beats of a pass follow those of the pass
        before.
        """
        beat, op = self.dut.beat, self.op
        places, taken = range(self.BEATS), transfer(beat)
        self.came, self.begins = Signal(places, name="beats_came"), Signal(places, name="pass_begins")
        self.store = Array(Signal(len(beat.payload), name=f"beat{k}") for k in places)
        with m.If(taken):
            m.d.sync += [self.store[self.came].eq(beat.payload), self.came.eq(self.came + 1)]
        beats = (self.align + op.run[:4] - 1) // self.config.bus_bytes + 1
        if self.config.int4:
            beats = beats << op.int4  # each word of the bus comes as two
            self.claim("which words are widened", ~taken | (self.dut.narrow == op.int4))
        with m.If(self.cut & self.pass_ends):
            m.d.sync += self.begins.eq(self.begins + beats)

    def _claim_bytes(self, m: Module) -> None:
        """Claim that each lane has its byte of memory or the fill byte, two cycles after its vector is cut."""
        op, bus, beat = self.op, self.config.bus_bytes, self.dut.beat
        vector = self.dut.vector.payload.shape()(self.peek("queue.w_data"))
        written = ago(m, self.cut, 2, "cut", reset=True)
        self.claim("a vector for each", self.peek("queue.w_en") == written)
        for lane in range(self.config.n):
            at = self.in_row + lane
            inside = (at >= op.before) & (at < op.before + self.size)
            from_memory = (self.in_pixel + lane < op.length) & inside
            place, number = Signal(8, name=f"place{lane}"), Signal(range(self.BEATS), name=f"beat_of{lane}")
            m.d.comb += [place.eq(self.align + at - op.before), number.eq(self.begins + place // bus)]
            waits = number == self.came
            word = Mux(waits, beat.payload, self.store[number])
            self.claim(f"the beat of lane {lane} is there", ~(self.cut & from_memory & waits) | beat.valid)
            byte = Mux(from_memory, word.word_select(place % bus, 8), op.fill.as_unsigned())
            due = ago(m, byte, 2, f"byte{lane}")
            self.claim(f"lane {lane}", ~written | (vector.data.word_select(lane, 8) == due))
            known = ago(m, self.cut & from_memory, 2, f"from_memory{lane}", reset=True)
            self.cover(f"a byte of memory in lane {lane}", known & (due == 0x5A))
        self._claim_order(m, written, vector.as_value())

    def _claim_order(self, m: Module, written: Value, vector: Value) -> None:
        """Claim that vectors leave unchanged and in order; the watched vector may be any."""
        out, watched = self.dut.vector, self.constant(m, 3, "watched")
        came, gone = Signal(3, name="vectors_came"), Signal(3, name="vectors_gone")
        word = latch(m, written & (came == watched), vector, len(vector), "word")
        m.d.sync += [came.eq(came + written), gone.eq(gone + transfer(out))]
        self.claim("none leaves that did not come", ~out.valid | (came != gone))
        # A vector passes a register behind the queue.
        self.claim("one that came stands a cycle later", out.valid | (was(m, came, "came_before") == gone))
        leaves = out.valid & (gone == watched)
        self.claim("it leaves as it came", ~leaves | (out.payload.as_value() == word))
        self.cover("the second one leaves", leaves & (watched == 1) & out.ready)
