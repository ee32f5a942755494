"""Kernels that process the sums of a product, one or several for each part.

In the accumulator, the sums of row r and tile t of a part are in row ``r * tiles + t`` from the part's first row on.
Mantissas and biases of its columns follow its weights; see `weft.extras.language.compiler.contents`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from weft.extras.language.compiler.kernel_set import KernelSet
from weft.extras.language.compiler.places import MANTISSAS, Places
from weft.extras.language.compiler.ring import Part
from weft.extras.language.compiler.spread import At
from weft.hdl.isa import Kernel, Source


class Sums(NamedTuple):
    """Part of a product with complete sums: first row in the accumulator, and first vector of the mantissas."""

    part: Part
    first: int
    mantissas: int


class SumKernels:
    """Generator of the kernels for sums."""

    def __init__(self, places: Places, kernels: KernelSet) -> None:
        self._places, self._kernels, self._at = places, kernels, places.at

    def _on_sums(self, name: str, columns: int, operands: Mapping[str, At], groups: int = 1) -> Kernel:
        """Return a kernel on all rows whose operand `src` is in the accumulator."""
        counts = (self._places.rows, groups, columns)
        return self._kernels.columnwise_kernel(name, Source.ACCUMULATOR, counts, operands)

    def _on_rows(self, name: str, columns: int, operands: Mapping[str, At], groups: int = 1) -> Kernel:
        """Return a kernel on all rows whose operand `src` is in the scratchpad."""
        counts = (self._places.rows, groups, columns)
        return self._kernels.columnwise_kernel(name, Source.SCRATCHPAD, counts, operands)

    def _biases(self, sums: Sums, name: str, first: int = 0, group: int = 0) -> dict[str, At]:
        """Return the upper two digits of the biases from tile `first` on as operand `name`, or nothing without
        biases.
        """
        if not self._places.biases(sums.part.name):
            return {}
        return {name: At(self._biases_vector(sums) + 2 * first, 0, group, 2, 2)}

    def _biases_vector(self, sums: Sums) -> int:
        return sums.mantissas + MANTISSAS * sums.part.tiles

    def head_kernels(self, sums: Sums) -> Iterator[Kernel]:
        """Yield the kernels for queries, keys and values: whole heads together, then the rest of cut heads."""
        part, sizes, head = sums.part, self._places.sizes, self._places.head
        first = 0
        for name, count in (
            ("query", sizes.heads),
            ("key", sizes.key_value_heads),
            ("value", sizes.key_value_heads),
        ):
            tile = max(part.first, first)
            end = min(part.first + part.tiles, first + count * head)
            while tile < end:
                within = (tile - first) % head
                whole_heads = 0 if within else (end - tile) // head
                tiles = head if whole_heads else min(head - within, end - tile)
                yield from self._head_range_kernels(
                    name, sums, (tile - part.first, tile - first), max(whole_heads, 1), tiles
                )
                tile += max(whole_heads, 1) * tiles
            first += count * head

    def _head_range_kernels(
        self, name: str, sums: Sums, tiles: tuple[int, int], heads: int, columns: int
    ) -> Iterator[Kernel]:
        """Yield kernels for `heads` heads of `columns` tiles each.

        `tiles` holds the index of the first tile within the part, and within all tiles of this name.
        """
        places, form = self._places, self._places.form
        count = places.queries if name == "query" else places.keys
        src = At(sums.first + tiles[0], sums.part.tiles, places.head, 1)
        dst = At(self._at[name[0]] + tiles[1], count, places.head, 1)
        row = At(self._at["row"], 1)
        if form.rotates_sums and name != "value":
            yield self._on_sums(
                name, columns, {"src": src, "dst": dst, **self._angles(tiles[1]), "d": row}, heads
            )
            return
        sources = {"src": src, "b": At(sums.mantissas + 2 * tiles[0], 0, 2 * places.head, 2, 2), "c": row}
        sources |= self._biases(sums, "d", tiles[0], 2 * places.head)
        if not form.rotary or name == "value":
            yield self._on_sums(name, columns, sources | {"dst": dst}, heads)
            return
        unrotated = At(self._at["unturned"], 2 * heads * columns, 2 * columns, 2, 2)
        yield self._on_sums(name, columns, sources | {"dst": unrotated}, heads)
        yield self._on_rows("turn", columns, {"src": unrotated, "dst": dst, **self._angles(tiles[1])}, heads)

    def _angles(self, tile: int) -> dict[str, At]:
        """Return the cosines and sines for the tiles of heads from `tile` on, as operands `b` and `c`."""
        head, pitch = self._places.head, self._places.position
        angles = self._at["positions"] + 2 * (tile % head)
        return {"b": At(angles, pitch, 0, 2, 2), "c": At(angles + 2 * head, pitch, 0, 2, 2)}

    def embedding_kernel(self) -> Kernel:
        """Return the kernel that turns rows of embeddings into the residual stream."""
        pitch = 2 * self._places.width
        operands = {
            "src": At(self._at["inner"], pitch, 0, 2, 2), "dst": At(self._at["x"], pitch, 0, 2, 2),
            "dst2": At(self._at["low"], pitch, 0, 2),
        }  # fmt: skip
        if not self._places.form.rotary:
            operands["b"] = At(self._at["positions"], pitch, 0, 2, 2)
        return self._on_rows("begin", self._places.width, operands)

    def shift_kernel(self, row: At) -> Kernel:
        """Return the kernel that copies each row's shift, at `row`, beside the lowest digits."""
        shift = At(self._at["low"] + 1, 2 * self._places.width, 0, 2)
        return self._on_rows("prepare", self._places.width, {"src": row, "dst": shift})

    def add_to_residual(self, sums: Sums) -> Iterator[Kernel]:
        """Yield the kernels that add a part, and then its biases, to the residual stream."""
        part, pitch = sums.part, 2 * self._places.width
        upper, low = (At(self._at[tensor] + 2 * part.first, pitch, 0, 2, 2) for tensor in ("x", "low"))
        operands = {
            "src": At(sums.first, part.tiles, 0, 1), "dst": upper, "dst2": low,
            "b": At(sums.mantissas, 0, 0, 2, 2), "c": upper, "d": low,
        }  # fmt: skip
        yield self._on_sums(part.name, part.tiles, operands)
        if biases := self._biases(sums, "c"):
            digit = low._replace(vectors=1)
            lowest = At(self._biases_vector(sums) + 2 * part.tiles, 0, 0, 1)
            operands = {"src": upper, "dst": upper, "b": digit, "dst2": digit, "d": lowest, **biases}
            yield self._on_rows("offset", part.tiles, operands)

    def inner_kernels(self, sums: Sums) -> Iterator[Kernel]:
        """Yield the kernels between the products of a feed-forward network.

        A gated network uses two tiles of sums for each tile of results, else one.
        """
        part, form, pitch = sums.part, self._places.form, 2 * self._places.inner
        if not form.gated:
            yield self._with_mantissas("inner", sums, At(self._at["inner"] + 2 * part.first, pitch, 0, 2, 2))
            return
        row, columns, mantissas = At(self._at["row"], 1), part.tiles // 2, sums.mantissas
        up = At(self._at["inner"] + part.first, pitch, 0, 2, 2)
        if form.gates_sums:
            operands = {
                "src": At(sums.first, part.tiles, 0, 2, 2), "dst": up, "b": At(mantissas, 0, 0, 4, 2),
                "c": At(mantissas + 2, 0, 0, 4, 2), "d": row,
            }  # fmt: skip
            yield self._on_sums("inner", columns, operands)
            return
        gate, biases = At(self._at["gates"], 2 * columns, 0, 2, 2), self._biases_vector(sums)
        for tile, (name, dst) in enumerate((("gate", gate), ("up", up))):
            operands = {
                "src": At(sums.first + tile, part.tiles, 0, 2), "dst": dst, "b": At(mantissas + 2 * tile, 0, 0, 4, 2),
                "c": row, "d": At(biases + 2 * tile, 0, 0, 4, 2),
            }  # fmt: skip
            yield self._on_sums(name, columns, operands)
        yield self._on_rows("inner", columns, {"src": gate, "b": up, "dst": up})

    def logit_kernel(self, sums: Sums, first: int) -> Kernel:
        """Return the kernel for logits, two digits each, from vector `first` on."""
        return self._with_mantissas("head", sums, At(first, 2 * sums.part.tiles, 0, 2, 2))

    def _with_mantissas(self, name: str, sums: Sums, dst: At) -> Kernel:
        """Return a kernel with mantissas, row shifts and, if the product has them, biases."""
        tiles = sums.part.tiles
        operands = {
            "src": At(sums.first, tiles, 0, 1), "dst": dst, "b": At(sums.mantissas, 0, 0, 2, 2),
            "c": At(self._at["row"], 1), **self._biases(sums, "d"),
        }  # fmt: skip
        return self._on_sums(name, tiles, operands)
