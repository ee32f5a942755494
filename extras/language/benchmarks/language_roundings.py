"""A language model in float32 with a selection of the decoder's roundings.

It follows `weft.extras.language.compiler.integers` and `weft.extras.language.compiler.kernels`, but in float32 and for
whole texts at once. This way each rounding's cost can be measured by itself, also for roundings that the device does
not use. With all roundings of the device, its results differ from the device's about as much as the device's differ
from float32.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.compiler.kernel.expressions import DIGITS
from weft.extras.language.compiler.integers import BYTE_MARGIN, RESIDUAL_MARGIN, Integers
from weft.extras.language.compiler.kernels import (
    BYTE_BITS,
    GAIN_PLACES,
    GATE_PLACES,
    MAX_ROW_BITS,
    RESIDUAL_BITS,
    SHARE_PLACES,
    TABLE_PLACES,
    normal_unit,
)
from weft.extras.language.compiler.model import Block, LanguageModel, Linear, Norm, dense
from weft.extras.language.compiler.reference import Cache, Reference, rotate_pairs
from weft.extras.language.compiler.weights import Weights
from weft.hdl.isa.config import Config
from weft.sim.golden import vector

STEPS = ("", "device", "block", "head", "power", "free")
"""Steps of int8 queries, keys, values or results of attention: none; those of the device, which are fixed for a block;
fixed by the largest magnitude on a text, of a block or of each head; a power of two, or any number, for each head of
each token. With the last two, the results of attention have one step for all heads of a token."""


@dataclass(frozen=True)
class Roundings:
    """Selection of roundings.

    Attributes
    ----------
    weights : "", "device" or "row"
        int8 with a scale for each row; "device" has one scale for each matrix of queries or of keys, and keeps matrices
        in blocks as 4 bits times factors of 8 bits.
    normal, gated : bool
        Round the inputs of products after norms and after gates to int8 by a power of two for each token.
    residual : int
        Bits of the residual stream, 24 or 16; 0 for float32.
    inner : bool
        Round the gate's results to 16 bits, and its second factor to 17.
    table : bool
        Interpolate the sigmoid in a table.
    query, key, value, mixed : str
        One of `STEPS`; `mixed` is for attention's results.
    room : float
        Largest value with fixed steps, as a multiple of the largest one on a text.
    probabilities : int
        Bits of softmax's probabilities; 0 for float32.
    logits : bool
        Round logits to 16 bits.
    """

    weights: str = ""
    normal: bool = False
    gated: bool = False
    residual: int = 0
    inner: bool = False
    table: bool = False
    query: str = ""
    key: str = ""
    value: str = ""
    mixed: str = ""
    room: float = BYTE_MARGIN
    probabilities: int = 0
    logits: bool = False


DEVICE = Roundings(
    weights="device", normal=True, gated=True, residual=24, inner=True, table=True, query="device", key="device",
    value="device", mixed="device", probabilities=8, logits=True,
)  # fmt: skip
"""All roundings of the device."""


class Rounded(Reference):
    """`Reference` with `Roundings`.

    Parameters
    ----------
    numbers : Integers
        With the model, and fixed steps.
    config : Config
        Of the device, for softmax.
    which : Roundings
    heads : dict of str to numpy.ndarray of float64, shape (blocks, heads)
        The largest magnitudes of a text, from `magnitudes`: for steps "block" and "head".
    """

    def __init__(
        self, numbers: Integers, config: Config, which: Roundings, heads: dict[str, np.ndarray] | None = None
    ) -> None:
        super().__init__(_round_weights(numbers, which.weights))
        self.numbers, self.which, self._heads_seen = numbers, which, heads or {}
        self._config = config.replace(probability_bits=which.probabilities or config.probability_bits)
        self._normal = normal_step(numbers)
        self.seen: dict[str, np.ndarray] = {}

    def logits(self, tokens: Sequence[int], cache: Cache | None = None, *, last: bool = False) -> np.ndarray:
        result = super().logits(tokens, cache, last=last)
        return _round_fixed(result, self.numbers.logit_unit, DIGITS) if self.which.logits else result

    def _run_blocks(self, tokens: np.ndarray, cache: Cache) -> np.ndarray:
        positions = cache.length + np.arange(len(tokens))
        x = self._residual(self._weights(self.model.token_embedding)[tokens])
        for index, block in enumerate(self.model.blocks):
            normal = self._norm(block.attention_norm, x)
            x = self._residual(x + self._attention(block, normal, positions, cache, index))
            x = self._residual(x + self._feed_forward(block, self._norm(block.feed_forward_norm, x)))
        return x

    def _residual(self, x: np.ndarray) -> np.ndarray:
        bits, unit = self.which.residual, self.numbers.unit
        if not bits:
            return x
        if bits == RESIDUAL_BITS + 1:
            return _round_fixed(x, unit, 1 << RESIDUAL_BITS)
        # The headroom of other 16-bit values.
        return _round_fixed(x, math.ldexp(unit, RESIDUAL_BITS + 1 - bits) / RESIDUAL_MARGIN, 1 << bits - 1)

    def _norm(self, norm: Norm, x: np.ndarray) -> np.ndarray:
        result = super()._norm(norm, x)
        return by_token(result, self._normal) if self.which.normal else result

    def _feed_forward(self, block: Block, x: np.ndarray) -> np.ndarray:
        inner = self._inner(block, x)
        if self.which.gated:
            inner = by_token(inner, self.numbers.inner_unit)
        return self._linear(block.down, inner)

    def _inner(self, block: Block, x: np.ndarray) -> np.ndarray:
        assert block.gate is not None
        gate, up = self._linear(block.gate, x), self._linear(block.up, x)
        unit = self.numbers.inner_unit
        if self.which.inner:
            up = _round_fixed(up, math.ldexp(unit, -self.numbers.inner_places), (1 << 17) - 1)
        if self.which.table:
            gate = _round_fixed(gate, 2.0**-GATE_PLACES, 1 << 30)
            share = np.interp(
                gate, _ENTRIES, np.rint(2**SHARE_PLACES / (1 + np.exp(-_ENTRIES))) / 2**SHARE_PLACES
            )
        else:
            share = 1 / (1 + np.exp(-gate))
        inner = (gate * share * up).astype(np.float32)
        return _round_fixed(inner, unit, DIGITS) if self.which.inner else inner

    def _attention(
        self, block: Block, x: np.ndarray, positions: np.ndarray, cache: Cache, index: int
    ) -> np.ndarray:
        sizes, count = self.model.sizes, len(x)
        groups = sizes.key_value_heads
        assert self.model.rotary is not None
        angles = self.model.rotary.angles(positions)
        queries = self._quantise(
            "query", index, rotate_pairs(self._heads(block.query, x, sizes.heads), angles)
        )
        keys = self._quantise("key", index, rotate_pairs(self._heads(block.key, x, groups), angles))
        values = self._quantise("value", index, self._heads(block.value, x, groups))
        cache.keys[index] = keys = np.concatenate([cache.keys[index], keys], axis=1)
        cache.values[index] = values = np.concatenate([cache.values[index], values], axis=1)
        scores = queries.reshape(groups, -1, sizes.key_length) @ keys.swapaxes(1, 2)
        scores = (scores * np.float32(sizes.key_length**-0.5)).reshape(sizes.heads, count, -1)
        shares = self._shares(scores, np.arange(scores.shape[2]) <= positions[:, None])
        attended = shares.reshape(groups, -1, scores.shape[2]) @ values
        attended = attended.reshape(sizes.heads, count, -1).swapaxes(0, 1).reshape(1, count, -1)
        return self._linear(block.attention_output, self._quantise("mixed", index, attended)[0])

    def _shares(self, scores: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """Return probabilities of keys: float32 (heads, tokens, keys)."""
        if not self.which.probabilities:
            scores = np.where(valid, scores, -np.inf)
            shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
            return shares / shares.sum(axis=-1, keepdims=True)
        n, keys = self._config.n, scores.shape[2]
        more = -keys % n
        limit = (1 << 15) - 1
        y = np.clip(np.rint(scores * (vector.OCTAVE * math.log2(math.e))), -limit - 1, limit).astype(np.int64)
        y = np.pad(y, ((0, 0), (0, 0), (0, more))).reshape(*y.shape[:2], -1, n)
        valid_groups = np.broadcast_to(
            np.pad(valid, ((0, 0), (0, more))).reshape(1, len(valid), -1, n), y.shape
        )
        exponents = vector.group_exponents(y, valid_groups)
        table = np.frombuffer(self._config.exp2_table, np.uint8)
        result = vector.probabilities(y, valid_groups, exponents, table).astype(np.float32)
        result *= np.exp2(exponents - exponents.max(axis=-1, keepdims=True)).astype(np.float32)[..., None]
        shares = result.reshape(*scores.shape[:2], -1)[..., :keys]
        return shares / shares.sum(axis=-1, keepdims=True)

    def _quantise(self, kind: str, index: int, x: np.ndarray) -> np.ndarray:
        """Round a block's queries, keys or values (heads, tokens, length) to int8 by `STEPS`."""
        how = getattr(self.which, kind)
        most = np.abs(x).max(axis=(1, 2))
        seen = self.seen.setdefault(kind, np.zeros((len(self.model.blocks), len(x))))
        seen[index] = np.maximum(seen[index], most)
        if not how:
            return x
        if how in ("power", "free"):
            largest = np.maximum(np.abs(x).max(axis=2, keepdims=True), 1e-20)
            steps = np.exp2(np.floor(np.log2(largest)) + 1 - BYTE_BITS) if how == "power" else largest / 127
        elif how == "device":
            steps = device_step(self.numbers, kind, index) * self.which.room / BYTE_MARGIN
        else:
            largest = self._heads_seen[kind][index]
            largest = largest.max(keepdims=True) if how == "block" else largest
            steps = self.which.room * largest[:, None, None] / 127
        return (np.clip(np.rint(x / steps), -128, 127) * steps).astype(np.float32)


