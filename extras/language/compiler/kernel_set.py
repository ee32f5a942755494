"""The kernels of a decoder in the memory of the kernel engine, and their look-up tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.compiler.ir.graph import CompileError
from weft.compiler.kernel.code import generate, tables_of, with_tables
from weft.compiler.kernel.expressions import KernelError, Rows
from weft.extras.language.compiler import kernels
from weft.extras.language.compiler.integers import Integers, outlier
from weft.extras.language.compiler.spread import At, spread
from weft.hdl.isa import Kernel, MicroOp, Source
from weft.hdl.isa.config import Config


class KernelSet:
    """See the module.

    Parameters
    ----------
    numbers : Integers
    config : Config
    units : sequence of float
        The steps of embeddings: of tokens, and of positions if they have any.

    Attributes
    ----------
    ops : list of MicroOp
        Those of all kernels, one behind the other.
    tables : list of bytes
        By their number in the device.
    starts : dict of str to int
        The first micro-operation of each kernel, by name.

    Raises
    ------
    CompileError
        If there are more than the configuration has room for, or if the numbers of the model leave their range.
    """

    def __init__(self, numbers: Integers, config: Config, units: Sequence[float]) -> None:
        try:
            kernels_named = named(numbers, config.n, units)
        except KernelError as error:
            raise CompileError(
                f"{outlier(numbers.model)}: the device's arithmetic has no room for both"
            ) from error
        self.tables = list(
            dict.fromkeys(table for rows in kernels_named.values() for table in tables_of(rows))
        )
        self.ops: list[MicroOp] = []
        self.starts: dict[str, int] = {}
        for name, rows in kernels_named.items():
            self.starts[name] = len(self.ops)
            numbered = tuple(map(self.tables.index, tables_of(rows)))
            self.ops += with_tables(generate(rows, config.n), numbered)
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

    def spread(
        self, name: str, source: Source, counts: tuple[int, int, int], operands: Mapping[str, At]
    ) -> Kernel:
        """The instruction for a kernel that does the same to each column: of so many rows, groups of columns, and
        columns of a group."""
        return spread(self._config, source, self.starts[name], counts, **operands)


def named(numbers: Integers, logits: int, units: Sequence[float]) -> dict[str, Rows]:
    """The kernels by name, those that the form of a decoder takes; that of the head for rows of so many `logits`."""
    sizes, form = numbers.model.sizes, numbers.form
    scaled = {name: items[0] for name, items in numbers.scaled.items()}  # but for mantissas blocks are alike
    shifts = {name: biases.shift for name, biases in numbers.biases.items()}
    found = {
        "begin": kernels.begin(sizes.width, *(unit / numbers.unit for unit in units)),
        "prepare": kernels.prepare(sizes.width),
        "normalise": kernels.normalise(
            sizes.width, numbers.model.epsilon, numbers.unit, gains=form.gains, centred=form.centred
        ),
        **_heads(numbers),
        "value": kernels.requantise(sizes.value_length, scaled["value"], shifts.get("value")),
        "output": kernels.add(sizes.width, scaled["output"]),
        **_inner(numbers),
        "quantise": kernels.quantise(sizes.feed_forward),
        "down": kernels.add(sizes.width, scaled["down"]),
        "head": kernels.widen(logits, numbers.head_scaled, shifts.get("head")),
    }
    return found | ({"offset": kernels.offset(sizes.width)} if form.biased & {"output", "down"} else {})


def _inner(numbers: Integers) -> dict[str, Rows]:
    """The kernels behind the first product of a feed-forward network."""
    columns, form, places = numbers.model.sizes.feed_forward, numbers.form, numbers.inner_places
    scaled = {name: numbers.scaled[name][0] for name in ("gate", "up") if name in numbers.scaled}
    if form.gated_sums:
        return {"inner": kernels.gated(columns, scaled["gate"], scaled["up"], places)}
    shifts = {name: numbers.biases[name].shift if name in numbers.biases else None for name in scaled}
    if not form.gated:
        return {"inner": kernels.gelu(columns, scaled["up"], places, shifts["up"])}
    wide = {name: kernels.widen(columns, each, shifts[name]) for name, each in scaled.items()}
    return wide | {"inner": kernels.opened(columns, numbers.gate_places, places)}


def _heads(numbers: Integers) -> dict[str, Rows]:
    """The kernels of queries and keys."""
    length, form, names = numbers.model.sizes.key_length, numbers.form, ("query", "key")
    if form.turned_sums:
        most = [int(max(layer.matrices[name].sums.max() for layer in numbers.layers)) for name in names]
        every = zip(names, most, numbers.turn, strict=True)
        return {name: kernels.rotate(length, largest, *turn) for name, largest, turn in every}
    shifts = [numbers.biases[name].shift if name in numbers.biases else None for name in names]
    make = kernels.widen if form.rotary else kernels.requantise
    found = {
        name: make(length, numbers.scaled[name][0], shift) for name, shift in zip(names, shifts, strict=True)
    }
    return found | ({"turn": kernels.turn(length)} if form.rotary else {})
