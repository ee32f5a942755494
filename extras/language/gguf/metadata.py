"""Metadata of a GGUF file, with checks of type and range."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from weft.compiler.errors import CompileError
from weft.extras.language.gguf.file import Value
from weft.hdl.schema import short_repr

MAX_INTEGER = 1 << 30
"""Limit for any integer in a model's metadata."""


class Metadata:
    """Typed access to metadata, which also records the keys that were looked up.

    `integer` and `number` also accept arrays with one element per layer, if all elements are equal.
    """

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values
        self._used: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def unused(self, prefix: str) -> list[str]:
        """Return the keys that begin with `prefix` and were never looked up."""
        return [key for key in self._values if key.startswith(prefix) and key not in self._used]

    def integer(self, key: str, default: int | None = None, low: int = 1, high: int = MAX_INTEGER) -> int:
        """Return an integer from `low` to `high`."""
        value = self._uniform(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._type_error(key, value, "an integer")
        if not low <= value <= high:
            raise self._type_error(key, value, f"an integer from {low:,} to {high:,}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number above zero."""
        value = self._uniform(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._type_error(key, value, "a number")
        if not (math.isfinite(value) and value > 0):
            raise self._type_error(key, value, "a number above zero")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._look_up(key, default)
        if not isinstance(value, str):
            raise self._type_error(key, value, "text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._look_up(key, default)
        if not isinstance(value, bool):
            raise self._type_error(key, value, "a truth value")
        return value

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        value = self._look_up(key, default)
        if isinstance(value, np.ndarray) and not value.size:
            return ()  # an empty array may have any type
        if not isinstance(value, tuple):
            raise self._type_error(key, value, "an array of texts")
        return value

    def numbers(self, key: str, kinds: str, expected: str) -> np.ndarray:
        """Return an array whose dtype kind is in `kinds` (numpy's letters); messages call that `expected`."""
        value = self._look_up(key, None)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
            raise self._type_error(key, value, expected)
        return value

    def value(self, key: str) -> Value | None:
        """Return a value of any type, or None if the key is missing."""
        self._used.add(key)
        return self._values.get(key)

    def _look_up(self, key: str, default: Value | None) -> Value:
        self._used.add(key)
        if key in self._values:
            return self._values[key]
        if default is None:
            raise CompileError(f"the file has no metadata {key!r}, which a language model must have")
        return default

    def _uniform(self, key: str, default: int | float | None) -> Value:
        """Return a number; an array of equal numbers counts as that number."""
        value = self._look_up(key, default)
        if isinstance(value, np.ndarray) and value.size:
            first, other = value[0], value[value != value[0]]
            if other.size:
                raise CompileError(
                    f"{key} is {first.item()} for some layers and {other[0].item()} for others; weft reads models "
                    "whose layers are alike"
                )
            return first.item()
        return value

    def _type_error(self, key: str, value: Value, wanted: str) -> CompileError:
        actual = "an array" if isinstance(value, np.ndarray | tuple) else short_repr(value)
        return CompileError(f"{key} is {actual}; it must be {wanted}")
