"""Properties of `weft.hdl.memory`: the scratchpad and the accumulator."""

from __future__ import annotations

from itertools import combinations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import was
from weft.extras.proof.hardware.property import Bench, Induction, Invariant, proves
from weft.hdl.isa.config import Config
from weft.hdl.isa.operands import READ_LATENCY, rmw_latency
from weft.hdl.lib.ports import ALIGNMENT_BITS
from weft.hdl.memory import Accumulator, Scratchpad
from weft.hdl.sequential.core import Scratchpad as SequentialScratchpad


class _Small(Config):
    """Configuration that is smaller than `Config` permits: the proofs do not depend on sizes."""

    def __post_init__(self) -> None:
        return


def small(**sizes: int) -> Config:
    sizes = {"n": 1, "scratchpad_banks": 2, "scratchpad_depth": 2} | sizes
    return _Small(**{"accumulator_banks": 2, "accumulator_depth": 2, "probability_bits": 0} | sizes)


@proves(
    "memory/scratchpad",
    "4 readers and 2 writers of 2 banks of 2",
    Invariant(),
    small(scratchpad_banks=2, scratchpad_depth=2),
    readers=4,
    writers=2,
)
@proves(
    "memory/scratchpad",
    "2 readers and 2 writers of 4 banks of 2",
    Invariant(),
    small(scratchpad_banks=4, scratchpad_depth=2),
    readers=2,
    writers=2,
)
@proves(
    "memory/scratchpad",
    "1 readers and 1 writers of 2 banks of 4",
    Invariant(),
    small(scratchpad_banks=2, scratchpad_depth=4),
    readers=1,
    writers=1,
)
class ScratchpadBench(Bench, unit=Scratchpad):
    """A client waits only while an earlier client asks for its bank, so a bank has one reader and one writer a cycle. A
    granted read returns the value that was written last, in its cycle.

    Clients are unconstrained. One address and one reader, which may be any, are watched, with the value that was
    written to the address since the reset. Older contents of memory are not compared.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        depth = dut.config.scratchpad_depth
        for kind, ports in (("reader", dut.read), ("writer", dut.write)):
            wanted = [port.address // depth for port in ports]
            for index, port in enumerate(ports):
                ahead = Cat(*(ports[k].valid & (wanted[k] == wanted[index]) for k in range(index))).any()
                self.claim(f"{kind} {index} waits for those ahead of it alone", port.ready == ~ahead)
            for one, other in combinations(range(len(ports)), 2):
                both = Cat(*(ports[k].valid & ports[k].ready for k in (one, other))).all()
                alone = wanted[one] != wanted[other]
                self.claim(f"{kind}s {one} and {other} are in different banks", ~both | alone)
                self.cover(f"{kind}s {one} and {other} at once", both)
        self._claim_contents(m, self.constant(m, len(dut.read[0].address), "address"))

    def _claim_contents(self, m: Module, address: Value) -> None:
        dut = self.dut
        width = dut.config.widths.vector
        which = self.constant(m, range(len(dut.read)), "which")
        known = Signal()
        content = Signal(width)
        written = Signal()
        data = Signal(width)
        for port in dut.write:
            with m.If(port.valid & port.ready & (port.address == address)):
                m.d.comb += [written.eq(1), data.eq(port.data)]
        with m.If(written):
            m.d.sync += [known.eq(1), content.eq(data)]
        asked = Signal()
        read = Signal(width)
        for index, port in enumerate(dut.read):
            with m.If(which == index):
                m.d.comb += asked.eq(port.valid & port.ready & (port.address == address))
                m.d.comb += read.eq(port.data)
        now = Cat(asked & known, content, Mux(written, data, content))
        for stage in range(READ_LATENCY):
            before = Signal(len(now), name=f"asked{stage}")
            m.d.sync += before.eq(now)
            now = before
        due, old, new = now[0], now[1 : 1 + width], now[1 + width :]
        self.claim("a read returns what was written last", ~due | (read == old) | (read == new))
        self.cover("something else than 0 is read", due & (old == new) & (old != 0))
        self.cover("written while it is read", due & (old != new))


@proves("sequential/scratchpad", "vectors", Invariant(), small(n=2))
class VectorsBench(Bench, unit=SequentialScratchpad):
    """A read returns the vector that was written to its address: the last bytes that were pushed, in their order. A
    byte that is written alone is the oldest of them, which moves to the end.

    Assumed: a vector and a byte of a vector are not written in one cycle. One address, which may be any, is watched
    with the bytes that were written to it since the reset.
    """

    def watch(self, m: Module) -> None:
        dut, n = self.dut, self.dut.config.n
        self.assume(~(dut.write & dut.write_byte))
        address = self.constant(m, len(dut.read_address), "address")
        made = Signal(8 * n, name="expected_made", reset_less=True)
        content = Signal(8 * n)
        known = Signal(n)
        due = Signal(8 * n)
        seen = Signal(n)
        with m.If(dut.push):
            m.d.sync += made.eq(Cat(made[8:], dut.byte))
        with m.Elif(dut.write_byte):
            m.d.sync += made.eq(made.rotate_right(8))
        for lane in range(n):
            alone = dut.write_byte & (dut.column == lane)
            with m.If((dut.write_address == address) & (dut.write | alone)):
                byte = Mux(dut.write, made.word_select(lane, 8), made[:8])
                m.d.sync += [known[lane].eq(1), content.word_select(lane, 8).eq(byte)]
            read = dut.vector.word_select(lane, 8)
            self.claim(
                f"byte {lane} is what was written last", ~seen[lane] | (read == due.word_select(lane, 8))
            )
        with m.If(dut.read):
            m.d.sync += [due.eq(content), seen.eq(Mux(dut.read_address == address, known, 0))]
        self.cover("a whole vector is read", seen.all() & (due[:8] != due[8:16]))


@proves("memory/accumulator", "rows of 2", Induction(8), small(n=2, probability_bits=0))
@proves("memory/accumulator", "aligned rows of 1", Induction(10), small(n=1, probability_bits=7))
class AccumulatorBench(Bench, unit=Accumulator):
    """A granted read returns the row's sum if no write to the row is under way. A read is refused only for a row that
    is added to in its bank.

    Reads are unconstrained. Assumed, as `accumulator_write` says: a row is added to at least `rmw_latency` cycles after
    the last write to it, and alignments are from -31 to 31. One row, which may be any, is watched with its expected
    content after it was overwritten since the reset. Reads are not compared while a write to the row is under way.
    """

    def watch(self, m: Module) -> None:
        dut, config = self.dut, self.dut.config
        depth = config.accumulator_depth
        address = self.constant(m, len(dut.read.address), "address")
        adds = dut.write.valid & ~dut.write.overwrite
        same_bank = dut.write.address // depth == dut.read.address // depth
        self.claim(
            "a read is refused for a row that adds in its bank alone", dut.read.ready == ~(adds & same_bank)
        )
        self.cover("a read beside a row that adds", adds & dut.read.valid & dut.read.ready)
        known = Signal()
        content = Signal(config.widths.row)
        under_way = self._model_write(m, address, known, content)
        stages = [Signal(name=f"asked{stage}") for stage in range(READ_LATENCY)]
        asked = dut.read.valid & dut.read.ready & (dut.read.address == address) & known & ~under_way
        m.d.sync += Cat(*stages).eq(Cat(asked, *stages[:-1]))
        # `content` has no later write yet, because a write takes longer than the read.
        self.claim("a read returns the row", ~stages[-1] | (dut.read.data == content))
        self.cover("something else than 0 is read", stages[-1] & (content != 0))
        for index, stage in enumerate(stages):
            bank = self.peek(f"read_bank{index}")
            self.claim(f"the bank is known in stage {index}", ~stage | (bank == address // depth))

    def _model_write(self, m: Module, address: Value, known: Signal, content: Signal) -> Value:
        """Update `content` with rows for the watched address when reads must see them; return whether a row is under
        way.
        """
        write, config = self.dut.write, self.dut.config
        comes = write.valid & (write.address == address)
        row = Cat(comes, write.overwrite, write.psums.as_value())
        if config.softmax:
            row = Cat(row, write.alignment)
            self.assume(write.alignment != -32)
        stages = [Signal(len(row), name=f"row{stage}") for stage in range(rmw_latency(config) - 1)]
        m.d.sync += Cat(*stages).eq(Cat(row, *stages[:-1]))
        under_way = Cat(*(stage[0] for stage in stages)).any()
        self.assume(~(comes & ~write.overwrite & under_way))
        lands, overwrites, sums = stages[-1][0], stages[-1][1], []
        for lane in range(config.n):
            psum = stages[-1][2:].word_select(lane, config.widths.psum).as_signed()
            old = Mux(overwrites, 0, content.word_select(lane, 32)).as_signed()
            if config.softmax:
                shift = stages[-1][-ALIGNMENT_BITS:].as_signed()
                old, psum = _rsh(old, Mux(shift > 0, shift, 0)), _rsh(psum, Mux(shift < 0, -shift, 0))
            sums.append((old + psum)[:32])
        with m.If(lands):
            m.d.sync += [content.eq(Cat(*sums)), known.eq(known | overwrites)]
        self.cover("a row is added to", lands & known & ~overwrites)
        self._claim_places(m, address, known, content, stages)
        return under_way

    def _claim_places(
        self, m: Module, address: Value, known: Value, content: Value, stages: list[Signal]
    ) -> None:
        """Claim where the watched row is in the unit: the claims about reads follow from that."""
        config = self.dut.config
        bank = address // config.accumulator_depth
        for index, stage in enumerate(stages[:READ_LATENCY]):
            held = self.peek(f"payload{index}")
            valid = self.peek(f"valid{index}")
            comes = valid & (held[1 : 1 + len(address)] == address)
            self.claim(f"the row is in stage {index}", stage[0] == comes)
            row = Cat(held[0], held[1 + len(address) :])
            if not config.softmax:
                self.claim(f"the row is as it came in stage {index}", ~stage[0] | (row == stage[1:]))
        adds = stages[READ_LATENCY - 1][0] & ~stages[READ_LATENCY - 1][1] & known
        for index in range(config.accumulator_banks):
            output = self.peek(f"output{index}")
            self.claim(f"bank {index} has the old row", ~(adds & (bank == index)) | (output == content))
        total = self.peek("total")
        landed = was(m, stages[-1][0])
        self.claim("the sum is right", ~(landed & known) | (total == content))
        inner, depth = (config.accumulator_depth - 1).bit_length(), config.accumulator_depth
        rows = Array(
            self.peek_word(f"bank{index}", address[:inner], depth)
            for index in range(config.accumulator_banks)
        )
        self.claim("memory has the row", ~known | landed | (rows[address[inner:]] == content))


def _rsh(value: Value, shift: Value) -> Value:
    """Return `rsh` of `weft.hdl.isa`, for shifts from 0 to 31."""
    half = Const(1, 32) << (shift - 1)[:5]
    return Mux(shift == 0, value, (value + half) >> shift[:5])
