"""What a decoder's program reads from memory: the constants, and a record of weights for each block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.compiler.ir.scales import score_multiplier
from weft.compiler.kernel.expressions import digits
from weft.compiler.machine.emit import ceil_div
from weft.extras.language.compiler.form import PRODUCTS
from weft.extras.language.compiler.integers import Integers, Layer, embedding_in_steps, turns
from weft.extras.language.compiler.model import Matrix, Rotary, dense
from weft.extras.language.compiler.places import Places
from weft.extras.language.compiler.ring import Product, Ring, cut
from weft.extras.language.compiler.scaled import BYTE_BITS, MOST_BITS
from weft.extras.language.compiler.weights import Weights
from weft.hdl.isa import config, encoding

_ALIGNMENT = 64
"""Of what is loaded by itself, in bytes."""
_COUNT_MOST = 255
"""Tiles of a part at most."""


class Contents:
    """See the module.

    Parameters
    ----------
    numbers : Integers
    places : Places
    beside : Places, optional
        Those of another program with the same contents: one for tokens that follow each other.

    Attributes
    ----------
    constants, records : bytearray
        Records of all blocks follow each other, and are alike. Behind them are those of the head.
    record_bytes, head_bytes : int
        Bytes of one.
    ring : Ring
    offsets, head_offsets : list of int
        Where each part of a block, or of the head, is in its record: the weights of its tiles, behind them the
        mantissas, two vectors for each tile, and behind these the biases of products that have any: their upper two
        digits, two vectors for each tile, and then the third ones of those that have three.
    alike : bool
        Parts of the head are where a block has its first ones, and are loaded as those are.
    blocks : set of str
        The products, and "head", whose weights are in blocks of 4 bits. Mantissas are behind them at a multiple of
        64 bytes.
    gains : int
        Where in a record the gains of its two norms are, two digits each; in the first record of the head, that of the
        last norm.
    logit_tiles : int
        Tiles of logits, with those that are there to have parts alike.
    embedding, positions, exp2, even : int
        Offsets in `constants`: rows of the embeddings of tokens, rows of what positions have (angles or embeddings),
        the table of softmax, and a vector with the shift of rows whose largest element has
        `weft.extras.language.compiler.scaled.BYTE_BITS`.
    units : list of float
        The steps of embeddings: of those of tokens, and of those of positions if they have any.
    embedding_bytes, position_bytes : int
        Bytes of a row.
    """

    def __init__(self, numbers: Integers, places: Places, beside: Places | None = None) -> None:
        self._numbers, self._places, self._n = numbers, places, places.config.n
        self.constants, self.records = bytearray(), bytearray()
        self.embedding_bytes = 2 * places.sizes.width
        self.position_bytes = places.position * self._n
        self.units: list[float] = []
        model = numbers.model
        self.embedding = self._rows(model.token_embedding)
        if model.positions is not None:
            self.positions = self._rows(dense(model.positions)[: places.sizes.context])
        elif model.rotary is not None:
            self.positions = self.constant(self._turns(model.rotary))
        self.exp2 = self.constant(places.config.exp2_table)
        self.even = self.constant(bytes([MOST_BITS - BYTE_BITS]) * self._n)
        self.ring = ring_of(places, beside)
        self.offsets: list[int] = []
        self.blocks = _in_blocks(numbers)
        self.gains = 0
        for index, layer in enumerate(numbers.layers):
            self.records += self._record(index, layer)
        self.record_bytes = len(self.records) // len(numbers.layers)
        self.alike = self._alike()
        self.head_offsets, self.head_bytes = self._head_places()
        self.logit_tiles = len(self.ring.slots) * self.ring.head_turns * self.ring.head_tiles
        self._append_head()

    def constant(self, content: bytes) -> int:
        """Append a constant; returns its offset."""
        at = len(self.constants)
        self.constants += _aligned(content)
        return at

    def _rows(self, matrix: Matrix) -> int:
        """Append embeddings, each a row of two digits, with a step of their own; returns their offset."""
        whole, unit = embedding_in_steps(matrix)
        self.units.append(unit)
        return self.constant(np.stack([pairs(row, self._n) for row in whole]).tobytes())

    def _turns(self, rotary: Rotary) -> bytes:
        """For each position the cosines and then the sines of a head, those of its even elements negative."""
        return pairs(turns(rotary, self._places.sizes).ravel(), self._n).tobytes()

    def _record(self, index: int, layer: Layer) -> bytes:
        """The parameters of a block's scores, and its weights."""
        n = self._n
        mantissa, shift = score_multiplier(layer.octaves, self._places.config.mantissa_bits)
        record = bytearray(config.parameter_block(np.zeros(n), np.full(n, mantissa), np.full(n, shift), n))
        self.gains = len(record)
        for gains in self._numbers.gains[2 * index : 2 * index + 2]:
            record += pairs(gains, n).tobytes()
        self.offsets = []
        for product, named in PRODUCTS.items():
            names = [name for name in named if name in layer.matrices]
            matrices = [layer.matrices[name] for name in names]
            stacked = _Stacked.of(matrices, n, blocks=product in self.blocks, turns=product == "inner")
            columns = self._columns(product, names, index)
            for part in self.ring.of(product):
                record += bytes(-len(record) % _ALIGNMENT)
                self.offsets.append(len(record))
                record += self._tiles(stacked, columns, part.first, part.tiles)
        return _aligned(bytes(record))

    def _columns(self, product: str, names: Sequence[str], index: int) -> _Columns:
        """Mantissas and biases of a product of a block."""
        numbers, layer = self._numbers, self._numbers.layers[index]
        mantissas = [
            numbers.scaled[name][index].mantissas
            if name in numbers.scaled
            else np.ones(len(layer.matrices[name].values), np.int16)  # all of them have one factor
            for name in names
        ]
        biases = [numbers.biases[name].numbers[index] for name in names if name in numbers.biases]
        return _Columns.of(mantissas, biases, self._places.biases(product), self._n, turns=product == "inner")

    def _append_head(self) -> None:
        ring, numbers = self.ring, self._numbers
        rows = self.logit_tiles * self._n - len(numbers.head.values)
        stacked = _Stacked.of((numbers.head,), self._n, blocks="head" in self.blocks, more=rows)
        biases = [numbers.biases["head"].numbers[0]] if "head" in numbers.biases else []
        columns = _Columns.of(
            [numbers.head_scaled.mantissas], biases, self._places.biases("head"), self._n, more=rows
        )
        first, begin = 0, len(self.records)
        for _ in range(ring.head_turns):
            start = len(self.records)
            self.records += bytes(self.head_bytes)
            for offset in self.head_offsets:
                part = self._tiles(stacked, columns, first, ring.head_tiles)
                self.records[start + offset : start + offset + len(part)] = part
                first += ring.head_tiles
        for gains in numbers.gains[-1:]:
            content = pairs(gains, self._n).tobytes()
            self.records[begin + self.gains : begin + self.gains + len(content)] = content

    def _tiles(self, weights: _Stacked, columns: _Columns, first: int, tiles: int) -> bytes:
        """The weights, mantissas and biases of some tiles."""
        lines = slice(first * self._n, (first + tiles) * self._n)
        return weights.content(lines, self._n) + columns.content(lines, self._n)

    def _alike(self) -> bool:
        """Whether neither the head nor what is in the first parts of a block is in blocks of 4 bits, in which parts of
        fewer tiles have their mantissas elsewhere."""
        first = {part.name for part in self.ring.parts[: len(self.ring.slots)]}
        return not self.blocks & (first | {"head"})

    def _head_places(self) -> tuple[list[int], int]:
        """Where parts of the head are in a record of it, and the bytes of one."""
        ring, slots = self.ring, len(self.ring.slots)
        last = self.offsets[slots - 1] + _ceil(ring.vectors[slots - 1] * self._n) + _ALIGNMENT
        if self.alike:
            return self.offsets[:slots], _ceil(last)
        part = (
            _ceil(ring.head_tiles * (self._n * self._places.width + self._places.beside("head")) * self._n)
            + _ALIGNMENT
        )
        start = self.offsets[0]
        places = list(range(start, start + slots * part, part))
        return places, max(_ceil(last), start + slots * part)

    def mantissas(self, vectors: int) -> int:
        """Where the mantissas of a part are in its bytes, if its weights, so many vectors, are in blocks of 4 bits."""
        size = vectors * self._n // 2
        return _ceil(size + (size >> encoding.FACTORS_SHIFT))


