"""BatchNormalization: each channel times a factor plus an offset."""

from __future__ import annotations

import math

import numpy as np

from weft.compiler.ir.graph import DeviceOp
from weft.compiler.ir.layout import Layout, spatial
from weft.compiler.kernel.evaluate import LIMITS, WideElements
from weft.compiler.kernel.operators import GroupNorm, LayerNorm
from weft.compiler.kernel.rows import LARGEST_SUM, ONE_TABLE_RATIO, RowResponse, table_count
from weft.compiler.kernel.wide import WideConv
from weft.compiler.lower.rows import VECTORS_PER_CONSTANT
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.target import COUNT_MAX, PITCH_MAX
from weft.compiler.onnx.channels import channel_layout, same_order, takes_constants
from weft.compiler.onnx.conditions import (
    activation,
    image_operand,
    image_order,
    input_quantised,
    kernel_engine,
    kernel_room,
)
from weft.compiler.onnx.convolutions import ADD_WEIGHT, add_offsets, convolution, scale_channels
from weft.compiler.onnx.operator import NodeContext, Operator
from weft.compiler.onnx.qdq import Constant, Pending, Quant, Tensor, finish_op, result
from weft.compiler.onnx.reorder import to_layout
from weft.compiler.onnx.row_forms import Rows, row_fits, rows_of
from weft.compiler.onnx.wide import wide_buffer


def batch_norm_operands(context: NodeContext) -> str | None:
    """BatchNormalization takes a device value of two to five dimensions, not reshaped before, and constants."""
    symbol = context.symbol(0)
    if not takes_constants(symbol):
        return f"input {context.node.inputs[0]!r} is not"
    if channel_layout(context, symbol, None) is None:
        return f"input {context.node.inputs[0]!r} has shape {context.shape()}"
    other = next((index for index in range(1, 5) if not isinstance(context.symbol(index), Constant)), None)
    return None if other is None else f"input {context.node.input(other)!r} is not constant"


def batch_norm_inference(context: NodeContext) -> str | None:
    """BatchNormalization must not be in training, and its factors and offsets must be finite."""
    if context.attribute("training_mode", 0) or len([name for name in context.node.outputs if name]) > 1:
        return "it is in training"
    return None if all(np.isfinite(values).all() for values in affine(context)) else "they are not"


def affine(context: NodeContext) -> tuple[np.ndarray, np.ndarray]:
    """Factor and offset of each channel: ``(x - mean) / sqrt(variance + epsilon) * scale + bias``.

    S. Ioffe and C. Szegedy, "Batch Normalization" (2015), arXiv:1502.03167.
    """
    values = []
    for index in range(1, 5):
        symbol = context.symbol(index)
        assert isinstance(symbol, Constant)
        values.append(symbol.floats.reshape(-1).astype(np.float64))
    scale, bias, mean, variance = values
    epsilon = context.attribute("epsilon", 1e-5)
    assert isinstance(epsilon, float)
    with np.errstate(all="ignore"):
        factors = scale / np.sqrt(variance + epsilon)
        return factors, bias - mean * factors


def batch_norm(context: NodeContext) -> Pending:
    """Each channel times a factor plus an offset: into the convolution before it, or as one of its own."""
    factors, offsets = affine(context)
    symbol = context.symbol(0)
    layout = channel_layout(context, symbol, None)
    return add_offsets(
        context, scale_channels(context, convolution(context, symbol, layout, ADD_WEIGHT), factors), offsets
    )


BATCH_NORMALIZATION_OPERATORS = (
    Operator(("BatchNormalization",), (batch_norm_operands, batch_norm_inference, same_order), batch_norm),
)


_EPSILON = 1e-5


def group_image(context: NodeContext) -> str | None:
    """InstanceNormalization and GroupNormalization must be of rows or images: (N, C, L) or (N, C, H, W)."""
    return None if len(context.shape()) in (3, 4) else f"the input has shape {context.shape()}"


