"""Attention as models describe it: masks in the form that the device supports, and layouts of heads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import Attention
from weft.compiler.ir.layout import Layout, Shape4
from weft.compiler.ir.model import CLAMPED
from weft.compiler.ir.scales import CALIBRATION_HEADROOM, SCORE_CLAMP, ScoreRange, causal
from weft.compiler.machine.target import PITCH_MAX
from weft.compiler.onnx.key_masks import Extension, Heads, KeyMask, extension, masked_keys, masked_queries
from weft.compiler.onnx.model import Model
from weft.compiler.onnx.operator import NodeContext
from weft.compiler.onnx.qdq import Activation, Pending, Probabilities, Tensor, result
from weft.compiler.onnx.reorder import to_layout
from weft.hdl.isa import COORDINATE_MAX

MASKED = -9999.0
"""Scores that a float mask lowers by this much have no weight: many models add -10000, which a quantiser rounds."""
PASSING = ("Identity", "Mul", "Div", "Relu", "Clip")
"""Operators that keep the order of elements."""

Find = Callable[[Tensor, Layout], Tensor | None]
"""Function that returns a tensor in a layout, or None: `Tensor.in_layout` or `to_layout`."""


@dataclass(frozen=True)
class Mask:
    """Mask of keys: keys below ``lengths[image]``, and with `causal` up to ``i + offset`` for query i."""

    lengths: tuple[int, ...]
    causal: bool
    offset: int

    def allowed_keys(self, queries: int, keys: int) -> np.ndarray:
        """Return the keys that take part: bool (images, queries, keys)."""
        key = np.arange(keys)
        below = np.broadcast_to(
            key < np.array(self.lengths)[:, None, None], (len(self.lengths), queries, keys)
        )
        return below & causal(queries, keys, self.offset) if self.causal else below


def mask_of(floats: np.ndarray) -> np.ndarray | None:
    """Return the keys that an additive mask allows; None if it has values other than 0 and `MASKED` or less."""
    allowed = floats == 0
    return allowed if (allowed | (floats <= MASKED)).all() else None


def recognise(allowed: np.ndarray) -> Mask | None:
    """Return the lengths and diagonal of a mask (images, queries, keys); None if it has another form."""
    _, queries, keys = allowed.shape
    counts = allowed.sum(2)
    lengths = counts.max(1)
    rows = np.arange(queries)[None, :]
    # Rows of a causal mask that end before the length determine the offset; all others bound it.
    least = np.where(counts > 0, counts - 1 - rows, -queries)
    most = np.where(counts < lengths[:, None], counts - 1 - rows, keys)
    low, high = int(least.max()), int(most.min())
    mask = Mask(tuple(int(length) for length in lengths), bool((counts < lengths[:, None]).any()), low)
    if not mask.causal:
        mask = Mask(mask.lengths, False, 0)
    elif low > high:
        return None
    return mask if np.array_equal(mask.allowed_keys(queries, keys), allowed) else None


@dataclass(frozen=True)
class Operand:
    """Queries, keys or values: an activation, and the order of its value's axes.

    `axes` are i (image), h (head), s (row) and d (element): "ihsd" if heads are a dimension.
    """

    activation: Activation
    axes: str
    rows: int
    size: int

    def find_layout(self, images: int, heads: int, find: Find) -> tuple[Tensor, Shape4] | None:
        """Return the tensor in a layout of `weft.compiler.ir.graph.Attention`, and its shape there; None if `find`
        gives none.
        """
        tensor = self.activation.tensor
        layouts = [
            heads_layout(self.axes, order, images, heads, self.rows, self.size) for order in ("ishd", "ihsd")
        ]
        for layout in sorted(layouts, key=lambda layout: not tensor.layout.same(layout)):
            placed = find(tensor, layout)
            if placed is not None:
                return placed, layout.nhwc
        return None


def heads_layout(axes: str, order: str, images: int, heads: int, rows: int, size: int) -> Layout:
    """Return the layout of a value with `axes`: heads as channels for `order` "ishd", as images for "ihsd"."""
    sizes = {"i": images, "h": heads, "s": rows, "d": size}
    nhwc = (images, 1, rows, heads * size) if order == "ishd" else (images * heads, 1, rows, size)
    return Layout(tuple(sizes[axis] for axis in axes), tuple(axes.index(axis) for axis in order), nhwc)


@dataclass(frozen=True, eq=False)
class Problem:
    """An attention of the model.

    Attributes
    ----------
    splits : tuple
        Possible (images, query heads, key and value heads), the best first.
    allowed : ndarray
        Keys that take part; broadcasts to `full`.
    full : tuple of int
        Shape of the scores: images and heads, then queries and keys.
    key_mask : KeyMask or None
        Mask of further keys that is only known at run time.
    """

    q: Operand
    k: Operand
    v: Operand
    splits: tuple[tuple[int, int, int], ...]
    allowed: np.ndarray
    full: tuple[int, ...]
    key_mask: KeyMask | None = None

    def masks(self) -> Iterator[tuple[tuple[int, int, int], Mask]]:
        """Yield the splits whose mask is equal for all heads and has the device's form, with the mask."""
        for split in self.splits:
            images, heads, _ = split
            if self.key_mask is not None and self.key_mask.images not in (1, images):
                continue
            # The device has one mask per image, for all of its heads.
            allowed = np.broadcast_to(self.allowed, self.full)
            allowed = allowed.reshape(images, heads, *self.full[-2:])
            mask = recognise(allowed[:, 0]) if (allowed == allowed[:, :1]).all() else None
            if mask is not None:
                yield split, mask

    def solutions(self) -> Iterator[Solution]:
        """Yield solutions without copies, then solutions that copy operands into a suitable order."""
        for find, ((images, heads, kv_heads), mask) in itertools.product(
            (Tensor.in_layout, to_layout), self.masks()
        ):
            q = self.q.find_layout(images, heads, find)
            k, v = (operand.find_layout(images, kv_heads, find) for operand in (self.k, self.v))
            if q is not None and k is not None and v is not None:
                yield Solution(images, heads, kv_heads, mask, (q, k, v))


