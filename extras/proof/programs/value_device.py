"""Execution of programs on values: the golden interpreter, with a value in place of each byte.

A value of `Values` is a number of 32 bits. Four planes of memory hold 8 bits of it each, so LOAD and STORE of the
golden interpreter run once per plane. Instructions, parameters, tables and offsets have to be constants.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce

import numpy as np

from weft.extras.proof.programs import kernels, softmax_unit
from weft.extras.proof.programs.form import SATURATE
from weft.extras.proof.programs.requantise import requantise
from weft.extras.proof.programs.softmax import add_aligned
from weft.extras.proof.programs.sums import INT32, Sums, concatenate, matmul
from weft.extras.proof.programs.symbols import Rows, Symbols, join_bytes
from weft.extras.proof.programs.values import CONSTANTS, Values
from weft.hdl.errors import WeftError
from weft.hdl.isa import (
    PAGE_ENTRY,
    Instruction,
    Kernel,
    Load,
    Lookup,
    Microcode,
    Mm,
    Normalise,
    Reduce,
    Softmax,
    Source,
    Store,
    Table,
    Vec,
)
from weft.hdl.isa import config as parameters
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.golden.kernel import microcode
from weft.sim.golden.memories import Memories, loops, within
from weft.sim.golden.units import load, store

PLANES = 4
"""Planes of memory: bytes per value."""
_CHUNK = 1 << 18
"""Elements per step, to bound memory."""


class Unproven(WeftError, RuntimeError):
    """A failed proof; the message gives the reason."""


class ValueDevice(GoldenDevice):
    """Device whose memories hold values.

    The contents of on-chip memories are unknown at first. So are results of arithmetic that proofs do not support, for
    example in unused columns of the array. A program whose results depend on them does not equal its network.

    Parameters
    ----------
    config : Config
    memory_bytes : int
    values : Values
    """

    def __init__(self, config: Config, memory_bytes: int, values: Values) -> None:
        super().__init__(config, memory_bytes)
        self.values, self.symbols = values, Symbols(values)
        self.planes = [self.memories, *(Memories(config, memory_bytes) for _ in range(1, PLANES))]
        self.set_values(0, np.broadcast_to(values.new_inputs(1), memory_bytes))
        n = config.n
        self.cells = values.new_inputs(config.scratchpad_size * n).reshape(-1, n)
        # Contents of the scratchpad before the program; their numbers are consecutive.
        self._initial_cells = int(self.cells[0, 0]), int(self.cells[-1, -1])
        self.sums = values.new_unknown(config.accumulator_size * n).reshape(-1, n)
        self.tables = np.full((config.lookup_tables, LOOKUP_ENTRIES), -1)
        self.offsets: Mapping[tuple[int, ...], Rows] = {}
        """Tables of row offsets that are inputs, by the values of an offset's bytes."""
        self.rows = softmax_unit.RowStates(values, config)
        # Micro-operations that the program has not written are invalid.
        self.memories.kernel = [None] * config.kernel  # type: ignore[list-item]

    def set_values(self, address: int, numbers: np.ndarray) -> None:
        """Write values to memory, starting at an address."""
        for plane, part in zip(self.planes, _split_planes(numbers), strict=True):
            plane.dram_range(address, len(part))[:] = part

    def get_values(self, address: int, size: int) -> np.ndarray:
        """Read `size` values from memory, int64 (size,)."""
        return _join_planes([plane.dram_range(address, size) for plane in self.planes])

    def write(self, address: int, payload: bytes) -> None:
        self.set_values(address, np.frombuffer(payload, np.uint8).astype(np.int64))

    def read(self, address: int, size: int) -> bytes:
        """Read constants, such as instructions. Raises `DeviceError` if they depend on inputs."""
        constants = self.values.constant_bytes(self.get_values(address, size))
        if constants is None:
            raise DeviceError(f"{size} bytes at {address:#x} are words or registers, and depend on inputs")
        return constants.tobytes()

    def _execute(self, index: int, instruction: Instruction) -> None:
        # The golden interpreter changes registers of the first plane only.
        for plane in self.planes[1:]:
            plane.registers, plane.bases = self.memories.registers, self.memories.bases
        handlers = {
            Load: self._load,
            Store: self._store,
            Mm: self._mm,
            Vec: self._vec,
            Lookup: self._lookup,
            Microcode: lambda i: microcode(self.memories, i),
            Kernel: lambda i: kernels.run(self, i),
            Table: lambda i: softmax_unit.table(self, i),
            Softmax: lambda i: softmax_unit.softmax(self, i),
            Normalise: lambda i: softmax_unit.normalise(self, i),
        }
        if type(instruction) not in handlers:
            raise Unproven(f"instruction {index} ({instruction.OPCODE.name}) is not supported by proofs")
        with _name_instruction(index, instruction):
            handlers[type(instruction)](instruction)  # type: ignore[operator]

    def _load(self, i: Load) -> None:
        resolved = self._resolve_page(i)
        if isinstance(resolved, np.ndarray):
            self._load_row(i, resolved)
            return
        i = resolved
        if i.int4:
            start = self.memories.register(i.base) + i.offset
            for row in range(i.rows):
                address = (start + row * i.row_pitch + row // i.line * i.skip) & 0xFFFFFFFF
                if self.values.constant_bytes(self.get_values(address, i.row_bytes)) is None:
                    raise Unproven("it unpacks 4-bit values that depend on inputs")
        upper = dataclasses.replace(i, fill=0)  # the upper bytes of a constant value are 0
        for number, plane in enumerate(self.planes):
            load(plane, upper if number else i)
        rows = self.memories.addresses(i, "dst").ravel()
        self.cells[rows] = _join_planes([plane.scratchpad[rows].view(np.uint8) for plane in self.planes])

    def _resolve_page(self, i: Load) -> Load | np.ndarray:
        """Convert a paged LOAD to a plain LOAD; return its page table entry, as values, if that depends on inputs."""
        if not i.paged:
            return i
        entry = self._page_entry(i)
        constants = self.values.constant_bytes(entry)
        if constants is None:
            return entry
        offset = i.offset + int.from_bytes(constants.tobytes(), "little")
        return dataclasses.replace(i, paged=0, table=0, page=0, offset=offset & 0xFFFFFFFF)

    def _page_entry(self, i: Load) -> np.ndarray:
        table = self.memories.register(i.table)
        if table % PAGE_ENTRY:
            raise DeviceError(
                f"page table {table:#x} of base register {i.table} is no multiple of {PAGE_ENTRY} bytes"
            )
        return self.get_values((table + i.entry) & 0xFFFFFFFF, PAGE_ENTRY)

    def _load_row(self, i: Load, entry: np.ndarray) -> None:
        """Load a row of a constant table by an offset that is an input."""
        rows = self.offsets.get(tuple(entry.tolist()))
        if rows is None or i.rows != 1 or i.transpose or i.int4:
            raise Unproven("its offset comes from a page table, and it depends on inputs")
        start = self.memories.register(i.base) + i.offset + rows.first
        raw = self.constants(
            self.get_values(start, (rows.count - 1) * rows.pitch + i.run), "it reads rows by offsets"
        ).view(np.int8)
        shape, steps = (rows.count, i.run), (rows.pitch, 1)
        content = np.lib.stride_tricks.as_strided(raw, shape, steps, writeable=False)
        size = (i.pixels - 1) * i.pitch + i.length
        used = max(min(i.run, size - i.before), 0)
        data = np.full(size, i.fill & 0xFF)
        if used:
            offset = join_bytes(self.symbols, entry[None])
            row = self.symbols.table_row(offset, content[:, :used], rows.pitch, rows.first)
            data[i.before : i.before + used] = self.values.apply_forms(row.singletons, [SATURATE] * used)[0]
        shape, steps = (i.pixels, i.length), (data.itemsize * i.pitch, data.itemsize)
        pixels = np.lib.stride_tricks.as_strided(data, shape, steps, writeable=False)
        vectors = -(-i.length // self.config.n)
        padded = np.full((i.pixels, vectors * self.config.n), i.fill & 0xFF)
        padded[:, : i.length] = pixels
        self.cells[self.memories.addresses(i, "dst").ravel()] = padded.reshape(-1, self.config.n)

    def _store(self, i: Store) -> None:
        rows = self.memories.addresses(i, "src").ravel()
        for plane, part in zip(self.planes, _split_planes(self.cells[rows]), strict=True):
            plane.scratchpad[rows] = part.view(np.int8)
            store(plane, i)

    def _mm(self, i: Mm) -> None:
        rows = self.memories.addresses(i, "c").reshape(i.nt, -1)
        if np.unique(rows[0]).size != rows[0].size:
            raise DeviceError(i.operand("c").clash)
        shifts = self.rows.alignments[self.memories.addresses(i, "alignment")] if i.align else None
        # Tiles that read equal rows of A are one product.
        shared = i.a_nt == 0
        for first in range(0, 1 if shared else i.nt):
            tiles = range(i.nt) if shared else range(first, first + 1)
            if shifts is not None:
                self._add_aligned(i, tiles, rows, shifts)
                continue
            products = self._products(i, tiles)
            for tile, cells in zip(range(len(tiles)), rows[list(tiles)], strict=True):
                part = products[:, tile]
                total = self.sums[cells].plus(part) if i.accumulate else part
                self.sums = self.sums.put(cells, self.values.limit_to_int32(total))

    def _add_aligned(self, i: Mm, tiles: range, rows: np.ndarray, shifts: Sums) -> None:
        """Add the steps of the contraction in order, each shifted by its alignments (steps, rows)."""
        cells = rows[list(tiles)].T
        shape = (*cells.shape, self.config.n)
        total = self.sums[cells] if i.accumulate else self.symbols.integers(0, shape)
        for step in range(i.ky * i.kx * i.kc):
            part = self.values.limit_to_int32(self._products(i, tiles, slice(step, step + 1)))
            shift = shifts[step].reshape(len(cells), 1, 1).broadcast_to(shape)
            total = add_aligned(self.symbols, total, part, shift)
        self.sums = self.sums.put(cells, total)

    def _products(self, i: Mm, tiles: range, steps: slice = slice(None)) -> Sums:
        """Return the sums of products (rows, tiles, N) over some steps of the contraction."""
        n, config, memories = self.config.n, self.config, self.memories
        operand, weights = i.operand("a"), i.operand("b")
        outer, inner = ("oy", "ox"), ("ky", "kx", "kc")
        a_row, a_step = (loops(*operand.nest(i, config, *names)).ravel() for names in (outer, inner))
        a_step = a_step[steps] + i.a + tiles.start * i.a_nt
        b_step = loops(*weights.nest(i, config, *inner)).ravel()[steps] + i.b
        b_word = loops(*weights.nest(i, config, "nt", "row"))[tiles.start : tiles.stop].ravel()
        valid = np.ones((a_row.size, a_step.size), bool)
        for bound in operand.bounds:
            offsets = (loops(*bound.nest(i, *names)).ravel() for names in (outer, inner))
            row, step = offsets
            valid &= within(i, bound, row[:, None] + step[steps])
        address = memories.check(operand, np.where(valid, a_row[:, None] + a_step, 0))
        words = self.cells[memories.check(weights, b_word[:, None] + b_step)]
        if i.depthwise:
            rows = self._gather(address, valid, i.pad)
            sums = [self._depthwise_sums(rows[:, step], words[:, step], i) for step in range(a_step.size)]
            return reduce(Sums.plus, sums).reshape(a_row.size, len(tiles), n)
        words = words.reshape(b_word.size, -1)
        constant = np.asarray((words < CONSTANTS).all(axis=1))
        # Columns of unwritten weights are unknown, which is cheaper than their products.
        first, last = self._initial_cells
        unwritten = np.asarray(((words >= first) & (words <= last)).any(axis=1))
        right, others = _bytes(words, constant[:, None]), np.flatnonzero(~constant & ~unwritten)
        parts = []
        chunk = max(1, _CHUNK // (a_step.size * n))
        for low in range(0, a_row.size, chunk):
            part = slice(low, low + chunk)
            rows = self._gather(address[part], valid[part], i.pad).reshape(len(address[part]), -1)
            parts.append(self.values.dot(rows, i.zero, right.T))
            if others.size:
                left = self.values.integers_of(rows).plus_constant(-i.zero)
                products = matmul(left, self.values.integers_of(words[others].T))
                parts[-1] = parts[-1].put((slice(None), others), products)
        total = concatenate(parts, 0)
        if unwritten.any():
            total = self.values.replace_by_unknown(np.broadcast_to(unwritten, total.low.shape), total)
        return total.reshape(a_row.size, len(tiles), n)

    def _gather(self, address: np.ndarray, valid: np.ndarray, pad: int) -> np.ndarray:
        """Return the rows of A, values (rows, steps, N); `pad` where they are not valid."""
        if valid.all():
            return self.cells[address]
        return np.where(valid[..., None], self.cells[address], pad & 0xFF)

    def _depthwise_sums(self, pixels: np.ndarray, words: np.ndarray, i: Mm) -> Sums:
        """Convolve each channel of lines of pixels with the taps in words (tiles * N, N): sums (rows, N).

        See `weft.sim.golden.units`.
        """
        n, taps = self.config.n, self.config.depthwise_taps
        rows = self.values.integers_of(pixels.reshape(i.oy, i.ox, 1, n)).plus_constant(-i.zero)
        # The taps are every second word at the end of a tile.
        words = words.reshape(-1, n, n)[:, n - 2 * taps :: 2]
        constant = np.asarray((words < CONSTANTS).all(axis=1))
        weights = _bytes(words, constant[:, None])
        zeros = self.values.integers_of(np.zeros((i.oy, i.ox, 1, n), np.int64))
        parts = []
        for tap in range(taps):
            back = taps - 1 - tap
            delayed = rows
            if back:
                delayed = concatenate([zeros[:, : min(back, i.ox)], rows[:, : max(i.ox - back, 0)]], 1)
            parts.append(delayed.times_constant(weights[:, tap]))
        total = reduce(Sums.plus, parts)
        if not constant.all():
            total = self.values.replace_by_unknown(np.broadcast_to(~constant, total.low.shape), total)
        return total.reshape(i.rows, -1)

    def constants(self, values: np.ndarray, purpose: str) -> np.ndarray:
        """Return the bytes of values, uint8. Raises `Unproven`, with the clause `purpose`, if they depend on inputs."""
        constants = self.values.constant_bytes(values)
        if constants is None:
            raise Unproven(f"{purpose}, which depend on inputs")
        return constants

    def parameters(self, i: Vec | Softmax) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return mantissas, shifts and biases of all columns. Raises `Unproven` and `DeviceError`."""
        block = self.constants(self.cells[self.memories.addresses(i, "params")], "it has parameters")
        words = parameters.parameter_words(block.view(np.int8))
        mantissa, shift, bias = (
            part.of(words) for part in (parameters.MANTISSA, parameters.SHIFT, parameters.BIAS)
        )
        if int(mantissa.max()) >> self.config.mantissa_bits:
            raise DeviceError(f"a mantissa has more than {self.config.mantissa_bits} bits")
        return mantissa, shift, bias

    def _vec(self, i: Vec) -> None:
        memories, config = self.memories, self.config
        self.check_vec(i)
        mantissa, shift, bias = self.parameters(i)
        dst = memories.addresses(i, "dst").ravel()
        second = self.cells[memories.addresses(i, "b").reshape(-1)] if i.add else None
        clamp, table = (i.zero, i.low, i.high), self._table(i)
        results = np.empty((dst.size, config.n), np.int64)
        chunk = max(1, _CHUNK // (i.ry * i.rx * config.n))
        for low in range(0, dst.size, chunk):
            part = slice(low, low + chunk)
            for rows, value, source in self._reduce(i, part):
                if bool((bias != 0).any()):
                    value = value.plus_constant(bias[None, :, None])
                other = None
                if second is not None:
                    other = self.values.integers_of(second[part][rows]).plus_constant(-i.b_zero)
                if i.multiply:
                    assert other is not None
                    value, other, source = self._product(value, other, bias, i), None, None
                if other is not None:
                    other = other.times_constant(-i.b_mantissa if i.subtract else i.b_mantissa)
                own = None if source is None else (source, bias)
                results[low + rows] = requantise(
                    self.values, value, mantissa, shift, clamp, table, other, own
                )
        self.cells[dst] = results

    def check_vec(self, i: Vec) -> None:
        """Raise `DeviceError` for an invalid VEC."""
        if i.b_mantissa >> self.config.mantissa_bits:
            raise DeviceError(f"a mantissa has more than {self.config.mantissa_bits} bits")
        if i.multiply and not (i.add and i.source == Source.SCRATCHPAD and i.reduce == Reduce.NONE):
            raise DeviceError(
                "'multiply' needs a second operand, a source in the scratchpad, and no reduction"
            )

    def _product(self, value: Sums, other: Sums, bias: np.ndarray, i: Vec) -> Sums:
        plain = value.plus_constant(-bias[None, :, None] - i.pad)
        return plain.times(other.singletons).plus_constant(bias[None, :, None])

    def _table(self, i: Vec) -> bytes:
        if not i.lookup:
            return b""
        return self.table(int(self.memories.addresses(i, "table")))

    def table(self, number: int) -> bytes:
        """Return the entries of a look-up table. Raises `Unproven` if the program has not written them all."""
        return _table_bytes(self.tables[number])

    def powers(self) -> bytes:
        """Return the entries of the table of powers of two. Raises `Unproven` like `table`."""
        return _table_bytes(self.rows.table)

    def _reduce(self, i: Vec, part: slice) -> Iterator[tuple[np.ndarray, Sums, np.ndarray | None]]:
        """Yield the operands of some outputs, in one or two parts.

        Yields
        ------
        int64 (outputs,)
            Indices of outputs.
        Sums (outputs, N, set)
            Sets of integers, whose maxima are requantised.
        int64 (outputs, N) or None
            Values that these integers are, if they are values.
        """
        memories, operand = self.memories, i.operand("src")
        outputs, reduction = ("ob", "oy", "ox"), ("ry", "rx")
        elements = slice(None) if i.reduce else slice(-1, None)

        def spread(outer: list[tuple[int, int]], inner: list[tuple[int, int]]) -> np.ndarray:
            return loops(*outer).ravel()[part, None] + loops(*inner).ravel()[elements]

        nests = (operand.nest(i, self.config, *names) for names in (outputs, reduction))
        address = operand.first(i) + spread(*nests)
        valid = np.ones(address.shape, bool)
        for bound in operand.bounds:
            valid &= within(i, bound, spread(bound.nest(i, *outputs), bound.nest(i, *reduction)))
        address = memories.check(operand, np.where(valid, address, 0))
        nonempty = valid.any(axis=1) if i.reduce == Reduce.MAX else np.ones(len(valid), bool)
        if not nonempty.all():  # the maximum of an empty window is the least int32
            rows = np.flatnonzero(~nonempty)
            yield rows, self.values.integers(np.full((len(rows), self.config.n, 1), -INT32)), None
        rows = np.flatnonzero(nonempty)
        if i.source == Source.SCRATCHPAD:
            yield rows, *self._reduce_values(i, self.cells[address[rows]], valid[rows])
        else:
            yield rows, self._reduce_sums(i, self.sums[address[rows]], valid[rows]), None

    def _reduce_values(self, i: Vec, values: np.ndarray, valid: np.ndarray) -> tuple[Sums, np.ndarray | None]:
        """Reduce values (outputs, elements, N)."""
        if i.reduce == Reduce.MAX:
            result = self.values.maximum(values.swapaxes(1, 2), valid[:, None])
        else:
            values = np.where(valid[..., None], values, i.pad & 0xFF)
            if i.reduce == Reduce.SUM:
                return self.values.integers_of(values).sum(1).singletons, None
            result = values[:, -1]
        return self.values.integers_of(result).singletons, result

    def _reduce_sums(self, i: Vec, sums: Sums, valid: np.ndarray) -> Sums:
        """Reduce integers (outputs, elements, N)."""
        if i.reduce == Reduce.MAX:
            first = valid.argmax(axis=1)
            rows = np.arange(len(first))
            # A valid element takes the place of others: a repeated member does not change a maximum.
            members = np.where(valid, np.arange(valid.shape[1]), first[:, None])
            return sums[rows[:, None], members].transpose((0, 2, 1))
        if not valid.all():
            weight = valid[..., None].astype(np.int64)
            sums = sums.times_constant(weight).plus_constant(i.pad * (1 - weight))
        return sums.sum(1).singletons

    def _lookup(self, i: Lookup) -> None:
        entries = self.constants(self.cells[self.memories.addresses(i, "src")].ravel(), "it fills a table")
        if i.entry + entries.size > LOOKUP_ENTRIES:
            raise DeviceError(f"{entries.size} entries from {i.entry} on do not fit a look-up table")
        self.tables[int(self.memories.addresses(i, "table"))][i.entry : i.entry + entries.size] = entries


@contextmanager
def _name_instruction(index: int, instruction: Instruction) -> Iterator[None]:
    """Prepend the instruction to the message of an `Unproven`."""
    try:
        yield
    except Unproven as error:
        raise Unproven(f"instruction {index} ({instruction.OPCODE.name}): {error}") from None


def _table_bytes(table: np.ndarray) -> bytes:
    if (table < 0).any():
        raise Unproven("it reads a table that the program has not filled")
    return table.astype(np.uint8).tobytes()


def _bytes(values: np.ndarray, constant: np.ndarray) -> np.ndarray:
    """Return constants as integers, int64; 0 elsewhere."""
    return np.where(constant, values, 0).astype(np.uint8).view(np.int8).astype(np.int64)


def _split_planes(numbers: np.ndarray) -> list[np.ndarray]:
    return [(numbers >> 8 * plane & 0xFF).astype(np.uint8) for plane in range(PLANES)]


def _join_planes(parts: list[np.ndarray]) -> np.ndarray:
    return sum(part.astype(np.int64) << 8 * plane for plane, part in enumerate(parts))  # type: ignore[return-value]
