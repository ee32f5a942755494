"""A quantised model with other weights: integers and scales of what was trained, and ranges of what depends on it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from weft.compiler.gradient.deployed import Deployed, Kind, Stored, depending
from weft.compiler.gradient.quantised import Range
from weft.compiler.ir.network import Node

_LEAST = 1e-9
_BIAS = 2
"""The input of a layer that is its bias."""


def with_weights(
    model: onnx.ModelProto, deployed: Deployed, trained: Mapping[str, np.ndarray], ranges: Mapping[str, Range]
) -> onnx.ModelProto:
    """The model with trained constants in the place of its own, and scales that fit these.

    `ranges` are those of values in real numbers that depend on what was trained.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    values = {item.name: item for item in made.graph.initializer}
    changes: dict[str, np.ndarray] = dict(_kinds(deployed, trained, ranges))
    plain = {name: value for name, value in trained.items() if name not in deployed.stored}
    changes |= {name: value.astype(np.float32) for name, value in plain.items()}
    for name, value in trained.items():
        stored = deployed.stored.get(name)
        if stored is not None and stored.values.dtype != np.int32:
            scale = _scale(stored, value)
            changes[stored.scale_name] = scale
            changes[stored.name] = _integers(stored, value, scale)
    for node in deployed.network.nodes:
        _bias(node, deployed, trained, changes)
    for name, array in changes.items():
        kept = values[name]
        kept.CopyFrom(numpy_helper.from_array(array.astype(numpy_helper.to_array(kept).dtype), name))
    return made


def _scale(stored: Stored, value: np.ndarray) -> np.ndarray:
    """The least scales for which all weights are integers of their type."""
    limits, zero = np.iinfo(stored.values.dtype), stored.kind.zero.astype(np.int64)
    room = np.maximum(np.minimum(limits.max - zero, zero - limits.min), 1)
    if stored.kind.one:
        most = np.abs(value).max()
    else:
        most = np.abs(value).max(axis=tuple(at for at in range(value.ndim) if at != stored.kind.axis))
    found = np.maximum(most, _LEAST) / room.reshape(np.shape(most) if room.size > 1 else ())
    return found.astype(np.float32).reshape(stored.kind.scale.shape)


def _integers(stored: Stored, value: np.ndarray, scale: np.ndarray) -> np.ndarray:
    shape = [1] * value.ndim
    if scale.size > 1:
        shape[stored.kind.axis] = scale.size
    zero = stored.kind.zero.astype(np.int64)
    zero = zero.reshape(shape) if zero.size > 1 else zero.reshape(())
    limits = np.iinfo(stored.values.dtype)
    whole = np.rint(value / scale.astype(np.float64).reshape(shape)) + zero
    return np.clip(whole, limits.min, limits.max).astype(stored.values.dtype)


def _bias(
    node: Node, deployed: Deployed, trained: Mapping[str, np.ndarray], changes: dict[str, np.ndarray]
) -> None:
    """A bias has the product of the scales of its layer's input and weights."""
    bias = deployed.stored.get(node.input(_BIAS))
    weight = deployed.stored.get(node.input(1))
    kind = deployed.kinds.get(node.input(0))
    if (
        bias is None
        or weight is None
        or kind is None
        or not {node.input(1), node.input(_BIAS)} & set(trained)
    ):
        return
    link = deployed.links[node.input(0)]
    source = changes.get(link.input(1), kind.scale).astype(np.float64).reshape(())
    scale = (source * changes.get(weight.scale_name, weight.kind.scale)).astype(np.float32)
    scale = (
        np.broadcast_to(scale, bias.kind.scale.shape) if bias.kind.scale.size > 1 else scale.reshape(-1)[:1]
    )
    value = trained.get(bias.output, bias.real)
    changes[bias.scale_name] = scale.reshape(bias.kind.scale.shape)
    changes[bias.name] = _integers(bias, value, changes[bias.scale_name])


def _kinds(
    deployed: Deployed, trained: Mapping[str, np.ndarray], ranges: Mapping[str, Range]
) -> Mapping[str, np.ndarray]:
    """Scales and zero points of values that depend on what was trained. Values that share theirs keep sharing."""
    moving = depending(deployed.network.nodes, trained)
    groups: dict[str, list[str]] = {}
    for name, link in deployed.links.items():
        groups.setdefault(link.input(1), []).append(name)
    changes: dict[str, np.ndarray] = {}
    for scale_name, names in groups.items():
        known = [ranges[name] for name in names if name in ranges and name in moving]
        kind, link = deployed.kinds[names[0]], deployed.links[names[0]]
        if len(known) < len(names) or not kind.one:
            continue
        low, high = min(0.0, *(item[0] for item in known)), max(0.0, *(item[1] for item in known))
        scale, zero = _of_range(kind, low, high)
        changes[scale_name] = scale
        if link.input(2):
            changes[link.input(2)] = zero
    return changes


def _of_range(kind: Kind, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """A scale and a zero point of the same sort: in the middle if it was there, else where the range says."""
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
