"""Weights that a file holds as integers: their float values, and their exact form in int8 if there is one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from weft.compiler.errors import CompileError

PACKED_BITS = (2, 4, 8)
"""Widths of MatMulNBits weights that weft reads: those that divide a byte."""
_LEAST_BLOCK = 16


@dataclass(frozen=True, eq=False)
class Integers:
    """Constant ``values * scale``.

    Attributes
    ----------
    values : ndarray of int16
        Integers minus their zero points.
    scale : ndarray of float32
        Scales, in a shape that broadcasts to `values`.
    kind : str
        Type in the file, for reports: "uint4 in blocks of 32".
    """

    values: np.ndarray
    scale: np.ndarray
    kind: str

    @property
    def floats(self) -> np.ndarray:
        """Float32 values, rounded as by DequantizeLinear."""
        return np.asarray(self.values.astype(np.float32) * self.scale)

    def transpose(self) -> Integers:
        """Return the transpose of a matrix."""
        return replace(self, values=self.values.T, scale=np.broadcast_to(self.scale, self.values.shape).T)

    def by_channel(self, axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the constant as int8 with one scale for each channel along `axis`.

        Returns
        -------
        values : ndarray of int8
            Shape of the constant; meaningless for channels that are not exact.
        scales : ndarray of float32 (channels,)
            At least 0.
        exact : ndarray of bool (channels,)
            True for channels with a single scale and integers within int8: `values` times `scales` equals `floats`.
        """
        count = self.values.shape[axis]
        steps = np.moveaxis(np.broadcast_to(self.scale, self.values.shape), axis, 0).reshape(count, -1)
        # Scales on the device are positive: a negative sign moves into the values.
        signs = np.sign(steps[:, 0]).astype(np.int16)
        shape = [1] * self.values.ndim
        shape[axis] = count
        values = self.values * signs.reshape(shape)
        rows = np.moveaxis(values, axis, 0).reshape(count, -1)
        exact = (steps == steps[:, :1]).all(1) & (rows.min(1) >= -128) & (rows.max(1) <= 127)
        return values.astype(np.int8), np.abs(steps[:, 0]), exact


@dataclass(eq=False)
class Remembered:
    """Integers of constants, found by their float values, because names change on the way to the quantiser."""

    _by_floats: dict[bytes, Integers] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._by_floats)

    def add(self, integers: Integers) -> np.ndarray:
        """Remember a constant. Returns its float values."""
        floats = integers.floats
        self._by_floats.setdefault(_key(floats), integers)
        return floats

    def find(self, floats: np.ndarray) -> Integers | None:
        """Return the integers of a constant or of its transpose; None if the file did not hold it as integers."""
        if floats.dtype != np.float32:
            return None
        integers = self._by_floats.get(_key(floats))
        if integers is None and floats.ndim == 2:
            transposed = self._by_floats.get(_key(floats.T))
            integers = None if transposed is None else transposed.transpose()
        return integers


def _key(floats: np.ndarray) -> bytes:
    array = np.ascontiguousarray(floats)
    return hashlib.blake2b(array.tobytes(), digest_size=16, key=repr(array.shape).encode()).digest()


def check_scales(label: str, scales: np.ndarray) -> np.ndarray:
    """Return the scales. Raises `CompileError` if they are not float32 or not finite."""
    if scales.dtype != np.float32:
        raise CompileError(
            f"{label} has scales of {scales.dtype}; weft reads float32: export the model in float32"
        )
    bad = scales[~np.isfinite(scales)]
    if bad.size:
        raise CompileError(f"{label} has scale {bad.flat[0]:g}; scales of weights must be finite numbers")
    return scales


def linear(
    label: str,
    values: np.ndarray,
    scale: np.ndarray,
    zero: np.ndarray | None,
    axis: int,
    block: int,
) -> Integers:
    """Return the constant that DequantizeLinear reads, with one scale, one along `axis`, or one per `block` elements.

    Shapes must agree already. Raises `CompileError` for scales that are not finite.
    """
    wide = values.astype(np.int16)
    steps = _spread(check_scales(label, scale), values.shape, axis, block)
    if zero is not None and zero.any():
        wide = wide - _spread(zero.astype(np.int16), values.shape, axis, block)
    kind = str(values.dtype)
    return Integers(wide, steps, f"{kind} in blocks of {block}" if block else kind)


