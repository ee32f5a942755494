"""Resource variables: what is assigned to one in a run, the next run reads."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from weft.compiler.ir.network import Type
from weft.compiler.tflite.builder import QUANTISED
from weft.compiler.tflite.context import Context
from weft.compiler.tflite.record import Record
from weft.compiler.tflite.variables import Key


def handle(context: Context) -> None:
    """A variable is known by its container and name."""
    names = (str(context.option("Container", "")), str(context.option("SharedName", "")))
    context.builder.variables.handles[context.output().index] = names


def read(context: Context) -> None:
    context.store(context.builder.variables.read(_variable(context)))


def assign(context: Context) -> None:
    tensor = context.tensor(1)
    value = context.emit("Identity", context.stored(1), suffix="assigned")
    context.builder.variables.assign(_variable(context), value, Type(tensor.dtype, tensor.shape))


def call_once(context: Context) -> None:
    """What the subgraph assigns is what variables start with."""
    context.builder.variables.start(int(context.option("InitSubgraphIndex")))


def _variable(context: Context) -> Key:
    index = context.tensor().index
    if index not in context.builder.variables.handles:
        raise context.refuse(f"takes {context.tensor().label} for a variable, which no VAR_HANDLE makes")
    return context.builder.variables.handles[index]


VARIABLES_OPERATORS = (
    Record(("VAR_HANDLE",), (0, 0), "nothing", handle, handles=True),
    Record(("READ_VARIABLE",), (1, 1), "what the run before assigned", read, handles=True),
    Record(("ASSIGN_VARIABLE",), (2, 2), "what the next run reads", assign, handles=True),
    Record(("CALL_ONCE",), (0, 0), "what the first run reads", call_once),
)


def quantise(context: Context) -> None:
    """Real numbers to bytes, or bytes of one scale to those of another."""
    order = context.order(0)
    context.finish(context.real(0, order), order)


def dequantise(context: Context) -> None:
    """Bytes to real numbers; float16 weights to float32."""
    order, tensor = context.order(0), context.tensor()
    if tensor.dtype == "float16":
        return context.store(context.cast(context.stored(0, order)), order)
    if tensor.dtype not in QUANTISED or tensor.quantisation is None or not tensor.quantisation.whole:
        return context.store(context.real(0, order), order)
    parameters = context.builder.parameters(tensor.quantisation, tensor, context.name)
    return context.put("DequantizeLinear", context.stored(0, order), *parameters, order=order)


def cast(context: Context) -> None:
    """What is stored, in another type: scales have no say."""
    order = context.order(0)
    context.store(context.cast(context.stored(0, order)), order)


def shape(context: Context) -> None:
    """The shape of the input, which is known."""
    output = context.output()
    if output.dtype not in ("int32", "int64"):
        raise context.refuse(f"makes {output.label} of type {output.dtype}; shapes are int32 or int64")
    context.store(context.array(np.array(context.tensor().shape), output.dtype))


TYPES_OPERATORS = (
    Record(("QUANTIZE",), (1, 1), "QuantizeLinear", quantise),
    Record(("DEQUANTIZE",), (1, 1), "DequantizeLinear", dequantise),
    Record(("CAST",), (1, 1), "Cast", cast),
    Record(("SHAPE",), (1, 1), "a constant", shape),
)


def to_batch(context: Context) -> None:
    """Pads, and cuts into blocks: each place in them makes images, the first place all first."""
    shape, output = context.tensor().shape, context.output()
    blocks, pads = _blocks(context), _pairs(context, "pads")
    wide = list(shape)
    for axis, (pair, block) in enumerate(zip(pads, blocks, strict=True), 1):
        wide[axis] += sum(pair)
        if wide[axis] % block:
            raise context.refuse(f"cuts {wide[axis]} elements into blocks of {block}")
    count, rest = len(blocks), shape[len(blocks) + 1 :]
    if math.prod(wide) != math.prod(output.shape):
        raise context.refuse(f"makes {math.prod(output.shape):,} elements of {math.prod(wide):,}")
    value, alike = _value(context)
    if any(map(any, pads)):
        places = [
            0,
            *(pair[0] for pair in pads),
            *[0] * len(rest),
            0,
            *(pair[1] for pair in pads),
            *[0] * len(rest),
        ]
        tensor = context.tensor()
        zero = 0 if tensor.quantisation is None or not alike else int(tensor.quantisation.zeros[0])
        fill = context.array(zero, tensor.dtype if alike else "float32")
        value = context.emit("Pad", value, context.array(places), fill, suffix="pad", mode="constant")
    cut = [shape[0]]
    for size, block in zip(wide[1 : count + 1], blocks, strict=True):
        cut += [size // block, block]
    inner = range(1, 2 * count + 1, 2)
    perm = [*(axis + 1 for axis in inner), 0, *inner, *range(2 * count + 1, 2 * count + 1 + len(rest))]
    _moved(context, value, alike, [*cut, *rest], perm)


def to_space(context: Context) -> None:
    """The way back, of which rows and columns are left out at the ends."""
    shape, output = context.tensor().shape, context.output()
    blocks, crops = _blocks(context), _pairs(context, "crops")
    images, count = math.prod(blocks), len(blocks)
    if not images or shape[0] % images:
        raise context.refuse(f"joins {shape[0]} images to blocks of {images}")
    rest = shape[count + 1 :]
    wide = [size * block for size, block in zip(shape[1:], blocks, strict=False)]
    left = [size - sum(pair) for size, pair in zip(wide, crops, strict=True)]
    if (shape[0] // images, *left, *rest) != output.shape:
        raise context.refuse(
            f"leaves {left} of {wide}, with which results have another shape than the file says"
        )
    value, alike = _value(context)
    cut = [*blocks, shape[0] // images, *shape[1:]]
    perm = [count]
    for axis in range(count):
        perm += [count + 1 + axis, axis]
    perm += range(2 * count + 1, 2 * count + 1 + len(rest))
    value = context.builder.transposed(context.reshaped(value, cut), perm, context.name)
    value = context.reshaped(value, [shape[0] // images, *wide, *rest])
    starts, ends = (
        [pair[0] for pair in crops],
        [size - pair[1] for size, pair in zip(wide, crops, strict=True)],
    )
    places = [context.array(item) for item in (starts, ends, [axis + 1 for axis in range(count)])]
    if alike:
        return context.put("Slice", value, *places)
    return context.finish(context.emit("Slice", value, *places))


def _value(context: Context) -> tuple[str, bool]:
    """The input, and whether its bytes mean the same in the result."""
    alike = context.alike(context.tensor())
    return (context.stored() if alike else context.real()), alike


def _moved(context: Context, value: str, alike: bool, cut: Sequence[int], perm: Sequence[int]) -> None:
    """The result: a value in shape `cut`, transposed."""
    value = context.builder.transposed(context.reshaped(value, cut), perm, context.name)
    (context.store_reshaped if alike else context.finish_reshaped)(value)


def _blocks(context: Context) -> list[int]:
    """The sizes of blocks along the axes behind the first."""
    blocks = [int(size) for size in context.numbers(1, "blocks")]
    if min(blocks, default=0) < 1 or not len(blocks) < context.tensor().rank:
        raise context.refuse(f"has blocks of {blocks[:16]} in {context.tensor().rank} dimensions")
    return blocks


def _pairs(context: Context, what: str) -> list[tuple[int, int]]:
    """Elements at both ends of the axes of blocks."""
    given = [int(value) for value in context.numbers(2, what)]
    if len(given) != 2 * len(_blocks(context)) or min(given) < 0:
        raise context.refuse(f"has {what} {given[:16]}; it takes two for each axis of blocks, none below 0")
    return list(zip(given[::2], given[1::2], strict=True))


BATCHES_OPERATORS = (
    Record(("SPACE_TO_BATCH_ND",), (3, 3), "Pad, Reshape, Transpose", to_batch),
    Record(("BATCH_TO_SPACE_ND",), (3, 3), "Reshape, Transpose, Slice", to_space),
)


OPERATORS = (*BATCHES_OPERATORS, *TYPES_OPERATORS, *VARIABLES_OPERATORS)