_ENTRIES = np.arange(-128, 128) / 2 ** (GATE_PLACES - TABLE_PLACES)
"""Entry points of the sigmoid's table."""


def normal_step(numbers: Integers) -> float:
    """Return the step of norms' results before int8."""
    model, result = numbers.model, normal_unit(numbers.model.sizes.width)
    if not numbers.gains:
        return result
    norms = [norm for block in model.blocks for norm in (block.attention_norm, block.feed_forward_norm)]
    largest = max(float(np.abs(norm.weight).max()) for norm in (*norms, model.output_norm))
    return result * math.ldexp(largest / DIGITS, GAIN_PLACES)


def device_step(numbers: Integers, kind: str, index: int) -> float:
    """Return the device's step of queries, keys, values or attention results of a block."""
    layer, normal = numbers.layers[index], normal_step(numbers)
    if kind in ("query", "key"):
        mantissa, shift = numbers.turn[kind == "key"]
        weights = layer.matrices["query"] if kind == "query" else layer.matrices["key"]
        return float(weights.scales[0]) * normal / math.ldexp(mantissa, -shift - (MAX_ROW_BITS - BYTE_BITS))
    step = float(np.median(layer.matrices["value"].scales * normal / numbers.scaled["value"][index].factors))
    return step / numbers.step_ratio if kind == "mixed" else step


