"""BatchNormalization, InstanceNormalization, GroupNormalization, LayerNormalization, RMSNormalization and LRN."""

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
from weft.compiler.onnx.conditions import (
    activation,
    image_operand,
    image_order,
    input_quantised,
    kernel_engine,
    kernel_room,
)
from weft.compiler.onnx.convolutions import (
    ADD_WEIGHT,
    add_offsets,
    channel_layout,
    convolution,
    same_order,
    scale_channels,
    takes_constants,
)
from weft.compiler.onnx.operator import NodeContext, Operator
from weft.compiler.onnx.qdq import Constant, Pending, Quant, Tensor, finish_op, result
from weft.compiler.onnx.reorder import to_layout
from weft.compiler.onnx.row_forms import Rows, row_fits, rows_of
from weft.compiler.onnx.wide import wide_buffer


def batch_norm_operands(context: NodeContext) -> str | None:
    """BatchNormalization needs constants, and a device value of rank 2 to 5 that was not reshaped before."""
    symbol = context.symbol(0)
    if not takes_constants(symbol):
        return f"input {context.node.inputs[0]!r} is not"
    if channel_layout(context, symbol, None) is None:
        return f"input {context.node.inputs[0]!r} has shape {context.shape()}"
    other = next((index for index in range(1, 5) if not isinstance(context.symbol(index), Constant)), None)
    return None if other is None else f"input {context.node.input(other)!r} is not constant"


def batch_norm_inference(context: NodeContext) -> str | None:
    """BatchNormalization must not be in training mode, and its factors and offsets must be finite."""
    if context.attribute("training_mode", 0) or len([name for name in context.node.outputs if name]) > 1:
        return "it is in training mode"
    return None if all(np.isfinite(values).all() for values in affine(context)) else "they are not"


def affine(context: NodeContext) -> tuple[np.ndarray, np.ndarray]:
    """Return the factor and offset of each channel: ``(x - mean) / sqrt(variance + epsilon) * scale + bias``.

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
    """Return each channel times a factor plus an offset, in the preceding convolution or a new one."""
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
"""ONNX's default of `epsilon`."""


def group_image(context: NodeContext) -> str | None:
    """The input of InstanceNormalization and GroupNormalization must have shape (N, C, L) or (N, C, H, W)."""
    return None if len(context.shape()) in (3, 4) else f"the input has shape {context.shape()}"


