"""Attention of a decoder: one token after the other, and of each one page of keys and values after the other.

Queries, keys and values of all tokens go to memory, from where the loop over tokens takes those of one, as addresses on
the chip do not depend on registers. Keys and values go on to their place in a page. Attention's results come back the
same way, in the place of queries.
"""

from __future__ import annotations

import dataclasses

from weft.compiler.ir.scales import normaliser
from weft.compiler.language.places import Places
from weft.compiler.language.registers import (
    BETWEEN,
    BLOCK,
    BLOCKS,
    DESCRIPTOR,
    DESCRIPTOR_WORDS,
    FRAME,
    LENGTH,
    PAGES,
    PLACE,
    ROWS,
    ROWS_LEFT,
    TABLE,
    TOKEN,
    descriptors,
)
from weft.compiler.language.serial_code import SerialCode
from weft.hdl.isa import (
    PARAMETER_VECTORS,
    Load,
    Mm,
    Mode,
    Normalise,
    ReadRegisters,
    SetRegisters,
    Softmax,
    Source,
    Store,
)
from weft.hdl.isa.loops import slots

_NEVER = -(1 << 15)
"""A length of which no column is."""


def vectors(places: Places, base: int, offset: int, count: int, dst: int) -> Load:
    """LOAD vectors that follow each other."""
    n = places.config.n
    return Load(
        base=base, offset=offset, pixels=count, pitch=n, length=n, run=count * n, dst=dst, dst_pixel=1
    )


