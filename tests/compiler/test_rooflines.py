"""Programs of more than a million MACs reach 80 % of their roofline, on all presets and boards, or have a reason.

Small ones, which fill and drain for much of their time, have a floor below that. Bounds and reasons are those of
`rooflines`; cycles those of the cycle model.
"""

from __future__ import annotations

import math
from collections import Counter as Tally

import numpy as np
import pytest
from support.attention_cases import attention
from support.op_cases import convolution, segment_of, split_operators, whole
from support.rooflines import LATENCY, bounds, ends, filled_bound, random_layer, reason, roofline, small_layer

from weft.boards.registry import BOARDS
from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Attention, Conv, DeviceSegment
from weft.compiler.ir.windows import Window
from weft.hdl.checker.program import check
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import Counter
from weft.hdl.isa.operands import VEC_EARLY_OVERHEAD
from weft.run.runtime import Image
from weft.sim.timing import TimingDevice

CONFIGS = tuple(dict.fromkeys([*PRESETS.values(), *(board.config for board in BOARDS.values())]))
_MANY = 120
"""Layers of each configuration in the long test."""


def cycles_of(op: Conv | Attention, config: Config) -> int:
    segment = (
        DeviceSegment("attention", (op,)) if isinstance(op, Attention) else segment_of(*split_operators(op))
    )
    program = compile_segment(segment, config)
    image = Image(program)
    device = TimingDevice(config, image.memory_bytes, latency=LATENCY, bandwidth=config.bus_bytes)
    image.run(device, {})
    return int(device.counters()[Counter.CYCLES])


def wrong(config: Config, number: int, tally: Tally[str]) -> str | None:
    """Describe why a random layer is slower than all reasons allow, or faster than a bound; count its reason. The
    layer depends only on its number and the configuration."""
    rng = np.random.default_rng([config.digest, number])
    op = random_layer(rng, config)
    cycles = cycles_of(op, config)
    why = reason(op, config, cycles)
    least = {"roofline": roofline(op, config), **bounds(op, config, VEC_EARLY_OVERHEAD, beside=True)}
    tally["none" if why is None else why] += 1
    shown = f"layer {number}, N {config.n} ({config.digest:08x}), {op.src.shape} by {op.weight.shape}, "
    shown += f"groups {op.groups}, {op.window}, pool {op.pool}: {cycles} cycles, " + ", ".join(
        f"{name} {bound:.0f}" for name, bound in least.items()
    )
    if max(least.values()) > 1.03 * cycles:
        return f"faster than a bound: {shown}"
    return f"no reason: {shown}" if why is None else None


def test_random_layers_reach_their_roofline() -> None:
    tally: Tally[str] = Tally()
    assert [text for config in CONFIGS for number in range(4) if (text := wrong(config, number, tally))] == []
    assert tally[""] > 1.5 * len(CONFIGS)


@pytest.mark.long
def test_many_random_layers_reach_their_roofline() -> None:
    """Twelve of 1,680 are slower than for any reason known: seven depthwise ones or ones of groups, most of which a
    pooling keeps from adding up along rows, and five with few outputs or a short contraction on arrays of 64 x 64 and
    128 x 128. Not more than a few may be.
    """
    tally: Tally[str] = Tally()
    actual = [text for config in CONFIGS for number in range(_MANY) if (text := wrong(config, number, tally))]
    assert [text for text in actual if not text.startswith("no reason")] == []
    assert len(actual) <= 14, actual
    assert sum("groups 1," in text for text in actual) <= 6, actual
    assert tally[""] > 1000, tally


FLOOR, LEAST = 0.6, 0.5
"""Shares of its roofline, fill counted, that few small layers are below, and that none is below."""
_CHUNKS, _EACH = 20, 500
_FEW = 6
"""Of `_EACH` small layers that are below the floor at most. Of ten thousand it is 35, nearly all of them with the two
banks of the scratchpad that the ULX3S 85F has."""


