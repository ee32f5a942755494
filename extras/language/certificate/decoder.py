"""What a decoder computes, on values, for any number of tokens: the definition that its program is compared with.

A token is a row. What depends on others is attention alone: the rest is the same function for every token and every
position, whose rows of the tables are values, too. So attention's results are given names, values of which nothing is
known; what comes of them is computed once, and what attention makes of queries and of each cache is compared by itself.

Attention rounds as the device's softmax unit (`weft.extras.proof.programs.attention`): N keys that follow each other
are a group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.extras.language.certificate.language import Language, LanguageError, Layer, Product
from weft.extras.proof.programs.attention import added, group, quotients, started
from weft.extras.proof.programs.field import digest
from weft.extras.proof.programs.form import STORED
from weft.extras.proof.programs.formula import Tensor, evaluate
from weft.extras.proof.programs.graph import Array
from weft.extras.proof.programs.sums import Sums, concatenated, product
from weft.extras.proof.programs.symbols import Symbols
from weft.hdl.isa.config import Config

_PRODUCTS = ("query", "key", "value", "output", "up", "down")
"""Of every layer."""
_UPPER = 2
"""Digits of the residual stream above the lowest one."""


@dataclass(frozen=True)
class Stream:
    """Rows of the residual stream: values (rows, width, 2), the upper digits, and (rows, width), the lowest one."""

    upper: np.ndarray
    lowest: np.ndarray


@dataclass(frozen=True)
class Block:
    """Of a layer queries (rows, heads, length), keys and values (rows, heads, length) of tokens, and what attention's
    results are called (rows, heads, length)."""

    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    results: np.ndarray


@dataclass(frozen=True)
class _Seen:
    """What heads have come to behind some keys: maxima and sums (heads,), and sums of products (heads, length)."""

    number: int
    state: tuple[Sums, Sums]
    total: Sums


class Decoder:
    """See the module.

    Parameters
    ----------
    symbols : Symbols
    config : Config
    model : Language
    tokens, positions : Sums
        Offsets (rows,) of rows of embeddings, and of what positions have.

    Attributes
    ----------
    blocks : list of Block
        Of each layer.
    logits : int64 (rows, tokens, 2)
        Values: two digits of each.

    Raises
    ------
    LanguageError
        If the description lacks something.
    """

    def __init__(
        self, symbols: Symbols, config: Config, model: Language, tokens: Sums, positions: Sums
    ) -> None:
        self.symbols, self.config, self.model = symbols, config, model
        self.rows = len(tokens.low)
        self._seen: dict[tuple[int, ...] | tuple[int, bytes], _Seen] = {}
        embedded = self._looked_up(model.embedding, tokens)
        self._places = self._looked_up(model.positions, positions)
        stream = self._stream("begin", [embedded] if model.rotary else [embedded, self._places])
        self.blocks: list[Block] = []
        for index, layer in enumerate(model.layers):
            for name in _PRODUCTS:
                if name not in layer.products:
                    raise LanguageError(f"layer {index} of the decoder has no product {name!r}")
            stream = self._block(layer, stream)
        self.logits = self._logits(stream)

    def _looked_up(self, table: Array, offsets: Sums) -> np.ndarray:
        """The rows of a table of numbers of two digits: values (rows, columns, 2)."""
        content = digits(table.numpy, 2).astype(np.int8)
        found = self.symbols.row_of(offsets, content.reshape(len(content), -1), content.shape[1] * 2)
        rows, columns = found.low.shape
        made = self.symbols.values.results(found.reshape(rows, columns, 1), [STORED] * columns)
        return made.reshape(rows, -1, 2)

    def _formula(self, name: str, tensors: list[Tensor], count: int) -> list[np.ndarray]:
        """The results of a formula, values (rows, columns), of which there are so many or more."""
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
            raise LanguageError(f"the formula {name!r} of the decoder means nothing: {error}") from None

    def _stream(self, name: str, tensors: list[Tensor]) -> Stream:
        upper, middle, lowest = self._formula(name, tensors, _UPPER + 1)[: _UPPER + 1]
        return Stream(np.stack([upper, middle], axis=-1), lowest)

    def _block(self, layer: Layer, stream: Stream) -> Stream:
        given, shift = self._normalised(stream, layer.gains[:1])
        made = {name: self._heads(layer, name, given, shift) for name in ("query", "key", "value")}
        self.blocks.append(Block(made["query"], made["key"], made["value"], np.zeros_like(made["query"])))
        names = self.blocks[-1].results
        names[:] = self.results(len(self.blocks) - 1)
        even = np.full((self.rows, 1, 1), self.model.even)
        stream = self._add(layer, "output", names.reshape(self.rows, -1), even, stream)
        inner = self._inner(layer, *self._normalised(stream, layer.gains[1:]))
        narrow, bits = self._formula("quantise", [inner], 2)
        return self._add(layer, "down", narrow, bits[:, :1, None], stream)

    def _normalised(self, stream: Stream, gains: tuple[Array, ...]) -> tuple[np.ndarray, np.ndarray]:
        """int8 of each row (rows, width), and its shift (rows, 1, 1)."""
        tensors: list[Tensor] = [stream.upper, stream.lowest[..., None], *map(_constants, gains)]
        narrow, shift = self._formula("normalise", tensors, 2)
        return narrow, shift[:, :1, None]

    def _sums(self, name: str, item: Product, given: np.ndarray) -> Sums:
        """A product with weights (outputs, inputs): (rows, outputs)."""
        weights = item.weights.numpy
        if weights.shape[1] != given.shape[1]:
            raise LanguageError(
                f"product {name!r} has weights for {weights.shape[1]} inputs, and there are {given.shape[1]}"
            )
        return self.symbols.values.dot(given, 0, weights.astype(np.int64).T)

    def _beside(self, item: Product, shift: np.ndarray, rows: int = 1) -> list[Tensor]:
        """Mantissas, shift and biases behind a product whose outputs are so many `rows` of a formula for each row."""
        found: list[Tensor] = []
        if item.mantissas is not None:
            mantissas = _constants(item.mantissas).reshape(rows, -1, 2)
            found.append(np.tile(mantissas, (self.rows, 1, 1)) if rows > 1 else mantissas)
        found.append(np.repeat(shift, rows, axis=0))
        if item.biases is not None:
            biases = _constants(item.biases).reshape(rows, -1, 2)
            found.append(np.tile(biases, (self.rows, 1, 1)) if rows > 1 else biases)
        return found

    def _heads(self, layer: Layer, name: str, given: np.ndarray, shift: np.ndarray) -> np.ndarray:
        """Queries, keys or values: values (rows, heads, length)."""
        item, model = layer.products[name], self.model
        heads = model.heads if name == "query" else model.key_value_heads
        sums = self._sums(name, item, given)
        length = sums.low.shape[1] // heads
        tensors: list[Tensor] = [sums.reshape(self.rows * heads, length, 1)]
        turned = model.rotary and name != "value"
        angles: list[Tensor] = []
        if turned:
            angles = [np.repeat(part, heads, axis=0) for part in np.split(self._places, [length], axis=1)]
        if turned and item.mantissas is None:
            made = self._formula(name, [*tensors, *angles, np.repeat(shift, heads, axis=0)], 1)
        else:
            made = self._formula(name, tensors + self._beside(item, shift, heads), 1 + turned)
            if turned:
                made = self._formula("turn", [np.stack(made[:2], axis=-1), *angles], 1)
        return made[0].reshape(self.rows, heads, length)

    def _add(self, layer: Layer, name: str, given: np.ndarray, shift: np.ndarray, stream: Stream) -> Stream:
        """A product, and its biases, added to the residual stream."""
        item = layer.products[name]
        sums = self._sums(name, item, given)
        if item.mantissas is None:
            raise LanguageError(f"product {name!r} has no mantissas")
        lowest = np.stack([stream.lowest, np.broadcast_to(shift[..., 0], stream.lowest.shape)], axis=-1)
        tensors: list[Tensor] = [
            sums.reshape(*sums.low.shape, 1), _constants(item.mantissas), stream.upper, lowest
        ]  # fmt: skip
        found = self._stream(name, tensors)
        if item.biases is None:
            return found
        biases = digits(item.biases.numpy, 3)[None] & 0xFF
        tensors = [found.upper, found.lowest[..., None], biases[..., :2], biases[..., 2:]]
        return self._stream("offset", tensors)

    def _inner(self, layer: Layer, given: np.ndarray, shift: np.ndarray) -> np.ndarray:
        """What goes into the last product of a feed-forward network: two digits, values (rows, columns, 2)."""
        names = ("gate", "up") if "gate" in layer.products else ("up",)
        items = [layer.products[name] for name in names]
        sums = [self._sums(name, item, given) for name, item in zip(names, items, strict=True)]
        if "gate" in self.model.formulas:
            made = [
                self._formula(name, [part.reshape(*part.low.shape, 1), *self._beside(item, shift)], 2)
                for name, item, part in zip(("gate", "up"), items, sums, strict=True)
            ]
            return np.stack(self._formula("inner", [np.stack(each, axis=-1) for each in made], 2), axis=-1)
        both = concatenated([part.reshape(*part.low.shape, 1) for part in sums], 2)
        first, *others = (self._beside(item, shift) for item in items)
        more = [tensors[0] for tensors in others]
        return np.stack(self._formula("inner", [both, first[0], *more, *first[1:]], 2), axis=-1)

    def _logits(self, stream: Stream) -> np.ndarray:
        given, shift = self._normalised(stream, self.model.gains)
        sums = self._sums("head", self.model.head, given)
        tensors: list[Tensor] = [sums.reshape(*sums.low.shape, 1), *self._beside(self.model.head, shift)]
        return np.stack(self._formula("head", tensors, 2), axis=-1)

    # --- attention

    def results(self, layer: int) -> np.ndarray:
        """What the results of attention of a layer are called: values (rows, heads, length)."""
        shape = self.blocks[layer].queries.shape
        return self.symbols.values.inputs(math.prod(shape)).reshape(shape)

    def attended(self, layer: int, row: int, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        """The results of attention of a row on the keys and values (keys, heads, length) that it sees: values (heads,
        length). What was computed before of the first ones is remembered."""
        n = self.config.n
        seen = self._begun(layer, row)
        for first in range(0, len(keys), n):
            some = slice(first, first + n)
            key = (seen.number, digest(keys[some], values[some]))
            if key not in self._seen:
                self._seen[key] = self._further(layer, row, seen, keys[some], values[some])
            seen = self._seen[key]
        heads, length = seen.total.low.shape
        elements = seen.total.reshape(heads, 1, length)
        return quotients(self.symbols, self.model.smaller, STORED, elements, seen.state[1])

    def _begun(self, layer: int, row: int) -> _Seen:
        key = (layer, row)
        if key not in self._seen:
            heads, length = self.blocks[layer].queries.shape[1:]
            total = self.symbols.integers(0, (heads, length))
            self._seen[key] = _Seen(len(self._seen), started(self.symbols, heads), total)
        return self._seen[key]

    def _further(self, layer: int, row: int, seen: _Seen, keys: np.ndarray, values: np.ndarray) -> _Seen:
        """Behind one more group of keys."""
        terms, octaves = self.symbols.values.terms, self.model.layers[layer].octaves
        queries = self.blocks[layer].queries[row]
        each = len(queries) // keys.shape[1]
        there = np.ones((each, len(keys)), bool)
        states, totals = [], []
        for head in range(keys.shape[1]):
            own = slice(head * each, (head + 1) * each)
            scores = product(terms(queries[own]), terms(keys[:, head]).moved((1, 0)))
            before = (seen.state[0][own], seen.state[1][own])
            p, _, state, alignment = group(self.symbols, self.config, octaves, scores, 0, there, before)
            states.append(state)
            totals.append(added(self.symbols, seen.total[own], p, alignment, terms(values[:, head])))
        maxima, sums = (concatenated(list(part), 0) for part in zip(*states, strict=True))
        return _Seen(len(self._seen), (maxima, sums), concatenated(totals, 0))


def digits(numbers: np.ndarray, count: int) -> np.ndarray:
    """Integers as so many digits: int64 (..., count), from -128 to 127. Raises `LanguageError` for larger ones."""
    found, rest = [], numbers.astype(np.int64)
    for _ in range(count):
        digit = ((rest + 128) & 0xFF) - 128
        found.append(digit)
        rest = (rest - digit) >> 8
    if rest.any():
        raise LanguageError(f"{int(np.abs(numbers).max())} has more than {count} digits")
    return np.stack(found[::-1], axis=-1)


def _constants(numbers: Array) -> np.ndarray:
    """Integers (columns,) as values (1, columns, 2) of their digits."""
    return digits(numbers.numpy, 2)[None] & 0xFF
