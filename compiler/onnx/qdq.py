"""Symbols of a model's values: constants, int8 tensors, and float values between quantised ones.

Operators compute in float between quantised values. One walk over the model gives every value one of these symbols; the
quantisation of a result that is `Pending` completes a device operator.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from weft.compiler.errors import NarrowError
from weft.compiler.ir.graph import Conv, DeviceOp, Rescale
from weft.compiler.ir.layout import BITS, Layout, natural, row_major_layout
from weft.compiler.ir.network import Node
from weft.compiler.ir.products import RowIndices
from weft.compiler.ir.quantisation import Quantisation
from weft.compiler.ir.scales import Bounds, Pair, product_ends
from weft.compiler.ir.views import Buffer, View
from weft.compiler.onnx.model import Model
from weft.compiler.onnx.wide import upper_plane, widen

RESULT = ""
"""Name of the buffer that an unfinished operator writes."""


@dataclass(frozen=True)
class Quant:
    """Per-tensor quantisation parameters of values of 8 or 16 `bits`.

    `zero` is the zero point as stored on the device: uint8 minus 128, uint16 minus 32768.
    """

    scale: float
    zero: int
    unsigned: bool
    bits: int = 8

    def same(self, other: Quant) -> bool:
        """Return whether requantisation from these parameters to `other` changes no integer."""
        kind = (self.zero, self.unsigned, self.bits) == (other.zero, other.unsigned, other.bits)
        # The farthest integer, 2**bits steps from the zero point, moves by at most 0.256 of a step.
        return kind and abs(self.scale / other.scale - 1) < 0.256 / (1 << self.bits)

    def level(self, value: float) -> int:
        """Return `value` quantised as `Quantisation` does."""
        most = (1 << self.bits - 1) - 1
        if math.isinf(value):
            return most if value > 0 else -most - 1
        quotient = np.rint(np.float32(value) / np.float32(self.scale))
        return int(min(max(float(quotient) + self.zero, -most - 1.0), float(most)))


@dataclass(frozen=True)
class Tensor:
    """A value of 8 bits, or with `wide` of 16 bits, whose buffer then has one plane for each byte.

    Attributes
    ----------
    storage : str
        Name of the device buffer.
    value : str
        The model's value in that buffer, in layout `source`.
    source, layout : Layout
        Layouts of `value` and of this tensor, which may be a reshaped or transposed `value`.
    from_host : bool
        The host writes the buffer, in any layout.
    via : tuple of int
        Nodes between `value` and this tensor, which only renamed it.
    order : Layout or None
        For tensors from the host: this tensor's layout if the buffer holds `value` in row-major order.
    from_table : bool
        A look-up table of its own made it.
    recipe : Recipe or None
        Operators that bring another tensor's bytes into this buffer; added when something reads this tensor.
    index : bool
        The value is int64, of which only the low bits are stored; only the host reads it.
    rows : RowIndices or None
        The value holds indices of rows.
    """

    storage: str
    value: str
    source: Layout
    layout: Layout
    unsigned: bool
    from_host: bool
    via: tuple[int, ...] = ()
    order: Layout | None = None
    from_table: bool = False
    recipe: Recipe | None = field(default=None, compare=False)
    wide: bool = False
    index: bool = False
    rows: RowIndices | None = None

    @property
    def dtype(self) -> str:
        """Name of the integer type that is stored."""
        return f"{'u' if self.unsigned else ''}int{16 if self.wide else 8}"

    def in_layout(self, layout: Layout) -> Tensor | None:
        """Return this tensor in another layout without work on the device, else None.

        A tensor from the host gets another transfer if need be.
        """
        if self.layout == layout:
            return self
        if self.layout.same(layout):
            return dataclasses.replace(self, layout=layout)
        source = None if self.order is None else layout.in_order_of(self.order)
        if not self.from_host or source is None:
            return None
        # The name contains the layout: a value may enter the device in several layouts, each in a buffer of its own.
        storage = f"{self.value}:{'x'.join(map(str, source.shape))}:{''.join(map(str, source.perm))}"
        return dataclasses.replace(self, storage=storage, source=source, layout=layout)

    def transpose(self, shape: tuple[int, ...], perm: tuple[int, ...], layout: Layout) -> Tensor:
        """Return the transpose of this value of `shape`, whose bytes have `layout`."""
        order = None if self.order is None else self.order.transpose(shape, perm)
        return dataclasses.replace(self, layout=layout, order=order)

    def view(self, shape: tuple[int, int, int, int] | None = None) -> View:
        """Return the whole buffer, or its first plane, in the layout's shape or another shape of equal size."""
        shape = shape or self.layout.nhwc
        view = View(Buffer(self.storage, shape), shape)
        return upper_plane(view) if self.wide else view


@dataclass(frozen=True)
class Activation:
    """Float value ``(tensor - zero) * scale``."""

    tensor: Tensor
    quant: Quant


