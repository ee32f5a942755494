"""Read MLIR text as a network of ONNX's operators on values that may be quantised."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.network import MAX_NODES, ModelFormat, Network, Type
from weft.extras.mlir import operators
from weft.extras.mlir.builder import Builder, compact
from weft.extras.mlir.context import Context, Record
from weft.extras.mlir.program import Op, Program, Quantisation, Value, import_with_xdsl

OPERATORS: tuple[Record, ...] = tuple(
    record
    for module in pkgutil.iter_modules(operators.__path__)
    for record in importlib.import_module(f"{operators.__name__}.{module.name}").OPERATORS
)
NAMES = {name: record for record in OPERATORS for name in record.names}
_LARGEST_FOLDED = 1 << 20
"""Largest number of elements in a constant that is computed while reading; nodes compute larger ones."""
BYTES = 1 << 29
"""Size of the largest file."""
# Comments and aliases may come before the first operation.
_HEAD = re.compile(
    rb"\s*(//[^\n]*\n\s*|#[A-Za-z_][\w$.-]*\s*=[^\n]*\n\s*)*(module\b|\"?builtin\.module\b|\"?func\.func\b|#loc\d*\s*=|!\w+\s*=)"
)
_BYTECODE = b"ML\xefR"
_ENDS = ("float32", "float16", "int8", "uint8", "int16", "int32", "int64", "bool")
"""Types that inputs and outputs may have."""
_OF_INTEGERS = {"MatMulInteger", "ConvInteger"}
"""Operators that only quantised models have."""
HOW_TO_QUANTISE = (
    "quantise the model before exporting it, so that the text has !quant.uniform types, quantisation written out as "
    "divide, round_nearest_even, clamp and convert, or operations of TOSA on i8"
)


def convert_operation(context: Context) -> None:
    """Write the nodes of one operation into the network.

    Raises
    ------
    CompileError
        If weft does not read the operation, or its attributes contradict its types.
    """
    op, builder = context.op, context.builder
    record, count = NAMES.get(op.name), len(op.operands)
    if record is None:
        raise context.refuse("is not supported; extras/mlir/operations.md lists the supported operations")
    least, most = record.operands
    if count < least or (most is not None and count > most):
        wanted = f"{least}" if most == least else f"{least} or more" if most is None else f"{least} to {most}"
        raise context.refuse(f"has {count} operands; it takes {wanted}")
    if not op.results or len(op.results) > 1:
        raise context.refuse(f"has {len(op.results)} results; weft reads it with one")
    if 0 in op.results[0].type.shape:
        raise context.refuse("has a result without elements")
    builder.op = op
    # Attributes come from an untrusted file: index and type errors below are the file's fault, not weft's.
    try:
        if not _fold_constants(context, record):
            record.convert(context)
    except CompileError:
        raise
    except (KeyError, IndexError, ValueError, TypeError, OverflowError, ArithmeticError) as error:
        message = " ".join(str(error).split())[:160]
        raise context.refuse(f"contradicts itself: {message or type(error).__name__}") from None
    for value in op.results:
        builder.producers[value] = op


def _fold_constants(context: Context, record: Record) -> bool:
    """Compute the result if all operands are constant; return whether that was done."""
    op, arrays = context.op, context.builder.arrays
    if record.fold is None or not op.operands or any(value not in arrays for value in op.operands):
        return False
    if any(value.type.quantisation is not None for value in (*op.operands, *op.results)):
        return False
    # Fold one element of a splat, not a million copies.
    operands = [compact(arrays[value]) for value in op.operands]
    if max(item.size for item in operands) > _LARGEST_FOLDED:
        return False
    with np.errstate(all="ignore"):
        result = record.fold(context, *operands)
    if result is None:
        return False
    type_ = op.results[0].type
    if result.ndim != len(type_.shape) or np.dtype(result.dtype).name != type_.dtype:
        raise context.refuse(f"makes a constant of {result.dtype} of shape {result.shape} for {type_}")
    arrays[op.results[0]] = np.broadcast_to(result, type_.shape)
    return True


def is_mlir(head: bytes) -> bool:
    """Return whether a file that begins with `head` is MLIR text or bytecode."""
    return head.startswith(_BYTECODE) or _HEAD.match(head) is not None


def read(data: bytes, what: str = "the model") -> Network:
    """Read the function ``main`` of a module of StableHLO or TOSA text; messages call the module `what`.

    Raises
    ------
    CompileError
        If it is not MLIR text, is not quantised, or has operations, types or a structure that weft does not read.
    """
    if data.startswith(_BYTECODE):
        raise CompileError(
            f"{what} is MLIR bytecode; weft reads text: print the module with str(module) or lowered.as_text()"
        )
    if len(data) > BYTES:
        raise CompileError(f"{what} has {len(data):,} bytes; weft reads MLIR text of up to {BYTES:,}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CompileError(f"{what} is not text: byte {error.start} is not UTF-8") from None
    try:
        return network_of(import_with_xdsl("inline").parse_program(text, what))
    except CompileError as error:
        message = str(error)
        raise CompileError(message if message.startswith(what) else f"{what}, {message}") from None


def network_of(program: Program) -> Network:
    """Return the network of a program; its inputs are named after the arguments.

    Raises
    ------
    CompileError
        As `read`.
    """
    builder = Builder(program)
    inputs, types = [], {}
    for argument, notes in zip(program.arguments, program.argument_notes, strict=True):
        name = builder.unique(str(notes.get("weft.name", argument.name)))
        inputs.append(name)
        _check_end("argument", argument.name, argument.type.dtype)
        kind = _real_end(argument, notes)
        types[name] = Type("float32" if kind is not None else argument.type.dtype, argument.type.shape)
        builder.op = Op(f"input.{name}", 0, (), ())
        builder.set(argument, name if kind is None else builder.quantise(name, kind, argument.type.dtype))
    for op in program.ops:
        convert_operation(Context(op, builder))
    if not program.results:
        raise CompileError("the function returns nothing; there is nothing to compile")
    results = []
    for at, (value, notes) in enumerate(zip(program.results, program.result_notes, strict=True)):
        default = "output" if len(program.results) == 1 else f"output{at}"
        _check_end("result", str(at), value.type.dtype)
        kind, stored = _real_end(value, notes), builder.stored_value(value)
        builder.op = Op(f"output.{notes.get('weft.name', default)}", 0, (), ())
        name = stored if kind is None else builder.dequantise(stored, kind, value.type)
        results.append((name, str(notes.get("weft.name", default))))
    network = builder.network(inputs, types, results)
    if len(network.nodes) > MAX_NODES:
        raise CompileError(f"the model becomes {len(network.nodes):,} nodes; weft takes up to {MAX_NODES:,}")
    operators = {node.operator for node in network.nodes}
    if not network.quantisation and not operators & _OF_INTEGERS and not _has_quantised_types(program):
        raise CompileError(f"the model is not quantised: {HOW_TO_QUANTISE}")
    return network


def _has_quantised_types(program: Program) -> bool:
    """Return whether values have quantised types, or the 8-bit types of TOSA's quantised operations."""
    values = [value for op in program.ops for value in (*op.operands, *op.results)]
    if any(value.type.quantisation is not None for value in (*program.arguments, *values)):
        return True
    tosa = any(op.name.startswith("tosa.") for op in program.ops)
    return tosa and any(value.type.dtype in ("int8", "uint8") for value in program.arguments)