class _Stacked:
    """The weights of a product: int8 `values`, or `nibbles` with `factors`."""

    def __init__(self, values: np.ndarray, factors: np.ndarray | None) -> None:
        self._values, self._factors = values, factors

    @classmethod
    def of(
        cls, matrices: Sequence[Weights], n: int, *, blocks: bool, turns: bool = False, more: int = 0
    ) -> _Stacked:
        """Matrices one behind the other, or N rows of each in turn, and so many rows of 0 `more`."""

        def stacked(parts: list[np.ndarray]) -> np.ndarray:
            joined = interleaved(parts, n) if turns else np.concatenate(parts)
            return np.pad(joined, ((0, more), (0, 0)))

        if not blocks:
            return cls(stacked([matrix.values for matrix in matrices]), None)
        nibbles = [matrix.nibbles for matrix in matrices if matrix.nibbles is not None]
        factors = [matrix.factors for matrix in matrices if matrix.factors is not None]
        return cls(stacked(nibbles), stacked(factors))

    def content(self, lines: slice, n: int) -> bytes:
        """The bytes of some rows."""
        found = words(self._values[lines], n)
        if self._factors is None:
            return found
        groups = np.frombuffer(found, np.int8).reshape(-1, encoding.GROUP_WORDS, n)
        padded = np.pad(self._factors[lines], ((0, -len(self._factors[lines]) % n), (0, 0)))
        factors = padded.reshape(-1, n, padded.shape[1]).swapaxes(1, 2).reshape(-1, n)
        return _aligned(encoding.pack_groups(groups, factors))


