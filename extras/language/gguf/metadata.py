"""Metadata by key, with the type and the range that are wanted."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.extras.language.gguf.file import Value
from weft.hdl.schema import short_repr

LARGEST = 1 << 30
"""The largest integer that any number of a model may be."""


class Metadata:
    """Looks up metadata, and remembers which keys somebody has asked for.

    `integer` and `number` also take arrays with an element for each layer, if all of these are the same.
    """

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values
        self._asked: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def unused(self, prefix: str) -> list[str]:
        """Keys that begin with `prefix`, and that nobody has asked for."""
        return [key for key in self._values if key.startswith(prefix) and key not in self._asked]

    def integer(self, key: str, default: int | None = None, low: int = 1, high: int = LARGEST) -> int:
        """An integer from `low` to `high`."""
        value = self._one(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "an integer")
        if not low <= value <= high:
            raise self._wrong(key, value, f"an integer from {low:,} to {high:,}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above zero."""
        value = self._one(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        if not (math.isfinite(value) and value > 0):
            raise self._wrong(key, value, "a number above zero")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "a truth value")
        return value

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        value = self._get(key, default)
        if isinstance(value, np.ndarray) and not value.size:
            return ()  # an empty array may have any type
        if not isinstance(value, tuple):
            raise self._wrong(key, value, "an array of texts")
        return value

    def numbers(self, key: str, kinds: str, words: str) -> np.ndarray:
        """An array of numbers whose types are of `kinds` (numpy's letters), as `words` says it."""
        value = self._get(key, None)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
            raise self._wrong(key, value, words)
        return value

    def value(self, key: str) -> Value | None:
        """Whatever is there, else None."""
        self._asked.add(key)
        return self._values.get(key)

    def _get(self, key: str, default: Value | None) -> Value:
        self._asked.add(key)
        if key in self._values:
            return self._values[key]
        if default is None:
            raise CompileError(f"the file has no metadata {key!r}, which a language model must have")
        return default

    def _one(self, key: str, default: int | float | None) -> Value:
        """A number, for an array of equal ones this number."""
        value = self._get(key, default)
        if isinstance(value, np.ndarray) and value.size:
            first, other = value[0], value[value != value[0]]
            if other.size:
                raise CompileError(
                    f"{key} is {first.item()} for some layers and {other[0].item()} for others; weft reads models "
                    "whose layers are alike"
                )
            return first.item()
        return value

    def _wrong(self, key: str, value: Value, wanted: str) -> CompileError:
        found = "an array" if isinstance(value, np.ndarray | tuple) else short_repr(value)
        return CompileError(f"{key} is {found}; it must be {wanted}")