def _real_end(value: Value, notes: Mapping[str, Any]) -> Quantisation | None:
    """Return the quantisation that a note of the writer gives an argument or a result, or None."""
    scale, zero, dtype = notes.get("weft.scale"), notes.get("weft.zero_point", 0), value.type.dtype
    if scale is None:
        return None
    good = isinstance(scale, float) and np.float32(scale) > 0 and np.isfinite(np.float32(scale))
    limits = np.iinfo(dtype) if dtype in ("int8", "uint8") else None
    if not good or limits is None or not isinstance(zero, int) or not limits.min <= zero <= limits.max:
        raise CompileError(
            f"{value.type} has weft.scale {scale!r} and weft.zero_point {zero!r}, which are not a valid quantisation"
        )
    return Quantisation(
        np.array([scale], np.float32), np.array([zero]), None, int(limits.min), int(limits.max)
    )


def _check_end(kind: str, name: str, dtype: str) -> None:
    if dtype not in _ENDS:
        raise CompileError(f"{kind} {name} has type {dtype}; weft takes {', '.join(_ENDS)}")


FORMAT = ModelFormat(
    name="an MLIR model",
    suffix=".mlir",
    recognises=is_mlir,
    read=read,
    states="an MLIR model has no state between runs",
    how_to_quantise=HOW_TO_QUANTISE,
)
