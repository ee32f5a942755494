"""The vector unit against a model written from the docstring of `weft.hdl.isa.Vec`."""

import cocotb
import pytest
from support.families import multipliers
from support.mostly_long import mostly_long
from support.vec_bench import BLOCKS, Bench, Model, random_lookup, random_vec

from weft.hdl.isa import PARAMETER_VECTORS, Reduce, Source, Vec
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.operands import VEC_EARLY_OVERHEAD, vec_overhead
from weft.hdl.vector.vec import VecUnit
from weft.sim.rtl.bench import run_bench

TINY = PRESETS["tiny"]
CONFIGS = {
    "two lanes of four": TINY,
    "all lanes": TINY.replace(lanes=4, lookup_tables=8),
    "smallest": TINY.replace(n=2, lanes=1, mantissa_bits=16, lookup_tables=1),
    "one lane of eight": TINY.replace(n=8, lanes=1, bus_bytes=8, lookup_tables=2),
    "two lanes of four, without softmax": TINY.replace(probability_bits=0),
    "all lanes, 7 bits, without look-up tables": TINY.replace(lanes=4, probability_bits=7, lookup_tables=0),
    "smallest, without tables": TINY.replace(
        n=2, lanes=1, mantissa_bits=16, probability_bits=0, lookup_tables=0
    ),
}


def dense_vec(rng, config, **given):
    """`ox` outputs one after the other, nothing out of range."""
    base = BLOCKS * PARAMETER_VECTORS
    fields = {"src_ox": 1, "dst_ox": 1, "b_ox": 1, "signal": rng.randrange(1, 1 << 16), "params": 0}
    fields |= {"src": base if given["source"] == Source.SCRATCHPAD else 3, "b": base + 50, "dst": base + 100}
    return Vec(**(fields | given))


def draw(bench, **given):
    """A random instruction that does not overwrite what it reads, in the state of memory now."""
    while True:
        vec = random_vec(bench.rng, bench.config, **given)
        if Model(bench.memory, vec).safe():
            return vec


@cocotb.test()
async def bench_random(dut):
    bench = Bench(dut, refuse=0.3)
    await bench.start()
    for _ in range(80):
        await bench.run([draw(bench)])
    assert bench.stalls


@cocotb.test()
async def bench_lookup(dut):
    """Tables change between instructions, a part of one at a time."""
    bench = Bench(dut, refuse=0.3)
    await bench.start()
    for _ in range(20 if bench.config.lookup_tables else 0):
        filled = [random_lookup(bench.rng, bench.config) for _ in range(bench.rng.randrange(3))]
        await bench.run([*filled, draw(bench)], gaps=bench.rng.choice((0.0, 0.9)))


@cocotb.test()
async def bench_bounds(dut):
    """Coordinates are signed: negative ones are out of range even below a bound that they pass as unsigned."""
    bench = Bench(dut, refuse=0.0)
    await bench.start()
    one = dict.fromkeys(("ob", "oy", "ox", "ry", "rx"), 1)
    plain = {"source": Source.ACCUMULATOR, "add": 0, "reduce": Reduce.NONE, "low": -128, "high": 127}
    for axis, bound, other, other_bound in (("y", "h", "x", "w"), ("x", "w", "y", "h")):
        for value in (0, 1, 32767, -1, -32768):
            for limit in (1, 2, 32767, 32768, 65535):
                at = {axis: value, bound: limit, other: 0, other_bound: 1}
                await bench.run([draw(bench, **one, **plain, **at)])


@cocotb.test()
async def bench_queue(dut):
    """Several instructions waiting, each reading what the one before it wrote."""
    bench = Bench(dut, refuse=0.0)
    await bench.start()
    for _ in range(10):
        bench.refuse = bench.rng.choice((0.0, 0.5))
        # Every instruction writes a region of its own, so that none overwrites what it reads.
        at = BLOCKS * PARAMETER_VECTORS + 200
        walk = {"dst_ob": 16, "dst_oy": 4, "dst_ox": 1}
        vecs = [draw(bench, source=Source.ACCUMULATOR, dst=at, **walk)]
        for _ in range(6):
            before = vecs[-1]
            chain = {f"src_{loop}": getattr(before, f"dst_{loop}") for loop in ("ob", "oy", "ox")}
            chain |= {loop: getattr(before, loop) for loop in ("ob", "oy", "ox")}
            at += 100
            chained = Vec(
                source=Source.SCRATCHPAD, src=before.dst, params=BLOCKS // 2 * PARAMETER_VECTORS, dst=at,
                signal=bench.rng.randrange(1, 1 << 16), **walk, **chain,
            )  # fmt: skip
            vecs.append(chained)
        await bench.run(vecs, gaps=bench.rng.choice((0.0, 0.9)))


