"""What ONNX asks of operators and its own checker does not look at: attributes that contradict shapes or types.

A rule takes a `Site` and returns None if the node keeps it, else what is wrong: the words behind "node 'x' (Op)".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.compiler.ir import CompileError
from weft.compiler.windows import axes

AUTO_PADS = (b"NOTSET", b"SAME_UPPER", b"SAME_LOWER", b"VALID")
POOLS = ("MaxPool", "AveragePool", "LpPool")
GLOBAL_POOLS = ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
REDUCTIONS = tuple(
    f"Reduce{kind}"
    for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
)
_WEIGHTS = {"Conv": 1, "ConvTranspose": 1, "ConvInteger": 1, "QLinearConv": 3}
_BIAS = {"Conv": 2, "ConvTranspose": 2, "QLinearConv": 8}
"""Which input of a convolution holds its weights, and which its bias."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """A node with the shapes of its inputs and outputs and their types (numpy names), None where not known."""

    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[Shape | None, ...]
    outputs: tuple[Shape | None, ...]
    dtypes: tuple[str | None, ...]
    result: str | None

    def shape(self, index: int) -> Shape | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def dtype(self, index: int) -> str | None:
        return self.dtypes[index] if index < len(self.dtypes) else None

    @property
    def rank(self) -> int | None:
        """Spatial dimensions of the first input."""
        shape = self.shape(0)
        return None if shape is None else len(shape) - 2

    @property
    def kernel(self) -> tuple[int, ...] | None:
        """By attribute, or by the weights."""
        given = self.attributes.get("kernel_shape")
        if given is not None:
            return tuple(given)
        weights = self.weights
        return None if weights is None else weights[2:]

    @property
    def weights(self) -> Shape | None:
        return self.shape(_WEIGHTS[self.op]) if self.op in _WEIGHTS else None


Rule = Callable[[Site], str | None]


def check(label: str, site: Site) -> None:
    """Raise `CompileError` for a rule that a node breaks; `label` names it."""
    for rule in RULES.get(site.op, ()):
        wrong = rule(site)
        if wrong is not None:
            raise CompileError(f"{label} {wrong}")


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "()"


def window_lengths(site: Site) -> str | None:
    """Kernel, strides, dilations and pads have a number for each spatial dimension, pads two."""
    rank = site.rank
    if rank is None:
        return None
    wanted = {
        "kernel_shape": rank,
        "strides": rank,
        "dilations": rank,
        "output_padding": rank,
        "pads": 2 * rank,
    }
    for name, count in wanted.items():
        given = site.attributes.get(name)
        if given is not None and len(given) != count:
            return f"has {name} {list(given)}, but its input has {rank} spatial dimensions"
    return None


def window_numbers(site: Site) -> str | None:
    """Kernel, strides and dilations are above zero, pads not below."""
    for name, least in (
        ("kernel_shape", 1),
        ("strides", 1),
        ("dilations", 1),
        ("pads", 0),
        ("output_padding", 0),
    ):
        given = site.attributes.get(name)
        if given is not None and min(given, default=least) < least:
            return f"has {name} {list(given)}; they must be at least {least}"
    return None


def auto_pad(site: Site) -> str | None:
    """auto_pad is one of four words, and none but NOTSET stands next to pads."""
    auto = site.attributes.get("auto_pad", b"NOTSET")
    if auto not in AUTO_PADS:
        known = ", ".join(word.decode() for word in AUTO_PADS)
        return f"has auto_pad {auto.decode(errors='replace')!r}; ONNX defines {known}"
    pads = site.attributes.get("pads")
    if auto == b"NOTSET" or pads is None or (auto == b"VALID" and not any(pads)):
        return None
    return f"has both auto_pad {auto.decode()!r} and pads {list(pads)}; ONNX allows one of them"


def weights_agree(site: Site) -> str | None:
    """Weights have the rank of the input, the kernel that kernel_shape says, and the channels that group says."""
    weights, image, group = site.weights, site.shape(0), site.attributes.get("group", 1)
    if group < 1:
        return f"has group {group}; it must be at least 1"
    if weights is None or image is None:
        return None
    if len(weights) != len(image):
        return f"has weights of shape {_text(weights)} for an input of shape {_text(image)}"
    if site.kernel != weights[2:]:
        return f"has kernel_shape {list(site.kernel or ())}, but weights of shape {_text(weights)}"
    channels, inside = image[1], weights[0] if site.op == "ConvTranspose" else weights[1] * group
    if channels != inside or weights[0] % group:
        return f"has group {group} and weights of shape {_text(weights)}, but an input of {channels} channels"
    return None


def bias_agrees(site: Site) -> str | None:
    """The bias has one number for each output channel."""
    weights, bias = site.weights, site.shape(_BIAS[site.op])
    if weights is None or bias is None:
        return None
    outputs = weights[1] * site.attributes.get("group", 1) if site.op == "ConvTranspose" else weights[0]
    return None if bias == (outputs,) else f"has a bias of shape {_text(bias)} for {outputs} output channels"


def kernel_fits(site: Site) -> str | None:
    """The kernel is not larger than the image with its padding."""
    kernel, image = site.kernel, site.shape(0)
    if kernel is None or image is None or site.attributes.get("auto_pad", b"NOTSET") in AUTO_PADS[1:3]:
        return None
    rank = len(kernel)
    pads = site.attributes.get("pads") or (0,) * 2 * rank
    dilations = site.attributes.get("dilations") or (1,) * rank
    for axis, size in enumerate(image[2:]):
        room, span = size + pads[axis] + pads[rank + axis], (kernel[axis] - 1) * dilations[axis] + 1
        if span > room:
            return f"has a kernel that covers {span} elements along axis {2 + axis}, of {room} with padding"
    return None


def windows_agree(site: Site) -> str | None:
    """ONNX and runtimes agree how many windows a pool has, and where they start."""
    image, output = site.shape(0), site.outputs[0]
    if image is None or output is None:
        return None
    for at, axis in enumerate(axes(image[2:], site.attributes)):
        if axis.count != output[2 + at]:
            return (
                f"has {output[2 + at]} windows along axis {2 + at} by ONNX's shape inference, of which {axis.count} "
                "start in the input; runtimes leave out the others: change ceil_mode or pads"
            )
        same = site.attributes.get("auto_pad", b"NOTSET") in AUTO_PADS[1:3]
        if same and (axis.count - 1) * axis.stride + axis.span < axis.size - 1:
            return (
                f"has auto_pad with windows along axis {2 + at} that leave elements out (stride {axis.stride}, kernel "
                f"{axis.kernel}), where runtimes start at different ones: give pads instead"
            )
    return None


def zero_type(site: Site) -> str | None:
    """A zero point has the type of the integers that it belongs to."""
    integers, zero = site.result if site.op == "QuantizeLinear" else site.dtype(0), site.dtype(2)
    if zero is None or integers is None or zero == integers:
        return None
    return f"has a zero point of type {zero} for values of type {integers}"


def scales_agree(site: Site) -> str | None:
    """There is one scale, or one for each element along the axis; and as many zero points."""
    shape, scale, zero = site.shape(0), site.shape(1), site.shape(2)
    if scale is None or site.attributes.get("block_size", 0):
        return None
    count = math.prod(scale)
    if zero is not None and zero != scale and (count, math.prod(zero)) != (1, 1):
        return f"has {count} scales but {math.prod(zero)} zero points" + (
            f", of shapes {_text(scale)} and {_text(zero)}" if math.prod(zero) == count else ""
        )
    if shape is None or count == 1:
        return None
    axis = site.attributes.get("axis", 1)
    if not -len(shape) <= axis < len(shape):
        return f"has axis {axis}, but its input has {len(shape)} dimensions"
    if scale == (shape[axis],):
        return None
    return f"has {count} per-channel scales, but dimension {axis} of its input {shape} is {shape[axis]}"


def image_given(site: Site) -> str | None:
    """A pool's input has images, channels and something to pool."""
    shape = site.shape(0)
    return (
        None
        if shape is None or len(shape) > 2
        else f"has an input of shape {_text(shape)}, which is no image"
    )


