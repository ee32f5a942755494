"""Lower bounds of a convolution's cycles from its numbers alone, and random convolutions of more than a million MACs.

Nothing here depends on plans of layers. The *roofline* bounds every machine of that size. Each other bound is a
property of this machine, and names a reason for being slower.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from support.op_cases import convolution, whole
from weft.compiler.ir.graph import Conv
from weft.compiler.ir.windows import Window
from weft.hdl.isa import PARAMETER_VECTORS
from weft.hdl.isa.config import Config
from weft.hdl.isa.operands import rmw_latency

LATENCY = 30
"""Cycles of memory latency in measurements; memory moves as many bytes a cycle as the bus is wide."""
_INSTRUCTION = 64
_BETWEEN = 20
"""Idle cycles of the vector unit between two instructions, unless the second one starts early."""


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def roofline(op: Conv, config: Config) -> float:
    """Return the longest of: multiplications over N * N; bytes moved once; outputs over lanes."""
    unread = math.prod(_pixels(op)) / math.prod((op.src.shape[0], *op.window.output(*op.src.shape[1:3])))
    return max(op.macs * unread / config.n**2, _bytes(op) / config.bus_bytes, _vector(op, config))


def _read(op: Conv) -> float:
    """Return bytes of the input, except those that strides skip."""
    shares = (min(1.0, k / s) for k, s in zip(op.window.kernel, op.window.stride, strict=True))
    return math.prod(op.src.shape) * math.prod(shares)


def _bytes(op: Conv) -> float:
    """Return bytes of input, weights and output, each once."""
    return _read(op) + op.weight.size + math.prod(op.dst.shape)


def _vector(op: Conv, config: Config, width: int = 1) -> float:
    """Return vector-unit cycles: a lane and a cycle for each requantised element, and for each element of a pooling's
    windows. Elements that pad the channels to a multiple of `width` count as well."""
    taps = math.prod(op.pool.kernel) if op.pool else 1
    return math.prod(op.dst.shape[:3]) * ceil_div(op.dst.shape[3], width) * width * taps / config.lanes


def reason(op: Conv, config: Config, cycles: int) -> str | None:
    """Return why a layer takes `cycles`: "" if its roofline is 80 % of them. Otherwise the first reason whose bound,
    with a program's ends, is 70 %; None if none is."""
    if roofline(op, config) >= 0.8 * cycles:
        return ""
    named = {"ends": roofline(op, config), **bounds(op, config), "little to overlap": _alone(op, config)}
    return next((name for name, bound in named.items() if bound + ends(config) >= 0.7 * cycles), None)


def filled_bound(op: Conv, config: Config) -> float:
    """Return the longest of all bounds plus a program's ends: the roofline with fill counted."""
    return max(roofline(op, config), _alone(op, config), *bounds(op, config).values()) + ends(config)


def bounds(op: Conv, config: Config, between: int = _BETWEEN, *, beside: bool = False) -> dict[str, float]:
    """Return lower bounds of a layer's cycles by reason. The vector unit is idle for `between` cycles between two
    instructions, at least `VEC_EARLY_OVERHEAD`. A pooling is `beside` products only if there is room on chip for both.
    """
    few = max(config.n, rmw_latency(config) - 1)
    return {
        "lanes stay empty": max(_vectors(op, config, 1, beside), _vector(op, config, config.n)),
        "few rows": max(_vectors(op, config, few, beside), _starts(op, config, between)),
        "operands come again": _again(op, config),
        "short runs": _runs(op, config),
    }


def _starts(op: Conv, config: Config, between: int) -> float:
    """Return idle cycles of the vector unit between instructions: one for each tile of N columns and for as many rows
    as the accumulator holds."""
    images, rows = _pixels(op)
    instructions = images * ceil_div(rows, config.accumulator_size) * ceil_div(op.weight.shape[0], config.n)
    return _vector(op, config, config.n) + between * instructions


def _runs(op: Conv, config: Config) -> float:
    """Return bus cycles where channels of groups are not whole vectors: each pixel's channels move by themselves, for
    the best number of groups at a time."""
    return min(_runs_of(op, config, share) for share in _shares(op, config))


def _shares(op: Conv, config: Config) -> list[int]:
    """Return how many groups may be computed as one: as many as fit a vector, or more, with zeros between."""
    dense = config.n // max(op.weight.shape[3], len(op.weight) // op.groups)
    return list(range(max(1, min(op.groups, dense)), op.groups + 1))


