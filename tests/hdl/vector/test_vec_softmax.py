"""Softmax, Normalise and Table in the vector unit, mixed with Vec, against `softmax_model`."""

from functools import partial

import cocotb
import pytest
from cocotb.triggers import RisingEdge
from support import vec_bench
from support.mostly_long import mostly_long
from support.softmax_model import (
    advance,
    clamp,
    divide,
    final_alignment,
    normalise,
    probabilities,
    score,
    wrap,
)
from support.vec_bench import BLOCKS, Bench, Memory, random_lookup, random_use

from weft.hdl.isa import BASES, PARAMETER_VECTORS, Lookup, Normalise, Softmax, Source, Table, Vec
from weft.hdl.isa.config import PRESETS
from weft.hdl.lib.ports import ALIGNMENT_BITS
from weft.hdl.vector.vec import VecUnit
from weft.sim.rtl.bench import run_bench

TINY = PRESETS["tiny"].replace(scratchpad_depth=512)
CONFIGS = {
    "two lanes of four": TINY.replace(table_depth=2048),
    "all lanes, 7 bits": TINY.replace(lanes=4, probability_bits=7, table_depth=512),
    "smallest": TINY.replace(
        lookup_tables=1, n=2, lanes=1, mantissa_bits=16, row_states=4, alignments=16, table_depth=256
    ),
    "two lanes of eight": TINY.replace(
        n=8, lanes=2, bus_bytes=8, table_depth=256, alignments=4096, lookup_tables=0
    ),
    "all lanes of eight": TINY.replace(n=8, lanes=8, bus_bytes=8, table_depth=1024, lookup_tables=8),
    "one lane of thirty-two": TINY.replace(n=32, lanes=1, bus_bytes=32, table_depth=1024),
}
EXTRA = {"fine": BLOCKS, "coarse": BLOCKS + 2, "equal": BLOCKS + 4}
"""More parameter blocks, pairs for accumulator and scratchpad: scores within, and far beyond 16 octaves; all equal."""
RESERVED = PARAMETER_VECTORS * (BLOCKS + 6)


class SoftmaxMemory(Memory):
    """A memory with row states, alignments and table, all unknown until written."""

    reserved = RESERVED

    def __init__(self, config, rng):
        super().__init__(config, rng)
        for name, shift in (("fine", 9), ("coarse", 4), ("equal", 4)):
            for source in Source:
                block = EXTRA[name] + source
                self.block(rng, block, shift - (0 if source == Source.ACCUMULATOR else 14))
                if name == "equal":  # no mantissa
                    first = block * PARAMETER_VECTORS
                    self.scratchpad[first + 4 : first + 7] = 0
        self.states = {}
        self.alignments = {}
        self.table = [None] * config.table_depth
        self.bases = [0] * BASES


