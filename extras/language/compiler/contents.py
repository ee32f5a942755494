"""Memory contents that a decoder's program reads: constants, and a record of weights for each block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.compiler.ir.scales import score_multiplier
from weft.compiler.kernel.expressions import digits
from weft.compiler.machine.emit import ceil_div
from weft.extras.language.compiler.integers import Integers, Layer, quantise_embedding, rotation_table
from weft.extras.language.compiler.layout import PRODUCTS, Places
from weft.extras.language.compiler.model import Matrix, Rotary, dense
from weft.extras.language.compiler.ring import Product, Ring, cut
from weft.extras.language.compiler.weights import BYTE_BITS, MAX_ROW_BITS, Weights
from weft.hdl.isa import config, encoding

_ALIGNMENT_BYTES = 64
_MAX_TILES = 255
"""Largest count that an instruction's field for tiles holds."""


class Contents:
    """Constants and weights of a decoder, encoded for the device.

    Parameters
    ----------
    numbers : Integers
    places : Places
    other : Places, optional
        Layout of a second program with the same contents, for consecutive prompt tokens.

    Attributes
    ----------
    constants : bytearray
    records : bytearray
        Records of all blocks, equal in layout, followed by those of the head.
    record_bytes, head_bytes : int
        Size of a block's record, and of a record of the head.
    ring : Ring
    offsets, head_offsets : list of int
        Offset of each part of a block, or of the head, in its record. A part holds the weights of its tiles, then
        mantissas, two vectors per tile, then any biases: the upper two digits, two vectors per tile, and the third
        digits if there are three.
    alike : bool
        Whether parts of the head have the offsets of a block's first parts, so that the same LOADs fetch both.
    blocks : set of str
        Products, including "head", with weights in blocks of 4 bits. Their mantissas follow at a multiple of 64 bytes.
    gains : int
        Offset in a record of the gains of its two norms, two digits each. The first record of the head holds the last
        norm's gains there.
    logit_tiles : int
        Tiles of logits, including padding to equal parts.
    embedding, positions, exp2, even : int
        Offsets in `constants`: token embeddings; rows for positions (angles or embeddings); softmax's table; and a
        vector with the shift of rows whose largest element has `weft.extras.language.compiler.weights.BYTE_BITS`.
    units : list of float
        Steps of the token embeddings and, if there are any, the position embeddings.
    embedding_bytes, position_bytes : int
        Bytes of a row.
    """

    def __init__(self, numbers: Integers, places: Places, other: Places | None = None) -> None:
        self._numbers, self._places, self._n = numbers, places, places.config.n
        self.constants, self.records = bytearray(), bytearray()
        self.embedding_bytes = 2 * places.sizes.width
        self.position_bytes = places.position * self._n
        self.units: list[float] = []
        model = numbers.model
        self.embedding = self._append_embeddings(model.token_embedding)
        if model.positions is not None:
            self.positions = self._append_embeddings(dense(model.positions)[: places.sizes.context])
        elif model.rotary is not None:
            self.positions = self.constant(self._rotation_bytes(model.rotary))
        self.exp2 = self.constant(places.config.exp2_table)
        self.even = self.constant(bytes([MAX_ROW_BITS - BYTE_BITS]) * self._n)
        self.ring = plan_ring(places, other)
        self.offsets: list[int] = []
        self.blocks = _products_in_blocks(numbers)
        self.gains = 0
        for index, layer in enumerate(numbers.layers):
            self.records += self._build_record(index, layer)
        self.record_bytes = len(self.records) // len(numbers.layers)
        self.alike = self._has_equal_parts()
        self.head_offsets, self.head_bytes = self._place_head()
        self.logit_tiles = len(self.ring.slots) * self.ring.head_turns * self.ring.head_tiles
        self._append_head()

    def constant(self, content: bytes) -> int:
        """Append a constant and return its offset."""
        at = len(self.constants)
        self.constants += _pad(content)
        return at

    def _append_embeddings(self, matrix: Matrix) -> int:
        """Append embeddings, quantised to two digits with their own step, and return their offset."""
        embeddings, unit = quantise_embedding(matrix)
        self.units.append(unit)
        return self.constant(np.stack([to_digit_pairs(row, self._n) for row in embeddings]).tobytes())

    def _rotation_bytes(self, rotary: Rotary) -> bytes:
        """Return the cosines and then the sines of each position, sines of even elements negated."""
        return to_digit_pairs(rotation_table(rotary, self._places.sizes).ravel(), self._n).tobytes()

    def _build_record(self, index: int, layer: Layer) -> bytes:
        """Return a block's record: parameters of its scores, gains, and weights."""
        n = self._n
        mantissa, shift = score_multiplier(layer.octaves, self._places.config.mantissa_bits)
        record = bytearray(config.parameter_block(np.zeros(n), np.full(n, mantissa), np.full(n, shift), n))
        self.gains = len(record)
        for gains in self._numbers.gains[2 * index : 2 * index + 2]:
            record += to_digit_pairs(gains, n).tobytes()
        self.offsets = []
        for product, members in PRODUCTS.items():
            names = [name for name in members if name in layer.matrices]
            matrices = [layer.matrices[name] for name in names]
            stacked = _StackedWeights.stack(
                matrices, n, blocks=product in self.blocks, interleaved=product == "inner"
            )
            columns = self._build_columns(product, names, index)
            for part in self.ring.of(product):
                record += bytes(-len(record) % _ALIGNMENT_BYTES)
                self.offsets.append(len(record))
                record += self._encode_tiles(stacked, columns, part.first, part.tiles)
        return _pad(bytes(record))

    def _build_columns(self, product: str, names: Sequence[str], index: int) -> _ColumnParameters:
        """Return mantissas and biases of a block's product."""
        numbers, layer = self._numbers, self._numbers.layers[index]
        mantissas = [
            numbers.scaled[name][index].mantissas
            if name in numbers.scaled
            # Unused: one factor holds for all rows.
            else np.ones(len(layer.matrices[name].values), np.int16)
            for name in names
        ]
        biases = [numbers.biases[name].numbers[index] for name in names if name in numbers.biases]
        return _ColumnParameters.stack(
            mantissas, biases, self._places.biases(product), self._n, interleaved=product == "inner"
        )

    def _append_head(self) -> None:
        ring, numbers = self.ring, self._numbers
        # Zero rows fill up the last part, so that all parts have as many tiles.
        rows = self.logit_tiles * self._n - len(numbers.head.values)
        stacked = _StackedWeights.stack((numbers.head,), self._n, blocks="head" in self.blocks, padding=rows)
        biases = [numbers.biases["head"].numbers[0]] if "head" in numbers.biases else []
        columns = _ColumnParameters.stack(
            [numbers.head_scaled.mantissas], biases, self._places.biases("head"), self._n, padding=rows
        )
        first, begin = 0, len(self.records)
        for _ in range(ring.head_turns):
            start = len(self.records)
            self.records += bytes(self.head_bytes)
            for offset in self.head_offsets:
                part = self._encode_tiles(stacked, columns, first, ring.head_tiles)
                self.records[start + offset : start + offset + len(part)] = part
                first += ring.head_tiles
        # There are none if matrices contain them.
        for gains in numbers.gains[-1:]:
            content = to_digit_pairs(gains, self._n).tobytes()
            self.records[begin + self.gains : begin + self.gains + len(content)] = content

    def _encode_tiles(
        self, weights: _StackedWeights, columns: _ColumnParameters, first: int, tiles: int
    ) -> bytes:
        """Return the bytes of some tiles: weights, mantissas and biases."""
        lines = slice(first * self._n, (first + tiles) * self._n)
        return weights.encode(lines, self._n) + columns.encode(lines, self._n)

    def _has_equal_parts(self) -> bool:
        """Return whether neither the head nor a block's first parts have weights in blocks of 4 bits.

        With such weights, the offset of the mantissas depends on the number of tiles.
        """
        first = {part.name for part in self.ring.parts[: len(self.ring.slots)]}
        return not self.blocks & (first | {"head"})

    def _place_head(self) -> tuple[list[int], int]:
        """Return the offsets of the head's parts in a record, and the size of a record."""
        ring, slots = self.ring, len(self.ring.slots)
        # The last block's LOADs fetch its successor's first parts from a record of the head, which must hold them.
        last = self.offsets[slots - 1] + _round_up(ring.vectors[slots - 1] * self._n) + _ALIGNMENT_BYTES
        if self.alike:
            return self.offsets[:slots], _round_up(last)
        part = (
            _round_up(
                ring.head_tiles
                * (self._n * self._places.width + self._places.parameter_vectors("head"))
                * self._n
            )
            + _ALIGNMENT_BYTES
        )
        start = self.offsets[0]
        places = list(range(start, start + slots * part, part))
        return places, max(_round_up(last), start + slots * part)

    def mantissas_offset(self, vectors: int) -> int:
        """Return the offset of the mantissas in a part with `vectors` vectors of weights in blocks of 4 bits."""
        size = vectors * self._n // 2
        return _round_up(size + (size >> encoding.FACTORS_SHIFT))


