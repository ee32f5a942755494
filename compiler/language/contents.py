"""What a decoder's program reads from memory: the constants, and a record of weights for each block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.compiler.ir.scales import score_multiplier
from weft.compiler.kernel.expressions import DIGITS, digits
from weft.compiler.language.integers import Integers, Layer
from weft.compiler.language.kernels import ANGLE_PLACES, BYTE_BITS, MOST_BITS
from weft.compiler.language.model import Rotary, dense
from weft.compiler.language.places import Places
from weft.compiler.language.ring import Product, Ring, cut
from weft.compiler.machine.emit import ceil_div
from weft.hdl.isa import parameters

_ALIGNMENT = 64
"""Of what is loaded by itself, in bytes."""
_COUNT_MOST = 255
"""Tiles of a part at most."""
MANTISSAS = 2
"""Vectors of the mantissas of a tile."""


class Contents:
    """See the module.

    Parameters
    ----------
    numbers : Integers
    places : Places

    Attributes
    ----------
    constants, records : bytearray
        Records of all blocks follow each other, and are alike. Behind them are those of the head, which have its parts
        where those of blocks have their first ones.
    record_bytes, head_bytes : int
        Bytes of one.
    ring : Ring
    offsets : list of int
        Where each part of a block is in its record: the weights of its tiles, and behind them the mantissas, two
        vectors for each tile.
    logit_tiles : int
        Tiles of logits, with those that are there to have parts alike.
    embedding, angles, exp2, even : int
        Offsets in `constants`: rows of embeddings and of angles, the table of softmax, and a vector with the shift of
        rows whose largest element has `weft.compiler.language.kernels.BYTE_BITS`.
    embedding_unit : float
        The step of embeddings.
    embedding_bytes, angle_bytes : int
        Bytes of a row of them.
    """

    def __init__(self, numbers: Integers, places: Places) -> None:
        self._numbers, self._places, self._n = numbers, places, places.config.n
        self.constants, self.records = bytearray(), bytearray()
        self.embedding_bytes, self.angle_bytes = 2 * places.sizes.width, 4 * places.sizes.key_length
        embedding = dense(numbers.model.token_embedding).astype(np.float64)
        self.embedding_unit = float(np.abs(embedding).max()) / DIGITS
        whole = np.rint(embedding / self.embedding_unit).astype(np.int64)
        self.embedding = self.constant(np.stack([pairs(row, self._n) for row in whole]).tobytes())
        assert numbers.model.rotary is not None
        self.angles = self.constant(self._turns(numbers.model.rotary))
        self.exp2 = self.constant(places.config.exp2_table)
        self.even = self.constant(bytes([MOST_BITS - BYTE_BITS]) * self._n)
        self.ring = _ring(places)
        self.offsets: list[int] = []
        for index, layer in enumerate(numbers.layers):
            self.records += self._record(index, layer)
        self.record_bytes = len(self.records) // len(numbers.layers)
        last = len(self.ring.slots) - 1
        self.head_bytes = _ceil(self.offsets[last] + self.ring.vectors[last] * self._n)
        self.logit_tiles = len(self.ring.slots) * self.ring.head_turns * self.ring.head_tiles
        self._append_head()

    def constant(self, content: bytes) -> int:
        """Append a constant; returns its offset."""
        at = len(self.constants)
        self.constants += _aligned(content)
        return at

    def _turns(self, rotary: Rotary) -> bytes:
        """For each position the cosines and then the sines of a head, those of its even elements negative."""
        sizes = self._places.sizes
        angles = rotary.angles(np.arange(sizes.context)).repeat(2, axis=1)
        whole = np.zeros((sizes.context, sizes.key_length))
        whole[:, : angles.shape[1]] = angles
        sine = np.sin(whole)
        sine[:, ::2] *= -1
        both = np.concatenate([np.cos(whole), sine], axis=1)
        return pairs(np.rint((1 << ANGLE_PLACES) * both).astype(int).ravel(), self._n).tobytes()

    def _record(self, index: int, layer: Layer) -> bytes:
        """The parameters of a block's scores, and its weights."""
        n, scaled = self._n, {name: items[index].mantissas for name, items in self._numbers.scaled.items()}
        mantissa, shift = score_multiplier(layer.octaves, self._places.config.mantissa_bits)
        record = bytearray(parameters.block(np.zeros(n), np.full(n, mantissa), np.full(n, shift), n))
        turned = np.ones(len(layer.query.values) + len(layer.key.values), np.int16)  # which have one for all
        qkv = np.concatenate([layer.query.values, layer.key.values, layer.value.values])
        gates = interleaved([layer.gate.values, layer.up.values], n)
        both = interleaved([scaled[name][:, None] for name in ("gate", "up")], n)[:, 0]
        self.offsets = []
        for name, matrix, mantissas in (
            ("qkv", qkv, np.concatenate([turned, scaled["value"]])),
            ("output", layer.output.values, scaled["output"]),
            ("gate", gates, both),
            ("down", layer.down.values, scaled["down"]),
        ):
            for part in self.ring.parts[name]:
                self.offsets.append(len(record))
                record += self._tiles(matrix, mantissas, part.first, part.tiles)
        return bytes(record)

    def _append_head(self) -> None:
        ring, head = self.ring, self._numbers.head.values
        rows = self.logit_tiles * self._n - len(head)
        padded = np.pad(head, ((0, rows), (0, 0)))
        mantissas = np.pad(self._numbers.head_scaled.mantissas, (0, rows), constant_values=1)
        first = 0
        for _ in range(ring.head_turns):
            start = len(self.records)
            self.records += bytes(self.head_bytes)
            for offset in self.offsets[: len(ring.slots)]:
                part = self._tiles(padded, mantissas, first, ring.head_tiles)
                self.records[start + offset : start + offset + len(part)] = part
                first += ring.head_tiles

    def _tiles(self, matrix: np.ndarray, mantissas: np.ndarray, first: int, tiles: int) -> bytes:
        """The weights and mantissas of some tiles."""
        lines = slice(first * self._n, (first + tiles) * self._n)
        return _aligned(words(matrix[lines], self._n) + pairs(mantissas[lines], self._n).tobytes())


def _ring(places: Places) -> Ring:
    """How the products of a block, and the head, are cut."""
    width, inner, queries = (
        places.config.n * size + MANTISSAS for size in (places.width, places.inner, places.queries)
    )
    products = {
        "qkv": Product(places.queries + 2 * places.keys, width), "output": Product(places.width, queries),
        "gate": Product(2 * places.inner, width, together=2), "down": Product(places.width, inner),
    }  # fmt: skip
    head = Product(ceil_div(places.sizes.vocabulary, places.config.n), width)
    # Two parts are in the accumulator, or their logits on the chip, at a time.
    most = min(places.config.accumulator_size // (2 * places.rows), _COUNT_MOST)
    return cut(
        products, head, range(places.at["weights"], places.config.scratchpad_size), places.config.scratchpad_depth,
        most, min(most, max(places.inner, places.width) // 2),
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