class SoftmaxModel:
    """Like `vec_bench.Model`, and alignments written."""

    def __init__(self, memory, instruction):
        self.memory, self.config, self.i = memory, memory.config, instruction
        self.read, self.writes, self.alignments, self.states = set(), [], [], {}
        self.known = True
        if isinstance(instruction, Table):
            self._table()
            return
        for ob in range(instruction.ob):
            for oy in range(instruction.oy):
                for ox in range(instruction.ox):
                    self._vector((ob, oy, ox))

    def safe(self):
        """Return whether no output overlaps another output, an input, or a parameter block."""
        targets = [address for address, _ in self.writes]
        where = [address for address, _ in self.alignments]
        rows = getattr(self.i, "oy", 0) * getattr(self.i, "ox", 0)
        return (
            self.known
            and len(set(targets)) == len(targets)
            and len(set(where)) == len(where)
            and self.read.isdisjoint(targets)
            and all(address >= RESERVED for address in targets)
            and (not isinstance(self.i, Softmax) or len(self.states) == rows)
        )

    def apply(self):
        for address, values in self.writes:
            self.memory.scratchpad[address] = values
        self.memory.alignments.update(self.alignments)
        if isinstance(self.i, Softmax) and not self.i.final:
            self.memory.states.update(self.states)
        if isinstance(self.i, Table):
            self.memory.table[: len(self.entries)] = self.entries

    def _table(self):
        vectors = [self._scratchpad(self.i.src + v) for v in range(self.i.vectors)]
        self.entries = [value & 0xFF for vector in vectors for value in vector]
        self.known = len(self.entries) <= self.config.table_depth

    def _scratchpad(self, address):
        address %= self.config.scratchpad_size
        self.read.add(address)
        return [int(value) for value in self.memory.scratchpad[address]]

    def _address(self, name, at, size):
        total = getattr(self.i, name)
        for loop, index in zip(("ob", "oy", "ox"), at, strict=True):
            total += index * getattr(self.i, f"{name}_{loop}", 0)
        return total % size

    def _source(self, at):
        if self.i.source == Source.SCRATCHPAD:
            return self._scratchpad(self._address("src", at, self.config.scratchpad_size))
        address = self._address("src", at, self.config.accumulator_size)
        return [int(value) for value in self.memory.accumulator[address]]

    def _vector(self, at):
        source = self._source(at)
        state = self._address("state", at, self.config.row_states)
        alignment = self._address("alignment", at, self.config.alignments)
        method = self._softmax if isinstance(self.i, Softmax) else self._normalise
        values = method(at, source, state, alignment)
        self.writes.append((self._address("dst", at, self.config.scratchpad_size), values))

    def _softmax(self, at, source, state, alignment):
        i, (ob, _, ox) = self.i, at
        self.read |= set(range(i.params, i.params + PARAMETER_VECTORS))
        columns = self.memory.parameters(i.params)
        scores = [score(e, *column) for e, column in zip(source, columns, strict=True)]
        base = self.memory.bases[i.register] if i.relative else 0
        length, diagonal = (
            clamp(wrap(value + base, 32), -(1 << 15), (1 << 15) - 1) for value in (i.length, i.diagonal)
        )
        limit = min(length, diagonal + ox + 1) if i.causal else length
        peak, p = probabilities(scores, limit - ob * self.config.n, self.memory.table)
        before = self.states.get(state, self.memory.states.get(state))
        if i.first and ob == 0:
            before = (-256, 0)
        elif i.final:
            before = self.memory.states.get(state)
        if before is None:
            self.known = False
            return p
        if i.final:
            shift, self.states[state] = final_alignment(before, peak), before
        else:
            self.states[state], shift = advance(before, peak, sum(p))
        self.alignments.append((alignment, shift))
        return [wrap(value - (128 if self.config.probability_bits == 8 else 0), 8) for value in p]

    def _normalise(self, at, source, state, alignment):
        i = self.i
        if i.source == Source.SCRATCHPAD and self.config.probability_bits == 8:
            source = [value + 128 for value in source]
        known = self.memory.states.get(state), self.memory.alignments.get(alignment)
        if known[0] is None or (i.scaled and known[1] is None):
            self.known = False
            return source
        result = divide(known[0][1], i.scale, i.exponent, i.v_zero)
        shift = known[1] if i.scaled else 0
        return [clamp(normalise(e, result, shift) + i.zero, i.low, i.high) for e in source]


def model(memory, instruction):
    if isinstance(instruction, Vec | Lookup):
        return vec_bench.model(memory, instruction)
    return SoftmaxModel(memory, instruction)


