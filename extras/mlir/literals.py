"""Constants and other attributes as Python has them: arrays, numbers, words and lists, in xDSL's attributes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import NoneAttr, StringAttr
from xdsl.ir import Attribute, BuiltinAttribute, Data
from xdsl.irdl import irdl_attr_definition
from xdsl.printer import Printer

from weft.compiler.ir.graph import CompileError
from weft.extras.mlir.types import of_attribute

_HEX = 64
"""Most elements of a constant that are printed as numbers."""


@irdl_attr_definition
class Plain(Data[Any]):
    """What an operation's own form says: numbers, words and lists as Python has them."""

    name = "weft.plain"

    @classmethod
    def parse_parameter(cls, parser: Any) -> Any:
        raise NotImplementedError

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(str(self.data))


@irdl_attr_definition
class Elements(Data[Any], BuiltinAttribute):
    """The elements of a constant as an array, in which one number for all takes the space of one; and their type."""

    name = "weft.elements"

    @classmethod
    def parse_parameter(cls, parser: Any) -> Any:
        raise NotImplementedError

    def print_parameter(self, printer: Printer) -> None:
        raise NotImplementedError

    def print_builtin(self, printer: Printer) -> None:
        """Print them as MLIR does: one number if all are alike, else numbers, or bytes in hexadecimal."""
        values, kind = self.data
        printer.print_string("dense<")
        if values.size and (values == values.reshape(-1)[0]).all():
            printer.print_string(_shown(values.reshape(-1)[0]))
        elif values.size > _HEX:
            printer.print_string(f'"0x{values.tobytes().hex().upper()}"')
        else:
            printer.print_string(_listed(values))
        printer.print_string("> : ")
        printer.print_attribute(kind)


def _shown(value: Any) -> str:
    if isinstance(value, np.bool_):
        return "true" if value else "false"
    return str(int(value)) if np.issubdtype(np.asarray(value).dtype, np.integer) else f"{float(value):.9e}"


def _listed(values: np.ndarray) -> str:
    return f"[{', '.join(map(_listed, values))}]" if values.ndim else _shown(values[()])


class Resource:
    """Elements that stand at the end of the file, by their key."""

    def __init__(self, key: str, shape: tuple[int, ...], dtype: str, where: str) -> None:
        self.key, self.shape, self.dtype, self.where = key, shape, dtype, where

    def values(self, resources: Mapping[str, str]) -> np.ndarray:
        """The elements: bytes in hexadecimal, of which the first four are an alignment.

        Raises
        ------
        CompileError
            If they are not in the file.
        """
        text = resources.get(self.key)
        if text is None:
            raise CompileError(
                f"{self.where}: dense_resource<{self.key[:60]}> is not in the file; print the module without leaving "
                "out large constants"
            )
        return of_hex("0x" + text[10:], self.shape, self.dtype, self.where)


def of_hex(text: str, shape: tuple[int, ...], dtype: str, where: str) -> np.ndarray:
    """Elements whose bytes a text has in hexadecimal.

    Raises
    ------
    CompileError
        If they are not as many as the shape says.
    """
    kind, count = np.dtype(getattr(ml_dtypes, dtype, dtype)), math.prod(shape)
    try:
        data = bytes.fromhex(text[2:])
    except ValueError:
        raise CompileError(f"{where}: a constant has letters that are not hexadecimal") from None
    if dtype == "bool":
        if len(data) == 1 and count != 1 and data in (b"\xff", b"\x00"):
            return np.broadcast_to(np.bool_(data == b"\xff"), shape)
        found = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").astype(bool)
        found = found[:count] if len(data) == -(-count // 8) else found[:0]
    else:
        found = np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind)
    if len(data) == kind.itemsize and count != 1 and dtype != "bool":
        return np.broadcast_to(found[0], shape)
    if found.size != count or (dtype != "bool" and len(data) != count * kind.itemsize):
        raise CompileError(
            f"{where}: a constant of {dtype} has {len(data):,} bytes in hexadecimal for {count:,} elements"
        )
    return found.reshape(shape)


def bits(literal: Any, kind: np.dtype) -> Any:
    """A literal with numbers for the bits that floats in hexadecimal are."""
    if isinstance(literal, list):
        return [bits(item, kind) for item in literal]
    if not isinstance(literal, str):
        return literal
    number = int(literal, 16)
    if np.issubdtype(kind, np.integer):
        return number
    return float(np.array(number, f"uint{8 * kind.itemsize}").view(kind))


def plain(value: Any) -> Any:
    """What an attribute stands for: numbers, text, lists and dictionaries."""
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
    if isinstance(value, Attribute):
        return of_attribute(value, plain)
    return value
