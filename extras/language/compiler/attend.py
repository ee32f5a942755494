"""Attention of a decoder: for each text, one page of keys and values after the other.

Tokens of several texts are processed one after the other. A program with one row finds queries, keys and values where
the projections left them. A program with several rows stores them in memory first. The loop over tokens then loads
those of one token, because addresses on the chip cannot depend on registers. It stores the results in place of the
queries. Keys and values also go to their slots in the page.

Consecutive tokens of one text share its pages and are processed together. Their keys and values are stored in the page
first; the causal mask hides later ones. Heads are processed in groups that are as large as fits on the chip.

LOAD fetches the keys of the next page after the scores of this page are complete, and its values after the sums.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from weft.compiler.ir.scales import normaliser
from weft.compiler.machine.target import COUNT_MAX
from weft.extras.language.compiler.layout import Places
from weft.extras.language.compiler.ordered_code import (
    BLOCK,
    BLOCKS,
    DESCRIPTOR,
    DESCRIPTOR_WORDS,
    FIRST_FREE,
    FRAME,
    LENGTH,
    PAGES,
    PLACE,
    RESULT,
    ROWS,
    ROWS_LEFT,
    TABLE,
    TEMPORARIES,
    TOKEN,
    OrderedCode,
    copies,
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
"""Length from which no column is visible, whatever LENGTH holds."""
_KEYS_FREE, _VALUES_FREE = (1 << FIRST_FREE + 1 + number for number in range(2))
"""Semaphores that allow LOAD to overwrite the keys, or the values, of a page."""


def vectors(places: Places, base: int, offset: int, count: int, dst: int) -> Load:
    """Return a LOAD of `count` consecutive vectors."""
    n = places.config.n
    return Load(
        base=base, offset=offset, pixels=count, pitch=n, length=n, run=count * n, dst=dst, dst_pixel=1
    )


class Attend:
    """Generator of attention's instructions, which it appends to `code`."""

    def __init__(self, places: Places, code: OrderedCode, step_ratio: float) -> None:
        self._step_ratio = step_ratio  # step of values divided by step of results
        self._places, self._code, self._n, self._at = places, code, places.config.n, places.at
        self._groups, self._text_tokens = places.groups, places.tokens_per_text
        self._queries_per_group = places.sizes.heads // places.sizes.key_value_heads
        # The rows of scores in one pass.
        self._score_rows = self._groups * self._queries_per_group * self._text_tokens
        self._sums_row = places.config.accumulator_size // 2  # the first half holds scores
        # The parameters of the scores come first, because LOAD works in order.
        load = vectors(places, BLOCK, 0, PARAMETER_VECTORS, self._at["scores"])
        self._parameter_load = code.add_parallel(load, code.last)

    def add(self) -> None:
        """Append attention of a block, from rows of queries, keys and values to rows of results."""
        places, code = self._places, self._code
        if places.tokens_per_text == places.rows:
            self._attend_text(FRAME)
            return
        for row in range(places.rows):
            at = row * places.token_bytes
            for name, count in (("q", places.queries), ("k", places.keys), ("v", places.keys)):
                code.add(self._store_vectors(TEMPORARIES, at, count, self._at[name] + row * count))
                at += count * self._n
        code.add(SetRegisters(**slots(*copies((ROWS_LEFT, ROWS), (DESCRIPTOR, FRAME)))))
        code.add(SetRegisters(**slots(*copies((TOKEN, TEMPORARIES), (RESULT, TEMPORARIES)))))
        # Each turn advances to the next token's descriptor and temporaries.
        steps = {ROWS_LEFT: -1, DESCRIPTOR: 4 * DESCRIPTOR_WORDS}
        steps |= dict.fromkeys((TOKEN, RESULT), places.token_bytes)
        code.pause(code.last, self._parameter_load)
        self._parameter_load = -1
        with code.loop(ROWS_LEFT, steps):
            code.add(vectors(places, TOKEN, 0, places.token_vectors, self._at["one"]))
            self._attend_text(DESCRIPTOR)
            code.add(self._store_vectors(RESULT, 0, places.queries, self._at["out"]))
        load = vectors(places, TEMPORARIES, 0, places.queries, self._at["a"])
        code.add(
            dataclasses.replace(load, rows=places.rows, row_pitch=places.token_bytes, dst_row=places.queries)
        )

    def _store_vectors(self, base: int, offset: int, count: int, src: int) -> Store:
        return Store(
            base=base, offset=offset, pixels=count, pitch=self._n, length=self._n, src=src, src_pixel=1
        )

    def _attend_text(self, frame: int) -> None:
        """Append attention of the tokens of one text, whose descriptor is in the frame that register `frame` points
        to.
        """
        read = ReadRegisters(base=frame, offset=descriptors(self._places.rows), first=TABLE, count=4)
        self._code.add(read)
        store = self._store_own()
        for first in range(0, self._places.sizes.key_value_heads, self._groups):
            if first:  # the loop over pages has changed the registers
                self._code.add(read)
            self._attend_heads(first, store)

    def _store_own(self) -> int:
        """STORE the tokens' own keys and values in their page; return the last instruction's index."""
        places, code, size = self._places, self._code, self._places.head
        code.add(SetRegisters(**slots((PLACE, Mode.ADD_REGISTER, PAGES))))
        for kind, name in enumerate(("k", "v")):
            code.add(
                Store(base=PLACE, offset=kind * self._page_bytes, rows=places.sizes.key_value_heads,
                      row_pitch=places.head_bytes, pixels=self._text_tokens, pitch=size * self._n,
                      length=size * self._n,
                      src=self._at[f"own {name}"], src_vector=1, src_pixel=places.keys, src_row=size)
            )  # fmt: skip
        return code.newest(Queue.STORE)

    def _attend_heads(self, first: int, store: int) -> None:
        """Append attention of the heads that read one group of key and value heads, from head `first` on."""
        places, code, size, tokens = self._places, self._code, self._places.head, self._text_tokens
        heads, first_query = self._groups * self._queries_per_group, self._at["own q"]
        # Row states are reset by a SOFTMAX that sees no column, and sums are cleared by a product of rows out of range.
        begin = dataclasses.replace(self._softmax(1), oy=heads, first=1, length=_NEVER, relative=0, causal=0)
        start = code.add(begin, self._parameter_load)
        clear = Mm(
            oy=size,
            ox=self._score_rows,
            a=first_query,
            y=-1,
            b=first_query,
            c=self._sums_row,
            c_oy=self._score_rows,
            c_ox=1,
        )
        code.add(dataclasses.replace(clear, signal=_KEYS_FREE | _VALUES_FREE), start, store)
        with code.free_loop(BLOCKS, {BLOCKS: -1, TABLE: 4, LENGTH: -places.page}):
            self._attend_page(first)
        # NORMALISE waits for this product, which follows all products of the loop. Its sums are never read.
        code.add(Mm(a=first_query, y=-1, b=first_query, c=0), -1)
        scale, exponent = normaliser(self._step_ratio)
        code.add(
            Normalise(ob=heads, oy=tokens, ox=size, src=self._sums_row, src_ob=tokens, src_oy=1,
                      src_ox=self._score_rows,
                      dst=self._at["out"] + first * self._queries_per_group * size, dst_ob=size,
                      dst_oy=places.queries, dst_ox=1, scale=scale, exponent=exponent, state_ob=tokens, state_oy=1)
        )  # fmt: skip
        # After the last page this LOAD takes the two signals that would have released buffers for another page.
        spare = vectors(places, BLOCK, 0, 1, self._at["idle"] + PARAMETER_VECTORS + 2)
        code.add_parallel(dataclasses.replace(spare, wait=_KEYS_FREE | _VALUES_FREE))

    @property
    def _page_bytes(self) -> int:
        """Bytes of a head's keys in a page, after which its values follow."""
        return self._places.head_bytes // 2

    def _attend_page(self, first: int) -> None:
        """Append scores, probabilities and sums of one page."""
        places, code, n, size = self._places, self._code, self._n, self._places.head
        page, each, tokens, groups = (
            places.page,
            self._queries_per_group,
            self._text_tokens,
            range(self._groups),
        )
        columns, panel, rows = page // n, page * size, self._queries_per_group * self._text_tokens
        zero = -128 if places.config.wide_activations else 0
        keys = [code.add_parallel(load) for load in self._load_keys(first)][-1]
        values = [code.add_parallel(load) for load in self._load_values(first)][-1]
        scores = [
            code.add(
                Mm(nt=columns, kc=size, oy=each, ox=tokens, a=self._at["own q"] + (first + group) * each * size, a_kc=1,
                   a_oy=size, a_ox=places.queries, b=self._at["keys"] + group * panel, b_nt=n * size, b_kc=1,
                   b_row=size, c=group * rows, c_nt=self._score_rows, c_oy=tokens, c_ox=1,
                   signal=_KEYS_FREE if group == groups[-1] else 0),
                keys,
            )
            for group in groups
        ]  # fmt: skip
        probabilities = self._softmax_page(columns, scores)
        for group in groups:
            code.add(
                Mm(accumulate=1, nt=size, kc=columns, oy=each, ox=tokens, a=self._at["p"] + group * rows,
                   a_kc=self._score_rows, a_oy=tokens, a_ox=1, zero=zero, b=self._at["values"] + group * page,
                   b_nt=page * self._groups, b_kc=n, b_row=1, c=self._sums_row + group * rows, c_nt=self._score_rows,
                   c_oy=tokens, c_ox=1, align=1, alignment=group * columns * rows,
                   signal=_VALUES_FREE if group == groups[-1] else 0),
                values, probabilities[group],
            )  # fmt: skip

    def _softmax_page(self, columns: int, scores: Sequence[int]) -> list[int]:
        """Append the softmax for `columns` groups of N keys.

        `scores` holds the index of the product of each head group; the result holds the index of each group's SOFTMAX.
        """
        code, heads, tokens = self._code, self._queries_per_group, self._text_tokens
        if tokens == 1:  # heads of a group are adjacent rows, so one SOFTMAX does all groups
            rows = {"oy": self._groups, "ox": heads}
            strides = {"src_oy": heads, "dst_oy": heads, "state_oy": heads, "alignment_oy": columns * heads}
            instruction = code.add(
                dataclasses.replace(self._softmax(columns), causal=0, **rows, **strides), scores[-1]
            )
            return [instruction] * self._groups
        return [
            code.add(self._select_group(self._softmax(columns), group, columns), instruction)
            for group, instruction in enumerate(scores)
        ]

    def _select_group(self, softmax: Softmax, group: int, columns: int) -> Softmax:
        """Restrict a SOFTMAX to the rows of one head group."""
        rows = self._queries_per_group * self._text_tokens
        at = group * rows
        return dataclasses.replace(
            softmax,
            src=at,
            dst=softmax.dst + at,
            state=at,
            alignment=columns * at,
            oy=self._queries_per_group,
        )

    def _load_keys(self, first: int) -> Iterator[Load]:
        """Yield the LOAD of the keys of one head group."""
        places, panel = self._places, self._places.page * self._places.head
        load = vectors(places, PAGES, first * places.head_bytes, panel, self._at["keys"])
        # The keys of the previous page must not be overwritten before its scores are complete.
        yield dataclasses.replace(
            load, rows=self._groups, row_pitch=places.head_bytes, dst_row=panel, paged=1, table=TABLE,
            wait=_KEYS_FREE,
        )  # fmt: skip

    def _load_values(self, first: int) -> Iterator[Load]:
        """Yield LOADs of the values of one head group, transposed, for some heads and vectors at a time."""
        places, n, size, page = self._places, self._n, self._places.head, self._places.page
        max_vectors, heads = places.config.transposed_vectors, min(self._groups, COUNT_MAX // page)
        wait = _VALUES_FREE
        for head in range(0, self._groups, heads):
            count = min(heads, self._groups - head)
            for part in range(0, size, max_vectors):
                length = min(max_vectors, size - part) * n
                yield Load(
                    base=PAGES, offset=(first + head) * places.head_bytes + self._page_bytes + part * n,
                    rows=count * page, row_pitch=size * n, line=page, skip=places.head_bytes - page * size * n,
                    pitch=length, length=length, run=length,
                    dst=self._at["values"] + head * page + part * page * self._groups, dst_vector=1,
                    dst_pixel=page * self._groups, dst_row=n, transpose=1, paged=1, table=TABLE, wait=wait,
                )  # fmt: skip
                # LOADs work in order: only the first has to wait.
                wait = 0

    def _softmax(self, columns: int) -> Softmax:
        """Return a SOFTMAX for `columns` groups of N keys.

        Row (oy, ox) holds token ox of head oy; the causal mask hides the keys of later tokens.
        """
        tokens, rows = self._text_tokens, self._score_rows
        return Softmax(
            source=Source.ACCUMULATOR, ob=columns, ox=tokens, src_ob=rows, src_oy=tokens, src_ox=1, dst=self._at["p"],
            dst_ob=rows, dst_oy=tokens, dst_ox=1, params=self._at["scores"], relative=1, register=LENGTH, causal=1,
            length=tokens - 1, diagonal=-1, state_oy=tokens, state_ox=1, alignment_ob=self._queries_per_group * tokens,
            alignment_oy=tokens, alignment_ox=1,
        )  # fmt: skip
