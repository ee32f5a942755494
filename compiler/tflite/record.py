"""What weft knows of one operator of TFLite, or of several that are alike."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass

from weft.compiler.ir.network import DTYPES
from weft.compiler.tflite import operators
from weft.compiler.tflite.context import Context, Convert


@dataclass(frozen=True)
class Record:
    """Operators by the format's `names`, the number of inputs that they take at least and at most (None: any), what
    of ONNX they become, for the documentation, and the function that writes it. `states` are inputs that are
    variables, kept from run to run, and with `handles` tensors may be handles of variables.
    """

    names: tuple[str, ...]
    inputs: tuple[int, int | None]
    becomes: str
    convert: Convert
    states: tuple[int, ...] = ()
    handles: bool = False


OPERATORS: tuple[Record, ...] = tuple(
    record
    for found in pkgutil.iter_modules(operators.__path__)
    for record in importlib.import_module(f"{operators.__name__}.{found.name}").OPERATORS
)
NAMES = {name: record for record in OPERATORS for name in record.names}
_HANDLE = "RESOURCE"
"""The type of handles of variables."""
KEEPING = tuple(name for name, record in NAMES.items() if record.states)
"""Operators that have variables."""


def convert(context: Context) -> None:
    """Write what an operator becomes.

    Raises
    ------
    CompileError
        If weft does not read it, or it contradicts itself.
    """
    record, count = NAMES.get(context.operator.name), len(context.operator.inputs)
    if record is None:
        raise context.refuse("is none that weft reads; docs/reference/tflite.md lists those")
    least, most = record.inputs
    if count < least or (most is not None and count > most):
        wanted = f"{least}" if most == least else f"{least} or more" if most is None else f"{least} to {most}"
        raise context.refuse(f"has {count} inputs; it takes {wanted}")
    kept = [context.operator.inputs[at] for at in record.states if at < count]
    for index in (*context.operator.inputs, *context.operator.outputs):
        _check_tensor(context, index, kept=index in kept)
    for index in context.operator.inputs:
        if (
            index >= 0
            and index not in kept
            and not context.builder.known(context.builder.file.tensors[index])
        ):
            tensor = context.builder.file.tensors[index]
            raise context.refuse(f"reads {tensor.label}, which no operator in front of it makes")
    if len(set(context.operator.outputs)) < len(context.operator.outputs):
        raise context.refuse("makes one tensor twice")
    for index in context.operator.outputs:
        if index < 0 or context.builder.known(context.builder.file.tensors[index]):
            raise context.refuse(
                "makes what there is already: an input, a constant or another operator's result"
            )
        if 0 in context.builder.file.tensors[index].shape:
            raise context.refuse("makes a result without elements")
    context.builder.begin(context.name, context.operator.inputs)
    record.convert(context)


def _check_tensor(context: Context, index: int, *, kept: bool) -> None:
    """Raise `CompileError` for an index that is of no tensor, or of one that the host could not hold either."""
    tensors = context.builder.file.tensors
    if not -1 <= index < len(tensors):
        raise context.refuse(f"names tensor {index}; the file has {len(tensors)}")
    if index < 0:
        return
    tensor = tensors[index]
    if tensor.variable and not kept:
        raise context.refuse(
            f"reads or makes {tensor.label}, a variable; only {', '.join(KEEPING)} keep such"
        )
    if kept and not tensor.variable:
        raise context.refuse(f"keeps {tensor.label} from run to run, which must be a variable")
    if kept and tensor.data is not None:
        raise context.refuse(f"keeps {tensor.label}, which has contents; variables start with zeros")
    if kept and context.builder.variables.assigned(index):
        raise context.refuse(f"keeps {tensor.label}, as an operator in front of it does")
    if tensor.dtype == _HANDLE and NAMES[context.operator.name].handles:
        return
    if tensor.dtype not in DTYPES:
        raise context.refuse(f"has {tensor.label} of type {tensor.dtype}, which weft does not read")
