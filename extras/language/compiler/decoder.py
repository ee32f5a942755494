"""The program of a decoder: one for every position, length and number of sequences.

It works on some tokens side by side. What each of them is, where its keys and values go and how many there are, is in
memory, from where the program reads it (`weft.extras.language.compiler.registers`). Blocks are a loop, and so are the
tokens in attention, and the pages of each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from weft.compiler.ir.graph import CompileError
from weft.extras.language.compiler.attend import Attend, vectors
from weft.extras.language.compiler.behind import Behind, Sums
from weft.extras.language.compiler.contents import Contents
from weft.extras.language.compiler.integers import Integers
from weft.extras.language.compiler.kernel_set import KernelSet
from weft.extras.language.compiler.ordered_code import FIRST_FREE, OrderedCode
from weft.extras.language.compiler.places import Places
from weft.extras.language.compiler.registers import (
    BLOCK,
    CONSTANTS,
    FRAME,
    HEADER_BYTES,
    LAYERS,
    LOGITS,
    PAGES,
    ROWS,
)
from weft.extras.language.compiler.ring import Part, slots_for
from weft.extras.language.compiler.spread import At
from weft.hdl.isa import (
    PAGE_ENTRY,
    End,
    Kernel,
    Load,
    Lookup,
    Microcode,
    Mm,
    Mode,
    Queue,
    ReadRegisters,
    SetRegisters,
    Source,
    Store,
    Table,
    Vec,
)
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config, Feature
from weft.hdl.isa.kernel import MICRO_OPS
from weft.hdl.isa.loops import slots

FEATURES = (Feature.LOOPS, Feature.SOFTMAX, Feature.KERNEL, Feature.LOOKUP)
"""What the program of every model uses."""
_FULL, _GAINS = 1 << FIRST_FREE, 1 << FIRST_FREE + 3
"""Semaphores of parts that are in their slots, and of gains of norms; those between belong to `Attend`."""


class Decoder:
    """A compiled decoder.

    Parameters
    ----------
    numbers : Integers
    config : Config
        With softmax, a kernel engine, look-up tables and loops, and for weights in blocks of 4 bits with those.
    rows : int
        Tokens side by side.
    page : int
        Keys of a page, a multiple of N.
    prompt_rows : int
        Tokens of a prompt that `prompts` works on together; 0 if there is to be none.
    beside : Decoder, optional
        For `prompts` itself: the decoder that it belongs to.

    Attributes
    ----------
    code : bytes
    contents : Contents
        The constants, and the records of blocks.
    places : Places
    kernels : KernelSet
    prompts : Decoder or None
        A program with the same contents for tokens that follow each other in one text, from a multiple of its rows on.
        It puts their keys and values into pages, and makes no logits.

    Raises
    ------
    CompileError
        If the configuration lacks something, or sizes do not fit it.
    """

    def __init__(
        self,
        numbers: Integers,
        config: Config,
        *,
        rows: int = 1,
        page: int = 32,
        prompt_rows: int = 0,
        beside: Decoder | None = None,
    ) -> None:
        for feature in (*FEATURES, Feature.BLOCKS) if numbers.gains else FEATURES:
            if reason := feature.missing(config):
                raise CompileError(f"a decoder does not run on this configuration: {reason}")
        self.numbers, self.config = numbers, config
        sizes, form = numbers.model.sizes, numbers.form
        self.places = Places(sizes, config, rows, page, form, consecutive=beside is not None)
        if beside is None:
            other = Places(sizes, config, prompt_rows, page, form, consecutive=True) if prompt_rows else None
            self.contents = Contents(numbers, self.places, other)
            self._slots = self.contents.ring.slots
        else:
            self.contents = beside.contents
            self._slots = slots_for(self.contents.ring, self.places.free, config.scratchpad_depth)
        self._at = self.places.at
        idle = self._at["idle"]
        self._out = OrderedCode(Vec(source=Source.SCRATCHPAD, src=idle, dst=idle + 1, params=idle + 2))
        self.kernels: KernelSet = (
            KernelSet(numbers, config, self.contents.units) if beside is None else beside.kernels
        )
        self._behind = Behind(self.places, self.kernels)
        self._prepare()
        self._begin()
        steps = {LAYERS: -1, BLOCK: self.contents.record_bytes, PAGES: self.places.block_bytes}
        with self._out.loop(LAYERS, steps):
            self._block()
        if beside is None:  # else nobody reads what the last block has loaded for a next one
            self._head()
        self._out.add(End())
        self.code = b"".join(item.encode() for item in self._out.instructions)
        self.prompts = (
            Decoder(numbers, config, rows=prompt_rows, page=page, beside=self) if prompt_rows else None
        )

    def _vectors(self, base: int, offset: int, count: int, dst: int) -> Load:
        return vectors(self.places, base, offset, count, dst)

    # --- ahead of the blocks

    def _prepare(self) -> None:
        """Tables, kernels and parameters that stay."""
        code, weights, contents = self._out, self._at["weights"], self.contents
        count = self.config.table_depth // self.config.n
        code.add(self._vectors(CONSTANTS, contents.exp2, count, weights))
        code.add(Table(src=weights, vectors=count))
        code.add(self._vectors(CONSTANTS, contents.even, 1, self._at["even"]))
        kernels = self.kernels
        count = LOOKUP_ENTRIES // self.config.n
        for number, table in enumerate(kernels.tables):
            code.add(self._vectors(CONSTANTS, contents.constant(table), count, weights))
            code.add(Lookup(src=weights, vectors=count, table=number))
        for at in range(0, len(kernels.ops), MICRO_OPS):
            some = [op.encode() for op in kernels.ops[at : at + MICRO_OPS]]
            code.add(Microcode(entry=at, count=len(some), **{f"op{i}": op for i, op in enumerate(some)}))

    def _begin(self) -> None:
        """Rows of embeddings become the residual stream, while LOAD fills the slots of weights."""
        places, code, at = self.places, self._out, self._at
        if not places.consecutive:
            code.add(ReadRegisters(base=FRAME, offset=0, first=ROWS, count=1))
        code.add(SetRegisters(**slots((LAYERS, Mode.SET, places.sizes.blocks))))
        pitch, position = 2 * places.width, places.position
        for row in range(places.rows):
            page = HEADER_BYTES // PAGE_ENTRY + row
            for entry, count, dst in (
                (page, pitch, at["inner"] + row * pitch),
                (page + places.rows, position, at["positions"] + row * position),
            ):
                load = self._vectors(CONSTANTS, 0, count, dst)
                code.add(dataclasses.replace(load, paged=1, table=FRAME, page=entry))
        rows = code.last
        if places.form.gains:
            code.beside(self._gains(0))
        for index in range(len(self._slots)):
            self._load_weights(index, -1)
        code.add(self._behind.begin(), rows)

    # --- a block

    def _block(self) -> None:
        places, code, ring = self.places, self._out, self.contents.ring
        attend = Attend(places, code, self.numbers.smaller)
        code.add(self._normalise())
        for sums in self._product(ring.of("qkv"), "a"):
            self._add_all(self._behind.heads(sums))
        attend.add()
        self._add("output", "a", At(self._at["even"]))
        normalised = code.add(self._normalise(1))
        if places.form.gains:  # those of the next block, or of the head
            code.beside(self._gains(self.contents.record_bytes), normalised)
        for sums in self._product(ring.of("inner"), "a"):
            self._add_all(self._behind.inner(sums))
        code.add(self._quantise())
        self._add("down", "b", At(self._at["row"], 1))

    def _add(self, name: str, a: str, row: At) -> None:
        """A product that is added to the residual stream; `row` is where the shift of each row is."""
        self._out.add(self._behind.prepare(row))
        for sums in self._product(self.contents.ring.of(name), a):
            self._add_all(self._behind.added(sums))

    def _add_all(self, kernels: Iterable[Kernel]) -> None:
        for kernel in kernels:
            self._out.add(kernel)

    def _gains(self, record: int) -> Load:
        """LOAD what both norms of a record multiply by."""
        load = self._vectors(BLOCK, record + self.contents.gains, 4 * self.places.width, self._at["gains"])
        return dataclasses.replace(load, signal=_GAINS)

    def _normalise(self, norm: int = 0) -> Kernel:
        """The residual stream becomes int8 with a shift: of the first or the second norm of a block."""
        at, pitch = self._at, 2 * self.places.width
        kernel = Kernel(
            source=Source.SCRATCHPAD, start=self.kernels.starts["normalise"], oy=self.places.rows,
            ox=self.places.width, src=at["x"], src_oy=pitch, src_ox=2, src_vectors=2, with_b=1, b=at["low"],
            b_oy=pitch, b_ox=2, dst=at["a"], dst_oy=self.places.width, dst_ox=1, with_dst2=1, dst2=at["row"], dst2_oy=1,
        )  # fmt: skip
        if not self.places.form.gains:
            return kernel
        gains = at["gains"] + norm * pitch
        wait = 0 if norm else _GAINS  # LOAD brings those of both together
        return dataclasses.replace(kernel, with_c=1, c=gains, c_ox=2, c_vectors=2, wait=wait)

    def _quantise(self) -> Kernel:
        """What comes out of the gate becomes int8 with a shift."""
        at, inner = self._at, self.places.inner
        return Kernel(
            source=Source.SCRATCHPAD, start=self.kernels.starts["quantise"], oy=self.places.rows, ox=inner,
            src=at["inner"], src_oy=2 * inner, src_ox=2, src_vectors=2, dst=at["b"], dst_oy=inner, dst_ox=1,
            with_dst2=1, dst2=at["row"], dst2_oy=1,
        )  # fmt: skip

    def _load_weights(self, index: int, after: int, *, head: bool = False) -> None:
        """LOAD part `index` of a block, or of a record of the head, into its slot; parts behind the last one are those
        of the next record."""
        contents, ring = self.contents, self.contents.ring
        offsets = contents.head_offsets if head else contents.offsets
        record = contents.head_bytes if head else contents.record_bytes
        turn, number = divmod(index, len(offsets))
        offset, slot = offsets[number] + turn * record, self._slot(index)
        part = Part("head", number, 0, ring.head_tiles) if head else ring.parts[number]
        vectors = part.tiles * self.config.n * self.places.columns[part.name]
        if part.name in contents.blocks:
            self._out.beside(self._nibbles(offset, vectors, slot), after)
            offset, slot, vectors = offset + contents.mantissas(vectors), slot + vectors, 0
        load = self._vectors(BLOCK, offset, vectors + self.places.beside(part.name) * part.tiles, slot)
        self._out.beside(dataclasses.replace(load, signal=_FULL), after)

    def _nibbles(self, offset: int, vectors: int, dst: int) -> Load:
        """LOAD so many vectors of weights in blocks of 4 bits."""
        load = self._vectors(BLOCK, offset, vectors, dst)
        return dataclasses.replace(load, run=vectors * self.config.n // 2, int4=1, blocks=1)

    def _slot(self, index: int) -> int:
        """Where a part is on the chip."""
        return self._slots[index % len(self._slots)]

    def _product(self, parts: Sequence[Part], a: str, *, refill: bool = True) -> Iterator[Sums]:
        """Multiply with each of some parts, and tell where its sums are.

        For each, the caller adds what works on the sums. Two parts may be in the accumulator. With `refill` LOAD fills
        the slot again, with the part that is as many further as there are slots.
        """
        n, rows, code = self.config.n, self.places.rows, self._out
        ends: list[int] = []
        for number, part in enumerate(parts):
            columns, sums = self.places.columns[part.name], self._sums(part)
            before = code.last if not number else ends[number - 2] if number > 1 else -1
            code.add(
                Mm(nt=part.tiles, kc=columns, ox=rows, a=self._at[a], a_kc=1, a_ox=columns, b=self._slot(part.index),
                   b_nt=n * columns, b_kc=n, b_row=1, c=sums.first, c_nt=1, c_ox=part.tiles, wait=_FULL),
                before,
            )  # fmt: skip
            yield sums
            ends.append(code.newest(Queue.VEC))
            if refill:
                self._load_weights(part.index + len(self._slots), ends[-1], head=part.name == "head")

    def _sums(self, part: Part) -> Sums:
        """Where the sums of a part are, every second one in the second half of the accumulator, and its mantissas,
        behind its weights."""
        first = part.index % 2 * (self.config.accumulator_size // 2)
        mantissas = self._slot(part.index) + self.config.n * self.places.columns[part.name] * part.tiles
        return Sums(part, first, mantissas)

    # --- behind the blocks

    def _head(self) -> None:
        """Logits of all tokens, two digits each: all slots with parts of the head in each turn of a loop."""
        code, ring = self._out, self.contents.ring
        code.add(self._normalise())
        if not self.contents.alike:
            self._replace_parts()
        code.add(SetRegisters(**slots((LAYERS, Mode.SET, ring.head_turns - 1))))
        moved = len(self._slots) * ring.head_tiles * 2 * self.config.n
        if ring.head_turns > 1:
            with code.loop(LAYERS, {LAYERS: -1, BLOCK: self.contents.head_bytes, LOGITS: moved}):
                self._some_logits(refill=True)
        self._some_logits(refill=False)

    def _replace_parts(self) -> None:
        """The last block has loaded parts of the head as if they were a block's: LOAD them again as what they are, once
        products that nobody reads have waited for them."""
        before = self._out.last
        for index in range(len(self._slots)):
            taken = self._out.beside(Mm(a=self._at["a"], b=self._at["a"], c=0, wait=_FULL), before)
            self._load_weights(index, taken, head=True)

    def _some_logits(self, *, refill: bool) -> None:
        n, rows, code, ring = self.config.n, self.places.rows, self._out, self.contents.ring
        tiles = ring.head_tiles
        parts = [Part("head", index, index * tiles, tiles) for index in range(len(self._slots))]
        stored: list[int] = []
        for sums in self._product(parts, "a", refill=refill):
            # Two parts of logits are on the chip, too.
            dst = self._at["inner"] + sums.part.index % 2 * 2 * tiles * rows
            code.add(self._behind.logits(sums, dst), code.last, *stored[-2:-1])
            store = Store(
                base=LOGITS, offset=2 * sums.part.first * n, rows=rows, row_pitch=2 * self.contents.logit_tiles * n,
                pixels=2 * tiles, pitch=n, length=n, src=dst, src_pixel=1, src_row=2 * tiles,
            )  # fmt: skip
            stored.append(code.add(store))
