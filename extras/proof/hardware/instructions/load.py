"""Properties of LOAD: its requests to memory, the places of its vectors, and their bytes."""

from __future__ import annotations

from typing import Any, ClassVar

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import ago
from weft.extras.proof.hardware.property import Bench, Bounded, Induction, proves
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import assume_stable, within
from weft.extras.proof.hardware.walks import WalkModel
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
class RequestsBench(Bench):
    """For every LOAD, of any length and with any fields, the unit requests runs of bytes row by row, at their addresses
    and of their lengths. Where pixels of several vectors overlap, it requests each row once for each vector. It
    describes each instruction to the unpacker.

    The inputs are free; base registers have any value when an instruction is taken. Assumed: an instruction stays until
    it is taken, its counts and lengths are at least 1, and its rows are whole lines; rows of values of 4 bits are no
    longer than the checker accepts. All other fields are unconstrained.
    """

    UNIT = LoadRequests

    def watch(self, m: Module) -> None:
        dut, op = self.dut, self.dut.instruction.payload
        self.free_inputs(m)
        assume_stable(m, self, dut.instruction, "instruction")
        self.load = Signal(name="loads")
        m.d.comb += self.load.eq(dut.instruction.valid & dut.instruction.ready)
        counts = ("rows", "line", "pixels", "pitch", "length", "run")
        self.assume(~self.load | Cat(*(op[name] != 0 for name in counts)).all())
        if self.config.int4:
            self.assume(~self.load | ~op.int4 | (op.run <= INT4_RUN_MAX))
            self.assume(~self.load | ~op.blocks | op.int4)
        # With loops, the offset already contains the register.
        self.first = op.offset if self.config.loops else (dut.bases[op.base[:3]] + op.offset)[:32]
        self.vectors, self.again = split_passes(op, self.config)
        self._claim_runs(m)
        self._claim_unpack_fields()

    def _claim_runs(self, m: Module) -> None:
        op, load, run = self.dut.instruction.payload, self.load, self.dut.run
        names = ("rows", "line", "row_pitch", "skip", "run")
        # Every 16 values, which have half a byte each, come after their factor.
        factors = Mux(op.blocks, op.run // 16, 0) if self.config.blocks else 0
        fields = {name: Signal.like(op[name], name=f"field_{name}") for name in names}
        pass_count, place = Signal(16, name="passes_kept", init=1), Signal(32, name="place")
        row, inside, number = (
            Signal(width, name=name) for name, width in (("row", 12), ("inside", 12), ("number", 16))
        )
        on, step = Signal(name="on"), run.valid & run.ready
        last_pass, last_row = number == pass_count - 1, row == fields["rows"] - 1
        last_of_line = inside == fields["line"] - 1
        following = place + fields["row_pitch"] + Mux(last_of_line, fields["skip"], 0)
        with m.If(load):
            m.d.sync += [register.eq(op[name]) for name, register in fields.items()]
            m.d.sync += fields["run"].eq(op.run + factors)
            m.d.sync += [pass_count.eq(Mux(self.again, self.vectors, 1)), place.eq(self.first), on.eq(1)]
            m.d.sync += [row.eq(0), inside.eq(0), number.eq(0)]
        with m.Elif(step & ~last_pass):
            m.d.sync += number.eq(number + 1)
        with m.Elif(step):
            m.d.sync += [number.eq(0), row.eq(row + 1), inside.eq(Mux(last_of_line, 0, inside + 1))]
            m.d.sync += [place.eq(following), on.eq(~last_row)]
        self.claim("a run for each pass of each row", run.valid == on)
        self.claim("where it begins", ~on | (run.payload.address == place))
        self.claim("its bytes", ~on | (run.payload.bytes == fields["run"]))
        self.claim(
            "counts", ~on | ((row < fields["rows"]) & (inside < fields["line"]) & (number < pass_count))
        )
        registers: dict[str, tuple[int, Value]] = {
            "pitch": (32, fields["row_pitch"].as_unsigned()),
            "jump": (32, (fields["row_pitch"] + fields["skip"])[:32]),
            "rows": (12, fields["rows"] - 1 - row),
            "line": (12, fields["line"] - 1 - inside),
            "line_reload": (12, fields["line"] - 1),
            "passes": (16, pass_count - 1 - number),
            "passes_reload": (16, pass_count - 1),
        }
        for name, (width, value) in registers.items():
            self.claim(f"register {name}", ~on | (self.peek(name) == value[:width]))
        self.cover("a second line of two rows", step & (row == 3) & (inside == 1) & (fields["skip"] != 0))
        self.cover("a second pass", step & (number == 1) & (row == 0))

    def _claim_unpack_fields(self) -> None:
        unpack, load = self.dut.unpack, self.load
        fields = unpack_fields(self.dut.instruction.payload, self.first, self.config)
        assert set(fields) == set(unpack.payload.shape().members)
        self.claim("each is described to the unpacker", (unpack.valid & unpack.ready) == load)
        for name, value in fields.items():
            field, expected = Value.cast(unpack.payload[name]), Value.cast(value)
            expected = expected[: len(field)] if len(expected) > len(field) else expected
            self.claim(f"unpacker {name}", ~load | (field == expected))


@proves(
    "load/unpack",
    {f"places of vectors{name}": config for name, config in list(_VARIANTS.items())[:2]},
    Induction(4),
    cover=16,
    part=True,
)
class PlacesBench(Bench):
    """For every LOAD, of any length and with any fields, vectors are cut in the order of its loops, and each goes to
    its place; the last one carries the signal mask. Other properties prove the bytes of vectors, for short rows.

    The inputs are free: beats come, and vectors are taken, at any time. Assumed: counts are at least 1. All other
    fields are unconstrained.
    """

    UNIT = Unpacker

    def watch(self, m: Module) -> None:
        dut, op, config = self.dut, self.dut.unpack.payload, self.config
        self.free_inputs(m)
        load = Signal(name="loads")
        m.d.comb += load.eq(dut.unpack.valid & dut.unpack.ready)
        width = config.widths.scratchpad_address
        step = self.peek("nest.step")
        walk = WalkModel(
            m,
            self,
            "nest",
            _LOOPS,
            {"dst": (width, dict.fromkeys(_LOOPS, width))},
            load=load,
            step=step,
            counts={loop: op[loop] for loop in _LOOPS},
            bases={"dst": op.dst},
            strides={"dst": {loop: op[f"dst_{loop}"].as_signed() for loop in _LOOPS}},
        )
        mask, fill = Signal.like(op.signal, name="mask"), Signal.like(op.fill, name="fill_kept")
        with m.If(load):
            m.d.sync += [mask.eq(op.signal), fill.eq(op.fill)]
        kept = unpack_layout(config)(self.peek("op"))
        self.claim("what is kept", ~walk.on | ((kept.signal == mask) & (kept.fill == fill)))
        active = self.peek("active")
        self.claim("taken when all before is cut", ~load | ~walk.on)
        self.claim("at work", ~walk.on | active)
        running, draining, wait = (self.peek(name) for name in ("running", "draining", "wait"))
        self.claim("a pass runs for a vector", ~running | walk.on)
        self.claim("the first pass comes for a vector", (wait == 0) | (walk.on & ~running & ~draining))
        self.claim("no pass of none", active | ~(running | draining | wait.any()))
        self.claim("a pass runs or ends", ~(running & draining))
        self._claim_vectors(m, walk, mask, fill)

    def _claim_vectors(self, m: Module, walk: WalkModel, mask: Value, fill: Value) -> None:
        """Claim the destination and signal of a vector, which reach the queue two cycles after it is cut."""
        signal = Mux(walk.ends, mask, 0)
        due: Value = Cat(walk.values["dst"], signal)
        cut = walk.step
        for number in range(2):
            due, cut = ago(m, due, 1, f"vector{number}"), ago(m, cut, 1, f"cut{number}", reset=True)
        word = Cat(self.peek("queue.w_data"))
        vector = self.dut.vector.payload.shape()(word)
        self.claim("a vector for each", self.peek("queue.w_en") == cut)
        self.claim("where it goes", ~cut | (vector.address == due[: len(vector.address)]))
        self.claim("its signal", ~cut | (vector.signal == due[len(vector.address) :]))
        if self.config.softmax:
            self._claim_transposition(m, walk, vector, cut, fill)
        self.cover("the last one", cut & (vector.signal != 0) & ~walk.on)

    def _claim_transposition(self, m: Module, walk: WalkModel, vector: Any, cut: Value, fill: Value) -> None:
        op = self.dut.unpack.payload
        names = {
            "transpose": "transpose",
            "dst_group": "dst_rows",
            "dst_pixel": "dst_outer",
            "dst_vector": "dst_inner",
        }
        fields = {name: Signal.like(Value.cast(op[of]), name=f"{name}_of_it") for name, of in names.items()}
        with m.If(walk.load):
            m.d.sync += [field.eq(op[names[name]]) for name, field in fields.items()]
        layout = unpack_layout(self.config)
        kept = layout(self.peeks["op"])
        for name, field in fields.items():
            self.claim(f"{name} is kept", ~walk.on | (Value.cast(kept[names[name]]) == field))
        for name, field in (fields | {"fill": fill}).items():
            value = ago(m, field, 2, f"{name}_due")
            self.claim(f"{name} of a vector", ~cut | (Value.cast(vector[name]) == value))
        ends = ago(m, Cat(walk.ends, walk.last["inner"]), 2, "ends")
        self.claim("the last vector", ~cut | (vector.last == ends[0]))
        self.claim("the last vector of a pixel", ~cut | (vector.pixel_end == ends[1]))


@proves("load/unpack", "bytes of vectors", Bounded(_DEPTH), SMALLEST.replace(int4=0), cover=_DEPTH)
@proves(
    "load/unpack",
    "bytes of vectors, values of 4 bits",
    Bounded(_DEPTH),
    SMALLEST.replace(int4=1),
    cover=_DEPTH,
    part=True,
    claim="As without values of 4 bits, where words of the bus hold such values, and the widener makes two "
    "words of each.",
)
class BytesBench(Bench):
    """Each lane of a vector has the byte of memory that LOAD defines, or the fill byte, for rows of up to 2 pixels of
    up to 3 bytes, whether they overlap or not.

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
        self.cut = self.peek("nest.step")
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
        vector = self.dut.vector.payload.shape()(self.peek("queue.w_data"))
        written = ago(m, self.cut, 2, "cut", reset=True)
        self.claim("a vector for each", self.peek("queue.w_en") == written)
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
        came = Signal(3, name="vectors_came")
        gone = Signal(3, name="vectors_gone")
        word = Signal(len(vector.as_value()))
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
