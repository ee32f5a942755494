"""What a decoder's program reads from memory: the constants, and a record of weights for each block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.scales import score_multiplier
from weft.compiler.kernel.expressions import DIGITS, digits
from weft.compiler.language.integers import Integers, Layer
from weft.compiler.language.kernels import ANGLE_PLACES, BYTE_BITS, MOST_BITS
from weft.compiler.language.model import Rotary, dense
from weft.compiler.language.places import Places
from weft.compiler.machine.emit import ceil_div
from weft.hdl.isa import parameters

_ALIGNMENT = 64
"""Of what is loaded by itself, in bytes."""
_COUNT_MOST = 255
"""Tiles of a part at most."""


@dataclass(frozen=True)
class Part:
    """Some columns of a product: `tiles` of N outputs from tile `first` on.

    Their weights lie in one piece of `size` vectors at `offset` bytes, with ``2 * tiles`` vectors of mantissas behind
    them.
    """

    first: int
    tiles: int
    offset: int
    size: int


class Contents:
    """See the module.

    Parameters
    ----------
    numbers : Integers
    places : Places

    Attributes
    ----------
    constants, records : bytearray
        Records of all blocks follow each other, and are alike.
    record_bytes : int
        Bytes of one.
    parts : dict of str to list of Part
        How each product is cut; offsets are within a record, and of "head" within `constants`.
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
        self.parts: dict[str, list[Part]] = {}
        self.embedding_bytes, self.angle_bytes = 2 * places.sizes.width, 4 * places.sizes.key_length
        embedding = dense(numbers.model.token_embedding).astype(np.float64)
        self.embedding_unit = float(np.abs(embedding).max()) / DIGITS
        whole = np.rint(embedding / self.embedding_unit).astype(np.int64)
        self.embedding = self.constant(np.stack([pairs(row, self._n) for row in whole]).tobytes())
        assert numbers.model.rotary is not None
        self.angles = self.constant(self._turns(numbers.model.rotary))
        self.exp2 = self.constant(places.config.exp2_table)
        self.even = self.constant(bytes([MOST_BITS - BYTE_BITS]) * self._n)
        for index, layer in enumerate(numbers.layers):
            self.records += self._record(index, layer)
        self.record_bytes = len(self.records) // len(numbers.layers)
        head = self._cut(
            "head", self.constants, numbers.head.values, numbers.head_scaled.mantissas, most=places.inner
        )
        self.constants += head

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
        record += self._cut("qkv", record, qkv, np.concatenate([turned, scaled["value"]]))
        record += self._cut("output", record, layer.output.values, scaled["output"])
        record += self._cut("gate", record, gates, both, together=2)
        record += self._cut("down", record, layer.down.values, scaled["down"])
        return bytes(record)

    def _cut(
        self,
        name: str,
        before: bytearray,
        matrix: np.ndarray,
        mantissas: np.ndarray,
        *,
        together: int = 1,
        most: int = _COUNT_MOST,
    ) -> bytes:
        """Cut a product into parts of at most so many tiles, of which so many stay together; returns what follows
        `before`."""
        n, tiles = self._n, ceil_div(len(matrix), self._n)
        tile = matrix.shape[1] + 2  # vectors
        each = min(self._places.room // tile, tiles, most) // together * together
        if not each:
            raise CompileError("the scratchpad has no room for a tile of weights")
        found, parts = bytearray(), []
        for first in range(0, tiles, each):
            count = min(each, tiles - first)
            parts.append(Part(first, count, len(before) + len(found), count * tile))
            lines = slice(first * n, (first + count) * n)
            found += _aligned(words(matrix[lines], n) + pairs(mantissas[lines], n).tobytes())
        self.parts[name] = parts
        return bytes(found)


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
