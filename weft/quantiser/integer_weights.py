"""Weights that a file holds as integers: what they are as floats, and whether int8 of the device can be the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from weft.compiler.ir.graph import CompileError

PACKED_BITS = (2, 4, 8)
"""Bits of the weights of MatMulNBits that fill whole bytes."""
_LEAST_BLOCK = 16


@dataclass(frozen=True, eq=False)
class Integers:
    """A constant ``values * scale``.

    Attributes
    ----------
    values : ndarray of int16
        Integers less their zero points.
    scale : ndarray of float32
        What broadcasts to `values`.
    kind : str
        Their type in the file, for reports: "uint4 in blocks of 32".
    """

    values: np.ndarray
    scale: np.ndarray
    kind: str

    @property
    def floats(self) -> np.ndarray:
        """The constant in float32, rounded as DequantizeLinear rounds it."""
        return np.asarray(self.values.astype(np.float32) * self.scale)

    def transposed(self) -> Integers:
        """Of a matrix: its transpose."""
        return replace(self, values=self.values.T, scale=np.broadcast_to(self.scale, self.values.shape).T)

    def by_channel(self, axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As int8 with one scale for each channel along `axis`.

        Returns
        -------
        values : ndarray of int8
            In the shape of the constant; meaningless for channels that have no such form.
        scales : ndarray of float32 (channels,)
            At least 0.
        exact : ndarray of bool (channels,)
            Which channels have one scale, and integers that int8 has: `values` times `scales` are the same floats.
        """
        count = self.values.shape[axis]
        steps = np.moveaxis(np.broadcast_to(self.scale, self.values.shape), axis, 0).reshape(count, -1)
        signs = np.sign(steps[:, 0]).astype(np.int16)
        shape = [1] * self.values.ndim
        shape[axis] = count
        values = self.values * signs.reshape(shape)
        rows = np.moveaxis(values, axis, 0).reshape(count, -1)
        exact = (steps == steps[:, :1]).all(1) & (rows.min(1) >= -128) & (rows.max(1) <= 127)
        return values.astype(np.int8), np.abs(steps[:, 0]), exact


@dataclass(eq=False)
class Remembered:
    """The integers of constants, by the floats that they are: whatever becomes of names on the way to the quantiser."""

    _found: dict[bytes, Integers] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._found)

    def add(self, integers: Integers) -> np.ndarray:
        """Remember a constant; returns its floats."""
        floats = integers.floats
        self._found.setdefault(_key(floats), integers)
        return floats

    def find(self, floats: np.ndarray) -> Integers | None:
        """The integers of a constant, or of the transpose of a matrix; None if it was none of integers."""
        if floats.dtype != np.float32:
            return None
        found = self._found.get(_key(floats))
        if found is None and floats.ndim == 2:
            turned = self._found.get(_key(floats.T))
            found = None if turned is None else turned.transposed()
        return found


def _key(floats: np.ndarray) -> bytes:
    whole = np.ascontiguousarray(floats)
    return hashlib.blake2b(whole.tobytes(), digest_size=16, key=repr(whole.shape).encode()).digest()


def check_scales(label: str, scales: np.ndarray) -> np.ndarray:
    """Scales in float32. Raises `CompileError` for any that is not finite, or is none of float32."""
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
    """What DequantizeLinear makes of a constant: one scale, one for each element along `axis`, or one for each `block`.

    Shapes must agree already. Raises `CompileError` for scales that are not finite.
    """
    wide = values.astype(np.int16)
    steps = _spread(check_scales(label, scale), values.shape, axis, block)
    if zero is not None and zero.any():
        wide = wide - _spread(zero.astype(np.int16), values.shape, axis, block)
    kind = str(values.dtype)
    return Integers(wide, steps, f"{kind} in blocks of {block}" if block else kind)


def _spread(given: np.ndarray, shape: Sequence[int], axis: int, block: int) -> np.ndarray:
    """Parameters in a shape that broadcasts to that of the values."""
    if block:
        return np.repeat(given, block, axis).take(range(shape[axis]), axis)
    sizes = [1] * len(shape)
    if given.size > 1:
        sizes[axis] = given.size
    return given.reshape(sizes)


@dataclass(frozen=True)
class Packing:
    """How MatMulNBits packs a matrix of (inner, outputs): numbers of `bits`, in blocks along the inner dimension."""

    inner: int
    outputs: int
    bits: int
    block: int

    @property
    def blocks(self) -> int:
        return -(-self.inner // self.block)

    def check(self, label: str) -> None:
        """Raise `CompileError` for what weft does not read."""
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
        """The matrix, as (inner, outputs).

        Parameters
        ----------
        packed : ndarray of uint8 (outputs, blocks, bytes of a block)
            The first number is in the lowest bits.
        scales : ndarray of float32
            One for each block of each output.
        zeros : ndarray of uint8 or float32, or None
            Zero points: packed as the weights are, those of each output in whole bytes, or one float for each scale;
            None for half of the range.

        Raises
        ------
        CompileError
            If shapes or types are not as K, N, bits and block_size ask for, or numbers are not finite.
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
        values = _unpacked(packed, self.bits).astype(np.int16).reshape(self.outputs, -1)[:, : self.inner]
        values = values - self._repeated(self._zeros(label, zeros))
        kind = f"uint{self.bits} in blocks of {self.block}"
        return Integers(values.T, self._repeated(steps).T, kind)

    def _repeated(self, given: np.ndarray) -> np.ndarray:
        """One of each block for each weight: (outputs, inner)."""
        return np.repeat(given, self.block, 1)[:, : self.inner]

    def _zeros(self, label: str, given: np.ndarray | None) -> np.ndarray:
        """The zero points, int16 (outputs, blocks)."""
        if given is None:
            return np.full((self.outputs, self.blocks), 1 << self.bits - 1, np.int16)
        if given.dtype == np.uint8:
            row = -(-self.blocks * self.bits // 8)
            if given.size != self.outputs * row:
                raise CompileError(
                    f"{label} has {given.size:,} bytes of zero points; {self.outputs:,} outputs of {self.blocks:,} "
                    f"blocks take {self.outputs * row:,}"
                )
            whole = _unpacked(given.reshape(self.outputs, row), self.bits)
            return whole[:, : self.blocks].astype(np.int16)
        whole = np.rint(given.astype(np.float64)) if given.dtype.kind == "f" else np.full(1, np.nan)
        fits = given.size == self.outputs * self.blocks and bool((np.abs(whole) <= 1 << self.bits).all())
        if not fits or not (whole == given).all():
            raise CompileError(
                f"{label} has zero points of {given.dtype} and shape {_text(given.shape)} that are no whole numbers of "
                f"{self.bits} bits, one for each block; weft reads packed uint8, and floats that are whole"
            )
        return whole.astype(np.int16).reshape(self.outputs, self.blocks)


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """The numbers in bytes, along the last axis, the lowest bits first; uint8."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(numbers).reshape(*packed.shape[:-1], -1)


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "()"