def low(numbers: range) -> list[str]:
    """Small layers below the floor: every second one on `default`, the others on all configurations in turn."""
    result = []
    for number in numbers:
        op = small_layer(np.random.default_rng([5, number]))
        config = CONFIGS[number // 2 % len(CONFIGS)] if number % 2 else PRESETS["default"]
        share = filled_bound(op, config) / (cycles := cycles_of(op, config))
        assert share >= LEAST, (number, share)
        if share < FLOOR:
            shown = f"{op.src.shape} by {op.weight.shape}, {op.window}"
            result.append(
                f"layer {number}, N {config.n} ({config.digest:08x}), {shown}: {cycles} cycles, {share:.1%}"
            )
    return result


def test_small_layers_have_a_floor() -> None:
    assert low(range(24)) == []


@pytest.mark.long
@pytest.mark.parametrize("chunk", range(_CHUNKS))
def test_ten_thousand_small_layers_have_a_floor(chunk: int) -> None:
    """Random products and convolutions, among them many of a few hundred cycles."""
    actual = low(range(chunk * _EACH, (chunk + 1) * _EACH))
    assert len(actual) <= _FEW, actual


def product(rows: int, out: int, cin: int) -> Conv:
    return convolution(whole("x", (1, 1, rows, cin), "input"), out)


@pytest.mark.parametrize(
    ("preset", "rows", "out", "cin", "least"),
    [
        ("default", 2048, 64, 2048, 0.95),
        ("default", 4096, 1024, 256, 0.95),
        ("default", 1024, 256, 4096, 0.95),
        ("default", 50257, 1, 768, 0.95),
        ("default", 1, 2560, 2560, 0.95),
        ("default", 2560, 1, 2560, 0.95),
        ("small", 512, 512, 1024, 0.95),
        ("small", 197, 768, 3072, 0.95),
        ("large", 4096, 512, 2048, 0.95),
        ("tiny", 128, 128, 512, 0.95),
    ],
)
def test_products_without_a_cliff(preset: str, rows: int, out: int, cin: int, least: float) -> None:
    op, config = product(rows, out, cin), PRESETS[preset]
    assert roofline(op, config) >= least * cycles_of(op, config)


@pytest.mark.parametrize(
    ("preset", "op", "least"),
    [
        ("tiny", attention(60, 128, 64), 0.85),
        ("small", attention(64, 512, 128), 0.9),
        ("small", attention(1, 1024, 64, heads=8, kv_heads=8, beside=False), 0.9),
        ("default", attention(1, 1024, 64, heads=8, kv_heads=2, beside=False), 0.87),
        ("default", attention(1, 1024, 64, heads=8, kv_heads=8, beside=False), 0.94),
        ("default", attention(1, 1024, 128, heads=8, kv_heads=8), 0.9),
        ("large", attention(512, 512, 64), 0.92),
        ("xlarge", attention(512, 1024, 64), 0.8),
    ],
)
def test_attention_reaches_its_roofline(preset: str, op: Attention, least: float) -> None:
    config = PRESETS[preset]
    bound = max(
        op.macs / config.n**2, sum(view.buffer.size for view in (op.q, op.k, op.v, op.dst)) / config.bus_bytes
    )
    assert bound >= least * cycles_of(op, config)


@pytest.mark.parametrize("channels", [64, 128])
def test_a_batch_is_as_good_as_an_image(channels: int) -> None:
    config = PRESETS["default"]
    op = convolution(whole("x", (4, 56, 56, 256), "input"), channels)
    assert roofline(op, config) >= 0.95 * cycles_of(op, config)


LONG_PIXELS = [
    pytest.param(config, *shape, marks=[pytest.mark.long] * ((at + kind) % 3 > 0))
    for at, config in enumerate(CONFIGS)
    for kind, shape in enumerate([(1, 3, 138_000), (3, 2, 70_000), (2, 66_000, 1)])
]
"""Each configuration with one of three in ``make test``."""


@pytest.mark.parametrize(("config", "rows", "out", "cin"), LONG_PIXELS)
def test_pixels_longer_than_fields(config: Config, rows: int, out: int, cin: int) -> None:
    """Pixels of more than 64 KB: programs that the checker takes."""
    program = compile_segment(DeviceSegment("layer", (product(rows, out, cin),)), config)
    check(program.instructions, config, extents=program.areas.extents)


def test_bounds_by_hand() -> None:
    """512 x 512 x 512 on 16 x 16 is 2**19 cycles; a depthwise layer keeps one lane of 16 busy; one row of 64 columns
    waits for 4 tiles of weights of 16 cycles a step; and nothing explains ten times the roofline."""
    config = PRESETS["default"]
    op = product(512, 512, 512)
    assert roofline(op, config) == 2**19
    assert reason(op, config, 2**19) == ""
    assert reason(op, config, 10 * 2**19) is None
    x = whole("x", (1, 64, 64, 64), "input")
    depthwise = convolution(x, 64, Window((3, 3), pad=(1, 1, 1, 1)))
    depthwise = Conv(**vars(depthwise) | {"groups": 64, "weight": depthwise.weight[..., :1]})
    alone = config.replace(depthwise_taps=0)
    assert bounds(depthwise, alone)["lanes stay empty"] == 64 * 64 * 4 * 9
    assert bounds(depthwise, config)["lanes stay empty"] == 64 * (64 + 2) * 4 * 3, "three products at a time"
    assert math.isclose(
        roofline(depthwise, config), max(64 * 64 * 4 * 9 / 16, (2 * 2**18 + 576) / 16, 2**18 / 8)
    )
    assert bounds(product(1, 64, 1024), config)["few rows"] == 4 * 64 * 16
    assert ends(config) == 120 + 8 * 16 + 100
