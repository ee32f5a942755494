"""QDQ models with attention for tests: ONNX's operator, and attention written out as exporters do."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from support.qdq_models import Builder, Quantised
from weft.compiler.onnx.reader import LARGEST
from weft.quantiser.ranges import largest_attended, largest_score

Rng = np.random.Generator


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of one attention: `size` of queries and keys, `v_size` of values."""

    batch: int = 1
    heads: int = 2
    kv_heads: int = 2
    queries: int = 5
    keys: int = 5
    size: int = 8
    v_size: int = 8


def random_sizes(rng: Rng, *, grouped: bool = True) -> Sizes:
    kv_heads = int(rng.integers(1, 4))
    heads = kv_heads * (int(rng.integers(1, 4)) if grouped else 1)
    batch, queries, keys = (int(value) for value in rng.integers(1, [4, 12, 12]))
    size, v_size = (int(value) for value in rng.integers(1, 20, 2))
    return Sizes(batch, heads, kv_heads, queries, keys, size, v_size)


def quantise_result(builder: Builder, value: str, source: Quantised) -> onnx.ModelProto:
    """Quantise the result of attention, a mean of values, with fine enough steps, and finish the model."""
    scale = float(np.float32(source.scale * 0.7))
    return builder.finish(
        builder.quantise(value, builder.shape_of(value), scale, int(source.zero), source.unsigned)
    )


