"""Properties of `weft.hdl.matrix.pe`: rows whose multiplier blocks compute two products, and their array.

Models replace the blocks of FPGA families, which are vendors' cells: they do what `weft.hdl.lib.arithmetic` requires.
"""

from __future__ import annotations

from collections.abc import Iterator

from amaranth.hdl import Cat, Const, Elaboratable, Module, Signal, Value, signed

from weft.extras.proof.hardware.matrix import ArrayBench, Entry, claim_pulses, claim_weights
from weft.extras.proof.hardware.pipelines import ago, latch
from weft.extras.proof.hardware.property import Bench, Induction, proves
from weft.hdl.isa.config import Config
from weft.hdl.lib.arithmetic import Multipliers
from weft.hdl.matrix.pe import SPLIT, DualRow, PackedRow

_WEIGHT_CYCLES = 2
"""Cycles from known weights to covers of their products."""


class DualModel(Elaboratable):
    """Model of a `weft.hdl.lib.arithmetic.DualBlock`."""

    def __init__(self, a: Value, b: Value, hold_b: Value, products: Value) -> None:
        self.a, self.b, self.hold_b, self.products = a, b, hold_b, products

    def elaborate(self, platform: object) -> Module:
        m = Module()
        a = Signal(signed(8), name="held_a", reset_less=True)
        made = Signal(32, name="made", reset_less=True)
        m.d.sync += a.eq(self.a)
        b = latch(m, ~self.hold_b, self.b, 16, "held_b", reset=False)
        m.d.sync += made.eq(Cat(*((a * b.word_select(c, 8).as_signed())[:16] for c in range(2))))
        m.d.comb += self.products.eq(made)
        return m


class WideModel(Elaboratable):
    """Model of a `weft.hdl.lib.arithmetic.WideBlock`.

    It is exact for all operands. It multiplies `a` by the two parts of `b` separately, because solvers do not know that
    multiplication is distributive.
    """

    def __init__(self, a: Value, b: Value, product: Signal) -> None:
        self.a, self.b, self.product = a, b, product

    def elaborate(self, platform: object) -> Module:
        m = Module()
        a = Signal(signed(9), name="held_a", reset_less=True)
        b = Signal(signed(18), name="held_b", reset_less=True)
        lower, upper = (Signal(signed(19), name=name, reset_less=True) for name in ("lower", "upper"))
        made = Signal(len(self.product), name="made", reset_less=True)
        high, low = split_packed(b)
        m.d.sync += [
            a.eq(self.a),
            b.eq(self.b),
            lower.eq(a * low),
            upper.eq(a * high),
            made.eq((upper << SPLIT) + lower),
        ]
        m.d.comb += self.product.eq(made)
        return m


def split_packed(packed: Value) -> tuple[Value, Value]:
    """Return signed h of 10 bits and l of 9 bits with ``packed = h * 2**SPLIT + l``, for a number of 18 bits."""
    low = packed[:SPLIT].as_signed()
    return packed[SPLIT:].as_signed() + low[-1], low


def _claim_dual_pair(
    m: Module, bench: Bench, row: Entry, path: str, p: int, late: int
) -> tuple[list[Value], int, Value]:
    """Claim that a pair multiplies exactly, `late` cycles after the entry of `row`.

    Returns the signals of its two products, their delay after the entry in cycles, and whether their weights are known.
    """
    inside, name = f"{path}multiplier{p}.", f"{path}{p}".replace(".", "_")
    a, b = bench.peek(f"{inside}held_a"), bench.peek(f"{inside}held_b").as_unsigned()
    made, known = bench.peek(f"{inside}made"), Const(1)
    bench.claim(f"activation {name}", a == ago(m, row.a, late + 1, f"a{name}"))
    products: list[Value] = []
    for c in range(2):
        active, shadow = b.word_select(c, 8), bench.peek(f"{path}shadow{2 * p + c}").as_unsigned()
        known &= claim_weights(m, bench, row, 2 * p + c, shadow, active, late, f"{name}_{c}")
        products.append(made.word_select(c, 16).as_signed())
        product = ago(m, (a * active.as_signed())[:16], 1, f"product{name}_{c}").as_signed()
        bench.claim(f"product {name} {c}", products[c] == product)
    return products, late + 2, ago(m, known, 1, f"known{name}", reset=True)


