"""Ranges of activations without their outliers, from histograms of their values.

The model runs twice on all samples: for the ends of the histograms, and to fill them. So they take as little memory for
many samples as for few, and the order of samples does not matter. Zeros are left out: every range has them exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from weft.compiler.onnx.reader import LARGEST
from weft.quantiser import float_model
from weft.quantiser.quantise_plan import MASKED
from weft.samples import Samples

Range = tuple[float, float]
BINS = 2048
PERCENTILE = 99.99
"""Of the values, which a range by percentile holds."""
_SHARES = np.linspace(1, 0.05, 39)
"""Of either end of the values, among which the range of least error is looked for."""
_STEPS = 255
"""Of a range of 8 bits."""


def percentile(counts: np.ndarray, edges: np.ndarray) -> Range:
    """The range that holds `PERCENTILE` of the values, and as many of the others below as above it."""
    outside = counts.sum() * (1 - PERCENTILE / 100) / 2
    below = np.cumsum(counts)
    first = int(np.searchsorted(below, outside, side="right"))
    above = np.cumsum(counts[::-1])
    last = len(counts) - 1 - int(np.searchsorted(above, outside, side="right"))
    return float(edges[min(first, last)]), float(edges[max(first, last) + 1])


def least_error(counts: np.ndarray, edges: np.ndarray) -> Range:
    """The range by which the sum of squared errors of rounding and of clipping is least."""
    middles = (edges[:-1] + edges[1:]) / 2
    lows, highs = np.minimum(edges[0], 0) * _SHARES, np.maximum(edges[-1], 0) * _SHARES
    clipped = [
        np.array([(counts * np.clip(sign * (middles - end), 0, None) ** 2).sum() for end in ends])
        for sign, ends in ((-1, lows), (1, highs))
    ]
    rounded = counts.sum() * ((highs[None, :] - lows[:, None]) / _STEPS) ** 2 / 12
    errors = clipped[0][:, None] + clipped[1][None, :] + rounded
    low, high = np.unravel_index(int(np.argmin(errors)), errors.shape)
    return float(lows[low]), float(highs[high])


METHODS: dict[str, Callable[[np.ndarray, np.ndarray], Range]] = {"percentile": percentile, "mse": least_error}


def ranges(model: onnx.ModelProto, samples: Samples, method: str) -> dict[str, Range]:
    """The range of every float activation of a prepared model, 0 always in it; results of softmax have 0 to 1."""
    inputs = [name for name, (dtype, _) in float_model.signature(model).items() if dtype == "float32"]
    shares = {node.output[0] for node in model.graph.node if node.op_type == "Softmax"}
    made = [name for name in float_model.made_floats(model) if name not in shares]
    probe = float_model.Probe(model, made)
    ends = {name: [0.0, 0.0] for name in (*inputs, *made)}
    for run in samples:
        values = run | probe(run)
        for name, (low, high) in ends.items():
            ends[name] = [min(low, float(values[name].min())), max(high, float(values[name].max()))]
    ends = {
        name: found for name, found in ends.items() if np.isfinite(found).all()
    }  # minus infinity of masks
    counts = {name: np.zeros(BINS, np.int64) for name in ends}
    for run in samples:
        values = run | probe(run)
        for name, (low, high) in ends.items():
            value = values[name]
            counts[name] += np.histogram(value[value != 0], BINS, (low, high))[0]
    choose = METHODS[method]
    found = {
        name: choose(counts[name].astype(np.float64), np.linspace(low, high, BINS + 1))
        for name, (low, high) in ends.items()
    }
    return {name: (min(low, 0.0), max(high, 0.0)) for name, (low, high) in found.items() if low < high}


_OTHERS = ("activations", "clip", "input_forget")
"""Attributes by which a node is another function; the device does not have these."""


def note_largest(
    quantised: onnx.ModelProto, model: onnx.ModelProto, samples: Iterable[Mapping[str, np.ndarray]]
) -> None:
    """Note in the metadata of a quantised model what `weft.compiler.ir.network.Network.largest` has, by the float model
    that it was made of, for all samples."""
    products = {name for node in model.graph.node if node.op_type == "MatMul" for name in node.input}
    nodes = [
        node
        for node in model.graph.node
        if _plain(node) or _attends(node) or (node.op_type == "Softmax" and node.output[0] in products)
    ]
    if not nodes:
        return
    constants = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    given = set(float_model.signature(model)) | constants.keys()
    read = {name for node in nodes for name in node.input if name}
    probe = float_model.Probe(model, sorted(read - given)) if read - given else None
    most = dict.fromkeys((node.name for node in nodes), 0.0)
    for inputs in samples:
        values = constants | dict(inputs) | (probe(inputs) if probe else {})
        for node in nodes:
            found = _FUNCTIONS[node.op_type](node, [values.get(name) for name in node.input])
            most[node.name] = max(most[node.name], found)
    for name, value in most.items():
        quantised.metadata_props.add(key=f"{LARGEST}{name}", value=repr(value))


def largest_score(node: onnx.NodeProto, values: list[np.ndarray | None]) -> float:
    """The largest absolute value of what is the largest of its row, of rows along the last axis; 0 for rows without any
    key that a mask leaves."""
    (scores,) = values
    assert scores is not None
    rows = scores.max(axis=-1, initial=-np.inf)
    return float(np.abs(rows[rows > MASKED / 2]).max(initial=0.0))


def largest_attended(node: onnx.NodeProto, values: list[np.ndarray | None]) -> float:
    """The same of the scores that an Attention node makes of queries, keys, and the mask and lengths of its inputs."""
    q, k, _, mask, _, _, lengths = [*values, *[None] * 7][:7]
    assert q is not None
    assert k is not None
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    if q.ndim == 3:
        counts = attributes["q_num_heads"], attributes["kv_num_heads"]
        q, k = (
            item.reshape(*item.shape[:2], count, -1).swapaxes(1, 2)
            for item, count in zip((q, k), counts, strict=True)
        )
    k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    scores = q @ k.swapaxes(-1, -2) * np.float32(attributes.get("scale") or q.shape[-1] ** -0.5)
    keys, offset = np.arange(k.shape[2]), np.zeros(1, np.int64)
    if mask is not None:
        added = np.where(mask, 0, -np.inf) if mask.dtype == bool else mask
        missing = [(0, 0)] * (added.ndim - 1) + [(0, keys.size - added.shape[-1])]
        scores = scores + np.pad(added, missing, constant_values=-np.inf)
    if lengths is not None:
        lengths = lengths.reshape(-1, 1, 1, 1)
        scores, offset = np.where(keys < lengths, scores, -np.inf), lengths - q.shape[2]
    if attributes.get("is_causal", 0):
        scores = np.where(keys <= np.arange(q.shape[2])[:, None] + offset, scores, -np.inf)
    return largest_score(node, [scores])


def _attends(node: onnx.NodeProto) -> bool:
    """Whether a node is an Attention of ONNX without past keys, which the device does not have."""
    return node.op_type == "Attention" and node.domain == "" and not any(node.input[4:6])


def _plain(node: onnx.NodeProto) -> bool:
    own = {item.name for item in node.attribute}
    extra = [name for index in (4, 7) for name in node.input[index : index + 1] if name]
    return node.op_type == "LSTM" and node.domain == "" and not own.intersection(_OTHERS) and not extra


def largest_cell(node: onnx.NodeProto, values: list[np.ndarray | None]) -> float:
    """The largest absolute value of all cells of an LSTM node, for the values of its inputs as ONNX has them: X, W, R,
    B, lengths, initial_h and initial_c, None where they are left out."""
    x, weights, recurrent, bias, _, hidden, cell = [*values, *[None] * 7][:7]
    assert x is not None
    assert weights is not None
    assert recurrent is not None
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    if attributes.get("layout", 0):
        x, hidden, cell = (None if item is None else item.swapaxes(0, 1) for item in (x, hidden, cell))
    assert x is not None
    backwards = {b"forward": (False,), b"reverse": (True,)}.get(
        attributes.get("direction", b"forward"), (False, True)
    )
    most = 0.0
    for direction, back in enumerate(backwards):
        size = recurrent.shape[2]
        own = 0.0 if bias is None else bias[direction].reshape(2, -1).sum(axis=0)
        h, c = (np.zeros((x.shape[1], size)) if item is None else item[direction] for item in (hidden, cell))
        most = max(most, float(np.abs(c).max()))
        for part in (x[::-1] if back else x) @ weights[direction].T + own:
            gates = part + h @ recurrent[direction].T
            i, o, f = 0.5 + 0.5 * np.tanh(gates[:, : 3 * size].reshape(-1, 3, size) / 2).swapaxes(0, 1)
            c = f * c + i * np.tanh(gates[:, 3 * size :])
            h = o * np.tanh(c)
            most = max(most, float(np.abs(c).max()))
    return most


_FUNCTIONS = {"LSTM": largest_cell, "Attention": largest_attended, "Softmax": largest_score}
"""By operator, the largest value inside a node for the values of its inputs."""
