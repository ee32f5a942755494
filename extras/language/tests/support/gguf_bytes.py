"""GGUF files byte by byte, with any field invalid. Shares no code with the reader or the gguf library."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np

TYPES = {
    "u8": (0, "<B"), "i8": (1, "<b"), "u16": (2, "<H"), "i16": (3, "<h"), "u32": (4, "<I"), "i32": (5, "<i"),
    "f32": (6, "<f"), "bool": (7, "<B"), "text": (8, ""), "array": (9, ""), "u64": (10, "<Q"), "i64": (11, "<q"),
    "f64": (12, "<d"),
}  # fmt: skip
"""Metadata types: number and `struct` format."""
KINDS = {
    "F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110),
    "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "IQ4_NL": (20, 32, 18), "I32": (26, 1, 4),
    "BF16": (30, 1, 2),
}  # fmt: skip
"""Tensor types: number, elements and bytes of a block."""


def text(value: str | bytes, size: int | None = None) -> bytes:
    """Encode a string, optionally with a wrong length."""
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw) if size is None else size) + raw


def value(kind: str, content: Any, count: int | None = None) -> bytes:
    """Encode a metadata value; an array's type is ``[u32]``, and `count` overrides its length."""
    if kind.startswith("["):
        inner = kind[1:-1]
        items = b"".join(value(inner, item) for item in content)
        return struct.pack("<IQ", TYPES[inner][0], len(content) if count is None else count) + items
    if kind == "text":
        return text(content)
    return struct.pack(TYPES[kind][1], content)


@dataclass
class Tensor:
    """A tensor with dimensions in the file's order; `offset` and `code` are right unless given."""

    name: str | bytes
    kind: str
    dimensions: tuple[int, ...]
    content: bytes
    offset: int | None = None
    code: int | None = None


@dataclass
class Gguf:
    """A file; `entries` hold a key, a type, and a value or raw bytes."""

    entries: list[tuple[str | bytes, str, Any]] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    version: int = 3
    alignment: int = 32
    counts: tuple[int | None, int | None] = (None, None)
    magic: bytes = b"GGUF"

    def entry(self, key: str | bytes, kind: str, content: Any) -> Gguf:
        """Set an entry, replacing one of equal key."""
        self.entries = [item for item in self.entries if item[0] != key]
        self.entries.append((key, kind, content))
        return self

    def without(self, key: str) -> Gguf:
        """Remove an entry."""
        self.entries = [item for item in self.entries if item[0] != key]
        return self

    def tensor(self, name: str) -> Tensor:
        return next(item for item in self.tensors if item.name == name)

    def write(self) -> bytes:
        tensors = len(self.tensors) if self.counts[0] is None else self.counts[0]
        entries = len(self.entries) if self.counts[1] is None else self.counts[1]
        head = self.magic + struct.pack("<IQQ", self.version, tensors, entries)
        for key, kind, stored in self.entries:
            code = TYPES["array" if kind.startswith("[") else kind][0]
            content = stored if isinstance(stored, bytes) else value(kind, stored)
            head += text(key) + struct.pack("<I", code) + content
        data = b""
        for item in self.tensors:
            offset = len(data) if item.offset is None else item.offset
            code = KINDS[item.kind][0] if item.code is None else item.code
            head += text(item.name) + struct.pack("<I", len(item.dimensions))
            head += struct.pack(f"<{len(item.dimensions)}Q", *item.dimensions) + struct.pack(
                "<IQ", code, offset
            )
            data += item.content
            data += bytes(-len(data) % self.alignment)
        return head + bytes(-len(head) % self.alignment) + data


def blocks(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> bytes:
    """Return random bytes of a tensor whose scales are small."""
    _, elements, size = KINDS[kind]
    count = int(np.prod(shape)) // elements
    raw = rng.integers(0, 256, (count, size)).astype(np.uint8)
    halves = rng.normal(0, 0.02, (count, 2)).astype("<f2").view(np.uint8)
    if kind == "F32":
        return rng.normal(0, 1, count).astype("<f4").tobytes()
    if kind in ("F16", "BF16"):
        return (
            rng.normal(0, 1, count).astype("<f4").view("<u2")[1::2].tobytes()
            if kind == "BF16"
            else (rng.normal(0, 1, count).astype("<f2").tobytes())
        )
    if kind in ("Q3_K", "Q6_K"):
        raw[:, -2:] = halves[:, :2] // 16 * 16
    elif kind == "Q2_K":
        raw[:, -4:] = halves
    elif kind.endswith(("_1", "_K")):
        raw[:, :4] = halves
    else:
        raw[:, :2] = halves[:, :2]
    return raw.tobytes()
