"""Quantisation of values: which real numbers stored integers represent, and how real numbers are rounded to them.

Laws, for every quantisation with finite, positive scales, integers q in range and real numbers x:

- ``quantise(dequantise(q)) == q``: an integer represents itself, because a product of 17 significant bits and a scale
  is off by less than half a step after rounding to float32.
- ``quantise`` is monotonous, and saturates: it never leaves the range of the stored type.
- ``dequantise`` is odd around the zero point.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class Quantisation:
    """Real numbers ``(stored - zero) * scale`` of a value's stored integers, in the arithmetic of the scale's type.

    Attributes
    ----------
    scales : ndarray
        float32, float16 or bfloat16: shape () for the whole value, (n,) along `axis`, or with `block` the shape of the
        value with blocks of `axis` as elements. Their type is that of the real numbers.
    zeros : ndarray
        Zero points, of the stored type and the shape of `scales`.
    axis : int
        Dimension along which parameters vary; 0 if they do not.
    block : int
        Elements along `axis` that share parameters; 0 if each index of `axis` has its own.
    """

    scales: np.ndarray
    zeros: np.ndarray
    axis: int = 0
    block: int = 0

    @property
    def per_tensor(self) -> bool:
        """True if the whole value has one scale and one zero point."""
        return self.scales.ndim == 0

    def transpose(self, perm: tuple[int, ...]) -> Quantisation:
        """Return the quantisation of a value with its axes permuted."""
        return self if self.per_tensor else dataclasses.replace(self, axis=perm.index(self.axis))

    @property
    def dtype(self) -> np.dtype:
        """Type of the stored integers."""
        return self.zeros.dtype

    @cached_property
    def _key(self) -> tuple[object, ...]:
        arrays = ((item.dtype.name, item.shape, item.tobytes()) for item in (self.scales, self.zeros))
        return self.axis, self.block, *arrays

    def __eq__(self, other: object) -> bool:
        """Return whether equal integers represent equal numbers of one type in both."""
        return isinstance(other, Quantisation) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def parameters(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return scales and zero points in forms that broadcast to a value of `shape`."""
        return self._along(self.scales, shape), self._along(self.zeros, shape)

    def _along(self, parameters: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        if parameters.ndim == 0:
            return parameters
        if self.block:
            return np.repeat(parameters, self.block, self.axis).take(range(shape[self.axis]), self.axis)
        return parameters.reshape([-1 if axis == self.axis else 1 for axis in range(len(shape))])

    def dequantise(self, stored: np.ndarray) -> np.ndarray:
        """Return the real numbers of stored integers."""
        scales, zeros = self.parameters(stored.shape)
        real = (stored.astype(np.int64) - zeros.astype(np.int64)).astype(np.float32)
        return np.asarray(real * scales, self.scales.dtype)

    def quantise(self, real: np.ndarray) -> np.ndarray:
        """Return the nearest stored integers, ties to even, with saturation. NaN becomes the least integer."""
        limits = np.iinfo(self.dtype)
        scales, zeros = self.parameters(real.shape)
        with np.errstate(all="ignore"):
            steps = np.rint(real / scales).astype(np.float64)
        bounded = np.clip(
            np.nan_to_num(steps, nan=-np.inf) + zeros.astype(np.float64), limits.min, limits.max
        )
        return np.asarray(bounded.astype(self.dtype))
