"""What norms multiply by and add, found by trying them out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.extras.language.compiler.model import Norm
from weft.extras.language.onnx.products import Weights
from weft.extras.language.onnx.texts import Texts

CLOSE = 2e-4
"""How far results of float32 may be off that come to the same, relative to the largest."""
_TOKENS = 5
_SMALL = 1e-6
"""Elements of vectors that are small beside the root of any epsilon."""


def close(found: np.ndarray, wanted: np.ndarray, tolerance: float = CLOSE) -> bool:
    """Whether numbers are the same but for rounding."""
    if found.size != wanted.size:
        return False
    return bool(
        np.abs(found.reshape(wanted.shape) - wanted).max() <= tolerance * max(np.abs(wanted).max(), 1e-30)
    )


def _factor(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The row that `x` is multiplied by where `y` comes of it, by least squares."""
    return np.sum(x * y, axis=0) / np.maximum(np.sum(x * x, axis=0), 1e-30)


class Norms:
    """Reads norms of a graph.

    Parameters
    ----------
    texts : Texts
    """

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._random = np.random.default_rng(0)

    def read(self, stream: str, normed: str) -> tuple[Norm, float]:
        """The norm between two values, and its epsilon.

        Raises
        ------
        CompileError
            If it is another function than RMSNorm or LayerNorm.
        """
        width = self._texts.structure.ends[stream]
        x = self._random.normal(0, 3, (_TOKENS, width)).astype(np.float32)
        y = self._value(stream, normed, x)
        if y.shape != x.shape:
            raise self._strange(stream, normed, f"it makes rows of {y.shape[-1]:,} elements of {width:,}")
        whole = self._rms(stream, normed, x, y) or self._layer_norm(stream, normed, x, y)
        if whole is None:
            raise self._strange(stream, normed, "it computes something else")
        return whole

    def _rms(self, stream: str, normed: str, x: np.ndarray, y: np.ndarray) -> tuple[Norm, float] | None:
        exact = x.astype(np.float64)
        size = np.sqrt(np.mean(exact**2, axis=1, keepdims=True))
        weight = self._row(stream, normed, _factor(exact / size, y))
        if not close(y, exact / size * weight):
            return None
        small = np.full((1, x.shape[1]), _SMALL, np.float32)
        answer = self._value(stream, normed, small).astype(np.float64)
        epsilon = self._epsilon(stream, normed, answer, weight, _SMALL)
        norm = Norm(weight)
        middle = x * np.float32(np.sqrt(epsilon))
        size = np.sqrt(np.mean(middle.astype(np.float64) ** 2, axis=1, keepdims=True) + epsilon)
        return (norm, epsilon) if close(self._value(stream, normed, middle), middle / size * weight) else None

    def _layer_norm(
        self, stream: str, normed: str, x: np.ndarray, y: np.ndarray
    ) -> tuple[Norm, float] | None:
        bias = self._row(
            stream, normed, self._value(stream, normed, np.zeros_like(x[:1]))[0].astype(np.float64)
        )
        exact = x.astype(np.float64)
        exact -= exact.mean(axis=1, keepdims=True)
        size = np.sqrt(np.mean(exact**2, axis=1, keepdims=True))
        weight = self._row(stream, normed, _factor(exact / size, y - bias))
        if not close(y, exact / size * weight + bias):
            return None
        small = np.full((1, x.shape[1]), _SMALL, np.float32)
        small[0, ::2] *= -1
        if x.shape[1] % 2:
            small[0, -1] = 0
        answer = self._value(stream, normed, small).astype(np.float64) - bias
        epsilon = self._epsilon(
            stream, normed, answer[:, 1:2] / weight[1:2] / _SMALL, np.ones(1), 1.0, _SMALL
        )
        middle = x * np.float32(np.sqrt(epsilon))
        exact = middle.astype(np.float64) - middle.mean(axis=1, keepdims=True)
        size = np.sqrt(np.mean(exact**2, axis=1, keepdims=True) + epsilon)
        fits = close(self._value(stream, normed, middle), exact / size * weight + bias)
        return (Norm(weight, bias), epsilon) if fits else None

    def _epsilon(
        self, stream: str, normed: str, answer: np.ndarray, weight: np.ndarray, x: float, size: float = _SMALL
    ) -> float:
        """From vectors with small elements `x`: a number of the graph if one is near, else what was measured."""
        with np.errstate(all="ignore"):
            ratios = answer / weight / x
            measured = 1 / float(np.median(ratios[np.isfinite(ratios)])) ** 2 - size**2
        if not np.isfinite(measured) or measured <= 0:
            raise self._strange(stream, normed, "its epsilon is zero, or negative")
        candidates = [
            value for value in self._numbers(stream, normed) if abs(value - measured) <= 0.02 * measured
        ]
        return min(candidates, key=lambda value: abs(value - measured), default=measured)

    def _numbers(self, stream: str, normed: str) -> Iterator[float]:
        """Numbers that the nodes in between have."""
        constants = self._texts.graph.network.constants
        for node in self._texts.trials.needed([normed], [stream], shapes=False):
            if isinstance(epsilon := node.attributes.get("epsilon"), float):
                yield float(f"{epsilon:.6g}")
            for name in node.reads:
                if name in constants and constants[name].size == 1 and constants[name].dtype.kind == "f":
                    yield float(f"{float(constants[name].reshape(())):.6g}")

    def _row(self, stream: str, normed: str, measured: np.ndarray) -> np.ndarray:
        """A constant of the graph that is the same as what was measured, but for rounding; else that itself."""
        graph = self._texts.graph
        for node in self._texts.trials.needed([normed], [stream], shapes=False):
            for name in node.reads:
                if name in graph.fixed:
                    value = Weights(graph).value(name)
                    if (
                        value.size == measured.size
                        and value.dtype.kind == "f"
                        and close(value.reshape(-1), measured)
                    ):
                        return value.reshape(-1).astype(np.float32)
        return measured.astype(np.float32)

    def _value(self, stream: str, normed: str, x: np.ndarray) -> np.ndarray:
        if stream == normed:
            return x
        (value,) = self._texts.values([normed], {stream: x}, len(x))
        return value.reshape(len(x), -1)

    def _strange(self, stream: str, normed: str, what: str) -> CompileError:
        nodes = self._texts.trials.needed([normed], [stream], shapes=False)
        where = nodes[-1].label if nodes else f"the product that reads the stream {stream!r}"
        return CompileError(
            f"{where}: weft expects RMSNorm or LayerNorm between {stream!r} and {normed!r}; {what}"
        )
