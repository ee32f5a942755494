"""Properties of STORE: its vectors, their places in memory, bursts and signals."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Fragment, Module, Mux, Signal, Value
from amaranth.lib import wiring

from weft.extras.proof.hardware.pipelines import ago, implies, latch_all
from weft.extras.proof.hardware.property import Bench, Bounded, Induction, proves
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import (
    Channel,
    Order,
    assume_answers,
    assume_stable,
    count,
    stable,
    transfer,
    within,
)
from weft.extras.proof.hardware.walks import WalkModel, claim_slots, skid_slots, walk_fields
from weft.hdl.bus.axi import BurstSplitter
from weft.hdl.isa.config import Config
from weft.hdl.isa.operands import READ_LATENCY
from weft.hdl.store import _TAG, BURSTS, READS, Packer, StoreReader, StoreRequests, StoreUnit, vector_layout

_LOOPS = {"rows": 12, "pixels": 16, "vectors": 16}


@proves("store/store", "runs of STORE", Induction(4), SMALLEST, cover=16)
class RequestsBench(Bench, unit=StoreRequests):
    """For every STORE, of any length and with any fields, runs of bytes are requested in the order of its loops, at
    their addresses and of their lengths; the last one carries the signal mask. Each instruction is described to the
    reader.

    The inputs are free; base registers have any value when an instruction is taken. Assumed: an instruction stays until
    it is taken, and its counts and its length are at least 1. All other fields are unconstrained.
    """

    def watch(self, m: Module) -> None:
        dut, op, run = self.dut, self.dut.instruction.payload, self.dut.run
        assume_stable(m, self, dut.instruction, "instruction")
        load = transfer(dut.instruction)
        self.assume(~load | ((op.length != 0) & (op.pixels != 0)))
        merged = (op.pitch == op.length) | (op.pixels == 1)
        first = (dut.bases[op.base[:3]] + op.offset)[:32]
        walk = WalkModel(
            m, self, "nest", {"rows": 12, "pixels": 16}, {"address": (32, {"rows": 32, "pixels": 17})},
            load=load, step=transfer(run), counts={"rows": op.rows, "pixels": Mux(merged, 1, op.pixels)},
            bases={"address": first}, strides={"address": {"rows": op.row_pitch, "pixels": op.pitch}},
        )  # fmt: skip
        ready = ~walk.on & dut.read.ready
        self.claim("taken when the one before is through", dut.instruction.ready == ready)
        self._claim_runs(m, walk, load, merged)
        self._claim_read_fields(first, merged, load)
        waited = ago(m, run.valid & ~run.ready, 1, "waited", reset=True)
        before = ago(m, run.payload.as_value(), 1, "before")
        self.claim("a run stays", ~waited | (run.valid & (run.payload.as_value() == before)))

    def _claim_runs(self, m: Module, walk: WalkModel, load: Value, merged: Value) -> None:
        """Claim the runs: the bytes of a pixel, or of a whole row where pixels follow each other without a gap."""
        op, run, on = self.dut.instruction.payload, self.dut.run, walk.on
        fields = {"length": op.length, "factor": Mux(merged, op.pixels, 1), "mask": op.signal}
        length, factor, mask = latch_all(m, load, fields).values()
        counted = self.peek("counted")
        # The unit multiplies length and factor bit by bit; `place` is the next bit.
        place, so_far = Signal(range(17), name="place"), Signal(32, name="bytes_so_far")
        with m.If(load):
            m.d.sync += [place.eq(0), so_far.eq(0)]
        with m.Elif(~counted & (place != 16)):
            m.d.sync += place.eq(place + 1)
            m.d.sync += so_far.eq(so_far + Mux(factor.bit_select(place, 1), (length << place)[:32], 0))
        self.claim("bits of the count", place <= 16)
        self.claim("a run", run.valid == (on & counted))
        self.claim("its bytes", ~run.valid | ((factor >> place) == 0))
        with self.during(on):
            self.claim("counted so far", run.payload.bytes == so_far)
            self.claim("what is left to count", self.peek("factor") == (factor >> place))
            self.claim("the next part", self.peek("addend") == (length << place)[:32])
            self.claim("some is left", counted | (place != 16))
            self.claim("nothing is left when all is counted", ~counted | (self.peek("factor") == 0))
            self.claim("counts", (length != 0) & (factor != 0))
            self.claim("the mask is kept", self.peek("signal") == mask)
            self.claim("where it begins", run.payload.address == walk.values["address"])
            self.claim("its tag", run.payload.tag == Mux(walk.ends, Cat(1, mask), 0))
        self.cover("the last of several runs", run.valid & walk.ends & ~walk.at_start("rows") & (length > 4))
        self.cover("a run of several pixels", run.valid & (factor == 3) & (length == 3))

    def _claim_read_fields(self, first: Value, merged: Value, load: Value) -> None:
        op, read, n = self.dut.instruction.payload, self.dut.read, self.config.n
        vectors = ((op.length + (n - 1)) // n)[:16]
        fields: dict[str, Any] = {"merged": merged, "rows": op.rows, "pixels": op.pixels, "vectors": vectors}
        fields |= {"src": op.src, "pointer": first, "pointer_rows": op.row_pitch.as_unsigned()}
        fields |= {f"src_{loop}s": op[f"src_{loop}"].as_unsigned() for loop in ("row", "pixel", "vector")}
        fields |= {"pointer_pixels": op.pitch, "pointer_vectors": n}
        self.claim("each is described to the reader", transfer(read) == load)
        with self.during(load):
            for name, value in fields.items():
                self.claim_equal(f"reader {name}", read.payload[name], value)
            tail = (read.payload.tail + (vectors - 1) * n)[:17]
            self.claim("the last vector's bytes", tail == op.length)


@proves("store/store", "vectors of STORE", Induction(4), SMALLEST, cover=16)
class ReadsBench(Bench, unit=StoreReader):
    """For every STORE, of any length and with any fields, vectors are read in the order of its loops, each once and at
    its address. With its data come its place in memory, its number of bytes, and whether it ends a run.

    The inputs are free: reads are refused at any time. Assumed: a description stays until it is taken, and its counts
    are at least 1. All other fields are unconstrained. The model defines each vector, and follows it from the loop nest
    to its read and on to the next stage.
    """

    def watch(self, m: Module) -> None:
        dut, op = self.dut, self.dut.read.payload
        assume_stable(m, self, dut.read, "read")
        load = dut.read.ready
        widths = {"src": self.config.widths.scratchpad_address, "pointer": 12}
        trackers = {name: (width, dict.fromkeys(_LOOPS, width)) for name, width in widths.items()}
        walk = WalkModel(m, self, "nest", load=load, **walk_fields(op, _LOOPS, trackers))
        self.claim("taken if it is there", ~load | dut.read.valid)
        self.claim("taken when all before is on its way", ~load | ~walk.on)
        self._claim_reads(m, walk)

    def _claim_reads(self, m: Module, walk: WalkModel) -> None:
        op, port, values = self.dut.read.payload, self.dut.scratchpad, walk.values
        fields = latch_all(m, walk.load, {"merged": op.merged, "tail": op.tail})
        layout = vector_layout(self.config)
        defined = Signal(layout, name="defined")
        m.d.comb += [
            defined.pointer.eq(values["pointer"]),
            defined.count.eq(Mux(walk.at_end("vectors"), fields["tail"], self.config.n)),
            defined.last.eq(walk.at_end("vectors") & (walk.at_end("pixels") | ~fields["merged"])),
        ]
        word, width = Cat(values["src"], defined.as_value()), len(values["src"])
        description = op.shape()(self.peek("op"))
        with self.during(walk.on):
            self.claim("what is kept", Cat(description[name] == fields[name] for name in fields).all())
            self.claim("the vector that comes", self.peek("skid.i__payload") == word)
        slots = skid_slots(self)
        following, granted = slots[0][1], transfer(port)
        order = Order(m, self, i=(walk.step, word), o=(granted, following), most=2)
        claim_slots(self, order, slots, "a vector on its way")
        self.claim("read where it is", port.address == following[:width])
        self._claim_arrival(m, granted, layout(following[width:]))
        self.cover("the last vector of several rows", granted & ~walk.on & walk.last["rows"])

    def _claim_arrival(self, m: Module, granted: Value, described: Any) -> None:
        """Claim that the description of a vector reaches the queue with its data, and that the queue has room."""
        dut, layout = self.dut, described.shape()
        due, valid, on_the_way = described.as_value(), granted, Value.cast(0)
        for stage in range(READ_LATENCY):
            due = ago(m, due, 1, f"described{stage}", reset=True)
            valid = ago(m, valid, 1, f"granted{stage}", reset=True)
            on_the_way = on_the_way + valid
            self.claim_registers({f"stage{stage}": due, f"valid{stage}": valid}, "{} on the way")
        arrived = layout(self.peek("queue.w_data"))
        self.claim("a vector arrives", self.peek("queue.w_en") == valid)
        with self.during(valid):
            for name in ("pointer", "count", "last"):
                self.claim(f"its {name}", arrived[name] == layout(due)[name])
            self.claim("its data", arrived.data == dut.scratchpad.data)
        level, credits = self.peek("queue.level"), self.peek("credits")
        total = credits + level + on_the_way
        self.claim("there is room", (total == READS) & (credits <= READS) & (level <= READS))
        self.claim("none leaves an empty queue", ~transfer(dut.vector) | (level != 0))
        self.cover("the queue is full", level == READS)


def _create_ports(unit: wiring.Component, name: str) -> Any:
    """Return the ports of a unit without the unit."""
    Fragment.get(unit, None)  # or Amaranth warns that it is not used
    return unit.signature.create(path=(name,))


class _OpenUnit(StoreUnit):
    """Bus of STORE alone, whose bursts and words come from the bench instead of the splitter and the packer."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.splitter: Any = _create_ports(BurstSplitter(config, tag=_TAG), "splitter")
        self.packer: Any = _create_ports(Packer(config), "packer")
        self.finishing = Signal(name="finishing")

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.comb += self.finishing.eq(self._bus(m, self.splitter, self.packer))
        return m