def _runs_of(op: Conv, config: Config, share: int) -> float:
    per_in, per_out = op.weight.shape[3], len(op.weight) // op.groups
    pieces = ceil_div(op.groups, share)
    cycles = op.weight.size / config.bus_bytes
    for view, moved, size in (
        (op.src, _read(op), share * per_in),
        (op.dst, math.prod(op.dst.shape), share * per_out),
    ):
        pixels, whole = moved / view.shape[3], moved / config.bus_bytes
        apart = pieces > 1 and size % config.n
        each = pixels * pieces * ceil_div(size, config.bus_bytes)
        # A LOAD may read the bytes between as well; a STORE must not write them.
        cycles += (min(each, pieces * whole) if view is op.src else each) if apart else whole
    return cycles


def _alone(op: Conv, config: Config) -> float:
    """Return array cycles plus part of the bus cycles, for programs with little to overlap.

    Fewer than 2 N rows make no two tiles that fill the array: where a pixel is a few vectors, the first product waits
    for all inputs (of a group, of an image). A program shorter than a dozen times its ends has few tiles, and need not
    hide either.
    """
    array, bus = _vectors(op, config, config.n), _bytes(op) / config.bus_bytes
    images, rows = _pixels(op)
    short = array + bus if max(array, bus) < 12 * ends(config) else 0.0
    few = rows < 2 * config.n and ceil_div(op.weight.shape[3], config.n) < 8
    return max(short, array + math.prod(op.src.shape) / images / op.groups / config.bus_bytes if few else 0.0)


def ends(config: Config) -> int:
    """Return a program's cycles before its first and after its last product. They are four memory latencies
    (instructions, operands, results, confirmation), and N vectors of weights and of rows into the scratchpad. Weights
    then enter the array, rows pass through it, and N rows pass the vector unit on the way to memory."""
    return 4 * LATENCY + (6 + config.groups) * config.n + 100


def _pixels(op: Conv) -> tuple[int, int]:
    """Return the product's rows as images that no instruction joins, and rows of each: outputs of one channel before
    pooling that pooling reads. Without padding and strides all pixels are one image."""
    n, h, w, _ = op.src.shape
    sizes = list(op.window.output(h, w))
    if op.pool is not None:
        counts = zip(sizes, op.dst.shape[1:3], op.pool.stride, op.pool.kernel, op.pool.pad, strict=False)
        sizes = [min(size, (count - 1) * step + taps - pad) for size, count, step, taps, pad in counts]
    size = math.prod(sizes)
    return (1, n * size) if op.window == Window() else (n, size)


def _vectors(op: Conv, config: Config, least: int, beside: bool = False) -> float:
    """Return array cycles: one for each row and tile of weights, N channels by N channels of one or several groups. A
    tile of weights takes at least `least` cycles to load. A pooling doubles the products, follows all of them, or runs
    `beside` them."""
    n, (out, kh, kw, cin) = config.n, op.weight.shape
    images, rows = _pixels(op)
    # Rows, tiles, vectors of a contraction, and cycles of LOAD for a row of it: adjacent pixels of a window are read
    # once
    # for each of their vectors, and so are adjacent pixels of several rows.
    ways = [(rows, *_tiles(op, share, n), 0.0) for share in _shares(op, config)]
    ways += [(count, ceil_div(op.groups, n), vectors, load) for count, vectors, load in _lines(op, config)]
    if op.groups == 1:
        width = op.src.shape[2] / op.window.output(*op.src.shape[1:3])[1]  # pixels of a row, for each output
        ways += [
            (rows, ceil_div(out, n), vectors, kernel * cin * min(vectors * width, kw) / config.bus_bytes)
            for vectors, kernel in ((kh * ceil_div(kw * cin, n), 1), (ceil_div(kh * kw * cin, n), kh))
        ]
    cycles = min(
        max(max(count, least) * tiles * vectors, count * load) for count, tiles, vectors, load in ways
    )
    once = images * cycles
    behind = _vector(op, config, n) if op.pool and not beside else 0.0
    return min(once * _overlap(op, config), once + behind)


