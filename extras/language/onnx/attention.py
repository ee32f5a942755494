"""Recognition of attention in a graph, by running it on random queries, keys and values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.network import Node
from weft.extras.language.compiler.model import BlockTensor, Linear, Matrix, Rotary, rows
from weft.extras.language.compiler.reference import rotate_pairs
from weft.extras.language.onnx.natives import check_grouped
from weft.extras.language.onnx.norms import TOLERANCE, is_close
from weft.extras.language.onnx.products import Product
from weft.extras.language.onnx.rotation import measure
from weft.extras.language.onnx.structure import Half
from weft.extras.language.onnx.trials import Texts

MAX_TRIED_ELEMENTS = 1 << 24
"""Limit for elements of the keys with which attention is run."""
_TRIED_CASES = ((5, 0), (3, 4), (1, 6))
"""Numbers of tokens, and of preceding tokens, in trials."""


@dataclass(frozen=True)
class Heads:
    """Sizes of attention: heads of queries, heads of keys and values (`groups`), and elements of a key and a value."""

    heads: int
    groups: int
    key_length: int
    value_length: int


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """Attention of a layer: projections with rows in the order for adjacent pairs, and the rotation of heads."""

    query: Linear
    key: Linear
    value: Linear
    heads: Heads
    rotary: Rotary | None


class Attention:
    """Reader of the attention of a graph's layers.

    Parameters
    ----------
    texts : Texts
    context : int
        Maximum number of tokens of a text.
    base : float or None
        Base of rotary angles in a configuration file.
    """

    def __init__(self, texts: Texts, context: int, base: float | None) -> None:
        self._texts = texts
        self._base = base
        self._random = np.random.default_rng(2)
        largest = max((heads * length for heads, length in texts.pasts.values()), default=1)
        # Attention is tried over the whole context: this limits the memory of its keys.
        self.context = min(context, max(MAX_TRIED_ELEMENTS // largest, 1))
        self._measured_rotation: tuple[Rotary | None, bool] | None = None

    def read(self, half: Half) -> AttentionLayer:
        """Read the attention of a layer.

        Raises
        ------
        CompileError
            If it computes anything but causal softmax attention with scores divided by the root of the key length.
        """
        nodes = self._texts.trials.needed_nodes(
            [half.last.source], [part.output for part in half.first], shapes=False
        )
        for node in nodes:
            _check_operator(node)
        layer = self._assign_roles(half)
        place = nodes[-1].label if nodes else half.last.node.label
        try:
            rotary, adjacent = self._measure_rotation(layer)
        except CompileError as error:
            raise CompileError(f"attention up to {place}: {error}") from None
        for tokens, before in _TRIED_CASES:
            if tokens + before <= self.context and not layer.agrees(tokens, before, rotary, adjacent):
                raise CompileError(
                    f"attention up to {place} is not softmax(q k / sqrt({layer.heads.key_length})) v of all tokens "
                    f"up to a token's own, as a trial of {tokens} tokens after {before} shows; weft expects that, "
                    "with no other mask, cap, scale or norm of queries and keys"
                )
        if not layer.sees_all(self.context):
            raise CompileError(
                f"attention up to {place} does not see all of {self.context:,} tokens: sliding windows are not "
                "supported"
            )
        return layer.build_layer(rotary, adjacent)

    def _measure_rotation(self, layer: _LayerCandidate) -> tuple[Rotary | None, bool]:
        """Return the rotation of heads, measured once for all layers, and whether it pairs adjacent elements."""
        last = self.context - 1
        if self._measured_rotation is None:
            shape = layer.heads.groups, layer.heads.key_length
            self._measured_rotation = measure(
                layer.kept_key, *shape, last, self._base, self._texts.graph.table_error
            )
        return self._measured_rotation

    def _assign_roles(self, half: Half) -> _LayerCandidate:
        """Return the candidate for a layer in which products and pasts have consistent roles."""
        presents = {
            name: made_of
            for name, made_of in self._texts.structure.presents.items()
            if made_of & set(half.pasts)
        }
        if len(half.pasts) != 2 or len(presents) != 2:
            raise CompileError(
                f"{half.last.node.label}: the attention in front of it has {len(half.pasts)} inputs with keys and "
                f"values of tokens before, and {len(presents)} outputs; weft expects two and two: export the model "
                "with past_key_values"
            )
        pairs = {next(iter(made_of & set(half.pasts))): name for name, made_of in presents.items()}
        if len(pairs) != 2 or any(len(made_of & set(half.pasts)) > 1 for made_of in presents.values()):
            pairs = _by_name(half.pasts, presents)
        # Names only decide which assignment is tried first.
        ordered = sorted(half.pasts, key=lambda name: "value" in name or name.endswith(("v", "_v")))
        candidates = [
            _LayerCandidate(self._texts, half, tuple(order), pairs) for order in (ordered, ordered[::-1])
        ]
        return next((candidate for candidate in candidates if candidate.fits), candidates[0])


def _by_name(pasts: tuple[str, ...], presents: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """Pair the pasts and presents of one operator by name: keys with keys, values with values."""

    def is_value(name: str) -> bool:
        return "value" in name or name.endswith("v")

    return dict(zip(sorted(pasts, key=is_value), sorted(presents, key=is_value), strict=True))


class _LayerCandidate:
    """Layer with one assignment of its two pasts to keys and values."""

    def __init__(self, texts: Texts, half: Half, pasts: tuple[str, ...], pairs: Mapping[str, str]) -> None:
        self._texts, self._half, self._pasts = texts, half, pasts
        self._presents = tuple(pairs[name] for name in pasts)
        self._random = np.random.default_rng(3)
        (groups, key), (value_groups, value) = (texts.pasts[name] for name in pasts)
        if groups != value_groups:
            raise CompileError(f"inputs {pasts[0]!r} and {pasts[1]!r} have {groups} and {value_groups} heads")
        parts = half.first
        made_of = texts.structure.presents
        if len(parts) == 1:
            # One product has the rows of queries, then of keys, then of values.
            queries = parts[0].outputs - groups * (key + value)
            self._order: tuple[Product, ...] = parts
        elif len(parts) == 3:
            ends = [made_of[name] & {part.output for part in parts} for name in self._presents]
            by_name = {part.output: part for part in parts}
            # If the graph does not tell, products are in the usual order.
            keys = by_name[min(ends[0])] if len(ends[0]) == 1 else parts[1]
            values = by_name[min(ends[1])] if len(ends[1]) == 1 else parts[2]
            query_products = [part for part in parts if part is not keys and part is not values]
            self._order = (query_products[0], keys, values)
            queries = query_products[0].outputs if len(query_products) == 1 else 0
        else:
            raise CompileError(
                f"{parts[-1].node.label}: attention has {len(parts)} products in front; weft expects one each of "
                "queries, keys and values, or one of all three"
            )
        self.heads = Heads(queries // key, groups, key, value)
        widths = (self.heads.heads * key, groups * key, groups * value)
        self.widths = widths
        expected_outputs = [sum(widths)] if len(parts) == 1 else list(widths)
        if (
            [part.outputs for part in self._order] != expected_outputs
            or self.heads.heads < 1
            or self.heads.heads % groups
        ):
            sizes = ", ".join(f"{part.outputs:,}" for part in self._order)
            raise CompileError(
                f"{parts[0].node.label}: products with {sizes} elements do not fit {groups} heads of keys of {key} "
                f"elements and of values of {value}"
            )

    @property
    def fits(self) -> bool:
        """True if the cache holds values unchanged; a cache of keys does not."""
        value = self._random_values(1, self.heads.groups, 2, self.heads.value_length)
        parts = [np.zeros((1, count, 2, length), np.float32) for count, length in self._shapes()[:2]]
        (kept_value,) = self._compute([self._presents[1]], (*parts, value), 2, 0)
        return is_close(kept_value, value)

    def _shapes(self) -> list[tuple[int, int]]:
        heads = self.heads
        return [
            (heads.heads, heads.key_length),
            (heads.groups, heads.key_length),
            (heads.groups, heads.value_length),
        ]

    def _random_values(self, *shape: int) -> np.ndarray:
        return self._random.normal(0, 1, shape).astype(np.float32)

    def _compute(
        self,
        names: list[str],
        parts: tuple[np.ndarray, ...],
        tokens: int,
        before: int,
        pasts: tuple[np.ndarray, ...] = (),
    ) -> list[np.ndarray]:
        """Run the graph on queries, keys and values (1, heads, tokens, length)."""
        flat = [part.swapaxes(1, 2).reshape(tokens, -1) for part in parts]
        if len(self._order) == 1:
            flat = [np.concatenate(flat, axis=1)]
        inputs = {part.output: value for part, value in zip(self._order, flat, strict=True)}
        inputs |= dict(zip(self._pasts, pasts, strict=False))
        return self._texts.values(names, inputs, tokens, before)

    def kept_key(self, position: int, key: np.ndarray) -> np.ndarray:
        """Return what the cache holds for a key (heads, length) at a position."""
        heads = self.heads
        parts = (
            np.zeros((1, heads.heads, 1, heads.key_length), np.float32),
            key[None, :, None],
            np.zeros((1, heads.groups, 1, heads.value_length), np.float32),
        )
        (value,) = self._compute([self._presents[0]], parts, 1, position)
        if value.shape != (1, heads.groups, position + 1, heads.key_length):
            raise CompileError(
                f"output {self._presents[0]!r} has shape {value.shape} after {position:,} tokens; weft expects keys "
                f"as (1, {heads.groups}, {position + 1:,}, {heads.key_length})"
            )
        return value[0, :, -1]

    def agrees(self, tokens: int, before: int, rotary: Rotary | None, adjacent: bool) -> bool:
        """Return whether attention, and the cache, equal what weft computes for the same inputs."""
        parts = tuple(self._random_values(1, count, tokens, length) for count, length in self._shapes())
        # Larger queries sharpen the softmax, so that differences show.
        parts = (parts[0] * np.float32(3), *parts[1:])
        pasts = tuple(self._random_values(1, count, before, length) for count, length in self._shapes()[1:])
        computed = self._compute([self._half.last.source, *self._presents], parts, tokens, before, pasts)
        at = before + np.arange(tokens)
        query, key = (_rotate(part[0], rotary, at, adjacent) for part in parts[:2])
        keys = np.concatenate([pasts[0][0], key], axis=1)
        values = np.concatenate([pasts[1][0], parts[2][0]], axis=1)
        expected = _attend(query.astype(np.float64), keys, values, at)
        # Cosines and sines from a half-precision table make queries and keys less exact.
        tolerance = max(TOLERANCE, 4 * self._texts.graph.table_error)
        return (
            is_close(computed[0], expected, tolerance)
            and is_close(computed[1], keys, tolerance)
            and is_close(computed[2], values)
        )

    def sees_all(self, context: int) -> bool:
        """Return whether the last token of a text attends to all others."""
        shapes = self._shapes()
        parts = tuple(np.zeros((1, count, 1, length), np.float32) for count, length in shapes)
        keys = np.zeros((1, shapes[1][0], context - 1, shapes[1][1]), np.float32)
        values = np.zeros((1, shapes[2][0], context - 1, shapes[2][1]), np.float32)
        # Only the first value is non-zero; equal scores average it to 1 over the whole context.
        values[:, :, 0] = context
        (last_output,) = self._compute([self._half.last.source], parts, 1, context - 1, (keys, values))
        return is_close(last_output, np.ones(last_output.size), 1e-2)

    def build_layer(self, rotary: Rotary | None, adjacent: bool) -> AttentionLayer:
        linears = [part.linear for part in self._order]
        if len(linears) == 1:
            ends = np.cumsum((0, *self.widths))
            linears = [_take_rows(linears[0], int(a), int(b)) for a, b in itertools.pairwise(ends)]
        query, key, value = linears
        if rotary is not None and not adjacent:
            order = _adjacent_order(self.heads.key_length, rotary.dimensions)
            query, key = (_reorder_rows(linear, order) for linear in (query, key))
        return AttentionLayer(query, key, value, self.heads, rotary)


def _check_operator(node: Node) -> None:
    """Raise `CompileError` for operators with features that weft does not support."""
    if node.operator == "GroupQueryAttention":
        check_grouped(node)
    if node.operator == "Attention" and node.attributes.get("softcap", 0.0):
        raise CompileError(f"{node.label} has capped scores (softcap), which weft does not support")
    if node.operator == "Tanh":
        raise CompileError(f"{node.label} caps scores, which weft does not support")
    if "Normalization" in node.operator:
        raise CompileError(f"{node.label} is a norm of queries or keys, which weft does not support")


def _rotate(heads: np.ndarray, rotary: Rotary | None, at: np.ndarray, adjacent: bool) -> np.ndarray:
    """Rotate heads (heads, tokens, length) in their own order of elements."""
    if rotary is None:
        return heads
    angles = rotary.angles(at)
    if adjacent:
        return rotate_pairs(heads, angles)
    order = _adjacent_order(heads.shape[2], rotary.dimensions)
    rotated = heads.copy()
    rotated[..., order] = rotate_pairs(heads[..., order], angles)
    return rotated


def _attend(query: np.ndarray, keys: np.ndarray, values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return causal attention, float64 (tokens, heads * length)."""
    heads, tokens, length = query.shape
    shared = heads // len(keys)
    scores = query @ np.repeat(keys, shared, axis=0).swapaxes(1, 2) * length**-0.5
    scores[:, np.arange(keys.shape[1]) > at[:, None]] = -np.inf
    probabilities = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probabilities /= probabilities.sum(axis=-1, keepdims=True)
    return (probabilities @ np.repeat(values, shared, axis=0)).swapaxes(0, 1).reshape(tokens, -1)


def _adjacent_order(length: int, dimensions: int) -> np.ndarray:
    """Return the permutation of a head's elements that makes pairs half of `dimensions` apart adjacent."""
    rotated_elements = np.arange(dimensions).reshape(2, -1).T.reshape(-1)
    return np.concatenate([rotated_elements, np.arange(dimensions, length)])


def _reorder_rows(linear: Linear, order: np.ndarray) -> Linear:
    """Reorder the rows of every head."""
    weight, length = linear.weight, len(order)
    row_order = (np.arange(0, weight.shape[0], length)[:, None] + order).reshape(-1)
    reordered: Matrix
    if isinstance(weight, BlockTensor):
        minimums = None if weight.minimums is None else weight.minimums[row_order]
        reordered = BlockTensor(weight.values[row_order], weight.scales[row_order], minimums, weight.block)
    else:
        reordered = weight[row_order]
    return Linear(reordered, None if linear.bias is None else linear.bias[row_order])


def _take_rows(linear: Linear, start: int, stop: int) -> Linear:
    return Linear(rows(linear.weight, start, stop), None if linear.bias is None else linear.bias[start:stop])
