"""An interpreter in plain Python loops, written from the docstrings of `weft.hdl.isa` alone: one method an opcode."""

from __future__ import annotations

import itertools
from fractions import Fraction

from weft.hdl.isa import Load, Lookup, Mm, Normalise, Reduce, Softmax, Store, Table, Vec
from weft.sim.golden.interpreter import GoldenDevice


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def rsh(x: int, s: int) -> int:
    return (x + 2 ** (s - 1)) >> s if s else x


class Slow:
    """An interpreter whose memories are dicts or lists of Python integers, and which runs every loop as a loop."""

    def __init__(self, device: GoldenDevice, bases: list[int]) -> None:
        self.config = device.config
        self.n = device.config.n
        self.bases = bases
        self.dram = list(device.read(0, device.memory_bytes))
        self.scratchpad = device.scratchpad.tolist()
        self.accumulator = device.accumulator.tolist()
        self.m, self.l = device.memories.maxima.tolist(), device.memories.sums.tolist()
        self.alignments = device.memories.alignments.tolist()
        self.entries = device.memories.table.tolist()
        self.lookups = device.memories.lookup.tolist()

    def load(self, i: Load) -> None:
        self.page = 0
        if i.paged:
            first = self.bases[i.table] + 4 * i.page
            self.page = sum((self.dram[first + byte] & 0xFF) << 8 * byte for byte in range(4))
        if i.transpose:
            size = -(-i.length // self.n) * self.n
            pixels = [
                [self.row_byte(i, row, p, byte) for byte in range(size)]
                for row, p in itertools.product(range(i.rows), range(i.pixels))
            ]
            while len(pixels) % self.n:
                pixels.append([i.fill] * size)
            for group, byte in itertools.product(range(len(pixels) // self.n), range(size)):
                vector = [pixel[byte] for pixel in pixels[group * self.n : (group + 1) * self.n]]
                v, lane = divmod(byte, self.n)
                address = i.dst + group * i.dst_row + v * i.dst_pixel + lane * i.dst_vector
                self.scratchpad[address % 65536] = vector
            return
        for row in range(i.rows):
            for p in range(i.pixels):
                for v in range(-(-i.length // self.n)):
                    vector = [self.row_byte(i, row, p, v * self.n + lane) for lane in range(self.n)]
                    address = i.dst + row * i.dst_row + p * i.dst_pixel + v * i.dst_vector
                    self.scratchpad[address % 65536] = vector

    def row_byte(self, i: Load, row: int, p: int, byte: int) -> int:
        position = p * i.pitch + byte - i.before
        if byte >= i.length or not 0 <= position < i.run * (2 if i.int4 else 1):
            return i.fill
        address = self.bases[i.base] + self.page + i.offset + row * i.row_pitch + row // i.line * i.skip
        if i.blocks:
            group, at = divmod(position, 32 * self.n)
            address += group * 17 * self.n
            pair = self.dram[(address + self.n + at // 2) % 2**32]
            factor = signed(self.dram[(address + at // self.n % self.n) % 2**32], 8)
            return min(max(rsh(signed(pair >> 4 if at % 2 else pair, 4) * factor, 3), -128), 127)
        if i.int4:
            pair = self.dram[(address + position // 2) % 2**32]
            return signed(pair >> 4 if position % 2 else pair, 4)
        address += position
        return signed(self.dram[address % 2**32], 8)

    def store(self, i: Store) -> None:
        for row in range(i.rows):
            for p in range(i.pixels):
                for byte in range(i.length):
                    v, lane = divmod(byte, self.n)
                    vector = i.src + row * i.src_row + p * i.src_pixel + v * i.src_vector
                    address = self.bases[i.base] + i.offset + row * i.row_pitch + p * i.pitch + byte
                    self.dram[address % 2**32] = self.scratchpad[vector % 65536][lane] & 0xFF

    def mm(self, i: Mm) -> None:
        for nt, ky, kx, kc in itertools.product(range(i.nt), range(i.ky), range(i.kx), range(i.kc)):
            alignment = i.alignment + ((ky * i.kx + kx) * i.kc + kc) * i.oy * i.ox
            first = i.b + nt * i.b_nt + ky * i.b_ky + kx * i.b_kx + kc * i.b_kc
            words = [self.scratchpad[(first + j * i.b_row) % 65536] for j in range(self.n)]
            line: list[list[int]] = []
            for oy, ox in itertools.product(range(i.oy), range(i.ox)):
                y = signed(i.y + ky * i.y_ky + oy * i.y_oy, 16)
                x = signed(i.x + kx * i.x_kx + ox * i.x_ox, 16)
                a = [i.pad] * self.n
                if 0 <= y < i.h and 0 <= x < i.w:
                    address = i.a + nt * i.a_nt + ky * i.a_ky + kx * i.a_kx + kc * i.a_kc
                    a = self.scratchpad[(address + oy * i.a_oy + ox * i.a_ox) % 65536]
                line = [a, *(line if ox else [])][: self.config.depthwise_taps]
                row = self.accumulator[(i.c + nt * i.c_nt + oy * i.c_oy + ox * i.c_ox) % 65536]
                for j, word in enumerate(words):
                    keep = row[j] if i.accumulate or (ky, kx, kc) != (0, 0, 0) else 0
                    product = sum((x - i.zero) * y for x, y in zip(a, word, strict=True))
                    if i.depthwise:
                        product = sum((past[j] - i.zero) * words[-2 * k][j] for k, past in enumerate(line, 1))
                    if i.align:
                        shift = self.alignments[alignment + oy * i.ox + ox]
                        keep, product = rsh(keep, max(shift, 0)), rsh(product, max(-shift, 0))
                    row[j] = signed(keep + product, 32)

    def vec(self, i: Vec) -> None:
        results = []
        for ob, oy, ox in itertools.product(range(i.ob), range(i.oy), range(i.ox)):
            b = self.scratchpad[(i.b + ob * i.b_ob + oy * i.b_oy + ox * i.b_ox) % 65536]
            address = i.dst + ob * i.dst_ob + oy * i.dst_oy + ox * i.dst_ox
            results.append(
                (address % 65536, [self.store_output(i, ob, oy, ox, j, b[j]) for j in range(self.n)])
            )
        for address, vector in results:
            self.scratchpad[address] = vector

    def store_output(self, i: Vec, ob: int, oy: int, ox: int, j: int, b: int) -> int:
        elements = []
        for ry, rx in itertools.product(range(i.ry), range(i.rx)):
            y = signed(i.y + oy * i.y_oy + ry * i.y_ry, 16)
            x = signed(i.x + ox * i.x_ox + rx * i.x_rx, 16)
            if 0 <= y < i.h and 0 <= x < i.w:
                address = (
                    i.src + ob * i.src_ob + oy * i.src_oy + ox * i.src_ox + ry * i.src_ry + rx * i.src_rx
                )
                elements.append((self.scratchpad if i.source else self.accumulator)[address % 65536][j])
            else:
                elements.append(-(2**31) if i.reduce == Reduce.MAX else i.pad)
        if i.multiply:
            elements = [(element - i.pad) * (b - i.b_zero) for element in elements]
        combined = {Reduce.NONE: elements[-1], Reduce.MAX: max(elements), Reduce.SUM: sum(elements)}
        r = combined[Reduce(i.reduce)]
        bias, mantissa, shift = self.parameters(i.params, j)
        p = signed(r + bias, 32) * mantissa
        if i.add and not i.multiply:
            p += (b - i.b_zero) * i.b_mantissa * (-1 if i.subtract else 1)
        q = round(Fraction(p, 1 << shift))
        out = min(max(q + i.zero, i.low), i.high)
        return self.lookups[i.table][out + 128] if i.lookup else out

    def lookup(self, i: Lookup) -> None:
        for vector, lane in itertools.product(range(i.vectors), range(self.n)):
            self.lookups[i.table][i.entry + vector * self.n + lane] = self.scratchpad[i.src + vector][lane]

    def parameters(self, params: int, j: int) -> tuple[int, int, int]:
        """Return bias, mantissa and shift of column j."""
        word = bytes(self.scratchpad[params + byte][j] & 0xFF for byte in range(8))
        return (
            int.from_bytes(word[:4], "little", signed=True),
            int.from_bytes(word[4:7], "little"),
            word[7] & 63,
        )

    def table(self, i: Table) -> None:
        for vector, lane in itertools.product(range(i.vectors), range(self.n)):
            self.entries[vector * self.n + lane] = self.scratchpad[i.src + vector][lane] & 0xFF

    def source(self, i: Softmax | Normalise, ob: int, oy: int, ox: int) -> list[int]:
        address = i.src + ob * i.src_ob + oy * i.src_oy + ox * i.src_ox
        return (self.scratchpad if i.source else self.accumulator)[address % 65536]

    def softmax(self, i: Softmax) -> None:
        vectors, alignments = [], []
        for ob, oy, ox in itertools.product(range(i.ob), range(i.oy), range(i.ox)):
            state = (i.state + oy * i.state_oy + ox * i.state_ox) % 65536
            p, e = self.probabilities(i, ob, ox, self.source(i, ob, oy, ox))
            m, total = (-256, 0) if i.first and ob == 0 else (self.m[state], self.l[state])
            if i.final:
                alignment = min(max(m - e, 0), 31)
            else:
                self.m[state] = max(m, e)
                u, v = min(self.m[state] - m, 31), min(self.m[state] - e, 31)
                self.l[state] = (rsh(total, u) + rsh(256 * sum(p), v)) % 2**32
                alignment = u - v
            less = {8: 128, 7: 0}[self.config.probability_bits]
            address = i.dst + ob * i.dst_ob + oy * i.dst_oy + ox * i.dst_ox
            vectors.append((address % 65536, [element - less for element in p]))
            address = i.alignment + ob * i.alignment_ob + oy * i.alignment_oy + ox * i.alignment_ox
            alignments.append((address % 65536, alignment))
        for address, vector in vectors:
            self.scratchpad[address] = vector
        for address, alignment in alignments:
            self.alignments[address] = alignment

    def probabilities(self, i: Softmax, ob: int, ox: int, scores: list[int]) -> tuple[list[int], int]:
        """Return probabilities and exponent of one group of one row."""
        base = self.bases[i.register] if i.relative else 0
        length, diagonal = (
            min(max(signed(x + base, 32), -(2**15)), 2**15 - 1) for x in (i.length, i.diagonal)
        )
        logits: list[int | None] = []
        for j, score in enumerate(scores):
            bias, mantissa, shift = self.parameters(i.params, j)
            y = round(Fraction(signed(score + bias, 32) * mantissa, 1 << shift))
            column = ob * self.n + j
            seen = column < length and (not i.causal or column <= diagonal + ox)
            logits.append(min(max(y, -(2**15)), 2**15 - 1) if seen else None)
        e = max((-(-y // 128) for y in logits if y is not None), default=-256)
        step = 2048 // self.config.table_depth
        return [
            0 if y is None or 128 * e - y >= 2048 else self.entries[(128 * e - y) // step] for y in logits
        ], e

    def normalise(self, i: Normalise) -> None:
        results = []
        for ob, oy, ox in itertools.product(range(i.ob), range(i.oy), range(i.ox)):
            total = self.l[(i.state + ob * i.state_ob + oy * i.state_oy) % 65536]
            bits = total.bit_length()
            r = 0
            if total:
                top = Fraction(total) * Fraction(2) ** (17 - bits)
                r = min(65535, (i.scale << 16) // (top.numerator // top.denominator))
            a = 0
            if i.scaled:
                address = i.alignment + ob * i.alignment_ob + oy * i.alignment_oy + ox * i.alignment_ox
                a = self.alignments[address % 65536]
            s = min(max(bits + i.exponent + a, 0), 63)
            z = i.v_zero * rsh(total, 8)
            more = 128 if i.source and self.config.probability_bits == 8 else 0
            vector = [
                min(max(round(Fraction(signed(e + more - z, 32) * r, 1 << s)) + i.zero, i.low), i.high)
                for e in self.source(i, ob, oy, ox)
            ]
            results.append(((i.dst + ob * i.dst_ob + oy * i.dst_oy + ox * i.dst_ox) % 65536, vector))
        for address, vector in results:
            self.scratchpad[address] = vector