def group_constants(context: NodeContext) -> str | None:
    """Scale and bias of a group normalisation must be constant and finite, with one value per channel or group."""
    channels = context.shape()[1]
    for index in (1, 2):
        values = context.floats(index)
        if values is None or not np.isfinite(values).all():
            return f"input {context.node.inputs[index]!r} is not"
        if values.size not in (channels, channels // _group_size(context)):
            return f"input {context.node.inputs[index]!r} has {values.size} values for {channels} channels"
    return None


def group_size(context: NodeContext) -> str | None:
    """The number of channels per group must be a power of two, and at most 'n'."""
    size = _group_size(context)
    supported = size & (size - 1) == 0 and size <= context.model.config.n
    return None if supported else f"they are {size}"


def group_pixels(context: NodeContext) -> str | None:
    """Images to normalise must have at most 4095 pixels, and one vector of channels of them must fit the scratchpad."""
    pixels, config = math.prod(context.shape()[2:]), context.model.config
    fits = pixels <= COUNT_MAX and pixels + 2 * VECTORS_PER_CONSTANT <= config.scratchpad_size
    return None if fits else f"there are {pixels}"


def _group_size(context: NodeContext) -> int:
    if context.node.operator == "InstanceNormalization":
        return 1
    return max(1, context.shape()[1] // int(context.node.attributes["num_groups"]))


def _per_channel(context: NodeContext, index: int, channels: int) -> np.ndarray:
    values = context.floats(index)
    assert values is not None
    return np.repeat(values.reshape(-1), channels // values.size).astype(np.float64)


def group_norm(context: NodeContext) -> Pending:
    """Return the device's GroupNorm."""
    (tensor, quant), layout = image_operand(context), spatial(context.shape())
    channels = context.shape()[1]
    weight, bias = (_per_channel(context, index, channels) for index in (1, 2))
    op = GroupNorm(
        context.node.name,
        tensor.view(),
        result(layout.nhwc),
        weight,
        bias,
        # The variance of integers is in squared steps.
        float(context.node.attributes.get("epsilon", _EPSILON)) / quant.scale**2,
        x_zero=quant.zero,
        group=_group_size(context),
    )
    return Pending((op,), layout, (tensor,), (context.node.index,))


GROUP_NORMALIZATION_OPERATORS = (
    Operator(
        ("InstanceNormalization", "GroupNormalization"),
        (kernel_engine, input_quantised, group_image, image_order, group_size, group_constants, group_pixels),
        group_norm,
    ),
)


def normal_constants(context: NodeContext) -> str | None:
    """Scale and bias of a normalisation must be constant and finite, with one value per normalised element."""
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
    """Normalisation of 16-bit values needs a kernel engine with room for it ('kernel' 128)."""
    size = context.model.config.kernel
    return None if not activation(context).tensor.wide or size >= 128 else f"'kernel' is {size}"


def normal_results(context: NodeContext) -> str | None:
    """The mean and deviation outputs of a normalisation must not be read."""
    model = context.model
    read = [
        name for name in context.node.outputs[1:] if name and (model.users(name) or name in model.outputs)
    ]
    return f"{read[0]!r} is" if read else None


def normal_axes(context: NodeContext) -> str | None:
    """The normalised axes must be the last ones, and channels on the device, if necessary by copies."""
    return None if _rows(context) is not None else f"axis is {_axis(context)} of shape {context.shape()}"


def normal_length(context: NodeContext) -> str | None:
    """A row to normalise must have at most 65535 bytes and fit the scratchpad with its result and constants."""
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
    """Return the input with the normalised elements as channels and all others as pixels; None if it needs too many
    copies.
    """
    shape, count = context.shape(), _elements(context)
    layout = Layout(shape, tuple(range(len(shape))), (1, 1, math.prod(shape) // count, count))
    tensor = to_layout(activation(context).tensor, layout)
    return None if tensor is None else (tensor, layout)


def layer_norm(context: NodeContext) -> Pending:
    """Return the device's LayerNorm."""
    quant, rows = activation(context).quant, _rows(context)
    assert rows is not None
    tensor, layout = rows
    count = _elements(context)
    weight, bias = (context.floats(index) if context.node.input(index) else None for index in (1, 2))
    epsilon = float(context.node.attributes.get("epsilon", _EPSILON))
    op = LayerNorm(
        context.node.name,
        tensor.view(),
        result(layout.nhwc),
        np.broadcast_to(np.ones(1) if weight is None else weight.reshape(-1), count).astype(np.float64),
        np.broadcast_to(np.zeros(1) if bias is None else bias.reshape(-1), count).astype(np.float64),
        # The variance of integers is in squared steps.
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
    """LRN's channels must be last on the device, or at most 256 copies must bring them there."""
    return None if _channel_rows(context) is not None else f"input {context.node.inputs[0]!r}"


def response_length(context: NodeContext) -> str | None:
    """The channels of LRN must fit an eighth of the scratchpad."""
    count = context.shape()[1]
    return None if row_fits(context.model.config, count) else f"there are {count}"


def response_power(context: NodeContext) -> str | None:
    """LRN must have a beta from 0 to 1, a bias above 0 and an alpha of at least 0."""
    alpha, beta, bias = _alpha_beta_bias(context)
    supported = 0 <= beta <= 1 and bias > 0 and alpha >= 0 and math.isfinite(alpha + bias)
    return None if supported else f"beta is {beta:g}, bias {bias:g}, alpha {alpha:g}"


def response_range(context: NodeContext) -> str | None:
    """In LRN, alpha times the mean square must be at most 256 times the bias."""
    ratio = _ratio(context)
    return None if ratio <= ONE_TABLE_RATIO**2 else f"it may be {ratio:.4g} times that"


def response_tables(context: NodeContext) -> str | None:
    """LRN needs two look-up tables, or four if alpha times the mean square can exceed 16 times the bias."""
    count = context.model.config.lookup_tables
    return None if count >= table_count(_ratio(context)) else f"there are {count}"


def _alpha_beta_bias(context: NodeContext) -> tuple[float, float, float]:
    named = context.node.attributes
    return float(named.get("alpha", 1e-4)), float(named.get("beta", 0.75)), float(named.get("bias", 1.0))


def _size(context: NodeContext) -> int:
    return int(context.node.attributes["size"])


def _channel_rows(context: NodeContext) -> Rows | None:
    return rows_of(activation(context).tensor, context.shape(), (1,)) if len(context.shape()) > 1 else None


def _square_bound(context: NodeContext) -> tuple[int, int]:
    """Return the largest square of an element, in squared steps, and the largest number of addends."""
    zero = activation(context).quant.zero
    return max(128 + zero, 127 - zero) ** 2, min(_size(context), context.shape()[1])


def _ratio(context: NodeContext) -> float:
    """Return the largest addend to the bias, as a multiple of the bias."""
    (square, count), (alpha, _, bias) = _square_bound(context), _alpha_beta_bias(context)
    return alpha / _size(context) * square * count * activation(context).quant.scale ** 2 / bias


def response(context: NodeContext) -> Pending:
    """Return squares, their sums, and the device's RowResponse."""
    rows, quant, name = _channel_rows(context), activation(context).quant, context.node.name
    assert rows is not None
    (square, count), (_, beta, bias) = _square_bound(context), _alpha_beta_bias(context)
    shape = rows.layout.nhwc
    src, sums = rows.tensor.view(), wide_buffer("sums", shape)
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
        zero = LIMITS[0]  # squares are not negative: the whole 16-bit range is theirs
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

    return Pending((op,), rows.layout, (rows.tensor,), (context.node.index,), join=join)


def _band(channels: int, size: int) -> np.ndarray:
    """Return weights that sum `size` channels around each; with even sizes there is one more channel after."""
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
