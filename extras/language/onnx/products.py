"""The products with weights in a graph, in all the forms that exporters write them, and their weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from weft.compiler.host.evaluate import EvaluationError, Evaluator
from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.network import Node
from weft.extras.language.compiler.model import BlockTensor, Linear, Matrix, dense
from weft.extras.language.onnx.graph import Graph
from weft.hdl.schema import short_repr

BLOCK = 32
"""Elements of a block as weft keeps it: larger ones of a file are several with the same scale."""


@dataclass(eq=False)
class Product:
    """``x @ weight.T + bias``.

    Attributes
    ----------
    source, output : str
        The values that it reads and makes.
    inside : tuple of Node
        The nodes that it consists of, the one that multiplies in front.
    weight : Matrix of shape (outputs, inputs)
    bias : numpy.ndarray of float32, shape (outputs,), or None
    """

    source: str
    output: str
    inside: tuple[Node, ...]
    weight: Matrix
    bias: np.ndarray | None = None

    @property
    def node(self) -> Node:
        return self.inside[0]

    @property
    def outputs(self) -> int:
        return self.weight.shape[0]

    @property
    def inputs(self) -> int:
        return self.weight.shape[1]

    @property
    def linear(self) -> Linear:
        return Linear(self.weight, self.bias)


def products(graph: Graph) -> list[Product]:
    """The products of a graph in order.

    Raises
    ------
    CompileError
        If the weights of one cannot be read.
    """
    found = []
    for node in graph.network.nodes:
        made = _product(graph, node)
        if made is not None:
            found.append(_finite(_with_bias(graph, made)))
    return found


def _finite(product: Product) -> Product:
    """The product; raises for weights that are no numbers."""
    weight = product.weight
    parts = [weight.scales if isinstance(weight, BlockTensor) else weight, product.bias]
    if not all(part is None or np.isfinite(part).all() for part in parts):
        raise CompileError(f"{product.node.label} has weights that are infinite or not a number (NaN)")
    return product


def _product(graph: Graph, node: Node) -> Product | None:
    if node.domain == "com.microsoft" and node.operator == "MatMulNBits":
        return _in_bits(graph, node)
    if node.domain:
        return None
    if node.operator == "MatMulInteger" and node.inputs[1] in graph.fixed:
        return _dynamic(graph, node)
    if (
        node.operator not in ("MatMul", "Gemm")
        or node.inputs[0] in graph.fixed
        or node.inputs[1] not in graph.fixed
    ):
        return None
    weight = Weights(graph).matrix(node.inputs[1], turned=not node.attributes.get("transB", 0))
    if weight is None:
        return None
    bias = None
    if node.operator == "Gemm":
        if node.attributes.get("transA", 0) or node.attributes.get("alpha", 1.0) != 1.0:
            raise CompileError(f"{node.label} transposes or scales its input; weft expects x @ weight + bias")
        if node.input(2):
            bias = _row(graph, node.input(2), weight.shape[0])
            if bias is None or node.attributes.get("beta", 1.0) != 1.0:
                raise CompileError(
                    f"{node.label} adds what is no constant row; weft expects x @ weight + bias"
                )
    return Product(node.inputs[0], node.outputs[0], (node,), weight, bias)


def _row(graph: Graph, name: str, width: int) -> np.ndarray | None:
    """A constant row of `width` elements; None for any other value."""
    if name not in graph.fixed:
        return None
    value = Weights(graph).value(name)
    if value.size != width or value.shape[-1:] != (width,) or value.dtype.kind != "f":
        return None
    return np.ascontiguousarray(value.reshape(-1), np.float32)


def _with_bias(graph: Graph, product: Product) -> Product:
    """With the addition behind it, if that adds a constant row and nobody else reads the product."""
    after = graph.only_reader(product.output)
    if after is None or after.domain or after.operator != "Add" or product.bias is not None:
        return product
    others = [name for name in after.inputs if name != product.output]
    bias = _row(graph, others[0], product.outputs) if len(others) == 1 else None
    if bias is None:
        return product
    return Product(product.source, after.outputs[0], (*product.inside, after), product.weight, bias)


class Weights:
    """Reads constants through what exporters put behind them."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def value(self, name: str) -> np.ndarray:
        """A value that depends on no input.

        Raises
        ------
        CompileError
            If it cannot be computed.
        """
        constants = self._graph.network.constants
        if name in constants:
            return constants[name]
        node = self._graph.makers[name]
        if not node.domain and node.operator == "Transpose":
            axes = node.attributes.get("perm")
            return np.transpose(self.value(node.inputs[0]), axes)
        if not node.domain and node.operator in ("Identity", "Cast"):
            value = self.value(node.inputs[0])
            return value.astype(np.float32) if node.attributes.get("to") == 1 else value
        if not node.domain and node.operator == "DequantizeLinear":
            matrix = self._dequantised(node, turned=False)
            if matrix is not None:
                return dense(matrix)
        return self._evaluated(name)

    def _evaluated(self, name: str) -> np.ndarray:
        graph = self._graph
        wanted, nodes = {name}, []
        for node in reversed(graph.network.nodes):
            if wanted.intersection(node.outputs):
                wanted.update(node.reads)
                nodes.append(node)
        part = graph.network.part(reversed(nodes), (name,))
        try:
            return np.asarray(Evaluator(part).run({})[0])
        except EvaluationError as error:
            raise CompileError(f"the constant {name!r} cannot be computed: {error}") from None

    def matrix(self, name: str, *, turned: bool) -> Matrix | None:
        """A constant matrix, `turned` or as it is; None if it is none."""
        node = self._graph.makers.get(name)
        if node is not None and not node.domain:
            if node.operator == "DequantizeLinear":
                return self._dequantised(node, turned=turned)
            if node.operator == "Transpose" and node.attributes.get("perm", (1, 0)) == (1, 0):
                return self.matrix(node.inputs[0], turned=not turned)
        value = self.value(name)
        if value.ndim != 2 or value.dtype.kind != "f":
            return None
        return np.ascontiguousarray(value.T if turned else value, np.float32)

    def _dequantised(self, node: Node, *, turned: bool) -> Matrix | None:
        """A matrix of integers with scales: in blocks if these lie along its rows."""
        values, scales = self.value(node.inputs[0]), self.value(node.inputs[1])
        zeros = self.value(node.inputs[2]) if node.input(2) else np.zeros((), np.int8)
        if values.ndim != 2 or scales.dtype.kind != "f":
            return None
        axis, block = int(node.attributes.get("axis", 1)) % 2, int(node.attributes.get("block_size", 0))
        _check_scales(node, values, scales, axis, block)
        steps = scales.astype(np.float32)
        centred = values.astype(np.int32) - _spread(zeros, values, axis, block)
        if turned:
            centred, steps, axis = centred.T, steps.T, 1 - axis
        if block and axis:
            return in_blocks(centred, steps, block)
        if not block and (axis == 0 or steps.size == 1):
            return _by_rows(centred, np.broadcast_to(steps.reshape(-1), len(centred)))
        return centred.astype(np.float32) * _spread(steps, centred, axis, block)


