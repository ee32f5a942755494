"""Properties of `weft.hdl.bus`: the AXI4 manager, and bursts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from weft.extras.proof.hardware.property import Bench, Induction, Property
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import Order, stable, within
from weft.hdl.bus.axi import PAGE, AxiManager, BurstSplitter, reader_ids
from weft.hdl.isa.config import Config

_INCR, _OKAY = 1, 0
"""What AXI4 calls a burst over consecutive addresses, and a response without an error."""


class AxiBench(Bench):
    """The manager between readers, a writer and memory that do as they like.

    Assumed is only that requests have 1 to 256 beats, and that memory answers with IDs of readers.
    """

    def watch(self, m: Module) -> None:
        dut, axi = self.dut, self.dut.axi
        self.free_inputs(m)
        self.readers = [(getattr(dut, name), identity) for name, identity in reader_ids(dut.config).items()]
        for port in (*(port for port, _ in self.readers), dut.store):
            beats = port.request.payload.beats
            self.assume((beats != 0) & (beats <= 256))
        self.assume(Cat(*(axi.rid == identity for _, identity in self.readers)).any())
        for name in ("ar", "aw"):
            self._address_channel(m, name)
        stable(m, self, SimpleNamespace(valid=axi.wvalid, ready=axi.wready, payload=_word(axi)), "w")
        self._read_requests(m)
        self._read_beats()
        self._writes(m)
        self._flags(m)

    def _address_channel(self, m: Module, name: str) -> None:
        """Claim that `name` stays until it is taken, and asks for whole words at consecutive addresses."""
        axi = self.dut.axi
        member = {item: getattr(axi, name + item) for item in ("id", "addr", "len", "size", "burst", "lock")}
        member |= {item: getattr(axi, name + item) for item in ("cache", "prot", "qos")}
        channel = SimpleNamespace(
            valid=getattr(axi, f"{name}valid"),
            ready=getattr(axi, f"{name}ready"),
            payload=Cat(*member.values()),
        )
        stable(m, self, channel, name)
        whole = (1 << member["size"]) == self.dut.config.bus_bytes
        self.claim(f"{name} has whole words in consecutive places", whole & (member["burst"] == _INCR))
        plain = Cat(member["lock"], member["prot"], member["qos"]) == 0
        self.claim(f"{name} is bufferable normal memory, without more", plain & (member["cache"] == 0b0011))

    def _read_requests(self, m: Module) -> None:
        axi = self.dut.axi
        asks = [port.request.valid for port, _ in self.readers]
        taken = [port.request.valid & port.request.ready for port, _ in self.readers]
        word = Const(0)
        for take, (port, identity) in zip(taken, self.readers, strict=True):
            request = port.request.payload
            named = Cat(request.as_value(), Const(identity, len(axi.arid)))
            word = word | Mux(take, named, 0)
        pop, out = axi.arvalid & axi.arready, Cat(_burst(axi.araddr, axi.arlen), axi.arid)
        order = Order(m, self, push=Cat(*taken).any(), i=word, pop=pop, o=out, most=2, name="reads")
        self.claim("AR shows what is there", axi.arvalid | (order.inside == 0))
        self.claim(
            "a free channel takes a request", ~Cat(*asks).any() | (order.inside == 2) | Cat(*taken).any()
        )
        for index, take in enumerate(taken):
            self.claim(f"nobody ahead of reader {index} asks", ~take | ~Cat(*asks[:index]).any())
        self.cover("the first reader goes before all others", taken[0] & Cat(*asks).all())

    def _read_beats(self) -> None:
        axi = self.dut.axi
        ready = [port.beat.ready for port, _ in self.readers]
        self.claim("a beat passes while all readers are ready", axi.rready == Cat(*ready).all())
        for index, (port, identity) in enumerate(self.readers):
            beat = port.beat
            comes = axi.rvalid & axi.rready & (axi.rid == identity)
            self.claim(
                f"reader {index} takes the beats of ID {identity} alone", (beat.valid & beat.ready) == comes
            )
            self.claim(f"reader {index} has the beat", ~beat.valid | (beat.payload == axi.rdata))
            self.cover(f"reader {index} takes a beat", comes)

    def _writes(self, m: Module) -> None:
        axi, store = self.dut.axi, self.dut.store
        request, beat = store.request, store.beat
        push, pop = request.valid & request.ready, axi.awvalid & axi.awready
        written, out = request.payload.as_value(), _burst(axi.awaddr, axi.awlen)
        addresses = Order(m, self, push=push, i=written, pop=pop, o=out, most=2, name="writes")
        self.claim("AW shows what is there", axi.awvalid | (addresses.inside == 0))
        self.claim("AW takes what there is room for", request.ready | (addresses.inside == 2))
        self.claim("all writes have one ID", axi.awid == 0)
        push, pop = beat.valid & beat.ready, axi.wvalid & axi.wready
        sent = Cat(beat.payload.data, beat.payload.strobe, beat.payload.last)
        words = Order(m, self, push=push, i=sent, pop=pop, o=_word(axi), most=2, name="words")
        self.claim("W shows what is there", axi.wvalid | (words.inside == 0))
        self.claim("W takes what there is room for", beat.ready | (words.inside == 2))
        self.claim("confirmations are taken", axi.bready)
        self.claim("a confirmation is passed on", store.confirmed == (axi.bvalid & axi.bready))

    def _flags(self, m: Module) -> None:
        """What the manager tells of a cycle in the next one."""
        dut, axi = self.dut, self.dut.axi
        read, written, answered = (
            getattr(axi, f"{name}valid") & getattr(axi, f"{name}ready") for name in ("r", "w", "b")
        )
        failed = (read & (axi.rresp != _OKAY)) | (answered & (axi.bresp != _OKAY))
        for name, told, value in (
            ("error", dut.error, failed),
            ("read beat", dut.read_beat, read),
            ("write beat", dut.write_beat, written),
        ):
            before = Signal(name=f"{name.replace(' ', '_')}_before")
            m.d.sync += before.eq(value)
            self.claim(f"{name} is told in the next cycle", told == before)
            self.cover(name, told)


def _burst(address: Value, length: Value) -> Value:
    """A burst as it was asked for; AXI4 counts one beat less."""
    return Cat(address, (length + Const(1, 9))[:9])


def _word(axi: Any) -> Value:
    return Cat(axi.wdata, axi.wstrb, axi.wlast)


@dataclass(frozen=True)
class _Stage:
    """What the splitter holds in one place: of a run the `words` from `word` on. `ends`: and no more of it."""

    valid: Value
    word: Value
    words: Value
    ends: Value
    tag: Value


class SplitterBench(Bench):
    """The splitter with runs of at least a byte, which is all that it asks for, and a bus that takes bursts as it
    likes. Runs may go on behind the last address, at 0.

    One run, any one, is watched on its way through the unit. Beside what comes out, the claims tell where the unit has
    the run, see `_inside`: without that, induction would start from states that the unit never has.
    """

    MOST = 5
    """Runs inside the unit: two in front of the one that is cut, and two whose bursts wait."""

    def watch(self, m: Module) -> None:
        dut, run, request = self.dut, self.dut.run, self.dut.request
        self.free_inputs(m)
        bus = dut.config.bus_bytes
        self.assume(run.payload.bytes != 0)
        push, pop = run.valid & run.ready, request.valid & request.ready
        stable(m, self, SimpleNamespace(**_valid_ready(request), payload=self._out()), "request")
        self._runs(m, push, pop & dut.last)
        self._place(m, push, pop)
        first, beats, block = request.payload.address, request.payload.beats, dut.block
        self.claim(
            "no burst goes on into the next page", ~request.valid | (first % PAGE + beats * bus <= PAGE)
        )
        self._inside()
        self.cover("a burst of the whole block", request.valid & (beats == block))
        self.cover("a run in three bursts", self.ours & dut.last & (self.bursts == 2))

    def _stages(self) -> Iterator[_Stage]:
        """What is inside the unit, oldest first."""
        align, tag = (self.dut.config.bus_bytes - 1).bit_length(), len(self.dut.tag)
        for valid, held in self._kept("bursts", 42 + tag):
            address, beats, last = held[:32], held[32:41], held[41]
            self.claim(
                f"whole words where {len(self.peeks)} are peeked at", ~valid | (address % (1 << align) == 0)
            )
            yield _Stage(valid, address >> align, beats, last, held[42:])
        last = self.peek("last#1", 1)
        cut = _Stage(
            self.peek("active", 1),
            self.peek("word", 32 - align),
            self.peek("rest", 32) + 1,
            last,
            self.peek("tag#1", tag),
        )
        room = self.dut.block - cut.word % self.dut.block
        self.claim("a run ends in its block if it is short", ~cut.valid | (last == (cut.words <= room)))
        yield cut
        for valid, held in self._kept("skid", 64 - align + tag):
            word, rest = held[: 32 - align], held[32 - align : 64 - align]
            yield _Stage(valid, word, rest + 1, Const(1), held[64 - align :])

    def _kept(self, name: str, width: int) -> Iterator[tuple[Value, Value]]:
        """The two words of a skid buffer, oldest first, and whether they are there."""
        yield self.peek(f"{name}.o__valid", 1), self.peek(f"{name}.o__payload", width)
        yield ~self.peek(f"{name}.i__ready", 1), self.peek(f"{name}.kept", width)

    def _inside(self) -> None:
        """Claim where the watched run is in the unit, and that all of it is there that has not come out."""
        stages = list(self._stages())
        ended: Value = Const(0, 3)
        taken: Value = Const(0, 10)
        for index, stage in enumerate(stages):
            ours = stage.valid & self.watched & (self.ahead == ended)
            left = (self.left - taken)[:32]
            place = (stage.word == (self.word + taken)[: len(self.word)]) & (stage.tag == self.tag)
            if index < 2:
                most = (stage.words <= left) & (stage.ends == (stage.words == left))
                taken = taken + Mux(ours, stage.words, 0)
                self._burst(f"of stage {index}", stage.valid, stage.word, stage.words, stage.ends)
                cut = stages[2].valid | (stages[index + 1].valid if index == 0 else 0)
                self.claim(f"stage {index} is not alone", ~stage.valid | stage.ends | cut)
            else:
                most = stage.words == left
            self.claim(f"the watched run in stage {index}", ~ours | (place & most))
            ended = (ended + (stage.valid & (stage.ends | Const(index >= 2))))[:3]
        self.claim("runs are where they are counted", self.inside == ended)
        self.claim("the watched run is there", ~self.watched | (self.ahead < self.inside))
        for first, second in ((0, 1), (3, 4)):
            self.claim(f"stage {second} fills up behind {first}", stages[first].valid | ~stages[second].valid)

    def _burst(self, name: str, valid: Value, word: Value, beats: Value, last: Value) -> None:
        """Claim that it has a beat at least, and ends with its block or earlier, and then with its run."""
        ends = word % self.dut.block + beats
        self.claim(f"at least a beat {name}".rstrip(), ~valid | (beats != 0))
        self.claim(f"no burst {name} goes on into the next block", ~valid | (ends <= self.dut.block))
        self.claim(f"a burst {name} ends with block or run", ~valid | last | (ends == self.dut.block))

    def _out(self) -> Value:
        request = self.dut.request.payload
        return Cat(request.address, request.beats, self.dut.last, self.dut.tag)

    def _runs(self, m: Module, push: Value, ends: Value) -> None:
        """Count the runs inside, and watch one of them."""
        dut, run, request = self.dut, self.dut.run, self.dut.request
        mark = self.free(1, "mark")
        self.inside, self.ahead = Signal(range(self.MOST + 2)), Signal(range(self.MOST + 2))
        self.watched, self.tag = Signal(), Signal.like(dut.tag)
        self.ours = self.watched & request.valid & (self.ahead == 0)
        m.d.sync += self.inside.eq(self.inside + push - ends)
        with m.If(self.watched & ends):
            m.d.sync += [self.ahead.eq(self.ahead - 1), self.watched.eq(self.ahead != 0)]
        self.start = mark & push & ~self.watched
        with m.If(self.start):
            m.d.sync += [self.watched.eq(1), self.ahead.eq(self.inside - ends), self.tag.eq(run.payload.tag)]
        self.claim("no burst out of nothing", ~request.valid | (self.inside != 0))
        self.claim("no more runs than there is room for", self.inside <= self.MOST)
        self.claim("idle while there is no run", dut.idle == (self.inside == 0))
        self.claim("takes a run while there is room", run.ready | (self.inside >= 2))
        self.claim("the tag is the run's", ~self.ours | (dut.tag == self.tag))
        within(m, self, (self.inside != 0) & ~request.valid, 2, "a burst comes")
        self.cover("full", self.inside == self.MOST)

    def _place(self, m: Module, push: Value, pop: Value) -> None:
        """Keep where the watched run goes on, and how many words of it are left."""
        dut, run, request = self.dut, self.dut.run.payload, self.dut.request
        bus = dut.config.bus_bytes
        self.word, self.left = Signal(32 - (bus - 1).bit_length()), Signal(32)
        self.bursts = Signal(3)
        begun = Signal()
        with m.If(self.start):
            m.d.sync += [
                self.word.eq(run.address // bus),
                self.left.eq((run.address % bus + run.bytes + (bus - 1)) // bus),
                Cat(self.bursts, begun).eq(0),
            ]
        with m.Elif(self.ours & request.ready):
            beats = request.payload.beats
            m.d.sync += [self.word.eq(self.word + beats), self.left.eq(self.left - beats), begun.eq(1)]
            m.d.sync += self.bursts.eq(self.bursts + (self.bursts != 7))
        self.claim("bursts follow each other", ~self.ours | (request.payload.address // bus == self.word))
        self.claim("no more words than the run has", ~self.ours | (request.payload.beats <= self.left))
        ends = request.payload.beats == self.left
        self.claim("the last burst is the one that ends the run", ~self.ours | (dut.last == ends))
        self.claim("a burst a cycle", ~(self.watched & begun) | request.valid)


def _valid_ready(stream: Any) -> dict[str, Value]:
    return {"valid": stream.valid, "ready": stream.ready}


def _manager(config: Config) -> Bench:
    return AxiBench(AxiManager(config))


def _splitter(bus: int, beats: int) -> Bench:
    return SplitterBench(BurstSplitter(SMALLEST.replace(bus_bytes=bus), beats=beats, tag=3))


def properties() -> Iterator[Property]:
    claim = (
        "AR, AW and W stay until they are taken, and pass requests and words on in order, once and unchanged, the "
        "first reader's first; beats go to the reader whose ID they bear; errors and beats are told in the next cycle."
    )
    for bits, what in ((0, "two readers"), (7, "three readers")):
        config = SMALLEST.replace(probability_bits=bits)
        yield Property("bus/axi", what, claim, partial(_manager, config))
    claim = (
        "Bursts cover each run exactly, in order and with its tag, one a cycle, end at blocks and at the run's end, "
        "and cross no block and no page; the splitter is idle while it has no run."
    )
    for bus, beats in ((4, 64), (16, 256), (128, 256)):
        name = f"bursts of {beats} words of {bus} bytes"
        yield Property("bus/burst", name, claim, partial(_splitter, bus, beats), Induction(4))
