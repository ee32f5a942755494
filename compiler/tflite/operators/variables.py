"""TFLite operators on variables, types and batches."""

from __future__ import annotations

import math

import numpy as np

from weft.compiler.ir.network import Type
from weft.compiler.tflite.context import Context
from weft.compiler.tflite.record import Record
from weft.compiler.tflite.variables import Key


def handle(context: Context) -> None:
    """Convert VAR_HANDLE: the key of a variable is its container and name."""
    names = (str(context.option("Container", "")), str(context.option("SharedName", "")))
    context.builder.variables.handles[context.output().index] = names


def read(context: Context) -> None:
    context.store(context.builder.variables.read(_variable(context)), raw=True)


def assign(context: Context) -> None:
    tensor = context.tensor(1)
    value = context.emit("Identity", context.raw(1), suffix="assigned", raw=True)
    context.builder.variables.assign(_variable(context), value, Type(tensor.dtype, tensor.shape))


def call_once(context: Context) -> None:
    """Convert CALL_ONCE: its subgraph assigns the initial values of variables."""
    context.builder.variables.start(int(context.option("InitSubgraphIndex")))


def _variable(context: Context) -> Key:
    index = context.tensor().index
    if index not in context.builder.variables.handles:
        raise context.refuse(f"takes {context.tensor().label} for a variable, but no VAR_HANDLE creates it")
    return context.builder.variables.handles[index]


VARIABLES_OPERATORS = (
    Record(("VAR_HANDLE",), (0, 0), "nothing", handle, handles=True),
    Record(("READ_VARIABLE",), (1, 1), "the value that the previous run assigned", read, handles=True),
    Record(("ASSIGN_VARIABLE",), (2, 2), "the value that the next run reads", assign, handles=True),
    Record(("CALL_ONCE",), (0, 0), "the value that the first run reads", call_once),
)


def quantise(context: Context) -> None:
    """Convert QUANTIZE of real numbers, or of integers of another scale."""
    order = context.order(0)
    context.finish(context.real(0, order), order)


def dequantise(context: Context) -> None:
    """Convert DEQUANTIZE; float16 weights become float32."""
    order = context.order(0)
    if context.tensor().dtype == "float16":
        return context.store(context.cast(context.raw(0, order)), order)
    return context.store(context.real(0, order), order)


def cast(context: Context) -> None:
    """Convert CAST of stored values, which ignores scales."""
    order = context.order(0)
    context.store(context.cast(context.raw(0, order)), order, raw=True)


def shape(context: Context) -> None:
    """Convert SHAPE to a constant."""
    output = context.output()
    if output.dtype not in ("int32", "int64"):
        raise context.refuse(f"makes {output.label} of type {output.dtype}; shapes are int32 or int64")
    context.store(context.array(np.array(context.tensor().shape), output.dtype))


TYPES_OPERATORS = (
    Record(("QUANTIZE",), (1, 1), "a value of another scale", quantise),
    Record(("DEQUANTIZE",), (1, 1), "real numbers", dequantise),
    Record(("CAST",), (1, 1), "Cast", cast),
    Record(("SHAPE",), (1, 1), "a constant", shape),
)


def to_batch(context: Context) -> None:
    """Convert SPACE_TO_BATCH_ND: pad, then split into blocks; each position in a block becomes an image."""
    shape, output = context.tensor().shape, context.output()
    blocks, pads = _blocks(context), _pairs(context, "pads")
    padded = list(shape)
    for axis, (pair, block) in enumerate(zip(pads, blocks, strict=True), 1):
        padded[axis] += sum(pair)
        if padded[axis] % block:
            raise context.refuse(f"cuts {padded[axis]} elements into blocks of {block}")
    count, inner_sizes = len(blocks), shape[len(blocks) + 1 :]
    if math.prod(padded) != math.prod(output.shape):
        raise context.refuse(f"splits {math.prod(padded):,} elements into {math.prod(output.shape):,}")
    value, finish = context.movable(0, reshape=True)
    if any(map(any, pads)):
        places = [
            0,
            *(pair[0] for pair in pads),
            *[0] * len(inner_sizes),
            0,
            *(pair[1] for pair in pads),
            *[0] * len(inner_sizes),
        ]
        value = context.emit("Pad", value, context.array(places), suffix="pad", mode="constant")
    cut = [shape[0]]
    for size, block in zip(padded[1 : count + 1], blocks, strict=True):
        cut += [size // block, block]
    inner = range(1, 2 * count + 1, 2)
    perm = [*(axis + 1 for axis in inner), 0, *inner, *range(2 * count + 1, 2 * count + 1 + len(inner_sizes))]
    finish(context.builder.transpose(context.reshape(value, [*cut, *inner_sizes]), perm, context.name))


def to_space(context: Context) -> None:
    """Convert BATCH_TO_SPACE_ND: join blocks, then crop rows and columns."""
    shape, output = context.tensor().shape, context.output()
    blocks, crops = _blocks(context), _pairs(context, "crops")
    images, count = math.prod(blocks), len(blocks)
    if not images or shape[0] % images:
        raise context.refuse(f"joins {shape[0]} images to blocks of {images}")
    inner_sizes = shape[count + 1 :]
    joined = [size * block for size, block in zip(shape[1:], blocks, strict=False)]
    cropped = [size - sum(pair) for size, pair in zip(joined, crops, strict=True)]
    if (shape[0] // images, *cropped, *inner_sizes) != output.shape:
        raise context.refuse(f"crops {joined} to {cropped}, which gives another shape than the file's")
    value, finish = context.movable(0)
    cut = [*blocks, shape[0] // images, *shape[1:]]
    perm = [count]
    for axis in range(count):
        perm += [count + 1 + axis, axis]
    perm += range(2 * count + 1, 2 * count + 1 + len(inner_sizes))
    value = context.builder.transpose(context.reshape(value, cut), perm, context.name)
    value = context.reshape(value, [shape[0] // images, *joined, *inner_sizes])
    starts, ends = (
        [pair[0] for pair in crops],
        [size - pair[1] for size, pair in zip(joined, crops, strict=True)],
    )
    places = [context.array(item) for item in (starts, ends, [axis + 1 for axis in range(count)])]
    finish(context.emit("Slice", value, *places))


def _blocks(context: Context) -> list[int]:
    """Return the sizes of blocks along the axes after the first."""
    blocks = [int(size) for size in context.numbers(1, "blocks")]
    if min(blocks, default=0) < 1 or not len(blocks) < context.tensor().rank:
        raise context.refuse(f"has blocks of {blocks[:16]} in {context.tensor().rank} dimensions")
    return blocks


def _pairs(context: Context, label: str) -> list[tuple[int, int]]:
    """Return the numbers of elements at both ends of the axes of blocks."""
    values = [int(value) for value in context.numbers(2, label)]
    if len(values) != 2 * len(_blocks(context)) or min(values) < 0:
        raise context.refuse(f"has {label} {values[:16]}; it takes two for each axis of blocks, none below 0")
    return list(zip(values[::2], values[1::2], strict=True))


BATCHES_OPERATORS = (
    Record(("SPACE_TO_BATCH_ND",), (3, 3), "Pad, Reshape, Transpose", to_batch),
    Record(("BATCH_TO_SPACE_ND",), (3, 3), "Reshape, Transpose, Slice", to_space),
)


OPERATORS = (*BATCHES_OPERATORS, *TYPES_OPERATORS, *VARIABLES_OPERATORS)
