"""xDSL's types and attributes, and their Python counterparts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from xdsl.dialects import builtin
from xdsl.dialects.builtin import NoneAttr, StringAttr
from xdsl.ir import Attribute, BuiltinAttribute, Data
from xdsl.irdl import irdl_attr_definition
from xdsl.printer import Printer

from weft.compiler.errors import CompileError
from weft.extras.mlir.program import DTYPES, FLOATS, TensorType, check_shape, quantised_type

_NAMES = {dtype: name for name, dtype in DTYPES.items() if name not in ("si8", "index")}
_FLOATS = {"f16": builtin.f16, "bf16": builtin.BFloat16Type(), "f32": builtin.f32, "f64": builtin.f64}


def tensor_type(dtype: str, shape: tuple[int, ...], *, index: bool = False) -> Attribute:
    """Return the MLIR tensor type for numpy's element type `dtype`; `index` makes the elements indices."""
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


def parse_type(type_: Attribute, place: str) -> TensorType:
    """Return the type of a value; messages begin with `place`, its place in the text.

    Raises
    ------
    CompileError
        If weft does not read the type.
    """
    if isinstance(type_, builtin.UnregisteredAttr) and type_.attr_name.data == "tosa.shape":
        # A value of this type is a list of `rank` sizes.
        rank = type_.value.data
        return (
            TensorType("int64", (int(rank),))
            if rank.isdecimal() and int(rank) < 64
            else _refuse_type(type_, place)
        )
    if isinstance(type_, builtin.IndexType | builtin.IntegerType) or str(type_) in FLOATS:
        return TensorType(DTYPES.get(str(type_), "int64"), ())
    if not isinstance(type_, builtin.TensorType):
        return _refuse_type(type_, place)
    shape, element = check_shape(tuple(type_.get_shape()), place), type_.element_type
    if isinstance(element, builtin.UnregisteredAttr) and element.attr_name.data == "quant.uniform":
        return quantised_type(element.value.data, shape, place)
    dtype = DTYPES.get(str(element))
    return TensorType(dtype, shape) if dtype is not None else _refuse_type(type_, place)


def _refuse_type(type_: Attribute, place: str) -> TensorType:
    elements = ", ".join((*DTYPES, "!quant.uniform"))
    raise CompileError(
        f"{place}: type {str(type_)[:120]} is not supported; weft reads tensors with static shapes of {elements}"
    )


_HEX = 64
"""Largest number of elements that are printed as a list of numbers."""


@irdl_attr_definition
class Plain(Data[Any]):
    """Numbers, words and lists of an operation's own assembly form, as Python values."""

    name = "weft.plain"

    @classmethod
    def parse_parameter(cls, parser: Any) -> Any:
        raise NotImplementedError

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(str(self.data))


@irdl_attr_definition
class Elements(Data[Any], BuiltinAttribute):
    """The elements of a constant, as a broadcast array if all are equal, and their MLIR type."""

    name = "weft.elements"

    @classmethod
    def parse_parameter(cls, parser: Any) -> Any:
        raise NotImplementedError

    def print_parameter(self, printer: Printer) -> None:
        raise NotImplementedError

    def print_builtin(self, printer: Printer) -> None:
        """Print as MLIR does: one number if all are equal, else a list, or hexadecimal bytes if it is long."""
        values, kind = self.data
        printer.print_string("dense<")
        if values.size and (values == values.reshape(-1)[0]).all():
            printer.print_string(_format_number(values.reshape(-1)[0]))
        elif values.size > _HEX:
            printer.print_string(f'"0x{values.tobytes().hex().upper()}"')
        else:
            printer.print_string(_format_list(values))
        printer.print_string("> : ")
        printer.print_attribute(kind)


def _format_number(value: Any) -> str:
    if isinstance(value, np.bool_):
        return "true" if value else "false"
    # Nine digits after the point restore every float32.
    return str(int(value)) if np.issubdtype(np.asarray(value).dtype, np.integer) else f"{float(value):.9e}"


def _format_list(values: np.ndarray) -> str:
    return f"[{', '.join(map(_format_list, values))}]" if values.ndim else _format_number(values[()])


class Resource:
    """A constant whose elements are at the end of the file, under a key."""

    def __init__(self, key: str, shape: tuple[int, ...], dtype: str, place: str) -> None:
        self.key, self.shape, self.dtype, self.place = key, shape, dtype, place

    def values(self, resources: Mapping[str, str]) -> np.ndarray:
        """Return the elements, which are hexadecimal bytes after four bytes of alignment.

        Raises
        ------
        CompileError
            If the file does not have the key.
        """
        text = resources.get(self.key)
        if text is None:
            raise CompileError(
                f"{self.place}: dense_resource<{self.key[:60]}> is not in the file; print the module without leaving "
                "out large constants"
            )
        return decode_hex("0x" + text[10:], self.shape, self.dtype, self.place)


def decode_hex(text: str, shape: tuple[int, ...], dtype: str, place: str) -> np.ndarray:
    """Return the elements that a text has as hexadecimal bytes.

    Raises
    ------
    CompileError
        If the number of bytes does not match the shape.
    """
    kind, count = np.dtype(getattr(ml_dtypes, dtype, dtype)), math.prod(shape)
    try:
        data = bytes.fromhex(text[2:])
    except ValueError:
        raise CompileError(f"{place}: a constant has letters that are not hexadecimal") from None
    # MLIR packs i1 elements into bits, the lowest first; a splat is one byte of ones or zeros.
    if dtype == "bool":
        if len(data) == 1 and count != 1 and data in (b"\xff", b"\x00"):
            return np.broadcast_to(np.bool_(data == b"\xff"), shape)
        elements = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").astype(bool)
        elements = elements[:count] if len(data) == -(-count // 8) else elements[:0]
    else:
        elements = np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind)
    # The bytes of one element stand for a splat.
    if len(data) == kind.itemsize and count != 1 and dtype != "bool":
        return np.broadcast_to(elements[0], shape)
    if elements.size != count or (dtype != "bool" and len(data) != count * kind.itemsize):
        raise CompileError(
            f"{place}: a constant of {dtype} has {len(data):,} bytes in hexadecimal for {count:,} elements"
        )
    return elements.reshape(shape)


def decode_float_bits(literal: Any, kind: np.dtype) -> Any:
    """Replace hexadecimal float bits in a literal by their numbers."""
    if isinstance(literal, list):
        return [decode_float_bits(item, kind) for item in literal]
    if not isinstance(literal, str):
        return literal
    number = int(literal, 16)
    if np.issubdtype(kind, np.integer):
        return number
    return float(np.array(number, f"uint{8 * kind.itemsize}").view(kind))


def plain(value: Any) -> Any:
    """Return an attribute as Python values: numbers, text, lists and dictionaries."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Plain):
        return plain(value.data)
    if isinstance(value, Elements):
        return value.data[0]
    if isinstance(value, NoneAttr):
        return None
    if isinstance(value, StringAttr):
        return value.data
    return _plain_attribute(value) if isinstance(value, Attribute) else value


def _plain_attribute(value: Attribute) -> Any:
    """Convert an attribute class of xDSL; unknown classes become text."""
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