def _claim_packed_pair(
    m: Module, bench: Bench, row: Entry, path: str, p: int, late: int, width: int
) -> tuple[list[Value], int, Value]:
    """Claim that a pair with one shared product multiplies exactly; see `_claim_dual_pair`.

    The last claims are the purpose of the unit: both products follow from the shared one.
    """
    inside, name = f"{path}multiplier{p}.", f"{path}{p}".replace(".", "_")
    a, b = bench.peek(f"{inside}held_a"), bench.peek(f"{inside}held_b").as_unsigned()
    line = bench.peeks[f"{path}a_stages"] if p else bench.peek(f"{path}a_stages")
    entered = line.word_select(p, 9).as_signed()
    bench.claim(f"activation {name}", entered == ago(m, row.a, late + 1, f"a{name}"))
    bench.claim(f"operand {name}", a == ago(m, entered, 1, f"entered{name}"))
    made, known = bench.peek(f"{inside}made"), Const(1)
    products: list[Value] = []
    for c, (weight, part) in enumerate(zip(reversed(split_packed(b)), ("lower", "upper"), strict=True)):
        active, shadow = (
            bench.peek(f"{path}{kind}{2 * p + c}").as_unsigned() for kind in ("active", "shadow")
        )
        known &= claim_weights(m, bench, row, 2 * p + c, shadow, active, late, f"{name}_{c}")
        before = ago(m, active.as_signed(), 1, f"active{name}_{c}")
        bench.claim(f"operand {name} {c}", weight == before)
        products.append(bench.peek(f"{inside}{part}"))
        bench.claim(f"product {name} {c}", products[c] == ago(m, a * weight, 1, f"product{name}_{c}"))
        bench.claim(f"product {name} {c} fits", (products[c] >= -32640) & (products[c] <= 32640))
    low, high = bench.peek(f"{path}low{p}").as_unsigned(), bench.peek(f"{path}high{p}")
    upper = ago(m, products[1], 1, f"upper{name}")
    bench.claim(f"low product {name}", low == upper[:7])
    whole = ago(m, made, 1, f"whole{name}")
    exact = [ago(m, products[c], 2, f"exact{name}_{c}").as_signed() for c in range(2)]
    bench.claim(f"even of {name} is exact", (high << SPLIT) + whole[:SPLIT] == exact[0])
    bench.claim(f"odd of {name} is exact", whole[SPLIT:].as_signed() - high == exact[1])
    return products, late + 3, ago(m, known, 2, f"known{name}", reset=True)


@proves("matrix/pe_pairs", "sums of two dual pairs", Induction(8), 4, 8, 18, DualModel)
class DualBench(Bench, unit=DualRow):
    """Each column of a pair multiplies and adds exactly, in the documented cycle, for all operands; its weight is its
    word of the last tile that was sent before the last swap.

    A row for dual blocks with free inputs. The proof is cut at registers, as in
    `weft.extras.proof.hardware.matrix.RowBench`.
    """

    def watch(self, m: Module) -> None:
        row = self.dut
        claim_pulses(m, self)
        for p in range(row.groups):
            products, _, known = _claim_dual_pair(m, self, Entry(row.a, row.b, row.latch, row.swap), "", p, p)
            for name, product in zip(("even", "odd"), products, strict=True):
                above, below = (getattr(sums[p], name) for sums in (row.above, row.below))
                total = ago(m, (above + product)[: row.psum_width].as_signed(), 1, f"{name}{p}")
                self.claim(f"{name} {p}", below == total)
                self.cover(f"{name} {p}", ago(m, known, 1, f"known_{name}{p}", reset=True) & (below != 0))


@proves("matrix/pe_pairs", "sums of two packed pairs", Induction(9), 4, 9, 18, WideModel)
class PackedBench(Bench, unit=PackedRow):
    """Each column of a pair multiplies and adds exactly, in the documented cycle, for all operands; its weight is its
    word of the last tile that was sent before the last swap.

    A row for wide blocks with free inputs; activations are at least -255. A pair passes on sums of the parts of its
    products; those of ``high`` come a cycle later.
    """

    def watch(self, m: Module) -> None:
        row = self.dut
        self.assume(row.a >= -255)
        claim_pulses(m, self)
        for p in range(row.groups):
            entry = Entry(row.a, row.b, row.latch, row.swap)
            _, _, known = _claim_packed_pair(m, self, entry, "", p, p, 9 * row.groups)
            made, high = self.peeks[f"multiplier{p}.made"], self.peeks[f"high{p}"].as_signed()
            for name, part in (("upper", made[SPLIT:].as_signed()), ("lower", made[:SPLIT]), ("high", high)):
                above, below = (Value.cast(getattr(sums[p], name)) for sums in (row.above, row.below))
                total = ago(m, (above + part)[: len(below)], 1, f"{name}{p}")
                self.claim(f"{name} {p}", below.as_unsigned() == total)
                self.cover(
                    f"{name} {p}",
                    ago(m, known, _WEIGHT_CYCLES, f"known_{name}{p}", reset=True) & (below != 0),
                )


@proves(
    "matrix/array",
    "product of 2 x 2, dual pairs",
    Induction(9),
    Config(n=2, lanes=2, bus_bytes=4, probability_bits=7),
    Multipliers("dual", dual=DualModel),
)
@proves(
    "matrix/array",
    "product of 2 x 2, packed pairs",
    Induction(9),
    Config(n=2, lanes=2, bus_bytes=4, probability_bits=8),
    Multipliers("packed", wide=WideModel),
)
class PairArrayBench(ArrayBench):
    # The claim is that of `ArrayBench`.

    def products(self, m: Module, r: int, entry: Entry) -> Iterator[tuple[Value, Value, int]]:
        n = self.config.n
        for p in range(n // 2):
            if self.dut.multipliers.dual:
                pair = _claim_dual_pair(m, self, entry, f"row{r}.", p, r + p)
            else:
                width = self.config.widths.activation * n // 2
                pair = _claim_packed_pair(m, self, entry, f"row{r}.", p, r + p, width)
            products, cycles, known = pair
            for product in products:
                yield product, known, cycles