class _StackedWeights:
    """Weights of a product: int8 `values`, or `nibbles` with `factors`."""

    def __init__(self, values: np.ndarray, factors: np.ndarray | None) -> None:
        self._values, self._factors = values, factors

    @classmethod
    def stack(
        cls, matrices: Sequence[Weights], n: int, *, blocks: bool, interleaved: bool = False, padding: int = 0
    ) -> _StackedWeights:
        """Stack matrices, one after the other or N rows of each in turn, with `padding` rows of zeros at the end."""

        def stack_rows(parts: list[np.ndarray]) -> np.ndarray:
            joined = interleave(parts, n) if interleaved else np.concatenate(parts)
            return np.pad(joined, ((0, padding), (0, 0)))

        if not blocks:
            return cls(stack_rows([matrix.values for matrix in matrices]), None)
        nibbles = [matrix.nibbles for matrix in matrices if matrix.nibbles is not None]
        factors = [matrix.factors for matrix in matrices if matrix.factors is not None]
        return cls(stack_rows(nibbles), stack_rows(factors))

    def encode(self, lines: slice, n: int) -> bytes:
        """Return the bytes of some rows."""
        content = encode_words(self._values[lines], n)
        if self._factors is None:
            return content
        groups = np.frombuffer(content, np.int8).reshape(-1, encoding.GROUP_WORDS, n)
        # As `encode_words` pads the rows.
        padded = np.pad(self._factors[lines], ((0, -len(self._factors[lines]) % n), (0, 0)))
        factors = padded.reshape(-1, n, padded.shape[1]).swapaxes(1, 2).reshape(-1, n)
        return _pad(encoding.pack_groups(groups, factors))