class _Columns:
    """What there is for each column of a product: mantissas, and so many `digits` of biases."""

    def __init__(self, mantissas: np.ndarray, biases: np.ndarray, digits: int) -> None:
        self._mantissas, self._biases, self._digits = mantissas, biases, digits

    @classmethod
    def of(
        cls,
        mantissas: Sequence[np.ndarray],
        biases: Sequence[np.ndarray],
        digits: int,
        n: int,
        *,
        turns: bool = False,
        more: int = 0,
    ) -> _Columns:
        """Those of matrices one behind the other, or of N rows of each in turn, and of so many rows of 0 `more`."""

        def stacked(parts: Sequence[np.ndarray]) -> np.ndarray:
            return interleaved([part[:, None] for part in parts], n)[:, 0] if turns else np.concatenate(parts)

        padded = np.pad(stacked(mantissas), (0, more), constant_values=1)
        return cls(padded, np.pad(stacked(biases), (0, more)) if digits else np.zeros(0), digits)

    def content(self, lines: slice, n: int) -> bytes:
        """The bytes of some rows."""
        found = pairs(self._mantissas[lines], n).tobytes()
        if not self._digits:
            return found
        first, second, *third = (part.reshape(-1, n) for part in digits(self._biases[lines], self._digits))
        return b"".join([found, np.stack([first, second], axis=1).tobytes(), *map(np.ndarray.tobytes, third)])


def _in_blocks(numbers: Integers) -> set[str]:
    """The products all of whose matrices are in blocks of 4 bits."""
    products = {
        product: [
            layer.matrices[name] for layer in numbers.layers for name in names if name in layer.matrices
        ]
        for product, names in PRODUCTS.items()
    } | {"head": [numbers.head]}
    return {name for name, all_ in products.items() if all(item.nibbles is not None for item in all_)}


def ring_of(places: Places, beside: Places | None = None) -> Ring:
    """How the products of a block, and the head, are cut, for a program and perhaps another one `beside` it.

    Raises
    ------
    CompileError
        If there is too little room.
    """
    gates = 2 if places.form.gated else 1  # tiles of the gate and beside it are together
    tiles = {
        "qkv": places.queries + 2 * places.keys, "output": places.width, "inner": gates * places.inner,
        "down": places.width, "head": ceil_div(places.sizes.vocabulary, places.config.n),
    }  # fmt: skip
    products = {
        name: Product(
            tiles[name], places.config.n * columns + places.beside(name), gates if name == "inner" else 1
        )
        for name, columns in places.columns.items()
    }
    head = products.pop("head")
    # Two parts are in the accumulator, or their logits on the chip, at a time.
    rows = max(each.rows for each in (places, beside) if each is not None)
    most = min(places.config.accumulator_size // (2 * rows), _COUNT_MOST)
    return cut(
        products, head, places.free, places.config.scratchpad_depth, most,
        min(most, max(places.inner, places.width) // 2), beside=None if beside is None else beside.room,
    )  # fmt: skip


def _ceil(size: int) -> int:
    return ceil_div(size, _ALIGNMENT) * _ALIGNMENT


def _aligned(content: bytes) -> bytes:
    return content + bytes(-len(content) % _ALIGNMENT)


def words(values: np.ndarray, n: int) -> bytes:
    """A matrix, int8 (rows, columns), as words of B: for each N rows, for each N columns, a word of each row. Rows that
    are missing are 0."""
    padded = np.pad(values, ((0, -len(values) % n), (0, 0)))
    return padded.reshape(-1, n, values.shape[1] // n, n).swapaxes(1, 2).tobytes()


def pairs(values: np.ndarray, n: int) -> np.ndarray:
    """Numbers as two digits, int8 (vectors, 2, N): what is missing is 0."""
    padded = np.pad(values.astype(np.int64), (0, -len(values) % n))
    return np.stack([part.reshape(-1, n) for part in digits(padded, 2)], axis=1)


def interleaved(matrices: Sequence[np.ndarray], n: int) -> np.ndarray:
    """N rows of each matrix in turn; rows that are missing are 0."""
    padded = [np.pad(item, ((0, -len(item) % n), (0, 0))) for item in matrices]
    columns = matrices[0].shape[1]
    return np.stack([item.reshape(-1, n, columns) for item in padded], axis=1).reshape(-1, columns)
