"""Attention and softmax programs assembled by hand, on the golden interpreter, against `attention_model`, which knows
nothing of addresses, and against float64."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support import attention_model as model
from support.repeated import repeated

from weft.hdl.checker.program import check
from weft.hdl.isa import End, Instruction, Load, Mm, Normalise, Softmax, Source, Store, Table
from weft.hdl.isa.config import PRESETS, Config
from weft.sim.golden.interpreter import GoldenDevice

MEMORY = 1 << 18
Q, K, V, OUT, PARAMS, TABLE, PROGRAM = 0, 0x8000, 0x10000, 0x18000, 0x20000, 0x21000, 0x22000
CONFIGS = {
    "tiny": PRESETS["tiny"],
    "7 bits": PRESETS["tiny"].replace(probability_bits=7, table_depth=256),
    "small": PRESETS["small"].replace(mantissa_bits=16, table_depth=512),
}


def parameters(config: Config, multiplier: tuple[int, int], bias: int) -> bytes:
    word = bias & 0xFFFFFFFF | multiplier[0] << 32 | multiplier[1] << 56
    return b"".join(bytes([byte]) * config.n for byte in word.to_bytes(8, "little"))


def serial(body: list[Instruction]) -> list[Instruction]:
    """Each instruction waits for the one before it."""
    body = list(body)
    for index in range(1, len(body)):
        one, two = body[index - 1].QUEUE, body[index].QUEUE
        assert one is not None
        assert two is not None
        if one != two:
            semaphore = 1 << 4 * one + two
            body[index - 1] = dataclasses.replace(body[index - 1], signal=semaphore)
            body[index] = dataclasses.replace(body[index], wait=semaphore)
    return [*body, End()]


def run(
    config: Config, body: list[Instruction], operands: dict[int, bytes], size: int, register: int = 0
) -> np.ndarray:
    """int8 bytes at OUT after the program; base register 6 holds `register`."""
    program = serial(body)
    check(program, config)
    device = GoldenDevice(config, MEMORY)
    for address, payload in (operands | {TABLE: config.exp2_table}).items():
        device.write(address, payload)
    device.write(PROGRAM, b"".join(i.encode() for i in program))
    device.set_base(6, register)
    device.start(PROGRAM)
    device.wait()
    return np.frombuffer(device.read(OUT, size), np.int8)


def prologue(config: Config, params: int, scratch: int) -> list[Instruction]:
    """The table, by way of `scratch`, and a parameter block at `params`."""
    block, depth = 8 * config.n, config.table_depth
    return [
        Load(offset=TABLE, run=depth, length=depth, dst=scratch, dst_vector=1),
        Table(src=scratch, vectors=depth // config.n),
        Load(offset=PARAMS, run=block, length=block, dst=params, dst_vector=1),
    ]


@dataclasses.dataclass
class Head:
    """One head: sizes, masks, and where its operands are in the scratchpad and accumulator."""

    config: Config
    rows: int
    keys: int
    d: int
    dv: int
    groups: int  # in a chunk

    def program(
        self, q_zero: int, v_zero: int, output: tuple[int, int], diagonal: int | None, shift: int
    ) -> list[Instruction]:
        """`shift` is in base register 6, and taken off the fields that are relative to it."""
        n, rows, chunk = self.config.n, self.rows, self.groups * self.config.n
        self.deep, self.wide = -(-self.d // n), -(-self.dv // n)
        self.q = 8
        self.k = self.q + rows * self.deep
        self.v = self.k + chunk * self.deep
        self.p = self.v + chunk * self.wide
        self.o = rows * self.groups
        body = prologue(self.config, 0, 8)
        body += [
            Load(
                offset=Q,
                rows=rows,
                row_pitch=self.d,
                run=self.d,
                length=self.d,
                dst=self.q,
                dst_row=1,
                dst_vector=rows,
            )
        ]
        for start in range(0, self.keys, chunk):
            body += self.load(start, min(chunk, self.keys - start))
            body += self.step(start, q_zero, diagonal, shift)
        scale, exponent = output
        return [
            *body,
            Normalise(oy=rows, ox=self.wide, src=self.o, src_ox=rows, src_oy=1, dst=self.p, dst_oy=self.wide,
                      dst_ox=1, state=3, state_oy=1, scale=scale, exponent=exponent, v_zero=v_zero, zero=5, low=-100,
                      high=110),
            Store(offset=OUT, rows=rows, row_pitch=self.dv, length=self.dv, src=self.p, src_row=self.wide,
                  src_vector=1),
        ]  # fmt: skip

    def load(self, start: int, count: int) -> list[Instruction]:
        n, chunk = self.config.n, self.groups * self.config.n
        keys = Load(offset=K + start * self.d, rows=count, row_pitch=self.d, run=self.d, length=self.d, dst=self.k,
                    dst_row=1, dst_vector=chunk)  # fmt: skip
        values = [
            Load(transpose=1, offset=V + start * self.dv + tile * n, rows=count, row_pitch=self.dv, length=length,
                 run=length, dst=self.v + tile * chunk, dst_row=n, dst_vector=1, fill=77)
            for tile in range(self.wide)
            for length in [min(n, self.dv - tile * n)]
        ]  # fmt: skip
        return [keys, *values]

    def step(self, start: int, q_zero: int, diagonal: int | None, shift: int) -> list[Instruction]:
        n, rows, groups, chunk = self.config.n, self.rows, self.groups, self.groups * self.config.n
        causal = {} if diagonal is None else {"causal": 1, "diagonal": diagonal - start - shift}
        return [
            Mm(nt=groups, kc=self.deep, ox=rows, a=self.q, a_kc=rows, a_ox=1, b=self.k, b_nt=n, b_kc=chunk, b_row=1,
               c_nt=rows, c_ox=1, zero=q_zero),
            Softmax(ob=groups, ox=rows, src_ob=rows, src_ox=1, dst=self.p, dst_ob=rows, dst_ox=1, first=int(start == 0),
                    relative=int(shift != 0), register=6, length=self.keys - start - shift, state=3, state_ox=1,
                    alignment=2, alignment_ob=rows, alignment_ox=1, **causal),
            Mm(accumulate=int(start > 0), nt=self.wide, kc=groups, ox=rows, a=self.p, a_kc=rows, a_ox=1, b=self.v,
               b_nt=chunk, b_kc=n, b_row=1, c=self.o, c_nt=rows, c_ox=1, align=1, alignment=2,
               zero=-128 if self.config.probability_bits == 8 else 0),
        ]  # fmt: skip


def head(rng: np.random.Generator, config: Config) -> Head:
    n = config.n
    return Head(
        config, *(int(rng.integers(1, high)) for high in (13, 8 * n, 3 * n, 3 * n)), int(rng.integers(1, 4))
    )


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@repeated("seed", range(30))
def test_attention(config: Config, seed: int) -> None:
    rng = np.random.default_rng(seed)
    h = head(rng, config)
    if seed % 5 == 0:
        h.dv = h.d = 2 * config.n
    q, k, v = (
        rng.integers(-128, 128, shape).astype(np.int8)
        for shape in ((h.rows, h.d), (h.keys, h.d), (h.keys, h.dv))
    )
    q_zero = int(rng.integers(-128, 128)) if config.probability_bits == 8 else 0
    v_zero, bias = int(rng.integers(-128, 128)), int(rng.choice([0, 12345]))
    nats = float(rng.choice([1.0, 4.0, 50.0, 2000.0])) / (5000 * np.sqrt(h.d))
    score = model.score_multiplier(nats, config.mantissa_bits)
    output = model.output_multiplier(float(rng.choice([1.0, 1.7, 0.3])))
    diagonal = int(rng.integers(-5, h.keys + 3)) if rng.random() < 0.6 else None
    shift = int(rng.choice([0, -700, 90]))
    counts = np.full(h.rows, h.keys)
    if diagonal is not None:
        counts = np.clip(diagonal + 1 + np.arange(h.rows), 0, h.keys)
    got = run(
        config, h.program(q_zero, v_zero, output, diagonal, shift),
        {Q: q.tobytes(), K: k.tobytes(), V: v.tobytes(), PARAMS: parameters(config, score, bias)}, h.rows * h.dv,
        shift % (1 << 32),
    )  # fmt: skip
    expected = model.attention(
        q,
        k,
        v,
        config,
        score,
        output,
        counts=counts,
        bias=bias,
        q_zero=q_zero,
        v_zero=v_zero,
        zero=5,
        low=-100,
        high=110,
    )
    assert np.array_equal(got.reshape(h.rows, h.dv), expected), (h, diagonal, shift)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@repeated("seed", range(20))
def test_stand_alone_softmax(config: Config, seed: int) -> None:
    """Two passes over the scratchpad, by chunks; the second leaves probabilities, which Normalise divides in place."""
    rng = np.random.default_rng(seed)
    n, rows, chunk, chunks = (
        config.n,
        int(rng.integers(1, 9)),
        int(rng.integers(1, 4)),
        int(rng.integers(1, 4)),
    )
    width = n * chunk * (chunks - 1) + int(rng.integers(1, n * chunk + 1))
    vectors = chunk * chunks
    x = rng.integers(-128, 128, (rows, width)).astype(np.int8)
    score, output = (
        model.score_multiplier(float(rng.choice([0.02, 0.1, 1.0])), config.mantissa_bits),
        model.output_multiplier(255.0),
    )
    body = [
        *prologue(config, 0, 8),
        Load(
            offset=Q,
            rows=rows,
            row_pitch=width,
            run=width,
            length=width,
            dst=8,
            dst_row=vectors,
            dst_vector=1,
            fill=100,
        ),
    ]
    to = 8 + rows * vectors
    for final in (0, 1):
        body += [
            Softmax(source=Source.SCRATCHPAD, ob=chunk, oy=rows, src=8 + chunk * part, src_ob=1, src_oy=vectors,
                    final=final, first=int(part == 0 and not final), dst=to + chunk * part, dst_ob=1, dst_oy=vectors,
                    length=width - part * chunk * n, state_oy=1, alignment=chunk * part, alignment_ob=1,
                    alignment_oy=vectors)
            for part in range(chunks)
        ]  # fmt: skip
    body += [
        Normalise(source=Source.SCRATCHPAD, scaled=1, oy=rows, ox=vectors, src=to, src_oy=vectors, src_ox=1, dst=to,
                  dst_oy=vectors, dst_ox=1, state_oy=1, alignment_oy=vectors, alignment_ox=1, scale=output[0],
                  exponent=output[1], zero=-128),
        Store(offset=OUT, rows=rows, row_pitch=width, length=width, src=to, src_row=vectors, src_vector=1),
    ]  # fmt: skip
    got = run(config, body, {Q: x.tobytes(), PARAMS: parameters(config, score, 0)}, x.size)
    expected = model.softmax_rows(x, config, score, output, zero=-128)
    assert np.array_equal(got.reshape(x.shape), expected)


@pytest.mark.parametrize("zeros", [False, True])
def test_model_is_near_float64(zeros: bool) -> None:
    """Without saturation, the model is within an output step of the exact value."""
    rng, config = np.random.default_rng(3), PRESETS["default"]
    q, k, v = (
        rng.normal(0, 40, shape).clip(-127, 127).astype(np.int8) for shape in ((20, 64), (300, 64), (300, 64))
    )
    nats = 1.5 / (1600 * 8)
    counts = np.arange(20) * 15
    v_zero, q_zero = (30, -20) if zeros else (0, 0)
    got = model.attention(
        q,
        k,
        v,
        config,
        model.score_multiplier(nats),
        model.output_multiplier(1.0),
        counts=counts,
        v_zero=v_zero,
        q_zero=q_zero,
    )
    exact = model.attention_float(q.astype(int) - q_zero, k, v, nats, counts, v_zero)
    assert np.abs(got - exact.clip(-128, 127)).max() < 1.5
    assert not got[0].any()
    whole = model.softmax_rows(
        k, config, model.score_multiplier(0.04), model.output_multiplier(255.0), zero=-128
    )
    assert np.abs(whole.astype(int) + 128 - 255 * model.softmax_float(k, 0.04)).max() < 1.6
