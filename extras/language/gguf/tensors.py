"""Tensors of a GGUF file, with checks of shape and type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.model import Linear, Matrix, Norm, dense
from weft.extras.language.gguf.blocks import READABLE_TYPES, decode, is_finite
from weft.extras.language.gguf.file import StoredTensor


@dataclass(frozen=True)
class Size:
    """Size that metadata gives, with its origin for messages."""

    value: int
    description: str

    def __mul__(self, other: Size) -> Size:
        return Size(self.value * other.value, f"{self.description} x {other.description}")

    def __add__(self, other: Size) -> Size:
        return Size(self.value + other.value, f"{self.description} + {other.description}")

    def __str__(self) -> str:
        return self.description


def size(key: str, value: int) -> Size:
    """Return the size that the metadata `key` gives."""
    return Size(value, f"{key} {value:,}")


class Tensors:
    """Typed access to tensors, which also records the tensors that were looked up.

    Every method raises `CompileError` if a tensor is missing, has another shape, is of a type that weft does not read,
    or has elements that are not finite.
    """

    def __init__(self, stored: Mapping[str, StoredTensor]) -> None:
        self._stored = stored
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def unused(self) -> list[str]:
        """Return the names of tensors that were never looked up."""
        return [name for name in self._stored if name not in self._used]

    def matrix(self, name: str, rows: Size, columns: Size) -> Matrix:
        stored = self._look_up(name)
        if stored.shape != (rows.value, columns.value):
            raise CompileError(
                f"{stored.label} has shape {'x'.join(map(str, stored.shape))}; it must have {rows.value:,} rows "
                f"({rows}) and {columns.value:,} columns ({columns})"
            )
        return self._decode(stored, stored.shape)

    def vector(self, name: str, length: Size) -> np.ndarray:
        """Return a float32 vector of shape (length,)."""
        stored = self._look_up(name)
        if stored.shape != (length.value,):
            raise CompileError(
                f"{stored.label} has shape {'x'.join(map(str, stored.shape))}; it must have {length.value:,} elements "
                f"({length})"
            )
        return dense(self._decode(stored, (1, length.value))).reshape(-1)

    def linear(self, name: str, outputs: Size, inputs: Size, *, bias: bool) -> Linear:
        """Return a matrix with its bias; the bias is optional unless `bias` is set."""
        weight = self.matrix(f"{name}.weight", outputs, inputs)
        has_bias = bias or f"{name}.bias" in self
        return Linear(weight, self.vector(f"{name}.bias", outputs) if has_bias else None)

    def norm(self, name: str, width: Size, *, bias: bool) -> Norm:
        weight = self.vector(f"{name}.weight", width)
        return Norm(weight, self.vector(f"{name}.bias", width) if bias else None)

    def _look_up(self, name: str) -> StoredTensor:
        if name not in self._stored:
            raise CompileError(
                f"the file has no tensor {name!r}, which a model of its architecture must have"
            )
        self._used.add(name)
        return self._stored[name]

    def _decode(self, stored: StoredTensor, shape: tuple[int, int]) -> Matrix:
        if stored.kind not in READABLE_TYPES:
            raise CompileError(
                f"{stored.label} has type {stored.kind}; weft reads {', '.join(READABLE_TYPES)}: convert the file to "
                "one of these, as 'llama-quantize --allow-requantize IN OUT Q8_0' of llama.cpp does"
            )
        matrix = decode(stored.content, stored.kind, shape)
        if not is_finite(matrix):
            raise CompileError(f"{stored.label} has elements that are infinite or not a number (NaN)")
        return matrix
