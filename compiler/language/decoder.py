"""The program of a decoder: one for every position, length and number of sequences.

It works on `rows` tokens side by side. What each of them is, where its keys and values go and how many there are, is in
memory (`Frame`), from where the program reads it. Blocks are a loop, and so are the tokens in attention, and the pages
of each. Base registers:

====  =============================================================================
0     constants, and behind them the code
1     the record of the current block: parameters, weights
2     the frame: offsets of embeddings and angles, then a descriptor for each token
3     pages of keys and values, those of the current block
4     what lies between: queries, keys, values and results of all tokens
5     logits
====  =============================================================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.scales import normaliser, score_multiplier
from weft.compiler.kernel.code import generate, tables_of, with_tables
from weft.compiler.kernel.expressions import DIGITS, Rows, digits
from weft.compiler.language import kernels
from weft.compiler.language.integers import Integers
from weft.compiler.language.kernels import ANGLE_PLACES, BYTE_BITS, MOST_BITS, Scaled
from weft.compiler.language.model import dense
from weft.hdl.isa import (
    PARAMETER_VECTORS,
    End,
    Instruction,
    Kernel,
    Load,
    Lookup,
    LoopNext,
    LoopStart,
    Microcode,
    MicroOp,
    Mm,
    Mode,
    Normalise,
    Queue,
    ReadRegisters,
    SetRegisters,
    Softmax,
    Source,
    Store,
    Table,
    Vec,
    parameters,
)
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config
from weft.hdl.isa.kernel import MICRO_OPS

CONSTANTS, BLOCK, FRAME, PAGES, BETWEEN, LOGITS = range(6)
LAYERS, DESCRIPTOR, ROWS_LEFT, ROWS, TABLE, LENGTH, BLOCKS, PLACE, TOKEN = range(6, 15)
"""Registers of the program's own. PLACE is where a token's keys go, TOKEN what lies between of it."""
DESCRIPTOR_WORDS = 8
"""Words of a token's descriptor: where its page table is, keys, blocks of keys, and where its keys go within pages."""
HEADER_BYTES = 32
"""The frame's first word is the number of tokens."""


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