@proves("store/store", "bursts and signals", Bounded(14), SMALLEST.replace(queue_depth=1), cover=16)
class BusBench(Bench, unit=_OpenUnit):
    """Bursts and their words pass in order, words after their burst, and no more bursts than can be counted. An
    instruction is signalled, in order and at once, when memory has confirmed all bursts up to its last one.

    Memory confirms at any time. Assumed: bursts and words stay until they are taken; memory confirms only bursts that
    it got. Masks are not 0 here, so that every signal is visible.
    """

    def watch(self, m: Module) -> None:
        burst, beat = self.dut.splitter, self.dut.packer.beat
        request = burst.request
        inputs = {"valid": request.valid, "payload": request.payload, "last": burst.last, "tag": burst.tag}
        inputs |= {"word_valid": beat.valid, "word": beat.payload}
        for name, value in inputs.items():
            m.d.comb += Value.cast(value).eq(self.free(len(Value.cast(value)), f"given_{name}"))
        whole = Cat(request.payload.as_value(), burst.last, burst.tag)
        assume_stable(m, self, Channel(request.valid, request.ready, whole), "burst")
        assume_stable(m, self, beat, "word")
        self._claim_passing(m)
        self._claim_signals(m)

    def _claim_passing(self, m: Module) -> None:
        """Claim that bursts and words pass, and that words wait for their burst."""
        bus, request, beat = self.dut.bus, self.dut.splitter.request, self.dut.packer.beat
        # A request may be withdrawn, as there is room only by the count of a cycle ago: the manager has registers.
        stable(m, self, bus.beat, "beat")
        self.send = transfer(bus.request)
        sent = transfer(bus.beat) & bus.beat.payload.last
        self.claim("bursts pass once", self.send == transfer(request))
        for name, out, into in (("as they come", bus.request, request), ("unchanged", bus.beat, beat)):
            self.claim(name, implies(out.valid, out.payload.as_value() == into.payload.as_value()))
        self.claim("words pass once", transfer(bus.beat) == transfer(beat))
        ahead = count(m, "bursts_ahead", 2 * BURSTS, self.send, sent)
        self.claim("words of bursts that were asked for", bus.beat.valid == (beat.valid & (ahead != 0)))

    def _claim_signals(self, m: Module) -> None:
        """Claim that a signal comes when memory has confirmed all bursts up to the last one of the instruction."""
        dut, bus, burst = self.dut, self.dut.bus, self.dut.splitter
        owed = assume_answers(m, self, "owed", asked=self.send, answer=bus.confirmed, limit=2 * BURSTS)
        self.claim("no more bursts than it counts", owed <= BURSTS)
        mask = burst.tag[1:]
        self.assume(mask.any())
        ends = self.send & burst.tag[0] & burst.last
        pop = dut.signal.any()
        order = Order(m, self, i=(ends, mask[:1]), o=(pop, dut.signal[:1]), most=2)
        need, begins = Signal(range(2 * BURSTS), name="need"), ends & ~order.watched
        m.d.sync += need.eq(Mux(begins, owed + 1 - bus.confirmed, need - (bus.confirmed & (need != 0))))
        first = order.watched & (order.ahead == 0)
        self.claim("a signal of what is confirmed", implies(first & pop, need == 0))
        within(m, self, first & (need == 0) & ~pop, 2, "a signal")
        self.cover("a second instruction", pop & order.watched & (order.ahead == 1) & (need != 0))