class _ColumnParameters:
    """Parameters of a product's columns: mantissas, and biases of `digits` digits."""

    def __init__(self, mantissas: np.ndarray, biases: np.ndarray, digits: int) -> None:
        self._mantissas, self._biases, self._digits = mantissas, biases, digits

    @classmethod
    def stack(
        cls,
        mantissas: Sequence[np.ndarray],
        biases: Sequence[np.ndarray],
        digits: int,
        n: int,
        *,
        interleaved: bool = False,
        padding: int = 0,
    ) -> _ColumnParameters:
        """Stack the parameters of matrices as `_StackedWeights.stack` stacks their rows."""

        def stack_rows(parts: Sequence[np.ndarray]) -> np.ndarray:
            return (
                interleave([part[:, None] for part in parts], n)[:, 0]
                if interleaved
                else np.concatenate(parts)
            )

        # Mantissas are at least 1.
        padded = np.pad(stack_rows(mantissas), (0, padding), constant_values=1)
        return cls(padded, np.pad(stack_rows(biases), (0, padding)) if digits else np.zeros(0), digits)

    def encode(self, lines: slice, n: int) -> bytes:
        """Return the bytes of some rows."""
        content = to_digit_pairs(self._mantissas[lines], n).tobytes()
        if not self._digits:
            return content
        first, second, *third = (part.reshape(-1, n) for part in digits(self._biases[lines], self._digits))
        return b"".join(
            [content, np.stack([first, second], axis=1).tobytes(), *map(np.ndarray.tobytes, third)]
        )


def _products_in_blocks(numbers: Integers) -> set[str]:
    """Return the products whose matrices are all in blocks of 4 bits."""
    products = {
        product: [
            layer.matrices[name] for layer in numbers.layers for name in names if name in layer.matrices
        ]
        for product, names in PRODUCTS.items()
    } | {"head": [numbers.head]}
    return {name for name, all_ in products.items() if all(item.nibbles is not None for item in all_)}


def plan_ring(places: Places, other: Places | None = None) -> Ring:
    """Cut the products of a block, and the head, into parts for one program, or for two programs that share them.

    Raises
    ------
    CompileError
        If the scratchpad is too small.
    """
    # A tile of the gate and one of the other product stay together.
    gates = 2 if places.form.gated else 1
    tiles = {
        "qkv": places.queries + 2 * places.keys, "output": places.width, "inner": gates * places.inner,
        "down": places.width, "head": ceil_div(places.sizes.vocabulary, places.config.n),
    }  # fmt: skip
    products = {
        name: Product(
            tiles[name],
            places.config.n * columns + places.parameter_vectors(name),
            gates if name == "inner" else 1,
        )
        for name, columns in places.columns.items()
    }
    head = products.pop("head")
    # The accumulator holds the sums of two parts at a time, and the scratchpad two parts of logits.
    rows = max(each.rows for each in (places, other) if each is not None)
    max_tiles = min(places.config.accumulator_size // (2 * rows), _MAX_TILES)
    return cut(
        products, head, places.free, places.config.scratchpad_depth, max_tiles,
        min(max_tiles, max(places.inner, places.width) // 2), other_room=None if other is None else other.room,
    )  # fmt: skip


def _round_up(size: int) -> int:
    return ceil_div(size, _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _pad(content: bytes) -> bytes:
    return content + bytes(-len(content) % _ALIGNMENT_BYTES)


def encode_words(values: np.ndarray, n: int) -> bytes:
    """Encode a matrix, int8 (rows, columns), as words of B.

    For each N rows and each N columns there is one word per row; missing rows are 0.
    """
    padded = np.pad(values, ((0, -len(values) % n), (0, 0)))
    return padded.reshape(-1, n, values.shape[1] // n, n).swapaxes(1, 2).tobytes()


def to_digit_pairs(values: np.ndarray, n: int) -> np.ndarray:
    """Return numbers as two digits, int8 (vectors, 2, N), padded with 0."""
    padded = np.pad(values.astype(np.int64), (0, -len(values) % n))
    return np.stack([part.reshape(-1, n) for part in digits(padded, 2)], axis=1)


def interleave(matrices: Sequence[np.ndarray], n: int) -> np.ndarray:
    """Return N rows of each matrix in turn; missing rows are 0."""
    padded = [np.pad(item, ((0, -len(item) % n), (0, 0))) for item in matrices]
    columns = matrices[0].shape[1]
    return np.stack([item.reshape(-1, n, columns) for item in padded], axis=1).reshape(-1, columns)
