"""Attention of a decoder: one token after the other, and of each one page of keys and values after the other.

A program for one token has its queries, keys and values where products left them. In one for several they go to memory,
from where the loop over tokens takes those of one, as addresses on the chip do not depend on registers, and attention's
results come back the same way, in the place of queries. Keys and values go on to their place in a page.

LOAD reads the keys of the next page once the scores of this one are there, and its values once they are added up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from weft.compiler.ir.scales import normaliser
from weft.compiler.language.ordered_code import FIRST_FREE, OrderedCode, copies
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
    RESULT,
    ROWS,
    ROWS_LEFT,
    TABLE,
    TOKEN,
    descriptors,
)
from weft.compiler.machine.limits import COUNT_MAX
from weft.hdl.isa import (
    PARAMETER_VECTORS,
    Load,
    Mm,
    Mode,
    Normalise,
    Queue,
    ReadRegisters,
    SetRegisters,
    Softmax,
    Source,
    Store,
)
from weft.hdl.isa.loops import slots

_NEVER = -(1 << 15)
"""A length of which no column is."""
_KEYS_FREE, _VALUES_FREE = (1 << FIRST_FREE + 1 + number for number in range(2))
"""Semaphores: LOAD may overwrite the keys, or the values, of a page."""


def vectors(places: Places, base: int, offset: int, count: int, dst: int) -> Load:
    """LOAD vectors that follow each other."""
    n = places.config.n
    return Load(
        base=base, offset=offset, pixels=count, pitch=n, length=n, run=count * n, dst=dst, dst_pixel=1
    )


class Attend:
    """Adds attention's instructions to code; see the module."""

    def __init__(self, places: Places, code: OrderedCode, smaller: float) -> None:
        self._smaller = smaller  # steps of results than those of values
        self._places, self._code, self._n, self._at = places, code, places.config.n, places.at
        self._heads, self._groups = places.sizes.heads, places.sizes.key_value_heads
        self._each = self._heads // self._groups
        self._sums = places.config.accumulator_size // 2  # scores are in front
        # The parameters of the scores come ahead of all that LOAD is asked for later.
        load = vectors(places, BLOCK, 0, PARAMETER_VECTORS, self._at["scores"])
        self._parameters = code.beside(load, code.last)

    def add(self) -> None:
        """Attention of a block, from rows of queries, keys and values to rows of results."""
        places, code = self._places, self._code
        if places.rows == 1:
            self._token(FRAME)
            return
        for row in range(places.rows):
            at = row * places.one_bytes
            for name, count in (("q", places.queries), ("k", places.keys), ("v", places.keys)):
                code.add(self._stored(BETWEEN, at, count, self._at[name] + row * count))
                at += count * self._n
        code.add(SetRegisters(**slots(*copies((ROWS_LEFT, ROWS), (DESCRIPTOR, FRAME)))))
        code.add(SetRegisters(**slots(*copies((TOKEN, BETWEEN), (RESULT, BETWEEN)))))
        steps = {ROWS_LEFT: -1, DESCRIPTOR: 4 * DESCRIPTOR_WORDS}
        steps |= dict.fromkeys((TOKEN, RESULT), places.one_bytes)
        code.pause(code.last, self._parameters)
        self._parameters = -1
        with code.loop(ROWS_LEFT, steps):
            code.add(vectors(places, TOKEN, 0, places.one, self._at["one"]))
            self._token(DESCRIPTOR)
            code.add(self._stored(RESULT, 0, places.queries, self._at["out"]))
        load = vectors(places, BETWEEN, 0, places.queries, self._at["a"])
        code.add(
            dataclasses.replace(load, rows=places.rows, row_pitch=places.one_bytes, dst_row=places.queries)
        )

    def _stored(self, base: int, offset: int, count: int, src: int) -> Store:
        return Store(
            base=base, offset=offset, pixels=count, pitch=self._n, length=self._n, src=src, src_pixel=1
        )

    def _token(self, frame: int) -> None:
        """From the queries, keys and values of one token to its results; `frame` is where its descriptor is."""
        places, code, size = self._places, self._code, self._places.head
        code.add(ReadRegisters(base=frame, offset=descriptors(places.rows), first=TABLE, count=4))
        code.add(SetRegisters(**slots((PLACE, Mode.ADD_REGISTER, PAGES))))
        one = self._at["one"]
        for kind in range(2):  # keys and values
            code.add(
                Store(base=PLACE, offset=kind * self._page_bytes, rows=self._groups, row_pitch=places.head_bytes,
                      pitch=size * self._n, length=size * self._n, src=one + places.queries + kind * places.keys,
                      src_vector=1, src_row=size)
            )  # fmt: skip
        # Rows of scores start anew, and sums become 0.
        start = code.add(self._softmax(1, first=1, length=_NEVER), self._parameters)
        stored = code.newest(Queue.STORE)
        zero = Mm(nt=places.queries, a=one, y=-1, b=one, c=self._sums, c_nt=1)
        code.add(dataclasses.replace(zero, signal=_KEYS_FREE | _VALUES_FREE), start, stored)
        with code.free_loop(BLOCKS, {BLOCKS: -1, TABLE: 4, LENGTH: -places.page}):
            self._page()
        # What waits for the pages waits for a product behind them, whose sums nobody reads.
        code.add(Mm(a=one, y=-1, b=one, c=0), -1)
        scale, exponent = normaliser(self._smaller)
        code.add(
            Normalise(oy=self._heads, ox=size, src=self._sums, src_oy=1, src_ox=self._heads, dst=self._at["out"],
                      dst_oy=size, dst_ox=1, scale=scale, exponent=exponent, state_oy=1)
        )  # fmt: skip
        # Nobody asks for more keys and values.
        spare = vectors(places, BLOCK, 0, 1, self._at["idle"] + PARAMETER_VECTORS + 2)
        code.beside(dataclasses.replace(spare, wait=_KEYS_FREE | _VALUES_FREE))

    @property
    def _page_bytes(self) -> int:
        """Bytes of the keys of a head in a page; its values follow."""
        return self._places.head_bytes // 2

    def _page(self) -> None:
        """Scores, probabilities and sums of a page."""
        places, code, n, size = self._places, self._code, self._n, self._places.head
        page, heads, each, groups = places.page, self._heads, self._each, range(self._groups)
        columns, panel = page // n, page * size
        zero = -128 if places.config.wide_activations else 0
        keys = [code.beside(load) for load in self._loads_of_keys()][-1]
        values = [code.beside(load) for load in self._loads_of_values()][-1]
        for group in groups:
            code.add(
                Mm(nt=columns, kc=size, ox=each, a=self._at["one"] + group * each * size, a_kc=1, a_ox=size,
                   b=self._at["keys"] + group * panel, b_nt=n * size, b_kc=1, b_row=size, c=group * each, c_nt=heads,
                   c_ox=1, signal=_KEYS_FREE if group == groups[-1] else 0),
                keys,
            )  # fmt: skip
        softmax = code.add(self._softmax(columns, relative=1))
        for group in groups:
            code.add(
                Mm(accumulate=1, nt=size, kc=columns, ox=each, a=self._at["p"] + group * each, a_kc=heads, a_ox=1,
                   zero=zero, b=self._at["values"] + group * page, b_nt=page * self._groups, b_kc=n, b_row=1,
                   c=self._sums + group * each, c_nt=heads, c_ox=1, align=1, alignment=group * columns * each,
                   signal=_VALUES_FREE if group == groups[-1] else 0),
                values, softmax,
            )  # fmt: skip

    def _loads_of_keys(self) -> Iterator[Load]:
        """LOAD the keys of all heads."""
        places, panel = self._places, self._places.page * self._places.head
        load = vectors(places, PAGES, 0, panel, self._at["keys"])
        yield dataclasses.replace(
            load, rows=self._groups, row_pitch=places.head_bytes, dst_row=panel, paged=1, table=TABLE,
            wait=_KEYS_FREE,
        )  # fmt: skip

    def _loads_of_values(self) -> Iterator[Load]:
        """LOAD the values of all heads, as columns: of some heads, and some vectors of each, at a time."""
        places, n, size, page = self._places, self._n, self._places.head, self._places.page
        most, heads = places.config.transposed_vectors, min(self._groups, COUNT_MAX // page)
        wait = _VALUES_FREE
        for head in range(0, self._groups, heads):
            count = min(heads, self._groups - head)
            for part in range(0, size, most):
                length = min(most, size - part) * n
                yield Load(
                    base=PAGES, offset=head * places.head_bytes + self._page_bytes + part * n, rows=count * page,
                    row_pitch=size * n, line=page, skip=places.head_bytes - page * size * n, pitch=length,
                    length=length, run=length, dst=self._at["values"] + head * page + part * page * self._groups,
                    dst_vector=1, dst_pixel=page * self._groups, dst_row=n, transpose=1, paged=1, table=TABLE,
                    wait=wait,
                )  # fmt: skip
                wait = 0

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
