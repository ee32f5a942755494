"""All operations of MLIR that weft reads: those of every file in `weft.extras.mlir.operators`."""

from __future__ import annotations

import importlib
import pkgutil

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.extras.mlir import operators
from weft.extras.mlir.builder import compact
from weft.extras.mlir.context import Context
from weft.extras.mlir.record import Record

OPERATORS: tuple[Record, ...] = tuple(
    record
    for found in pkgutil.iter_modules(operators.__path__)
    for record in importlib.import_module(f"{operators.__name__}.{found.name}").OPERATORS
)
NAMES = {name: record for record in OPERATORS for name in record.names}
_FOLDED = 1 << 20
"""Most elements of a constant that is computed while reading; what is larger, the model's nodes make."""


def convert(context: Context) -> None:
    """Write what an operation becomes.

    Raises
    ------
    CompileError
        If weft does not read it, or it contradicts itself.
    """
    op, builder = context.op, context.builder
    record, count = NAMES.get(op.name), len(op.operands)
    if record is None:
        raise context.refuse(
            "is none that weft reads; extras/mlir/operations.md lists the supported operations"
        )
    least, most = record.operands
    if count < least or (most is not None and count > most):
        wanted = f"{least}" if most == least else f"{least} or more" if most is None else f"{least} to {most}"
        raise context.refuse(f"has {count} operands; it takes {wanted}")
    if not op.results or len(op.results) > 1:
        raise context.refuse(f"has {len(op.results)} results; weft reads it with one")
    if 0 in op.results[0].type.shape:
        raise context.refuse("makes a result without elements")
    builder.op = op
    try:
        if not _folded(context, record):
            record.convert(context)
    except CompileError:
        raise
    except (KeyError, IndexError, ValueError, TypeError, OverflowError, ArithmeticError) as error:
        told = " ".join(str(error).split())[:160]
        raise context.refuse(f"contradicts itself: {told or type(error).__name__}") from None
    for value in op.results:
        builder.makers[value] = op


def _folded(context: Context, record: Record) -> bool:
    """Compute the result of constants."""
    op, arrays = context.op, context.builder.arrays
    if record.fold is None or not op.operands or any(value not in arrays for value in op.operands):
        return False
    if any(value.type.quantisation is not None for value in (*op.operands, *op.results)):
        return False
    given = [compact(arrays[value]) for value in op.operands]
    if max(item.size for item in given) > _FOLDED:
        return False
    with np.errstate(all="ignore"):
        made = record.fold(context, *given)
    if made is None:
        return False
    type_ = op.results[0].type
    if made.ndim != len(type_.shape) or np.dtype(made.dtype).name != type_.dtype:
        raise context.refuse(f"makes a constant of {made.dtype} of shape {made.shape} for {type_}")
    arrays[op.results[0]] = np.broadcast_to(made, type_.shape)
    return True
