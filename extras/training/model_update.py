"""Update of a quantised model: integers and scales of trained constants, and of activations that depend on them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from weft.compiler.ir.network import Node
from weft.extras.training.gradient.quantised import Range
from weft.extras.training.gradient.real_network import MOVING, Kind, RealNetwork, Stored, dependents

_LEAST = 1e-9
_BIAS = 2
"""Index of a layer's bias input."""


def update_weights(
    model: onnx.ModelProto,
    real_network: RealNetwork,
    trained: Mapping[str, np.ndarray],
    ranges: Mapping[str, Range],
) -> onnx.ModelProto:
    """Return the model with trained constants, and scales that fit them.

    `ranges` has the ranges of real values that depend on trained constants.
    """
    updated = onnx.ModelProto()
    updated.CopyFrom(model)
    changes = _Changes(updated)
    scales = _activation_scales(real_network, trained, ranges, changes)
    for name, value in trained.items():
        stored = real_network.stored.get(name)
        if stored is None:
            changes.replace(name, value.astype(np.float32))
        # Biases follow below, when the scales of their layer's input and weights are known.
        elif stored.values.dtype != np.int32:
            scale = scales[name] = _weight_scale(stored, value)
            changes.set(name, 0, _quantise(stored, value, scale))
            changes.set(name, 1, scale)
    for node in real_network.network.nodes:
        _update_bias(node, real_network, trained, scales, changes)
    changes.apply()
    return updated


class _Changes:
    """New constants for inputs of nodes, by the node's output and the input's index."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self.producers = {name: node for node in self.graph.node for name in node.output}
        self.outputs = {item.name for item in self.graph.output}
        self._slots: dict[tuple[str, int], np.ndarray] = {}

    def set(self, output: str, slot: int, value: np.ndarray) -> None:
        if slot < len(self.producers[output].input) and self.producers[output].input[slot]:
            self._slots[output, slot] = value

    def replace(self, name: str, value: np.ndarray) -> None:
        """Replace a constant for all its readers."""
        for node in self.graph.node:
            for slot, read in enumerate(node.input):
                if read == name:
                    self.set(node.output[0], slot, value)

    def readers(self, integers: str) -> list[str]:
        """Return the results of DequantizeLinear nodes that read `integers`, also after reshapes and transposes."""
        outputs = []
        for node in self.graph.node:
            if node.op_type == "DequantizeLinear":
                root = node.input[0]
                while root in self.producers and self.producers[root].op_type in MOVING:
                    root = self.producers[root].input[0]
                if root == integers:
                    outputs.append(node.output[0])
        return outputs

    def apply(self) -> None:
        """Change constants whose readers all change, add new ones for the others, and remove unused ones."""
        known = {item.name: item for item in self.graph.initializer}
        uses: dict[str, list[tuple[str, int]]] = {}
        for node in self.graph.node:
            for slot, name in enumerate(node.input):
                uses.setdefault(name, []).append((node.output[0], slot))
        for name, places in uses.items():
            changed = [place for place in places if place in self._slots]
            values = {self._slots[place].tobytes(): self._slots[place] for place in changed}
            if not changed:
                continue
            # Other readers of a shared constant keep the old value.
            if len(changed) == len(places) and len(values) == 1 and name in known:
                known[name].CopyFrom(numpy_helper.from_array(next(iter(values.values())), name))
                continue
            names = {data: f"{name}/trained{index}" for index, data in enumerate(values)}
            self.graph.initializer.extend(
                numpy_helper.from_array(values[data], fresh) for data, fresh in names.items()
            )
            for output, slot in changed:
                self.producers[output].input[slot] = names[self._slots[output, slot].tobytes()]
        read = {name for node in self.graph.node for name in node.input} | self.outputs
        for item in [item for item in self.graph.initializer if item.name not in read]:
            self.graph.initializer.remove(item)


def _weight_scale(stored: Stored, value: np.ndarray) -> np.ndarray:
    """Return the smallest scales with which all weights fit their integer type."""
    limits, zero = np.iinfo(stored.values.dtype), stored.kind.zero.astype(np.int64)
    # The zero point leaves different room on both sides; weights need it on both.
    room = np.maximum(np.minimum(limits.max - zero, zero - limits.min), 1)
    if stored.kind.per_tensor:
        most = np.abs(value).max()
    else:
        most = np.abs(value).max(axis=tuple(at for at in range(value.ndim) if at != stored.kind.axis))
    scale = np.maximum(most, _LEAST) / room.reshape(np.shape(most) if room.size > 1 else ())
    return scale.astype(np.float32).reshape(stored.kind.scale.shape)


def _quantise(stored: Stored, value: np.ndarray, scale: np.ndarray) -> np.ndarray:
    shape = [1] * value.ndim
    if scale.size > 1:
        shape[stored.kind.axis] = scale.size
    zero = stored.kind.zero.astype(np.int64)
    zero = zero.reshape(shape) if zero.size > 1 else zero.reshape(())
    limits = np.iinfo(stored.values.dtype)
    integers = np.rint(value / scale.astype(np.float64).reshape(shape)) + zero
    return np.clip(integers, limits.min, limits.max).astype(stored.values.dtype)


def _update_bias(
    node: Node, real_network: RealNetwork, trained: Mapping[str, np.ndarray], scales: Mapping[str, np.ndarray],
    changes: _Changes,
) -> None:  # fmt: skip
    """Give a bias the product of the scales of its layer's input and weights."""
    bias, weight = real_network.stored.get(node.input(_BIAS)), real_network.stored.get(node.input(1))
    kind = real_network.kinds.get(node.input(0))
    if bias is None or weight is None or kind is None:
        return
    if not {node.input(0), node.input(1), node.input(_BIAS)} & {*trained, *scales}:
        return
    source = scales.get(node.input(0), kind.scale).astype(np.float64).reshape(())
    product = source * scales.get(node.input(1), weight.kind.scale).astype(np.float64)
    one = bias.kind.scale.size == 1
    scale = (product.reshape(-1)[:1] if one else np.broadcast_to(product, bias.kind.scale.shape)).astype(
        np.float32
    )
    scale = scale.reshape(bias.kind.scale.shape)
    changes.set(bias.output, 0, _quantise(bias, trained.get(bias.output, bias.real), scale))
    changes.set(bias.output, 1, scale)