def axes_listed(site: Site) -> str | None:
    """Axes that are an input are a list."""
    shape = site.shape(1)
    return (
        None if shape is None or len(shape) == 1 else f"has axes of shape {_text(shape)}; they must be a list"
    )


def block_size(site: Site) -> str | None:
    """Blocks have at least one element, and a scale each; 0 stands for none."""
    size, shape, scales = site.attributes.get("block_size", 0), site.shape(0), site.shape(1)
    if size < 0:
        return f"has block_size {size}; it must be at least 0"
    if not size or shape is None or scales is None:
        return None
    wanted, axis = list(shape), site.attributes.get("axis", 1)
    if -len(shape) <= axis < len(shape):
        wanted[axis] = -(-shape[axis] // size)
    if scales == tuple(wanted):
        return None
    return f"has block_size {size} and scales of shape {_text(scales)} for values of shape {_text(shape)}"


def permutes(site: Site) -> str | None:
    """perm names every axis once."""
    perm, shape = site.attributes.get("perm"), site.shape(0)
    if perm is None or shape is None or sorted(perm) == list(range(len(shape))):
        return None
    return f"has perm {list(perm)} for an input of {len(shape)} dimensions"


def keeps_size(site: Site) -> str | None:
    """As many elements go out as come in."""
    before, after = site.shape(0), site.outputs[0]
    if before is None or after is None or math.prod(before) == math.prod(after):
        return None
    return f"makes {_text(after)} of {_text(before)}, which has another number of elements"


def axis_inside(site: Site) -> str | None:
    """The axis is one of the input's."""
    axis, shape = site.attributes.get("axis"), site.shape(0)
    if axis is None or shape is None:
        return None
    most = len(shape) if site.op == "Flatten" else len(shape) - 1
    return (
        None if -len(shape) <= axis <= most else f"has axis {axis}, but its input has {len(shape)} dimensions"
    )


def parts_agree(site: Site) -> str | None:
    """Concatenated values differ in size along their axis only."""
    shapes, axis = [shape for shape in site.inputs if shape is not None], site.attributes.get("axis", 0)
    rest = {(*shape[: axis % len(shape)], -1, *shape[axis % len(shape) + 1 :]) for shape in shapes if shape}
    if len(rest) < 2:
        return None
    return f"joins values of shapes {' and '.join(dict.fromkeys(map(_text, shapes)))} along axis {axis}"


def addend_fits(site: Site) -> str | None:
    """The third operand of Gemm broadcasts to the product."""
    addend, output = site.shape(2), site.outputs[0]
    if addend is None or output is None:
        return None
    fits = len(addend) <= len(output) and all(
        size in (1, most) for size, most in zip(addend[::-1], output[::-1], strict=False)
    )
    return None if fits else f"adds values of shape {_text(addend)} to a product of {_text(output)}"


def channels_agree(site: Site) -> str | None:
    """Scale, bias, mean and variance have one number for each channel."""
    shape = site.shape(0)
    if shape is None or len(shape) < 2:
        return None
    for given in site.inputs[1:5]:
        if given is not None and given != (shape[1],):
            return f"has parameters of shape {_text(given)} for {shape[1]} channels"
    return None


def bounds_scalar(site: Site) -> str | None:
    """Bounds are single numbers."""
    for given in site.inputs[1:3]:
        if given is not None and math.prod(given) != 1:
            return f"has a bound of shape {_text(given)}; it must be one number"
    return None


_WINDOW: tuple[Rule, ...] = (image_given, window_lengths, window_numbers, auto_pad)
_CONV: tuple[Rule, ...] = (*_WINDOW, weights_agree, kernel_fits)

RULES: dict[str, tuple[Rule, ...]] = {
    "BatchNormalization": (channels_agree,),
    "Clip": (bounds_scalar,),
    "Concat": (axis_inside, parts_agree),
    "Conv": (*_CONV, bias_agrees),
    "ConvInteger": _CONV,
    "ConvTranspose": (*_WINDOW, weights_agree, bias_agrees),
    "DequantizeLinear": (zero_type, scales_agree, block_size),
    "Flatten": (axis_inside, keeps_size),
    "Gemm": (addend_fits,),
    "Identity": (keeps_size,),
    "LogSoftmax": (axis_inside,),
    "QLinearConv": (*_CONV, bias_agrees),
    "QuantizeLinear": (zero_type, scales_agree, block_size),
    "Reshape": (keeps_size,),
    "Softmax": (axis_inside,),
    "Squeeze": (axes_listed, keeps_size),
    "Transpose": (permutes,),
    "Unsqueeze": (axes_listed, keeps_size),
    **dict.fromkeys(GLOBAL_POOLS, (image_given,)),
    **dict.fromkeys(REDUCTIONS, (axes_listed,)),
    **dict.fromkeys(POOLS, (*_WINDOW, kernel_fits, windows_agree)),
}
"""The rules of each operator, in the order they are looked at."""