@dataclass(frozen=True, eq=False)
class Constant:
    """Constant float value ``values * scale``: integers less their zero point, and a scale that broadcasts.

    Constants that were never quantised have `exact` set: `values` are their floats, and `scale` is 1. A constant of 8
    bits with per-tensor parameters is also an `activation`, which the host can write into a buffer.
    """

    values: np.ndarray
    scale: np.ndarray
    exact: bool = False
    activation: Activation | None = None

    @property
    def floats(self) -> np.ndarray:
        return self.values * self.scale


@dataclass(frozen=True, eq=False)
class Pending:
    """Float result that is not quantised yet.

    `ops` write views of the buffer `RESULT`. Their scales still lack the division by the output's scale, and their
    clamp is [`low`, `high`] in float. `nodes` are the nodes that it covers, `notes` are for the report. `join`, if
    given, returns the operators that replace `ops` once the output's parameters are known.
    """

    ops: tuple[DeviceOp, ...]
    layout: Layout
    inputs: tuple[Tensor, ...]
    nodes: tuple[int, ...]
    low: float = -math.inf
    high: float = math.inf
    notes: tuple[str, ...] = ()
    join: Join | None = None


@dataclass(frozen=True, eq=False)
class Scores:
    """Attention scores ``q k * factor``, without the keys that `allowed` excludes (None: all are allowed).

    Attributes
    ----------
    q_shape, k_shape : tuple of int
        (..., queries, size) and (..., size, keys). `allowed` broadcasts to (..., queries, keys).
    nodes : tuple of int
        Nodes that compute the scores; the first is the product.
    values : tuple of str
        All values in between.
    pairs, weight_pairs : tuple of Pair
        Q/DQ pairs that scores, and probabilities, have passed.
    quantised : Pair or None
        Parameters of this value if it is integers.
    key_mask : Activation or None
        Mask that is only known at run time.
    softmax : str
        Name of the node that converts them to probabilities.
    """

    q: Activation
    k: Activation
    q_shape: tuple[int, ...]
    k_shape: tuple[int, ...]
    factor: float
    allowed: np.ndarray | None
    nodes: tuple[int, ...]
    values: tuple[str, ...]
    pairs: tuple[Pair, ...] = ()
    weight_pairs: tuple[Pair, ...] = ()
    quantised: Pair | None = None
    key_mask: Activation | None = None
    softmax: str = ""

    @property
    def unit(self) -> float:
        """Score of an integer product of 1, before `factor`."""
        return self.q.quant.scale * self.k.quant.scale

    @property
    def bounds(self) -> Bounds:
        """Bounds of the product of any int8 queries and keys."""
        low, high = product_ends(self.q.quant.zero, self.k.quant.zero)
        size = self.q_shape[-1] * self.unit
        return Bounds(low * size, high * size)


@dataclass(frozen=True, eq=False)
class Probabilities:
    """Softmax of scores over the keys."""

    scores: Scores


@dataclass(frozen=True, eq=False)
class NanMask:
    """IsNaN of probabilities. It is false everywhere, because every query has at least one key."""

    scores: Scores


@dataclass(frozen=True, eq=False)
class RowElements:
    """Elements of a value of `shape` less their mean over `axes`, squared if `squared`; `nodes` compute it."""

    source: Activation
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    nodes: tuple[int, ...]
    squared: bool = False


@dataclass(frozen=True, eq=False)
class RowNumber:
    """One number per row along `axes` of a value of `shape`: ``gain * root(max(factor * total + offset, least))``.

    `total` and `root` name functions as in `RowTotal`; they apply to the integers of `source`.
    """

    source: Activation
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    nodes: tuple[int, ...]
    total: str
    factor: float
    offset: float = 0.0
    root: str = ""
    least: float = 0.0
    gain: float = 1.0


Symbol = (
    Tensor
    | Activation
    | Constant
    | Pending
    | Scores
    | Probabilities
    | NanMask
    | RowElements
    | RowNumber
    | None
)
"""Knowledge of a value; None if the host computes it."""


