"""Products with constant weights in a graph, in all forms that exporters write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from weft.compiler.errors import CompileError, EvaluationError
from weft.compiler.host.evaluate import Evaluator
from weft.compiler.ir.network import Node
from weft.extras.language.compiler.model import BlockTensor, Linear, Matrix, dense
from weft.extras.language.onnx.graph import Graph
from weft.hdl.schema import short_repr

BLOCK_ELEMENTS = 32
"""Elements of a block in weft; a larger block of a file becomes several with the same scale."""


@dataclass(eq=False)
class Product:
    """Product ``x @ weight.T + bias``.

    Attributes
    ----------
    source, output : str
        Names of its input and its result.
    nodes : tuple of Node
        Nodes that compute it, the multiplication first.
    weight : Matrix of shape (outputs, inputs)
    bias : numpy.ndarray of float32, shape (outputs,), or None
    """

    source: str
    output: str
    nodes: tuple[Node, ...]
    weight: Matrix
    bias: np.ndarray | None = None

    @property
    def node(self) -> Node:
        return self.nodes[0]

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
    """Return the products of a graph in order.

    Raises
    ------
    CompileError
        If the weights of a product cannot be read.
    """
    results = []
    for node in graph.network.nodes:
        product = _read_product(graph, node)
        if product is not None:
            results.append(_check_finite(_add_bias(graph, product)))
    return results


def _check_finite(product: Product) -> Product:
    """Return the product; raise `CompileError` if its weights are not finite."""
    weight = product.weight
    parts = [weight.scales if isinstance(weight, BlockTensor) else weight, product.bias]
    if not all(part is None or np.isfinite(part).all() for part in parts):
        raise CompileError(f"{product.node.label} has weights that are infinite or not a number (NaN)")
    return product


def _read_product(graph: Graph, node: Node) -> Product | None:
    if node.domain == "com.microsoft" and node.operator == "MatMulNBits":
        return _read_matmul_n_bits(graph, node)
    if node.domain:
        return None
    if node.operator == "MatMulInteger" and node.inputs[1] in graph.fixed:
        return _read_dynamic(graph, node)
    if (
        node.operator not in ("MatMul", "Gemm")
        or node.inputs[0] in graph.fixed
        or node.inputs[1] not in graph.fixed
    ):
        return None
    # ONNX has a column for each output, weft a row.
    weight = Weights(graph).matrix(node.inputs[1], transposed=not node.attributes.get("transB", 0))
    if weight is None:
        return None
    bias = None
    if node.operator == "Gemm":
        if node.attributes.get("transA", 0) or node.attributes.get("alpha", 1.0) != 1.0:
            raise CompileError(f"{node.label} transposes or scales its input; weft expects x @ weight + bias")
        if node.input(2):
            bias = _constant_row(graph, node.input(2), weight.shape[0])
            if bias is None or node.attributes.get("beta", 1.0) != 1.0:
                raise CompileError(
                    f"{node.label} adds what is no constant row; weft expects x @ weight + bias"
                )
    return Product(node.inputs[0], node.outputs[0], (node,), weight, bias)


def _constant_row(graph: Graph, name: str, width: int) -> np.ndarray | None:
    """Return a constant row of `width` elements, or None for any other value."""
    if name not in graph.fixed:
        return None
    value = Weights(graph).value(name)
    if value.size != width or value.shape[-1:] != (width,) or value.dtype.kind != "f":
        return None
    return np.ascontiguousarray(value.reshape(-1), np.float32)


def _add_bias(graph: Graph, product: Product) -> Product:
    """Include a following addition of a constant row, if nothing else reads the product."""
    addition = graph.only_reader(product.output)
    if addition is None or addition.domain or addition.operator != "Add" or product.bias is not None:
        return product
    others = [name for name in addition.inputs if name != product.output]
    bias = _constant_row(graph, others[0], product.outputs) if len(others) == 1 else None
    if bias is None:
        return product
    return Product(product.source, addition.outputs[0], (*product.nodes, addition), product.weight, bias)


class Weights:
    """Reader of constants, also behind transpositions, casts and dequantisation."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def value(self, name: str) -> np.ndarray:
        """Return a value that depends on no input.

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
            matrix = self._dequantise(node, transposed=False)
            if matrix is not None:
                return dense(matrix)
        return self._evaluate(name)

    def _evaluate(self, name: str) -> np.ndarray:
        graph = self._graph
        needed, nodes = {name}, []
        for node in reversed(graph.network.nodes):
            if needed.intersection(node.outputs):
                needed.update(node.reads)
                nodes.append(node)
        part = graph.network.part(reversed(nodes), (name,))
        try:
            return np.asarray(Evaluator(part).run({})[0])
        except EvaluationError as error:
            raise CompileError(f"the constant {name!r} cannot be computed: {error}") from None

    def matrix(self, name: str, *, transposed: bool) -> Matrix | None:
        """Return a constant matrix, optionally transposed; None if the value is not a matrix."""
        node = self._graph.makers.get(name)
        if node is not None and not node.domain:
            if node.operator == "DequantizeLinear":
                return self._dequantise(node, transposed=transposed)
            if node.operator == "Transpose" and node.attributes.get("perm", (1, 0)) == (1, 0):
                return self.matrix(node.inputs[0], transposed=not transposed)
        value = self.value(name)
        if value.ndim != 2 or value.dtype.kind != "f":
            return None
        return np.ascontiguousarray(value.T if transposed else value, np.float32)

    def _dequantise(self, node: Node, *, transposed: bool) -> Matrix | None:
        """Return a matrix of integers with scales, in blocks if the scales lie along its rows."""
        values, scales = self.value(node.inputs[0]), self.value(node.inputs[1])
        zeros = self.value(node.inputs[2]) if node.input(2) else np.zeros((), np.int8)
        if values.ndim != 2 or scales.dtype.kind != "f":
            return None
        axis, block = int(node.attributes.get("axis", 1)) % 2, int(node.attributes.get("block_size", 0))
        _check_scales(node, values, scales, axis, block)
        steps = scales.astype(np.float32)
        centred = values.astype(np.int32) - _broadcast(zeros, values, axis, block)
        if transposed:
            centred, steps, axis = centred.T, steps.T, 1 - axis
        if block and axis:
            return to_blocks(centred, steps, block)
        if not block and (axis == 0 or steps.size == 1):
            return _to_row_scales(centred, np.broadcast_to(steps.reshape(-1), len(centred)))
        return centred.astype(np.float32) * _broadcast(steps, centred, axis, block)


def _check_scales(node: Node, values: np.ndarray, scales: np.ndarray, axis: int, block: int) -> None:
    expected = list(values.shape)
    if block:
        expected[axis] = -(-expected[axis] // block)
    elif scales.size == 1:
        return
    else:
        expected = [expected[axis]]
    if list(scales.shape) != expected:
        raise CompileError(
            f"{node.label} has scales of shape {'x'.join(map(str, scales.shape))}; its values of shape "
            f"{'x'.join(map(str, values.shape))} need {'x'.join(map(str, expected))}"
        )


def _to_row_scales(values: np.ndarray, scales: np.ndarray) -> Matrix:
    """Return integers with a scale for each row."""
    rows, columns = values.shape
    # Less a zero point, 8-bit integers may need 9 bits.
    if values.min() < -128 or values.max() > 127:
        return values.astype(np.float32) * scales[:, None].astype(np.float32)
    return BlockTensor(
        np.ascontiguousarray(values, np.int8), scales.reshape(rows, 1).astype(np.float32), None, columns
    )


def _broadcast(items: np.ndarray, values: np.ndarray, axis: int, block: int) -> np.ndarray:
    """Broadcast scales or zero points to the shape of the values."""
    converted = items.astype(np.int32) if items.dtype.kind != "f" else items.astype(np.float32)
    if items.size == 1:
        return np.broadcast_to(converted.reshape(()), values.shape)
    if block:
        return np.repeat(converted, block, axis=axis)[: values.shape[0], : values.shape[1]]
    return np.broadcast_to(np.expand_dims(converted.reshape(-1), 1 - axis), values.shape)


def to_blocks(values: np.ndarray, scales: np.ndarray, block: int) -> Matrix:
    """Return integers (rows, columns) times scales (rows, blocks): in blocks if they fit int8, else as float32."""
    columns = values.shape[1]
    # In blocks of weft's size the device can keep weights of 4 bits.
    block_elements = BLOCK_ELEMENTS if block % BLOCK_ELEMENTS == 0 else block
    if columns % block or values.min() < -128 or values.max() > 127:
        return values.astype(np.float32) * np.repeat(scales, block, axis=1)[:, :columns]
    return BlockTensor(
        np.ascontiguousarray(values, np.int8),
        np.ascontiguousarray(np.repeat(scales, block // block_elements, axis=1), np.float32),
        None,
        block_elements,
    )


def _read_matmul_n_bits(graph: Graph, node: Node) -> Product:
    """Read a MatMulNBits: packed integers with a scale, and perhaps a zero point, for each block of a row."""
    columns, rows, block = (_positive_integer(node, name) for name in ("K", "N", "block_size"))
    bits = _positive_integer(node, "bits", 4)
    if bits not in (4, 8) or block < 16 or block & (block - 1):
        raise CompileError(
            f"{node.label} has {bits} bits and blocks of {block}; weft reads 4 and 8 bits, and blocks of a power of "
            "two from 16 on"
        )
    if node.input(4):
        raise CompileError(
            f"{node.label} takes columns in an order of their own (g_idx), which weft does not read"
        )
    # Rows are padded to whole blocks.
    count = -(-columns // block)
    weights = Weights(graph)
    packed = _constant_input(node, weights, 1, rows * count * block * bits // 8)
    scales = _constant_input(node, weights, 2, rows * count).astype(np.float32).reshape(rows, count)
    values = _unpack(packed, bits, (rows, count * block))[:, :columns]
    # Without zero points, unsigned integers are centred.
    zeros: np.ndarray = np.full((rows, count), 1 << bits - 1)
    if node.input(3):
        zero_points = weights.value(node.input(3))
        if zero_points.dtype.kind == "f":
            zeros = _constant_input(node, weights, 3, rows * count).reshape(rows, count)
        else:
            # Rows of zero points are padded to whole bytes.
            row_bytes = -(-count * bits // 8)
            zeros = _unpack(
                _constant_input(node, weights, 3, rows * row_bytes), bits, (rows, row_bytes * 8 // bits)
            )[:, :count]
    offsets = np.repeat(zeros, block, axis=1)[:, :columns]
    bias = None
    if node.input(5):
        bias = _constant_row(graph, node.input(5), rows)
        if bias is None:
            raise CompileError(f"{node.label} adds a bias that is no constant row of {rows:,} elements")
    # With fractional zero points the weights are no integers.
    if zeros.dtype.kind == "f" and not np.array_equal(zeros, np.rint(zeros)):
        block_scales = np.repeat(scales, block, axis=1)[:, :columns]
        weight: Matrix = (values.astype(np.float32) - offsets.astype(np.float32)) * block_scales
    else:
        weight = to_blocks(values.astype(np.int32) - offsets.astype(np.int32), scales, block)
    return Product(node.inputs[0], node.outputs[0], (node,), weight, bias)


def _positive_integer(node: Node, name: str, default: int | None = None) -> int:
    """Return an attribute, which must be an integer above zero."""
    value = node.attributes.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CompileError(
            f"{node.label} has {name} {short_repr(value)}; it must be a whole number above zero"
        )
    return value


def _constant_input(node: Node, weights: Weights, index: int, size: int) -> np.ndarray:
    """Return a constant input, which must have `size` elements, flattened."""
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


def _unpack(packed: np.ndarray, bits: int, shape: tuple[int, int]) -> np.ndarray:
    """Return numbers of 4 bits, the lower one of a byte first, or of 8 bits as uint8."""
    packed = packed.astype(np.uint8, copy=False)
    if bits == 4:
        packed = np.stack([packed & 15, packed >> 4], axis=-1)
    return packed.reshape(shape)


def _read_dynamic(graph: Graph, node: Node) -> Product | None:
    """Read DynamicQuantizeLinear, MatMulInteger, Cast, and the multiplication by both scales as one product."""
    maker = graph.makers.get(node.inputs[0])
    cast = graph.only_reader(node.outputs[0])
    if maker is None or maker.operator != "DynamicQuantizeLinear" or cast is None or cast.operator != "Cast":
        raise CompileError(
            f"{node.label} multiplies integers that DynamicQuantizeLinear did not make, or as integers"
        )
    scaled = graph.only_reader(cast.outputs[0])
    scale = (
        None
        if scaled is None or scaled.operator != "Mul"
        else next(n for n in scaled.inputs if n != cast.outputs[0])
    )
    scales_product = graph.makers.get(scale or "")
    if (
        scaled is None
        or scales_product is None
        or scales_product.operator != "Mul"
        or maker.outputs[1] not in scales_product.inputs
    ):
        raise CompileError(
            f"{node.label} must be followed by a product with the scales of both of its inputs"
        )
    weights = Weights(graph)
    weight_scales = weights.value(
        next(name for name in scales_product.inputs if name != maker.outputs[1])
    ).reshape(-1)
    values = weights.value(node.inputs[1])
    zeros = weights.value(node.inputs[3]) if node.input(3) else np.zeros((), np.int8)
    if values.ndim != 2 or weight_scales.size not in (1, values.shape[1]):
        raise CompileError(
            f"{node.label} must multiply with a matrix that has one scale, or one for each column"
        )
    centred = values.astype(np.int32) - _broadcast(zeros, values, 1, 0)
    weight = _to_row_scales(centred.T, np.broadcast_to(weight_scales, values.shape[1]))
    return Product(maker.inputs[0], scaled.outputs[0], (node, maker, cast, scales_product, scaled), weight)


def inner_nodes(matrices: list[Product]) -> Iterator[int]:
    """Yield the indices of the nodes that products consist of."""
    for product in matrices:
        yield from (node.index for node in product.nodes)
