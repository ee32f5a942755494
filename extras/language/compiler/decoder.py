"""Compiler of a decoder: one program for every position, length and number of sequences.

The program processes a fixed number of tokens side by side. Memory holds the tokens, where their keys and values go and
how many there are (`weft.extras.language.compiler.ordered_code`). The program loops over blocks, over the tokens in
attention, and over the pages of each token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.attend import Attend, vectors
from weft.extras.language.compiler.contents import Contents
from weft.extras.language.compiler.integers import Integers
from weft.extras.language.compiler.kernel_set import At, KernelSet, SumKernels, Sums
from weft.extras.language.compiler.layout import Places
from weft.extras.language.compiler.ordered_code import (
    BLOCK,
    CONSTANTS,
    FIRST_FREE,
    FRAME,
    HEADER_BYTES,
    LAYERS,
    LOGITS,
    PAGES,
    ROWS,
    OrderedCode,
)
from weft.extras.language.compiler.ring import Part, find_slots
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
"""Features that every model's program needs."""
_PART_LOADED, _GAINS_LOADED = 1 << FIRST_FREE, 1 << FIRST_FREE + 3
"""Semaphores for loaded parts of weights, and for loaded gains of norms. Those in between belong to `Attend`."""


class Decoder:
    """Compiled decoder.

    Parameters
    ----------
    numbers : Integers
    config : Config
        With softmax, kernel engine, look-up tables and loops; for weights in blocks of 4 bits also with that feature.
    rows : int
        Tokens side by side.
    page : int
        Keys of a page, a multiple of N.
    prompt_rows : int
        Prompt tokens that `prompts` processes together; 0 for no such program.
    main : Decoder, optional
        For the prompt program itself: the decoder that it belongs to.

    Attributes
    ----------
    code : bytes
    contents : Contents
        Constants, and the records of blocks.
    places : Places
    kernels : KernelSet
    prompts : Decoder or None
        Program with the same contents for consecutive tokens of one text, from a multiple of its rows on. It writes
        their keys and values to pages and computes no logits.

    Raises
    ------
    CompileError
        If the configuration lacks a feature, or sizes do not fit it.
    """

    def __init__(
        self,
        numbers: Integers,
        config: Config,
        *,
        rows: int = 1,
        page: int = 32,
        prompt_rows: int = 0,
        main: Decoder | None = None,
    ) -> None:
        for feature in (*FEATURES, Feature.BLOCKS) if numbers.gains else FEATURES:
            if reason := feature.missing(config):
                raise CompileError(f"a decoder does not run on this configuration: {reason}")
        self.numbers, self.config = numbers, config
        sizes, form = numbers.model.sizes, numbers.form
        self.places = Places(sizes, config, rows, page, form, consecutive=main is not None)
        if main is None:
            prompt_places = (
                Places(sizes, config, prompt_rows, page, form, consecutive=True) if prompt_rows else None
            )
            self.contents = Contents(numbers, self.places, prompt_places)
            self._slots = self.contents.ring.slots
        else:
            self.contents = main.contents
            self._slots = find_slots(self.contents.ring, self.places.free, config.scratchpad_depth)
        self._at = self.places.at
        # An idle instruction of VEC, which writes a vector that nobody reads.
        idle = self._at["idle"]
        self._code = OrderedCode(Vec(source=Source.SCRATCHPAD, src=idle, dst=idle + 1, params=idle + 2))
        self.kernels: KernelSet = (
            KernelSet(numbers, config, self.contents.units) if main is None else main.kernels
        )
        self._sum_kernels = SumKernels(self.places, self.kernels)
        self._load_tables()
        self._load_rows()
        # Each turn advances to the next block's record, and to its keys and values in each page.
        steps = {LAYERS: -1, BLOCK: self.contents.record_bytes, PAGES: self.places.block_bytes}
        with self._code.loop(LAYERS, steps):
            self._emit_block()
        # Without a head, the parts that the last block loads stay unused.
        if main is None:
            self._emit_head()
        self._code.add(End())
        self.code = b"".join(item.encode() for item in self._code.instructions)
        self.prompts = (
            Decoder(numbers, config, rows=prompt_rows, page=page, main=self) if prompt_rows else None
        )

    def _load_vectors(self, base: int, offset: int, count: int, dst: int) -> Load:
        return vectors(self.places, base, offset, count, dst)

    def _load_tables(self) -> None:
        """Load the tables, kernels and parameters that stay on the chip."""
        code, weights, contents = self._code, self._at["weights"], self.contents
        count = self.config.table_depth // self.config.n
        code.add(self._load_vectors(CONSTANTS, contents.exp2, count, weights))
        code.add(Table(src=weights, vectors=count))
        code.add(self._load_vectors(CONSTANTS, contents.even, 1, self._at["even"]))
        kernels = self.kernels
        count = LOOKUP_ENTRIES // self.config.n
        for number, table in enumerate(kernels.tables):
            code.add(self._load_vectors(CONSTANTS, contents.constant(table), count, weights))
            code.add(Lookup(src=weights, vectors=count, table=number))
        for at in range(0, len(kernels.ops), MICRO_OPS):
            encoded = [op.encode() for op in kernels.ops[at : at + MICRO_OPS]]
            code.add(
                Microcode(entry=at, count=len(encoded), **{f"op{i}": op for i, op in enumerate(encoded)})
            )

    def _load_rows(self) -> None:
        """Load rows of embeddings and turn them into the residual stream, while LOAD fills the slots of weights."""
        places, code, at = self.places, self._code, self._at
        if not places.consecutive:
            code.add(ReadRegisters(base=FRAME, offset=0, first=ROWS, count=1))
        code.add(SetRegisters(**slots((LAYERS, Mode.SET, places.sizes.blocks))))
        pitch, position = 2 * places.width, places.position
        # Entries of the frame select the rows of both tables, so that the code does not depend on tokens.
        for row in range(places.rows):
            page = HEADER_BYTES // PAGE_ENTRY + row
            for entry, count, dst in (
                (page, pitch, at["inner"] + row * pitch),
                (page + places.rows, position, at["positions"] + row * position),
            ):
                load = self._load_vectors(CONSTANTS, 0, count, dst)
                code.add(dataclasses.replace(load, paged=1, table=FRAME, page=entry))
        rows_loaded = code.last
        if places.form.gains:
            code.add_parallel(self._load_gains(0))
        for index in range(len(self._slots)):
            self._load_weights(index, -1)
        code.add(self._sum_kernels.embedding_kernel(), rows_loaded)

    def _emit_block(self) -> None:
        places, code, ring = self.places, self._code, self.contents.ring
        attend = Attend(places, code, self.numbers.step_ratio)
        code.add(self._normalise_kernel())
        for sums in self._multiply(ring.of("qkv"), "a"):
            self._emit_all(self._sum_kernels.head_kernels(sums))
        attend.add()
        self._add_to_residual("output", "a", At(self._at["even"]))
        normalised = code.add(self._normalise_kernel(1))
        # The gains of the next block, or of the head.
        if places.form.gains:
            code.add_parallel(self._load_gains(self.contents.record_bytes), normalised)
        for sums in self._multiply(ring.of("inner"), "a"):
            self._emit_all(self._sum_kernels.inner_kernels(sums))
        code.add(self._quantise_kernel())
        self._add_to_residual("down", "b", At(self._at["row"], 1))

    def _add_to_residual(self, name: str, a: str, row: At) -> None:
        """Append a product that is added to the residual stream; `row` holds the shift of each row."""
        self._code.add(self._sum_kernels.shift_kernel(row))
        for sums in self._multiply(self.contents.ring.of(name), a):
            self._emit_all(self._sum_kernels.add_to_residual(sums))

    def _emit_all(self, kernels: Iterable[Kernel]) -> None:
        for kernel in kernels:
            self._code.add(kernel)

    def _load_gains(self, record: int) -> Load:
        """Return the LOAD of the gains of both norms of a record."""
        load = self._load_vectors(
            BLOCK, record + self.contents.gains, 4 * self.places.width, self._at["gains"]
        )
        return dataclasses.replace(load, signal=_GAINS_LOADED)

    def _normalise_kernel(self, norm: int = 0) -> Kernel:
        """Return the kernel for the first or second norm of a block: from the residual stream to int8 with a shift."""
        at, pitch = self._at, 2 * self.places.width
        kernel = Kernel(
            source=Source.SCRATCHPAD, start=self.kernels.starts["normalise"], oy=self.places.rows,
            ox=self.places.width, src=at["x"], src_oy=pitch, src_ox=2, src_vectors=2, with_b=1, b=at["low"],
            b_oy=pitch, b_ox=2, dst=at["a"], dst_oy=self.places.width, dst_ox=1, with_dst2=1, dst2=at["row"], dst2_oy=1,
        )  # fmt: skip
        if not self.places.form.gains:
            return kernel
        gains = at["gains"] + norm * pitch
        # One LOAD fetches the gains of both.
        wait = 0 if norm else _GAINS_LOADED
        return dataclasses.replace(kernel, with_c=1, c=gains, c_ox=2, c_vectors=2, wait=wait)

    def _quantise_kernel(self) -> Kernel:
        """Return the kernel that quantises the input of the last product to int8 with a shift."""
        at, inner = self._at, self.places.inner
        return Kernel(
            source=Source.SCRATCHPAD, start=self.kernels.starts["quantise"], oy=self.places.rows, ox=inner,
            src=at["inner"], src_oy=2 * inner, src_ox=2, src_vectors=2, dst=at["b"], dst_oy=inner, dst_ox=1,
            with_dst2=1, dst2=at["row"], dst2_oy=1,
        )  # fmt: skip

    def _load_weights(self, index: int, after: int, *, head: bool = False) -> None:
        """LOAD part `index` of a block, or of a record of the head, into its slot.

        Indices after the last part refer to the next record.
        """
        contents, ring = self.contents, self.contents.ring
        offsets = contents.head_offsets if head else contents.offsets
        record = contents.head_bytes if head else contents.record_bytes
        turn, number = divmod(index, len(offsets))
        offset, slot = offsets[number] + turn * record, self._slot(index)
        part = Part("head", number, 0, ring.head_tiles) if head else ring.parts[number]
        vectors = part.tiles * self.config.n * self.places.columns[part.name]
        if part.name in contents.blocks:
            self._code.add_parallel(self._load_nibbles(offset, vectors, slot), after)
            offset, slot, vectors = offset + contents.mantissas_offset(vectors), slot + vectors, 0
        load = self._load_vectors(
            BLOCK, offset, vectors + self.places.parameter_vectors(part.name) * part.tiles, slot
        )
        self._code.add_parallel(dataclasses.replace(load, signal=_PART_LOADED), after)

    def _load_nibbles(self, offset: int, vectors: int, dst: int) -> Load:
        """Return the LOAD of `vectors` vectors of weights in blocks of 4 bits."""
        load = self._load_vectors(BLOCK, offset, vectors, dst)
        return dataclasses.replace(load, run=vectors * self.config.n // 2, int4=1, blocks=1)

    def _slot(self, index: int) -> int:
        """Return the first vector of a part's slot."""
        return self._slots[index % len(self._slots)]

    def _multiply(self, parts: Sequence[Part], a: str, *, refill: bool = True) -> Iterator[Sums]:
        """Multiply with each part and yield the position of its sums.

        The caller appends the kernels that process the sums before it resumes the generator. The accumulator holds two
        parts. With `refill`, LOAD refills the slot with the part that follows after as many parts as there are slots.
        """
        n, rows, code = self.config.n, self.places.rows, self._code
        ends: list[int] = []
        for number, part in enumerate(parts):
            columns, sums = self.places.columns[part.name], self._place_sums(part)
            # A product may overwrite the sums of the part before the previous one once its kernels are done.
            before = code.last if not number else ends[number - 2] if number > 1 else -1
            code.add(
                Mm(nt=part.tiles, kc=columns, ox=rows, a=self._at[a], a_kc=1, a_ox=columns, b=self._slot(part.index),
                   b_nt=n * columns, b_kc=n, b_row=1, c=sums.first, c_nt=1, c_ox=part.tiles, wait=_PART_LOADED),
                before,
            )  # fmt: skip
            yield sums
            ends.append(code.newest(Queue.VEC))
            if refill:
                self._load_weights(part.index + len(self._slots), ends[-1], head=part.name == "head")

    def _place_sums(self, part: Part) -> Sums:
        """Return where the sums of a part and its mantissas are.

        Odd parts use the second half of the accumulator; mantissas follow the weights.
        """
        first = part.index % 2 * (self.config.accumulator_size // 2)
        mantissas = self._slot(part.index) + self.config.n * self.places.columns[part.name] * part.tiles
        return Sums(part, first, mantissas)

    def _emit_head(self) -> None:
        """Append the logits of all tokens, two digits each, in a loop that uses all slots in each turn."""
        code, ring = self._code, self.contents.ring
        code.add(self._normalise_kernel())
        if not self.contents.alike:
            self._reload_head()
        code.add(SetRegisters(**slots((LAYERS, Mode.SET, ring.head_turns - 1))))
        moved_bytes = len(self._slots) * ring.head_tiles * 2 * self.config.n
        # The last turn is separate, because no part follows that LOAD could fetch.
        if ring.head_turns > 1:
            with code.loop(LAYERS, {LAYERS: -1, BLOCK: self.contents.head_bytes, LOGITS: moved_bytes}):
                self._emit_logits(refill=True)
        self._emit_logits(refill=False)

    def _reload_head(self) -> None:
        """LOAD the head's first parts again, because the last block has loaded them with a block's layout.

        Dummy products take the signals of the first LOADs.
        """
        before = self._code.last
        for index in range(len(self._slots)):
            dummy = self._code.add_parallel(
                Mm(a=self._at["a"], b=self._at["a"], c=0, wait=_PART_LOADED), before
            )
            self._load_weights(index, dummy, head=True)

    def _emit_logits(self, *, refill: bool) -> None:
        n, rows, code, ring = self.config.n, self.places.rows, self._code, self.contents.ring
        tiles = ring.head_tiles
        parts = [Part("head", index, index * tiles, tiles) for index in range(len(self._slots))]
        stored: list[int] = []
        for sums in self._multiply(parts, "a", refill=refill):
            # The scratchpad holds two parts of logits as well.
            dst = self._at["inner"] + sums.part.index % 2 * 2 * tiles * rows
            code.add(self._sum_kernels.logit_kernel(sums, dst), code.last, *stored[-2:-1])
            store = Store(
                base=LOGITS, offset=2 * sums.part.first * n, rows=rows, row_pitch=2 * self.contents.logit_tiles * n,
                pixels=2 * tiles, pitch=n, length=n, src=dst, src_pixel=1, src_row=2 * tiles,
            )  # fmt: skip
            stored.append(code.add(store))