@dataclass(frozen=True, eq=False)
class Recipe:
    """Device operators that compute one int8 value; buffers are named by storage."""

    output: Tensor
    ops: tuple[DeviceOp, ...]
    inputs: tuple[Tensor, ...]
    nodes: tuple[int, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Results:
    """Symbols of a node's outputs, in order, and the recipes that compute them."""

    symbols: tuple[Symbol, ...]
    recipes: tuple[Recipe, ...]


Join = Callable[[Quant, str, tuple[int, int]], tuple[DeviceOp, ...]]
"""Operators of a result, for its parameters, the name of its buffer, and its clamp range."""


def as_activation(symbol: Symbol) -> Symbol:
    """Return an 8-bit constant with one scale as an activation, and any other symbol unchanged."""
    return symbol.activation or symbol if isinstance(symbol, Constant) else symbol


def result(shape: tuple[int, int, int, int]) -> View:
    """Return the view that an unfinished operator writes."""
    return result_of(RESULT, shape)


def result_of(name: str, shape: tuple[int, int, int, int]) -> View:
    """Return a view of a whole new buffer."""
    return View(Buffer(name, shape), shape)


def rescale(source: Activation, name: str) -> Pending:
    """Return a requantisation of an activation, in any order of its elements."""
    tensor, quant = source.tensor, source.quant
    op = Rescale(name, tensor.view(), result(tensor.layout.nhwc), quant.scale, quant.zero)
    return Pending((op,), tensor.layout, (tensor,), ())


def finish(pending: Pending, name: str, quant: Quant, node: Node) -> Recipe:
    """Complete a pending result of `node` with the parameters of its output `name`.

    Raises
    ------
    NarrowError
        For a 16-bit operand or result of an operator that has no 16-bit form.
    """
    bounds, wide = (quant.level(pending.low), quant.level(pending.high)), quant.bits > 8
    narrow = not has_wide(pending, quant)
    if pending.join is not None and not narrow:
        raise NarrowError(f"{pending.ops[0].name!r} needs several operators")
    if pending.join is not None:
        ops = pending.join(quant, name, bounds)
    else:
        ops = tuple(finish_op(op, quant, name, bounds) for op in pending.ops)
    if not narrow:
        ops = tuple(wide_op for op in ops for wide_op in widen(op, wide=wide))
    output = Tensor(name, name, pending.layout, pending.layout, quant.unsigned, False, wide=wide)
    nodes = (*pending.nodes, *(index for tensor in pending.inputs for index in tensor.via), node.index)
    return Recipe(output, ops, pending.inputs, tuple(dict.fromkeys(nodes)), pending.notes)


def has_wide(pending: Pending, quant: Quant) -> bool:
    """Return whether a result with these parameters, or one of its inputs, has 16 bits."""
    return quant.bits > 8 or any(tensor.wide for tensor in pending.inputs)


def finish_op(op: DeviceOp, quant: Quant, name: str, bounds: tuple[int, int]) -> DeviceOp:
    """Return an operator of a pending result that writes buffer `name` with its output's parameters."""
    old = op.dst
    dst = View(
        Buffer(name, old.buffer.shape, old.buffer.kind), old.shape, old.y, old.x, old.c, old.step, old.image
    )
    keys = (key for key in ("scale", "a_scale", "b_scale") if hasattr(op, key))
    scales = {key: getattr(op, key) / quant.scale for key in keys}
    return op.replace(dst=dst, y_zero=quant.zero, low=bounds[0], high=bounds[1], **scales)


def quant_of(quantisation: Quantisation | None) -> Quant | None:
    """Return parameters in the device's form; None if it has none: not per tensor, not of 8 or 16 bits, no positive
    scale.
    """
    if quantisation is None or not quantisation.per_tensor:
        return None
    dtype, scale = quantisation.dtype.name, float(np.float32(quantisation.scales))
    if dtype not in BITS or not scale > 0:
        return None
    unsigned, bits = dtype.startswith("u"), BITS[dtype]
    return Quant(scale, int(quantisation.zeros) - (1 << bits - 1) * unsigned, unsigned, bits)


def constant(model: Model, name: str) -> Constant | None:
    """Return a quantised constant, per tensor or per axis; None for blocks. Nodes share it."""
    if name not in model.dequantised:
        model.dequantised[name] = _constant(model, name)
    return model.dequantised[name]


def _constant(model: Model, name: str) -> Constant | None:
    values, quantisation = model.network.constants[name], model.network.quantisation[name]
    if quantisation.block:
        return None
    shape = [1] * values.ndim
    if not quantisation.per_tensor:
        shape[quantisation.axis] = quantisation.scales.size
    # Models have up to 100 million weights: int16 keeps them small.
    dtype = np.dtype(np.int16 if values.dtype.itemsize == 1 else np.int64)
    wide: np.ndarray = values.astype(dtype) - quantisation.zeros.astype(dtype).reshape(shape)
    quant = quant_of(quantisation)
    activation = None if quant is None else Activation(host_tensor(model, name), quant)
    steps = quantisation.scales.astype(np.float32).astype(np.float64).reshape(shape)
    if values.dtype.itemsize == 2:  # the device has no 16-bit weights
        floats = wide * steps
        return Constant(floats, np.ones((1,) * values.ndim), exact=True, activation=activation)
    # The device's scales are positive: signs and zeros of the model's scales go into the integers.
    return Constant(
        wide * np.sign(steps).astype(dtype),
        np.where(steps == 0, 1.0, np.abs(steps)),
        activation=activation,
    )


def host_tensor(model: Model, name: str) -> Tensor:
    """Return the symbol of an 8-bit or 16-bit value that the host provides."""
    layout = natural(model.shapes[name])
    shape, dtype = model.shapes[name], model.dtypes[name]
    unsigned, wide = dtype.startswith("u"), BITS[dtype] > 8
    return Tensor(name, name, layout, layout, unsigned, True, order=row_major_layout(shape), wide=wide)


def integers(tensor: Tensor) -> Quant:
    """Return parameters with which a tensor represents its integers."""
    return Quant(1.0, 0, tensor.unsigned, 16 if tensor.wide else 8)


def is_conv(pending: Pending) -> bool:
    """Return whether a bias can be added to a pending result: convolutions or products without a clamp."""
    convs = pending.join is None and all(isinstance(op, Conv) for op in pending.ops)
    return convs and (pending.low, pending.high) == (-math.inf, math.inf)