class SoftmaxBench(Bench):
    """`vec_bench.Bench` with alignments on both ports, and base registers."""

    def __init__(self, dut, refuse):
        super().__init__(dut, refuse)
        self.memory = SoftmaxMemory(self.config, self.rng)
        self.scratchpad, self.accumulator = self.memory.scratchpad.copy(), self.memory.accumulator.copy()
        self.model = self._model
        self.alignments, self.due = {}, []

    async def start(self):
        self.dut.bases.value = 0
        await super().start()
        cocotb.start_soon(self.alignment_reads())
        cocotb.start_soon(self.alignment_writes())
        await self.prepare()

    async def alignment_reads(self):
        port, coming = vec_bench.Port(self.dut, "alignment_read"), vec_bench.no_reads()
        while True:
            await RisingEdge(self.dut.clk)
            data = None
            if int(port.valid.value):
                data = self.alignments.get(int(port.address.value), 0) & ((1 << ALIGNMENT_BITS) - 1)
            coming.append(data)
            data = coming.popleft()
            port.data.value = self.rng.getrandbits(ALIGNMENT_BITS) if data is None else data

    async def alignment_writes(self):
        dut = self.dut
        while True:
            await RisingEdge(dut.clk)
            if int(dut.alignment_write__valid.value):
                got = (
                    int(dut.alignment_write__address.value),
                    wrap(int(dut.alignment_write__data.value), ALIGNMENT_BITS),
                )
                _, instruction, address, shift = self.due.pop(0)
                assert got == (address, shift), f"got {got}, expected {address, shift} for {instruction}"
                self.alignments[address] = shift
            if int(dut.signal.value):
                assert not self.due or self.due[0][0] > self.ended, "signal and alignments disagree"
                self.ended += 1

    async def run(self, instructions, gaps=0.0):
        """Run as `Bench.run` does; each instruction must be `safe` after the previous one."""
        self.issued = self.ended = 0
        models = await super().run(instructions, gaps)
        assert not self.due
        assert self.alignments == self.memory.alignments
        return models

    def _model(self, memory, instruction):
        each = model(memory, instruction)
        self.due += [(self.issued, instruction, *write) for write in getattr(each, "alignments", ())]
        self.issued += 1
        return each

    async def prepare(self):
        """Fill the table, and write every row state and alignment once."""
        config, rng = self.config, self.rng
        await self.run([Table(src=RESERVED + 3, vectors=max(config.table_depth // config.n, 1), signal=1)])
        self.registers()
        for size, strides in (
            (config.row_states, {"state_oy": 4, "state_ox": 1}),
            (config.alignments, {"alignment_oy": 4, "alignment_ox": 1}),
        ):
            rows = min(size, config.row_states)
            for start in range(0, size, rows):
                length = {
                    "state_oy": 4,
                    "state_ox": 1,
                    "length": config.n,
                    "alignment_oy": 4,
                    "alignment_ox": 1,
                }
                await self.run(
                    [
                        Softmax(
                            **(length | strides), first=1, oy=rows // 4, ox=4, alignment=start, signal=1,
                            dst=RESERVED, dst_oy=4, dst_ox=1, src_oy=4, src_ox=1,
                            params=(EXTRA["fine"] + rng.randrange(2)) * PARAMETER_VECTORS,
                        )
                    ]
                )  # fmt: skip

    def registers(self):
        """New values for the base registers; only while the unit is idle."""
        choices = (0, 3, 20, 0xFFFFFFF0, 0x7FFFFFFF, 0x80000000, 40000, self.rng.getrandbits(32))
        bases = [self.rng.choice(choices) for _ in range(BASES)]
        self.memory.bases = bases
        self.dut.bases.value = sum(base << (32 * index) for index, base in enumerate(bases))

    def draw(self, kinds=(Softmax, Softmax, Normalise, Vec), **given):
        """A random instruction that is safe, in the state of memory now."""
        while True:
            kind = self.rng.choice(kinds)
            make = {
                Softmax: self.softmax, Normalise: self.normalise, Vec: self.vec, Table: self.table,
                Lookup: partial(random_lookup, self.rng, self.config),
            }[kind]  # fmt: skip
            instruction = make(**given)
            if model(self.memory, instruction).safe():
                return instruction

    def stride(self, *dense):
        return self.rng.choice(dense) if self.rng.random() < 0.8 else self.rng.randrange(-(1 << 15), 1 << 15)

    def common(self):
        rng = self.rng
        rows = rng.choice(((1, 1), (1, 1), (1, 2), (2, 1), (rng.randrange(1, 5), rng.randrange(1, 6))))
        return {
            "source": rng.randrange(2), "ob": rng.choice((1, 1, 2, 3, 6)), "oy": rows[0], "ox": rows[1],
            "src": rng.randrange(1 << 16), "src_ob": self.stride(20, 25, 1), "src_oy": self.stride(4, 5),
            "src_ox": self.stride(1, 2, 0), "dst": rng.randrange(1 << 16), "dst_ob": self.stride(20, 40),
            "dst_oy": self.stride(5, 7), "dst_ox": self.stride(1, 1), "signal": rng.randrange(1, 1 << 16),
            "alignment": rng.randrange(1 << 16), "alignment_ob": self.stride(20, 30),
            "alignment_oy": self.stride(5), "alignment_ox": self.stride(1), "state": rng.randrange(1 << 16),
            "state_oy": self.stride(5, 1),
        }  # fmt: skip

    def softmax(self, **given):
        rng, fields = self.rng, self.common()
        if rng.random() < 0.1:
            fields["oy"], fields["ox"] = 1, 1
            fields["ob"] = rng.randrange(1, 40)
            fields["dst_ob"] = fields["alignment_ob"] = 1
        columns = fields["ob"] * self.config.n
        block = rng.choice(("fine", "fine", "coarse", "equal"))
        parameters = EXTRA[block] + fields["source"] if rng.random() < 0.9 else rng.randrange(BLOCKS)
        wild = (0, -5, -(1 << 15), (1 << 15) - 1)
        fields |= {
            "first": rng.randrange(2), "final": int(rng.random() < 0.3), "causal": rng.randrange(2),
            "relative": int(rng.random() < 0.3), "register": rng.randrange(BASES),
            "length": rng.choice((*wild, columns, columns, columns, rng.randrange(columns + 3))),
            "diagonal": rng.choice((*wild, columns, rng.randrange(-8, columns + 3))),
            "state_ox": self.stride(1), "params": parameters * PARAMETER_VECTORS,
        }  # fmt: skip
        return Softmax(**(fields | given))

    def normalise(self, **given):
        rng, fields = self.rng, self.common()
        scaled = rng.randrange(2)
        result = rng.choice((40, 30, 35, 20, 0)) if rng.random() < 0.8 else rng.randrange(-64, 64)
        if fields["source"] == Source.SCRATCHPAD:
            result -= 12
        fields |= {
            "scaled": scaled, "scale": rng.randrange(1 << 15, 1 << 16), "exponent": clamp(result - 20, -64, 63),
            "v_zero": rng.choice((0, 0, rng.randrange(-128, 128))), "state_ob": self.stride(1, 20),
            "zero": rng.randrange(-128, 128), "low": rng.choice((-128, -128, 0, -100)),
            "high": rng.choice((127, 127, 6, 100)),
        }  # fmt: skip
        return Normalise(**(fields | given))

    def vec(self, **given):
        shared = {name: value for name, value in self.common().items() if name in Vec.__dataclass_fields__}
        block = self.rng.randrange(BLOCKS // 2) + (BLOCKS // 2 if shared["source"] else 0)
        add = {"add": 1, "b": self.rng.randrange(1 << 16), "b_mantissa": 1 << 13, "b_ox": 1}
        fields = shared | {"params": block * PARAMETER_VECTORS} | (add if self.rng.random() < 0.5 else {})
        return Vec(**(fields | random_use(self.rng, self.config) | given))

    def table(self, **given):
        rng = self.rng
        most = self.config.table_depth // self.config.n
        fields = {"src": rng.randrange(1 << 16), "vectors": rng.randrange(1, min(most, 12) + 1)}
        return Table(**(fields | {"signal": rng.randrange(1, 1 << 16)} | given))


@cocotb.test()
async def bench_random(dut):
    bench = SoftmaxBench(dut, refuse=0.0)
    await bench.start()
    for _ in range(150):
        bench.refuse = bench.rng.choice((0.0, 0.0, 0.3, 0.7))
        bench.registers()
        tables = (Table, Lookup) if bench.config.lookup_tables else (Table,)
        kinds = bench.rng.choice(((Softmax,), (Normalise,), (Vec,), (Softmax, Normalise, Vec, *tables)))
        await bench.run([bench.draw(kinds)])
    assert bench.stalls


@cocotb.test()
async def bench_rows(dut):
    """Few rows and many groups: the state of a row is needed as soon as it is there."""
    bench = SoftmaxBench(dut, refuse=0.0)
    await bench.start()
    for rows in range(1, 17):
        for refuse in (0.0, 0.0, 0.4):
            bench.refuse = refuse
            oy = bench.rng.choice([k for k in range(1, rows + 1) if rows % k == 0])
            given = {"oy": oy, "ox": rows // oy, "ob": 4, "final": 0, "length": (1 << 15) - 1}
            if rows <= bench.config.row_states and 4 * rows <= bench.config.alignments:
                await bench.run([bench.draw((Softmax,), **given)])


@cocotb.test()
async def bench_queue(dut):
    """Queued instructions, each using states, alignments, table and vectors of its predecessors."""
    bench = SoftmaxBench(dut, refuse=0.0)
    await bench.start()
    config, rows, groups = bench.config, min(bench.config.row_states, 4), 3
    at = RESERVED + 10
    spread = {"ob": groups, "ox": rows, "dst_ob": rows, "dst_ox": 1, "alignment_ob": rows, "alignment_ox": 1}
    length = {"length": bench.rng.randrange(config.n + 1, groups * config.n)}
    for _ in range(12):
        bench.refuse = bench.rng.choice((0.0, 0.5))
        source = bench.rng.choice(list(Source))
        block = (EXTRA["fine"] + source) * PARAMETER_VECTORS
        softmax = {
            "src": at + 60,
            "src_ob": rows,
            "src_ox": 1,
            "state_ox": 1,
            "source": source,
            "params": block,
        }
        probabilities = Softmax(**spread, **length, **softmax, first=1, dst=at, signal=1)
        again = Softmax(**spread, **length, **softmax, final=1, dst=at, signal=2)
        by_vector = {"ob": rows, "ox": groups, "dst_ob": groups, "src_ob": 1, "src_ox": rows, "state_ob": 1}
        by_vector |= {"alignment_ob": 1, "alignment_ox": rows, "dst_ox": 1, "scaled": 1}
        divided = Normalise(
            **by_vector, source=Source.SCRATCHPAD, src=at, dst=at + 30, exponent=-4, signal=4,
            scale=bench.rng.randrange(1 << 15, 1 << 16),
        )  # fmt: skip
        table = bench.table(src=at + 30, signal=8)
        if config.table_depth < table.vectors * config.n:
            table = bench.table(signal=8, vectors=1)
        copied = Vec(
            source=Source.SCRATCHPAD, src=at, ox=12, src_ox=1, dst=at + 45, dst_ox=1, params=block, signal=16
        )
        await bench.run(
            [probabilities, again, divided, table, copied], gaps=bench.rng.choice((0.0, 0.0, 0.9))
        )


@cocotb.test()
async def bench_cycles(dut):
    """A cycle for each lane group, or for Table each byte, and a constant; a row costs no less than its division."""
    bench = SoftmaxBench(dut, refuse=0.0)
    await bench.start()
    n, groups = bench.config.n, bench.config.groups
    spread = {"src_ox": 1, "dst_ox": 1, "alignment_ox": 1, "dst": RESERVED, "src": 900, "signal": 1}
    one_row = {"ob": 9, "length": (1 << 15) - 1, "dst_ob": 1, "alignment_ob": 1}

    async def cycles(instruction):
        bench.accepted = []
        await bench.run([instruction, instruction])
        return bench.accepted[1] - bench.accepted[0]

    rows = bench.config.row_states
    times = [await cycles(Softmax(**spread, ox=ox, state_ox=1, length=n)) for ox in (1, rows)]
    assert times[1] - times[0] == (rows - 1) * groups
    assert times[0] <= 2 * groups + 50
    passes = [await cycles(Softmax(**(spread | one_row | {"ob": ob}))) for ob in (1, 9)]
    assert passes[1] - passes[0] <= 8 * max(groups + 7, 8)
    vectors = [await cycles(Normalise(**spread, ox=ox)) for ox in (1, 12)]
    assert vectors[1] - vectors[0] == 11 * groups
    divisions = [await cycles(Normalise(**spread, ob=ob, dst_ob=1, state_ob=1)) for ob in (1, rows)]
    assert divisions[1] - divisions[0] <= (rows - 1) * max(16, groups)
    table = [await cycles(Table(src=RESERVED, vectors=count, signal=1)) for count in (1, 5)]
    assert table[1] - table[0] == 4 * n
    dut._log.warning(
        f"cycles: softmax {times[0] - groups} + groups, one row {(passes[1] - passes[0]) / 8} a group of columns, "
        f"normalise {vectors[0] - groups} + groups, row {(divisions[1] - divisions[0]) / (rows - 1):.1f}, "
        f"table {table[0] - n} + bytes"
    )


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", mostly_long(CONFIGS, 0, 1, 2, 3, 4))
def test_vec_softmax(name):
    config = CONFIGS[name]
    run_bench(VecUnit(config), parameters={"config": config.to_dict()})
