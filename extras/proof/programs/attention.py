"""What operators of matrices that are both inputs compute, on values: products, softmax and attention.

How softmax and attention round is defined by the device's softmax unit (`weft.hdl.isa.Softmax`): N keys that follow
each other are a group, groups come in their order, and each has one exponent. How many groups an instruction takes
makes no difference, so nothing is taken from the program.
"""

from __future__ import annotations

import math

import numpy as np

from weft.extras.proof.programs import softmax as numerics
from weft.extras.proof.programs.form import Form
from weft.extras.proof.programs.graph import Operator
from weft.extras.proof.programs.requantise import quantised, requantised
from weft.extras.proof.programs.sums import Sums, product
from weft.extras.proof.programs.symbols import Symbols
from weft.hdl.isa.config import Config
from weft.sim.golden.vector import LOWEST, OCTAVE

FAR = 64 * math.log(2)
"""Nats by which all scores of a row may be moved alike: softmax does not see it, and no score comes near its limits."""
_LARGEST = 255
"""What a byte differs from a zero point at most."""


def product_of(symbols: Symbols, config: Config, op: Operator, sources: list[np.ndarray]) -> np.ndarray:
    """For each head of each image q = sat(round_half_even(sum_k (a[i, k] - a_zero) * (b[k, j] - b_zero) * scale) +
    y_zero), clamped. With `transposed` b[j, k] takes the place of b[k, j], with `a_transposed` a[k, i] that of a[i, k].
    """
    values, counts = symbols.values, _pair(op, "counts")
    mantissa, shift = quantised(op.numbers["scale"], config.mantissa_bits)
    operands, places = [], []
    for name, source in zip("ab", sources, strict=True):
        own = _pair(op, f"{name}_counts")
        operands.append(_matrices(source, own))
        places.append(own)
    made = []
    for image, head in np.ndindex(*counts):
        a, b = (
            values.terms(matrices[image % own[0], head * own[1] // counts[1]]).shifted(
                -int(op.numbers[f"{name}_zero"])
            )
            for name, matrices, own in zip("ab", operands, places, strict=True)
        )
        a = a.moved((1, 0)) if op.numbers.get("a_transposed") else a
        sums = product(a, b.moved((1, 0)) if op.numbers["transposed"] else b)
        columns = np.ones(sums.low.shape[1], np.int64)
        clamp = (int(op.numbers["y_zero"]), int(op.numbers["low"]), int(op.numbers["high"]))
        sums = sums.reshape(*sums.low.shape, 1)
        made.append(requantised(values, sums, mantissa * columns, shift * columns, clamp))
    return _laid_out(op, np.stack(made).reshape(*counts, *made[0].shape))


def softmax(symbols: Symbols, config: Config, op: Operator, sources: list[np.ndarray]) -> np.ndarray:
    """q = sat(round(softmax((x - x_zero) * score_scale) * scale) + y_zero), clamped, over the channels of pixels."""
    x = sources[0].reshape(-1, sources[0].shape[-1])
    rows, size = x.shape
    valid = np.ones((rows, size), bool)
    scores = symbols.values.terms(x)
    p, exponents, (m, sums), _ = _probabilities(
        symbols, config, op, scores, -int(op.numbers["x_zero"]), valid
    )
    made = []
    for group, part in enumerate(p):
        alignment = numerics.final_alignment(symbols, m, exponents[group]).reshape(rows, 1)
        elements = part.reshape(rows, 1, config.n)
        made.append(_quotients(symbols, op, elements, sums, alignment, 0))
    return np.concatenate(made, axis=1)[:, :size].reshape(sources[0].shape)


def attention(symbols: Symbols, config: Config, op: Operator, sources: list[np.ndarray]) -> np.ndarray:
    """For every image, query head h (of key and value head ``h // (heads // kv_heads)``) and query row i, with
    ``z[j] = (q[i] - q_zero) . (k[j] - k_zero) * score_scale``: ``q = sat(round(sum_j softmax(z)[j] * (v[j] - v_zero) *
    scale) + y_zero)``, clamped.

    The keys are those below the image's length and, if it is causal, with ``j <= i + offset``. With `rounding` products
    are requantised to bytes first. Softmax does not see what all scores of a row have in common, so they are taken
    less some of it, which makes a difference to rounding alone: with `rounding` less the middle of their range, and
    otherwise less the part of `k_zero`, if that moves scores by at most `FAR`.
    """
    numbers = op.numbers
    images, heads, kv_heads = (int(numbers[name]) for name in ("images", "heads", "kv_heads"))
    if numbers["page"]:
        raise ValueError("keys in pages are only known when the program runs")
    q, k, v = (_matrices(source, (images, count))
               for source, count in zip(sources, (heads, kv_heads, kv_heads), strict=True))  # fmt: skip
    lengths = op.arrays["lengths"].numpy
    made = []
    for image, head in np.ndindex(images, heads):
        kv = head // (heads // kv_heads)
        valid = _seen(op, q.shape[2], k.shape[2], int(lengths[image]))
        scores, bias = _scores(symbols, config, op, q[image, head], k[image, kv])
        p, _, (_, sums), alignments = _probabilities(symbols, config, op, scores, bias, valid)
        total = _weighted(symbols, config, p, alignments, symbols.values.terms(v[image, kv]))
        rows, size = total.low.shape
        elements = total.reshape(rows, 1, size)
        made.append(_quotients(symbols, op, elements, sums, None, int(numbers["v_zero"])))
    return _laid_out(op, np.stack(made).reshape(images, heads, *made[0].shape))


def _seen(op: Operator, rows: int, keys: int, length: int) -> np.ndarray:
    """Which keys a row sees: bool (rows, keys)."""
    below = np.broadcast_to(np.arange(keys) < length, (rows, keys))
    if not op.numbers["causal"]:
        return below
    return below & (np.arange(keys) <= np.arange(rows)[:, None] + int(op.numbers["offset"]))


def _scores(symbols: Symbols, config: Config, op: Operator, q: np.ndarray, k: np.ndarray) -> tuple[Sums, int]:
    """Scores (rows, keys), and what is added to them ahead of their scale."""
    values, numbers = symbols.values, op.numbers
    q_zero, k_zero = int(numbers["q_zero"]), int(numbers["k_zero"])
    moved = abs(k_zero) * _LARGEST * q.shape[1] * numbers["score_scale"]
    rounding = "rounding.scale" in numbers
    used = k_zero if rounding or moved > FAR else 0
    scores = product(values.terms(q).shifted(-q_zero), values.terms(k).shifted(-used).moved((1, 0)))
    if not rounding:
        return scores, 0
    zero, low, high = (int(numbers[f"rounding.{name}"]) for name in ("zero", "low", "high"))
    mantissa, shift = quantised(numbers["rounding.scale"], config.mantissa_bits)
    columns = np.ones(len(k), np.int64)
    sums = scores.reshape(*scores.low.shape, 1)
    found = requantised(values, sums, mantissa * columns, shift * columns, (zero, low, high))
    return values.terms(found), -((low + high) // 2)


def _probabilities(
    symbols: Symbols, config: Config, op: Operator, scores: Sums, bias: int, valid: np.ndarray
) -> tuple[list[Sums], list[Sums], tuple[Sums, Sums], list[Sums]]:
    """Of scores (rows, keys): for each group of N its probabilities (rows, N) and exponents (rows,), the maxima and
    sums of rows behind all of them, and for each group what sums of products are aligned by (rows,)."""
    rows, keys = valid.shape
    n = config.n
    octaves = op.numbers["score_scale"] * math.log2(math.e)
    state = started(symbols, rows)
    p, exponents, alignments = [], [], []
    for first in range(0, keys, n):
        places = np.minimum(np.arange(first, first + n), keys - 1)
        there = valid[:, places] & (np.arange(first, first + n) < keys)
        part, e, state, alignment = group(symbols, config, octaves, scores[:, places], bias, there, state)
        p.append(part)
        exponents.append(e)
        alignments.append(alignment)
    return p, exponents, state, alignments


def started(symbols: Symbols, rows: int) -> tuple[Sums, Sums]:
    """The maxima and sums (rows,) of rows that have seen no score."""
    return symbols.integers(LOWEST, (rows,)), symbols.integers(0, (rows,))


def group(
    symbols: Symbols,
    config: Config,
    octaves: float,
    scores: Sums,
    bias: int,
    there: np.ndarray,
    state: tuple[Sums, Sums],
) -> tuple[Sums, Sums, tuple[Sums, Sums], Sums]:
    """Of a group of scores (rows, keys), of which some are `there`, in so many `octaves`: probabilities, exponents
    (rows,), the maxima and sums of rows behind it, and what sums of products are aligned by (rows,)."""
    columns = np.ones(there.shape[1], np.int64)
    mantissa, shift = quantised(OCTAVE * octaves, config.mantissa_bits)
    y = numerics.octave_logits(symbols, scores, bias * columns, mantissa * columns, shift * columns)
    e = numerics.group_exponents(symbols, y, there)
    part = numerics.probabilities(symbols, y, there, e, config.exp2_table)
    m, sums, alignment = numerics.update(symbols, *state, e, part)
    return part, e, (m, sums), alignment


def _weighted(symbols: Symbols, config: Config, p: list[Sums], alignments: list[Sums], v: Sums) -> Sums:
    """Sums of values (keys, size) times probabilities of groups: (rows, size)."""
    rows, size = len(p[0].low), v.low.shape[1]
    total = symbols.integers(0, (rows, size))
    for at, (part, alignment) in enumerate(zip(p, alignments, strict=True)):
        total = added(symbols, total, part, alignment, v[at * config.n : (at + 1) * config.n])
    return total


def added(symbols: Symbols, total: Sums, part: Sums, alignment: Sums, values: Sums) -> Sums:
    """Sums of products (rows, size) with those of one more group: its probabilities times values (keys, size)."""
    made = product(part[:, : len(values.low)], values)
    shift = alignment.reshape(len(alignment.low), 1).spread(total.low.shape)
    return numerics.aligned(symbols, total, made, shift)


def _quotients(
    symbols: Symbols, op: Operator, elements: Sums, sums: Sums, alignment: Sums | None, v_zero: int
) -> np.ndarray:
    """Values of elements (rows, 1, size) divided by the sums of their rows: (rows, size)."""
    numbers = op.numbers
    form = Form(0, int(numbers["y_zero"]), int(numbers["low"]), int(numbers["high"]))
    return quotients(symbols, numbers["scale"], form, elements, sums, alignment, v_zero)


def quotients(
    symbols: Symbols,
    multiplier: float,
    form: Form,
    elements: Sums,
    sums: Sums,
    alignment: Sums | None = None,
    v_zero: int = 0,
) -> np.ndarray:
    """Values of elements (rows, 1, size) times a number, divided by the sums of their rows: (rows, size)."""
    fraction, exponent = math.frexp(multiplier)
    scale = round(math.ldexp(fraction, 16))
    if scale == 1 << 16:
        scale, exponent = scale >> 1, exponent + 1
    places = min(16 - exponent - 9, 63)
    made = numerics.normalised(symbols, elements, sums, alignment, scale, places, v_zero)
    rows, _, size = made.low.shape
    return symbols.values.results(made.reshape(rows, size, 1), [form] * size)


def _pair(op: Operator, name: str) -> tuple[int, int]:
    first, second = op.arrays[name].numpy.tolist()
    return first, second


def _matrices(contents: np.ndarray, counts: tuple[int, int]) -> np.ndarray:
    """The matrices (images, heads, rows, size) of an operand (n, 1, rows, c), whose heads lie beside each other in
    channels, or one after the other as images."""
    images, heads = counts
    rows = contents.shape[2]
    if len(contents) == images:
        return contents.reshape(images, rows, heads, -1).swapaxes(1, 2)
    return contents.reshape(images, heads, rows, -1)


def _laid_out(op: Operator, found: np.ndarray) -> np.ndarray:
    """Matrices (images, heads, rows, size) as the output has them."""
    images, heads, _, size = found.shape
    if op.dst.shape[0] == images and op.dst.shape[3] == heads * size:
        found = found.swapaxes(1, 2)
    return found.reshape(op.dst.shape)
