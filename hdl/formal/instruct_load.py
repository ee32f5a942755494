"""The effect of LOAD: what it asks memory for, and where its vectors go, for instructions of any length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value

from weft.hdl.formal.pipelines import ago
from weft.hdl.formal.property import Bench, Bounded, Induction, Property
from weft.hdl.formal.smallest import SMALLEST
from weft.hdl.formal.streams import assume_stable, within
from weft.hdl.formal.walks import Walked
from weft.hdl.isa import WORD_BITS, Load
from weft.hdl.isa.config import Config
from weft.hdl.load.load import LoadRequests
from weft.hdl.load.unpack import Unpacker, unpack_layout

_CYCLES = 9
"""So far the bytes of vectors are looked at."""
_LOOPS = {"rows": 12, "outer": 16, "inner": 16}


def passes(op: Any, config: Config) -> tuple[Value, Value]:
    """Vectors of a pixel, and whether each row is read once for each of them: where pixels of several overlap."""
    vectors = ((op.length + (config.n - 1)) // config.n)[:16]
    return vectors, (op.pitch < op.length) & (vectors != 1) & (op.pixels != 1)


def described(op: Any, first: Value, config: Config) -> dict[str, Any]:
    """What `weft.hdl.load.unpack.unpack_layout` says of an instruction whose first byte in memory is at `first`."""
    (vectors, again), bus, n = passes(op, config), config.bus_bytes, config.n
    rest = ((vectors - 1) * n)[:16]
    return {
        "signal": op.signal,
        "align": first % bus,
        "align_row": op.row_pitch.as_unsigned() % bus,
        "align_line": (op.row_pitch + op.skip)[:32] % bus,
        "line_last": op.line - 1,
        "before": op.before,
        "end": op.before + op.run,
        "run_last": op.run - 1,
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


class RequestsBench(Bench):
    """What turns LOAD into runs of bytes, in free inputs; base registers have any value when it is taken.

    Assumed: an instruction stands until it is taken, with counts and lengths of at least 1, and its rows are whole
    lines. All other fields are any.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(LoadRequests(config))
        self.config = config

    def watch(self, m: Module) -> None:
        dut, op = self.dut, self.dut.instruction.payload
        self.free_inputs(m)
        assume_stable(m, self, dut.instruction, "instruction")
        self.load = Signal(name="loads")
        m.d.comb += self.load.eq(dut.instruction.valid & dut.instruction.ready)
        counts = ("rows", "line", "pixels", "pitch", "length", "run")
        self.assume(~self.load | Cat(*(op[name] != 0 for name in counts)).all())
        self.first = (dut.bases[op.base[:3]] + op.offset)[:32]
        self.vectors, self.again = passes(op, self.config)
        self._runs(m)
        self._described()

    def _runs(self, m: Module) -> None:
        op, load, run = self.dut.instruction.payload, self.load, self.dut.run
        names = ("rows", "line", "row_pitch", "skip", "run")
        kept = {name: Signal.like(op[name], name=f"field_{name}") for name in names}
        passes, place = Signal(16, name="passes_kept", init=1), Signal(32, name="place")
        row, inside, number = (
            Signal(width, name=name) for name, width in (("row", 12), ("inside", 12), ("number", 16))
        )
        on, step = Signal(name="on"), run.valid & run.ready
        last_pass, last_row = number == passes - 1, row == kept["rows"] - 1
        last_of_line = inside == kept["line"] - 1
        following = place + kept["row_pitch"] + Mux(last_of_line, kept["skip"], 0)
        with m.If(load):
            m.d.sync += [register.eq(op[name]) for name, register in kept.items()]
            m.d.sync += [passes.eq(Mux(self.again, self.vectors, 1)), place.eq(self.first), on.eq(1)]
            m.d.sync += [row.eq(0), inside.eq(0), number.eq(0)]
        with m.Elif(step & ~last_pass):
            m.d.sync += number.eq(number + 1)
        with m.Elif(step):
            m.d.sync += [number.eq(0), row.eq(row + 1), inside.eq(Mux(last_of_line, 0, inside + 1))]
            m.d.sync += [place.eq(following), on.eq(~last_row)]
        self.claim("a run for each pass of each row", run.valid == on)
        self.claim("where it begins", ~on | (run.payload.address == place))
        self.claim("its bytes", ~on | (run.payload.bytes == kept["run"]))
        self.claim("counts", ~on | ((row < kept["rows"]) & (inside < kept["line"]) & (number < passes)))
        registers: dict[str, tuple[int, Value]] = {
            "$signal#0": (32, kept["row_pitch"].as_unsigned()),
            "jump": (32, (kept["row_pitch"] + kept["skip"])[:32]),
            "$signal#1": (12, kept["rows"] - 1 - row),
            "$signal#2": (12, kept["line"] - 1 - inside),
            "line_reload": (12, kept["line"] - 1),
            "passes": (16, passes - 1 - number),
            "passes_reload": (16, passes - 1),
        }
        for name, (width, value) in registers.items():
            self.claim(f"register {name}", ~on | (self.peek(name, width) == value[:width]))
        self.cover("a second line of two rows", step & (row == 3) & (inside == 1) & (kept["skip"] != 0))
        self.cover("a second pass", step & (number == 1) & (row == 0))

    def _described(self) -> None:
        """What the unpacker is told."""
        unpack, load = self.dut.unpack, self.load
        fields = described(self.dut.instruction.payload, self.first, self.config)
        assert set(fields) == set(unpack.payload.shape().members)
        self.claim("the unpacker is told of each", (unpack.valid & unpack.ready) == load)
        for name, value in fields.items():
            told = Value.cast(unpack.payload[name])
            wide = Value.cast(value)
            right = told == (wide[: len(told)] if len(wide) > len(told) else wide)
            self.claim(f"{name} is told", ~load | right)


