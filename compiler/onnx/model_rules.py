"""Rules of ONNX's operators that neither its checker nor its shape inference enforces.

A rule takes a `Site`. It returns None, or the violation as text after "node 'x' (Op)".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.compiler.errors import CompileError
from weft.compiler.ir.windows import axes, span

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
POOLS = ("MaxPool", "AveragePool", "LpPool")
GLOBAL_POOLS = ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
REDUCTIONS = tuple(
    f"Reduce{kind}"
    for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
)
_WEIGHTS = {
    "Conv": 1, "ConvTranspose": 1, "ConvInteger": 1, "QLinearConv": 3, "MatMulInteger": 1, "QLinearMatMul": 3,
}  # fmt: skip
"""Index of the weights among the inputs of a convolution or product."""
_BIAS = {"Conv": 2, "ConvTranspose": 2, "QLinearConv": 8}
"""Index of the bias among the inputs."""
_SINGLE = {
    "ConvInteger": {2: "x_zero_point", 3: "w_zero_point"},
    "MatMulInteger": {2: "a_zero_point"},
    "QLinearConv": {1: "x_scale", 2: "x_zero_point", 6: "y_scale", 7: "y_zero_point"},
    "QLinearMatMul": {1: "a_scale", 2: "a_zero_point", 6: "y_scale", 7: "y_zero_point"},
}
"""Scalar inputs: scales and zero points of activations."""
_OF_WEIGHTS = {
    "MatMulInteger": {3: "b_zero_point"},
    "QLinearConv": {4: "w_scale", 5: "w_zero_point"},
    "QLinearMatMul": {4: "b_scale", 5: "b_zero_point"},
}
"""Inputs that are scalar, or have one value per output channel: scales and zero points of weights."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """A node with the shapes of its inputs and outputs, None where they are unknown."""

    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[Shape | None, ...]
    outputs: tuple[Shape | None, ...]

    def shape(self, index: int) -> Shape | None:
        return self.inputs[index] if index < len(self.inputs) else None

    @property
    def kernel(self) -> tuple[int, ...] | None:
        """Kernel from the attribute, or from the weights."""
        kernel = self.attributes.get("kernel_shape")
        if kernel is not None:
            return tuple(kernel)
        weights = self.weights
        return None if weights is None else weights[2:]

    @property
    def weights(self) -> Shape | None:
        return self.shape(_WEIGHTS[self.op]) if self.op in _WEIGHTS else None


Rule = Callable[[Site], str | None]


def check(label: str, site: Site) -> None:
    """Raise `CompileError` for the first rule that a node violates; `label` names the node."""
    for rule in RULES.get(site.op, ()):
        wrong = rule(site)
        if wrong is not None:
            raise CompileError(f"{label} {wrong}")


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "()"


def auto_pad(site: Site) -> str | None:
    """auto_pad must be one of four words, and pads only go with NOTSET."""
    auto = site.attributes.get("auto_pad", "NOTSET")
    if auto not in AUTO_PADS:
        return f"has auto_pad {auto!r}; ONNX defines {', '.join(AUTO_PADS)}"
    pads = site.attributes.get("pads")
    if auto == "NOTSET" or pads is None or (auto == "VALID" and not any(pads)):
        return None
    return f"has both auto_pad {auto!r} and pads {list(pads)}; ONNX allows one of them"


def weights_agree(site: Site) -> str | None:
    """Weights must agree with kernel_shape and group."""
    weights, image, group = site.weights, site.shape(0), site.attributes.get("group", 1)
    if group < 1:
        return f"has group {group}; it must be at least 1"
    if weights is None or image is None:
        return None
    if site.kernel != weights[2:]:
        return f"has kernel_shape {list(site.kernel or ())}, but weights of shape {_text(weights)}"
    channels, inside = image[1], weights[0] if site.op == "ConvTranspose" else weights[1] * group
    if channels != inside or weights[0] % group:
        return f"has group {group} and weights of shape {_text(weights)}, but an input of {channels} channels"
    return None


def bias_agrees(site: Site) -> str | None:
    """The bias must have one value per output channel."""
    weights, bias = site.weights, site.shape(_BIAS[site.op])
    if weights is None or bias is None:
        return None
    outputs = weights[1] * site.attributes.get("group", 1) if site.op == "ConvTranspose" else weights[0]
    return None if bias == (outputs,) else f"has a bias of shape {_text(bias)} for {outputs} output channels"


def kernel_fits(site: Site) -> str | None:
    """The kernel must not be larger than the padded image."""
    kernel, image = site.kernel, site.shape(0)
    if kernel is None or image is None or site.attributes.get("auto_pad", "NOTSET") in AUTO_PADS[1:3]:
        return None
    rank = len(kernel)
    pads = site.attributes.get("pads") or (0,) * 2 * rank
    dilations = site.attributes.get("dilations") or (1,) * rank
    for axis, size in enumerate(image[2:]):
        room, reach = size + pads[axis] + pads[rank + axis], span(kernel[axis], dilations[axis])
        if reach > room:
            return f"has a kernel that covers {reach} elements along axis {2 + axis}, of {room} with padding"
    return None


def windows_agree(site: Site) -> str | None:
    """ONNX and runtimes must agree on the start of a pool's windows."""
    image = site.shape(0)
    if image is None:
        return None
    for at, axis in enumerate(axes(image[2:], site.attributes)):
        same = site.attributes.get("auto_pad", "NOTSET") in AUTO_PADS[1:3]
        if same and (axis.count - 1) * axis.stride + axis.span < axis.size - 1:
            return (
                f"has auto_pad with windows along axis {2 + at} that skip elements (stride {axis.stride}, kernel "
                f"{axis.kernel}); runtimes start such windows at different elements: give pads instead"
            )
    return None