def by_token(x: np.ndarray, unit: float) -> np.ndarray:
    """Round rows to int8 with a power of two per token, in steps of `unit`."""
    largest = np.maximum(np.abs(x).max(axis=-1, keepdims=True) / unit, 1.0)
    steps = unit * np.exp2(np.floor(np.log2(largest)) + 1 - BYTE_BITS)
    return (np.clip(np.rint(x / steps), -128, 127) * steps).astype(np.float32)


def _round_fixed(x: np.ndarray, unit: float, most: int) -> np.ndarray:
    """Round values to steps of `unit`, saturating at `most` steps."""
    return (np.clip(np.rint(x.astype(np.float64) / unit), -most, most) * unit).astype(np.float32)


def _round_weights(numbers: Integers, how: str) -> LanguageModel:
    """Return the model with rounded weights and norm gains folded into the next products, as on the device."""
    model, keeps_gains = numbers.model, bool(numbers.gains)
    ones = np.ones(model.sizes.width, np.float32)

    def linear(exact: Linear, norm: Norm | None, device: Weights) -> Linear:
        if how == "device":
            return Linear(_dense(device))
        folded = dense(exact.weight) * (1.0 if norm is None or keeps_gains else norm.weight)
        if how == "row":
            quantised = Weights.quantise(folded)
            folded = quantised.values * quantised.scales[:, None]
        return Linear(folded.astype(np.float32))

    blocks = []
    for block, layer in zip(model.blocks, numbers.layers, strict=True):
        first, second = block.attention_norm, block.feed_forward_norm
        assert block.gate is not None
        blocks.append(
            Block(
                first if keeps_gains else Norm(ones), linear(block.query, first, layer.matrices["query"]),
                linear(block.key, first, layer.matrices["key"]), linear(block.value, first, layer.matrices["value"]),
                linear(block.attention_output, None, layer.matrices["output"]), second if keeps_gains else Norm(ones),
                linear(block.gate, second, layer.matrices["gate"]), linear(block.up, second, layer.matrices["up"]),
                linear(block.down, None, layer.matrices["down"]),
            )
        )  # fmt: skip
    return dataclasses.replace(
        model, blocks=tuple(blocks), output_norm=model.output_norm if keeps_gains else Norm(ones),
        output=linear(model.output, model.output_norm, numbers.head),
    )  # fmt: skip


def magnitudes(numbers: Integers, config: Config, texts: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """Return the largest queries, keys, values and attention results on texts: float64 (blocks, heads) each."""
    plain = Rounded(numbers, config, Roundings())
    for text in texts:
        plain.logits(text)
    return plain.seen


def device_product(numbers: Integers, index: int, name: str, x: np.ndarray) -> np.ndarray:
    """Compute a block's product with the device's integers from float32 rows (rows, columns).

    `name` is a field of `weft.extras.language.compiler.model.Block`. Nothing behind the product is rounded.
    """
    layer, block = numbers.layers[index], numbers.model.blocks[index]
    if name == "attention_output":
        step = device_step(numbers, "mixed", index)
        return (_round_fixed(x, step, 127) @ _dense(layer.matrices["output"]).T).astype(np.float32)
    if name == "down":
        unit = numbers.inner_unit
        return by_token(_round_fixed(x, unit, DIGITS), unit) @ _dense(layer.matrices["down"]).T
    if not numbers.gains:
        x = (
            x
            / (block.attention_norm if name in ("query", "key", "value") else block.feed_forward_norm).weight
        )
    return by_token(x, normal_step(numbers)) @ _dense(layer.matrices[name]).T


def _dense(weights: Weights) -> np.ndarray:
    return (weights.values * weights.scales[:, None]).astype(np.float32)
