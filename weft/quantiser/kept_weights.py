"""Giving a quantised model the integers back that the file had for its weights, where int8 has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from weft.quantiser.accuracy import decibels
from weft.quantiser.integer_weights import Integers, Remembered

_SUFFIX = "_quantized"
"""What the quantiser adds to the name of a constant that it quantises."""
_LARGEST = (1 << 31) - 1


@dataclass(frozen=True)
class Weights:
    """A constant that the file had as integers, in the quantised model.

    `kind` is its type in the file; `kept` tells that its integers are the same, and else `snr` what the new ones are
    from it, in dB.
    """

    node: str
    kind: str
    kept: bool
    snr: float


def keep(quantised: onnx.ModelProto, floats: onnx.ModelProto, remembered: Remembered) -> tuple[Weights, ...]:
    """Put the integers of a file into a quantised model, in place, wherever its types have them.

    Parameters
    ----------
    quantised, floats : ModelProto
        What the quantiser made, and what it was given.
    remembered : Remembered
        The integers of the constants of `floats`.

    Returns
    -------
    What became of each constant of integers, in the order of nodes.
    """
    return tuple(_Keeping(quantised, floats).run(remembered)) if remembered else ()


class _Keeping:
    def __init__(self, quantised: onnx.ModelProto, floats: onnx.ModelProto) -> None:
        self._model = quantised
        self._tensors = {tensor.name: tensor for tensor in quantised.graph.initializer}
        self._floats = {tensor.name: tensor for tensor in floats.graph.initializer}
        self._makers = {name: node for node in quantised.graph.node for name in node.output}

    def run(self, remembered: Remembered) -> Iterator[Weights]:
        done: dict[str, Weights] = {}
        for node in self._model.graph.node:
            for index, name in enumerate(node.input):
                made = self._makers.get(name)
                source = self._source(made)
                integers = None if source is None else remembered.find(self._float(source))
                if made is None or source is None or integers is None:
                    continue
                if source not in done:
                    done[source] = self._keep(node, index, made, integers)
                    yield done[source]

    def _source(self, link: onnx.NodeProto | None) -> str | None:
        """The constant of the float model that a DequantizeLinear node stands for."""
        if link is None or link.op_type != "DequantizeLinear":
            return None
        name = link.input[0].removesuffix(_SUFFIX)
        return name if name != link.input[0] and name in self._floats else None

    def _float(self, name: str) -> np.ndarray:
        return numpy_helper.to_array(self._floats[name])

    def _array(self, name: str) -> np.ndarray:
        return numpy_helper.to_array(self._tensors[name])

    def _put(self, name: str, value: np.ndarray) -> None:
        self._tensors[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), name))

    def _keep(self, node: onnx.NodeProto, index: int, link: onnx.NodeProto, integers: Integers) -> Weights:
        """Change a constant and what depends on its scale; by channel, as far as one has such a form."""
        values, scale = self._array(link.input[0]), self._array(link.input[1])
        axis = next((int(item.i) for item in link.attribute if item.name == "axis"), 1) % values.ndim
        own, steps, exact = integers.by_channel(axis if scale.size > 1 else 0)
        if scale.size == 1:
            exact = np.array([exact.all() and (steps == steps[0]).all()])
            steps = steps[:1]
        shape = [1] * values.ndim
        shape[axis] = -1
        if values.dtype == np.int8 and not self._array(link.input[2]).any():
            good = exact & self._biased(node, index, np.where(steps > 0, steps, scale.reshape(-1)), exact)
            values = np.where(good.reshape(shape), own, values)
            scale = (
                np.where(good & (steps > 0), steps, scale.reshape(-1)).astype(np.float32).reshape(scale.shape)
            )
            self._put(link.input[0], values)
            self._put(link.input[1], scale)
        floats = integers.floats.astype(np.float64)
        zero = self._array(link.input[2]).astype(np.int64)
        stored = values.astype(np.int64) - (zero.reshape(shape) if zero.size > 1 else zero)
        rest = floats - stored * (scale.reshape(shape) if scale.size > 1 else scale).astype(np.float64)
        # Floats of the file are rounded to float32: what is nearer than that is the same.
        same = bool((np.abs(rest) <= np.abs(floats) * 2.0**-24).all())
        snr = decibels(float(np.vdot(floats, floats)), 0.0 if same else float(np.vdot(rest, rest)))
        return Weights(node.name, integers.kind, same, snr)

    def _biased(self, node: onnx.NodeProto, index: int, steps: np.ndarray, exact: np.ndarray) -> np.ndarray:
        """For which channels the bias of a node, whose scale is that of its input times `steps`, has int32 values.

        Those change."""
        everywhere = np.ones(len(exact), bool)
        link = self._makers.get(node.input[2]) if index == 1 and len(node.input) > 2 else None
        before = self._makers.get(node.input[0])
        source = self._source(link)
        if link is None or before is None or source is None or before.op_type != "DequantizeLinear":
            return everywhere
        bias, old = self._float(source).astype(np.float64), self._array(link.input[1])
        if old.size != len(steps) or bias.size != len(steps):
            return everywhere & False
        scales = self._array(before.input[1]).reshape(()).astype(np.float32) * steps.astype(np.float32)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            ints = np.rint(bias.reshape(-1) / scales.astype(np.float64))
        fits = np.isfinite(ints) & (np.abs(ints) <= _LARGEST)
        change = exact & fits
        values = np.where(change, np.where(fits, ints, 0), self._array(link.input[0]).reshape(-1))
        self._put(link.input[0], values.astype(np.int32).reshape(bias.shape))
        self._put(
            link.input[1], np.where(change, scales, old.reshape(-1)).astype(np.float32).reshape(old.shape)
        )
        return change
