"""Reader of TFLite files: networks of ONNX's operators on values that have the scales of the file's tensors."""

from __future__ import annotations

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.network import MAX_NODES, ModelFormat, Network
from weft.compiler.tflite.builder import QUANTISED, Builder
from weft.compiler.tflite.context import Context
from weft.compiler.tflite.file import IDENTIFIER, File, Tensor, parse
from weft.compiler.tflite.record import convert
from weft.compiler.tflite.variables import Key

HOW_TO_QUANTISE = (
    "convert it with full integer quantisation: optimizations = [tf.lite.Optimize.DEFAULT] and a "
    "representative_dataset"
)
_ENDS = ("float32", "float16", "int8", "uint8", "int16", "int32", "int64", "bool")
"""Types of inputs and outputs."""


def is_tflite(head: bytes) -> bool:
    """Return whether a file that begins with `head` is a TFLite file."""
    return head[4:8] == IDENTIFIER


def read(data: bytes, label: str = "the model") -> Network:
    """Read a TFLite model, which messages call `label`.

    Raises
    ------
    CompileError
        If it is truncated, damaged, no TFLite model or not quantised, or has unsupported operators, types or structure.
    """
    return network_of(parse(data, label))


def network_of(file: File) -> Network:
    """Return the network of a file; its values have the names of the file's tensors.

    Raises
    ------
    CompileError
        As `read`.
    """
    _check(file)
    builder = Builder(file, {at: _initial(graph) for at, graph in file.once.items()})
    for index in file.inputs:
        builder.add_input(file.tensors[index])
    for operator in file.operators:
        convert(Context(operator, builder))
        builder.settle()
    for index in file.outputs:
        if not builder.is_known(file.tensors[index]):
            raise CompileError(f"no operator writes output {file.tensors[index].label}")
    network = builder.network()
    if len(network.nodes) > MAX_NODES:
        raise CompileError(f"the model becomes {len(network.nodes):,} nodes; weft takes up to {MAX_NODES:,}")
    return network


def _initial(file: File) -> dict[Key, np.ndarray]:
    """Return the values that a subgraph assigns to variables before the first run."""
    if file.inputs:
        raise CompileError(
            f"a subgraph that CALL_ONCE calls has {len(file.inputs)} inputs; it must have none"
        )
    builder = Builder(file)
    for operator in file.operators:
        convert(Context(operator, builder))
        builder.settle()
    return builder.variables.evaluate()


def _check(file: File) -> None:
    """Raise `CompileError` for a file without operators, with invalid inputs or outputs, or without scales."""
    if not file.operators or not file.outputs:
        raise CompileError(
            f"the file has {len(file.operators)} operators and {len(file.outputs)} outputs; there is nothing to compile"
        )
    for kind, indices in (("input", file.inputs), ("output", file.outputs)):
        for at, index in enumerate(indices):
            if not 0 <= index < len(file.tensors):
                raise CompileError(f"{kind} {at} is tensor {index}; the file has {len(file.tensors)} tensors")
            _check_end(kind, file.tensors[index])
        if len(set(indices)) < len(indices):
            raise CompileError(f"the file lists one tensor as two {kind}s: {list(indices)[:16]}")
    for index in file.inputs:
        if file.tensors[index].data is not None:
            raise CompileError(f"input {file.tensors[index].label} has contents, as a constant has")
        if index in file.outputs:
            raise CompileError(
                f"{file.tensors[index].label} is input and output, so there is nothing to compute"
            )
    if not any(tensor.quantisation is not None and tensor.dtype in QUANTISED for tensor in file.tensors):
        raise CompileError(
            f"the model is not quantised (no tensor of 8 or 16 bits has a scale): {HOW_TO_QUANTISE}"
        )


def _check_end(kind: str, tensor: Tensor) -> None:
    """Raise `CompileError` for an input or output of an unsupported type, or without elements."""
    if tensor.dtype not in _ENDS:
        raise CompileError(f"{kind} {tensor.label} has type {tensor.dtype}; weft takes {', '.join(_ENDS)}")
    if 0 in tensor.shape:
        raise CompileError(
            f"{kind} {tensor.label} has shape {'x'.join(map(str, tensor.shape))}, which holds no element"
        )


FORMAT = ModelFormat(
    name="a TFLite model",
    suffix=".tflite",
    recognises=is_tflite,
    read=read,
    states="a TFLite model declares its own states",
    how_to_quantise=HOW_TO_QUANTISE,
)