@cocotb.test()
async def bench_overlap(dut):
    """Early instructions before and after any other, of one or more elements, use their own settings, parameters,
    tables and signals."""
    bench = Bench(dut, refuse=0.0)
    await bench.start()
    for _ in range(40):
        bench.refuse = bench.rng.choice((0.0, 0.0, 0.5))
        program = []
        for _ in range(bench.rng.randrange(2, 7)):
            given = {"source": Source.ACCUMULATOR, "add": 0} if bench.rng.random() < 0.7 else {}
            if bench.rng.random() < 0.4:
                given |= dict.fromkeys(("ob", "oy", "ry", "rx"), 1) | {"ox": bench.rng.choice((1, 1, 2, 30))}
            program.append(draw(bench, **given))
            if bench.config.lookup_tables and bench.rng.random() < 0.2:
                program.append(random_lookup(bench.rng, bench.config))
        await bench.run(program, gaps=bench.rng.choice((0.0, 0.0, 0.9)))
    # Wherever in the end of one the next is offered.
    bench.refuse = 0.0
    one = dict.fromkeys(("ob", "oy", "ox", "ry", "rx"), 1) | {"source": Source.ACCUMULATOR, "add": 0}
    for pause in range(25):
        await bench.run([draw(bench, **one) for _ in range(5)], pause=pause)


@cocotb.test()
async def bench_throughput(dut):
    """A cycle for each read, and a constant."""
    bench = Bench(dut, refuse=0.0)
    await bench.start()
    for source in Source:
        for given, reads in (
            ({"ox": 1}, 1), ({"ox": 40}, 1), ({"ox": 5, "oy": 2, "src_oy": 5, "dst_oy": 5}, 1),
            ({"ox": 9, "rx": 3, "src_rx": 1, "reduce": Reduce.MAX}, 3),
            ({"ox": 9, "add": 1, "b_mantissa": 1 << 13}, None),
            ({"ox": 7, "lookup": int(bench.config.lookup_tables > 0)}, 1),
        ):  # fmt: skip
            vec = dense_vec(bench.rng, bench.config, source=source, h=1, w=1, **given)
            bench.accepted = []
            models = await bench.run([vec, vec])
            groups = bench.config.groups
            cycles = vec.ox * vec.oy * (groups * reads if reads else groups + 1)
            assert models[0].steps == cycles
            constant = vec_overhead(bench.config)
            early = source == Source.ACCUMULATOR and not vec.add
            between = VEC_EARLY_OVERHEAD if early else constant
            assert bench.accepted[1] - bench.accepted[0] == cycles + between
            assert bench.finished - bench.accepted[1] <= cycles + constant + 3
    for lookup in [random_lookup(bench.rng, bench.config)] if bench.config.lookup_tables else []:
        bench.accepted = []
        await bench.run([lookup, lookup])
        # No parameters, behind which the first two cycles of the loop nest would not show.
        constant = vec_overhead(bench.config) - PARAMETER_VECTORS + 2
        assert bench.accepted[1] - bench.accepted[0] == lookup.vectors * bench.config.n + constant
    assert not bench.stalls


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", CONFIGS)
def test_vec(name):
    config = CONFIGS[name]
    run_bench(VecUnit(config), parameters={"config": config.to_dict()})


@pytest.mark.parametrize(
    "changes", mostly_long([{}, {"lanes": 1, "mantissa_bits": 16, "lookup_tables": 0}], 1), ids=str
)
def test_serial_vec(changes):
    config = TINY.replace(probability_bits=0, **changes)
    only = "bench_(random|lookup|bounds|queue|overlap)$"
    run_bench(VecUnit(config, multipliers("ice40")), parameters={"config": config.to_dict()}, only=only)
