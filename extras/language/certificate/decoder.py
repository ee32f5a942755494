"""Definition of a decoder's step on symbolic values, for any number of tokens, with which its program is compared.

A token is a row. Only attention depends on other tokens. Everything else is the same function for every token and
position, so that rows of the embedding tables are values, too. Attention's results therefore get fresh values of which
nothing is known. Everything that follows from them is computed once, and attention itself is compared separately, for
queries and each cache.

Attention rounds like the device's softmax unit (`weft.extras.proof.programs.attention`), in groups of N consecutive
keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.extras.language.certificate.language import Language, LanguageError, Layer, Product
from weft.extras.proof.programs.attention import add_group, divide_by_sums, group_probabilities, initial_state
from weft.extras.proof.programs.field import digest
from weft.extras.proof.programs.form import SATURATE
from weft.extras.proof.programs.formula import Tensor, evaluate
from weft.extras.proof.programs.graph import Array
from weft.extras.proof.programs.sums import Sums, concatenate, matmul
from weft.extras.proof.programs.symbols import Symbols
from weft.hdl.isa.config import Config

_PRODUCTS = ("query", "key", "value", "output", "up", "down")
"""Products of every layer."""
_UPPER = 2
"""Number of the residual stream's digits above the lowest one."""


@dataclass(frozen=True)
class Stream:
    """Rows of the residual stream: upper digits (rows, width, 2) and lowest digits (rows, width)."""

    upper: np.ndarray
    lowest: np.ndarray


@dataclass(frozen=True)
class Block:
    """Values of a layer, each of shape (rows, heads, length); `results` are fresh values for attention's results."""

    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    results: np.ndarray


@dataclass(frozen=True)
class _AttentionState:
    """Attention's state after some keys: maxima and sums (heads,), and sums of products (heads, length)."""

    number: int
    state: tuple[Sums, Sums]
    total: Sums