class Attend:
    """Adds attention's instructions to code; see the module."""

    def __init__(self, places: Places, code: SerialCode) -> None:
        self._places, self._code, self._n, self._at = places, code, places.config.n, places.at
        self._heads, self._groups = places.sizes.heads, places.sizes.key_value_heads
        self._each = self._heads // self._groups
        self._sums = places.config.accumulator_size // 2  # scores are in front

    def add(self) -> None:
        """Attention of a block, from rows of queries, keys and values to rows of results."""
        places, code = self._places, self._code
        code.add(vectors(places, BLOCK, 0, PARAMETER_VECTORS, self._at["scores"]))
        for row in range(places.rows):
            at = row * places.one_bytes
            for name, count in (("q", places.queries), ("k", places.keys), ("v", places.keys)):
                code.add(self._stored(BETWEEN, at, count, self._at[name] + row * count))
                at += count * self._n
        code.add(
            SetRegisters(
                **slots(*_copied(ROWS_LEFT, ROWS), *_copied(DESCRIPTOR, FRAME), *_copied(TOKEN, BETWEEN))
            )
        )
        steps = {ROWS_LEFT: -1, DESCRIPTOR: 4 * DESCRIPTOR_WORDS, TOKEN: places.one_bytes}
        with code.loop(ROWS_LEFT, steps):
            self._token()
        load = vectors(places, BETWEEN, 0, places.queries, self._at["a"])
        code.add(
            dataclasses.replace(load, rows=places.rows, row_pitch=places.one_bytes, dst_row=places.queries)
        )

    def _stored(self, base: int, offset: int, count: int, src: int) -> Store:
        return Store(
            base=base, offset=offset, pixels=count, pitch=self._n, length=self._n, src=src, src_pixel=1
        )

    def _token(self) -> None:
        places, code, size = self._places, self._code, self._places.head
        code.add(ReadRegisters(base=DESCRIPTOR, offset=descriptors(places.rows), first=TABLE, count=4))
        code.add(SetRegisters(**slots((PLACE, Mode.ADD_REGISTER, PAGES))))
        one = self._at["one"]
        code.add(vectors(places, TOKEN, 0, places.one, one))
        for kind in range(2):  # keys and values
            code.add(
                Store(base=PLACE, offset=kind * self._page_bytes, rows=self._groups, row_pitch=places.head_bytes,
                      pitch=size * self._n, length=size * self._n, src=one + places.queries + kind * places.keys,
                      src_vector=1, src_row=size)
            )  # fmt: skip
        # Sums become 0, and rows of scores start anew.
        code.add(Mm(nt=places.queries, a=one, y=-1, b=one, c=self._sums, c_nt=1))
        code.add(self._softmax(1, first=1, length=_NEVER))
        with code.loop(BLOCKS, {BLOCKS: -1, TABLE: 4, LENGTH: -places.page}):
            self._page()
        scale, exponent = normaliser(1.0)
        code.add(
            Normalise(oy=self._heads, ox=size, src=self._sums, src_oy=1, src_ox=self._heads, dst=self._at["out"],
                      dst_oy=size, dst_ox=1, scale=scale, exponent=exponent, state_oy=1)
        )  # fmt: skip
        code.add(self._stored(TOKEN, 0, places.queries, self._at["out"]))

    @property
    def _page_bytes(self) -> int:
        """Bytes of the keys of a head in a page; its values follow."""
        return self._places.head_bytes // 2

    def _page(self) -> None:
        """Scores, probabilities and sums of a page."""
        places, code, n, size = self._places, self._code, self._n, self._places.head
        page, heads, each = places.page, self._heads, self._each
        columns, panel = page // n, page * size
        zero = -128 if places.config.wide_activations else 0
        for group in range(self._groups):
            self._load_head(group)
        for group in range(self._groups):
            code.add(
                Mm(nt=columns, kc=size, ox=each, a=self._at["one"] + group * each * size, a_kc=1, a_ox=size,
                   b=self._at["keys"] + group * panel, b_nt=n * size, b_kc=1, b_row=size, c=group * each, c_nt=heads,
                   c_ox=1)
            )  # fmt: skip
        code.add(self._softmax(columns, relative=1))
        for group in range(self._groups):
            code.add(
                Mm(accumulate=1, nt=size, kc=columns, ox=each, a=self._at["p"] + group * each, a_kc=heads, a_ox=1,
                   zero=zero, b=self._at["values"] + group * panel, b_nt=page, b_kc=n, b_row=1,
                   c=self._sums + group * each, c_nt=heads, c_ox=1, align=1, alignment=group * columns * each)
            )  # fmt: skip

    def _load_head(self, group: int) -> None:
        """LOAD the keys and the values of a head, these as columns."""
        places, n, size = self._places, self._n, self._places.head
        page, first = places.page, group * places.head_bytes
        keys = vectors(places, PAGES, first, page * size, self._at["keys"] + group * page * size)
        self._code.add(dataclasses.replace(keys, paged=1, table=TABLE))
        values, most = self._at["values"] + group * page * size, places.config.transposed_vectors
        for part in range(0, size, most):
            length = min(most, size - part) * n
            self._code.add(
                Load(base=PAGES, offset=first + self._page_bytes + part * n, rows=page, row_pitch=size * n,
                     pitch=length, length=length, run=length, dst=values + part * page, dst_vector=1, dst_pixel=page,
                     dst_row=n, transpose=1, paged=1, table=TABLE)
            )  # fmt: skip

    def _softmax(self, groups: int, *, first: int = 0, length: int = 0, relative: int = 0) -> Softmax:
        """Probabilities of all heads for so many groups of N keys."""
        heads, each = self._heads, self._each
        columns = self._places.page // self._n
        return Softmax(
            source=Source.ACCUMULATOR, ob=groups, oy=self._groups, ox=each, src_ob=heads, src_oy=each, src_ox=1,
            dst=self._at["p"], dst_ob=heads, dst_oy=each, dst_ox=1, params=self._at["scores"], first=first,
            relative=relative, register=LENGTH, length=length, state_oy=each, state_ox=1, alignment_ob=each,
            alignment_oy=columns * each, alignment_ox=1,
        )  # fmt: skip


def _copied(register: int, other: int) -> tuple[tuple[int, Mode, int], tuple[int, Mode, int]]:
    """The changes that give a register what another one holds."""
    return (register, Mode.SET, 0), (register, Mode.ADD_REGISTER, other)
