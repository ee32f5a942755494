"""Random models of one TFLite operator each, as LiteRT's kernels accept them: any shape, scale and zero point."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from support.tflite_models import Model

SAME, VALID = 0, 1
NONE, RELU, RELU_N1_TO_1, RELU6 = range(4)


@dataclass
class Case:
    """A model under construction. `dtype` is its activations' type."""

    rng: np.random.Generator
    dtype: str = "int8"

    def __post_init__(self) -> None:
        self.model = Model()
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.lowest = 0

    def size(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def pick(self, *values: Any) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def image(self) -> tuple[int, int, int, int]:
        """Draw the shape of images."""
        return self.pick(1, 1, 1, 2), self.size(1, 11), self.size(1, 11), self.pick(1, 2, 3, 4, 8, 16, 17)

    def shape(self) -> tuple[int, ...]:
        flat, rows = (self.size(1, 4), self.size(1, 9)), (1, self.size(1, 5), self.size(1, 6))
        return self.pick(self.image(), flat, rows)

    def scale(self) -> float:
        return float(np.float32(2.0 ** self.rng.uniform(-7, -2)))

    def zero(self) -> int:
        info = np.iinfo(self.dtype)
        return int(self.rng.integers(info.min, info.max, endpoint=True)) if self.dtype != "int16" else 0

    def input(self, shape: Sequence[int], scale: float | None = None, zero: int | None = None) -> int:
        scale, zero = self.scale() if scale is None else scale, self.zero() if zero is None else zero
        self.inputs.append(self.model.tensor(shape, self.dtype, scale, zero, name=f"input{len(self.inputs)}"))
        return self.inputs[-1]

    def output(
        self,
        shape: Sequence[int],
        scale: float | None = None,
        zero: int | None = None,
        like: int | None = None,
    ) -> int:
        """Add a result, quantised as tensor `like` if it is given."""
        if like is not None:
            scale, zero = self.model.tensors[like].scale[0], self.model.tensors[like].zero[0]
        scale, zero = self.scale() if scale is None else scale, self.zero() if zero is None else zero
        self.outputs.append(
            self.model.tensor(shape, self.dtype, scale, zero, name=f"output{len(self.outputs)}")
        )
        return self.outputs[-1]

    def plain(self, shape: Sequence[int], dtype: str) -> int:
        """Add a result that is not quantised."""
        self.outputs.append(self.model.tensor(shape, dtype, name=f"output{len(self.outputs)}"))
        return self.outputs[-1]

    def weights(self, shape: Sequence[int], axis: int, data: int) -> tuple[int, np.ndarray]:
        """Add constant weights of `data`, by channel along `axis` or per tensor, and return their scales along it. Sums
        of products are a few units, which fused activations do not clamp away."""
        count, depth = shape[axis], math.prod(shape) // shape[axis]
        usual = 3 / (self.model.tensors[data].scale[0] * 74 * 60 * depth**0.5)
        unsigned = self.dtype == "uint8"
        many = count if self.rng.random() < 0.7 and not unsigned else 1
        zero = self.size(0, 255) if unsigned else 0
        values: np.ndarray = self.rng.integers(*((0, 256) if unsigned else (-127, 128)), shape)
        scales = (usual * 2 ** self.rng.uniform(-1, 1, many)).astype(np.float32)
        dtype = "uint8" if unsigned else "int8"
        index = self.model.tensor(shape, dtype, scales, [zero] * many, axis=axis, data=values.astype(dtype))
        return index, np.broadcast_to(scales, count)

    def bias(self, data: int, scales: np.ndarray, depth: int) -> int:
        """Add a bias of some share of the largest sum."""
        most = 127 * 60 * max(depth, 1) ** 0.5
        values = self.rng.integers(-most, most, len(scales)).astype(np.int32)
        steps = np.float32(self.model.tensors[data].scale[0]) * scales
        steps = steps[:1] if (scales == scales[0]).all() else steps
        dtype = "int64" if self.dtype == "int16" else "int32"
        return self.model.tensor((len(scales),), dtype, steps, [0] * len(steps), data=values.astype(dtype))

    def product(self, data: int, scales: np.ndarray, depth: int) -> float:
        """Return a scale for sums of `depth` products."""
        return float(
            self.model.tensors[data].scale[0]
            * scales.max()
            * 74
            * 60
            * max(depth, 1) ** 0.5
            / self.size(20, 90)
        )

    def draws(self) -> dict[int, np.ndarray]:
        """Draw values of the inputs, excluding the `lowest` of their type."""
        found = {}
        for index in self.inputs:
            item = self.model.tensors[index]
            info = np.iinfo(item.dtype)
            low = info.min + self.lowest
            found[index] = self.rng.integers(low, info.max, item.shape, item.dtype, endpoint=True)
        return found

    def finish(self) -> bytes:
        return self.model.write(self.inputs, self.outputs)


def window(case: Case, size: int, kernel: int, stride: int, dilation: int, padding: int) -> int:
    """Return the number of windows, 0 if none fits."""
    span = (kernel - 1) * dilation + 1
    return -(-size // stride) if padding == SAME else (size - span) // stride + 1 if size >= span else 0


def conv(case: Case, depthwise: bool = False) -> None:
    while True:
        n, h, w, c = case.image()
        kernel, padding = (case.size(1, 5), case.size(1, 5)), case.pick(SAME, VALID)
        strides = case.pick((1, 1), (2, 2), (case.size(1, 3), case.size(1, 3)))
        strides = (strides[0],) * 2 if depthwise else strides
        dilations = (
            (1, 1) if strides != (1, 1) else case.pick((1, 1), (2, 2), (case.size(1, 3), case.size(1, 3)))
        )
        made = [window(case, *item, padding) for item in zip((h, w), kernel, strides, dilations, strict=True)]
        if min(made) > 0:
            break
    outputs = case.pick(1, 3, 8, 16, 19)
    data = case.input((n, h, w, c))
    if depthwise:
        multiplier = case.pick(1, 1, 2, 3)
        outputs, depth = c * multiplier, math.prod(kernel)
        filters, scales = case.weights((1, *kernel, outputs), 3, data)
        more = {"DepthMultiplier": multiplier}
    else:
        filters, scales = case.weights((outputs, *kernel, c), 0, data)
        depth, more = math.prod(kernel) * c, {}
    inputs = [data, filters, case.bias(data, scales, depth)]
    output = case.output((n, *made, outputs), case.product(data, scales, depth))
    name, kind = ("DEPTHWISE_CONV_2D", "DepthwiseConv2D") if depthwise else ("CONV_2D", "Conv2D")
    case.model.operator(
        name, inputs, [output], kind, Padding=padding, StrideH=strides[0], StrideW=strides[1],
        DilationHFactor=dilations[0], DilationWFactor=dilations[1],
        FusedActivationFunction=case.pick(NONE, RELU, RELU6, RELU_N1_TO_1), **more,
    )  # fmt: skip


def transpose_conv(case: Case) -> None:
    n, h, w, c = case.image()
    kernel, strides, padding = (
        (case.size(1, 4), case.size(1, 4)),
        (case.size(1, 3), case.size(1, 3)),
        case.pick(SAME, VALID),
    )
    made = []
    for size, window_, stride in zip((h, w), kernel, strides, strict=True):
        most = size * stride if padding == SAME else (size - 1) * stride + window_
        made.append(most)
    outputs = case.pick(1, 3, 8)
    data = case.input((n, h, w, c))
    filters, scales = case.weights((outputs, *kernel, c), 0, data)
    shape = case.model.constant([n, *made, outputs])
    bias = [case.bias(data, scales, c)] if case.rng.random() < 0.5 else []
    output = case.output((n, *made, outputs), case.product(data, scales, c * 2))
    case.model.operator("TRANSPOSE_CONV", [shape, filters, data, *bias], [output], "TransposeConv", Padding=padding,
                        StrideH=strides[0], StrideW=strides[1])  # fmt: skip


def fully_connected(case: Case) -> None:
    inputs, outputs, keep = case.pick(1, 3, 16, 40), case.pick(1, 5, 16, 33), case.pick(False, True)
    lead = (
        case.pick((1,), (case.size(1, 5),), (case.size(1, 3), case.size(1, 4)), (1, 2, 3))
        if keep
        else case.pick((1,), (3,), (2, 2))
    )
    data = case.input((*lead, inputs))
    matrix, scales = case.weights((outputs, inputs), 0, data)
    bias = case.bias(data, scales, inputs) if case.rng.random() < 0.8 else -1
    rows = lead if keep else (math.prod(lead),)
    output = case.output((*rows, outputs), case.product(data, scales, inputs))
    case.model.operator("FULLY_CONNECTED", [data, matrix, bias], [output], "FullyConnected", KeepNumDims=keep,
                        FusedActivationFunction=case.pick(NONE, RELU, RELU6))  # fmt: skip


def batch_matmul(case: Case) -> None:
    lead, rows, depth, columns = (
        case.pick((), (2,), (1, 3)),
        case.size(1, 6),
        case.pick(1, 4, 16),
        case.size(1, 7),
    )
    adjoint = case.pick(False, True)
    a = case.input((*lead, rows, depth))
    b = case.input((*lead, columns, depth) if adjoint else (*lead, depth, columns))
    scales = np.array(case.model.tensors[b].scale)
    output = case.output((*lead, rows, columns), case.product(a, scales, depth))
    case.model.operator("BATCH_MATMUL", [a, b], [output], "BatchMatMul", AdjX=False, AdjY=adjoint)


def pool(case: Case, name: str) -> None:
    while True:
        n, h, w, c = case.image()
        kernel, strides, padding = (
            (case.size(1, 4), case.size(1, 4)),
            (case.size(1, 3), case.size(1, 3)),
            case.pick(SAME, VALID),
        )
        made = [window(case, *item, 1, padding) for item in zip((h, w), kernel, strides, strict=True)]
        if min(made) > 0:
            break
    data = case.input((n, h, w, c))
    case.model.operator(
        name, [data], [case.output((n, *made, c), like=data)], "Pool2D", Padding=padding, FilterHeight=kernel[0],
        FilterWidth=kernel[1], StrideH=strides[0], StrideW=strides[1],
        FusedActivationFunction=case.pick(NONE, RELU, RELU6),
    )  # fmt: skip


def binary(case: Case, name: str, kind: str) -> None:
    shape = case.shape()
    other = case.pick(
        shape, shape, shape[-1:], (1,), (1,) * len(shape), tuple(case.pick(1, size) for size in shape)
    )
    a = case.input(shape)
    if case.rng.random() < 0.3:
        info = np.iinfo(case.dtype)
        values = case.rng.integers(info.min, info.max, other, case.dtype, endpoint=True)
        b = case.model.tensor(other, case.dtype, case.scale(), case.zero(), data=values)
    else:
        b = case.input(other)
    operands = [a, b] if case.rng.random() < 0.6 or name == "SUB" else [b, a]
    x, y = (case.model.tensors[index].scale[0] for index in (a, b))
    scale = x * y * 74 * 74 / case.size(20, 90) if name == "MUL" else max(x, y) * case.rng.uniform(0.7, 2)
    output = case.output(shape, float(scale))
    case.model.operator(
        name, operands, [output], kind, FusedActivationFunction=case.pick(NONE, NONE, RELU, RELU6)
    )


def extremes(case: Case, name: str) -> None:
    shape = case.shape()
    a = case.input(shape)
    b = case.input(shape, *(getattr(case.model.tensors[a], key)[0] for key in ("scale", "zero")))
    case.model.operator(name, [a, b], [case.output(shape, like=a)], "MaximumMinimum")


def unary(
    case: Case,
    name: str,
    kind: str = "",
    scale: float | None = None,
    zero: int | None = None,
    positive: bool = False,
    **options: Any,
) -> None:
    """Draw an elementwise function. Inputs of roots are at least zero."""
    low = np.iinfo(case.dtype).min
    data = case.input(case.shape(), zero=low if positive else None)
    shape = case.model.tensors[data].shape
    case.model.operator(name, [data], [case.output(shape, scale, zero)], kind, **options)


def squash(case: Case, name: str, scale: float, zero: int) -> None:
    """Draw a function whose results have a fixed scale and zero point."""
    scale, zero = (2.0**-15, 0) if case.dtype == "int16" else (scale, zero + 128 * (case.dtype == "uint8"))
    unary(case, name, scale=scale, zero=zero)


def negative(case: Case) -> None:
    """Draw NEG with one scale and zero point 0, because LiteRT's kernel negates the bytes; the lowest is excluded."""
    data = case.input(case.shape(), zero=0)
    case.lowest = 1
    case.model.operator("NEG", [data], [case.output(case.model.tensors[data].shape, like=data)], "Neg")


def relu(case: Case, name: str) -> None:
    data = case.input(case.shape())
    scale = case.model.tensors[data].scale[0] * case.rng.uniform(0.5, 1.5)
    case.model.operator(name, [data], [case.output(case.model.tensors[data].shape, scale)])


def leaky(case: Case) -> None:
    data = case.input(case.shape())
    scale = case.model.tensors[data].scale[0] * case.rng.uniform(0.7, 1.5)
    output = case.output(case.model.tensors[data].shape, scale)
    case.model.operator("LEAKY_RELU", [data], [output], "LeakyRelu", Alpha=case.pick(0.1, 0.3, 0.01))


def prelu(case: Case) -> None:
    shape = case.image()
    data = case.input(shape)
    alpha = (1, 1, shape[3])
    slopes = case.model.tensor(
        alpha, case.dtype, 2.0**-7, case.zero(), data=case.rng.integers(0, 100, alpha, case.dtype)
    )
    scale = case.model.tensors[data].scale[0] * case.rng.uniform(0.7, 1.5)
    case.model.operator("PRELU", [data, slopes], [case.output(shape, scale)])


def softmax(case: Case, name: str) -> None:
    data = case.input(case.shape())
    scale, zero = (1 / 256, -128) if name == "SOFTMAX" else (16 / 256, 127)
    zero += 128 * (case.dtype == "uint8")
    scale, zero = (2.0**-15, 0) if case.dtype == "int16" else (scale, zero)
    output = case.output(case.model.tensors[data].shape, scale, zero)
    more = (
        {"kind": "Softmax", "Beta": case.pick(1.0, 1.0, 0.5, 2.0)}
        if name == "SOFTMAX"
        else {"kind": "LogSoftmax"}
    )
    case.model.operator(name, [data], [output], **more)


def reshape(case: Case) -> None:
    shape = case.image()
    other = case.pick(
        (math.prod(shape),),
        (shape[0], math.prod(shape[1:])),
        shape[::-1],
        (shape[0], shape[2], shape[1], shape[3]),
    )
    data = case.input(shape)
    case.model.operator(
        "RESHAPE", [data, case.model.constant(other)], [case.output(other, like=data)], "Reshape"
    )


def squeeze(case: Case) -> None:
    shape = (1, 1, case.size(1, 7), case.size(1, 9))
    data = case.input(shape)
    case.model.operator(
        "SQUEEZE", [data], [case.output(tuple(size for size in shape if size > 1), like=data)], "Squeeze"
    )


def expand_dims(case: Case) -> None:
    shape = (case.size(1, 4), case.size(1, 7), case.size(1, 9))
    data, axis = case.input(shape), case.size(0, 3)
    output = case.output((*shape[:axis], 1, *shape[axis:]), like=data)
    case.model.operator("EXPAND_DIMS", [data, case.model.constant([axis])], [output], "ExpandDims")


def transpose(case: Case) -> None:
    shape = case.shape()
    perm = case.rng.permutation(len(shape)).tolist()
    data = case.input(shape)
    output = case.output([shape[axis] for axis in perm], like=data)
    case.model.operator("TRANSPOSE", [data, case.model.constant(perm)], [output], "Transpose")


def pad(case: Case, name: str) -> None:
    shape = case.shape()
    most = 3 if name != "MIRROR_PAD" else 2
    mode = case.pick(0, 1)
    pads = np.array(
        [
            [case.size(0, min(most, size - (mode == 0)) if name == "MIRROR_PAD" else most) for _ in range(2)]
            for size in shape
        ]
    )
    pads[0] = 0
    data = case.input(shape)
    inputs, kind, options = [data, case.model.constant(pads)], "Pad", {}
    if name == "PADV2":
        item = case.model.tensors[data]
        fill = np.array([case.size(0, 100)], case.dtype)
        inputs.append(case.model.tensor((1,), case.dtype, item.scale[0], item.zero[0], data=fill))
        kind = "PadV2"
    elif name == "MIRROR_PAD":
        kind, options = "MirrorPad", {"Mode": mode}
    output = case.output([size + int(pair.sum()) for size, pair in zip(shape, pads, strict=True)], like=data)
    case.model.operator(name, inputs, [output], kind, **options)


def slice_(case: Case) -> None:
    shape = case.shape()
    begin = [case.size(0, size - 1) for size in shape]
    sizes = [case.size(1, size - first) for size, first in zip(shape, begin, strict=True)]
    given = [
        case.pick(size, -1) if first + size == whole else size
        for first, size, whole in zip(begin, sizes, shape, strict=True)
    ]
    data = case.input(shape)
    inputs = [data, case.model.constant(begin), case.model.constant(given)]
    case.model.operator("SLICE", inputs, [case.output(sizes, like=data)], "Slice")


def strided_slice(case: Case) -> None:
    """Draw STRIDED_SLICE with random masks; numpy's result gives the shape."""
    shape = case.shape()
    while True:
        count = case.size(1, len(shape))
        masks = {
            name: case.size(0, 15) & ((1 << count) - 1) if case.rng.random() < 0.5 else 0
            for name in ("Begin", "End", "Shrink", "New", "Ellipsis")
        }
        masks["Ellipsis"] &= -masks["Ellipsis"]
        masks["New"] &= ~masks["Ellipsis"]
        masks["Shrink"] &= ~(masks["New"] | masks["Ellipsis"])
        begin, end, strides = [], [], []
        key: list[Any] = []
        for at in range(count):
            size = 8
            first, last, step = case.size(-size, size), case.size(-size, size), case.pick(1, 1, 2, -1, 3)
            if masks["Shrink"] >> at & 1:
                first, step = case.size(-1, 0), 1
                last = first + 1
            begin.append(first)
            end.append(last)
            strides.append(step)
            if masks["Ellipsis"] >> at & 1:
                key.append(...)
            elif masks["New"] >> at & 1:
                key.append(None)
            elif masks["Shrink"] >> at & 1:
                key.append(first)
            else:
                key.append(
                    slice(
                        None if masks["Begin"] >> at & 1 else first,
                        None if masks["End"] >> at & 1 else last,
                        step,
                    )
                )
        masks["Begin"] &= ~masks["Shrink"]
        try:
            made = np.zeros(shape)[tuple(key)].shape
        except IndexError:
            continue
        if 0 not in made and 0 < len(made) <= 4:
            break
    data = case.input(shape)
    inputs = [data, *(case.model.constant(item) for item in (begin, end, strides))]
    case.model.operator(
        "STRIDED_SLICE", inputs, [case.output(made, like=data)], "StridedSlice", BeginMask=masks["Begin"],
        EndMask=masks["End"], ShrinkAxisMask=masks["Shrink"], NewAxisMask=masks["New"], EllipsisMask=masks["Ellipsis"],
    )  # fmt: skip


def concatenation(case: Case) -> None:
    shape = case.shape()
    axis = case.size(0, len(shape) - 1)
    first = case.input(shape)
    item = case.model.tensors[first]
    inputs, total = [first], shape[axis]
    for _ in range(case.size(0, 3)):
        other = [case.size(1, 5) if at == axis else size for at, size in enumerate(shape)]
        inputs.append(case.input(other, item.scale[0], item.zero[0]))
        total += other[axis]
    made = [total if at == axis else size for at, size in enumerate(shape)]
    given = case.pick(axis, axis - len(shape))
    case.model.operator("CONCATENATION", inputs, [case.output(made, like=first)], "Concatenation", Axis=given)


def split(case: Case) -> None:
    count = case.size(1, 4)
    shape = list(case.shape())
    axis = case.size(0, len(shape) - 1)
    shape[axis] *= count
    data = case.input(shape)
    made = [size // count if at == axis else size for at, size in enumerate(shape)]
    outputs = [case.output(made, like=data) for _ in range(count)]
    case.model.operator("SPLIT", [case.model.constant(axis), data], outputs, "Split", NumSplits=count)


def split_v(case: Case) -> None:
    sizes = [case.size(1, 4) for _ in range(case.size(1, 4))]
    shape = list(case.shape())
    axis = case.size(0, len(shape) - 1)
    shape[axis] = sum(sizes)
    data = case.input(shape)
    outputs = [
        case.output([part if at == axis else size for at, size in enumerate(shape)], like=data)
        for part in sizes
    ]
    given = [-1 if at == 0 and len(sizes) > 1 else size for at, size in enumerate(sizes)]
    case.model.operator(
        "SPLIT_V",
        [data, case.model.constant(given), case.model.constant(axis)],
        outputs,
        "SplitV",
        NumSplits=len(sizes),
    )


def pack(case: Case) -> None:
    shape = (case.size(1, 4), case.size(1, 6), case.size(1, 5))[: case.size(1, 3)]
    axis = case.size(0, len(shape))
    first = case.input(shape)
    item = case.model.tensors[first]
    inputs = [first, *(case.input(shape, item.scale[0], item.zero[0]) for _ in range(case.size(0, 3)))]
    output = case.output((*shape[:axis], len(inputs), *shape[axis:]), like=first)
    case.model.operator("PACK", inputs, [output], "Pack", Axis=axis, ValuesCount=len(inputs))


def unpack(case: Case) -> None:
    shape = case.shape()
    axis = case.size(0, len(shape) - 1)
    data = case.input(shape)
    outputs = [case.output((*shape[:axis], *shape[axis + 1 :]), like=data) for _ in range(shape[axis])]
    case.model.operator("UNPACK", [data], outputs, "Unpack", Axis=axis, Num=shape[axis])


def gather(case: Case) -> None:
    shape = case.shape()
    axis = case.size(0, len(shape) - 1)
    indices = case.rng.integers(0, shape[axis], (case.size(1, 5),))
    data = case.input(shape)
    output = case.output((*shape[:axis], *indices.shape, *shape[axis + 1 :]), like=data)
    case.model.operator("GATHER", [data, case.model.constant(indices)], [output], "Gather", Axis=axis)


def tile(case: Case) -> None:
    shape = case.shape()
    many = [case.size(1, 3) for _ in shape]
    data = case.input(shape)
    output = case.output([size * count for size, count in zip(shape, many, strict=True)], like=data)
    case.model.operator("TILE", [data, case.model.constant(many)], [output], "Tile")


def reduce(case: Case, name: str) -> None:
    shape, keep = case.shape(), case.pick(False, True)
    images: list[tuple[int, ...]] = [(1, 2), (1,), (2,), (3,), (1, 2, 3)]
    axes: tuple[int, ...] = case.pick(*(images if len(shape) == 4 else [(1,), (len(shape) - 1,)]))
    data = case.input(shape)
    made = [1 if at in axes else size for at, size in enumerate(shape) if keep or at not in axes]
    count = math.prod(shape[axis] for axis in axes)
    scale = float(case.model.tensors[data].scale[0]) * (
        count**0.5 if name == "SUM" else case.rng.uniform(0.4, 1)
    )
    output = case.output(made, scale) if name in ("MEAN", "SUM") else case.output(made, like=data)
    given = [axis - case.pick(0, len(shape)) for axis in axes]
    case.model.operator(name, [data, case.model.constant(given)], [output], "Reducer", KeepDims=keep)


def arg(case: Case, name: str) -> None:
    shape = case.shape()
    axis = case.size(0, len(shape) - 1)
    data = case.input(shape)
    dtype, number = case.pick(("int32", 2), ("int64", 4))
    output = case.plain((*shape[:axis], *shape[axis + 1 :]), dtype)
    kind = "ArgMax" if name == "ARG_MAX" else "ArgMin"
    case.model.operator(name, [data, case.model.constant([axis])], [output], kind, OutputType=number)


def blocks(case: Case, name: str) -> None:
    block, n, h, w, c = case.size(1, 3), 1, case.size(1, 4), case.size(1, 5), case.size(1, 6)
    small, large = (n, h, w, c * block**2), (n, h * block, w * block, c)
    before, after = (large, small) if name == "SPACE_TO_DEPTH" else (small, large)
    data = case.input(before)
    kind = "SpaceToDepth" if name == "SPACE_TO_DEPTH" else "DepthToSpace"
    case.model.operator(name, [data], [case.output(after, like=data)], kind, BlockSize=block)


def batches(case: Case, name: str) -> None:
    block = (case.size(1, 3), case.size(1, 3))
    n, h, w, c = 1, case.size(1, 4), case.size(1, 5), case.size(1, 4)
    ends = [[0, 0], [0, 0]]
    for pair, size, by in zip(ends, (h, w), block, strict=True):
        for at in range(2):
            pair[at] = case.size(0, min(2, size * by - 1 - sum(pair)))
    large = (n, *(size * by - sum(pair) for size, by, pair in zip((h, w), block, ends, strict=True)), c)
    small = (n * block[0] * block[1], h, w, c)
    before, after = (large, small) if name == "SPACE_TO_BATCH_ND" else (small, large)
    data = case.input(before)
    kind = "SpaceToBatchND" if name == "SPACE_TO_BATCH_ND" else "BatchToSpaceND"
    inputs = [data, case.model.constant(block), case.model.constant(ends)]
    case.model.operator(name, inputs, [case.output(after, like=data)], kind)


def normalisation(case: Case) -> None:
    data = case.input(case.shape())
    output = case.output(case.model.tensors[data].shape, 1 / 128, 128 * (case.dtype == "uint8"))
    case.model.operator("L2_NORMALIZATION", [data], [output], "L2Norm")


def resize(case: Case, name: str) -> None:
    n, h, w, c = case.image()
    made = case.pick((h * 2, w * 2), (h * 4, w), (case.size(1, 20), case.size(1, 20)))
    corners, half = case.pick((False, False), (False, True), (True, False))
    if "LINEAR" in name:  # LiteRT rounds coordinates to 1/1024
        made, corners = case.pick((h * 2, w * 2), (h * 4, w), (h, w * 8)), False
    data = case.input((n, h, w, c))
    output = case.output((n, *made, c), like=data)
    kind = "ResizeNearestNeighbor" if "NEAREST" in name else "ResizeBilinear"
    case.model.operator(
        name, [data, case.model.constant(made)], [output], kind, AlignCorners=corners, HalfPixelCenters=half
    )


def quantise(case: Case) -> None:
    """Draw a requantisation, also from int8 to uint8."""
    data = case.input(case.shape())
    item = case.model.tensors[data]
    dtype, scale = case.dtype, float(item.scale[0])
    case.dtype = case.pick("int8", "uint8")
    output = case.output(item.shape, scale * case.rng.uniform(0.6, 2))
    case.dtype = dtype
    case.model.operator("QUANTIZE", [data], [output], "Quantize")


def dequantise(case: Case) -> None:
    data = case.input(case.shape())
    output = case.plain(case.model.tensors[data].shape, "float32")
    case.model.operator("DEQUANTIZE", [data], [output], "Dequantize")


def shape(case: Case) -> None:
    """Draw SHAPE next to an ADD, because a constant result makes no model."""
    data = case.input(case.shape())
    size = case.model.tensors[data].shape
    case.model.operator("SHAPE", [data], [case.plain((len(size),), "int32")], "Shape", OutType=2)
    case.model.operator("ADD", [data, data], [case.output(size)], "Add")


Draw = Callable[[Case], None]


def _with(draw: Callable[..., None], *arguments: Any, **options: Any) -> Draw:
    return lambda case: draw(case, *arguments, **options)


CASES: dict[str, Draw] = {
    "CONV_2D": conv,
    "DEPTHWISE_CONV_2D": _with(conv, True),
    "TRANSPOSE_CONV": transpose_conv,
    "FULLY_CONNECTED": fully_connected,
    "BATCH_MATMUL": batch_matmul,
    **{name: _with(pool, name) for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D")},
    **{name: _with(binary, name, kind) for name, kind in (("ADD", "Add"), ("SUB", "Sub"), ("MUL", "Mul"))},
    **{name: _with(extremes, name) for name in ("MAXIMUM", "MINIMUM")},
    "LOGISTIC": _with(squash, "LOGISTIC", 1 / 256, -128),
    "TANH": _with(squash, "TANH", 1 / 128, 0),
    "HARD_SWISH": _with(unary, "HARD_SWISH", "HardSwish"),
    "ELU": _with(unary, "ELU"),
    "GELU": _with(unary, "GELU", "Gelu"),
    "GELU_APPROXIMATE": _with(unary, "GELU", "Gelu", Approximate=True),
    "ABS": _with(unary, "ABS", "Abs"),
    "NEG": negative,
    "EXP": _with(unary, "EXP", "Exp"),
    "SQRT": _with(unary, "SQRT", positive=True),
    "RSQRT": _with(unary, "RSQRT", positive=True),
    "SQUARE": _with(unary, "SQUARE", "Square"),
    **{name: _with(relu, name) for name in ("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1")},
    "LEAKY_RELU": leaky,
    "PRELU": prelu,
    **{name: _with(softmax, name) for name in ("SOFTMAX", "LOG_SOFTMAX")},
    "RESHAPE": reshape,
    "SQUEEZE": squeeze,
    "EXPAND_DIMS": expand_dims,
    "TRANSPOSE": transpose,
    **{name: _with(pad, name) for name in ("PAD", "PADV2", "MIRROR_PAD")},
    "SLICE": slice_,
    "STRIDED_SLICE": strided_slice,
    "CONCATENATION": concatenation,
    "SPLIT": split,
    "SPLIT_V": split_v,
    "PACK": pack,
    "UNPACK": unpack,
    "GATHER": gather,
    "TILE": tile,
    **{name: _with(reduce, name) for name in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN")},
    **{name: _with(arg, name) for name in ("ARG_MAX", "ARG_MIN")},
    **{name: _with(blocks, name) for name in ("SPACE_TO_DEPTH", "DEPTH_TO_SPACE")},
    **{name: _with(batches, name) for name in ("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND")},
    "L2_NORMALIZATION": normalisation,
    **{name: _with(resize, name) for name in ("RESIZE_NEAREST_NEIGHBOR", "RESIZE_BILINEAR")},
    "QUANTIZE": quantise,
    "DEQUANTIZE": dequantise,
    "SHAPE": shape,
}


class AfterChannelsFirst(Case):
    """An operator whose images come from a channels-first operator that changes nothing."""

    def input(self, shape: Sequence[int], scale: float | None = None, zero: int | None = None) -> int:
        data = super().input(shape, scale, zero)
        if len(shape) != 4:
            return data
        item = self.model.tensors[data]
        moved = self.model.tensor(shape, item.dtype, item.scale[0], item.zero[0])
        ones: dict[str, Any] = dict.fromkeys(("FilterHeight", "FilterWidth", "StrideH", "StrideW"), 1)
        self.model.operator("MAX_POOL_2D", [data], [moved], "Pool2D", Padding=VALID, **ones)
        return moved


MOVES = (
    "RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE", "PAD", "MIRROR_PAD", "SLICE", "STRIDED_SLICE", "CONCATENATION",
    "SPLIT", "SPLIT_V", "PACK", "UNPACK", "GATHER", "TILE", "SPACE_TO_DEPTH", "DEPTH_TO_SPACE", "MAX_POOL_2D",
    "RESIZE_NEAREST_NEIGHBOR", "MAXIMUM", "MINIMUM", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND",
)  # fmt: skip
"""Operators whose results are elements of their inputs: LiteRT and weft agree on every byte."""
_LARGEST = 5000
"""Largest tensor, in elements, that a chain continues from."""


class Chain(Case):
    """A graph of operators in `MOVES` that read each other's results."""

    def scale(self) -> float:
        return 0.0625

    def zero(self) -> int:
        return 7

    def _find_tensor(self, rank: int | None = None) -> list[tuple[int, ...]]:
        shapes = (tuple(self.model.tensors[index].shape) for index in (*self.inputs, *self.outputs))
        return [shape for shape in shapes if rank in (None, len(shape)) and math.prod(shape) < _LARGEST]

    def image(self) -> tuple[int, int, int, int]:
        known = self._find_tensor(4)
        return self.pick(*known) if known else super().image()

    def shape(self) -> tuple[int, ...]:
        known = [shape for shape in self._find_tensor() if 0 < len(shape) <= 4]
        return self.pick(*known) if known else super().shape()

    def input(self, shape: Sequence[int], scale: float | None = None, zero: int | None = None) -> int:
        """Return a tensor of that shape, a new input only if no operator made one."""
        alike = [index for index in self.outputs if tuple(self.model.tensors[index].shape) == tuple(shape)]
        return self.pick(*alike) if alike else super().input(shape)


def chain(seed: int, length: int, dtype: str = "int8") -> Chain:
    """Draw a graph of `length` operators, whose results are all outputs."""
    case = Chain(np.random.default_rng([seed, length]), dtype)
    for _ in range(length):
        CASES[case.pick(*MOVES)](case)
    return case


def draw(name: str, seed: int, dtype: str = "int8", kind: type[Case] = Case) -> Case:
    case = kind(np.random.default_rng([seed, len(name), *map(ord, name)]), dtype)
    CASES[name](case)
    return case
