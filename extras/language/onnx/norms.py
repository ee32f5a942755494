"""Recognition of norms in a graph, and their weights, biases and epsilons, by running them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.model import Norm
from weft.extras.language.onnx.products import Weights
from weft.extras.language.onnx.trials import Texts

TOLERANCE = 2e-4
"""Relative tolerance for float32 results of equivalent computations."""
_TOKENS = 5
_SMALL = 1e-6
"""Elements that are small compared with the root of any epsilon."""


def is_close(actual: np.ndarray, expected: np.ndarray, tolerance: float = TOLERANCE) -> bool:
    """Return whether arrays agree within a tolerance relative to the largest element."""
    if actual.size != expected.size:
        return False
    return bool(
        np.abs(actual.reshape(expected.shape) - expected).max()
        <= tolerance * max(np.abs(expected).max(), 1e-30)
    )


def _fit_factor(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the row of factors from `x` to `y`, by least squares."""
    return np.sum(x * y, axis=0) / np.maximum(np.sum(x * x, axis=0), 1e-30)


class Norms:
    """Reader of the norms of a graph.

    Parameters
    ----------
    texts : Texts
    """

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._random = np.random.default_rng(0)

    def read(self, stream: str, normalised: str) -> tuple[Norm, float]:
        """Return the norm between two values, and its epsilon.

        Raises
        ------
        CompileError
            If the function is neither RMSNorm nor LayerNorm.
        """
        width = self._texts.structure.ends[stream]
        x = self._random.normal(0, 3, (_TOKENS, width)).astype(np.float32)
        y = self._run(stream, normalised, x)
        if y.shape != x.shape:
            raise self._error(stream, normalised, f"it makes rows of {y.shape[-1]:,} elements of {width:,}")
        norm_and_epsilon = self._try_rms_norm(stream, normalised, x, y) or self._try_layer_norm(
            stream, normalised, x, y
        )
        if norm_and_epsilon is None:
            raise self._error(stream, normalised, "it computes something else")
        return norm_and_epsilon

    def _try_rms_norm(
        self, stream: str, normalised: str, x: np.ndarray, y: np.ndarray
    ) -> tuple[Norm, float] | None:
        exact = x.astype(np.float64)
        magnitude = np.sqrt(np.mean(exact**2, axis=1, keepdims=True))
        weight = self._find_constant(stream, normalised, _fit_factor(exact / magnitude, y))
        if not is_close(y, exact / magnitude * weight):
            return None
        # For such small inputs RMSNorm returns about ``x * weight / sqrt(epsilon)``.
        small_input = np.full((1, x.shape[1]), _SMALL, np.float32)
        small_output = self._run(stream, normalised, small_input).astype(np.float64)
        epsilon = self._find_epsilon(stream, normalised, small_output, weight, _SMALL)
        norm = Norm(weight)
        # Inputs of about the root of epsilon show whether epsilon is added to the mean square.
        medium_input = x * np.float32(np.sqrt(epsilon))
        magnitude = np.sqrt(np.mean(medium_input.astype(np.float64) ** 2, axis=1, keepdims=True) + epsilon)
        return (
            (norm, epsilon)
            if is_close(self._run(stream, normalised, medium_input), medium_input / magnitude * weight)
            else None
        )

    def _try_layer_norm(
        self, stream: str, normalised: str, x: np.ndarray, y: np.ndarray
    ) -> tuple[Norm, float] | None:
        # LayerNorm of zeros is its bias.
        bias = self._find_constant(
            stream, normalised, self._run(stream, normalised, np.zeros_like(x[:1]))[0].astype(np.float64)
        )
        exact = x.astype(np.float64)
        exact -= exact.mean(axis=1, keepdims=True)
        magnitude = np.sqrt(np.mean(exact**2, axis=1, keepdims=True))
        weight = self._find_constant(stream, normalised, _fit_factor(exact / magnitude, y - bias))
        if not is_close(y, exact / magnitude * weight + bias):
            return None
        # Alternating signs have mean 0, so that LayerNorm leaves them in place.
        small_input = np.full((1, x.shape[1]), _SMALL, np.float32)
        small_input[0, ::2] *= -1
        if x.shape[1] % 2:
            small_input[0, -1] = 0
        small_output = self._run(stream, normalised, small_input).astype(np.float64) - bias
        epsilon = self._find_epsilon(
            stream, normalised, small_output[:, 1:2] / weight[1:2] / _SMALL, np.ones(1), 1.0, _SMALL
        )
        medium_input = x * np.float32(np.sqrt(epsilon))
        exact = medium_input.astype(np.float64) - medium_input.mean(axis=1, keepdims=True)
        magnitude = np.sqrt(np.mean(exact**2, axis=1, keepdims=True) + epsilon)
        matches = is_close(self._run(stream, normalised, medium_input), exact / magnitude * weight + bias)
        return (Norm(weight, bias), epsilon) if matches else None

    def _find_epsilon(
        self,
        stream: str,
        normalised: str,
        small_output: np.ndarray,
        weight: np.ndarray,
        x: float,
        size: float = _SMALL,
    ) -> float:
        """Return epsilon from outputs for inputs `x`: a constant of the graph if one is near, else the measured
        value.
        """
        with np.errstate(all="ignore"):
            ratios = small_output / weight / x
            measured = 1 / float(np.median(ratios[np.isfinite(ratios)])) ** 2 - size**2
        if not np.isfinite(measured) or measured <= 0:
            raise self._error(stream, normalised, "its epsilon is zero, or negative")
        candidates = [
            value
            for value in self._scalar_constants(stream, normalised)
            if abs(value - measured) <= 0.02 * measured
        ]
        return min(candidates, key=lambda value: abs(value - measured), default=measured)

    def _scalar_constants(self, stream: str, normalised: str) -> Iterator[float]:
        """Yield the scalar constants of the nodes between the two values."""
        constants = self._texts.graph.network.constants
        for node in self._texts.trials.needed_nodes([normalised], [stream], shapes=False):
            if isinstance(epsilon := node.attributes.get("epsilon"), float):
                # Six digits, because 1e-5 in float32 is 9.99999975e-06.
                yield float(f"{epsilon:.6g}")
            for name in node.reads:
                if name in constants and constants[name].size == 1 and constants[name].dtype.kind == "f":
                    yield float(f"{float(constants[name].reshape(())):.6g}")

    def _find_constant(self, stream: str, normalised: str, measured: np.ndarray) -> np.ndarray:
        """Return the constant of the graph that equals a measured row within rounding, else the measured row."""
        graph = self._texts.graph
        for node in self._texts.trials.needed_nodes([normalised], [stream], shapes=False):
            for name in node.reads:
                if name in graph.fixed:
                    value = Weights(graph).value(name)
                    if (
                        value.size == measured.size
                        and value.dtype.kind == "f"
                        and is_close(value.reshape(-1), measured)
                    ):
                        return value.reshape(-1).astype(np.float32)
        return measured.astype(np.float32)

    def _run(self, stream: str, normalised: str, x: np.ndarray) -> np.ndarray:
        if stream == normalised:
            return x
        (value,) = self._texts.values([normalised], {stream: x}, len(x))
        return value.reshape(len(x), -1)

    def _error(self, stream: str, normalised: str, reason: str) -> CompileError:
        nodes = self._texts.trials.needed_nodes([normalised], [stream], shapes=False)
        place = nodes[-1].label if nodes else f"the product that reads the stream {stream!r}"
        return CompileError(
            f"{place}: weft expects RMSNorm or LayerNorm between {stream!r} and {normalised!r}; {reason}"
        )
