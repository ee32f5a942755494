"""xDSL's types and attributes, and what they are in `weft.extras.mlir.program`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.dialects import builtin
from xdsl.ir import Attribute

from weft.compiler.ir.graph import CompileError
from weft.extras.mlir.program import DTYPES, FLOATS, TensorType, check_shape, quantised_type

_NAMES = {dtype: name for name, dtype in DTYPES.items() if name not in ("si8", "index")}
_FLOATS = {"f16": builtin.f16, "bf16": builtin.BFloat16Type(), "f32": builtin.f32, "f64": builtin.f64}


def tensor_type(dtype: str, shape: tuple[int, ...], *, index: bool = False) -> Attribute:
    """The type of a tensor of elements as numpy calls them; with `index`, of indices."""
    name = _NAMES[dtype]
    element: Any
    if index:
        element = builtin.IndexType()
    elif name in FLOATS:
        element = _FLOATS[name]
    elif name.startswith("u"):
        element = builtin.IntegerType(int(name[2:]), builtin.Signedness.UNSIGNED)
    else:
        element = builtin.IntegerType(int(name[1:]))
    return builtin.TensorType(element, shape)


def type_of(given: Attribute, where: str) -> TensorType:
    """What a type of a value is.

    Raises
    ------
    CompileError
        If it is none that weft reads.
    """
    if isinstance(given, builtin.UnregisteredAttr) and given.attr_name.data == "tosa.shape":
        rank = given.value.data
        return (
            TensorType("int64", (int(rank),))
            if rank.isdecimal() and int(rank) < 64
            else _unread(given, where)
        )
    if isinstance(given, builtin.IndexType | builtin.IntegerType) or str(given) in FLOATS:
        return TensorType(DTYPES.get(str(given), "int64"), ())
    if not isinstance(given, builtin.TensorType):
        return _unread(given, where)
    shape, element = check_shape(tuple(given.get_shape()), where), given.element_type
    if isinstance(element, builtin.UnregisteredAttr) and element.attr_name.data == "quant.uniform":
        return quantised_type(element.value.data, shape, where)
    dtype = DTYPES.get(str(element))
    return TensorType(dtype, shape) if dtype is not None else _unread(given, where)


def _unread(given: Attribute, where: str) -> TensorType:
    elements = ", ".join((*DTYPES, "!quant.uniform"))
    raise CompileError(
        f"{where}: type {str(given)[:120]} is none that weft reads; those are tensors with static shapes of {elements}"
    )


def of_attribute(value: Attribute, plain: Callable[[Any], Any]) -> Any:
    """What an attribute of xDSL's own stands for; text for those that it does not know."""
    if isinstance(value, builtin.IntegerAttr):
        boolean = isinstance(value.type, builtin.IntegerType) and value.type.width.data == 1
        return bool(value.value.data) if boolean else int(value.value.data)
    if isinstance(value, builtin.FloatAttr):
        return float(value.value.data)
    if isinstance(value, builtin.ArrayAttr):
        return [plain(item) for item in value.data]
    if isinstance(value, builtin.DictionaryAttr):
        return {key: plain(item) for key, item in value.data.items()}
    if isinstance(value, builtin.DenseArrayBase):
        return list(value.get_values())
    if isinstance(value, builtin.BytesAttr):  # text with letters that are not ASCII
        return value.data.decode("utf-8", errors="replace")
    if isinstance(value, builtin.SymbolRefAttr):
        return value.string_value()
    if isinstance(value, builtin.UnitAttr):
        return True
    if isinstance(value, builtin.UnregisteredAttr):
        return value.value.data
    return str(value)
