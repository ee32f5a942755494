"""The program of a decoder: one for every position, length and number of sequences.

It works on some tokens side by side. What each of them is, where its keys and values go and how many there are, is in
memory, from where the program reads it (`weft.compiler.language.registers`). Blocks are a loop, and so are the tokens
in attention, and the pages of each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from weft.compiler.ir.graph import CompileError
from weft.compiler.kernel.code import generate, tables_of, with_tables
from weft.compiler.kernel.expressions import Rows
from weft.compiler.language import kernels
from weft.compiler.language.attend import Attend, vectors
from weft.compiler.language.contents import Contents, Part
from weft.compiler.language.integers import Integers
from weft.compiler.language.places import Places
from weft.compiler.language.registers import (
    BLOCK,
    CONSTANTS,
    FRAME,
    HEADER_BYTES,
    LAYERS,
    LOGITS,
    PAGES,
    ROWS,
)
from weft.compiler.language.serial_code import SerialCode
from weft.compiler.machine.emit import ceil_div
from weft.hdl.isa import (
    PAGE_ENTRY,
    End,
    Kernel,
    Load,
    Lookup,
    Microcode,
    MicroOp,
    Mm,
    Mode,
    ReadRegisters,
    SetRegisters,
    Source,
    Store,
    Table,
    Vec,
)
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config
from weft.hdl.isa.features import Feature
from weft.hdl.isa.kernel import MICRO_OPS
from weft.hdl.isa.loops import slots


class Decoder:
    """A compiled decoder.

    Parameters
    ----------
    numbers : Integers
    config : Config
        With softmax, a kernel engine, look-up tables and loops.
    rows : int
        Tokens side by side.
    page : int
        Keys of a page, a multiple of N.

    Attributes
    ----------
    code : bytes
    contents : Contents
        The constants, and the records of blocks.
    places : Places

    Raises
    ------
    CompileError
        If the configuration lacks something, or sizes do not fit it.
    """

    def __init__(self, numbers: Integers, config: Config, *, rows: int = 1, page: int = 32) -> None:
        for feature in (Feature.LOOPS, Feature.SOFTMAX, Feature.KERNEL, Feature.LOOKUP):
            if reason := feature.missing(config):
                raise CompileError(f"a decoder does not run on this configuration: {reason}")
        self.numbers, self.config = numbers, config
        self.places = Places(numbers.model.sizes, config, rows, page)
        self.contents = Contents(numbers, self.places)
        self._at = self.places.at
        idle = self._at["idle"]
        self._out = SerialCode(Vec(source=Source.SCRATCHPAD, src=idle, dst=idle + 1, params=idle + 2))
        self._starts: dict[str, int] = {}
        self._prepare()
        self._begin()
        steps = {LAYERS: -1, BLOCK: self.contents.record_bytes, PAGES: self.places.block_bytes}
        with self._out.loop(LAYERS, steps):
            self._block()
        self._head()
        self._out.add(End())
        self.code = b"".join(item.encode() for item in self._out.instructions)

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
        tables, ops = self._kernels()
        count = LOOKUP_ENTRIES // self.config.n
        for number, table in enumerate(tables):
            code.add(self._vectors(CONSTANTS, contents.constant(table), count, weights))
            code.add(Lookup(src=weights, vectors=count, table=number))
        for at in range(0, len(ops), MICRO_OPS):
            some = [op.encode() for op in ops[at : at + MICRO_OPS]]
            code.add(Microcode(entry=at, count=len(some), **{f"op{i}": op for i, op in enumerate(some)}))

    def _kernels(self) -> tuple[list[bytes], list[MicroOp]]:
        """The look-up tables and micro-operations of all kernels; notes where each starts."""
        numbers, sizes, n = self.numbers, self.places.sizes, self.config.n
        scaled = {
            name: items[0] for name, items in numbers.scaled.items()
        }  # but for mantissas they are alike
        query, key = (
            int(max(getattr(layer, name).sums.max() for layer in numbers.layers)) for name in ("query", "key")
        )
        named: dict[str, Rows] = {
            "begin": kernels.begin(sizes.width, self.contents.embedding_unit / numbers.unit),
            "prepare": kernels.prepare(sizes.width),
            "normalise": kernels.normalise(sizes.width, numbers.model.epsilon, numbers.unit),
            "query": kernels.rotate(sizes.key_length, query, *numbers.turn[0]),
            "key": kernels.rotate(sizes.key_length, key, *numbers.turn[1]),
            "value": kernels.requantise(sizes.value_length, scaled["value"]),
            "output": kernels.add(sizes.width, scaled["output"]),
            "gate": kernels.gated(sizes.feed_forward, scaled["gate"], scaled["up"], numbers.gate_places),
            "quantise": kernels.quantise(sizes.feed_forward),
            "down": kernels.add(sizes.width, scaled["down"]),
            "head": kernels.logits(n, numbers.head_scaled),
        }
        tables = list(dict.fromkeys(table for rows in named.values() for table in tables_of(rows)))
        ops: list[MicroOp] = []
        for name, rows in named.items():
            self._starts[name] = len(ops)
            ops += with_tables(generate(rows, n), tuple(map(tables.index, tables_of(rows))))
        if len(ops) > self.config.kernel:
            raise CompileError(
                f"the kernels of a decoder take {len(ops)} micro-operations; the configuration has kernel="
                f"{self.config.kernel}"
            )
        if len(tables) > self.config.lookup_tables:
            raise CompileError(
                f"a decoder takes {len(tables)} look-up tables; the configuration has {self.config.lookup_tables}"
            )
        return tables, ops

    def _begin(self) -> None:
        """Rows of embeddings become the residual stream."""
        places, code, at = self.places, self._out, self._at
        code.add(ReadRegisters(base=FRAME, offset=0, first=ROWS, count=1))
        code.add(SetRegisters(**slots((LAYERS, Mode.SET, places.sizes.blocks))))
        pitch, turns = 2 * places.width, 4 * places.head
        for row in range(places.rows):
            page = HEADER_BYTES // PAGE_ENTRY + row
            for entry, count, dst in (
                (page, pitch, at["inner"] + row * pitch),
                (page + places.rows, turns, at["angles"] + row * turns),
            ):
                load = self._vectors(CONSTANTS, 0, count, dst)
                code.add(dataclasses.replace(load, paged=1, table=FRAME, page=entry))
        code.add(
            Kernel(source=Source.SCRATCHPAD, start=self._starts["begin"], oy=places.rows, ox=places.width,
                   src=at["inner"], src_oy=pitch, src_ox=2, src_vectors=2, dst=at["x"], dst_oy=pitch, dst_ox=2,
                   dst_vectors=2, with_dst2=1, dst2=at["low"], dst2_oy=pitch, dst2_ox=2)
        )  # fmt: skip

    # --- a block

    def _block(self) -> None:
        places, code = self.places, self._out
        code.add(self._normalise())
        for part in self._product("qkv", "a", places.width, BLOCK):
            self._heads(part)
        Attend(places, code).add()
        self._add("output", "a", places.queries, "even", 0)
        code.add(self._normalise())
        for part in self._product("gate", "a", places.width, BLOCK):
            self._gate(part)
        code.add(self._quantise())
        self._add("down", "b", places.inner, "row", 1)

    def _normalise(self) -> Kernel:
        """The residual stream becomes int8 with a shift."""
        at, pitch = self._at, 2 * self.places.width
        return Kernel(
            source=Source.SCRATCHPAD, start=self._starts["normalise"], oy=self.places.rows, ox=self.places.width,
            src=at["x"], src_oy=pitch, src_ox=2, src_vectors=2, with_b=1, b=at["low"], b_oy=pitch, b_ox=2,
            dst=at["a"], dst_oy=self.places.width, dst_ox=1, with_dst2=1, dst2=at["row"], dst2_oy=1,
        )  # fmt: skip

    def _quantise(self) -> Kernel:
        """What comes out of the gate becomes int8 with a shift."""
        at, inner = self._at, self.places.inner
        return Kernel(
            source=Source.SCRATCHPAD, start=self._starts["quantise"], oy=self.places.rows, ox=inner,
            src=at["inner"], src_oy=2 * inner, src_ox=2, src_vectors=2, dst=at["b"], dst_oy=inner, dst_ox=1,
            with_dst2=1, dst2=at["row"], dst2_oy=1,
        )  # fmt: skip

    def _product(self, name: str, a: str, columns: int, base: int) -> Iterator[Part]:
        """LOAD a part of the weights and multiply: row r and tile t of it are accumulator row ``r * tiles + t``."""
        n, rows, weights = self.config.n, self.places.rows, self._at["weights"]
        for part in self.contents.parts[name]:
            if part.tiles * rows > self.config.accumulator_size:
                raise CompileError(f"the accumulator has no room for {part.tiles} tiles of {rows} rows")
            self._out.add(self._vectors(base, part.offset, part.size, weights))
            self._out.add(
                Mm(nt=part.tiles, kc=columns, ox=rows, a=self._at[a], a_kc=1, a_ox=columns, b=weights,
                   b_nt=n * columns, b_kc=n, b_row=1, c_nt=1, c_ox=part.tiles)
            )  # fmt: skip
            yield part

    def _mantissas(self, part: Part) -> int:
        """Where the mantissas of a part are: behind its weights."""
        return self._at["weights"] + part.size - 2 * part.tiles

    def _gate(self, part: Part) -> None:
        """Two tiles of sums become one of what goes into the last product."""
        at, mantissas, inner = self._at, self._mantissas(part), self.places.inner
        self._out.add(
            Kernel(
                source=Source.ACCUMULATOR, start=self._starts["gate"], oy=self.places.rows, ox=part.tiles // 2,
                src_oy=part.tiles, src_ox=2, src_vectors=2, dst=at["inner"] + part.first, dst_oy=2 * inner, dst_ox=2,
                dst_vectors=2, with_b=1, b=mantissas, b_ox=4, b_vectors=2, with_c=1, c=mantissas + 2, c_ox=4,
                c_vectors=2, with_d=1, d=at["row"], d_oy=1,
            )
        )  # fmt: skip

    def _add(self, name: str, a: str, columns: int, row: str, row_step: int) -> None:
        """A product that is added to the residual stream; `row` is where the shift of each row is."""
        pitch, rows = 2 * self.places.width, self.places.rows
        self._out.add(
            Kernel(
                source=Source.SCRATCHPAD, start=self._starts["prepare"], oy=rows, ox=self.places.width,
                src=self._at[row], src_oy=row_step, dst=self._at["low"] + 1, dst_oy=pitch, dst_ox=2,
            )
        )  # fmt: skip
        for part in self._product(name, a, columns, BLOCK):
            upper, low = (self._at[tensor] + 2 * part.first for tensor in ("x", "low"))
            self._out.add(
                Kernel(
                    source=Source.ACCUMULATOR, start=self._starts[name], oy=rows, ox=part.tiles, src_oy=part.tiles,
                    src_ox=1, dst=upper, dst_oy=pitch, dst_ox=2, dst_vectors=2, with_dst2=1, dst2=low, dst2_oy=pitch,
                    dst2_ox=2, dst2_vectors=2, with_b=1, b=self._mantissas(part), b_ox=2, b_vectors=2, with_c=1,
                    c=upper, c_oy=pitch, c_ox=2, c_vectors=2, with_d=1, d=low, d_oy=pitch, d_ox=2, d_vectors=2,
                )
            )  # fmt: skip

    def _heads(self, part: Part) -> None:
        """Queries, keys and values of a part of the product."""
        sizes, head = self.places.sizes, self.places.head
        first = 0
        for name, count in (
            ("query", sizes.heads),
            ("key", sizes.key_value_heads),
            ("value", sizes.key_value_heads),
        ):
            target = self._at[name[0]]
            for index in range(count):
                tile = first + index * head - part.first
                if tile >= 0 and tile + head <= part.tiles:
                    self._one_head(name, part, tile, target + index * head, count * head)
                elif -head < tile < part.tiles:
                    raise CompileError("the scratchpad has no room for the weights of whole heads")
            first += count * head

    def _one_head(self, name: str, part: Part, tile: int, dst: int, pitch: int) -> None:
        head, angles, row = self.places.head, self._at["angles"], self._at["row"]
        kernel = Kernel(
            source=Source.ACCUMULATOR, start=self._starts[name], oy=self.places.rows, ox=head, src=tile,
            src_oy=part.tiles, src_ox=1, dst=dst, dst_oy=pitch, dst_ox=1, with_b=1, b_ox=2, b_vectors=2, with_c=1,
        )  # fmt: skip
        if name == "value":
            more = {"b": self._mantissas(part) + 2 * tile, "c": row, "c_oy": 1}
        else:
            more = {
                "b": angles, "b_oy": 4 * head, "c": angles + 2 * head, "c_oy": 4 * head, "c_ox": 2, "c_vectors": 2,
                "with_d": 1, "d": row, "d_oy": 1,
            }  # fmt: skip
        self._out.add(dataclasses.replace(kernel, **more))

    # --- behind the blocks

    def _head(self) -> None:
        """Logits of all tokens, two digits each."""
        n, rows, dst = self.config.n, self.places.rows, self._at["inner"]
        tiles = ceil_div(self.places.sizes.vocabulary, n)
        self._out.add(self._normalise())
        for part in self._product("head", "a", self.places.width, CONSTANTS):
            count = 2 * part.tiles
            self._out.add(
                Kernel(
                    source=Source.ACCUMULATOR, start=self._starts["head"], ob=rows, oy=part.tiles, src_ob=part.tiles,
                    src_oy=1, dst=dst, dst_ob=count, dst_oy=2, dst_vectors=2, with_b=1, b=self._mantissas(part),
                    b_oy=2, b_vectors=2, with_c=1, c=self._at["row"], c_ob=1,
                )
            )  # fmt: skip
            self._out.add(
                Store(base=LOGITS, offset=2 * part.first * n, rows=rows, row_pitch=2 * tiles * n, pixels=count,
                      pitch=n, length=n, src=dst, src_pixel=1, src_row=count)
            )  # fmt: skip