def _spread(parameters: np.ndarray, shape: Sequence[int], axis: int, block: int) -> np.ndarray:
    """Reshape scales or zero points so that they broadcast to the shape of the values."""
    if block:
        return np.repeat(parameters, block, axis).take(range(shape[axis]), axis)
    sizes = [1] * len(shape)
    if parameters.size > 1:
        sizes[axis] = parameters.size
    return parameters.reshape(sizes)


@dataclass(frozen=True)
class Packing:
    """Layout of an (inner, outputs) matrix of MatMulNBits: `bits` per number, in blocks along the inner dimension."""

    inner: int
    outputs: int
    bits: int
    block: int

    @property
    def blocks(self) -> int:
        return -(-self.inner // self.block)

    def check(self, label: str) -> None:
        """Raise `CompileError` for a layout that weft does not read."""
        for name, value in (("K", self.inner), ("N", self.outputs)):
            if value < 1:
                raise CompileError(f"{label} has {name} {value}; it must be at least 1")
        if self.bits not in PACKED_BITS:
            raise CompileError(f"{label} has weights of {self.bits} bits; weft reads 2, 4 and 8")
        if self.block < _LEAST_BLOCK or self.block & (self.block - 1):
            raise CompileError(f"{label} has block_size {self.block}; it must be a power of two from 16 on")

    def weights(
        self, label: str, packed: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None
    ) -> Integers:
        """Unpack the matrix, as (inner, outputs).

        Parameters
        ----------
        packed : ndarray of uint8 (outputs, blocks, bytes of a block)
            The first number is in the lowest bits.
        scales : ndarray of float32
            Shape (outputs, blocks), or the same number of elements.
        zeros : ndarray of uint8 or float32, or None
            Zero points: packed like the weights, each output in whole bytes; or one float per scale; None for half of
            the range.

        Raises
        ------
        CompileError
            If shapes or types contradict K, N, bits and block_size, or numbers are not finite.
        """
        self.check(label)
        shape = (self.outputs, self.blocks, self.block * self.bits // 8)
        if packed.dtype != np.uint8 or packed.shape != shape:
            raise CompileError(
                f"{label} has weights of {packed.dtype} and shape {_text(packed.shape)}; K, N, bits and block_size "
                f"ask for uint8 of shape {_text(shape)}"
            )
        if scales.size != self.outputs * self.blocks:
            raise CompileError(
                f"{label} has {scales.size:,} scales for {self.outputs * self.blocks:,} blocks of {self.block}"
            )
        steps = check_scales(label, scales).reshape(self.outputs, self.blocks)
        values = _unpack(packed, self.bits).astype(np.int16).reshape(self.outputs, -1)[:, : self.inner]
        values = values - self._repeat(self._zeros(label, zeros))
        kind = f"uint{self.bits} in blocks of {self.block}"
        return Integers(values.T, self._repeat(steps).T, kind)

    def _repeat(self, of_blocks: np.ndarray) -> np.ndarray:
        """Repeat values of (outputs, blocks) for each weight: (outputs, inner)."""
        return np.repeat(of_blocks, self.block, 1)[:, : self.inner]

    def _zeros(self, label: str, zeros: np.ndarray | None) -> np.ndarray:
        """Return the zero points, int16 (outputs, blocks)."""
        if zeros is None:
            return np.full((self.outputs, self.blocks), 1 << self.bits - 1, np.int16)
        if zeros.dtype == np.uint8:
            row = -(-self.blocks * self.bits // 8)  # each output starts at a byte
            if zeros.size != self.outputs * row:
                raise CompileError(
                    f"{label} has {zeros.size:,} bytes of zero points; {self.outputs:,} outputs of {self.blocks:,} "
                    f"blocks take {self.outputs * row:,}"
                )
            integers = _unpack(zeros.reshape(self.outputs, row), self.bits)
            return integers[:, : self.blocks].astype(np.int16)
        integers = np.rint(zeros.astype(np.float64)) if zeros.dtype.kind == "f" else np.full(1, np.nan)
        fits = zeros.size == self.outputs * self.blocks and bool((np.abs(integers) <= 1 << self.bits).all())
        if not fits or not (integers == zeros).all():
            raise CompileError(
                f"{label} has zero points of {zeros.dtype} and shape {_text(zeros.shape)} that are no whole numbers of "
                f"{self.bits} bits, one for each block; weft reads packed uint8, and floats that are whole"
            )
        return integers.astype(np.int16).reshape(self.outputs, self.blocks)


def _unpack(packed: np.ndarray, bits: int) -> np.ndarray:
    """Split bytes into numbers along the last axis, lowest bits first; uint8."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(numbers).reshape(*packed.shape[:-1], -1)


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "()"
