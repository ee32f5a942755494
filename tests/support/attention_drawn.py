"""Random attention of quantised models for tests: any zero points, scales and Q/DQ pairs, some of which clip."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx
from onnx import TensorProto, helper

from support import attention_cases as cases
from support.attention_models import Rng, Sizes, additive
from support.qdq_models import Builder, Quantised

TYPES = {
    np.dtype(kind): (np.iinfo(kind).min, np.iinfo(kind).max)
    for kind in (np.int8, np.uint8, np.int16, np.uint16)
}


@dataclasses.dataclass
class Drawn:
    """A drawn model with inputs.

    `logits`, `values` and `result` name the input of softmax, the averaged tensor, and the means before they are
    quantised to `output`. `products` names the scores before any pair, in nats up to `factor`; `query` and
    `query_float` name their operand.

    `nats` bounds how far all pairs that only round may move a score; `weights` is the step of probabilities.
    """

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    query: Quantised
    query_float: str
    products: str
    factor: float
    logits: str
    values: Quantised
    values_float: str
    result: str
    output: Quantised
    nats: float
    weights: float

    def outputs(self) -> onnx.ModelProto:
        """Return the model with its intermediate tensors as further outputs."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        for name in (self.query_float, self.products, self.logits, self.values_float, self.result):
            model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
        return model


class _Draw:
    def __init__(self, rng: Rng) -> None:
        self.rng = rng
        self.builder = Builder(rng, 21)
        self.feeds: dict[str, np.ndarray] = {}
        self.nats = self.weights = 0.0

    def input(self, shape: tuple[int, ...], scale: float) -> Quantised:
        """Draw Gaussian integers around a zero point, which may be at an end of their range."""
        rng, builder = self.rng, self.builder
        unsigned = bool(rng.integers(2))
        stored = cases.random_zero(rng) if rng.random() < 0.5 else 0
        integers = np.clip(np.rint(rng.normal(stored, 40, shape)), -128, 127)
        name = builder.name("input")
        builder.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        scale = float(np.float32(scale))
        self.feeds[name] = ((integers - stored) * np.float32(scale)).astype(np.float32)
        return builder.quantise(name, shape, scale, stored + 128 * unsigned, unsigned)

    def pair(self, value: str, low: float, high: float, factor: float = 1.0, bits: int | None = None) -> str:
        """Quantise to a range that contains 0 and dequantise; a step is `factor` steps of the logits."""
        kinds = [np.int8, np.uint8] * 8 + ([np.int16, np.uint16] if bits is None else [])
        kind = np.dtype(kinds[int(self.rng.integers(len(kinds)))])
        least, most = TYPES[kind]
        scale = np.float32((high - low) / (most - least))
        zero = np.array(np.clip(round(least - low / scale), least, most), kind)
        given = [self.builder.constant(scale), self.builder.constant(zero)]
        self.nats += float(scale) * factor / 2
        value = self.builder.node("QuantizeLinear", [value, *given])
        return self.builder.node("DequantizeLinear", [value, *given])

    def scores_pair(self, value: str, typical: float, factor: float, low: float = 0.0) -> str:
        """Add no pair, or a pair that clips on purpose, fits typical scores, or clips nothing."""
        reach = float(self.rng.choice([0.0, 0.0, 0.3, 1.0, 4.0, 400.0])) * typical
        if not reach:
            return value
        sides = self.rng.uniform(0.2, 1, 2) if self.rng.integers(2) else np.ones(2)
        return self.pair(value, min(-reach * sides[0], low), reach * sides[1], factor)

    def keys(self, sizes: Sizes, scale: float) -> str:
        """Add transposed keys; some are quantised once more, to a smaller, equal or larger range."""
        rng, builder = self.rng, self.builder
        beside = bool(rng.integers(2))
        lead, hidden = (sizes.batch, sizes.keys), sizes.heads * sizes.size
        shape = (*lead, hidden) if beside else (sizes.batch, sizes.heads, sizes.keys, sizes.size)
        source = self.input(shape, scale)
        value = builder.dequantise(source)
        if beside and rng.random() < 0.6:
            reach = 127 * source.scale * float(rng.choice([0.2, 0.9, 2.0]))
            value = self.pair(value, -reach, reach, 0.0, 8)
        if beside:
            split = builder.constant(np.array([*lead, sizes.heads, sizes.size], np.int64))
            value = builder.node("Reshape", [value, split])
        return builder.node("Transpose", [value], perm=[0, 2, 3, 1] if beside else [0, 1, 3, 2])


def draw(rng: Rng) -> Drawn:
    """Draw attention of any size, written out as single operators."""
    made = _Draw(rng)
    builder = made.builder
    sizes = Sizes(*(int(value) for value in rng.integers(1, [3, 4, 2, 21, 50, 40, 24])))
    lead, factor = (sizes.batch, sizes.heads), float(np.float32(sizes.size**-0.5))
    typical = float(rng.choice([0.2, 1.0, 4.0, 12.0]))  # nats
    scale = math.sqrt(typical) / 40
    ratio = float(rng.choice([0.01, 1.0, 30.0]))
    q = made.input((*lead, sizes.queries, sizes.size), scale * ratio)
    keys = made.keys(sizes, scale / ratio)
    v = made.input((*lead, sizes.keys, sizes.v_size), float(rng.choice([1e-4, 0.02, 5.0])))
    query = builder.dequantise(q)
    products = scores = builder.node("MatMul", [query, keys])
    scores = made.scores_pair(scores, typical / factor, factor)
    scores = builder.node("Mul", [scores, builder.constant(np.float32(factor))])
    scores = made.scores_pair(scores, typical, 1.0)
    if rng.random() < 0.5:
        allowed = np.arange(sizes.keys) < rng.integers(1, sizes.keys + 1, (sizes.batch, 1, 1, 1))
        scores = builder.node("Add", [scores, builder.constant(additive(allowed).astype(np.float32))])
        least = float(rng.choice([-10.0, -30.0, -300.0]))
        scores = made.scores_pair(scores, typical, 1.0, least * typical - 12)
    weights = builder.node("Softmax", [scores], axis=-1)
    if rng.random() < 0.6:
        high = float(rng.choice([255 / 256, 1.0, 1.0, 0.3]))
        weights, made.weights = made.pair(weights, 0.0, high, 0.0), high / 255
    values = builder.dequantise(v)
    result = builder.node("MatMul", [weights, values])
    output = builder.quantise(
        result, (*lead, sizes.queries, sizes.v_size), float(np.float32(v.scale * rng.uniform(0.2, 1.2))),
        int(rng.integers(0, 256)) if v.unsigned else int(rng.integers(-128, 128)), v.unsigned,
    )  # fmt: skip
    return Drawn(
        builder.finish(output),
        made.feeds,
        q,
        query,
        products,
        factor,
        scores,
        v,
        values,
        result,
        output,
        made.nats,
        made.weights,
    )
