"""Signal-to-noise ratio of a quantised model against its float model, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from weft.quantiser import float_model

LIMIT = 200.0
"""Signal-to-noise ratios are clamped to this many dB either side of 0; a result without error has `LIMIT`."""
_PAIR = ("QuantizeLinear", "DequantizeLinear")
_MOVES = frozenset({
    "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "SpaceToDepth",
    "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
})  # fmt: skip
"""Operators that only move values: their error is the error of their input."""
_BEFORE_PAIR = "_QuantizeLinear_Input"
"""Suffix that the quantiser adds to the name of a model output that it quantises."""


@dataclass(frozen=True)
class Layer:
    """Node that computes, with the signal-to-noise ratio of its quantised result, in dB."""

    name: str
    operator: str
    snr: float
    before: float
    """Smallest ratio of the results that it reads; `LIMIT` if it reads only inputs of the model."""


@dataclass(frozen=True)
class Output:
    """Output of the model, with its ratio in dB.

    `same` is the share of samples with the same arg max in float; None for outputs that are not rows of class scores.
    """

    name: str
    snr: float
    same: float | None


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of a quantised model on `samples` samples; layers with the largest errors come first."""

    layers: tuple[Layer, ...]
    outputs: tuple[Output, ...]
    samples: int

    def below(self, budget: float) -> list[Layer]:
        """Return the layers whose ratio is less than `budget` dB."""
        return [layer for layer in self.layers if layer.snr < budget]

    def causes(self, budget: float) -> list[Layer]:
        """Return the layers below `budget` dB whose inputs are all above it: there the error starts."""
        return [layer for layer in self.below(budget) if layer.before >= budget]


def decibels(signal: float, noise: float) -> float:
    """Return the ratio of two powers in dB, clamped to -`LIMIT` to `LIMIT`."""
    if noise == 0:
        return LIMIT
    return -LIMIT if signal == 0 else min(LIMIT, max(-LIMIT, 10 * math.log10(signal / noise)))


def measure(
    model: onnx.ModelProto,
    quantised: onnx.ModelProto,
    samples: Iterable[Mapping[str, np.ndarray]],
    progress: Callable[[str], None] = lambda text: None,
) -> Accuracy:
    """Run both models on all samples, and compare every value that both of them have.

    Parameters
    ----------
    model, quantised : ModelProto
        The prepared float model, and its quantised form.
    samples : iterable
        The inputs of each run.
    """
    pairs = _Pairs(quantised)
    # Name in the float model to name in the quantised model.
    read = {name: pairs.value[name] for name in float_model.float_results(model) if name in pairs.value}
    outputs = [value.name for value in model.graph.output]
    exact = float_model.Probe(model, (*outputs, *read))
    rounded = float_model.Probe(quantised, (*outputs, *read.values()))
    # Sums of the squares of results and of errors, over all samples.
    powers = {name: [0.0, 0.0] for name in (*read, *outputs)}
    same: dict[str, list[bool]] = {}
    count = 0
    for count, inputs in enumerate(samples, start=1):
        progress(f"comparing with float: sample {count:,}")
        expected, actual = exact(inputs), rounded(inputs)
        for name, sums in powers.items():
            _add(sums, expected[name], actual[read.get(name, name)])
        for name in outputs:
            if _is_scores(expected[name]):
                equal = np.argmax(expected[name], 1) == np.argmax(actual[name], 1)
                same.setdefault(name, []).extend(equal.tolist())
    ratios = {name: decibels(*sums) for name, sums in powers.items()}
    layers = sorted(_layers(quantised, pairs, ratios), key=lambda layer: layer.snr)
    shares = {name: sum(equal) / len(equal) for name, equal in same.items()}
    ends = tuple(Output(name, ratios[name], shares.get(name)) for name in outputs)
    return Accuracy(tuple(layers), ends, count)


def _is_scores(value: np.ndarray) -> bool:
    return value.ndim == 2 and value.shape[1] > 1 and value.dtype.kind == "f"


def _add(sums: list[float], expected: Any, actual: Any) -> None:
    if not isinstance(expected, np.ndarray) or expected.dtype.kind not in "biuf":
        return
    # Masks hold minus infinity, whose error is not a number.
    if not np.isfinite(expected).all():
        return
    signal = expected.astype(np.float64)
    noise = signal - actual.astype(np.float64)
    sums[0] += float(np.square(signal).sum())
    sums[1] += float(np.square(noise).sum())


class _Pairs:
    """The QuantizeLinear and DequantizeLinear nodes of a quantised model.

    `value` maps the name of a value in the float model to the value of the quantised model to compare it with, which is
    the output of DequantizeLinear if the value is quantised. `makers` maps names to the nodes that compute them.
    """

    def __init__(self, quantised: onnx.ModelProto) -> None:
        dequantised: dict[str, str] = {}
        makers = {name: node for node in quantised.graph.node for name in node.output}
        for node in quantised.graph.node:
            maker = makers.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
            if maker is not None and maker.op_type == "QuantizeLinear":
                dequantised[maker.input[0]] = node.output[0]
        self.value: dict[str, str] = {}
        self.makers = {}
        for node in quantised.graph.node:
            if node.op_type not in _PAIR:
                for name in filter(None, node.output):
                    self.value[name.removesuffix(_BEFORE_PAIR)] = dequantised.get(name, name)
                    self.makers[dequantised.get(name, name)] = self.makers[name] = node


def _layers(quantised: onnx.ModelProto, pairs: _Pairs, ratios: dict[str, float]) -> Iterator[Layer]:
    by_node: dict[str, float] = {}
    for name, value in pairs.value.items():
        if name in ratios:
            # The first output of a node stands for the node.
            by_node.setdefault(pairs.makers[value].name, ratios[name])
    for node in quantised.graph.node:
        if node.op_type in (*_PAIR, *_MOVES) or node.name not in by_node:
            continue
        before = [by_node[maker.name] for maker in _inputs(node, pairs) if maker.name in by_node]
        yield Layer(node.name, node.op_type, by_node[node.name], min(before, default=LIMIT))


def _inputs(node: onnx.NodeProto, pairs: _Pairs) -> Iterator[onnx.NodeProto]:
    """Yield the nodes that compute the inputs of a node."""
    for name in node.input:
        maker = pairs.makers.get(name)
        if maker is not None:
            yield maker
