"""Parity bits of words in memories, with which single wrong bits are noticed."""

from __future__ import annotations

from amaranth.hdl import Cat, Value


def coded_width(width: int, group: int) -> int:
    """Bits of a word of `width` bits with a parity bit for every `group` of them."""
    return width + width // group


def coded(word: Value, group: int) -> Value:
    """`word`, and behind each `group` of its bits their parity: even, so that a memory of zeros is right."""
    return Cat(Cat(part, part.xor()) for part in _parts(word, group))


def decoded(word: Value, group: int) -> tuple[Value, Value]:
    """What was coded with groups of `group` bits, and whether a bit of it, or any odd number of bits in a group, has
    changed."""
    parts = _parts(word, group + 1)
    return Cat(part[:group] for part in parts), Cat(part.xor() for part in parts).any()


def _parts(word: Value, size: int) -> list[Value]:
    if len(word) % size:
        raise ValueError(f"{len(word)} bits are no multiple of {size}")
    return [word[at : at + size] for at in range(0, len(word), size)]
