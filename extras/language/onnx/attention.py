"""Attention of a graph, found and held to what weft computes by trying it out on random queries, keys and values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.network import Node
from weft.extras.language.compiler.model import BlockTensor, Linear, Matrix, Rotary, rows
from weft.extras.language.compiler.reference import rotated
from weft.extras.language.onnx.natives import check_grouped
from weft.extras.language.onnx.norms import CLOSE, close
from weft.extras.language.onnx.products import Product
from weft.extras.language.onnx.rotation import measure
from weft.extras.language.onnx.structure import Half
from weft.extras.language.onnx.texts import Texts

TRIED = 1 << 24
"""Most elements of the keys that attention is tried with."""
_CASES = ((5, 0), (3, 4), (1, 6))
"""Tokens, and those before."""


@dataclass(frozen=True)
class Heads:
    """What shapes attention has."""

    heads: int
    groups: int
    key_length: int
    value_length: int


@dataclass(frozen=True, eq=False)
class Found:
    """Attention of a layer: its products, with rows in the order for neighbours, and how heads are turned."""

    query: Linear
    key: Linear
    value: Linear
    heads: Heads
    rotary: Rotary | None


class Attention:
    """Reads attention of a graph's layers.

    Parameters
    ----------
    texts : Texts
    context : int
        Most tokens of a text.
    base : float or None
        What a configuration says that angles are made of.
    """

    def __init__(self, texts: Texts, context: int, base: float | None) -> None:
        self._texts = texts
        self._base = base
        self._random = np.random.default_rng(2)
        largest = max((heads * length for heads, length in texts.pasts.values()), default=1)
        self.context = min(context, max(TRIED // largest, 1))
        self._turns: tuple[Rotary | None, bool] | None = None

    def read(self, half: Half) -> Found:
        """The attention of a layer.

        Raises
        ------
        CompileError
            If it computes anything else than softmax of causal scores by the root of their length, and a sum of values.
        """
        nodes = self._texts.trials.needed(
            [half.last.source], [part.output for part in half.first], shapes=False
        )
        for node in nodes:
            _refuse(node)
        layer = self._layer(half)
        where = nodes[-1].label if nodes else half.last.node.label
        try:
            rotary, neighbours = self._rotation(layer)
        except CompileError as error:
            raise CompileError(f"attention up to {where}: {error}") from None
        for tokens, before in _CASES:
            if tokens + before <= self.context and not layer.agrees(tokens, before, rotary, neighbours):
                raise CompileError(
                    f"attention up to {where} is not softmax(q k / sqrt({layer.heads.key_length})) v of all tokens "
                    f"up to a token's own, as a try of {tokens} tokens behind {before} shows; weft expects that, "
                    "with no other mask, cap, scale or norm of queries and keys"
                )
        if not layer.sees_all(self.context):
            raise CompileError(
                f"attention up to {where} does not see all of {self.context:,} tokens: sliding windows are not "
                "supported"
            )
        return layer.found(rotary, neighbours)

    def _rotation(self, layer: _Layer) -> tuple[Rotary | None, bool]:
        """How heads are turned: in all layers alike."""
        last = self.context - 1
        if self._turns is None:
            shape = layer.heads.groups, layer.heads.key_length
            self._turns = measure(layer.kept, *shape, last, self._base, self._texts.graph.rounded)
        return self._turns

    def _layer(self, half: Half) -> _Layer:
        """The roles that products and pasts have."""
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
        ordered = sorted(half.pasts, key=lambda name: "value" in name or name.endswith(("v", "_v")))
        guesses = [_Layer(self._texts, half, tuple(order), pairs) for order in (ordered, ordered[::-1])]
        return next((guess for guess in guesses if guess.fits), guesses[0])


def _by_name(pasts: tuple[str, ...], presents: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """Pasts and presents of one operator: keys and keys, values and values."""

    def is_value(name: str) -> bool:
        return "value" in name or name.endswith("v")

    return dict(zip(sorted(pasts, key=is_value), sorted(presents, key=is_value), strict=True))


class _Layer:
    """One guess at a layer."""

    def __init__(self, texts: Texts, half: Half, pasts: tuple[str, ...], pairs: Mapping[str, str]) -> None:
        self._texts, self._half, self._pasts = texts, half, pasts
        self._presents = tuple(pairs[name] for name in pasts)
        self._random = np.random.default_rng(3)
        (groups, key), (others, value) = (texts.pasts[name] for name in pasts)
        if groups != others:
            raise CompileError(f"inputs {pasts[0]!r} and {pasts[1]!r} have {groups} and {others} heads")
        parts = half.first
        made_of = texts.structure.presents
        if len(parts) == 1:
            queries = parts[0].outputs - groups * (key + value)
            self._order: tuple[Product, ...] = parts
        elif len(parts) == 3:
            ends = [made_of[name] & {part.output for part in parts} for name in self._presents]
            by_name = {part.output: part for part in parts}
            keys = by_name[min(ends[0])] if len(ends[0]) == 1 else parts[1]
            values = by_name[min(ends[1])] if len(ends[1]) == 1 else parts[2]
            rest = [part for part in parts if part is not keys and part is not values]
            self._order = (rest[0], keys, values)
            queries = rest[0].outputs if len(rest) == 1 else 0
        else:
            raise CompileError(
                f"{parts[-1].node.label}: attention has {len(parts)} products in front; weft expects one each of "
                "queries, keys and values, or one of all three"
            )
        self.heads = Heads(queries // key, groups, key, value)
        widths = (self.heads.heads * key, groups * key, groups * value)
        self.widths = widths
        whole = [sum(widths)] if len(parts) == 1 else list(widths)
        if (
            [part.outputs for part in self._order] != whole
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
        """Whether values are kept as their product made them, which is the test of a guess."""
        value = self._normal(1, self.heads.groups, 2, self.heads.value_length)
        parts = [np.zeros((1, count, 2, length), np.float32) for count, length in self._shapes()[:2]]
        (kept,) = self._computed([self._presents[1]], (*parts, value), 2, 0)
        return close(kept, value)

    def _shapes(self) -> list[tuple[int, int]]:
        heads = self.heads
        return [
            (heads.heads, heads.key_length),
            (heads.groups, heads.key_length),
            (heads.groups, heads.value_length),
        ]

    def _normal(self, *shape: int) -> np.ndarray:
        return self._random.normal(0, 1, shape).astype(np.float32)

    def _computed(
        self,
        names: list[str],
        parts: tuple[np.ndarray, ...],
        tokens: int,
        before: int,
        pasts: tuple[np.ndarray, ...] = (),
    ) -> list[np.ndarray]:
        """Values for queries, keys and values (1, heads, tokens, length)."""
        flat = [part.swapaxes(1, 2).reshape(tokens, -1) for part in parts]
        if len(self._order) == 1:
            flat = [np.concatenate(flat, axis=1)]
        given = {part.output: value for part, value in zip(self._order, flat, strict=True)}
        given |= dict(zip(self._pasts, pasts, strict=False))
        return self._texts.values(names, given, tokens, before)

    def kept(self, position: int, key: np.ndarray) -> np.ndarray:
        """What is kept of a key (heads, length) at a position."""
        heads = self.heads
        parts = (
            np.zeros((1, heads.heads, 1, heads.key_length), np.float32),
            key[None, :, None],
            np.zeros((1, heads.groups, 1, heads.value_length), np.float32),
        )
        (value,) = self._computed([self._presents[0]], parts, 1, position)
        if value.shape != (1, heads.groups, position + 1, heads.key_length):
            raise CompileError(
                f"output {self._presents[0]!r} has shape {value.shape} behind {position:,} tokens; weft expects keys "
                f"as (1, {heads.groups}, {position + 1:,}, {heads.key_length})"
            )
        return value[0, :, -1]

    def agrees(self, tokens: int, before: int, rotary: Rotary | None, neighbours: bool) -> bool:
        """Whether attention, and what is kept, is what weft computes of the same."""
        parts = tuple(self._normal(1, count, tokens, length) for count, length in self._shapes())
        parts = (parts[0] * np.float32(3), *parts[1:])
        pasts = tuple(self._normal(1, count, before, length) for count, length in self._shapes()[1:])
        found = self._computed([self._half.last.source, *self._presents], parts, tokens, before, pasts)
        at = before + np.arange(tokens)
        query, key = (_turned(part[0], rotary, at, neighbours) for part in parts[:2])
        keys = np.concatenate([pasts[0][0], key], axis=1)
        values = np.concatenate([pasts[1][0], parts[2][0]], axis=1)
        wanted = _attended(query.astype(np.float64), keys, values, at)
        off = max(CLOSE, 4 * self._texts.graph.rounded)
        return close(found[0], wanted, off) and close(found[1], keys, off) and close(found[2], values)

    def sees_all(self, context: int) -> bool:
        """Whether the last token of a text sees all others."""
        shapes = self._shapes()
        parts = tuple(np.zeros((1, count, 1, length), np.float32) for count, length in shapes)
        keys = np.zeros((1, shapes[1][0], context - 1, shapes[1][1]), np.float32)
        values = np.zeros((1, shapes[2][0], context - 1, shapes[2][1]), np.float32)
        values[:, :, 0] = context
        (found,) = self._computed([self._half.last.source], parts, 1, context - 1, (keys, values))
        return close(found, np.ones(found.size), 1e-2)

    def found(self, rotary: Rotary | None, neighbours: bool) -> Found:
        linears = [part.linear for part in self._order]
        if len(linears) == 1:
            ends = np.cumsum((0, *self.widths))
            linears = [_part(linears[0], int(a), int(b)) for a, b in itertools.pairwise(ends)]
        query, key, value = linears
        if rotary is not None and not neighbours:
            order = _order(self.heads.key_length, rotary.dimensions)
            query, key = (_reordered(linear, order) for linear in (query, key))
        return Found(query, key, value, self.heads, rotary)


def _refuse(node: Node) -> None:
    """Raise for operators with something that weft does not support, by its own words."""
    if node.operator == "GroupQueryAttention":
        check_grouped(node)
    if node.operator == "Attention" and node.attributes.get("softcap", 0.0):
        raise CompileError(f"{node.label} has capped scores (softcap), which weft does not support")
    if node.operator == "Tanh":
        raise CompileError(f"{node.label} caps scores, which weft does not support")
    if "Normalization" in node.operator:
        raise CompileError(f"{node.label} is a norm of queries or keys, which weft does not support")


def _turned(heads: np.ndarray, rotary: Rotary | None, at: np.ndarray, neighbours: bool) -> np.ndarray:
    """Heads (heads, tokens, length) turned, in the order in which they are."""
    if rotary is None:
        return heads
    angles = rotary.angles(at)
    if neighbours:
        return rotated(heads, angles)
    order = _order(heads.shape[2], rotary.dimensions)
    made = heads.copy()
    made[..., order] = rotated(heads[..., order], angles)
    return made


def _attended(query: np.ndarray, keys: np.ndarray, values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """float64 (tokens, heads * length)."""
    heads, tokens, length = query.shape
    shared = heads // len(keys)
    scores = query @ np.repeat(keys, shared, axis=0).swapaxes(1, 2) * length**-0.5
    scores[:, np.arange(keys.shape[1]) > at[:, None]] = -np.inf
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return (shares @ np.repeat(values, shared, axis=0)).swapaxes(0, 1).reshape(tokens, -1)


def _order(length: int, dimensions: int) -> np.ndarray:
    """For neighbours, where elements of a head come from that are turned with those half of `dimensions` apart."""
    turned = np.arange(dimensions).reshape(2, -1).T.reshape(-1)
    return np.concatenate([turned, np.arange(dimensions, length)])


def _reordered(linear: Linear, order: np.ndarray) -> Linear:
    """The rows of all heads in another order."""
    weight, length = linear.weight, len(order)
    whole = (np.arange(0, weight.shape[0], length)[:, None] + order).reshape(-1)
    moved: Matrix
    if isinstance(weight, BlockTensor):
        minimums = None if weight.minimums is None else weight.minimums[whole]
        moved = BlockTensor(weight.values[whole], weight.scales[whole], minimums, weight.block)
    else:
        moved = weight[whole]
    return Linear(moved, None if linear.bias is None else linear.bias[whole])


def _part(linear: Linear, start: int, stop: int) -> Linear:
    return Linear(rows(linear.weight, start, stop), None if linear.bias is None else linear.bias[start:stop])
