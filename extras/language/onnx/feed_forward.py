"""Recognition of feed-forward networks in a graph: which product is the gate, found by running them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.model import Linear, rows
from weft.extras.language.onnx.norms import is_close
from weft.extras.language.onnx.structure import Half
from weft.extras.language.onnx.texts import Texts

_TOKENS = 4
_GELU_TOLERANCE = 1e-5
"""Tolerance for GELU by the hyperbolic tangent; GELU by the error function differs by more."""
_INPUT_SCALES = np.array([0.3, 1.0, 3.0, 6.0], np.float32)[:, None]
"""Magnitude of the elements of each token."""


def read(texts: Texts, half: Half) -> tuple[Linear | None, Linear]:
    """Return the gate, or None, and the other product before the activation.

    Raises
    ------
    CompileError
        If the network between the products is neither ``silu(gate) * up`` nor ``gelu(up)``.
    """
    inner_width, first = half.last.inputs, half.first
    nodes = texts.trials.needed([half.last.source], [part.output for part in first], shapes=False)
    place = nodes[-1].label if nodes else half.last.node.label
    random = np.random.default_rng(4)
    inputs = {
        part.output: random.normal(0, 1, (_TOKENS, part.outputs)).astype(np.float32) * _INPUT_SCALES
        for part in first
    }
    (result,) = texts.values([half.last.source], inputs, _TOKENS)
    result = result.reshape(_TOKENS, -1)
    values = [inputs[part.output].astype(np.float64) for part in first]
    if len(first) == 2 and {part.outputs for part in first} == {inner_width}:
        for gate, up in ((0, 1), (1, 0)):
            if is_close(result, silu(values[gate]) * values[up]):
                return first[gate].linear, first[up].linear
    elif len(first) == 1 and first[0].outputs == 2 * inner_width:
        for gate, up in ((0, inner_width), (inner_width, 0)):
            both = values[0]
            if is_close(result, silu(both[:, gate : gate + inner_width]) * both[:, up : up + inner_width]):
                return _take_rows(first[0].linear, gate, inner_width), _take_rows(
                    first[0].linear, up, inner_width
                )
    elif len(first) == 1 and first[0].outputs == inner_width:
        if (np.abs(result - gelu(values[0])) <= _GELU_TOLERANCE * (1 + np.abs(values[0]))).all():
            return None, first[0].linear
        activation = _name_activation(result, values[0])
        raise CompileError(
            f"the feed-forward network up to {place} computes {activation}; weft expects the GELU by the hyperbolic "
            "tangent where there is no gate"
        )
    raise CompileError(
        f"the feed-forward network up to {place} is not silu(gate) * up of two products with {inner_width:,} elements, "
        "which weft expects; experts and other functions are not supported"
    )


def silu(x: np.ndarray) -> np.ndarray:
    """Return x times its sigmoid."""
    return x / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    """Return GELU by the hyperbolic tangent."""
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


_OTHER_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ReLU": lambda x: np.maximum(x, 0),
    "SiLU": silu,
    "its input itself": lambda x: x,
}


def _name_activation(result: np.ndarray, x: np.ndarray) -> str:
    names = [name for name, function in _OTHER_ACTIVATIONS.items() if is_close(result, function(x))]
    return names[0] if names else "another function, the GELU by the error function for example"


def _take_rows(linear: Linear, start: int, count: int) -> Linear:
    bias = None if linear.bias is None else linear.bias[start : start + count]
    return Linear(rows(linear.weight, start, start + count), bias)
