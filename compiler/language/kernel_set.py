"""The kernels of a decoder in the memory of the kernel engine, and their look-up tables."""

from __future__ import annotations

from weft.compiler.ir.graph import CompileError
from weft.compiler.kernel.code import generate, tables_of, with_tables
from weft.compiler.kernel.expressions import Rows
from weft.compiler.language import kernels
from weft.compiler.language.integers import Integers
from weft.hdl.isa import MicroOp
from weft.hdl.isa.config import Config


class KernelSet:
    """See the module.

    Parameters
    ----------
    numbers : Integers
    config : Config
    embedding_unit : float
        The step of embeddings.

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
        If there are more than the configuration has room for.
    """

    def __init__(self, numbers: Integers, config: Config, embedding_unit: float) -> None:
        named = _named(numbers, config.n, embedding_unit)
        self.tables = list(dict.fromkeys(table for rows in named.values() for table in tables_of(rows)))
        self.ops: list[MicroOp] = []
        self.starts: dict[str, int] = {}
        for name, rows in named.items():
            self.starts[name] = len(self.ops)
            numbered = tuple(map(self.tables.index, tables_of(rows)))
            self.ops += with_tables(generate(rows, config.n), numbered)
        if len(self.ops) > config.kernel:
            raise CompileError(
                f"the kernels of a decoder take {len(self.ops)} micro-operations; the configuration has kernel="
                f"{config.kernel}"
            )
        if len(self.tables) > config.lookup_tables:
            raise CompileError(
                f"a decoder takes {len(self.tables)} look-up tables; the configuration has {config.lookup_tables}"
            )


def _named(numbers: Integers, n: int, embedding_unit: float) -> dict[str, Rows]:
    """The kernels by name."""
    sizes = numbers.model.sizes
    scaled = {name: items[0] for name, items in numbers.scaled.items()}  # but for mantissas blocks are alike
    query, key = (
        int(max(getattr(layer, name).sums.max() for layer in numbers.layers)) for name in ("query", "key")
    )
    return {
        "begin": kernels.begin(sizes.width, embedding_unit / numbers.unit),
        "prepare": kernels.prepare(sizes.width),
        "normalise": kernels.normalise(
            sizes.width, numbers.model.epsilon, numbers.unit, gains=bool(numbers.gains)
        ),
        "query": kernels.rotate(sizes.key_length, query, *numbers.turn[0]),
        "key": kernels.rotate(sizes.key_length, key, *numbers.turn[1]),
        "value": kernels.requantise(sizes.value_length, scaled["value"]),
        "output": kernels.add(sizes.width, scaled["output"]),
        "gate": kernels.gated(sizes.feed_forward, scaled["gate"], scaled["up"], numbers.gate_places),
        "quantise": kernels.quantise(sizes.feed_forward),
        "down": kernels.add(sizes.width, scaled["down"]),
        "head": kernels.logits(n, numbers.head_scaled),
    }
