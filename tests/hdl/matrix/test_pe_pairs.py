"""Two products in one multiplier: every weight pair with every activation, as numbers and as hardware."""

import cocotb
import numpy as np
from amaranth.hdl import Cat, Const, Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import Out
from cocotb.triggers import RisingEdge
from support.unit_bench import start

from weft.boards.families.ecp5 import ECP5, mult18x18d
from weft.hdl.matrix.pe import SPLIT, PackedRow
from weft.sim.rtl.bench import run_bench

PAIRS = 64
"""Pairs that are tested at once, each with its own upper weights."""
TILES = (1 << 16) // PAIRS
ACTIVATIONS = 511


def test_packing_is_exact():
    w0, a = np.arange(-128, 128)[:, None], np.arange(-255, 256)[None, :]
    mask = (1 << 16 - SPLIT) - 1
    for w1 in range(-128, 128):
        packed = (w1 << SPLIT) + w0
        assert packed.min() >= -(1 << 17)
        assert packed.max() < 1 << 17
        product = packed * a
        high = ((product >> SPLIT) - ((w1 & mask) * (a & mask))) & mask
        high -= (mask + 1) * (high > mask >> 1)
        assert np.array_equal((high << SPLIT) + (product & ((1 << SPLIT) - 1)), w0 * a)
        assert np.array_equal((product >> SPLIT) - high, np.broadcast_to(w1 * a, product.shape))


class AllProducts(wiring.Component):
    """Counts through all weights and activations, and compares every product with a plain multiplier's."""

    def __init__(self):
        super().__init__({"done": Out(1), "wrong": Out(1), "checked": Out(32)})

    def elaborate(self, platform):
        m = Module()
        tile, time = Signal(range(TILES)), Signal(range(ACTIVATIONS + 16))
        a, valid = Signal(signed(9)), Signal()
        m.d.comb += [
            a.eq(time - 2 - ACTIVATIONS // 2),
            valid.eq((time >= 2) & (time < 2 + ACTIVATIONS) & ~self.done),
        ]
        m.d.sync += time.eq(time + 1)
        with m.If(time == ACTIVATIONS + 15):
            m.d.sync += [time.eq(0), tile.eq(tile + 1)]
            with m.If(tile == TILES - 1):
                m.d.sync += self.done.eq(1)
        late_a, late_valid = a, valid
        for stage in range(PackedRow.cycles):
            next_a, next_valid = Signal(signed(9), name=f"a{stage}"), Signal(name=f"valid{stage}")
            m.d.sync += [next_a.eq(late_a), next_valid.eq(late_valid)]
            late_a, late_valid = next_a, next_valid
        differ = []
        for pair in range(PAIRS):
            m.submodules[f"pair{pair}"] = row = PackedRow(2, 9, 17, mult18x18d)
            weights = [Signal(signed(8), name=f"weight{pair}_{c}") for c in range(2)]
            m.d.comb += [
                weights[0].eq(tile[:8]),
                weights[1].eq(Cat(tile[8:], Const(pair, PAIRS.bit_length() - 1))),
                row.a.eq(a),
                row.b.eq(weights[0]),
                row.latch.eq(time == 0),
                row.swap.eq(time == 2),
            ]
            with m.If(time == 1):
                m.d.comb += row.b.eq(weights[1])
            for weight, total in zip(weights, row.sums(m, 0), strict=True):
                differ.append(late_a * weight != total)
        with m.If(late_valid):
            m.d.sync += [self.checked.eq(self.checked + 1), self.wrong.eq(self.wrong | Cat(*differ).any())]
        return m


@cocotb.test()
async def bench_all_products(dut):
    await start(dut)
    await RisingEdge(dut.done)
    assert int(dut.checked.value) == TILES * ACTIVATIONS
    assert int(dut.wrong.value) == 0


def test_packed_multiplier():
    run_bench(AllProducts(), models=ECP5.models)