def _activation_scales(
    real_network: RealNetwork,
    trained: Mapping[str, np.ndarray],
    ranges: Mapping[str, Range],
    changes: _Changes,
) -> dict[str, np.ndarray]:
    """Change the scales of values that depend on trained constants; return them.

    Values that share a scale keep sharing it.
    """
    moving = dependents(real_network.network.nodes, trained)
    groups: dict[tuple[str, str], list[str]] = {}
    for name, link in real_network.links.items():
        if name in moving and name in ranges and real_network.kinds[name].per_tensor:
            groups.setdefault((link.input(1), link.input(2)), []).append(name)
    scales: dict[str, np.ndarray] = {}
    for names in groups.values():
        if any(real_network.links[name].outputs[0] in changes.outputs for name in names):
            continue  # readers of an integer output of the model know its scale
        low = min(0.0, *(ranges[name][0] for name in names))
        high = max(0.0, *(ranges[name][1] for name in names))
        scale, zero = _range_parameters(real_network.kinds[names[0]], low, high)
        for name in names:
            scales[name] = scale
            integers = real_network.links[name].outputs[0]
            for output in (integers, *changes.readers(integers)):
                changes.set(output, 1, scale)
                changes.set(output, 2, zero)
    return scales


def _range_parameters(kind: Kind, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Return scale and zero point of a range, symmetric if the old zero point was in the middle."""
    limits = np.iinfo(kind.zero.dtype)
    middle = 0 if limits.min < 0 else (int(limits.max) + 1) // 2
    if int(kind.zero.reshape(())) == middle:
        scale, zero = max(-low, high, _LEAST) / (int(limits.max) - middle), middle
    else:
        scale = max(high - low, _LEAST) / (int(limits.max) - int(limits.min))
        zero = int(np.clip(np.rint(int(limits.min) - low / scale), limits.min, limits.max))
    return (
        np.asarray(scale, np.float32).reshape(kind.scale.shape),
        np.asarray(zero, kind.zero.dtype).reshape(kind.zero.shape),
    )
