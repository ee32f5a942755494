"""Ranges of activations without outliers, from histograms of their values.

The model runs on all samples twice: to find the ends of the histograms, and to fill them. Memory therefore does not
grow with the number of samples, and their order does not matter. Zeros are not counted: every range represents 0
exactly.
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
"""Percentage of the values inside a range by percentile."""
_SHARES = np.linspace(1, 0.05, 39)
"""Shares of the smallest and the largest value that `least_error` tries as ends of a range."""
_STEPS = 255
"""Quantisation steps in a range of 8 bits."""


def percentile(counts: np.ndarray, edges: np.ndarray) -> Range:
    """Return the range that holds `PERCENTILE` of the values, with half of the rest below and half above."""
    outside = counts.sum() * (1 - PERCENTILE / 100) / 2
    below = np.cumsum(counts)
    first = int(np.searchsorted(below, outside, side="right"))
    above = np.cumsum(counts[::-1])
    last = len(counts) - 1 - int(np.searchsorted(above, outside, side="right"))
    return float(edges[min(first, last)]), float(edges[max(first, last) + 1])


def least_error(counts: np.ndarray, edges: np.ndarray) -> Range:
    """Return the range with the smallest sum of squared rounding and clipping errors."""
    middles = (edges[:-1] + edges[1:]) / 2
    lows, highs = np.minimum(edges[0], 0) * _SHARES, np.maximum(edges[-1], 0) * _SHARES
    # All pairs of ends: errors of clipping add up, and the step depends on both ends.
    clipped = [
        np.array([(counts * np.clip(sign * (middles - end), 0, None) ** 2).sum() for end in ends])
        for sign, ends in ((-1, lows), (1, highs))
    ]
    # A uniform error within a step has a twelfth of the squared step as its mean square.
    rounded = counts.sum() * ((highs[None, :] - lows[:, None]) / _STEPS) ** 2 / 12
    errors = clipped[0][:, None] + clipped[1][None, :] + rounded
    low, high = np.unravel_index(int(np.argmin(errors)), errors.shape)
    return float(lows[low]), float(highs[high])


METHODS: dict[str, Callable[[np.ndarray, np.ndarray], Range]] = {"percentile": percentile, "mse": least_error}


def ranges(model: onnx.ModelProto, samples: Samples, method: str) -> dict[str, Range]:
    """Return the range of every float activation of a prepared model; each range includes 0.

    Results of Softmax are left out: the quantiser knows that they are from 0 to 1.
    """
    inputs = [name for name, (dtype, _) in float_model.signature(model).items() if dtype == "float32"]
    shares = {node.output[0] for node in model.graph.node if node.op_type == "Softmax"}
    results = [name for name in float_model.float_results(model) if name not in shares]
    probe = float_model.Probe(model, results)
    ends = {name: [0.0, 0.0] for name in (*inputs, *results)}
    for run in samples:
        values = run | probe(run)
        for name, (low, high) in ends.items():
            ends[name] = [min(low, float(values[name].min())), max(high, float(values[name].max()))]
    # Masks hold minus infinity.
    ends = {name: bounds for name, bounds in ends.items() if np.isfinite(bounds).all()}
    # Second pass: histograms between the ends.
    counts = {name: np.zeros(BINS, np.int64) for name in ends}
    for run in samples:
        values = run | probe(run)
        for name, (low, high) in ends.items():
            value = values[name]
            counts[name] += np.histogram(value[value != 0], BINS, (low, high))[0]
    choose = METHODS[method]
    chosen = {
        name: choose(counts[name].astype(np.float64), np.linspace(low, high, BINS + 1))
        for name, (low, high) in ends.items()
    }
    return {name: (min(low, 0.0), max(high, 0.0)) for name, (low, high) in chosen.items() if low < high}


_OTHERS = ("activations", "clip", "input_forget")
"""Attributes of LSTM that change its function; the device does not support them."""


def note_largest(
    quantised: onnx.ModelProto, model: onnx.ModelProto, samples: Iterable[Mapping[str, np.ndarray]]
) -> None:
    """Write the largest value inside each LSTM, Attention and Softmax to the metadata of the quantised model.

    The float model computes them on all samples. The compiler reads them as `weft.compiler.ir.network.Network.largest`.
    """
    products = {name for node in model.graph.node if node.op_type == "MatMul" for name in node.input}
    nodes = [
        node
        for node in model.graph.node
        if _is_plain_lstm(node)
        or _is_plain_attention(node)
        or (node.op_type == "Softmax" and node.output[0] in products)
    ]
    if not nodes:
        return
    constants = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    known = set(float_model.signature(model)) | constants.keys()
    read = {name for node in nodes for name in node.input if name}
    probe = float_model.Probe(model, sorted(read - known)) if read - known else None
    most = dict.fromkeys((node.name for node in nodes), 0.0)
    for inputs in samples:
        values = constants | dict(inputs) | (probe(inputs) if probe else {})
        for node in nodes:
            largest = _FUNCTIONS[node.op_type](node, [values.get(name) for name in node.input])
            most[node.name] = max(most[node.name], largest)
    for name, value in most.items():
        quantised.metadata_props.add(key=f"{LARGEST}{name}", value=repr(value))


def largest_score(node: onnx.NodeProto, values: list[np.ndarray | None]) -> float:
    """Return the largest absolute value among the maxima of the rows of a Softmax input, along the last axis.

    Fully masked rows do not count.
    """
    (scores,) = values
    assert scores is not None
    rows = scores.max(axis=-1, initial=-np.inf)
    return float(np.abs(rows[rows > MASKED / 2]).max(initial=0.0))


def largest_attended(node: onnx.NodeProto, values: list[np.ndarray | None]) -> float:
    """Return `largest_score` of the scores inside an Attention node, for the values of its inputs."""
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
    k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)  # grouped queries share keys
    scores = q @ k.swapaxes(-1, -2) * np.float32(attributes.get("scale") or q.shape[-1] ** -0.5)
    keys, offset = np.arange(k.shape[2]), np.zeros(1, np.int64)
    if mask is not None:
        bias = np.where(mask, 0, -np.inf) if mask.dtype == bool else mask
        missing = [(0, 0)] * (bias.ndim - 1) + [(0, keys.size - bias.shape[-1])]
        scores = scores + np.pad(bias, missing, constant_values=-np.inf)
    if lengths is not None:
        lengths = lengths.reshape(-1, 1, 1, 1)
        scores, offset = np.where(keys < lengths, scores, -np.inf), lengths - q.shape[2]
    if attributes.get("is_causal", 0):
        scores = np.where(keys <= np.arange(q.shape[2])[:, None] + offset, scores, -np.inf)
    return largest_score(node, [scores])


def _is_plain_attention(node: onnx.NodeProto) -> bool:
    """Return True for an ONNX Attention without past keys, which the device does not support."""
    return node.op_type == "Attention" and node.domain == "" and not any(node.input[4:6])


def _is_plain_lstm(node: onnx.NodeProto) -> bool:
    own = {item.name for item in node.attribute}
    extra = [name for index in (4, 7) for name in node.input[index : index + 1] if name]
    return node.op_type == "LSTM" and node.domain == "" and not own.intersection(_OTHERS) and not extra


def largest_cell(node: onnx.NodeProto, values: list[np.ndarray | None]) -> float:
    """Return the largest absolute cell value of an LSTM node.

    `values` are its inputs in the order of ONNX: X, W, R, B, sequence_lens, initial_h and initial_c; None if left out.
    """
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
            # The sigmoid as a tanh, which does not overflow; gates are in the order of ONNX: i, o, f, c.
            i, o, f = 0.5 + 0.5 * np.tanh(gates[:, : 3 * size].reshape(-1, 3, size) / 2).swapaxes(0, 1)
            c = f * c + i * np.tanh(gates[:, 3 * size :])
            h = o * np.tanh(c)
            most = max(most, float(np.abs(c).max()))
    return most


_FUNCTIONS = {"LSTM": largest_cell, "Attention": largest_attended, "Softmax": largest_score}
"""Function that computes the largest value inside a node, by operator."""
