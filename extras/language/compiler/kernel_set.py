"""Kernels of a decoder in the kernel engine's memory, and their look-up tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.compiler.errors import CompileError, KernelError
from weft.compiler.kernel.code import generate, tables_of, with_tables
from weft.compiler.kernel.expressions import Rows
from weft.extras.language.compiler import kernels
from weft.extras.language.compiler.integers import Integers, describe_outlier
from weft.extras.language.compiler.spread import At, columnwise_kernel
from weft.hdl.isa import Kernel, MicroOp, Source
from weft.hdl.isa.config import Config


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
        return {"inner": kernels.gated(columns, scaled["gate"], scaled["up"], places)}
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