class Decoder:
    """Values that a decoder computes in one step.

    Parameters
    ----------
    symbols : Symbols
    config : Config
    model : Language
    tokens, positions : Sums
        Offsets (rows,) of the rows of the embedding table, and of the table of positions.

    Attributes
    ----------
    blocks : list of Block
        One for each layer.
    logits : int64 (rows, tokens, 2)
        Values of the two digits of each logit.

    Raises
    ------
    LanguageError
        If the description is incomplete.
    """

    def __init__(
        self, symbols: Symbols, config: Config, model: Language, tokens: Sums, positions: Sums
    ) -> None:
        self.symbols, self.config, self.model = symbols, config, model
        self.rows = len(tokens.low)
        self._states: dict[tuple[int, ...] | tuple[int, bytes], _AttentionState] = {}
        embedded = self._look_up(model.embedding, tokens)
        self._places = self._look_up(model.positions, positions)
        stream = self._stream("begin", [embedded] if model.rotary else [embedded, self._places])
        self.blocks: list[Block] = []
        for index, layer in enumerate(model.layers):
            for name in _PRODUCTS:
                if name not in layer.products:
                    raise LanguageError(f"layer {index} of the decoder has no product {name!r}")
            stream = self._block(layer, stream)
        self.logits = self._logits(stream)

    def _look_up(self, table: Array, offsets: Sums) -> np.ndarray:
        """Return rows of a table of two-digit numbers: values (rows, columns, 2)."""
        content = digits(table.numpy, 2).astype(np.int8)
        looked_up = self.symbols.table_row(offsets, content.reshape(len(content), -1), content.shape[1] * 2)
        rows, columns = looked_up.low.shape
        row_values = self.symbols.values.apply_forms(
            looked_up.reshape(rows, columns, 1), [SATURATE] * columns
        )
        return row_values.reshape(rows, -1, 2)

    def _formula(self, name: str, tensors: list[Tensor], count: int) -> list[np.ndarray]:
        """Return the results of a formula, values (rows, columns); it must have at least `count`."""
        if name not in self.model.formulas:
            raise LanguageError(f"the decoder has no formula {name!r}")
        formula = self.model.formulas[name]
        if len(formula.results) < count:
            raise LanguageError(
                f"the formula {name!r} has {len(formula.results)} results; there must be {count}"
            )
        try:
            return evaluate(self.symbols, formula, tensors)
        except (ValueError, IndexError) as error:
            raise LanguageError(f"the formula {name!r} of the decoder is invalid: {error}") from None

    def _stream(self, name: str, tensors: list[Tensor]) -> Stream:
        upper, middle, lowest = self._formula(name, tensors, _UPPER + 1)[: _UPPER + 1]
        return Stream(np.stack([upper, middle], axis=-1), lowest)

    def _block(self, layer: Layer, stream: Stream) -> Stream:
        inputs, shift = self._normalise(stream, layer.gains[:1])
        heads = {name: self._heads(layer, name, inputs, shift) for name in ("query", "key", "value")}
        self.blocks.append(Block(heads["query"], heads["key"], heads["value"], np.zeros_like(heads["query"])))
        results = self.blocks[-1].results
        # Values of their own for attention's results: all that follows is computed once for all positions.
        results[:] = self.result_names(len(self.blocks) - 1)
        even = np.full((self.rows, 1, 1), self.model.even)
        stream = self._add(layer, "output", results.reshape(self.rows, -1), even, stream)
        inner = self._inner(layer, *self._normalise(stream, layer.gains[1:]))
        narrow, bits = self._formula("quantise", [inner], 2)
        return self._add(layer, "down", narrow, bits[:, :1, None], stream)

    def _normalise(self, stream: Stream, gains: tuple[Array, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return the normalised int8 of each row (rows, width), and its shift (rows, 1, 1)."""
        tensors: list[Tensor] = [stream.upper, stream.lowest[..., None], *map(_constants, gains)]
        narrow, shift = self._formula("normalise", tensors, 2)
        return narrow, shift[:, :1, None]

    def _sums(self, name: str, item: Product, inputs: np.ndarray) -> Sums:
        """Return a product with weights (outputs, inputs): (rows, outputs)."""
        weights = item.weights.numpy
        if weights.shape[1] != inputs.shape[1]:
            raise LanguageError(
                f"product {name!r} has weights for {weights.shape[1]} inputs, and there are {inputs.shape[1]}"
            )
        return self.symbols.values.dot(inputs, 0, weights.astype(np.int64).T)

    def _parameters(self, item: Product, shift: np.ndarray, rows: int = 1) -> list[Tensor]:
        """Return mantissas, shift and biases after a product; its outputs are `rows` rows of a formula for each row."""
        tensors: list[Tensor] = []
        if item.mantissas is not None:
            mantissas = _constants(item.mantissas).reshape(rows, -1, 2)
            tensors.append(np.tile(mantissas, (self.rows, 1, 1)) if rows > 1 else mantissas)
        tensors.append(np.repeat(shift, rows, axis=0))
        if item.biases is not None:
            biases = _constants(item.biases).reshape(rows, -1, 2)
            tensors.append(np.tile(biases, (self.rows, 1, 1)) if rows > 1 else biases)
        return tensors

    def _heads(self, layer: Layer, name: str, inputs: np.ndarray, shift: np.ndarray) -> np.ndarray:
        """Return queries, keys or values: values (rows, heads, length)."""
        item, model = layer.products[name], self.model
        heads = model.heads if name == "query" else model.key_value_heads
        sums = self._sums(name, item, inputs)
        length = sums.low.shape[1] // heads
        tensors: list[Tensor] = [sums.reshape(self.rows * heads, length, 1)]
        rotates = model.rotary and name != "value"
        angles: list[Tensor] = []
        if rotates:
            angles = [np.repeat(part, heads, axis=0) for part in np.split(self._places, [length], axis=1)]
        if rotates and item.mantissas is None:
            results = self._formula(name, [*tensors, *angles, np.repeat(shift, heads, axis=0)], 1)
        else:
            results = self._formula(name, tensors + self._parameters(item, shift, heads), 1 + rotates)
            if rotates:
                results = self._formula("turn", [np.stack(results[:2], axis=-1), *angles], 1)
        return results[0].reshape(self.rows, heads, length)

    def _add(self, layer: Layer, name: str, inputs: np.ndarray, shift: np.ndarray, stream: Stream) -> Stream:
        """Add a product, and its biases, to the residual stream."""
        item = layer.products[name]
        sums = self._sums(name, item, inputs)
        if item.mantissas is None:
            raise LanguageError(f"product {name!r} has no mantissas")
        lowest = np.stack([stream.lowest, np.broadcast_to(shift[..., 0], stream.lowest.shape)], axis=-1)
        tensors: list[Tensor] = [
            sums.reshape(*sums.low.shape, 1), _constants(item.mantissas), stream.upper, lowest
        ]  # fmt: skip
        added_stream = self._stream(name, tensors)
        if item.biases is None:
            return added_stream
        biases = digits(item.biases.numpy, 3)[None] & 0xFF
        tensors = [added_stream.upper, added_stream.lowest[..., None], biases[..., :2], biases[..., 2:]]
        return self._stream("offset", tensors)

    def _inner(self, layer: Layer, inputs: np.ndarray, shift: np.ndarray) -> np.ndarray:
        """Return the input of a feed-forward network's last product: two digits, values (rows, columns, 2)."""
        names = ("gate", "up") if "gate" in layer.products else ("up",)
        items = [layer.products[name] for name in names]
        sums = [self._sums(name, item, inputs) for name, item in zip(names, items, strict=True)]
        # With biases, gate and factor are scaled by formulas of their own.
        if "gate" in self.model.formulas:
            digit_pairs = [
                self._formula(name, [part.reshape(*part.low.shape, 1), *self._parameters(item, shift)], 2)
                for name, item, part in zip(("gate", "up"), items, sums, strict=True)
            ]
            return np.stack(
                self._formula("inner", [np.stack(each, axis=-1) for each in digit_pairs], 2), axis=-1
            )
        all_sums = concatenate([part.reshape(*part.low.shape, 1) for part in sums], 2)
        first, *others = (self._parameters(item, shift) for item in items)
        other_mantissas = [tensors[0] for tensors in others]
        return np.stack(
            self._formula("inner", [all_sums, first[0], *other_mantissas, *first[1:]], 2), axis=-1
        )

    def _logits(self, stream: Stream) -> np.ndarray:
        inputs, shift = self._normalise(stream, self.model.gains)
        sums = self._sums("head", self.model.head, inputs)
        tensors: list[Tensor] = [sums.reshape(*sums.low.shape, 1), *self._parameters(self.model.head, shift)]
        return np.stack(self._formula("head", tensors, 2), axis=-1)

    def result_names(self, layer: int) -> np.ndarray:
        """Return fresh values for attention's results in a layer: values (rows, heads, length)."""
        shape = self.blocks[layer].queries.shape
        return self.symbols.values.new_inputs(math.prod(shape)).reshape(shape)

    def attend(self, layer: int, row: int, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return attention's results for a row on the keys and values (keys, heads, length) that it sees.

        The result has values (heads, length). States after full prefixes are cached.
        """
        n = self.config.n
        state = self._initial_state(layer, row)
        for first in range(0, len(keys), n):
            keys_slice = slice(first, first + n)
            # A prefix of keys has one state, however many tokens see it.
            key = (state.number, digest(keys[keys_slice], values[keys_slice]))
            if key not in self._states:
                self._states[key] = self._extend(layer, row, state, keys[keys_slice], values[keys_slice])
            state = self._states[key]
        heads, length = state.total.low.shape
        elements = state.total.reshape(heads, 1, length)
        return divide_by_sums(self.symbols, self.model.step_ratio, SATURATE, elements, state.state[1])

    def _initial_state(self, layer: int, row: int) -> _AttentionState:
        key = (layer, row)
        if key not in self._states:
            heads, length = self.blocks[layer].queries.shape[1:]
            total = self.symbols.integers(0, (heads, length))
            self._states[key] = _AttentionState(len(self._states), initial_state(self.symbols, heads), total)
        return self._states[key]

    def _extend(
        self, layer: int, row: int, previous: _AttentionState, keys: np.ndarray, values: np.ndarray
    ) -> _AttentionState:
        """Return the state after one more group of keys."""
        terms, octaves = self.symbols.values.integers_of, self.model.layers[layer].octaves
        queries = self.blocks[layer].queries[row]
        queries_per_head = len(queries) // keys.shape[1]
        valid = np.ones((queries_per_head, len(keys)), bool)
        states, totals = [], []
        for head in range(keys.shape[1]):
            own = slice(head * queries_per_head, (head + 1) * queries_per_head)
            scores = matmul(terms(queries[own]), terms(keys[:, head]).transpose((1, 0)))
            previous_state = (previous.state[0][own], previous.state[1][own])
            p, _, state, alignment = group_probabilities(
                self.symbols, self.config, octaves, scores, 0, valid, previous_state
            )
            states.append(state)
            totals.append(add_group(self.symbols, previous.total[own], p, alignment, terms(values[:, head])))
        maxima, sums = (concatenate(list(part), 0) for part in zip(*states, strict=True))
        return _AttentionState(len(self._states), (maxima, sums), concatenate(totals, 0))


def digits(numbers: np.ndarray, count: int) -> np.ndarray:
    """Split integers into `count` digits from -128 to 127: int64 (..., count). Raise `LanguageError` if they are
    larger.
    """
    digit_list, remainder = [], numbers.astype(np.int64)
    for _ in range(count):
        digit = ((remainder + 128) & 0xFF) - 128
        digit_list.append(digit)
        remainder = (remainder - digit) >> 8
    if remainder.any():
        raise LanguageError(f"{int(np.abs(numbers).max())} has more than {count} digits")
    return np.stack(digit_list[::-1], axis=-1)


def _constants(numbers: Array) -> np.ndarray:
    """Return integers (columns,) as values (1, columns, 2) of their digits."""
    return digits(numbers.numpy, 2)[None] & 0xFF
