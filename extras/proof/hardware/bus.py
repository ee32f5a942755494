"""Properties of `weft.hdl.bus`: the AXI4 manager and the burst splitter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import ago
from weft.extras.proof.hardware.property import Bench, Induction, Invariant, proves
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import (
    Channel,
    Order,
    WatchedItem,
    axi_channel,
    queue,
    stable,
    transfer,
    within,
)
from weft.hdl.bus.axi import OKAY, PAGE, AxiManager, BurstSplitter, reader_ids

_INCR = 1
"""AXI4's code of a burst over consecutive addresses."""


@proves(
    "bus/axi",
    {"two readers": SMALLEST, "three readers": SMALLEST.replace(probability_bits=7)},
    Invariant(),
    proven=("log",),
)
class AxiBench(Bench, unit=AxiManager):
    """AR, AW and W are stable, and pass requests and words on in order, once and unchanged, the first reader's requests
    first. Beats go to the reader with their ID. Errors and beats are flagged in the next cycle.

    Readers, writer and memory are unconstrained, but requests have 1 to 256 beats, and memory answers with IDs of
    readers.
    """

    def watch(self, m: Module) -> None:
        dut, axi = self.dut, self.dut.axi
        self.readers = [(getattr(dut, name), identity) for name, identity in reader_ids(dut.config).items()]
        for port in (*(port for port, _ in self.readers), dut.store):
            beats = port.request.payload.beats
            self.assume((beats != 0) & (beats <= 256))
        self.assume(Cat(*(axi.rid == identity for _, identity in self.readers)).any())
        for name in ("ar", "aw"):
            self._address_channel(m, name)
        self._read_requests(m)
        self._read_beats()
        self._writes(m)
        self._flags(m)

    def _address_channel(self, m: Module, name: str) -> None:
        axi = self.dut.axi
        stable(m, self, axi_channel(axi, name), name)
        whole = (1 << getattr(axi, f"{name}size")) == self.dut.config.bus_bytes
        incremental = getattr(axi, f"{name}burst") == _INCR
        self.claim(f"{name} has whole words in consecutive places", whole & incremental)
        plain = Cat(getattr(axi, name + item) for item in ("lock", "prot", "qos")) == 0
        bufferable = getattr(axi, f"{name}cache") == 0b0011
        self.claim(f"{name} is bufferable normal memory, without more", plain & bufferable)

    def _read_requests(self, m: Module) -> None:
        axi = self.dut.axi
        asks = [port.request.valid for port, _ in self.readers]
        taken = [transfer(port.request) for port, _ in self.readers]
        word = Const(0)
        for take, (port, identity) in zip(taken, self.readers, strict=True):
            named = Cat(port.request.payload.as_value(), Const(identity, len(axi.arid)))
            word = word | Mux(take, named, 0)
        pop, out = axi.arvalid & axi.arready, Cat(_burst(axi.araddr, axi.arlen), axi.arid)
        order = Order(m, self, i=(Cat(*taken).any(), word), o=(pop, out), most=2, name="reads")
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
            comes = axi.rvalid & axi.rready & (axi.rid == identity)
            self.claim(f"reader {index} takes the beats of ID {identity} alone", transfer(port.beat) == comes)
            self.claim(f"reader {index} has the beat", ~port.beat.valid | (port.beat.payload == axi.rdata))
            self.cover(f"reader {index} takes a beat", comes)

    def _writes(self, m: Module) -> None:
        axi, store = self.dut.axi, self.dut.store
        burst = _burst(axi.awaddr, axi.awlen)
        request = Channel(store.request.valid, store.request.ready, store.request.payload.as_value())
        queue(
            m, self, request, Channel(axi.awvalid, axi.awready, burst), most=2, takes=2, latency=0, name="AW"
        )
        self.claim("all writes have one ID", axi.awid == 0)
        beat = store.beat.payload
        word = Channel(store.beat.valid, store.beat.ready, Cat(beat.data, beat.strobe, beat.last))
        queue(m, self, word, axi_channel(axi, "w"), most=2, takes=2, latency=0, name="W")
        self.claim("confirmations are taken", axi.bready)
        self.claim("a confirmation is passed on", store.confirmed == (axi.bvalid & axi.bready))

    def _flags(self, m: Module) -> None:
        dut, axi = self.dut, self.dut.axi
        read, written, answered = (transfer(axi_channel(axi, name)) for name in ("r", "w", "b"))
        failed = (read & (axi.rresp != OKAY)) | (answered & (axi.bresp != OKAY))
        for name, flag, event in (
            ("error", dut.error, failed),
            ("read beat", dut.read_beat, read),
            ("write beat", dut.write_beat, written),
        ):
            before = ago(m, event, 1, name.replace(" ", "_"), reset=True)
            self.claim(f"{name} is flagged in the next cycle", flag == before)
            self.cover(name, flag)


