"""Records of TFLite operators, and the conversion of one operator."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass

from weft.compiler.ir.network import DTYPES
from weft.compiler.tflite import operators
from weft.compiler.tflite.context import Context, Convert


@dataclass(frozen=True)
class Record:
    """Record of one TFLite operator, or of several similar operators.

    Attributes
    ----------
    names : tuple of str
        Names in the file format.
    inputs : tuple of int
        Least and greatest number of inputs (None: any).
    becomes : str
        ONNX operators after the conversion, for the documentation.
    convert : Convert
        Function that converts the operator.
    states : tuple of int
        Inputs that are variables.
    handles : bool
        Tensors may be handles of variables.
    """

    names: tuple[str, ...]
    inputs: tuple[int, int | None]
    becomes: str
    convert: Convert
    states: tuple[int, ...] = ()
    handles: bool = False


OPERATORS: tuple[Record, ...] = tuple(
    record
    for module in pkgutil.iter_modules(operators.__path__)
    for record in importlib.import_module(f"{operators.__name__}.{module.name}").OPERATORS
)
NAMES = {name: record for record in OPERATORS for name in record.names}
_HANDLE = "RESOURCE"
"""Type of handles of variables."""
STATEFUL = tuple(name for name, record in NAMES.items() if record.states)
"""Operators with state."""


def convert(context: Context) -> None:
    """Convert an operator.

    Raises
    ------
    CompileError
        If weft does not support it, or it contradicts itself.
    """
    record, count = NAMES.get(context.operator.name), len(context.operator.inputs)
    if record is None:
        raise context.refuse("is not supported; docs/reference/tflite.md lists the supported operators")
    least, most = record.inputs
    if count < least or (most is not None and count > most):
        expected = (
            f"{least}" if most == least else f"{least} or more" if most is None else f"{least} to {most}"
        )
        raise context.refuse(f"has {count} inputs; it takes {expected}")
    states = [context.operator.inputs[at] for at in record.states if at < count]
    for index in (*context.operator.inputs, *context.operator.outputs):
        _check_tensor(context, index, state=index in states)
    for index in context.operator.inputs:
        if (
            index >= 0
            and index not in states
            and not context.builder.is_known(context.builder.file.tensors[index])
        ):
            tensor = context.builder.file.tensors[index]
            raise context.refuse(f"reads {tensor.label}, which no earlier operator writes")
    if len(set(context.operator.outputs)) < len(context.operator.outputs):
        raise context.refuse("writes one tensor twice")
    for index in context.operator.outputs:
        if index < 0 or context.builder.is_known(context.builder.file.tensors[index]):
            raise context.refuse(
                "writes a tensor that exists already: an input, a constant or another operator's result"
            )
        if 0 in context.builder.file.tensors[index].shape:
            raise context.refuse("has a result without elements")
    context.builder.begin(context.name, context.operator.inputs)
    record.convert(context)


def _check_tensor(context: Context, index: int, *, state: bool) -> None:
    """Raise `CompileError` for an index or a tensor that the operator cannot use."""
    tensors = context.builder.file.tensors
    if not -1 <= index < len(tensors):
        raise context.refuse(f"names tensor {index}; the file has {len(tensors)}")
    if index < 0:
        return
    tensor = tensors[index]
    if tensor.variable and not state:
        raise context.refuse(f"reads or writes {tensor.label}, a variable; only {', '.join(STATEFUL)} may")
    if state and not tensor.variable:
        raise context.refuse(f"keeps {tensor.label} from run to run, which must be a variable")
    if state and tensor.data is not None:
        raise context.refuse(f"keeps {tensor.label}, which has contents; variables start with zeros")
    if state and context.builder.variables.is_assigned(index):
        raise context.refuse(f"keeps {tensor.label}, as an earlier operator does")
    if tensor.dtype == _HANDLE and NAMES[context.operator.name].handles:
        return
    if tensor.dtype not in DTYPES:
        raise context.refuse(f"has {tensor.label} of type {tensor.dtype}, which weft does not read")
