"""The tensors of a file by name, with the shapes that metadata asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.extras.language.compiler.model import Linear, Matrix, Norm, dense
from weft.extras.language.gguf.blocks import KINDS, decode, finite
from weft.extras.language.gguf.file import Stored


@dataclass(frozen=True)
class Size:
    """A size, and where in the file it comes from, in words."""

    value: int
    words: str

    def __mul__(self, other: Size) -> Size:
        return Size(self.value * other.value, f"{self.words} x {other.words}")

    def __add__(self, other: Size) -> Size:
        return Size(self.value + other.value, f"{self.words} + {other.words}")

    def __str__(self) -> str:
        return self.words


def size(key: str, value: int) -> Size:
    """What the metadata `key` says."""
    return Size(value, f"{key} {value:,}")


class Tensors:
    """Looks up tensors, and remembers which somebody has asked for.

    Every method raises `CompileError` for a tensor that is missing, of another shape, of a type that is not read, or
    that has elements that are no finite numbers.
    """

    def __init__(self, stored: Mapping[str, Stored]) -> None:
        self._stored = stored
        self._asked: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def unused(self) -> list[str]:
        """Names of tensors that nobody has asked for."""
        return [name for name in self._stored if name not in self._asked]

    def matrix(self, name: str, rows: Size, columns: Size) -> Matrix:
        stored = self._get(name)
        if stored.shape != (rows.value, columns.value):
            raise CompileError(
                f"{stored.label} has shape {'x'.join(map(str, stored.shape))}; it must have {rows.value:,} rows "
                f"({rows}) and {columns.value:,} columns ({columns})"
            )
        return self._decoded(stored, stored.shape)

    def vector(self, name: str, length: Size) -> np.ndarray:
        """float32 of shape (length,)."""
        stored = self._get(name)
        if stored.shape != (length.value,):
            raise CompileError(
                f"{stored.label} has shape {'x'.join(map(str, stored.shape))}; it must have {length.value:,} elements "
                f"({length})"
            )
        return dense(self._decoded(stored, (1, length.value))).reshape(-1)

    def linear(self, name: str, outputs: Size, inputs: Size, *, bias: bool) -> Linear:
        """A product; it may have a bias, and with `bias` it must."""
        weight = self.matrix(f"{name}.weight", outputs, inputs)
        there = bias or f"{name}.bias" in self
        return Linear(weight, self.vector(f"{name}.bias", outputs) if there else None)

    def norm(self, name: str, width: Size, *, bias: bool) -> Norm:
        weight = self.vector(f"{name}.weight", width)
        return Norm(weight, self.vector(f"{name}.bias", width) if bias else None)

    def _get(self, name: str) -> Stored:
        if name not in self._stored:
            raise CompileError(
                f"the file has no tensor {name!r}, which a model of its architecture must have"
            )
        self._asked.add(name)
        return self._stored[name]

    def _decoded(self, stored: Stored, shape: tuple[int, int]) -> Matrix:
        if stored.kind not in KINDS:
            raise CompileError(
                f"{stored.label} has type {stored.kind}; weft reads {', '.join(KINDS)}: convert the file to one of "
                "these, as 'llama-quantize --allow-requantize IN OUT Q8_0' of llama.cpp does"
            )
        matrix = decode(stored.content, stored.kind, shape)
        if not finite(matrix):
            raise CompileError(f"{stored.label} has elements that are infinite or not a number (NaN)")
        return matrix