def calibrate_scores(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    """Note the largest score that some inputs reach, as `weft quantise` does."""
    node = next(node for node in model.graph.node if node.op_type in ("Softmax", "Attention"))
    constants = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    names = [name for name in node.input if name and name not in constants]
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    shown.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    values = constants | dict(zip(names, ReferenceEvaluator(shown).run(names, feeds), strict=True))
    largest = largest_attended if node.op_type == "Attention" else largest_score
    reached = largest(node, [np.asarray(values[name]) if name else None for name in node.input])
    model.metadata_props.add(key=f"{LARGEST}{node.name}", value=repr(reached))


def operator(
    rng: Rng,
    sizes: Sizes,
    *,
    rank: int = 4,
    mask: np.ndarray | None = None,
    lengths: list[int] | None = None,
    extra: tuple[str, ...] = (),
    **attributes: Any,
) -> onnx.ModelProto:
    """Build ONNX's Attention on three inputs of rank 3 or 4; `extra` names outputs after the first."""
    builder = Builder(rng, 24)
    q, k, v = (builder.input(shape) for shape in shapes(sizes, rank))
    if rank == 3:
        attributes = {"q_num_heads": sizes.heads, "kv_num_heads": sizes.kv_heads} | attributes
    inputs = [builder.dequantise(value) for value in (q, k, v)]
    inputs.append("" if mask is None else builder.constant(mask, "mask"))
    if lengths is not None:
        inputs += ["", "", builder.constant(np.array(lengths, np.int64), "lengths")]
    value = builder.name("attention")
    node = helper.make_node("Attention", inputs, [value, *extra], name=value, **attributes)
    builder.nodes.append(node)
    return quantise_result(builder, value, v)


def shapes(sizes: Sizes, rank: int) -> list[tuple[int, ...]]:
    """Return the shapes of queries, keys and values."""
    parts = (
        (sizes.heads, sizes.queries, sizes.size),
        (sizes.kv_heads, sizes.keys, sizes.size),
        (sizes.kv_heads, sizes.keys, sizes.v_size),
    )
    if rank == 4:
        return [(sizes.batch, *part) for part in parts]
    return [(sizes.batch, rows, heads * size) for heads, rows, size in parts]


class Exploded:
    """Attention written out: products, scale, mask and softmax, with Q/DQ pairs where `rounded` asks for them."""

    def __init__(self, rng: Rng, sizes: Sizes, *, rounded: bool = True, opset: int = 21) -> None:
        self.builder = Builder(rng, opset)
        self.sizes = sizes
        self.rounded = rounded

    def pair(self, value: str, scale: float, zero: int = 0, *, unsigned: bool = False) -> str:
        """Quantise and dequantise, if rounding is wanted."""
        if not self.rounded:
            return value
        shape = self.builder.shape_of(value)
        return self.builder.dequantise(self.builder.quantise(value, shape, scale, zero, unsigned))

    def heads(self, count: int, rows: int, size: int, *, layout: str = "ishd") -> tuple[str, Quantised]:
        """Add an input as float (batch, count, rows, size): split and transposed if it is "ishd", with Q/DQ pairs."""
        builder, batch = self.builder, self.sizes.batch
        if layout == "ihsd":
            source = builder.input((batch, count, rows, size))
            return builder.dequantise(source), source
        source = builder.input((batch, rows, count * size))
        return self.split(source, count), source

    def split(self, source: Quantised, count: int, perm: tuple[int, ...] = (0, 2, 1, 3)) -> str:
        """Reshape (batch, rows, count * size) and transpose it, with Q/DQ pairs."""
        builder, (batch, rows, hidden) = self.builder, source.shape
        shape = np.array([batch, rows, count, hidden // count], np.int64)
        value = builder.node("Reshape", [builder.dequantise(source), builder.constant(shape)])
        value = builder.node("Transpose", [self.again(value, source)], perm=perm)
        return self.again(value, source)

    def again(self, value: str, source: Quantised) -> str:
        """Quantise and dequantise with the parameters of `source`."""
        return self.pair(value, source.scale, source.zero, unsigned=source.unsigned)

    def keys_transposed(self, value: str, source: Quantised) -> str:
        return self.again(self.builder.node("Transpose", [value], perm=[0, 1, 3, 2]), source)

    def scale_by(self, value: str, factor: float, op: str = "Mul") -> str:
        return self.builder.node(op, [value, self.builder.constant(np.float32(factor))])

    def add_mask(self, value: str, mask: np.ndarray) -> str:
        return self.builder.node("Add", [value, self.builder.constant(mask.astype(np.float32), "mask")])

    def weights(self, scores: str, scale: float = 0.05) -> str:
        """Add softmax of scores, with its Q/DQ pairs."""
        value = self.builder.node("Softmax", [self.pair(scores, scale)], axis=-1)
        return self.pair(value, 1 / 256, 0, unsigned=True)

    def product(self, a: str, b: str) -> str:
        return self.builder.node("MatMul", [a, b])

    def join_heads(self, value: str, source: Quantised) -> str:
        """Reshape (batch, heads, rows, size) back to (batch, rows, heads * size)."""
        builder, sizes = self.builder, self.sizes
        value = builder.node("Transpose", [self.again(value, source)], perm=[0, 2, 1, 3])
        shape = np.array([sizes.batch, sizes.queries, -1], np.int64)
        return builder.node("Reshape", [self.again(value, source), builder.constant(shape)])


def written_out(
    rng: Rng,
    sizes: Sizes,
    *,
    rounded: bool = True,
    layout: str = "ishd",
    scale: str = "Mul",
    mask: np.ndarray | None = None,
    join: bool = True,
    opset: int = 21,
    factor: float | None = None,
) -> onnx.ModelProto:
    """Build a whole attention; `scale` is "Mul" or "Div" on the scores, "q" on queries or "both" on both operands."""
    made = Exploded(rng, sizes, rounded=rounded, opset=opset)
    q, q_source = made.heads(sizes.heads, sizes.queries, sizes.size, layout=layout)
    k, k_source = made.heads(sizes.heads, sizes.keys, sizes.size, layout=layout)
    v, v_source = made.heads(sizes.heads, sizes.keys, sizes.v_size, layout=layout)
    factor = sizes.size**-0.5 if factor is None else factor
    if scale in ("q", "both"):
        part = factor if scale == "q" else factor**0.5
        q = made.pair(
            made.scale_by(q, part), q_source.scale * part, q_source.zero, unsigned=q_source.unsigned
        )
    k = made.keys_transposed(k, k_source)
    if scale == "both":
        part = factor**0.5
        k = made.pair(
            made.scale_by(k, part), k_source.scale * part, k_source.zero, unsigned=k_source.unsigned
        )
    scores = made.product(q, k)
    if scale in ("Mul", "Div"):
        scores = made.pair(scores, 0.4)
        scores = made.scale_by(scores, factor if scale == "Mul" else 1 / factor, scale)
    if mask is not None:
        scores = made.add_mask(made.pair(scores, 0.1), mask)
    value = made.product(made.weights(scores, 0.1 if mask is None else 100.0), v)
    value = made.join_heads(value, v_source) if join else value
    if not rounded:
        return quantise_result(made.builder, value, v_source)
    return made.builder.finish(made.builder.like(value, made.builder.shape_of(value), v_source))


def additive(allowed: np.ndarray, low: float = -10000.0) -> np.ndarray:
    """Return a float mask."""
    return np.where(allowed, np.float32(0), np.float32(low))


def random_operator(rng: Rng) -> onnx.ModelProto:
    """Draw ONNX's operator with random sizes, grouped heads, and a mask or none."""
    sizes = random_sizes(rng)
    options: dict[str, Any] = {"is_causal": int(rng.integers(2)), "rank": int(rng.choice([3, 4]))}
    if rng.integers(2):
        options["scale"] = float(rng.uniform(0.01, 1))
    kind = int(rng.integers(4))
    if kind == 1:
        lengths = rng.integers(1, sizes.keys + 1, sizes.batch)
        allowed = np.arange(sizes.keys) < lengths[:, None, None, None]
        allowed = np.repeat(allowed, sizes.queries, axis=2)  # runtimes do not broadcast queries
        options["mask"] = allowed if rng.integers(2) else additive(allowed, -np.inf)
    elif kind == 2:
        offset = int(rng.integers(0, sizes.keys))
        options["mask"] = np.arange(sizes.keys) <= np.arange(sizes.queries)[:, None] + offset
    elif kind == 3:
        options["lengths"] = [int(rng.integers(1, sizes.keys + 1))] * sizes.batch
    return operator(rng, sizes, **options)


def random_written_out(rng: Rng) -> onnx.ModelProto:
    """Draw attention without Q/DQ pairs between the products, so that runtimes compute as the device does."""
    sizes = random_sizes(rng, grouped=False)
    mask = None
    if rng.integers(2):
        allowed = np.arange(sizes.keys) < rng.integers(1, sizes.keys + 1, (sizes.batch, 1, 1, 1))
        mask = additive(allowed, float(rng.choice(np.array([-10000.0, np.finfo(np.float32).min]))))
    return written_out(
        rng, sizes, rounded=False, mask=mask, join=bool(rng.integers(2)),
        layout=str(rng.choice(["ishd", "ihsd"])), scale=str(rng.choice(["Mul", "Div", "q", "both"])),
    )  # fmt: skip