class PlacesBench(Bench):
    """Where the unpacker's vectors go, in free inputs: beats come, and vectors are taken, at any time.

    Assumed: counts are at least 1. All other fields are any.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(Unpacker(config))
        self.config = config

    def watch(self, m: Module) -> None:
        dut, op, config = self.dut, self.dut.unpack.payload, self.config
        self.free_inputs(m)
        load = Signal(name="loads")
        m.d.comb += load.eq(dut.unpack.valid & dut.unpack.ready)
        width = config.widths.scratchpad_address
        step = self.peek("nest.step", 1)
        walked = Walked(
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
        kept = unpack_layout(config)(self.peek("op", unpack_layout(config).size))
        self.claim("what is kept", ~walked.on | ((kept.signal == mask) & (kept.fill == fill)))
        active = self.peek("active#1", 1)
        self.claim("taken when all before is cut", ~load | ~walked.on)
        self.claim("at work", ~walked.on | active)
        running, draining, wait = (
            self.peek(*state) for state in (("running", 1), ("draining", 1), ("wait", 2))
        )
        self.claim("a pass runs for a vector", ~running | walked.on)
        self.claim("the first pass comes for a vector", (wait == 0) | (walked.on & ~running & ~draining))
        self.claim("no pass of none", active | ~(running | draining | wait.any()))
        self.claim("a pass runs or ends", ~(running & draining))
        self._told(m, walked, mask, fill)

    def _told(self, m: Module, walked: Walked, mask: Value, fill: Value) -> None:
        """What is told of a vector when it is cut, and two cycles later with its bytes."""
        signal = Mux(walked.ends, mask, 0)
        due: Value = Cat(walked.values["dst"], signal)
        cut = walked.step
        for number in range(2):
            due, cut = ago(m, due, 1, f"told{number}"), ago(m, cut, 1, f"cut{number}", reset=True)
        word = Cat(self.peek("queue.w_data", len(self.dut.vector.payload.as_value())))
        told = self.dut.vector.payload.shape()(word)
        self.claim("a vector for each", self.peek("queue.w_en", 1) == cut)
        self.claim("where it goes", ~cut | (told.address == due[: len(told.address)]))
        self.claim("its signal", ~cut | (told.signal == due[len(told.address) :]))
        self.cover("the last one", cut & (told.signal != 0) & ~walked.on)
        del fill


class BytesBench(Bench):
    """What the unpacker puts into vectors, in free inputs: beats come, and vectors are taken, at any time.

    Assumed: the unpacker is told of an instruction as is claimed of what tells it; rows are whole lines; beats stand
    until they are taken. Rows and pixels are 2 at most, bytes of a pixel 3, of its pitch 3, fill bytes ahead of a row
    3, bytes of it from memory 5: more do not fit into the cycles that are looked at. All other fields are any.
    """

    MOST: ClassVar[dict[str, int]] = {"rows": 2, "pixels": 2, "length": 3, "pitch": 3, "before": 3, "run": 5}
    BEATS = 8
    """Beats that are kept."""

    def __init__(self, config: Config) -> None:
        super().__init__(Unpacker(config))
        self.config = config

    def watch(self, m: Module) -> None:
        dut, config = self.dut, self.config
        self.free_inputs(m, "unpack")
        assume_stable(m, self, dut.beat, "beat")
        offered, self.first = Load.layout()(self.free(WORD_BITS, "offered")), self.free(32, "first_byte")
        m.d.comb += dut.unpack.valid.eq(self.free(1, "offers"))
        told = described(offered, self.first, config)
        m.d.comb += [dut.unpack.payload[name].eq(value) for name, value in told.items()]
        self.load, self.op = Signal(name="loads"), Signal(Load.layout(), name="op")
        m.d.comb += self.load.eq(dut.unpack.valid & dut.unpack.ready)
        with m.If(self.load):
            m.d.sync += self.op.eq(offered)
        for name, most in self.MOST.items():
            least = 0 if name == "before" else 1
            self.assume(~self.load | ((offered[name] >= least) & (offered[name] <= most)))
        self.assume(~self.load | (offered.line == 1) | (offered.line == offered.rows))
        self.cut = self.peek("nest.step", 1)
        self._loops(m)
        self._beats(m)
        self._bytes(m)

    def _loops(self, m: Module) -> None:
        """The row, the vector of a pixel and the pixel that is cut next; pixels are the inner loop where rows are read
        again for each vector."""
        op, cut, n = self.op, self.cut, self.config.n
        vectors, again = passes(op, self.config)
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

    def _beats(self, m: Module) -> None:
        """Beats in their order, those of a pass behind those of the one before; the one that waits counts."""
        beat, op, bus = self.dut.beat, self.op, self.config.bus_bytes
        places = range(self.BEATS)
        self.came, self.begins = Signal(places, name="beats_came"), Signal(places, name="pass_begins")
        store = Array(Signal(len(beat.payload), name=f"beat{k}") for k in places)
        with m.If(beat.valid & beat.ready):
            m.d.sync += [store[self.came].eq(beat.payload), self.came.eq(self.came + 1)]
        beats = (self.align + op.run[:4] - 1) // bus + 1
        with m.If(self.cut & self.pass_ends):
            m.d.sync += self.begins.eq(self.begins + beats)
        self.store = store

    def _bytes(self, m: Module) -> None:
        """Each lane of a vector has the byte of memory that is defined, or the fill byte, two cycles after "
        "it is cut."""
        op, n, bus, beat = self.op, self.config.n, self.config.bus_bytes, self.dut.beat
        vector = self.dut.vector.payload.shape()(
            self.peek("queue.w_data", len(self.dut.vector.payload.as_value()))
        )
        written = ago(m, self.cut, 2, "cut", reset=True)
        self.claim("a vector for each", self.peek("queue.w_en", 1) == written)
        for lane in range(n):
            at = self.in_row + lane
            from_memory = (self.in_pixel + lane < op.length) & (at >= op.before) & (at < op.before + op.run)
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
        self._leave(m, written, vector)

    def _leave(self, m: Module, written: Value, vector: Any) -> None:
        """Vectors leave in their order, as they were: one of them, any one, is watched."""
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


def _bytes() -> Bench:
    return BytesBench(SMALLEST)


def _requests() -> Bench:
    return RequestsBench(SMALLEST)


def _places() -> Bench:
    return PlacesBench(SMALLEST)


def properties() -> Iterator[Property]:
    yield Property(
        "load/load",
        "runs of LOAD",
        "For every LOAD, of any length and with any fields, runs of bytes are asked for row by row, where they are "
        "defined and of as many bytes, once for each vector of a pixel where pixels of several overlap; the "
        "unpacker is told of each.",
        _requests,
        Induction(4),
        cover=16,
    )
    yield Property(
        "load/unpack",
        "places of vectors",
        "For every LOAD, of any length and with any fields, vectors are cut in the order of its loops, and "
        "each goes to its place; the last one bears the mask. What is in them is proven elsewhere, for fewer.",
        _places,
        Induction(4),
        cover=16,
        part=True,
    )
    yield Property(
        "load/unpack",
        "bytes of vectors",
        "Each lane of a vector has the byte of memory that LOAD defines, or the fill byte, for rows of up to "
        "2 pixels of up to 3 bytes, whether they overlap or not.",
        _bytes,
        Bounded(_CYCLES),
        cover=_CYCLES,
    )
