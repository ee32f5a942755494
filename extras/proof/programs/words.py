"""What a program's words compute: the golden interpreter's order and addresses, on values in the place of bytes.

A byte of memory is the number of a `Values` value, 32 bits, of which each plane of memory has eight: so LOAD and STORE
are those of the golden interpreter, once a plane. Words, parameters, tables and offsets have to be constants.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce

import numpy as np

from weft.extras.proof.programs import kernels, scores
from weft.extras.proof.programs.form import STORED
from weft.extras.proof.programs.requantise import requantised
from weft.extras.proof.programs.softmax import aligned
from weft.extras.proof.programs.sums import INT32, Sums, concatenated, product
from weft.extras.proof.programs.symbols import Rows, Symbols, joined_bytes
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
"""Planes of memory: bytes of a value's number."""
_CHUNK = 1 << 18
"""Elements that are worked on at a time, to bound memory."""


class Unproven(WeftError, RuntimeError):
    """Something that a proof needs and that is not known; the message says what."""


class ValueDevice(GoldenDevice):
    """A device whose memories hold values.

    What is on chip at first is unknown, and so is what other arithmetic than that of proofs makes, as in columns of the
    array that nobody uses: a program whose results depend on it computes something else than its network.

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
        self.set_values(0, np.broadcast_to(values.inputs(1), memory_bytes))
        n = config.n
        self.cells = values.inputs(config.scratchpad_size * n).reshape(-1, n)
        self._nothing = int(self.cells[0, 0]), int(self.cells[-1, -1])
        self.sums = values.unknown(config.accumulator_size * n).reshape(-1, n)
        self.tables = np.full((config.lookup_tables, LOOKUP_ENTRIES), -1)
        self.offsets: Mapping[tuple[int, ...], Rows] = {}
        """Of offsets of rows that are inputs, by the values of their bytes."""
        self.rows = scores.RowStates(values, config)
        self.memories.kernel = [None] * config.kernel  # type: ignore[list-item]  # nobody wrote them

    def set_values(self, address: int, numbers: np.ndarray) -> None:
        """Write values to memory, from an address on."""
        for plane, part in zip(self.planes, _split(numbers), strict=True):
            plane.dram_range(address, len(part))[:] = part

    def get_values(self, address: int, size: int) -> np.ndarray:
        """Read them."""
        return _joined([plane.dram_range(address, size) for plane in self.planes])

    def write(self, address: int, payload: bytes) -> None:
        self.set_values(address, np.frombuffer(payload, np.uint8).astype(np.int64))

    def read(self, address: int, size: int) -> bytes:
        """Constants, as words are."""
        found = self.values.constants(self.get_values(address, size))
        if found is None:
            raise DeviceError(f"{size} bytes at {address:#x} are words or registers, and depend on inputs")
        return found.tobytes()

    def _execute(self, index: int, instruction: Instruction) -> None:
        for plane in self.planes[1:]:
            plane.registers, plane.bases = self.memories.registers, self.memories.bases
        carried_out = {
            Load: self._load,
            Store: self._store,
            Mm: self._mm,
            Vec: self._vec,
            Lookup: self._lookup,
            Microcode: lambda i: microcode(self.memories, i),
            Kernel: lambda i: kernels.run(self, i),
            Table: lambda i: scores.table(self, i),
            Softmax: lambda i: scores.softmax(self, i),
            Normalise: lambda i: scores.normalise(self, i),
        }
        if type(instruction) not in carried_out:
            raise Unproven(
                f"instruction {index} ({instruction.OPCODE.name}) is none of those that proofs know"
            )
        with _placed(index, instruction):
            carried_out[type(instruction)](instruction)  # type: ignore[operator]

    def _load(self, i: Load) -> None:
        found = self._resolved(i)
        if isinstance(found, np.ndarray):
            self._load_row(i, found)
            return
        i = found
        if i.int4:
            start = self.memories.register(i.base) + i.offset
            for row in range(i.rows):
                address = (start + row * i.row_pitch + row // i.line * i.skip) & 0xFFFFFFFF
                if self.values.constants(self.get_values(address, i.row_bytes)) is None:
                    raise Unproven("it unpacks values of 4 bits that are no constants")
        upper = dataclasses.replace(i, fill=0)  # the upper bytes of the number of a constant
        for number, plane in enumerate(self.planes):
            load(plane, upper if number else i)
        rows = self.memories.addresses(i, "dst").ravel()
        self.cells[rows] = _joined([plane.scratchpad[rows].view(np.uint8) for plane in self.planes])

    def _resolved(self, i: Load) -> Load | np.ndarray:
        """A paged LOAD as one that is not; or the values of its entry, if that depends on inputs."""
        if not i.paged:
            return i
        numbers = self._entry(i)
        if self.values.constants(numbers) is None:
            return numbers
        entry = int.from_bytes(numbers.astype(np.uint8).tobytes(), "little")
        return dataclasses.replace(i, paged=0, table=0, page=0, offset=(i.offset + entry) & 0xFFFFFFFF)

    def _entry(self, i: Load) -> np.ndarray:
        """The values of the bytes of an entry of a page table."""
        table = self.memories.register(i.table)
        if table % PAGE_ENTRY:
            raise DeviceError(
                f"page table {table:#x} of base register {i.table} is no multiple of {PAGE_ENTRY} bytes"
            )
        return self.get_values((table + i.entry) & 0xFFFFFFFF, PAGE_ENTRY)

    def _load_row(self, i: Load, numbers: np.ndarray) -> None:
        """Load a row of a constant table by an offset that is an input."""
        rows = self.offsets.get(tuple(numbers.tolist()))
        if rows is None or i.rows != 1 or i.transpose or i.int4:
            raise Unproven("its offset comes from a page table, and it depends on inputs")
        start = self.memories.register(i.base) + i.offset + rows.first
        raw = self.constants(
            self.get_values(start, (rows.count - 1) * rows.pitch + i.run), "it reads rows by offsets"
        ).view(np.int8)
        shape, steps = (rows.count, i.run), (rows.pitch, 1)
        content = np.lib.stride_tricks.as_strided(raw, shape, steps, writeable=False)
        needed = (i.pixels - 1) * i.pitch + i.length
        taken = max(min(i.run, needed - i.before), 0)
        data = np.full(needed, i.fill & 0xFF)
        if taken:
            offset = joined_bytes(self.symbols, numbers[None])
            found = self.symbols.row_of(offset, content[:, :taken], rows.pitch, rows.first)
            made = self.values.results(found.reshape(1, taken, 1), [STORED] * taken)
            data[i.before : i.before + taken] = made[0]
        shape, steps = (i.pixels, i.length), (data.itemsize * i.pitch, data.itemsize)
        pixels = np.lib.stride_tricks.as_strided(data, shape, steps, writeable=False)
        vectors = -(-i.length // self.config.n)
        whole = np.full((i.pixels, vectors * self.config.n), i.fill & 0xFF)
        whole[:, : i.length] = pixels
        self.cells[self.memories.addresses(i, "dst").ravel()] = whole.reshape(-1, self.config.n)

    def _store(self, i: Store) -> None:
        rows = self.memories.addresses(i, "src").ravel()
        for plane, part in zip(self.planes, _split(self.cells[rows]), strict=True):
            plane.scratchpad[rows] = part.view(np.int8)
            store(plane, i)

    def _mm(self, i: Mm) -> None:
        rows = self.memories.addresses(i, "c").reshape(i.nt, -1)
        if np.unique(rows[0]).size != rows[0].size:
            raise DeviceError(i.operand("c").clash)
        shifts = self.rows.alignments[self.memories.addresses(i, "alignment")] if i.align else None
        together = i.a_nt == 0
        for first in range(0, 1 if together else i.nt):
            tiles = range(i.nt) if together else range(first, first + 1)
            if shifts is not None:
                self._add_aligned(i, tiles, rows, shifts)
                continue
            made = self._products(i, tiles)
            for tile, cells in zip(range(len(tiles)), rows[list(tiles)], strict=True):
                part = made[:, tile]
                self._put(cells, self.sums[cells].plus(part) if i.accumulate else part)

    def _add_aligned(self, i: Mm, tiles: range, rows: np.ndarray, shifts: Sums) -> None:
        """Add one step of the contraction after the other, each shifted by its alignments (steps, rows)."""
        cells = rows[list(tiles)].T
        shape = (*cells.shape, self.config.n)
        total = self.sums[cells] if i.accumulate else self.symbols.integers(0, shape)
        for step in range(i.ky * i.kx * i.kc):
            part = self.values.bounded(self._products(i, tiles, slice(step, step + 1)))
            shift = shifts[step].reshape(len(cells), 1, 1).spread(shape)
            total = aligned(self.symbols, total, part, shift)
        self.sums = self.sums.put(cells, total)

    def _put(self, rows: np.ndarray, sums: Sums) -> None:
        self.sums = self.sums.put(rows, self.values.bounded(sums))

    def _products(self, i: Mm, tiles: range, steps: slice = slice(None)) -> Sums:
        """(rows, tiles, N), of some steps of the contraction."""
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
            found = self._gathered(address, valid, i.pad)
            along = [self._along(found[:, step], words[:, step], i) for step in range(a_step.size)]
            return reduce(Sums.plus, along).reshape(a_row.size, len(tiles), n)
        words = words.reshape(b_word.size, -1)
        known = np.asarray((words < CONSTANTS).all(axis=1))
        first, last = self._nothing
        nothing = np.asarray(((words >= first) & (words <= last)).any(axis=1))
        right, others = _bytes(words, known[:, None]), np.flatnonzero(~known & ~nothing)
        parts = []
        each = max(1, _CHUNK // (a_step.size * n))
        for low in range(0, a_row.size, each):
            part = slice(low, low + each)
            found = self._gathered(address[part], valid[part], i.pad).reshape(len(address[part]), -1)
            parts.append(self.values.dot(found, i.zero, right.T))
            if others.size:
                left = self.values.terms(found).shifted(-i.zero)
                made = product(left, self.values.terms(words[others].T))
                parts[-1] = parts[-1].put((slice(None), others), made)
        made = concatenated(parts, 0)
        if nothing.any():
            made = self.values.unknown_where(np.broadcast_to(nothing, made.low.shape), made)
        return made.reshape(a_row.size, len(tiles), n)

    def _gathered(self, address: np.ndarray, valid: np.ndarray, pad: int) -> np.ndarray:
        """Rows of A (rows, steps, N)."""
        if valid.all():
            return self.cells[address]
        return np.where(valid[..., None], self.cells[address], pad & 0xFF)

    def _along(self, found: np.ndarray, words: np.ndarray, i: Mm) -> Sums:
        """Sums of neighbouring rows (rows, N) of a line by words (tiles * N, N), channel by channel: see
        `weft.sim.golden.units`."""
        n, taps = self.config.n, self.config.depthwise_taps
        rows = self.values.terms(found.reshape(i.oy, i.ox, 1, n)).shifted(-i.zero)
        words = words.reshape(-1, n, n)[:, n - 2 * taps :: 2]
        known = np.asarray((words < CONSTANTS).all(axis=1))
        weights = _bytes(words, known[:, None])
        total: Sums | None = None
        nothing = self.values.terms(np.zeros((i.oy, i.ox, 1, n), np.int64))
        for tap in range(taps):
            back = taps - 1 - tap
            moved = (
                rows
                if back == 0
                else concatenated([nothing[:, : min(back, i.ox)], rows[:, : max(i.ox - back, 0)]], 1)
            )
            part = moved.scaled(weights[:, tap])
            total = part if total is None else total.plus(part)
        assert total is not None
        if not known.all():
            total = self.values.unknown_where(np.broadcast_to(~known, total.low.shape), total)
        return total.reshape(i.rows, -1)

    def constants(self, numbers: np.ndarray, what: str) -> np.ndarray:
        """The bytes of values, uint8; raises `Unproven` with `what` if they are no constants."""
        found = self.values.constants(numbers)
        if found is None:
            raise Unproven(f"{what}, and it is no constant")
        return found

    def parameters(self, i: Vec | Softmax) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mantissa, shift and bias of every column."""
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
        each = max(1, _CHUNK // (i.ry * i.rx * config.n))
        for low in range(0, dst.size, each):
            part = slice(low, low + each)
            for rows, value, source in self._reduced(i, part):
                if bool((bias != 0).any()):
                    value = value.shifted(bias[None, :, None])
                other = None
                if second is not None:
                    other = self.values.terms(second[part][rows]).shifted(-i.b_zero)
                if i.multiply:
                    assert other is not None
                    value, other, source = self._product(value, other, bias, i), None, None
                if other is not None:
                    other = other.scaled(-i.b_mantissa if i.subtract else i.b_mantissa)
                own = None if source is None else (source, bias)
                results[low + rows] = requantised(
                    self.values, value, mantissa, shift, clamp, table, other, own
                )
        self.cells[dst] = results

    def check_vec(self, i: Vec) -> None:
        """Raises `DeviceError` for what no VEC may ask for."""
        if i.b_mantissa >> self.config.mantissa_bits:
            raise DeviceError(f"a mantissa has more than {self.config.mantissa_bits} bits")
        if i.multiply and not (i.add and i.source == Source.SCRATCHPAD and i.reduce == Reduce.NONE):
            raise DeviceError(
                "'multiply' needs a second operand, a source in the scratchpad, and no reduction"
            )

    def _product(self, value: Sums, other: Sums, bias: np.ndarray, i: Vec) -> Sums:
        plain = value.shifted(-bias[None, :, None] - i.pad)
        return plain.times(other.reshape(*other.low.shape, 1)).shifted(bias[None, :, None])

    def _table(self, i: Vec) -> bytes:
        if not i.lookup:
            return b""
        return self.table(int(self.memories.addresses(i, "table")))

    def table(self, number: int) -> bytes:
        """The entries of a look-up table."""
        return _filled(self.tables[number])

    def powers(self) -> bytes:
        """The entries of the table of powers of two."""
        return _filled(self.rows.table)

    def _reduced(self, i: Vec, part: slice) -> Iterator[tuple[np.ndarray, Sums, np.ndarray | None]]:
        """Some outputs, for them the integers (outputs, N, set) whose maximum is requantised, and the values
        (outputs, N) that these are; then the others."""
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
        there = valid.any(axis=1) if i.reduce == Reduce.MAX else np.ones(len(valid), bool)
        if not there.all():  # the maximum of nothing is the least int32
            rows = np.flatnonzero(~there)
            yield rows, self.values.integers(np.full((len(rows), self.config.n, 1), -INT32)), None
        rows = np.flatnonzero(there)
        if i.source == Source.SCRATCHPAD:
            yield rows, *self._of_values(i, self.cells[address[rows]], valid[rows])
        else:
            yield rows, self._of_sums(i, self.sums[address[rows]], valid[rows]), None

    def _of_values(self, i: Vec, found: np.ndarray, valid: np.ndarray) -> tuple[Sums, np.ndarray | None]:
        """From values (outputs, elements, N)."""
        if i.reduce == Reduce.MAX:
            made = self.values.maximum(found.swapaxes(1, 2), valid[:, None])
        else:
            found = np.where(valid[..., None], found, i.pad & 0xFF)
            if i.reduce == Reduce.SUM:
                return self.values.terms(found).total(1).reshape(len(found), -1, 1), None
            made = found[:, -1]
        return self.values.terms(made).reshape(*made.shape, 1), made

    def _of_sums(self, i: Vec, found: Sums, valid: np.ndarray) -> Sums:
        """From integers (outputs, elements, N)."""
        if i.reduce == Reduce.MAX:
            first = valid.argmax(axis=1)
            rows = np.arange(len(first))
            chosen = np.where(
                valid, np.arange(valid.shape[1]), first[:, None]
            )  # what is not there is another
            return found[rows[:, None], chosen].moved((0, 2, 1))
        if not valid.all():
            there = valid[..., None].astype(np.int64)
            found = found.scaled(there).shifted(i.pad * (1 - there))
        return found.total(1).reshape(len(valid), -1, 1)

    def _lookup(self, i: Lookup) -> None:
        entries = self.constants(self.cells[self.memories.addresses(i, "src")].ravel(), "it fills a table")
        if i.entry + entries.size > LOOKUP_ENTRIES:
            raise DeviceError(f"{entries.size} entries from {i.entry} on do not fit a look-up table")
        self.tables[int(self.memories.addresses(i, "table"))][i.entry : i.entry + entries.size] = entries


@contextmanager
def _placed(index: int, instruction: Instruction) -> Iterator[None]:
    """Say of which instruction something is not proven."""
    try:
        yield
    except Unproven as error:
        raise Unproven(f"instruction {index} ({instruction.OPCODE.name}): {error}") from None


def _filled(table: np.ndarray) -> bytes:
    if (table < 0).any():
        raise Unproven("it looks up in a table that was not filled")
    return table.astype(np.uint8).tobytes()


def _bytes(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Constants as integers, int64; 0 for what is not known."""
    return np.where(known, values, 0).astype(np.uint8).view(np.int8).astype(np.int64)


def _split(numbers: np.ndarray) -> list[np.ndarray]:
    """The bytes of numbers."""
    return [(numbers >> 8 * plane & 0xFF).astype(np.uint8) for plane in range(PLANES)]


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Numbers from their bytes."""
    return sum(part.astype(np.int64) << 8 * plane for plane, part in enumerate(parts))  # type: ignore[return-value]
