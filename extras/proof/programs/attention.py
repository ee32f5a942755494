"""Definitions of products of two inputs, softmax and attention, on values.

Softmax and attention round like the device's softmax unit (`weft.hdl.isa.Softmax`): N consecutive keys are a group with
one exponent, and groups are processed in order. The number of groups per instruction has no influence on the result, so
nothing here depends on the program.
"""

from __future__ import annotations

import math

import numpy as np

from weft.extras.proof.programs import softmax as numerics
from weft.extras.proof.programs.form import Form
from weft.extras.proof.programs.graph import Operator
from weft.extras.proof.programs.requantise import quantise_scale, requantise
from weft.extras.proof.programs.sums import Sums, matmul
from weft.extras.proof.programs.symbols import Symbols
from weft.hdl.isa.config import Config
from weft.sim.golden.vector import LOWEST, OCTAVE

FAR = 64 * math.log(2)
"""Largest common change of a row's scores, in nats. Softmax is invariant to it, and scores stay far from saturation."""
_MAX_OFFSET = 255
"""Largest distance of a byte from a zero point."""


def product(symbols: Symbols, config: Config, op: Operator, sources: list[np.ndarray]) -> np.ndarray:
    """Multiply the matrices of each head of each image.

    Computes ``q = sat(round_half_even(sum_k (a[i, k] - a_zero) * (b[k, j] - b_zero) * scale) + y_zero)``, clamped. With
    `transposed`, b[j, k] replaces b[k, j]; with `a_transposed`, a[k, i] replaces a[i, k].
    """
    values, counts = symbols.values, _pair(op, "counts")
    scale = quantise_scale(op.numbers["scale"], config.mantissa_bits)
    clamp = (int(op.numbers["y_zero"]), int(op.numbers["low"]), int(op.numbers["high"]))
    operand_counts = [_pair(op, f"{name}_counts") for name in "ab"]
    operands = [_matrices(source, own) for source, own in zip(sources, operand_counts, strict=True)]
    results = []
    for image, head in np.ndindex(*counts):
        a, b = (
            values.integers_of(matrices[image % own[0], head * own[1] // counts[1]]).plus_constant(
                -int(op.numbers[f"{name}_zero"])
            )
            for name, matrices, own in zip("ab", operands, operand_counts, strict=True)
        )
        a = a.transpose((1, 0)) if op.numbers.get("a_transposed") else a
        sums = matmul(a, b.transpose((1, 0)) if op.numbers["transposed"] else b)
        results.append(requantise(values, sums.singletons, *scale, clamp))
    return _to_output(op, np.stack(results).reshape(*counts, *results[0].shape))


def softmax(symbols: Symbols, config: Config, op: Operator, sources: list[np.ndarray]) -> np.ndarray:
    """Compute ``sat(round(softmax((x - x_zero) * score_scale) * scale) + y_zero)``, clamped, over channels."""
    x = sources[0].reshape(-1, sources[0].shape[-1])
    rows, size = x.shape
    valid = np.ones((rows, size), bool)
    scores = symbols.values.integers_of(x)
    p, exponents, (m, sums), _ = _probabilities(
        symbols, config, op, scores, -int(op.numbers["x_zero"]), valid
    )
    results = []
    for part, exponent in zip(p, exponents, strict=True):
        alignment = numerics.final_alignment(symbols, m, exponent).singletons
        elements = part.reshape(rows, 1, config.n)
        results.append(_quotients(symbols, op, elements, sums, alignment, 0))
    return np.concatenate(results, axis=1)[:, :size].reshape(sources[0].shape)


def attention(symbols: Symbols, config: Config, op: Operator, sources: list[np.ndarray]) -> np.ndarray:
    """Compute attention for each image, query head h (with key and value head ``h // (heads // kv_heads)``) and row i.

    With ``z[j] = (q[i] - q_zero) . (k[j] - k_zero) * score_scale``, the result is
    ``sat(round(sum_j softmax(z)[j] * (v[j] - v_zero) * scale) + y_zero)``, clamped. Key j counts if it is below the
    image's length and, with `causal`, if ``j <= i + offset``. With `rounding`, scores are requantised to bytes first.

    Softmax is invariant to a common offset of a row's scores. With `rounding`, the middle of their range is subtracted,
    and otherwise the offset that `k_zero` causes is left out if it is at most `FAR`. Only rounding depends on it.
    """
    numbers = op.numbers
    images, heads, kv_heads = (int(numbers[name]) for name in ("images", "heads", "kv_heads"))
    if numbers["page"]:
        raise ValueError("its keys are in pages, whose addresses are inputs")
    q, k, v = (
        _matrices(source, (images, count))
        for source, count in zip(sources, (heads, kv_heads, kv_heads), strict=True)
    )
    lengths = op.arrays["lengths"].numpy
    results = []
    for image, head in np.ndindex(images, heads):
        kv = head // (heads // kv_heads)
        valid = _key_mask(op, q.shape[2], k.shape[2], int(lengths[image]))
        scores, bias = _scores(symbols, config, op, q[image, head], k[image, kv])
        p, _, (_, sums), alignments = _probabilities(symbols, config, op, scores, bias, valid)
        total = _weighted_sums(symbols, config, p, alignments, symbols.values.integers_of(v[image, kv]))
        rows, size = total.low.shape
        elements = total.reshape(rows, 1, size)
        results.append(_quotients(symbols, op, elements, sums, None, int(numbers["v_zero"])))
    return _to_output(op, np.stack(results).reshape(images, heads, *results[0].shape))


def _key_mask(op: Operator, rows: int, keys: int, length: int) -> np.ndarray:
    """Return a mask of the keys that each row attends to: bool (rows, keys)."""
    below = np.broadcast_to(np.arange(keys) < length, (rows, keys))
    if not op.numbers["causal"]:
        return below
    return below & (np.arange(keys) <= np.arange(rows)[:, None] + int(op.numbers["offset"]))


def _scores(symbols: Symbols, config: Config, op: Operator, q: np.ndarray, k: np.ndarray) -> tuple[Sums, int]:
    """Return scores (rows, keys), and the bias to add before their scale."""
    values, numbers = symbols.values, op.numbers
    q_zero, k_zero = int(numbers["q_zero"]), int(numbers["k_zero"])
    change = abs(k_zero) * _MAX_OFFSET * q.shape[1] * numbers["score_scale"]
    rounding = "rounding.scale" in numbers
    used_zero = k_zero if rounding or change > FAR else 0
    keys = values.integers_of(k).plus_constant(-used_zero)
    scores = matmul(values.integers_of(q).plus_constant(-q_zero), keys.transpose((1, 0)))
    if not rounding:
        return scores, 0
    zero, low, high = (int(numbers[f"rounding.{name}"]) for name in ("zero", "low", "high"))
    pair = quantise_scale(numbers["rounding.scale"], config.mantissa_bits)
    rounded = requantise(values, scores.singletons, *pair, (zero, low, high))
    return values.integers_of(rounded), -((low + high) // 2)


def _probabilities(
    symbols: Symbols, config: Config, op: Operator, scores: Sums, bias: int, valid: np.ndarray
) -> tuple[list[Sums], list[Sums], tuple[Sums, Sums], list[Sums]]:
    """Compute the probabilities of scores (rows, keys) in groups of N keys.

    Returns
    -------
    list of Sums (rows, N), list of Sums (rows,)
        Probabilities and exponents of each group.
    (Sums, Sums) (rows,)
        Maxima and sums of rows after the last group.
    list of Sums (rows,)
        Alignments of each group.
    """
    rows, keys = valid.shape
    n = config.n
    octaves = op.numbers["score_scale"] * math.log2(math.e)
    state = initial_state(symbols, rows)
    p, exponents, alignments = [], [], []
    for first in range(0, keys, n):
        places = np.minimum(np.arange(first, first + n), keys - 1)
        in_group = valid[:, places] & (np.arange(first, first + n) < keys)
        part, e, state, alignment = group_probabilities(
            symbols, config, octaves, scores[:, places], bias, in_group, state
        )
        p.append(part)
        exponents.append(e)
        alignments.append(alignment)
    return p, exponents, state, alignments


def initial_state(symbols: Symbols, rows: int) -> tuple[Sums, Sums]:
    """Return maxima and sums, (rows,), of rows without scores."""
    return symbols.integers(LOWEST, (rows,)), symbols.integers(0, (rows,))


def group_probabilities(
    symbols: Symbols,
    config: Config,
    octaves: float,
    scores: Sums,
    bias: int,
    valid: np.ndarray,
    state: tuple[Sums, Sums],
) -> tuple[Sums, Sums, tuple[Sums, Sums], Sums]:
    """Compute the probabilities of one group.

    Parameters
    ----------
    octaves : float
        Octaves per unit of a score.
    scores : Sums (rows, keys)
    bias : int
        Is added to scores.
    valid : bool (rows, keys)
        Scores that count.
    state : (Sums, Sums) (rows,)
        Maxima and sums of rows before the group.

    Returns
    -------
    Sums (rows, keys), Sums (rows,), (Sums, Sums) (rows,), Sums (rows,)
        Probabilities, exponents, maxima and sums of rows after the group, and alignments.
    """
    columns = np.ones(valid.shape[1], np.int64)
    mantissa, shift = quantise_scale(OCTAVE * octaves, config.mantissa_bits)
    y = numerics.octave_logits(symbols, scores, bias * columns, mantissa * columns, shift * columns)
    e = numerics.group_exponents(symbols, y, valid)
    part = numerics.probabilities(symbols, y, valid, e, config.exp2_table)
    m, sums, alignment = numerics.update(symbols, *state, e, part)
    return part, e, (m, sums), alignment


def _weighted_sums(symbols: Symbols, config: Config, p: list[Sums], alignments: list[Sums], v: Sums) -> Sums:
    """Add up values (keys, size) times the probabilities of groups: (rows, size)."""
    rows, size = len(p[0].low), v.low.shape[1]
    total = symbols.integers(0, (rows, size))
    for at, (part, alignment) in enumerate(zip(p, alignments, strict=True)):
        total = add_group(symbols, total, part, alignment, v[at * config.n : (at + 1) * config.n])
    return total


def add_group(symbols: Symbols, total: Sums, part: Sums, alignment: Sums, values: Sums) -> Sums:
    """Add one group's probabilities, times values (keys, size), to sums of products (rows, size)."""
    products = matmul(part[:, : len(values.low)], values)
    shift = alignment.singletons.broadcast_to(total.low.shape)
    return numerics.add_aligned(symbols, total, products, shift)


def _quotients(
    symbols: Symbols, op: Operator, elements: Sums, sums: Sums, alignment: Sums | None, v_zero: int
) -> np.ndarray:
    numbers = op.numbers
    form = Form(0, int(numbers["y_zero"]), int(numbers["low"]), int(numbers["high"]))
    return divide_by_sums(symbols, numbers["scale"], form, elements, sums, alignment, v_zero)


def divide_by_sums(
    symbols: Symbols,
    multiplier: float,
    form: Form,
    elements: Sums,
    sums: Sums,
    alignment: Sums | None = None,
    v_zero: int = 0,
) -> np.ndarray:
    """Divide elements (rows, 1, size), times a number, by the sums of their rows; return values (rows, size)."""
    fraction, exponent = math.frexp(multiplier)
    scale = round(math.ldexp(fraction, 16))
    if scale == 1 << 16:
        scale, exponent = scale >> 1, exponent + 1
    places = min(16 - exponent - 9, 63)
    quotients = numerics.normalise(symbols, elements, sums, alignment, scale, places, v_zero)
    rows, _, size = quotients.low.shape
    return symbols.values.apply_forms(quotients.reshape(rows, size, 1), [form] * size)


def _pair(op: Operator, name: str) -> tuple[int, int]:
    first, second = op.arrays[name].numpy.tolist()
    return first, second


def _matrices(contents: np.ndarray, counts: tuple[int, int]) -> np.ndarray:
    """Return the matrices (images, heads, rows, size) of an operand (n, 1, rows, c).

    Its heads are consecutive channels, or consecutive images.
    """
    images, heads = counts
    rows = contents.shape[2]
    if len(contents) == images:
        return contents.reshape(images, rows, heads, -1).swapaxes(1, 2)
    return contents.reshape(images, heads, rows, -1)


def _to_output(op: Operator, matrices: np.ndarray) -> np.ndarray:
    """Arrange matrices (images, heads, rows, size) like the output."""
    images, heads, _, size = matrices.shape
    if op.dst.shape[0] == images and op.dst.shape[3] == heads * size:
        matrices = matrices.swapaxes(1, 2)
    return matrices.reshape(op.dst.shape)