def scales_agree(site: Site) -> str | None:
    """Scales must be per tensor, per element of the axis, or per block; zero points must have their shape.

    A per-tensor scale is a scalar or a list of one, and its zero point may be either.
    """
    shape, scale, zero = site.shape(0), site.shape(1), site.shape(2)
    size, axis = site.attributes.get("block_size", 0), site.attributes.get("axis", 1)
    if size < 0:
        return f"has block_size {size}; it must be at least 0"
    if scale is None:
        return None
    if _is_single(scale):
        if size:
            return f"has block_size {size}, but only one scale: leave block_size out"
        return None if zero is None or _is_single(zero) else _zero_points(scale, zero)
    if shape is not None and not -len(shape) <= axis < len(shape):
        return f"has axis {axis}, but its input has {len(shape)} dimensions"
    if shape is not None and size:
        expected = list(shape)
        expected[axis] = -(-shape[axis] // size)
        if scale != tuple(expected):
            return (
                f"has block_size {size} and scales of shape {_text(scale)} for values of shape {_text(shape)}"
            )
    elif shape is not None and scale != (shape[axis],):
        return (
            f"has scales of shape {_text(scale)} for values of shape {_text(shape)}; it must be one number, or a "
            f"list of {shape[axis]}, one for each element along axis {axis}"
        )
    return None if zero in (None, scale) else _zero_points(scale, zero)


def _is_single(shape: Shape) -> bool:
    """Return whether a scale or zero point of `shape` is per tensor. Runtimes refuse shape 1x1."""
    return shape in ((), (1,))


def _zero_points(scale: Shape, zero: Shape) -> str:
    return f"has scales of shape {_text(scale)}, but zero points of shape {_text(zero)}; the shapes must be equal"


def parameters_agree(site: Site) -> str | None:
    """Activations must have scalar parameters, and weights scalars or one value per output channel."""
    for index, name in _SINGLE[site.op].items():
        shape = site.shape(index)
        if shape is not None and not _is_single(shape):
            return f"has {name} of shape {_text(shape)}; it must be one number"
    weights = site.weights
    if weights is None:
        return None
    channels = channel_shapes(site.op, weights)
    for index, name in _OF_WEIGHTS.get(site.op, {}).items():
        shape = site.shape(index)
        if shape is not None and not _is_single(shape) and shape not in channels:
            or_each = f", or have the shape {' or '.join(map(_text, channels))}" if channels else ""
            problem = f"has {name} of shape {_text(shape)} for weights of shape {_text(weights)}"
            return f"{problem}; it must be one number{or_each}"
    return None


def channel_shapes(op: str, weights: Shape) -> tuple[Shape, ...]:
    """Return the shapes of per-channel scales and zero points of a QLinear or integer operator's weights."""
    if op == "QLinearConv":
        return (weights[:1],)
    if len(weights) < 2:
        return ()
    columns = (*weights[:-2], 1, weights[-1])
    return (weights[-1:], columns) if len(weights) == 2 else (columns,)


def input_is_image(site: Site) -> str | None:
    """A pool's input must have a batch, channels and at least one spatial axis."""
    shape = site.shape(0)
    return (
        None
        if shape is None or len(shape) > 2
        else f"has an input of shape {_text(shape)}, which is not an image"
    )


def axes_listed(site: Site) -> str | None:
    """Axes and sizes that are an input must be a list."""
    shape, noun = site.shape(1), "sizes" if site.op == "Reshape" else "axes"
    return (
        None
        if shape is None or len(shape) == 1
        else f"has {noun} of shape {_text(shape)}; they must be a list"
    )


def permutes(site: Site) -> str | None:
    """perm must name every axis once."""
    perm, shape = site.attributes.get("perm"), site.shape(0)
    if perm is None or shape is None or sorted(perm) == list(range(len(shape))):
        return None
    return f"has perm {list(perm)} for an input of {len(shape)} dimensions"


def keeps_size(site: Site) -> str | None:
    """The output must have as many elements as the input."""
    before, after = site.shape(0), site.outputs[0]
    if before is None or after is None or math.prod(before) == math.prod(after):
        return None
    return f"reshapes {_text(before)} to {_text(after)}, which has another number of elements"


def addend_fits(site: Site) -> str | None:
    """The third operand of Gemm must broadcast to the product."""
    addend, output = site.shape(2), site.outputs[0]
    if addend is None or output is None:
        return None
    fits = len(addend) <= len(output) and all(
        size in (1, most) for size, most in zip(addend[::-1], output[::-1], strict=False)
    )
    return None if fits else f"adds values of shape {_text(addend)} to a product of {_text(output)}"


def bounds_scalar(site: Site) -> str | None:
    """Bounds must be scalars."""
    for shape in site.inputs[1:3]:
        if shape is not None and math.prod(shape) != 1:
            return f"has a bound of shape {_text(shape)}; it must be one number"
    return None


_CONV: tuple[Rule, ...] = (auto_pad, weights_agree, kernel_fits)

RULES: dict[str, tuple[Rule, ...]] = {
    "Clip": (bounds_scalar,),
    "Conv": (*_CONV, bias_agrees),
    "ConvInteger": (*_CONV, parameters_agree),
    "ConvTranspose": (auto_pad, weights_agree, bias_agrees),
    "DequantizeLinear": (scales_agree,),
    "Gemm": (addend_fits,),
    "MatMulInteger": (parameters_agree,),
    "QLinearConv": (*_CONV, bias_agrees, parameters_agree),
    "QLinearMatMul": (parameters_agree,),
    "QuantizeLinear": (scales_agree,),
    "Reshape": (axes_listed, keeps_size),
    "Squeeze": (axes_listed,),
    "Transpose": (permutes,),
    "Unsqueeze": (axes_listed,),
    **dict.fromkeys(GLOBAL_POOLS, (input_is_image,)),
    **dict.fromkeys(POOLS, (auto_pad, kernel_fits, windows_agree)),
    **dict.fromkeys(REDUCTIONS, (axes_listed,)),
}
"""Rules of each operator, in the order of their checks."""
