"""How far a quantised model is from the float model that it was made of, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from weft.quantiser import float_model

LIMIT = 200.0
"""Signal-to-noise ratios are within this many dB of 0: so much is told where there is no error at all."""
_PAIR = ("QuantizeLinear", "DequantizeLinear")
_MOVES = frozenset({
    "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "SpaceToDepth",
    "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
})  # fmt: skip
"""Operators that compute nothing: their error is that of what they read."""
_BEFORE_PAIR = "_QuantizeLinear_Input"
"""What the quantiser adds to the name of an output that it puts a pair behind."""


@dataclass(frozen=True)
class Layer:
    """A node that computes, and the ratio of its float result to the error of the quantised one, in dB."""

    name: str
    operator: str
    snr: float
    before: float
    """The least ratio of the results that it reads, `LIMIT` if it reads inputs of the model only."""


@dataclass(frozen=True)
class Output:
    """An output of the model, with the share of samples that have the same arg max in float where that is asked for."""

    name: str
    snr: float
    same: float | None


@dataclass(frozen=True)
class Accuracy:
    """Of a quantised model, on `samples` samples: the layers with the largest errors first."""

    layers: tuple[Layer, ...]
    outputs: tuple[Output, ...]
    samples: int

    def below(self, budget: float) -> list[Layer]:
        """Layers whose ratio is less than `budget` dB."""
        return [layer for layer in self.layers if layer.snr < budget]

    def causes(self, budget: float) -> list[Layer]:
        """Those of them that read nothing else that is below `budget` dB: where the error comes in."""
        return [layer for layer in self.below(budget) if layer.before >= budget]


def decibels(signal: float, noise: float) -> float:
    """Ten times the decimal logarithm of a ratio of powers, from -`LIMIT` to `LIMIT`."""
    if noise == 0:
        return LIMIT
    return -LIMIT if signal == 0 else min(LIMIT, max(-LIMIT, 10 * math.log10(signal / noise)))


def measure(
    model: onnx.ModelProto,
    quantised: onnx.ModelProto,
    samples: Iterable[Mapping[str, np.ndarray]],
    progress: Callable[[str], None] = lambda text: None,
) -> Accuracy:
    """Run both models on all samples, and compare every value that both have.

    Parameters
    ----------
    model, quantised : ModelProto
        The prepared float model, and what the quantiser made of it.
    samples : iterable
        The inputs of each run.
    """
    pairs = _Pairs(quantised)
    # By the name in the float model, the name in the quantised one.
    read = {name: pairs.value[name] for name in float_model.made_floats(model) if name in pairs.value}
    outputs = [value.name for value in model.graph.output]
    left = float_model.Probe(model, (*outputs, *read))
    right = float_model.Probe(quantised, (*outputs, *read.values()))
    powers = {name: [0.0, 0.0] for name in (*read, *outputs)}
    same: dict[str, list[bool]] = {}
    count = 0
    for count, inputs in enumerate(samples, start=1):
        progress(f"comparing with float: sample {count:,}")
        wanted, got = left(inputs), right(inputs)
        for name, sums in powers.items():
            _add(sums, wanted[name], got[read.get(name, name)])
        for name in outputs:
            if _is_choice(wanted[name]):
                equal = np.argmax(wanted[name], 1) == np.argmax(got[name], 1)
                same.setdefault(name, []).extend(equal.tolist())
    ratios = {name: decibels(*sums) for name, sums in powers.items()}
    layers = sorted(_layers(quantised, pairs, ratios), key=lambda layer: layer.snr)
    shares = {name: sum(equal) / len(equal) for name, equal in same.items()}
    ends = tuple(Output(name, ratios[name], shares.get(name)) for name in outputs)
    return Accuracy(tuple(layers), ends, count)


def _is_choice(value: np.ndarray) -> bool:
    return value.ndim == 2 and value.shape[1] > 1 and value.dtype.kind == "f"


def _add(sums: list[float], wanted: Any, got: Any) -> None:
    if not isinstance(wanted, np.ndarray) or wanted.dtype.kind not in "biuf":
        return
    if not np.isfinite(wanted).all():
        return  # minus infinity of a mask
    signal = wanted.astype(np.float64)
    noise = signal - got.astype(np.float64)
    sums[0] += float(np.square(signal).sum())
    sums[1] += float(np.square(noise).sum())


class _Pairs:
    """The QuantizeLinear and DequantizeLinear nodes of a quantised model.

    `value` has, by the name of a float model's value, the value of the quantised model that is to be compared with it:
    behind its pair if it has one.
    """

    def __init__(self, quantised: onnx.ModelProto) -> None:
        behind: dict[str, str] = {}
        makers = {name: node for node in quantised.graph.node for name in node.output}
        for node in quantised.graph.node:
            maker = makers.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
            if maker is not None and maker.op_type == "QuantizeLinear":
                behind[maker.input[0]] = node.output[0]
        self.value: dict[str, str] = {}
        self.makers = {}
        for node in quantised.graph.node:
            if node.op_type not in _PAIR:
                for name in filter(None, node.output):
                    self.value[name.removesuffix(_BEFORE_PAIR)] = behind.get(name, name)
                    self.makers[behind.get(name, name)] = self.makers[name] = node


def _layers(quantised: onnx.ModelProto, pairs: _Pairs, ratios: dict[str, float]) -> Iterator[Layer]:
    """The nodes that compute, with their ratios."""
    by_node: dict[str, float] = {}
    for name, value in pairs.value.items():
        if name in ratios:
            by_node.setdefault(pairs.makers[value].name, ratios[name])
    for node in quantised.graph.node:
        if node.op_type in (*_PAIR, *_MOVES) or node.name not in by_node:
            continue
        before = [by_node[maker.name] for maker in _before(node, pairs) if maker.name in by_node]
        yield Layer(node.name, node.op_type, by_node[node.name], min(before, default=LIMIT))


def _before(node: onnx.NodeProto, pairs: _Pairs) -> Iterator[onnx.NodeProto]:
    """The nodes that make what a node reads."""
    for name in node.input:
        maker = pairs.makers.get(name)
        if maker is not None:
            yield maker
