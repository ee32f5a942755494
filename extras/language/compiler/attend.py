"""Attention of a decoder, and of each text one page of keys and values after the other.

Tokens of several texts are worked on one after the other. A program for one token has its queries, keys and values
where products left them. In one for several they go to memory, from where the loop over tokens takes those of one, as
addresses on the chip do not depend on registers, and attention's results come back the same way, in the place of
queries. Keys and values go on to their place in a page.

Tokens that follow each other in one text see the same pages, and are worked on together: their keys and values go into
the page first, and a token does not see those behind its own. Heads are worked on as many at a time as there is room
for.

LOAD reads the keys of the next page once the scores of this one are there, and its values once they are added up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from weft.compiler.ir.scales import normaliser
from weft.compiler.machine.target import COUNT_MAX
from weft.extras.language.compiler.ordered_code import FIRST_FREE, OrderedCode, copies
from weft.extras.language.compiler.places import Places
from weft.extras.language.compiler.registers import (
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
        self._groups, self._tokens = places.groups, places.together
        self._each = places.sizes.heads // places.sizes.key_value_heads
        self._rows = self._groups * self._each * self._tokens  # of scores
        self._sums = places.config.accumulator_size // 2  # scores are in front
        # The parameters of the scores come ahead of all that LOAD is asked for later.
        load = vectors(places, BLOCK, 0, PARAMETER_VECTORS, self._at["scores"])
        self._parameters = code.beside(load, code.last)

    def add(self) -> None:
        """Attention of a block, from rows of queries, keys and values to rows of results."""
        places, code = self._places, self._code
        if places.together == places.rows:
            self._text(FRAME)
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
            self._text(DESCRIPTOR)
            code.add(self._stored(RESULT, 0, places.queries, self._at["out"]))
        load = vectors(places, BETWEEN, 0, places.queries, self._at["a"])
        code.add(
            dataclasses.replace(load, rows=places.rows, row_pitch=places.one_bytes, dst_row=places.queries)
        )

    def _stored(self, base: int, offset: int, count: int, src: int) -> Store:
        return Store(
            base=base, offset=offset, pixels=count, pitch=self._n, length=self._n, src=src, src_pixel=1
        )

    def _text(self, frame: int) -> None:
        """From the queries, keys and values of tokens of one text to their results; `frame` is where its descriptor
        is."""
        read = ReadRegisters(base=frame, offset=descriptors(self._places.rows), first=TABLE, count=4)
        self._code.add(read)
        stored = self._store_own()
        for first in range(0, self._places.sizes.key_value_heads, self._groups):
            if first:  # the loop over pages has changed them
                self._code.add(read)
            self._heads(first, stored)

    def _store_own(self) -> int:
        """STORE the tokens' own keys and values into their page; returns the last instruction."""
        places, code, size = self._places, self._code, self._places.head
        code.add(SetRegisters(**slots((PLACE, Mode.ADD_REGISTER, PAGES))))
        for kind, name in enumerate(("k", "v")):
            code.add(
                Store(base=PLACE, offset=kind * self._page_bytes, rows=places.sizes.key_value_heads,
                      row_pitch=places.head_bytes, pixels=self._tokens, pitch=size * self._n, length=size * self._n,
                      src=self._at[f"own {name}"], src_vector=1, src_pixel=places.keys, src_row=size)
            )  # fmt: skip
        return code.newest(Queue.STORE)

    def _heads(self, first: int, stored: int) -> None:
        """The results of some heads: those that read heads of keys and values from `first` on."""
        places, code, size, tokens = self._places, self._code, self._places.head, self._tokens
        heads, one = self._groups * self._each, self._at["own q"]
        # Rows of scores start anew, and sums become 0.
        begin = dataclasses.replace(self._softmax(1), oy=heads, first=1, length=_NEVER, relative=0, causal=0)
        start = code.add(begin, self._parameters)
        zero = Mm(oy=size, ox=self._rows, a=one, y=-1, b=one, c=self._sums, c_oy=self._rows, c_ox=1)
        code.add(dataclasses.replace(zero, signal=_KEYS_FREE | _VALUES_FREE), start, stored)
        with code.free_loop(BLOCKS, {BLOCKS: -1, TABLE: 4, LENGTH: -places.page}):
            self._page(first)
        # What waits for the pages waits for a product behind them, whose sums nobody reads.
        code.add(Mm(a=one, y=-1, b=one, c=0), -1)
        scale, exponent = normaliser(self._smaller)
        code.add(
            Normalise(ob=heads, oy=tokens, ox=size, src=self._sums, src_ob=tokens, src_oy=1, src_ox=self._rows,
                      dst=self._at["out"] + first * self._each * size, dst_ob=size, dst_oy=places.queries, dst_ox=1,
                      scale=scale, exponent=exponent, state_ob=tokens, state_oy=1)
        )  # fmt: skip
        # Nobody asks for more keys and values.
        spare = vectors(places, BLOCK, 0, 1, self._at["idle"] + PARAMETER_VECTORS + 2)
        code.beside(dataclasses.replace(spare, wait=_KEYS_FREE | _VALUES_FREE))

    @property
    def _page_bytes(self) -> int:
        """Bytes of the keys of a head in a page; its values follow."""
        return self._places.head_bytes // 2

    def _page(self, first: int) -> None:
        """Scores, probabilities and sums of a page."""
        places, code, n, size = self._places, self._code, self._n, self._places.head
        page, each, tokens, groups = places.page, self._each, self._tokens, range(self._groups)
        columns, panel, rows = page // n, page * size, self._each * self._tokens
        zero = -128 if places.config.wide_activations else 0
        keys = [code.beside(load) for load in self._loads_of_keys(first)][-1]
        values = [code.beside(load) for load in self._loads_of_values(first)][-1]
        scores = [
            code.add(
                Mm(nt=columns, kc=size, oy=each, ox=tokens, a=self._at["own q"] + (first + group) * each * size, a_kc=1,
                   a_oy=size, a_ox=places.queries, b=self._at["keys"] + group * panel, b_nt=n * size, b_kc=1,
                   b_row=size, c=group * rows, c_nt=self._rows, c_oy=tokens, c_ox=1,
                   signal=_KEYS_FREE if group == groups[-1] else 0),
                keys,
            )
            for group in groups
        ]  # fmt: skip
        shares = self._shares(columns, scores)
        for group in groups:
            code.add(
                Mm(accumulate=1, nt=size, kc=columns, oy=each, ox=tokens, a=self._at["p"] + group * rows,
                   a_kc=self._rows, a_oy=tokens, a_ox=1, zero=zero, b=self._at["values"] + group * page,
                   b_nt=page * self._groups, b_kc=n, b_row=1, c=self._sums + group * rows, c_nt=self._rows,
                   c_oy=tokens, c_ox=1, align=1, alignment=group * columns * rows,
                   signal=_VALUES_FREE if group == groups[-1] else 0),
                values, shares[group],
            )  # fmt: skip

    def _shares(self, columns: int, scores: Sequence[int]) -> list[int]:
        """Probabilities, for so many groups of N keys; `scores` and what is returned are instructions of each group."""
        code, each, tokens = self._code, self._each, self._tokens
        if tokens == 1:  # heads of a group are next to each other, as tokens are else
            rows = {"oy": self._groups, "ox": each}
            strides = {"src_oy": each, "dst_oy": each, "state_oy": each, "alignment_oy": columns * each}
            made = code.add(
                dataclasses.replace(self._softmax(columns), causal=0, **rows, **strides), scores[-1]
            )
            return [made] * self._groups
        return [
            code.add(self._of_group(self._softmax(columns), group, columns), instruction)
            for group, instruction in enumerate(scores)
        ]

    def _of_group(self, softmax: Softmax, group: int, columns: int) -> Softmax:
        """The same for the rows of one group only."""
        rows = self._each * self._tokens
        at = group * rows
        return dataclasses.replace(
            softmax, src=at, dst=softmax.dst + at, state=at, alignment=columns * at, oy=self._each
        )

    def _loads_of_keys(self, first: int) -> Iterator[Load]:
        """LOAD the keys of heads from `first` on."""
        places, panel = self._places, self._places.page * self._places.head
        load = vectors(places, PAGES, first * places.head_bytes, panel, self._at["keys"])
        yield dataclasses.replace(
            load, rows=self._groups, row_pitch=places.head_bytes, dst_row=panel, paged=1, table=TABLE,
            wait=_KEYS_FREE,
        )  # fmt: skip

    def _loads_of_values(self, first: int) -> Iterator[Load]:
        """LOAD their values, as columns: of some heads, and some vectors of each, at a time."""
        places, n, size, page = self._places, self._n, self._places.head, self._places.page
        most, heads = places.config.transposed_vectors, min(self._groups, COUNT_MAX // page)
        wait = _VALUES_FREE
        for head in range(0, self._groups, heads):
            count = min(heads, self._groups - head)
            for part in range(0, size, most):
                length = min(most, size - part) * n
                yield Load(
                    base=PAGES, offset=(first + head) * places.head_bytes + self._page_bytes + part * n,
                    rows=count * page, row_pitch=size * n, line=page, skip=places.head_bytes - page * size * n,
                    pitch=length, length=length, run=length,
                    dst=self._at["values"] + head * page + part * page * self._groups, dst_vector=1,
                    dst_pixel=page * self._groups, dst_row=n, transpose=1, paged=1, table=TABLE, wait=wait,
                )  # fmt: skip
                wait = 0

    def _softmax(self, columns: int) -> Softmax:
        """Probabilities of rows of scores, for so many groups of N keys: row (oy, ox) is that of token ox in head oy,
        and does not see the keys of later ones."""
        tokens, rows = self._tokens, self._rows
        return Softmax(
            source=Source.ACCUMULATOR, ob=columns, ox=tokens, src_ob=rows, src_oy=tokens, src_ox=1, dst=self._at["p"],
            dst_ob=rows, dst_oy=tokens, dst_ox=1, params=self._at["scores"], relative=1, register=LENGTH, causal=1,
            length=tokens - 1, diagonal=-1, state_oy=tokens, state_ox=1, alignment_ob=self._each * tokens,
            alignment_oy=tokens, alignment_ox=1,
        )  # fmt: skip
