"""Restoring the integer weights of the original file in a quantised model, where int8 can represent them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from weft.quantiser.accuracy import decibels
from weft.quantiser.integer_weights import Integers, Remembered

_SUFFIX = "_quantized"
"""Suffix that the quantiser adds to the name of a constant."""
_LARGEST = (1 << 31) - 1


@dataclass(frozen=True)
class Weights:
    """Constant of a quantised model that the file held as integers.

    Attributes
    ----------
    node : str
        Name of the node that reads it.
    kind : str
        Type in the file.
    kept : bool
        True if it still has its value in the file.
    snr : float
        Signal-to-noise ratio against the file, in dB.
    """

    node: str
    kind: str
    kept: bool
    snr: float


def restore(
    quantised: onnx.ModelProto, floats: onnx.ModelProto, remembered: Remembered
) -> tuple[Weights, ...]:
    """Restore the integers of a file in a quantised model, in place, wherever int8 can represent them.

    Parameters
    ----------
    quantised, floats : ModelProto
        Output and input of the quantiser.
    remembered : Remembered
        The integers of the constants of `floats`.

    Returns
    -------
    One entry for each constant of `remembered`, in the order of nodes.
    """
    return tuple(_Restoring(quantised, floats).run(remembered)) if remembered else ()


class _Restoring:
    def __init__(self, quantised: onnx.ModelProto, floats: onnx.ModelProto) -> None:
        self._model = quantised
        self._tensors = {tensor.name: tensor for tensor in quantised.graph.initializer}
        self._floats = {tensor.name: tensor for tensor in floats.graph.initializer}
        self._makers = {name: node for node in quantised.graph.node for name in node.output}

    def run(self, remembered: Remembered) -> Iterator[Weights]:
        done: dict[str, Weights] = {}
        for node in self._model.graph.node:
            for index, name in enumerate(node.input):
                link = self._makers.get(name)
                source = self._source(link)
                integers = None if source is None else remembered.find(self._float(source))
                if link is None or source is None or integers is None:
                    continue
                # Nodes may share a constant; it changes once.
                if source not in done:
                    done[source] = self._restore(node, index, link, integers)
                    yield done[source]

    def _source(self, link: onnx.NodeProto | None) -> str | None:
        """Return the name of the float constant behind a DequantizeLinear node; None if there is none."""
        if link is None or link.op_type != "DequantizeLinear":
            return None
        name = link.input[0].removesuffix(_SUFFIX)
        return name if name != link.input[0] and name in self._floats else None

    def _float(self, name: str) -> np.ndarray:
        return numpy_helper.to_array(self._floats[name])

    def _array(self, name: str) -> np.ndarray:
        return numpy_helper.to_array(self._tensors[name])

    def _store(self, name: str, value: np.ndarray) -> None:
        self._tensors[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), name))

    def _restore(self, node: onnx.NodeProto, index: int, link: onnx.NodeProto, integers: Integers) -> Weights:
        """Restore the exact channels of a constant, with their scales and biases."""
        values, scale = self._array(link.input[0]), self._array(link.input[1])
        axis = next((int(item.i) for item in link.attribute if item.name == "axis"), 1) % values.ndim
        own, steps, exact = integers.by_channel(axis if scale.size > 1 else 0)
        # One scale for the tensor: restore all of it, or nothing.
        if scale.size == 1:
            exact = np.array([exact.all() and (steps == steps[0]).all()])
            steps = steps[:1]
        shape = [1] * values.ndim
        shape[axis] = -1
        if values.dtype == np.int8 and not self._array(link.input[2]).any():
            good = exact & self._rescale_bias(
                node, index, np.where(steps > 0, steps, scale.reshape(-1)), exact
            )
            values = np.where(good.reshape(shape), own, values)
            scale = (
                np.where(good & (steps > 0), steps, scale.reshape(-1)).astype(np.float32).reshape(scale.shape)
            )
            self._store(link.input[0], values)
            self._store(link.input[1], scale)
        # Compare the result with the file, whether restored or rounded again.
        floats = integers.floats.astype(np.float64)
        zero = self._array(link.input[2]).astype(np.int64)
        stored = values.astype(np.int64) - (zero.reshape(shape) if zero.size > 1 else zero)
        error = floats - stored * (scale.reshape(shape) if scale.size > 1 else scale).astype(np.float64)
        # The floats of the file are rounded to float32: smaller differences do not count.
        same = bool((np.abs(error) <= np.abs(floats) * 2.0**-24).all())
        snr = decibels(float(np.vdot(floats, floats)), 0.0 if same else float(np.vdot(error, error)))
        return Weights(node.name, integers.kind, same, snr)

    def _rescale_bias(
        self, node: onnx.NodeProto, index: int, steps: np.ndarray, exact: np.ndarray
    ) -> np.ndarray:
        """Quantise the bias of a node again for weights with the scales `steps`.

        A bias has the scale of the input times the scale of the weights. Returns which channels may be restored: their
        bias fits int32.
        """
        everywhere = np.ones(len(exact), bool)
        link = self._makers.get(node.input[2]) if index == 1 and len(node.input) > 2 else None
        input_link = self._makers.get(node.input[0])
        source = self._source(link)
        if link is None or input_link is None or source is None or input_link.op_type != "DequantizeLinear":
            return everywhere
        bias, old = self._float(source).astype(np.float64), self._array(link.input[1])
        # The bias has no scale per channel: it cannot follow the weights.
        if old.size != len(steps) or bias.size != len(steps):
            return everywhere & False
        scales = self._array(input_link.input[1]).reshape(()).astype(np.float32) * steps.astype(np.float32)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            ints = np.rint(bias.reshape(-1) / scales.astype(np.float64))
        fits = np.isfinite(ints) & (np.abs(ints) <= _LARGEST)
        change = exact & fits
        values = np.where(change, np.where(fits, ints, 0), self._array(link.input[0]).reshape(-1))
        self._store(link.input[0], values.astype(np.int32).reshape(bias.shape))
        self._store(
            link.input[1], np.where(change, scales, old.reshape(-1)).astype(np.float32).reshape(old.shape)
        )
        return change