@dataclass(frozen=True, eq=False)
class Solution:
    """Split of a `Problem` with its mask, and the tensors of queries, keys and values with their shapes."""

    images: int
    heads: int
    kv_heads: int
    mask: Mask
    operands: tuple[tuple[Tensor, Shape4], ...]


def splits(lead: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    """Return the ways to see leading dimensions as images and heads; with two dimensions, (images,
    heads) comes first.
    """
    count = math.prod(lead)
    images = [size for size in range(1, count + 1) if count % size == 0]
    if len(lead) == 2:
        images.sort(key=lambda size: size != lead[0])
    return tuple((size, count // size, count // size) for size in images)


def heads_become_columns(model: Model, value: str) -> bool:
    """Return whether the only reader of a value (..., heads, rows, size) transposes it to (..., rows, heads, size)."""
    rank = len(model.shapes[value])
    expected = (*range(rank - 3), rank - 2, rank - 3, rank - 1)
    while len(model.users(value)) == 1:
        (node,) = model.users(value)
        if node.op == "Transpose":
            return tuple(node.attributes.get("perm", ())) == expected
        if node.op not in PASSING:
            return False
        value = node.outputs[0]
    return False


MAX_KEYS = COORDINATE_MAX
"""Largest number of keys: lengths are int16 in instructions, and sums of probabilities fit 32 bits."""
MAX_HEAD_SIZE = (1 << 15) - 1
"""Largest number of elements of a head: sums of products of two of its vectors fit 32 bits."""
MAX_ROW = PITCH_MAX
"""Largest number of elements of all heads in a row."""
CALIBRATED_NOTE = f"scores beyond {{reach:.0f}} {CLAMPED}, and a calibration found them up to {{found:.4g}}"
"""Note on scores that only uncalibrated values clamp."""
NOT_CALIBRATED = "queries and keys at the ends of their ranges give {most:.4g}, and no calibration found less"
"""Reason for not fusing attention without a bound on its scores."""
NEAR_CLAMP = (
    f"a calibration found {{found:.4g}}, and {CALIBRATION_HEADROOM} times that is beyond {{reach:.0f}}"
)
"""Reason for not fusing attention whose calibrated scores are near the clamp."""


def problem_of(context: NodeContext) -> Problem:
    """Return the attention of an Attention node, or of the product with the values at the end of a written-out
    attention.
    """
    return _from_operator(context) if context.node.op == "Attention" else _from_products(context)


def _from_operator(context: NodeContext) -> Problem:
    activations = [symbol for symbol in context.symbols[:3] if isinstance(symbol, Activation)]
    shapes = [context.shape(index) for index in range(3)]
    if len(shapes[0]) == 3:
        heads, kv_heads = (int(context.node.attributes[name]) for name in ("q_num_heads", "kv_num_heads"))
        counts, axes, row = (heads, kv_heads, kv_heads), "ishd", 1
    else:
        counts, axes, row = (shapes[0][1], shapes[1][1], shapes[1][1]), "ihsd", 2
    q, k, v = (
        Operand(activation, axes, shape[row], shape[-1] // (count if row == 1 else 1))
        for activation, shape, count in zip(activations, shapes, counts, strict=True)
    )
    images = shapes[0][0]
    allowed = np.ones((1, 1), bool) if not context.node.input(3) else attention_mask(context)
    assert allowed is not None
    lengths = context.model.constants.get(context.node.input(6))
    keys = np.arange(k.rows)
    offset = np.zeros((1, 1, 1, 1), np.int64)
    if lengths is not None:
        allowed = allowed & (keys < lengths.reshape(-1, 1, 1, 1))
        # The last query sees all keys of the length.
        offset = lengths.reshape(-1, 1, 1, 1) - q.rows
    if context.attribute("is_causal", 0):
        allowed = allowed & causal(q.rows, k.rows, offset)
    return Problem(q, k, v, ((images, counts[0], counts[1]),), allowed, (images, counts[0], q.rows, k.rows))


def attention_mask(context: NodeContext) -> np.ndarray | None:
    """Return the keys that the mask of an Attention node allows, padded to all keys; None if the
    mask is not supported.
    """
    floats = context.floats(3)
    values = context.model.constants.get(context.node.input(3))
    if values is not None and values.dtype == np.bool_:
        allowed = values
    else:
        allowed_by_floats = None if floats is None else mask_of(floats)
        if allowed_by_floats is None:
            return None
        allowed = allowed_by_floats
    keys = context.shape(1)[-2]
    if allowed.ndim < 1 or allowed.shape[-1] > keys:
        return None
    return np.pad(allowed, [(0, 0)] * (allowed.ndim - 1) + [(0, keys - allowed.shape[-1])])


def _from_products(context: NodeContext) -> Problem:
    symbol, values = context.symbol(0), context.symbol(1)
    assert isinstance(symbol, Probabilities)
    assert isinstance(values, Activation)
    scores = symbol.scores
    *lead, rows, size = scores.q_shape
    keys = scores.k_shape[-1]
    return Problem(
        Operand(scores.q, "ihsd", rows, size),
        Operand(scores.k, "ihds", keys, size),
        Operand(values, "ihsd", keys, context.shape(1)[-1]),
        splits(tuple(lead)),
        np.ones((1, 1), bool) if scores.allowed is None else scores.allowed,
        (*lead, rows, keys),
        None if scores.key_mask is None else KeyMask.of(scores.key_mask, keys),
    )


def score_factor(context: NodeContext) -> float:
    """Return the factor of the products of queries and keys."""
    symbol = context.symbol(0)
    if isinstance(symbol, Probabilities):
        return symbol.scores.factor
    scale = context.attribute("scale") or 1 / math.sqrt(problem_of(context).q.size)
    assert isinstance(scale, float)
    return scale


def keys_fit(context: NodeContext) -> str | None:
    """Attention takes at most 32767 queries and keys."""
    most = max(problem_of(context).full[-2:])
    return None if most <= MAX_KEYS else f"there are {most}"


def rows_fit(context: NodeContext) -> str | None:
    """Attention takes heads of at most 32767 elements, and rows of 65535, so that sums and pitches fit."""
    problem = problem_of(context)
    for operand in (problem.q, problem.k, problem.v):
        if operand.size > MAX_HEAD_SIZE:
            return f"there are {operand.size} in a head"
        row = operand.activation.tensor.layout.nhwc[3]
        if row > MAX_ROW:
            return f"there are {row} in a row"
    return None


def scores_scale_fits(context: NodeContext) -> str | None:
    """A step of scores, the product of both scales and the factor, must be below 177."""
    problem = problem_of(context)
    step = problem.q.activation.quant.scale * problem.k.activation.quant.scale * score_factor(context)
    return None if step < SCORE_CLAMP else f"it is {step:.4g}"


def mask_kind(context: NodeContext) -> str | None:
    """Masks must be lengths per batch entry, causal with one offset, or both, and equal for all heads."""
    return None if next(problem_of(context).masks(), None) is not None else ""


def heads_order(context: NodeContext) -> str | None:
    """Heads must be side by side in every row, or one after the other, or at most 256 copies must bring them there."""
    return None if next(problem_of(context).solutions(), None) is not None else ""


def key_mask_reaches(context: NodeContext) -> str | None:
    """A mask of keys at run time must need at most 1024 additional elements per head."""
    problem = problem_of(context)
    if problem.key_mask is None:
        return None
    more = _extension(problem, score_factor(context))
    if more is None:
        return "it needs more"
    heads = max(split[1] for split in problem.splits)
    row = heads * (problem.q.size + more.size)
    return None if row <= MAX_ROW else f"a row would have {row} of them"


def _extension(problem: Problem, factor: float) -> Extension | None:
    """Return the additional elements of heads for a mask of keys; `factor` multiplies products of queries and keys."""
    q, k = problem.q.activation.quant, problem.k.activation.quant
    return extension(q, k, problem.q.size, q.scale * k.scale * factor)


def scores_reach(context: NodeContext) -> str | None:
    """No score may be clamped, at 177: for any int8 queries and keys, or for 1.25 times a calibration's largest."""
    known, calibrated = score_range(context), largest_score(context)
    if known.holds(calibrated):
        return None
    if calibrated is None:
        return NOT_CALIBRATED.format(most=known.most)
    return NEAR_CLAMP.format(found=calibrated, reach=known.reach)


def score_range(context: NodeContext) -> ScoreRange:
    """Return the range of scores that are not rounded to 8 bits."""
    problem, factor = problem_of(context), score_factor(context)
    q, k = problem.q.activation.quant, problem.k.activation.quant
    more = None if problem.key_mask is None else _extension(problem, factor)
    nats = q.scale * k.scale * factor
    return ScoreRange.of(q.zero, k.zero, problem.q.size, nats, 0 if more is None else more.size)


def largest_score(context: NodeContext) -> float | None:
    """Return the largest score of any row in calibration; None without calibration."""
    symbol = context.symbol(0)
    name = symbol.scores.softmax if isinstance(symbol, Probabilities) else context.node.name
    return context.model.network.largest.get(name)


FORM = (keys_fit, rows_fit, scores_scale_fits, mask_kind, heads_order, key_mask_reaches)


def fuse(
    context: NodeContext,
    problem: Problem,
    factor: float,
    beside: bool,
    nodes: tuple[int, ...],
    notes: tuple[str, ...],
) -> Pending:
    """Return the device's attention; with `beside`, the result has heads side by side in its rows."""
    solution = next(problem.solutions())
    (q, q_shape), (k, k_shape), (v, v_shape) = solution.operands
    quants = [operand.activation.quant for operand in (problem.q, problem.k, problem.v)]
    nats = quants[0].scale * quants[1].scale * factor
    known, calibrated = score_range(context), largest_score(context)
    note = CALIBRATED_NOTE.format(reach=known.reach, found=calibrated or 0.0)
    saturation = () if known.certain else (note,)
    if problem.key_mask is not None:
        more, mask = _extension(problem, factor), problem.key_mask.tensor()
        assert more is not None
        assert mask is not None
        queries = Heads(q, q_shape, quants[0], solution.images, solution.heads)
        q, q_shape = masked_queries(queries, more, mask)
        keys = Heads(k, k_shape, quants[1], solution.images, solution.kv_heads)
        k, k_shape = masked_keys(keys, more, problem.key_mask, mask)
    order = "ishd" if beside else "ihsd"
    axes = problem.q.axes
    layout = heads_layout(axes, order, solution.images, solution.heads, problem.q.rows, problem.v.size)
    op = Attention(
        context.node.name,
        q=q.view(q_shape),
        k=k.view(k_shape),
        v=v.view(v_shape),
        dst=result(layout.nhwc),
        images=solution.images,
        heads=solution.heads,
        kv_heads=solution.kv_heads,
        score_scale=nats,
        lengths=solution.mask.lengths,
        scale=quants[2].scale,
        causal=solution.mask.causal,
        offset=solution.mask.offset,
        q_zero=quants[0].zero,
        k_zero=quants[1].zero,
        v_zero=quants[2].zero,
    )
    return Pending((op,), layout, (q, k, v), nodes, notes=(*notes, *saturation))