def _tiles(op: Conv, share: int, n: int) -> tuple[int, int]:
    """Return tiles of N outputs, with `share` groups as one, and vectors of the contraction of each."""
    out, kh, kw, cin = op.weight.shape
    tiles = ceil_div(op.groups, share) * ceil_div(share * (out // op.groups), n)
    return tiles, kh * kw * ceil_div(share * cin, n)


def _lines(op: Conv, config: Config) -> list[tuple[int, int, float]]:
    """Return rows of an image, and vectors, of a depthwise convolution that adds up products along a line of outputs.

    Lines are columns if there is one column, and rows otherwise. Several kernel lines run at a time, and a stride's
    in as many parts. A line has as many rows more as there are products in a part, less one.
    """
    (out, kh, kw, cin), (sy, sx) = op.weight.shape, op.window.stride
    height, width = op.window.output(*op.src.shape[1:3])
    dilation = op.window.dilation[1]
    if op.src.shape[2] == 1 and kw == 1:
        height, width, kh, kw, sx, dilation = 1, height, 1, kh, sy, op.window.dilation[0]
    taps = config.depthwise_taps
    if not taps or (out, cin) != (op.groups, 1) or op.groups == 1 or dilation > 1:
        return []
    parts = min(kw, sx) if sx > 1 else ceil_div(kw, taps)
    together = ceil_div(kw, parts)
    return [(height * (width + together - 1), kh * parts, 0.0)] if together <= taps else []


def _overlap(op: Conv, config: Config) -> float:
    """Return how often a pooled output is computed: windows of neighbouring tiles overlap, and a tile is no larger than
    the accumulator."""
    if op.pool is None:
        return 1.0
    sizes, totals = op.dst.shape[1:3], op.window.output(*op.src.shape[1:3])
    needed = math.prod(_pixels(op)) / op.src.shape[0]
    best = math.inf
    for h in range(1, sizes[0] + 1):
        for w in range(1, sizes[1] + 1):
            parts = [
                min(total, (count - 1) * stride + kernel)
                for total, count, stride, kernel in zip(
                    totals, (h, w), op.pool.stride, op.pool.kernel, strict=True
                )
            ]
            if math.prod(parts) <= config.accumulator_size:
                made = math.prod(parts) * ceil_div(sizes[0], h) * ceil_div(sizes[1], w)
                best = min(best, made / needed)
    return max(best, 1.0)


def _again(op: Conv, config: Config) -> float:
    """Return the least bus cycles when on-chip memories are too small for everything to cross the bus once.

    Rows of the product are made r at a time, for b tiles of N columns, in an accumulator that holds r * b rows. A part
    of the scratchpad holds two slots of r rows of inputs: their whole contraction, or kc vectors of it. These arrive in
    runs of their own, each a cycle longer than its bytes, and again for every b tiles. The rest holds all weights; or
    weights of b tiles, with inputs reloaded for each; or weights are reloaded for each r rows. Every LOAD, MM, VEC and
    STORE is 64 bytes more, and each output channel has 8 bytes of parameters. The best of all parts, r and b, for each
    group.
    """
    return min(_again_with(op, config, config.scratchpad_size * part // 16) for part in range(1, 16))


def _again_with(op: Conv, config: Config, ours: int) -> float:
    """Return these bus cycles if `ours` vectors of the scratchpad hold inputs."""
    n, bus, others = config.n, config.bus_bytes, config.scratchpad_size - ours
    images, rows = _pixels(op)
    groups, per_out = op.groups, op.weight.shape[0] // op.groups
    tiles, depth = ceil_div(per_out, n), math.prod(op.weight.shape[1:3]) * ceil_div(op.weight.shape[3], n)
    if groups > 1 and max(op.weight.shape[3], per_out) < n:
        return 0.0
    vectors = ceil_div(op.weight.shape[3], n)
    # Parameters of many tiles come with one LOAD.
    together = max(4, others // PARAMETER_VECTORS // 4)
    inputs, weights, outputs = (
        size / groups / bus for size in (_read(op), op.weight.size, math.prod(op.dst.shape))
    )
    best = math.inf
    for r in range(1, min(rows, config.accumulator_size) + 1):
        for b in {1, *(1 << k for k in range(16)), config.accumulator_size // r} - {0}:
            if (b := min(b, tiles)) * r > config.accumulator_size:
                continue
            times, blocks = images * ceil_div(rows, r), ceil_div(tiles, b)
            kc = min(ours // (2 * r), vectors)
            if kc < 1:
                continue
            chunks = ceil_div(vectors, kc)
            a_times, runs = (blocks, images * rows * chunks) if chunks > 1 else (1, 0)
            waits = [(a_times, times)]
            if min(b, tiles) * n * depth <= others:
                waits.append((blocks, 1))
            if tiles * n * depth <= others:
                waits.append((a_times, 1))
            moved = min(inputs * again + runs * again + weights * w for again, w in waits)
            words = times * (blocks * (2 * chunks) + tiles + 1) + ceil_div(tiles, together) + tiles * n // 8
            best = min(best, moved + words * _INSTRUCTION / bus + outputs)
    return 0.0 if best == math.inf else groups * best


def random_layer(rng: np.random.Generator, config: Config) -> Conv:
    """Draw a layer of more than a million MACs, at most 400,000 cycles of the array."""
    while True:
        op = _product(rng) if rng.random() < 0.5 else _image(rng)
        if op is not None and op.macs > 1_000_000 and _vectors(op, config, config.n) < 400_000:
            weight = rng.integers(-127, 128, op.weight.shape, np.int8).astype(np.int16)
            return dataclasses.replace(op, weight=weight)


def small_layer(rng: np.random.Generator) -> Conv:
    """Draw a product whose sizes are at most 256, often multiples of 8; or a convolution of a small image."""
    if rng.random() < 0.5:
        step = 8 if rng.random() < 0.5 else 1
        rows, cin, out = (step * int(size) for size in rng.integers(1, 256 // step + 1, 3))
        return convolution(whole("x", (1, 1, rows, cin), "input"), out)
    while True:
        kernel, stride = int(rng.choice([1, 3, 3, 5])), int(rng.choice([1, 1, 2]))
        window = Window((kernel, kernel), (stride, stride), (1, 1), (kernel // 2,) * 4)
        h, w, cin, out = _size(rng, 48), _size(rng, 48), _size(rng, 128), _size(rng, 128)
        if min(window.output(h, w)) > 0 and h * w * cin * out * kernel**2 < 1 << 26:
            return convolution(whole("x", (1, h, w, cin), "input"), out, window)


def _size(rng: np.random.Generator, most: int) -> int:
    """Draw a size, small ones as often as large ones; half of them round."""
    size = round(math.exp(rng.uniform(0, math.log(most))))
    step = 1 << max(0, size.bit_length() - 3)
    return max(1, size // step * step) if rng.random() < 0.5 else size


def _product(rng: np.random.Generator) -> Conv | None:
    rows, cin, out = _size(rng, 1 << 16), _size(rng, 1 << 13), _size(rng, 1 << 13)
    if not 1_000_000 < rows * cin * out < 1 << 33 or cin * out > 1 << 25 or rows * max(cin, out) > 1 << 26:
        return None
    return convolution(whole("x", (1, 1, rows, cin), "input"), out)


def _image(rng: np.random.Generator) -> Conv | None:
    h, w = _size(rng, 128), _size(rng, 128)
    kernel, stride = int(rng.choice([1, 3, 3, 5, 7])), int(rng.choice([1, 1, 2]))
    window = Window((kernel, kernel), (stride, stride), (1, 1), (kernel // 2,) * 4)
    cin, out = _size(rng, 1024), _size(rng, 1024)
    groups = 1
    if rng.random() < 0.25:
        groups, cin, out = out, 1, out
    elif rng.random() < 0.15:
        groups = int(rng.choice([2, 4, 8]))
        out = ceil_div(out, groups) * groups
    images = int(rng.choice([1, 1, 1, 4]))
    oh, ow = window.output(h, w)
    if not 1_000_000 < images * oh * ow * out * cin * kernel**2 < 1 << 33 or out * cin * kernel**2 > 1 << 25:
        return None
    op = convolution(whole("x", (images, h, w, cin * groups), "input"), out, window)
    op = dataclasses.replace(op, groups=groups, weight=op.weight[..., :cin])
    if rng.random() < 0.15 and min(oh, ow) > 3:
        pool = Window((2, 2), (2, 2)) if rng.random() < 0.5 else Window((3, 3), (2, 2), (1, 1), (1, 1, 1, 1))
        op = dataclasses.replace(op, pool=pool, dst=whole("y", (images, *pool.output(oh, ow), out), "output"))
    return op
