"""Min, Max, Div and Pow of two activations, of which one may repeat or have one number for each row."""

from __future__ import annotations

import math
from typing import NamedTuple

from weft.compiler.ir.graph import View
from weft.compiler.ir.layout import Layout
from weft.compiler.kernel.row_operators import RowPair
from weft.compiler.kernel.row_power import MOST, TABLES, RowPower
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.limits import PITCH_MAX
from weft.compiler.onnx.conditions import kernel_room
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.operators.normalised_rows import scales_rows
from weft.compiler.onnx.qdq import Activation, Pending, Quant, Tensor, result
from weft.compiler.onnx.reorder import placed
from weft.compiler.onnx.repeats import Operands, operands
from weft.compiler.onnx.row_forms import repeats, rows_of


class _Pair(NamedTuple):
    """Two operands as the device sees them, the first of the result's shape; `swapped` if it is the second input."""

    tensors: tuple[Tensor, Tensor]
    quants: tuple[Quant, Quant]
    views: tuple[View, View]
    layout: Layout
    swapped: bool

    @property
    def given(self) -> tuple[Quant, Quant]:
        """Parameters of the node's inputs, in their order."""
        first, second = self.quants
        return (second, first) if self.swapped else (first, second)


def element_pairs(context: NodeContext) -> str | None:
    """Of two int8 or uint8 activations that Min, Max, Div and Pow take, one may repeat."""
    found = _pair(context)
    return found if isinstance(found, str) else None


def pair_length(context: NodeContext) -> str | None:
    """Pixels of Min, Max, Div and Pow, of operands and result, must fit the scratchpad, and each 65535 bytes."""
    found, config = _pair(context), context.model.config
    assert not isinstance(found, str)
    count = found.views[0].shape[3]
    fits = count <= PITCH_MAX and 3 * ceil_div(count, config.n) <= config.scratchpad_size
    return None if fits else f"there are {count} channels"


def _pair(context: NodeContext) -> _Pair | str:
    found = operands(context)
    if isinstance(found, Operands):
        return _Pair(found.tensors, found.quants, found.views, found.layout, found.swapped)
    numbers = (_number(context, at) for at in (0, 1)) if len(context.symbols) == 2 else ()
    return next((pair for pair in numbers if pair is not None), found)


def _number(context: NodeContext, at: int) -> _Pair | None:
    """Input `at` with the result's shape, and the other with one number for each row of it."""
    whole, other = context.symbol(at), context.symbol(1 - at)
    shape, part = context.shape(at), context.shape(1 - at)
    if not (isinstance(whole, Activation) and isinstance(other, Activation)) or shape != context.output:
        return None
    padded = (1,) * (len(shape) - len(part)) + part
    axes = tuple(axis for axis, size in enumerate(padded) if size == 1 < shape[axis])
    found = rows_of(whole.tensor, shape, axes) if axes and repeats(part, shape, axes) else None
    if found is None:
        return None
    rows = Layout(padded, tuple(range(len(padded))), (*found.layout.nhwc[:3], 1))
    number = placed(other.tensor, rows)
    if number is None:
        return None
    views = found.tensor.view(), number.view()
    return _Pair((found.tensor, number), (whole.quant, other.quant), views, found.layout, at == 1)


def power_base(context: NodeContext) -> str | None:
    """The base of Pow must not be negative for any value there can be: its zero point must be the least."""
    base, _ = _power(context)
    zero = base.zero + 128 * base.unsigned
    return None if base.zero == -128 else f"the zero point of {context.node.inputs[0]!r} is {zero}"


def power_range(context: NodeContext) -> str | None:
    """Exponents of Pow, times logarithms of what is raised to them, must be at most 100."""
    base, exponent = _power(context)
    levels = math.log(base.scale), math.log(255 * base.scale)
    steps = max(abs(-128 - exponent.zero), 127 - exponent.zero)
    most = steps * exponent.scale * max(map(abs, levels))
    return None if most <= MOST else f"they are up to {most:.4g}"


def power_tables(context: NodeContext) -> str | None:
    """Pow of two activations takes four look-up tables."""
    count = context.model.config.lookup_tables
    return None if count >= TABLES else f"there are {count}"


def _power(context: NodeContext) -> tuple[Quant, Quant]:
    """Of base and exponent."""
    found = _pair(context)
    assert not isinstance(found, str)
    return found.given


def raised(context: NodeContext) -> Pending:
    """The device's RowPower."""
    found = _pair(context)
    assert not isinstance(found, str)
    base, exponent = found.given
    made = RowPower(
        context.node.name, *found.views, result(found.views[0].shape), base.scale, exponent.scale, exponent.zero,
        swapped=found.swapped,
    )  # fmt: skip
    return Pending((made,), found.layout, found.tensors, (context.node.index,))


def combined(context: NodeContext) -> Pending:
    """The device's RowPair."""
    found, op = _pair(context), context.node.op
    assert not isinstance(found, str)
    a, b = found.quants
    kind = {"Min": "minimum", "Max": "maximum"}.get(op, "ratio" if found.swapped else "quotient")
    scales = (a.scale, b.scale)
    if op == "Div":
        first, second = found.given
        scales = (first.scale / second.scale, 1.0)
    made = RowPair(
        context.node.name, *found.views, result(found.views[0].shape), kind, *scales, a.zero, b.zero
    )
    return Pending((made,), found.layout, found.tensors, (context.node.index,))


def _two(context: NodeContext) -> bool:
    """Whether a node has two activations, which are no functions of the same one."""
    kinds = [type(symbol) for symbol in context.symbols]
    return kinds == [Activation, Activation] and not context.functions and not scales_rows(context)


OPERATORS = (
    Operator(
        ("Div", "Max", "Min"),
        (kernel_room, element_pairs, pair_length),
        combined,
        applies=_two,
        title="Div, Max, Min of two activations",
    ),
    Operator(
        ("Pow",),
        (kernel_room, element_pairs, pair_length, power_base, power_range, power_tables),
        raised,
        applies=_two,
        title="Pow of two activations",
    ),
)