def _check_scales(node: Node, values: np.ndarray, scales: np.ndarray, axis: int, block: int) -> None:
    whole = list(values.shape)
    if block:
        whole[axis] = -(-whole[axis] // block)
    elif scales.size == 1:
        return
    else:
        whole = [whole[axis]]
    if list(scales.shape) != whole:
        raise CompileError(
            f"{node.label} has scales of shape {'x'.join(map(str, scales.shape))}; its values of shape "
            f"{'x'.join(map(str, values.shape))} need {'x'.join(map(str, whole))}"
        )


def _by_rows(values: np.ndarray, scales: np.ndarray) -> Matrix:
    """Integers with a scale for each row."""
    rows, columns = values.shape
    if values.min() < -128 or values.max() > 127:
        return values.astype(np.float32) * scales[:, None].astype(np.float32)
    return BlockTensor(
        np.ascontiguousarray(values, np.int8), scales.reshape(rows, 1).astype(np.float32), None, columns
    )


def _spread(given: np.ndarray, values: np.ndarray, axis: int, block: int) -> np.ndarray:
    """Scales or zero points, one for each value."""
    whole = given.astype(np.int32) if given.dtype.kind != "f" else given.astype(np.float32)
    if given.size == 1:
        return np.broadcast_to(whole.reshape(()), values.shape)
    if block:
        return np.repeat(whole, block, axis=axis)[: values.shape[0], : values.shape[1]]
    return np.broadcast_to(np.expand_dims(whole.reshape(-1), 1 - axis), values.shape)


def in_blocks(values: np.ndarray, scales: np.ndarray, block: int) -> Matrix:
    """Whole numbers (rows, columns) times scales (rows, blocks): in blocks, or float32 where they do not fit."""
    columns = values.shape[1]
    small = BLOCK if block % BLOCK == 0 else block
    if columns % block or values.min() < -128 or values.max() > 127:
        return values.astype(np.float32) * np.repeat(scales, block, axis=1)[:, :columns]
    return BlockTensor(
        np.ascontiguousarray(values, np.int8),
        np.ascontiguousarray(np.repeat(scales, block // small, axis=1), np.float32),
        None,
        small,
    )


def _in_bits(graph: Graph, node: Node) -> Product:
    """MatMulNBits: packed whole numbers with a scale, and perhaps a zero point, for each block of a row."""
    columns, rows, block = (_whole(node, name) for name in ("K", "N", "block_size"))
    bits = _whole(node, "bits", 4)
    if bits not in (4, 8) or block < 16 or block & (block - 1):
        raise CompileError(
            f"{node.label} has {bits} bits and blocks of {block}; weft reads 4 and 8 bits, and blocks of a power of "
            "two from 16 on"
        )
    if node.input(4):
        raise CompileError(
            f"{node.label} takes columns in an order of their own (g_idx), which weft does not read"
        )
    count = -(-columns // block)
    weights = Weights(graph)
    packed = _sized(node, weights, 1, rows * count * block * bits // 8)
    scales = _sized(node, weights, 2, rows * count).astype(np.float32).reshape(rows, count)
    values = _unpacked(packed, bits, (rows, count * block))[:, :columns]
    zeros: np.ndarray = np.full((rows, count), 1 << bits - 1)
    if node.input(3):
        given = weights.value(node.input(3))
        if given.dtype.kind == "f":
            zeros = _sized(node, weights, 3, rows * count).reshape(rows, count)
        else:
            each = -(-count * bits // 8)
            zeros = _unpacked(_sized(node, weights, 3, rows * each), bits, (rows, each * 8 // bits))[
                :, :count
            ]
    offsets = np.repeat(zeros, block, axis=1)[:, :columns]
    bias = None
    if node.input(5):
        bias = _row(graph, node.input(5), rows)
        if bias is None:
            raise CompileError(f"{node.label} adds a bias that is no constant row of {rows:,} elements")
    if zeros.dtype.kind == "f" and not np.array_equal(zeros, np.rint(zeros)):
        spread = np.repeat(scales, block, axis=1)[:, :columns]
        weight: Matrix = (values.astype(np.float32) - offsets.astype(np.float32)) * spread
    else:
        weight = in_blocks(values.astype(np.int32) - offsets.astype(np.int32), scales, block)
    return Product(node.inputs[0], node.outputs[0], (node,), weight, bias)


def _whole(node: Node, name: str, default: int | None = None) -> int:
    """An attribute that is a whole number above zero."""
    value = node.attributes.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CompileError(
            f"{node.label} has {name} {short_repr(value)}; it must be a whole number above zero"
        )
    return value


def _sized(node: Node, weights: Weights, index: int, size: int) -> np.ndarray:
    """A constant input of so many elements, flat."""
    name = node.input(index)
    if name not in weights._graph.fixed:
        raise CompileError(
            f"{node.label} has an input {name!r} that is no constant; weft reads constant weights"
        )
    value = weights.value(name).reshape(-1)
    if value.size != size:
        raise CompileError(
            f"{node.label} has {value.size:,} elements in {name!r}; its sizes ask for {size:,}"
        )
    return value


def _unpacked(packed: np.ndarray, bits: int, shape: tuple[int, int]) -> np.ndarray:
    """uint8 of numbers of 4 bits, the lower one of a byte in front, or of 8 bits."""
    packed = packed.astype(np.uint8, copy=False)
    if bits == 4:
        packed = np.stack([packed & 15, packed >> 4], axis=-1)
    return packed.reshape(shape)


def _dynamic(graph: Graph, node: Node) -> Product | None:
    """DynamicQuantizeLinear, MatMulInteger, Cast, and a product with both scales."""
    maker = graph.makers.get(node.inputs[0])
    cast = graph.only_reader(node.outputs[0])
    if maker is None or maker.operator != "DynamicQuantizeLinear" or cast is None or cast.operator != "Cast":
        raise CompileError(
            f"{node.label} multiplies integers that DynamicQuantizeLinear did not make, or as integers"
        )
    end = graph.only_reader(cast.outputs[0])
    scale = (
        None if end is None or end.operator != "Mul" else next(n for n in end.inputs if n != cast.outputs[0])
    )
    both = graph.makers.get(scale or "")
    if end is None or both is None or both.operator != "Mul" or maker.outputs[1] not in both.inputs:
        raise CompileError(
            f"{node.label} must be followed by a product with the scales of both of its inputs"
        )
    weights = Weights(graph)
    steps = weights.value(next(name for name in both.inputs if name != maker.outputs[1])).reshape(-1)
    values = weights.value(node.inputs[1])
    zeros = weights.value(node.inputs[3]) if node.input(3) else np.zeros((), np.int8)
    if values.ndim != 2 or steps.size not in (1, values.shape[1]):
        raise CompileError(
            f"{node.label} must multiply with a matrix that has one scale, or one for each column"
        )
    centred = values.astype(np.int32) - _spread(zeros, values, 1, 0)
    weight = _by_rows(centred.T, np.broadcast_to(steps, values.shape[1]))
    return Product(maker.inputs[0], end.outputs[0], (node, maker, cast, both, end), weight)


def inner_nodes(found: list[Product]) -> Iterator[int]:
    """The indices of the nodes that products consist of."""
    for product in found:
        yield from (node.index for node in product.inside)