def _burst(address: Value, length: Value) -> Value:
    """Return the request of a burst; AXI4's `length` is one less than its beats."""
    return Cat(address, (length + Const(1, 9))[:9])


@dataclass(frozen=True)
class _Stage:
    """A place inside the splitter, which holds `words` words of a run from `word` on; `ends`: the run's last ones."""

    valid: Value
    word: Value
    words: Value
    ends: Value
    tag: Value


@proves("bus/burst", "bursts of 64 words of 4 bytes", Induction(4), SMALLEST, beats=64, tag=3)
@proves(
    "bus/burst",
    {f"bursts of 256 words of {bus} bytes": SMALLEST.replace(bus_bytes=bus) for bus in (16, 128)},
    Induction(4),
    beats=256,
    tag=3,
)
class SplitterBench(Bench, unit=BurstSplitter):
    """Bursts cover each run exactly, in order and with its tag, one a cycle. They end at blocks and at the run's end,
    and cross no block and no page. The splitter is idle while it has no run.

    The bus is unconstrained. Runs may wrap around from the last address to 0. Assumed: a run has at least one byte. One
    run, which may be any, is watched on its way through the unit; `_claim_places` says where it is, because induction
    would start from unreachable states otherwise.
    """

    MOST = 5
    """Runs inside the unit: two in front of the one that is cut, and two whose bursts wait."""

    def watch(self, m: Module) -> None:
        dut, run, request = self.dut, self.dut.run, self.dut.request
        bus = dut.config.bus_bytes
        self.assume(run.payload.bytes != 0)
        burst = Cat(request.payload.address, request.payload.beats, dut.last, dut.tag)
        stable(m, self, Channel(request.valid, request.ready, burst), "request")
        self._runs(m, transfer(run), transfer(request) & dut.last)
        self._place(m)
        first, beats, block = request.payload.address, request.payload.beats, dut.block
        self.claim(
            "no burst goes on into the next page", ~request.valid | (first % PAGE + beats * bus <= PAGE)
        )
        self._claim_places()
        self.cover("a burst of the whole block", request.valid & (beats == block))
        self.cover("a run in three bursts", self.ours & dut.last & (self.bursts == 2))

    def _stages(self) -> Iterator[_Stage]:
        """Yield the places inside the unit, from the oldest."""
        align, tag = (self.dut.config.bus_bytes - 1).bit_length(), len(self.dut.tag)
        for place, (valid, content) in enumerate(self._slots("bursts", 42 + tag)):
            address, beats, last = content[:32], content[32:41], content[41]
            self.claim(f"stage {place} holds whole words", ~valid | (address % (1 << align) == 0))
            yield _Stage(valid, address >> align, beats, last, content[42:])
        last = self.peek("last#1")
        cut = _Stage(self.peek("active"), self.peek("word"), self.peek("rest") + 1, last, self.peek("tag#1"))
        room = self.dut.block - cut.word % self.dut.block
        self.claim("a run ends in its block if it is short", ~cut.valid | (last == (cut.words <= room)))
        yield cut
        for valid, content in self._slots("skid", 64 - align + tag):
            word, rest = content[: 32 - align], content[32 - align : 64 - align]
            yield _Stage(valid, word, rest + 1, Const(1), content[64 - align :])

    def _slots(self, name: str, width: int) -> Iterator[tuple[Value, Value]]:
        """Yield valid and word of a skid buffer's two places, from the oldest."""
        yield self.peek(f"{name}.o__valid"), self.peek(f"{name}.o__payload")
        yield ~self.peek(f"{name}.i__ready"), self.peek(f"{name}.kept")

    def _claim_places(self) -> None:
        """Claim that the places hold all words of the watched run that have not left."""
        stages, runs = list(self._stages()), self.runs
        ended: Value = Const(0, 3)
        taken: Value = Const(0, 10)
        for index, stage in enumerate(stages):
            ours = stage.valid & runs.watched & (runs.ahead == ended)
            left = (self.left - taken)[:32]
            place = (stage.word == (self.word + taken)[: len(self.word)]) & (stage.tag == self.tag)
            if index < 2:
                most = (stage.words <= left) & (stage.ends == (stage.words == left))
                taken = taken + Mux(ours, stage.words, 0)
                self._burst(f"of stage {index}", stage)
                cut = stages[2].valid | (stages[index + 1].valid if index == 0 else 0)
                self.claim(f"stage {index} is not alone", ~stage.valid | stage.ends | cut)
            else:
                most = stage.words == left
            self.claim(f"the watched run in stage {index}", ~ours | (place & most))
            ended = (ended + (stage.valid & (stage.ends | Const(index >= 2))))[:3]
        self.claim("runs are where they are counted", runs.inside == ended)
        self.claim("the watched run is there", ~runs.watched | (runs.ahead < runs.inside))
        for first, second in ((0, 1), (3, 4)):
            self.claim(f"stage {second} fills up after {first}", stages[first].valid | ~stages[second].valid)

    def _burst(self, name: str, stage: _Stage) -> None:
        end = stage.word % self.dut.block + stage.words
        self.claim(f"at least a beat {name}", ~stage.valid | (stage.words != 0))
        self.claim(f"no burst {name} goes on into the next block", ~stage.valid | (end <= self.dut.block))
        whole = stage.ends | (end == self.dut.block)
        self.claim(f"a burst {name} ends with block or run", ~stage.valid | whole)

    def _runs(self, m: Module, push: Value, ends: Value) -> None:
        dut, run, request = self.dut, self.dut.run, self.dut.request
        self.runs = runs = WatchedItem(
            m, self, "runs", push=push, pop=ends, most=self.MOST, shown=request.valid
        )
        self.tag = Signal.like(dut.tag)
        self.ours = runs.oldest & request.valid
        with m.If(runs.starts):
            m.d.sync += self.tag.eq(run.payload.tag)
        self.claim("idle while there is no run", dut.idle == (runs.inside == 0))
        self.claim("takes a run while there is room", run.ready | (runs.inside >= 2))
        self.claim("the tag is the run's", ~self.ours | (dut.tag == self.tag))
        within(m, self, (runs.inside != 0) & ~request.valid, 2, "a burst comes")
        self.cover("full", runs.inside == self.MOST)

    def _place(self, m: Module) -> None:
        """Follow the watched run: its next word, and how many words of it are left."""
        dut, run, request = self.dut, self.dut.run.payload, self.dut.request
        bus, beats = dut.config.bus_bytes, request.payload.beats
        self.word = Signal(32 - (bus - 1).bit_length())
        self.left = Signal(32)
        self.bursts = Signal(3)
        begun = Signal()
        with m.If(self.runs.starts):
            m.d.sync += [
                self.word.eq(run.address // bus),
                self.left.eq((run.address % bus + run.bytes + (bus - 1)) // bus),
                Cat(self.bursts, begun).eq(0),
            ]
        with m.Elif(self.ours & request.ready):
            m.d.sync += [self.word.eq(self.word + beats), self.left.eq(self.left - beats), begun.eq(1)]
            m.d.sync += self.bursts.eq(self.bursts + (self.bursts != 7))
        self.claim("bursts follow each other", ~self.ours | (request.payload.address // bus == self.word))
        self.claim("no more words than the run has", ~self.ours | (beats <= self.left))
        self.claim(
            "the last burst is the one that ends the run", ~self.ours | (dut.last == (beats == self.left))
        )
        self.claim("a burst a cycle", ~(self.runs.watched & begun) | request.valid)
