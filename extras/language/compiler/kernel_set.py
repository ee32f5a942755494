"""Kernels of a decoder in the kernel engine's memory, their look-up tables, and the instructions that run them.

The loops of instructions with independent columns are ordered for the fewest cycles. Kernels after a product process
its sums, one kernel or several for each part. In the accumulator, the sums of row r and tile t of a part are in row
``r * tiles + t`` from the part's first row on. Mantissas and biases of its columns follow its weights; see
`weft.extras.language.compiler.contents`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from weft.compiler.errors import CompileError, KernelError
from weft.compiler.kernel.code import generate, tables_of, with_tables
from weft.compiler.kernel.expressions import Rows
from weft.extras.language.compiler import kernels
from weft.extras.language.compiler.integers import Integers, describe_outlier
from weft.extras.language.compiler.layout import MANTISSAS, Places
from weft.extras.language.compiler.ring import Part
from weft.hdl.isa import Kernel, MicroOp, Source
from weft.hdl.isa.config import Config
from weft.hdl.isa.kernel import SOURCES, STRIP_ROWS, TARGETS
from weft.hdl.isa.operands import kernel_min_cycles


class At(NamedTuple):
    """Position of an operand: first vector, strides between rows, groups and columns, and vectors of a column."""

    first: int
    row: int = 0
    group: int = 0
    column: int = 0
    vectors: int = 1


def columnwise_kernel(
    config: Config, source: Source, start: int, counts: tuple[int, int, int], **operands: At
) -> Kernel:
    """Return a KERNEL that treats columns alike, for given numbers of rows, groups of columns, and columns of a group.

    Parameters
    ----------
    config : Config
    source : Source
        Memory of operand `src`.
    start : int
        First micro-operation of the kernel.
    counts : tuple of (int, int, int)
        Rows, groups, and columns of a group.
    operands : At
        By name: `src`, `dst`, and the kernel's other operands.
    """
    # Columns are independent, so that any nesting of the loops gives equal results.
    order = min(((0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 0, 1)), key=lambda each: _cycles(config, counts, each))
    fields: dict[str, int] = dict(zip(("ob", "oy", "ox"), (counts[place] for place in order), strict=True))
    for name, at in operands.items():
        strides = (at.row, at.group, at.column)
        fields |= {name: at.first, f"{name}_vectors": at.vectors}
        for loop, place in zip(("ob", "oy", "ox"), order, strict=True):
            fields[f"{name}_{loop}"] = strides[place] if counts[place] > 1 else 0
        if name not in (SOURCES[0], TARGETS[0]):
            fields[f"with_{name}"] = 1
    return Kernel(source=source, start=start, **fields)


def _cycles(config: Config, counts: tuple[int, int, int], order: tuple[int, int, int]) -> int:
    """Return the cycles of a micro-operation on all rows and columns, with loops in this order."""
    blocks, rows, columns = (counts[place] for place in order)
    strips, remainder = divmod(rows, STRIP_ROWS)
    minimum = kernel_min_cycles(config.groups)
    # A micro-operation takes at least `minimum` cycles for a strip of rows.
    full_strip = max(minimum, STRIP_ROWS * config.groups)
    return (
        blocks
        * columns
        * (strips * full_strip + (max(minimum, remainder * config.groups) if remainder else 0))
    )


class KernelSet:
    """Kernels of a decoder, generated for a configuration.

    Parameters
    ----------
    numbers : Integers
    config : Config
    units : sequence of float
        Steps of the token embeddings and, if there are any, the position embeddings.

    Attributes
    ----------
    ops : list of MicroOp
        Micro-operations of all kernels, one kernel after the other.
    tables : list of bytes
        Look-up tables by their number on the device.
    starts : dict of str to int
        Index of the first micro-operation of each kernel.

    Raises
    ------
    CompileError
        If the configuration has too little memory for kernels or tables, or if the model's numbers exceed the
        arithmetic's range.
    """

    def __init__(self, numbers: Integers, config: Config, units: Sequence[float]) -> None:
        try:
            kernels_by_name = build_kernels(numbers, config.n, units)
        except KernelError as error:
            raise CompileError(
                f"{describe_outlier(numbers.model)}: the device's arithmetic cannot represent both"
            ) from error
        self.tables = list(
            dict.fromkeys(table for rows in kernels_by_name.values() for table in tables_of(rows))
        )
        self.ops: list[MicroOp] = []
        self.starts: dict[str, int] = {}
        for name, rows in kernels_by_name.items():
            self.starts[name] = len(self.ops)
            table_numbers = tuple(map(self.tables.index, tables_of(rows)))
            self.ops += with_tables(generate(rows, config.n), table_numbers)
        self._config = config
        if len(self.ops) > config.kernel:
            raise CompileError(
                f"the kernels of a decoder take {len(self.ops)} micro-operations; the configuration has kernel="
                f"{config.kernel}"
            )
        if len(self.tables) > config.lookup_tables:
            raise CompileError(
                f"a decoder takes {len(self.tables)} look-up tables; the configuration has {config.lookup_tables}"
            )

    def columnwise_kernel(
        self, name: str, source: Source, counts: tuple[int, int, int], operands: Mapping[str, At]
    ) -> Kernel:
        """Return the instruction for a kernel that treats columns alike; `counts` are rows, groups, and columns of a
        group.
        """
        return columnwise_kernel(self._config, source, self.starts[name], counts, **operands)


def build_kernels(numbers: Integers, logits: int, units: Sequence[float]) -> dict[str, Rows]:
    """Return the kernels of a decoder by name; the kernel of the head has rows of `logits` columns."""
    sizes, form = numbers.model.sizes, numbers.form
    scaled = {name: items[0] for name, items in numbers.scaled.items()}  # blocks differ in mantissas only
    shifts = {name: biases.shift for name, biases in numbers.biases.items()}
    kernel_rows = {
        "begin": kernels.begin(sizes.width, *(unit / numbers.unit for unit in units)),
        "prepare": kernels.prepare(sizes.width),
        "normalise": kernels.normalise(
            sizes.width, numbers.model.epsilon, numbers.unit, gains=form.gains, centred=form.centred
        ),
        **_head_kernels(numbers),
        "value": kernels.requantise(sizes.value_length, scaled["value"], shifts.get("value")),
        "output": kernels.add(sizes.width, scaled["output"]),
        **_inner_kernels(numbers),
        "quantise": kernels.quantise(sizes.feed_forward),
        "down": kernels.add(sizes.width, scaled["down"]),
        "head": kernels.widen(logits, numbers.head_scaled, shifts.get("head")),
    }
    return kernel_rows | ({"offset": kernels.offset(sizes.width)} if form.biased & {"output", "down"} else {})


def _inner_kernels(numbers: Integers) -> dict[str, Rows]:
    """Return the kernels after the first product of a feed-forward network."""
    columns, form, places = numbers.model.sizes.feed_forward, numbers.form, numbers.inner_places
    scaled = {name: numbers.scaled[name][0] for name in ("gate", "up") if name in numbers.scaled}
    if form.gates_sums:
        return {"inner": kernels.gate_and_multiply(columns, scaled["gate"], scaled["up"], places)}
    shifts = {name: numbers.biases[name].shift if name in numbers.biases else None for name in scaled}
    if not form.gated:
        return {"inner": kernels.gelu(columns, scaled["up"], places, shifts["up"])}
    widened = {name: kernels.widen(columns, scaling, shifts[name]) for name, scaling in scaled.items()}
    return widened | {"inner": kernels.gated_digits(columns, numbers.gate_places, places)}


def _head_kernels(numbers: Integers) -> dict[str, Rows]:
    """Return the kernels of queries and keys."""
    length, form, names = numbers.model.sizes.key_length, numbers.form, ("query", "key")
    if form.rotates_sums:
        max_sums = [int(max(layer.matrices[name].sums.max() for layer in numbers.layers)) for name in names]
        arguments = zip(names, max_sums, numbers.turn, strict=True)
        return {name: kernels.rotate(length, max_sum, *rotation) for name, max_sum, rotation in arguments}
    shifts = [numbers.biases[name].shift if name in numbers.biases else None for name in names]
    make = kernels.widen if form.rotary else kernels.requantise
    kernel_rows = {
        name: make(length, numbers.scaled[name][0], shift) for name, shift in zip(names, shifts, strict=True)
    }
    return kernel_rows | ({"turn": kernels.rotate_digits(length)} if form.rotary else {})


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
                # A part may begin inside a head: finish that head before whole ones.
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
        # Biases take the operand that angles would need: a second kernel rotates.
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
        # With biases, no operand is left for the second factor: each factor gets its own kernel.
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
