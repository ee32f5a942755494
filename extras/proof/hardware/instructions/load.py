"""The effect of LOAD: what it asks memory for, and where its vectors go, for instructions of any length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import ago
from weft.extras.proof.hardware.property import Bench, Induction, Property
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import assume_stable
from weft.extras.proof.hardware.walks import Walked
from weft.hdl.isa.config import Config
from weft.hdl.isa.instructions import INT4_RUN_MAX
from weft.hdl.load.load import LoadRequests
from weft.hdl.load.unpack import Unpacker, unpack_layout

_KINDS: dict[str, dict[str, int]] = {
    "": {},
    " with transposition and values of 4 bits": {"probability_bits": 7, "int4": 1},
    " with blocks, and base registers in the offset": {"n": 4, "int4": 2, "loops": 1},
}
_LOOPS = {"rows": 12, "outer": 16, "inner": 16}


def passes(op: Any, config: Config) -> tuple[Value, Value]:
    """Vectors of a pixel, and whether each row is read once for each of them: where pixels of several overlap."""
    vectors = ((op.length + (config.n - 1)) // config.n)[:16]
    return vectors, (op.pitch < op.length) & (vectors != 1) & (op.pixels != 1)


def described(op: Any, first: Value, config: Config) -> dict[str, Any]:
    """What `weft.hdl.load.unpack.unpack_layout` says of an instruction whose first byte in memory is at `first`."""
    (vectors, again), bus, n = passes(op, config), config.bus_bytes, config.n
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


class RequestsBench(Bench):
    """For every LOAD, of any length and with any fields, runs of bytes are asked for row by row, where they are defined
    and of as many bytes, once for each vector of a pixel where pixels of several overlap; the unpacker is told of each.

    What turns LOAD into runs of bytes, in free inputs; base registers have any value when it is taken.

    Assumed: an instruction stands until it is taken, with counts and lengths of at least 1, and its rows are whole
    lines; rows of values of 4 bits are no longer than the checker accepts. All other fields are any.
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
        # With loops what executes LOAD has added the register ahead of this.
        self.first = op.offset if self.config.loops else (dut.bases[op.base[:3]] + op.offset)[:32]
        self.vectors, self.again = passes(op, self.config)
        self._runs(m)
        self._described()

    def _runs(self, m: Module) -> None:
        op, load, run = self.dut.instruction.payload, self.load, self.dut.run
        names = ("rows", "line", "row_pitch", "skip", "run")
        # A factor for every 16 values is in front of these, which are half a byte each.
        factors = Mux(op.blocks, op.run // 16, 0) if self.config.blocks else 0
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
            m.d.sync += kept["run"].eq(op.run + factors)
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
            "pitch": (32, kept["row_pitch"].as_unsigned()),
            "jump": (32, (kept["row_pitch"] + kept["skip"])[:32]),
            "rows": (12, kept["rows"] - 1 - row),
            "line": (12, kept["line"] - 1 - inside),
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
    """For every LOAD, of any length and with any fields, vectors are cut in the order of its loops, and each goes to
    its place; the last one bears the mask. What is in them is proven elsewhere, for fewer.

    Where the unpacker's vectors go, in free inputs: beats come, and vectors are taken, at any time.

    Assumed: counts are at least 1. All other fields are any.
    """

    UNIT = Unpacker

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
        active = self.peek("active", 1)
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
        if self.config.softmax:
            self._transposed(m, walked, told, cut, fill)
        self.cover("the last one", cut & (told.signal != 0) & ~walked.on)

    def _transposed(self, m: Module, walked: Walked, told: Any, cut: Value, fill: Value) -> None:
        """What is told to the transposer with each vector."""
        op = self.dut.unpack.payload
        names = {
            "transpose": "transpose",
            "dst_group": "dst_rows",
            "dst_pixel": "dst_outer",
            "dst_vector": "dst_inner",
        }
        fields = {name: Signal.like(Value.cast(op[of]), name=f"{name}_of_it") for name, of in names.items()}
        with m.If(walked.load):
            m.d.sync += [field.eq(op[names[name]]) for name, field in fields.items()]
        layout = unpack_layout(self.config)
        kept = layout(self.peeks["op"])
        for name, field in fields.items():
            self.claim(f"{name} is kept", ~walked.on | (Value.cast(kept[names[name]]) == field))
        for name, field in (fields | {"fill": fill}).items():
            value = ago(m, field, 2, f"{name}_due")
            self.claim(f"{name} is told", ~cut | (Value.cast(told[name]) == value))
        ends = ago(m, Cat(walked.ends, walked.last["inner"]), 2, "ends")
        self.claim("the last one is told", ~cut | (told.last == ends[0]))
        self.claim("the last one of a pixel is told", ~cut | (told.pixel_end == ends[1]))


def properties() -> Iterator[Property]:
    for name, changes in _KINDS.items():
        yield RequestsBench.proves(
            "load/load", f"runs of LOAD{name}", Induction(4), SMALLEST.replace(**changes), cover=16
        )
    for name, changes in list(_KINDS.items())[:2]:
        yield PlacesBench.proves(
            "load/unpack",
            f"places of vectors{name}",
            Induction(4),
            SMALLEST.replace(**changes),
            cover=16,
            part=True,
        )
