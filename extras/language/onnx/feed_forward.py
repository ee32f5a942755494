"""Feed-forward networks of a graph: which product is the gate, found by trying."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.extras.language.compiler.model import Linear, rows
from weft.extras.language.onnx.norms import close
from weft.extras.language.onnx.structure import Half
from weft.extras.language.onnx.texts import Texts

_TOKENS = 4
_CLOSE = 1e-5
"""How far a GELU may be off: that by the error function is farther."""
_SIZES = np.array([0.3, 1.0, 3.0, 6.0], np.float32)[:, None]
"""How large the elements of each token are."""


def read(texts: Texts, half: Half) -> tuple[Linear | None, Linear]:
    """The gate, None if there is none, and the other product in front.

    Raises
    ------
    CompileError
        If what is between the products is neither silu(gate) * up nor gelu(up).
    """
    inner, first = half.last.inputs, half.first
    nodes = texts.trials.needed([half.last.source], [part.output for part in first], shapes=False)
    where = nodes[-1].label if nodes else half.last.node.label
    random = np.random.default_rng(4)
    given = {
        part.output: random.normal(0, 1, (_TOKENS, part.outputs)).astype(np.float32) * _SIZES
        for part in first
    }
    (found,) = texts.values([half.last.source], given, _TOKENS)
    found = found.reshape(_TOKENS, -1)
    values = [given[part.output].astype(np.float64) for part in first]
    if len(first) == 2 and {part.outputs for part in first} == {inner}:
        for gate, up in ((0, 1), (1, 0)):
            if close(found, silu(values[gate]) * values[up]):
                return first[gate].linear, first[up].linear
    elif len(first) == 1 and first[0].outputs == 2 * inner:
        for gate, up in ((0, inner), (inner, 0)):
            whole = values[0]
            if close(found, silu(whole[:, gate : gate + inner]) * whole[:, up : up + inner]):
                return _rows(first[0].linear, gate, inner), _rows(first[0].linear, up, inner)
    elif len(first) == 1 and first[0].outputs == inner:
        if (np.abs(found - gelu(values[0])) <= _CLOSE * (1 + np.abs(values[0]))).all():
            return None, first[0].linear
        known = _known(found, values[0])
        raise CompileError(
            f"the feed-forward network up to {where} computes {known}; weft expects the GELU by the hyperbolic "
            "tangent where there is no gate"
        )
    raise CompileError(
        f"the feed-forward network up to {where} is not silu(gate) * up of two products with {inner:,} elements, "
        "which weft expects; experts and other functions are not supported"
    )


def silu(x: np.ndarray) -> np.ndarray:
    """x times its sigmoid."""
    return x / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    """With the hyperbolic tangent."""
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


_OTHERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ReLU": lambda x: np.maximum(x, 0),
    "SiLU": silu,
    "its input itself": lambda x: x,
}


def _known(found: np.ndarray, x: np.ndarray) -> str:
    names = [name for name, function in _OTHERS.items() if close(found, function(x))]
    return names[0] if names else "another function, the GELU by the error function for example"


def _rows(linear: Linear, start: int, count: int) -> Linear:
    bias = None if linear.bias is None else linear.bias[start : start + count]
    return Linear(rows(linear.weight, start, start + count), bias)
