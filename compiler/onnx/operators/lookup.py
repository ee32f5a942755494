"""Functions of one int8 or uint8 value, element by element, as tables of 256 entries."""

from __future__ import annotations

from weft.compiler.ir.graph import Rescale
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.elementwise import ARITHMETIC, MOVES, PLAIN
from weft.compiler.onnx.functions import Function
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.operators.quantise import per_tensor, scales_fit
from weft.compiler.onnx.qdq import Activation, Pending, Recipe, Tensor, result_of


def one_value(context: NodeContext) -> str | None:
    """The operator must be computed, element by element, from one int8 or uint8 activation and constants."""
    if context.functions:
        return None
    other = next((name for name, given in zip(context.node.inputs, context.arguments, strict=True)
                  if name and not given and name not in context.model.constants), None)  # fmt: skip
    return f"inputs are {context.inputs}" if other is None else f"input {other!r} is not"


def tables(context: NodeContext) -> str | None:
    """The configuration must have look-up tables ('lookup_tables' above 0)."""
    return None if context.model.config.lookup_tables else ""


def numbers(context: NodeContext) -> str | None:
    """What is computed must be a number for each of the 256 values that the activation can have."""
    if any(function.entries.defined for function in context.functions):
        return None
    return context.functions[0].entries.cause


def looked_up(context: NodeContext) -> Recipe:
    """The table of a function, from its root to the QuantizeLinear at its end."""
    function = _chosen(context)
    assert function is not None
    root, name = function.root, context.node.outputs[0]
    view = result_of(name, root.layout.nhwc)
    op = Rescale(context.node.name, root.view(), view, lookup=function.entries.stored)
    unsigned = context.model.dtypes[name] == "uint8"
    output = Tensor(name, name, root.layout, root.layout, unsigned, hosted=False, looked_up=True)
    nodes = tuple(dict.fromkeys((*root.via, *function.nodes)))
    return Recipe(output, (op,), (root,), nodes, ())


def _chosen(context: NodeContext) -> Function | None:
    """The function that a QuantizeLinear ends as a table, None if there is none or it is only a requantisation.

    It is that of the nearest root, so that no older tensor is kept for it; where nothing else reads that, the next.
    """
    source = _requantised(context)
    if source is not None and not source.looked_up:
        return None
    usable = (function for function in context.functions if function.entries.defined)
    nearest = found = next(usable, None)
    while found is not None and _private(context, found):
        older = next(usable, None)
        if older is None:
            break
        found = older
    return None if source is not None and found is nearest else found


def _requantised(context: NodeContext) -> Tensor | None:
    """The tensor that the input of a QuantizeLinear is, but for scale, zero point and clamp, if that is one."""
    symbol = context.symbol(0)
    if isinstance(symbol, Activation):
        source = symbol.tensor
    elif isinstance(symbol, Pending) and isinstance(symbol.ops[0], Rescale) and len(symbol.ops) == 1:
        source = symbol.inputs[0]
    else:
        return None
    return source if scales_fit(context) is None else None


def _private(context: NodeContext, function: Function) -> bool:
    """Whether only the nodes of a function read its root, and all that is made of it on the way."""
    inside = {*function.root.via, *function.nodes}
    names = [function.root.value]
    for name in names:
        if name in context.model.outputs:
            return False
        for user in context.model.users(name):
            if user.index not in inside:
                return False
            if user.index != context.node.index:
                names += [made for made in user.outputs if made not in names]
    return True


def _ends(context: NodeContext) -> bool:
    """Whether a QuantizeLinear ends a function that needs a table."""
    if not context.functions or not context.model.config.lookup_tables or per_tensor(context) is not None:
        return False
    return _chosen(context) is not None


def _is_function(context: NodeContext) -> bool:
    return bool(context.functions)


def _passed(context: NodeContext) -> None:
    """No symbol: what is known of the result is that it is a function."""


_OTHERS = (*ARITHMETIC, *MOVES)

OPERATORS = (
    Operator(("QuantizeLinear",), (per_tensor,), looked_up, applies=_ends),
    Operator(PLAIN, (one_value, tables, numbers), _passed, elementwise=True),
    Operator(
        _OTHERS,
        (tables, numbers),
        _passed,
        applies=_is_function,
        elementwise=True,
        title=f"{', '.join(sorted(_OTHERS))} in functions of one activation",
    ),
)
