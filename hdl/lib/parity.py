"""Parity bits of words in memories, with which single wrong bits are noticed."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Value

from weft.hdl.isa.config import Config


class Coding:
    """How a memory keeps its words: with `parity` of the configuration a bit more for every `group` bits, else as they
    are.

    Parity is even, so that a memory of zeros is right.
    """

    def __init__(self, config: Config, group: int) -> None:
        self.checked, self.group = bool(config.parity), group

    def width(self, width: int) -> int:
        """Bits of a word of `width` bits, a multiple of the group, in memory."""
        return width + width // self.group if self.checked else width

    def encode(self, word: Value) -> Value:
        """What memory is given for `word`."""
        if not self.checked:
            return word
        return Cat(Cat(part, part.xor()) for part in _parts(word, self.group))

    def decode(self, word: Value) -> tuple[Value, Value]:
        """The word that was kept, and whether a bit of it, or any odd number of bits in a group, has changed."""
        if not self.checked:
            return word, Const(0)
        parts = _parts(word, self.group + 1)
        return Cat(part[: self.group] for part in parts), Cat(part.xor() for part in parts).any()


def _parts(word: Value, size: int) -> list[Value]:
    if len(word) % size:
        raise ValueError(f"{len(word)} bits are no multiple of {size}")
    return [word[at : at + size] for at in range(0, len(word), size)]