class _Code:
    """Instructions one after the other: each starts when the one before it, of another queue, is done."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self._last: int | None = None

    def add(self, instruction: Instruction) -> None:
        if instruction.QUEUE is not None:
            before = None if self._last is None else self.instructions[self._last]
            if before is not None and before.QUEUE != instruction.QUEUE:
                semaphore = 1 << _semaphore(before.QUEUE, instruction.QUEUE)
                self.instructions[self._last] = _with(before, signal=before.signal | semaphore)  # type: ignore[index]
                instruction = _with(instruction, wait=instruction.wait | semaphore)
            self._last = len(self.instructions)
        self.instructions.append(instruction)

    @contextmanager
    def loop(self, register: int, idle: Instruction, changes: dict[int, int]) -> Iterator[None]:
        """A body that begins and ends with `idle`, so that it is alike however often it runs."""
        self.add(idle)
        start = len(self.instructions)
        self.instructions.append(LoopStart(register=register, skip=1))
        self.add(idle)
        yield
        self.add(idle)
        self.instructions.append(LoopNext(back=len(self.instructions) - start, **_slots(changes, Mode.ADD)))
        self.instructions[start] = LoopStart(register=register, skip=len(self.instructions) - start - 1)


def _with(instruction: Instruction, **changes: int) -> Instruction:
    """The same with other values of some fields."""
    return dataclasses.replace(instruction, **changes)


def _semaphore(first: Queue | None, then: Queue | None) -> int:
    assert first is not None
    assert then is not None
    return 3 * int(first) + int(then) - (then > first)


def _slots(changes: dict[int, int], mode: Mode, start: int = 0) -> dict[str, int]:
    found: dict[str, int] = {}
    for slot, (register, value) in enumerate(changes.items(), start):
        found |= {f"register{slot}": register, f"mode{slot}": int(mode), f"value{slot}": value}
    return found


def words(values: np.ndarray, n: int) -> bytes:
    """A matrix (rows, columns) as words of B: for each N rows, for each N columns, a word of each row. What is missing
    is 0."""
    rows, columns = (_ceil(size, n) * n for size in values.shape)
    padded = np.zeros((rows, columns), np.int8)
    padded[: values.shape[0], : values.shape[1]] = values
    return padded.reshape(rows // n, n, columns // n, n).swapaxes(1, 2).tobytes()


def pairs(values: np.ndarray, n: int) -> np.ndarray:
    """Numbers as two digits, (vectors, 2, n) int8: what is missing is 0."""
    padded = np.zeros(_ceil(len(values), n) * n, np.int64)
    padded[: len(values)] = values
    return np.stack([part.reshape(-1, n) for part in digits(padded, 2)], axis=1)


@dataclass(frozen=True, eq=False)
class Part:
    """Some columns of a product: `tiles` of N outputs, whose weights lie in one piece, with `tiles * 2` vectors of
    mantissas behind them."""

    first: int
    tiles: int
    offset: int
    size: int


@dataclass
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
    pages : int
        Pages that there are.
    """

    numbers: Integers
    config: Config
    rows: int = 1
    page: int = 32
    pages: int = 16
    code: bytes = b""
    constants: bytearray = field(default_factory=bytearray)
    records: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self._check()
        sizes, n = self.numbers.model.sizes, self.config.n
        self.width, self.key, self.value = (
            _ceil(size, n) for size in (sizes.width, sizes.key_length, sizes.value_length)
        )
        self.inner = _ceil(sizes.feed_forward, n)
        self.head_bytes = self.page * n * (self.key + self.value)
        self.block_bytes = sizes.key_value_heads * self.head_bytes
        self.page_bytes = sizes.blocks * self.block_bytes
        self._lay_out()
        self._tables()
        self._weights()
        self._emit()

    def _check(self) -> None:
        sizes, n = self.numbers.model.sizes, self.config.n
        for name in ("width", "key_length", "value_length", "feed_forward"):
            if getattr(sizes, name) % n:
                raise CompileError(
                    f"{name} is {getattr(sizes, name)}, no multiple of the {n} columns of the array"
                )
        if sizes.key_length != sizes.value_length:
            raise CompileError(
                f"keys have {sizes.key_length} elements, values {sizes.value_length}: they must be equal"
            )
        if self.page % n:
            raise CompileError(f"pages have {self.page} keys, no multiple of {n}")

    # --- memory

    def _lay_out(self) -> None:
        """Places on the chip, in vectors."""
        sizes, n, rows = self.numbers.model.sizes, self.config.n, self.rows
        heads, groups = sizes.heads, sizes.key_value_heads
        at = 0
        residual, key, value = 2 * rows * self.width, groups * self.key, groups * self.value
        sizes_of = {
            "x": residual, "low": residual, "a": rows * max(self.width, heads * self.value), "row": rows, "even": 1,
            "inner": 2 * rows * max(self.inner, self.width), "b": rows * self.inner, "angles": 4 * rows * self.key,
            "q": rows * heads * self.key, "k": rows * key, "v": rows * value, "one": heads * self.key + key + value,
            "out": heads * self.value, "keys": self.page * key, "values": self.page * value,
            "p": heads * self.page // n, "scores": PARAMETER_VECTORS, "idle": PARAMETER_VECTORS + 2,
        }  # fmt: skip
        self.at: dict[str, int] = {}
        for name, size in sizes_of.items():
            self.at[name], at = at, at + size
        self.at["weights"] = at
        self.room = self.config.scratchpad_size - at
        if self.room < n * max(self.width, self.inner, self.config.table_depth // n // n) + 4:
            raise CompileError(
                f"the scratchpad of {self.config.scratchpad_size} vectors has room for {self.room} behind {rows} rows"
            )

    def _constant(self, content: bytes) -> int:
        at = len(self.constants)
        self.constants += content + bytes(-len(content) % 64)
        return at

    def _tables(self) -> None:
        """Constants: embeddings and angles in rows, and what fills tables."""
        numbers, n = self.numbers, self.config.n
        model = numbers.model
        dense_embedding = dense(model.token_embedding).astype(np.float64)
        self.embedding_unit = float(np.abs(dense_embedding).max()) / DIGITS
        embedding = np.rint(dense_embedding / self.embedding_unit).astype(np.int64)
        self.embedding = self._constant(np.stack([pairs(row, n) for row in embedding]).tobytes())
        self.embedding_bytes = 2 * self.width * n
        assert model.rotary is not None
        angles = model.rotary.angles(np.arange(model.sizes.context)).repeat(2, axis=1)
        whole = np.zeros((model.sizes.context, model.sizes.key_length))
        whole[:, : angles.shape[1]] = angles
        cosine, sine = np.cos(whole), np.sin(whole)
        sine[:, ::2] *= -1
        scale = 1 << ANGLE_PLACES
        rows = [
            np.concatenate([pairs(np.rint(scale * part[position]).astype(int), n) for part in (cosine, sine)])
            for position in range(model.sizes.context)
        ]
        self.angles = self._constant(np.stack(rows).tobytes())
        self.angle_bytes = 4 * self.key * n
        self.exp2 = self._constant(self.config.exp2_table)
        self.even = self._constant(bytes([MOST_BITS - BYTE_BITS]) * n)

    def _parts(
        self, rows: int, columns: int, record: bytearray, step: int = 1, limit: int = 255
    ) -> list[Part]:
        """How a product of so many tiles of outputs is cut; `step` tiles stay together."""
        most = min(self.room // (self.config.n * columns + 2), rows, limit) // step * step
        if not most:
            raise CompileError("the scratchpad has no room for a tile of weights")
        found = []
        for first in range(0, rows, most):
            tiles = min(most, rows - first)
            found.append(Part(first, tiles, 0, tiles * (self.config.n * columns + 2)))
        return found

    def _put(
        self, target: bytearray, parts: list[Part], matrix: np.ndarray, mantissas: np.ndarray
    ) -> list[Part]:
        n, placed = self.config.n, []
        for part in parts:
            at = len(target)
            lines = slice(part.first * n, (part.first + part.tiles) * n)
            target += words(matrix[lines], n) + pairs(mantissas[lines], n).tobytes()
            target += bytes(-len(target) % 64)
            placed.append(Part(part.first, part.tiles, at, part.size))
        return placed

    def _weights(self) -> None:
        numbers, n = self.numbers, self.config.n
        sizes = numbers.model.sizes
        self.parts: dict[str, list[Part]] = {}
        for index, layer in enumerate(numbers.layers):
            record = bytearray(self._score_block(layer.octaves))
            qkv = np.concatenate([layer.query.values, layer.key.values, layer.value.values])
            ones = np.ones(len(layer.query.values) + len(layer.key.values), np.int16)
            mantissas = np.concatenate([ones, numbers.scaled["value"][index].mantissas])
            both = _interleaved([layer.gate.values, layer.up.values], n)
            gates = _interleaved(
                [numbers.scaled[name][index].mantissas[:, None] for name in ("gate", "up")], n
            )
            named = {
                "qkv": (qkv, mantissas, self.width, 1),
                "output": (
                    layer.output.values,
                    numbers.scaled["output"][index].mantissas,
                    sizes.heads * self.value,
                    1,
                ),
                "gate": (both, gates[:, 0], self.width, 2),
                "down": (layer.down.values, numbers.scaled["down"][index].mantissas, self.inner, 1),
            }
            for name, (matrix, factors, columns, step) in named.items():
                parts = self._parts(_ceil(len(matrix), n), columns, record, step)
                self.parts[name] = self._put(record, parts, matrix, factors)
            self.record_bytes = len(record)
            self.records += record
        head = bytearray()
        rows = _ceil(sizes.vocabulary, n)
        parts = self._parts(rows, self.width, head, limit=self.inner)
        self.parts["head"] = self._put(head, parts, numbers.head.values, numbers.head_scaled.mantissas)
        self.head = self._constant(bytes(head))

    def _score_block(self, octaves: float) -> bytes:
        n = self.config.n
        mantissa, shift = score_multiplier(octaves, self.config.mantissa_bits)
        return parameters.block(np.zeros(n), np.full(n, mantissa), np.full(n, shift), n)

    # --- instructions

    def _vectors(self, base: int, offset: int, count: int, dst: int) -> Load:
        n = self.config.n
        return Load(
            base=base, offset=offset, pixels=count, pitch=n, length=n, run=count * n, dst=dst, dst_pixel=1
        )

    def _emit(self) -> None:
        self.out = code = _Code()
        self.idle = Vec(source=Source.SCRATCHPAD, src=self.at["idle"], dst=self.at["idle"] + 1,
                        params=self.at["idle"] + 2)  # fmt: skip
        self._prepare()
        code.add(ReadRegisters(base=FRAME, offset=0, first=ROWS, count=1))
        code.add(SetRegisters(**_slots({LAYERS: self.numbers.model.sizes.blocks}, Mode.SET)))
        for row in range(self.rows):
            for table, count, at in (
                (0, 2 * self.width, self.at["inner"] + row * 2 * self.width),
                (self.rows, 4 * self.key, self.at["angles"] + row * 4 * self.key),
            ):
                load = self._vectors(CONSTANTS, 0, count, at)
                code.add(_with(load, paged=1, table=FRAME, page=HEADER_BYTES // 4 + table + row))
        code.add(
            Kernel(source=Source.SCRATCHPAD, start=self.starts["begin"], oy=self.rows, ox=self.width,
                   src=self.at["inner"], src_oy=2 * self.width, src_ox=2, src_vectors=2, dst=self.at["x"],
                   dst_oy=2 * self.width, dst_ox=2, dst_vectors=2, with_dst2=1, dst2=self.at["low"],
                   dst2_oy=2 * self.width, dst2_ox=2)
        )  # fmt: skip
        with code.loop(LAYERS, self.idle, {LAYERS: -1, BLOCK: self.record_bytes, PAGES: self.block_bytes}):
            self._block()
        self._head()
        code.instructions.append(End())
        self.code = b"".join(item.encode() for item in code.instructions)

    def _prepare(self) -> None:
        """Tables, kernels and parameters that stay."""
        code, n, numbers = self.out, self.config.n, self.numbers
        weights, sizes = self.at["weights"], numbers.model.sizes
        code.add(self._vectors(CONSTANTS, self.exp2, self.config.table_depth // n, weights))
        code.add(Table(src=weights, vectors=self.config.table_depth // n))
        code.add(self._vectors(CONSTANTS, self.even, 1, self.at["even"]))
        named: dict[str, Rows] = {
            "begin": kernels.begin(sizes.width, self.embedding_unit / numbers.unit),
            "prepare": kernels.prepare(sizes.width),
            "normalise": kernels.normalise(sizes.width, numbers.model.epsilon, numbers.unit),
            "query": kernels.rotate(sizes.key_length, self._most("query"), *numbers.turn[0]),
            "key": kernels.rotate(sizes.key_length, self._most("key"), *numbers.turn[1]),
            "value": kernels.requantise(sizes.value_length, self._widest("value")),
            "output": kernels.add(sizes.width, self._widest("output")),
            "gate": kernels.gated(sizes.feed_forward, self._widest("gate"), self._widest("up"), numbers.gate_places),
            "quantise": kernels.quantise(sizes.feed_forward),
            "down": kernels.add(sizes.width, self._widest("down")),
            "head": kernels.logits(n, numbers.head_scaled),
        }  # fmt: skip
        tables: list[bytes] = []
        self.starts: dict[str, int] = {}
        ops: list[MicroOp] = []
        for name, rows in named.items():
            for table in tables_of(rows):
                if table not in tables:
                    tables.append(table)
            numbers_of = tuple(tables.index(table) for table in tables_of(rows))
            self.starts[name] = len(ops)
            ops += with_tables(generate(rows, n), numbers_of)
        if len(ops) > self.config.kernel:
            raise CompileError(
                f"the kernels of a decoder take {len(ops)} micro-operations; the configuration has kernel="
                f"{self.config.kernel}"
            )
        if len(tables) > self.config.lookup_tables:
            raise CompileError(
                f"a decoder takes {len(tables)} look-up tables; the configuration has {self.config.lookup_tables}"
            )
        for number, table in enumerate(tables):
            count = LOOKUP_ENTRIES // n
            code.add(self._vectors(CONSTANTS, self._constant(table), count, weights))
            code.add(Lookup(src=weights, vectors=count, table=number))
        for at in range(0, len(ops), MICRO_OPS):
            some = [op.encode() for op in ops[at : at + MICRO_OPS]]
            code.add(Microcode(entry=at, count=len(some), **{f"op{i}": op for i, op in enumerate(some)}))

    def _most(self, name: str) -> int:
        return int(max(getattr(layer, name).sums.max() for layer in self.numbers.layers))

    def _widest(self, name: str) -> Scaled:
        every = self.numbers.scaled[name]
        return Scaled(every[0].mantissas, every[0].shift, every[0].most, every[0].reach)

    def _normalise(self) -> Kernel:
        """The residual stream becomes int8 with a shift."""
        return Kernel(
            source=Source.SCRATCHPAD, start=self.starts["normalise"], oy=self.rows, ox=self.width, src=self.at["x"],
            src_oy=2 * self.width, src_ox=2, src_vectors=2, with_b=1, b=self.at["low"], b_oy=2 * self.width, b_ox=2,
            dst=self.at["a"], dst_oy=self.width, dst_ox=1, with_dst2=1, dst2=self.at["row"], dst2_oy=1,
        )  # fmt: skip

    def _quantise(self) -> Kernel:
        """What comes out of the gate becomes int8 with a shift."""
        return Kernel(
            source=Source.SCRATCHPAD, start=self.starts["quantise"], oy=self.rows, ox=self.inner,
            src=self.at["inner"], src_oy=2 * self.inner, src_ox=2, src_vectors=2, dst=self.at["b"],
            dst_oy=self.inner, dst_ox=1, with_dst2=1, dst2=self.at["row"], dst2_oy=1,
        )  # fmt: skip

    def _product(self, name: str, a: str, columns: int, base: int, offset: int = 0) -> Iterator[Part]:
        """LOAD a part of the weights and multiply: row r and tile t of it are accumulator row ``r * tiles + t``."""
        n = self.config.n
        for part in self.parts[name]:
            if part.tiles * self.rows > self.config.accumulator_size:
                raise CompileError(f"the accumulator has no room for {part.tiles} tiles of {self.rows} rows")
            self.out.add(self._vectors(base, offset + part.offset, part.size, self.at["weights"]))
            self.out.add(
                Mm(nt=part.tiles, kc=columns, ox=self.rows, a=self.at[a], a_kc=1, a_ox=columns,
                   b=self.at["weights"], b_nt=n * columns, b_kc=n, b_row=1, c_nt=1, c_ox=part.tiles)
            )  # fmt: skip
            yield part

    def _mantissas(self, part: Part, columns: int) -> int:
        return self.at["weights"] + part.tiles * self.config.n * columns

    def _block(self) -> None:
        code = self.out
        sizes = self.numbers.model.sizes
        code.add(self._normalise())
        for part in self._product("qkv", "a", self.width, BLOCK):
            self._heads(part)
        self._attend()
        self._add("output", "a", sizes.heads * self.value, "even", 0)
        code.add(self._normalise())
        for part in self._product("gate", "a", self.width, BLOCK):
            at, half = self._mantissas(part, self.width), part.tiles // 2
            code.add(
                Kernel(
                    source=Source.ACCUMULATOR, start=self.starts["gate"], oy=self.rows, ox=half,
                    src_oy=part.tiles, src_ox=2, src_vectors=2, dst=self.at["inner"] + part.first,
                    dst_oy=2 * self.inner, dst_ox=2, dst_vectors=2, with_b=1, b=at, b_ox=4, b_vectors=2, with_c=1,
                    c=at + 2, c_ox=4, c_vectors=2, with_d=1, d=self.at["row"], d_oy=1,
                )
            )  # fmt: skip
        code.add(self._quantise())
        self._add("down", "b", self.inner, "row", 1)

    def _add(self, name: str, a: str, columns: int, row: str, row_step: int) -> None:
        """A product that is added to the residual stream; `row` is where the shift of each row is."""
        pitch = 2 * self.width
        self.out.add(
            Kernel(
                source=Source.SCRATCHPAD, start=self.starts["prepare"], oy=self.rows, ox=self.width,
                src=self.at[row], src_oy=row_step, dst=self.at["low"] + 1, dst_oy=pitch, dst_ox=2,
            )
        )  # fmt: skip
        for part in self._product(name, a, columns, BLOCK):
            upper, low = (self.at[tensor] + 2 * part.first for tensor in ("x", "low"))
            self.out.add(
                Kernel(
                    source=Source.ACCUMULATOR, start=self.starts[name], oy=self.rows, ox=part.tiles,
                    src_oy=part.tiles, src_ox=1, dst=upper, dst_oy=pitch, dst_ox=2, dst_vectors=2,
                    with_dst2=1, dst2=low, dst2_oy=pitch, dst2_ox=2, dst2_vectors=2, with_b=1,
                    b=self._mantissas(part, columns), b_ox=2, b_vectors=2, with_c=1, c=upper, c_oy=pitch, c_ox=2,
                    c_vectors=2, with_d=1, d=low, d_oy=pitch, d_ox=2, d_vectors=2,
                )
            )  # fmt: skip

    def _heads(self, part: Part) -> None:
        """Queries, keys and values of a part of the product."""
        sizes = self.numbers.model.sizes
        first = 0
        for name, count, length in (("query", sizes.heads, self.key), ("key", sizes.key_value_heads, self.key),
                                    ("value", sizes.key_value_heads, self.value)):  # fmt: skip
            target = self.at[name[0]]
            for head in range(count):
                at = first + head * length
                if part.first <= at and at + length <= part.first + part.tiles:
                    self._one_head(
                        name, part, at - part.first, target + head * length, count * length, length
                    )
                elif part.first < at + length and at < part.first + part.tiles:
                    raise CompileError("the scratchpad has no room for the weights of whole heads")
            first += count * length

    def _one_head(self, name: str, part: Part, tile: int, dst: int, pitch: int, length: int) -> None:
        row = {"oy": self.rows, "ox": length, "src": tile, "src_oy": part.tiles, "src_ox": 1, "dst": dst,
               "dst_oy": pitch, "dst_ox": 1, "source": Source.ACCUMULATOR, "start": self.starts[name]}  # fmt: skip
        if name == "value":
            mantissas = self._mantissas(part, self.width) + 2 * tile
            self.out.add(
                Kernel(**row, with_b=1, b=mantissas, b_ox=2, b_vectors=2, with_c=1, c=self.at["row"], c_oy=1)
            )
            return
        angles = self.at["angles"]
        self.out.add(
            Kernel(
                **row, with_b=1, b=angles, b_oy=4 * self.key, b_ox=2, b_vectors=2, with_c=1, c=angles + 2 * self.key,
                c_oy=4 * self.key, c_ox=2, c_vectors=2, with_d=1, d=self.at["row"], d_oy=1,
            )
        )  # fmt: skip

    # --- attention, one token after the other

    def _attend(self) -> None:
        code, n, sizes = self.out, self.config.n, self.numbers.model.sizes
        q, kv, v = (
            sizes.heads * self.key,
            sizes.key_value_heads * self.key,
            sizes.key_value_heads * self.value,
        )
        self.one_bytes = (q + kv + v) * n
        code.add(self._vectors(BLOCK, 0, PARAMETER_VECTORS, self.at["scores"]))
        for row in range(self.rows):
            for name, count, at in (("q", q, 0), ("k", kv, q), ("v", v, q + kv)):
                code.add(
                    Store(base=BETWEEN, offset=row * self.one_bytes + at * n, pixels=count, pitch=n, length=n,
                          src=self.at[name] + row * count, src_pixel=1)
                )  # fmt: skip
        code.add(SetRegisters(**{
            **_slots({ROWS_LEFT: 0}, Mode.SET), **_slots({ROWS_LEFT: ROWS}, Mode.ADD_REGISTER, 1),
            **_slots({DESCRIPTOR: 0}, Mode.SET, 2), **_slots({DESCRIPTOR: FRAME}, Mode.ADD_REGISTER, 3),
            **_slots({TOKEN: 0}, Mode.SET, 4), **_slots({TOKEN: BETWEEN}, Mode.ADD_REGISTER, 5),
        }))  # fmt: skip
        with code.loop(ROWS_LEFT, self.idle, {
            ROWS_LEFT: -1, DESCRIPTOR: 4 * DESCRIPTOR_WORDS, TOKEN: self.one_bytes,
        }):  # fmt: skip
            self._attend_one()
        out = sizes.heads * self.value
        load = self._vectors(BETWEEN, self.between_out, out, self.at["a"])
        code.add(_with(load, rows=self.rows, row_pitch=self.one_bytes, dst_row=out))

    @property
    def between_out(self) -> int:
        """Attention's results take the place of queries."""
        return 0

    @property
    def descriptors(self) -> int:
        """Where the descriptors are in the frame: behind two offsets for each token."""
        return _ceil(HEADER_BYTES + 8 * self.rows, 32) * 32

    def _attend_one(self) -> None:
        code, n, sizes = self.out, self.config.n, self.numbers.model.sizes
        heads, groups = sizes.heads, sizes.key_value_heads
        each = heads // groups
        code.add(ReadRegisters(base=DESCRIPTOR, offset=self.descriptors, first=TABLE, count=4))
        code.add(SetRegisters(**_slots({PLACE: PAGES}, Mode.ADD_REGISTER)))
        one, q = self.at["one"], heads * self.key
        code.add(self._vectors(TOKEN, 0, q + groups * (self.key + self.value), one))
        for name, size, at in (("k", self.key, q), ("v", self.value, q + groups * self.key)):
            offset = 0 if name == "k" else self.page * n * self.key
            code.add(
                Store(base=PLACE, offset=offset, rows=groups, row_pitch=self.head_bytes, pixels=1, pitch=size * n,
                      length=size * n, src=one + at, src_vector=1, src_pixel=0, src_row=size)
            )  # fmt: skip
        sums = self.config.accumulator_size // 2
        code.add(Mm(nt=heads * self.value, a=one, a_ox=0, y=-1, pad=0, b=one, c=sums, c_nt=1))
        code.add(self._softmax(first=1, length=-(1 << 15), relative=0, groups=1, scores=0))
        with code.loop(BLOCKS, self.idle, {BLOCKS: -1, TABLE: 4, LENGTH: -self.page}):
            for group in range(groups):
                keys, values = (self.at[name] + group * self.page * size for name, size in
                                (("keys", self.key), ("values", self.value)))  # fmt: skip
                load = self._vectors(PAGES, group * self.head_bytes, self.page * self.key, keys)
                code.add(_with(load, paged=1, table=TABLE))
                for part in range(0, self.value, self.config.transposed_vectors):
                    some = min(self.config.transposed_vectors, self.value - part)
                    code.add(
                        Load(base=PAGES, offset=group * self.head_bytes + self.page * n * self.key + part * n,
                             rows=self.page, row_pitch=self.value * n, pixels=1, pitch=some * n, length=some * n,
                             run=some * n, dst=values + part * self.page, dst_vector=1, dst_pixel=self.page, dst_row=n,
                             transpose=1, paged=1, table=TABLE)
                    )  # fmt: skip
            columns = self.page // n
            for group in range(groups):
                code.add(
                    Mm(nt=columns, kc=self.key, ox=each, a=one + group * each * self.key, a_kc=1, a_ox=self.key,
                       b=self.at["keys"] + group * self.page * self.key, b_nt=n * self.key, b_kc=1, b_row=self.key,
                       c=group * each, c_nt=heads, c_ox=1)
                )  # fmt: skip
            code.add(self._softmax(first=0, length=0, relative=1, groups=columns, scores=0))
            for group in range(groups):
                code.add(
                    Mm(accumulate=1, nt=self.value, kc=columns, ox=each, a=self.at["p"] + group * each, a_kc=heads,
                       a_ox=1, zero=-128, b=self.at["values"] + group * self.page * self.value, b_nt=self.page, b_kc=n,
                       b_row=1, c=sums + group * each, c_nt=heads, c_ox=1, align=1, alignment=group * columns * each)
                )  # fmt: skip
        scale, exponent = normaliser(1.0)
        code.add(
            Normalise(oy=heads, ox=self.value, src=sums, src_oy=1, src_ox=heads, dst=self.at["out"],
                      dst_oy=self.value, dst_ox=1, scale=scale, exponent=exponent, state=0, state_oy=1)
        )  # fmt: skip
        code.add(
            Store(
                base=TOKEN,
                offset=0,
                pixels=heads * self.value,
                pitch=n,
                length=n,
                src=self.at["out"],
                src_pixel=1,
            )
        )

    def _softmax(self, *, first: int, length: int, relative: int, groups: int, scores: int) -> Softmax:
        sizes = self.numbers.model.sizes
        heads, each = sizes.heads, sizes.heads // sizes.key_value_heads
        columns = self.page // self.config.n
        return Softmax(
            source=Source.ACCUMULATOR, ob=groups, oy=sizes.key_value_heads, ox=each, src=scores, src_ob=heads,
            src_oy=each, src_ox=1, dst=self.at["p"], dst_ob=heads, dst_oy=each, dst_ox=1, params=self.at["scores"],
            first=first, relative=relative, register=LENGTH, length=length, state=0, state_oy=each, state_ox=1,
            alignment=0, alignment_ob=each, alignment_oy=columns * each, alignment_ox=1,
        )  # fmt: skip

    def _head(self) -> None:
        code, n = self.out, self.config.n
        code.add(self._normalise())
        for part in self._product("head", "a", self.width, CONSTANTS, self.head):
            dst = self.at["inner"]
            if 2 * part.tiles * self.rows > 2 * self.rows * self.inner:
                raise CompileError("the scratchpad has no room for logits")
            code.add(
                Kernel(
                    source=Source.ACCUMULATOR, start=self.starts["head"], ob=self.rows, oy=part.tiles, ox=1,
                    src_ob=part.tiles, src_oy=1, dst=dst, dst_ob=2 * part.tiles, dst_oy=2, dst_vectors=2, with_b=1,
                    b=self._mantissas(part, self.width), b_oy=2, b_vectors=2, with_c=1, c=self.at["row"], c_ob=1,
                )
            )  # fmt: skip
            tiles = _ceil(self.numbers.model.sizes.vocabulary, n)
            code.add(
                Store(base=LOGITS, offset=2 * part.first * n, rows=self.rows, row_pitch=2 * tiles * n,
                      pixels=2 * part.tiles, pitch=n, length=n, src=dst, src_pixel=1, src_row=2 * part.tiles)
            )  # fmt: skip


def _interleaved(matrices: list[np.ndarray], n: int) -> np.ndarray:
    """N rows of each in turn."""
    padded = [np.pad(item, ((0, -len(item) % n), (0, 0))) for item in matrices]
    return np.stack([item.reshape(-1, n, item.shape[1]) for item in padded], axis=1).reshape(
        -1, matrices[0].shape[1]
    )