def group_constants(context: NodeContext) -> str | None:
    """Scale and bias of a group normalisation must be constant and finite, with a value for each channel or group."""
    channels = context.shape()[1]
    for index in (1, 2):
        values = context.floats(index)
        if values is None or not np.isfinite(values).all():
            return f"input {context.node.inputs[index]!r} is not"
        if values.size not in (channels, channels // _group(context)):
            return f"input {context.node.inputs[index]!r} has {values.size} values for {channels} channels"
    return None


def group_size(context: NodeContext) -> str | None:
    """The channels of a group must be a power of two, and no more than a vector has elements ('n')."""
    size = _group(context)
    good = size & (size - 1) == 0 and size <= context.model.config.n
    return None if good else f"they are {size}"


def group_pixels(context: NodeContext) -> str | None:
    """Images to normalise must have at most 4095 pixels, and those of a vector of channels fit the scratchpad."""
    pixels, config = math.prod(context.shape()[2:]), context.model.config
    fits = pixels <= COUNT_MAX and pixels + 2 * VECTORS_PER_CONSTANT <= config.scratchpad_size
    return None if fits else f"there are {pixels}"


def _group(context: NodeContext) -> int:
    """Channels that are normalised together."""
    if context.node.operator == "InstanceNormalization":
        return 1
    return max(1, context.shape()[1] // int(context.node.attributes["num_groups"]))


def _constant(context: NodeContext, index: int, channels: int) -> np.ndarray:
    """A value for each channel."""
    values = context.floats(index)
    assert values is not None
    return np.repeat(values.reshape(-1), channels // values.size).astype(np.float64)


def group_norm(context: NodeContext) -> Pending:
    """The device's GroupNorm."""
    (tensor, quant), layout = image_operand(context), spatial(context.shape())
    channels = context.shape()[1]
    weight, bias = (_constant(context, index, channels) for index in (1, 2))
    op = GroupNorm(
        context.node.name,
        tensor.view(),
        result(layout.nhwc),
        weight,
        bias,
        float(context.node.attributes.get("epsilon", _EPSILON)) / quant.scale**2,
        x_zero=quant.zero,
        group=_group(context),
    )
    return Pending((op,), layout, (tensor,), (context.node.index,))


GROUP_NORMALIZATION_OPERATORS = (
    Operator(
        ("InstanceNormalization", "GroupNormalization"),
        (kernel_engine, input_quantised, group_image, image_order, group_size, group_constants, group_pixels),
        group_norm,
    ),
)


"""What ONNX takes for epsilon if a node has none."""


def normal_constants(context: NodeContext) -> str | None:
    """Scale and bias of a normalisation must be constant and finite, with a value for each normalised element."""
    count = _elements(context)
    for index in (1, 2):
        values = context.floats(index)
        if not context.node.input(index):
            continue
        if values is None or not np.isfinite(values).all():
            return f"input {context.node.inputs[index]!r} is not"
        if values.size not in (1, count):
            return f"input {context.node.inputs[index]!r} has {values.size} values for {count}"
    return None


def normal_room(context: NodeContext) -> str | None:
    """Normalisation of values of 16 bits needs a kernel engine with room for it ('kernel' 128)."""
    size = context.model.config.kernel
    return None if not activation(context).tensor.wide or size >= 128 else f"'kernel' is {size}"


def normal_results(context: NodeContext) -> str | None:
    """Mean and deviation, as further results of a normalisation, must not be read."""
    model = context.model
    read = [
        name for name in context.node.outputs[1:] if name and (model.users(name) or name in model.outputs)
    ]
    return f"{read[0]!r} is" if read else None


def normal_axes(context: NodeContext) -> str | None:
    """What is normalised must be the last axes, whose elements are the channels on the device, if need be by copies."""
    return None if _rows(context) is not None else f"axis is {_axis(context)} of shape {context.shape()}"


def normal_length(context: NodeContext) -> str | None:
    """A row to normalise, its result and the constants must fit the scratchpad, and the row 65535 bytes."""
    config, count = context.model.config, _elements(context)
    vectors = ceil_div(count, config.n)
    fits = (
        2 + activation(context).tensor.wide + 2 * VECTORS_PER_CONSTANT
    ) * vectors <= config.scratchpad_size and count <= PITCH_MAX
    return None if fits else f"there are {count} elements"


def _axis(context: NodeContext) -> int:
    rank = len(context.shape())
    return int(context.node.attributes.get("axis", -1)) % max(rank, 1)


def _elements(context: NodeContext) -> int:
    return math.prod(context.shape()[_axis(context) :])


def _rows(context: NodeContext) -> tuple[Tensor, Layout] | None:
    """The input with the normalised elements as channels, all others as pixels."""
    shape, count = context.shape(), _elements(context)
    layout = Layout(shape, tuple(range(len(shape))), (1, 1, math.prod(shape) // count, count))
    tensor = to_layout(activation(context).tensor, layout)
    return None if tensor is None else (tensor, layout)


def layer_norm(context: NodeContext) -> Pending:
    """The device's LayerNorm."""
    quant, found = activation(context).quant, _rows(context)
    assert found is not None
    tensor, layout = found
    count = _elements(context)
    weight, bias = (context.floats(index) if context.node.input(index) else None for index in (1, 2))
    epsilon = float(context.node.attributes.get("epsilon", _EPSILON))
    op = LayerNorm(
        context.node.name,
        tensor.view(),
        result(layout.nhwc),
        np.broadcast_to(np.ones(1) if weight is None else weight.reshape(-1), count).astype(np.float64),
        np.broadcast_to(np.zeros(1) if bias is None else bias.reshape(-1), count).astype(np.float64),
        epsilon / quant.scale**2,
        x_zero=quant.zero,
        centre=context.node.operator == "LayerNormalization",
    )
    return Pending((op,), layout, (tensor,), (context.node.index,))


LAYER_NORMALIZATION_OPERATORS = (
    Operator(
        ("LayerNormalization", "RMSNormalization"),
        (
            kernel_engine,
            input_quantised,
            normal_room,
            normal_results,
            normal_constants,
            normal_axes,
            normal_length,
        ),
        layer_norm,
    ),
)


def response_order(context: NodeContext) -> str | None:
    """LRN's input must have its channels last on the device, or be brought into this order by at most 256 copies."""
    return None if _placed(context) is not None else f"input {context.node.inputs[0]!r}"


def response_length(context: NodeContext) -> str | None:
    """The channels of LRN must fit an eighth of the scratchpad."""
    count = context.shape()[1]
    return None if row_fits(context.model.config, count) else f"there are {count}"


def response_power(context: NodeContext) -> str | None:
    """LRN must have a beta from 0 to 1, a bias above 0 and an alpha of at least 0."""
    alpha, beta, bias = _constants(context)
    good = 0 <= beta <= 1 and bias > 0 and alpha >= 0 and math.isfinite(alpha + bias)
    return None if good else f"beta is {beta:g}, bias {bias:g}, alpha {alpha:g}"


def response_range(context: NodeContext) -> str | None:
    """In LRN alpha times the mean square may be 256 times the bias at most."""
    ratio = _ratio(context)
    return None if ratio <= ONE_TABLE_RATIO**2 else f"it may be {ratio:.4g} times that"


def response_tables(context: NodeContext) -> str | None:
    """LRN takes two look-up tables, and four where alpha times the mean square may be above 16 times the bias."""
    count = context.model.config.lookup_tables
    return None if count >= table_count(_ratio(context)) else f"there are {count}"


def _constants(context: NodeContext) -> tuple[float, float, float]:
    """Alpha, beta and the bias."""
    named = context.node.attributes
    return float(named.get("alpha", 1e-4)), float(named.get("beta", 0.75)), float(named.get("bias", 1.0))


def _size(context: NodeContext) -> int:
    return int(context.node.attributes["size"])


def _placed(context: NodeContext) -> Rows | None:
    return rows_of(activation(context).tensor, context.shape(), (1,)) if len(context.shape()) > 1 else None


def _largest(context: NodeContext) -> tuple[int, int]:
    """The largest square of an element, in steps squared, and how many are added up at most."""
    zero = activation(context).quant.zero
    return max(128 + zero, 127 - zero) ** 2, min(_size(context), context.shape()[1])


def _ratio(context: NodeContext) -> float:
    """What of the sum of squares is added to the bias at most, in biases."""
    (square, count), (alpha, _, bias) = _largest(context), _constants(context)
    return alpha / _size(context) * square * count * activation(context).quant.scale ** 2 / bias


def response(context: NodeContext) -> Pending:
    """Squares, their sums, and the device's RowResponse."""
    found, quant, name = _placed(context), activation(context).quant, context.node.name
    assert found is not None
    (square, count), (_, beta, bias) = _largest(context), _constants(context)
    shape = found.layout.nhwc
    src, sums = found.tensor.view(), wide_buffer("sums", shape)
    op = RowResponse(
        name,
        src,
        sums,
        result(shape),
        bias,
        _ratio(context) * bias / LARGEST_SUM,
        beta,
        quant.scale,
        quant.zero,
    )

    def join(to: Quant, value: str, bounds: tuple[int, int]) -> tuple[DeviceOp, ...]:
        squares, sums = (wide_buffer(f"{value}/{part}", shape) for part in ("squares", "sums"))
        zero = LIMITS[0]
        return (
            WideElements(
                name=f"{name}/squares", a=src, b=src, dst=squares, kind="product", a_zero=quant.zero, b_zero=quant.zero,
                y_zero=zero, wide=True,
            ),
            WideConv(
                name=f"{name}/sums", src=squares, dst=sums, weight=_band(shape[3], _size(context)),
                bias=np.zeros(shape[3], np.int64), scale=np.full(shape[3], LARGEST_SUM / (square * count)), x_zero=zero,
                y_zero=zero, x_wide=True, wide=True,
            ),
            finish_op(op.replace(sums=sums), to, value, bounds),
        )  # fmt: skip

    return Pending((op,), found.layout, (found.tensor,), (context.node.index,), join=join)


def _band(channels: int, size: int) -> np.ndarray:
    """Weights that add up `size` channels around each, the one behind it first."""
    at = np.arange(channels)
    distance = at[None] - at[:, None]
    near = (distance >= -((size - 1) // 2)) & (distance <= size // 2)
    return near.astype(np.int16)[:, None, None, :]


LRN_OPERATORS = (
    Operator(
        ("LRN",),
        (
            kernel_room,
            input_quantised,
            response_power,
            response_range,
            response_tables,
            response_order,
            response_length,
        ),
        response,
    ),
)


OPERATORS = (
    *BATCH_NORMALIZATION_OPERATORS,
    *GROUP_NORMALIZATION_OPERATORS,
    *LAYER_NORMALIZATION_OPERATORS,
    *LRN_OPERATORS,
)
