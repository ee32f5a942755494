"""The board's end of the link, on lines with and without noise, against a model of a board."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import cocotb
import pytest
from cocotb.clock import Clock
from cocotb.queue import Queue
from cocotb.triggers import ClockCycles, ReadOnly, RisingEdge, Timer, with_timeout
from cocotb.utils import get_sim_time
from cocotbext.axi import AxiLiteBus, AxiLiteRam
from support.axi_models import channels, pauses
from support.board_model import BoardModel
from support.serial_models import CYCLE, Listener, disturb, send_bytes
from support.unit_bench import stream_put

from weft.boards.link.frames import (
    CHECK_BLOCK,
    END,
    ESC,
    PAYLOAD,
    Answer,
    Feature,
    Operation,
    Parser,
    Request,
    frame,
)
from weft.boards.link.framing import check_buffer
from weft.boards.link.link import Link, check_piece
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import SIZE
from weft.sim.rtl.bench import bench_parameters, run_bench

MEMORY_BYTES = 1 << 16
BOARD, CLOCK = "bench", 12_345_678
CONTROL = 0x0C


class Bench:
    """Memory and registers at `dut`, a sender and a listener on its line, and the model.

    The registers are plain memory, here and in the model.
    """

    def __init__(self, dut: Any, *, stall: float = 0.0, registers: bool = True) -> None:
        parameters = bench_parameters()
        self.dut, self.stall = dut, stall
        self.config = Config.from_dict(parameters["config"])
        self.width = self.config.bus_bytes
        self.features = Feature(parameters["features"])
        self.bit = parameters["divisor"] * CYCLE
        self.memory = bytearray(random.randbytes(MEMORY_BYTES))
        self.frozen = False  # the memory does nothing
        self.parser, self.answers = Parser(), Queue[Answer]()
        self.noise = 0.0
        self.sequence = random.randrange(256)
        self._commands, self._words = Queue[int](), Queue[int]()
        dut.rx.value = 1
        for name in ("command__ready", "write__ready", "read__valid", "written"):
            getattr(dut, f"memory__{name}").value = 0
        dut.rst.value = 1
        cocotb.start_soon(Clock(dut.clk, CYCLE, "ps").start())
        self.axi = None
        if registers:
            bus = AxiLiteBus.from_prefix(dut, "registers__s_axi")
            self.axi = AxiLiteRam(bus, dut.clk, dut.rst, size=SIZE)
            for channel in channels(self.axi):
                channel.set_pause_generator(pauses(stall))

    async def start(self) -> None:
        dut = self.dut
        await ClockCycles(dut.clk, 5)
        dut.rst.value = 0
        self.model = BoardModel(self.config, MEMORY_BYTES, clock=CLOCK)
        self.model.memory[:] = self.memory
        self.model.registers[:] = self.axi.read(0, SIZE) if self.axi else bytes(SIZE)
        self.model.identity = type(self.model.identity)(
            BOARD,
            self.config.digest,
            MEMORY_BYTES,
            CLOCK,
            bench_parameters()["buffer"],
            features=self.features,
        )
        self.listener = Listener(dut.tx, self.bit, self._heard)
        cocotb.start_soon(self._serve())
        for stream, queue in (("command", self._commands), ("write", self._words)):
            cocotb.start_soon(self._accept(f"memory__{stream}", queue))

    def _heard(self, byte: int) -> None:
        for body in self.parser.feed(disturb(bytes([byte]), self.noise)):
            self.answers.put_nowait(Answer.decode(body))

    async def _pause(self) -> None:
        while self.frozen or random.random() < self.stall:
            await RisingEdge(self.dut.clk)

    async def _accept(self, name: str, queue: Queue[int]) -> None:
        """Take the words of a stream; they must not change while they wait."""
        valid, ready, payload = (
            getattr(self.dut, f"{name}__{part}") for part in ("valid", "ready", "payload")
        )
        while True:
            if not valid.value:
                await RisingEdge(valid)
            word = int(payload.value)
            await RisingEdge(self.dut.clk)
            await self._pause()
            ready.value = 1
            await ReadOnly()
            assert valid.value
            assert int(payload.value) == word
            queue.put_nowait(word)
            await RisingEdge(self.dut.clk)
            ready.value = 0
            await ReadOnly()
            await Timer(1, "ps")

    async def _serve(self) -> None:
        """The memory: commands of one word, one after the other."""
        dut, width = self.dut, self.width
        while True:
            command = await self._commands.get()
            write, address, beats = command & 1, command >> 1 & 0xFFFFFFFF, command >> 33
            assert beats == 1
            assert address % width == 0
            address %= MEMORY_BYTES
            word = await self._words.get() if write else 0
            await self._pause()
            await RisingEdge(dut.clk)
            if write:
                for lane in range(width):
                    if word >> 8 * width + lane & 1:
                        self.memory[address + lane] = word >> 8 * lane & 0xFF
                dut.memory__written.value = 1
                await RisingEdge(dut.clk)
                dut.memory__written.value = 0
                continue
            word = int.from_bytes(self.memory[address : address + width], "little")
            await stream_put(dut, "memory__read", word)

    async def send(self, payload: bytes) -> None:
        await send_bytes(self.dut.rx, disturb(payload, self.noise), self.bit)

    async def quiet(self, bytes_of_silence: int = 20) -> None:
        """Wait until nothing is sent any more."""
        heard = -1
        while heard != len(self.listener.bytes):
            heard = len(self.listener.bytes)
            await Timer(10 * self.bit * bytes_of_silence, "ps")

    def request(self, operation: Operation, address: int = 0, size: int = 0, payload: bytes = b"") -> Request:
        """A request with a sequence number of its own."""
        self.sequence = (self.sequence + 1) % 256
        return Request(self.sequence, operation, address, size or len(payload), payload)

    def draw(self, low: int = 0, high: int = MEMORY_BYTES, *, registers: bool = True) -> Request:
        """A random request, to memory between the addresses `low` and `high`."""
        memory = [Operation.READ_MEMORY, Operation.WRITE_MEMORY, Operation.CHECK_MEMORY]
        memory += [Operation.FILL_MEMORY] if self.features & Feature.FILLS else []
        others = [Operation.READ_REGISTERS, Operation.WRITE_REGISTERS, Operation.IDENTIFY]
        operation = random.choice([*memory, *(others if registers else [])])
        if operation in (Operation.READ_REGISTERS, Operation.WRITE_REGISTERS):
            low, high = 0, SIZE
        elif operation is Operation.IDENTIFY:
            low, high = 0, PAYLOAD
        address = random.randrange(low, high)
        room = PAYLOAD - address % PAYLOAD
        size = min(room, random.choice([0, 1, 2, 4, random.randrange(40), PAYLOAD]))
        return self.request(operation, address, size, random.randbytes(size) if operation & 1 else b"")

    async def answer(self) -> Answer:
        """The next answer; fails if there is none for long."""
        return await with_timeout(self.answers.get(), 40_000 * self.bit, "ps")

    async def exchange(self, request: Request) -> Answer:
        """The answer to a request on a line without noise."""
        await self.send(frame(request.encode()))
        return await self.answer()

    def check(self) -> None:
        """Memory and registers are those of the model."""
        assert self.memory == self.model.memory
        if self.axi:
            assert self.axi.read(0, SIZE) == bytes(self.model.registers)


def plain_registers(model: BoardModel) -> None:
    """Let the registers of the model be memory."""

    def write(address: int, payload: bytes) -> None:
        model.registers[address : address + len(payload)] = payload

    model._write_registers = write
    model._run = lambda seen: None


@cocotb.test()
async def bench_requests(dut: Any) -> None:
    """Random requests, as fast as the line carries them, to memory and registers that stall."""
    bench = Bench(dut, stall=0.4)
    await bench.start()
    plain_registers(bench.model)
    requests = [bench.draw() for _ in range(90)]
    # As many as the buffer holds at once.
    while requests:
        some, requests = requests[:3], requests[3:]
        sender = cocotb.start_soon(bench.send(b"".join(frame(request.encode()) for request in some)))
        for request in some:
            assert await bench.answer() == bench.model.answer(request)
        await sender
    bench.check()
    assert bench.parser.damaged == 0
    assert bench.answers.empty()


@cocotb.test()
async def bench_checks(dut: Any) -> None:
    """The CRC of up to 4096 bytes, one after the other, between any two bytes."""
    bench = Bench(dut, stall=0.2, registers=False)
    await bench.start()
    page = random.randrange(0, MEMORY_BYTES, CHECK_BLOCK)
    ranges = [
        (page, CHECK_BLOCK),
        (page + 1, CHECK_BLOCK - 1),
        (page, CHECK_BLOCK - 1),
        (page + CHECK_BLOCK - 1, 1),
        (page, 0),
    ]
    ranges += [(page + at, random.randrange(1, 600)) for at in (0, 6, random.randrange(CHECK_BLOCK - 600))]
    requests = [bench.request(Operation.CHECK_MEMORY, at, size) for at, size in ranges]
    await bench.send(b"".join(frame(request.encode()) for request in requests))
    for request in requests:
        answer = await bench.answer()
        assert answer == bench.model.answer(request)
        assert len(answer.payload) == request.answer_size
    bench.check()


@cocotb.test()
async def bench_fills(dut: Any) -> None:
    """Up to 4096 bytes, from and to any byte, that the link makes itself, and as often as is asked for. A link that
    makes none takes such a request for none."""
    bench = Bench(dut, stall=0.2, registers=False)
    await bench.start()
    page = random.randrange(0, MEMORY_BYTES, CHECK_BLOCK)
    ranges = [(page + CHECK_BLOCK - 1, 1), (page, 0), (page + 1, 7), (page + 5, 40)]
    ranges += [(page + at, random.randrange(1, 600)) for at in (0, 6, random.randrange(CHECK_BLOCK - 600))]
    ranges += [(page, CHECK_BLOCK)] if bench.features else []
    for at, size in ranges:
        inverse = random.random() < 0.5
        fill = replace(bench.request(Operation.FILL_MEMORY, at, size), inverse=inverse)
        behind = bench.draw(registers=False)
        await bench.send(frame(fill.encode()) + frame(behind.encode()))
        for request in (fill, behind) if bench.features else (behind,):
            assert await bench.answer() == bench.model.answer(request)
        assert bench.memory == bench.model.memory
    # One that carries bytes is none.
    await bench.send(frame(Request(1, Operation.FILL_MEMORY, page, 4).encode() + bytes(4)))
    await bench.quiet()
    assert bench.answers.empty()
    bench.check()
    request = bench.draw(registers=False)
    assert await bench.exchange(request) == bench.model.answer(request)


@cocotb.test()
async def bench_noise(dut: Any) -> None:
    """Windows of requests, sent again until they are answered, over a line that spoils bytes both ways."""
    bench = Bench(dut, stall=0.1)
    await bench.start()
    plain_registers(bench.model)
    for round_ in range(15):
        rate = random.choice([0.001, 0.01, 0.03])
        blocks = random.sample(range(0, MEMORY_BYTES, PAYLOAD), 5)
        window = {}
        for block in blocks:
            request = bench.draw(block, block + PAYLOAD, registers=False)
            window[request.sequence] = request
        if round_ % 3 == 0:
            request = bench.draw()
            window = {request.sequence: request}
        expected = {sequence: bench.model.answer(request) for sequence, request in window.items()}
        bench.noise = rate
        while window:
            await bench.send(b"".join(frame(request.encode()) for request in window.values()))
            bench.noise = rate if random.random() < 0.9 else 0.0
            await bench.quiet()
            while not bench.answers.empty():
                answer = bench.answers.get_nowait()
                if window.pop(answer.sequence, None):
                    assert answer == expected[answer.sequence]
        bench.noise = 0.0
    await bench.quiet()
    bench.check()
    assert bench.parser.damaged > 0


@cocotb.test()
async def bench_prefixes(dut: Any) -> None:
    """Whatever was sent before, a request is carried out and answered, and what was no request has no effect."""
    bench = Bench(dut, registers=False)
    await bench.start()
    whole = frame(bench.request(Operation.WRITE_MEMORY, 512, payload=bytes([END, ESC]) * 20).encode())
    prefixes = [whole[: random.randrange(1, len(whole) - 1)] for _ in range(20)]
    prefixes += [random.randbytes(random.randrange(1, 60)) for _ in range(10)]
    prefixes += [bytes([ESC]), bytes([END, ESC]), bytes([END]) * 9, bytes(300), random.randbytes(3000)]
    # Requests with the right CRC that are none: too short, too long, size and payload apart, operations unknown.
    short = bench.request(Operation.WRITE_MEMORY, 512, payload=bytes(5)).encode()
    prefixes += [frame(short[:-1]), frame(short + b"\0"), frame(short[:7]), frame(b"\0"), frame(bytes(280))]
    prefixes += [frame(bytes([1, operation]) + short[2:]) for operation in (8, 9, 0x81, 0xFF)]
    prefixes += [frame(bytes([1, 1, 5, 2]) + short[4:])]
    for prefix in prefixes:
        await bench.send(prefix)
        if random.random() < 0.3:  # a break, and a byte whose stop bit is low
            dut.rx.value = 0
            await Timer(bench.bit * random.randrange(12, 30), "ps")
            dut.rx.value = 1
            await Timer(bench.bit * 2, "ps")
        request = bench.draw(registers=False)
        assert await bench.exchange(request) == bench.model.answer(request), prefix.hex()
    bench.check()


@cocotb.test()
async def bench_flips(dut: Any) -> None:
    """A request with any single bit inverted has no effect and no answer."""
    bench = Bench(dut, registers=False)
    await bench.start()
    good = frame(bench.request(Operation.WRITE_MEMORY, 0x7D7E, payload=b"\x7e}weft").encode())
    for bit in range(8, 8 * (len(good) - 1)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        await bench.send(bytes(bad))
    await bench.quiet()
    assert bench.answers.empty()
    assert bench.memory == bench.model.memory


@cocotb.test()
async def bench_start(dut: Any) -> None:
    """A start that comes twice is carried out once; so is one that names another number of starts."""
    bench = Bench(dut)
    await bench.start()
    assert bench.axi is not None
    for starts in range(4):
        request = bench.request(Operation.START, CONTROL | starts << 24, payload=bytes([1, 0, 0, 0]))
        bench.axi.write(CONTROL, bytes(4))
        wrong = CONTROL | (starts ^ 1 << random.randrange(8)) << 24
        other = bench.request(Operation.START, wrong, payload=request.payload)
        assert (await bench.exchange(other)).starts == starts
        assert bench.axi.read(CONTROL, 4) == bytes(4)
        assert await bench.exchange(request) == Answer(request.sequence, Operation.START, starts + 1)
        assert bench.axi.read(CONTROL, 4) == request.payload
        bench.axi.write(CONTROL, bytes(4))
        assert (await bench.exchange(request)).starts == starts + 1
        assert bench.axi.read(CONTROL, 4) == bytes(4)


@cocotb.test()
async def bench_starts_wrap(dut: Any) -> None:
    """The number of starts is counted modulo 256."""
    bench = Bench(dut, registers=False)
    await bench.start()
    for first in range(0, 272, 16):
        requests = [
            bench.request(Operation.START, (starts % 256) << 24) for starts in range(first, first + 16)
        ]
        await bench.send(b"".join(frame(request.encode()) for request in requests))
        for starts, request in enumerate(requests, first + 1):
            assert await bench.answer() == Answer(request.sequence, Operation.START, starts % 256)


@cocotb.test()
async def bench_reset(dut: Any) -> None:
    """The core's reset is high for 20 bits of the line at least, while nothing else happens, and low otherwise."""
    bench = Bench(dut)
    await bench.start()
    high: list[float] = []

    async def watch() -> None:
        while True:
            await RisingEdge(dut.reset)
            since = get_sim_time("ps")
            while dut.reset.value:
                await RisingEdge(dut.clk)
                await ReadOnly()
                assert not any(
                    getattr(dut, name).value
                    for name in ("memory__command__valid", "memory__write__valid", "registers__s_axi_awvalid",
                                 "registers__s_axi_wvalid", "registers__s_axi_arvalid")
                )  # fmt: skip
            high.append(get_sim_time("ps") - since)

    cocotb.start_soon(watch())
    for number in range(1, 4):
        requests = [bench.draw(), bench.request(Operation.RESET), bench.draw()]
        await bench.send(b"".join(frame(request.encode()) for request in requests))
        for request in requests:
            answer = await bench.answer()
            assert (answer.sequence, answer.operation) == (request.sequence, request.operation)
        await bench.quiet()
        assert len(high) == number
    assert bench.axi is not None
    memory, registers = bytes(bench.memory), bench.axi.read(0, SIZE)
    await bench.exchange(bench.request(Operation.RESET, 0x14, payload=random.randbytes(9)))
    assert (bench.memory, bench.axi.read(0, SIZE)) == (memory, registers)
    assert min(high) >= 20 * bench.bit


@cocotb.test()
async def bench_overflow(dut: Any) -> None:
    """Requests that find the buffer full are dropped as a whole; all others are carried out."""
    bench = Bench(dut, registers=False)
    await bench.start()
    bench.frozen = True
    requests = [
        bench.request(Operation.WRITE_MEMORY, 256 * block, payload=random.randbytes(256))
        for block in range(12)
    ]
    await bench.send(b"".join(frame(request.encode()) for request in requests))
    await bench.quiet()
    assert bench.answers.empty()
    bench.frozen = False
    await bench.quiet(60)
    answered = {bench.answers.get_nowait().sequence for _ in range(bench.answers.qsize())}
    room = bench_parameters()["buffer"] // len(requests[0].encode())
    assert room <= len(answered) <= room + 1
    for request in requests:
        if request.sequence in answered:
            bench.model.answer(request)
    assert bench.memory == bench.model.memory
    request = bench.request(Operation.READ_MEMORY, 256, 256)
    assert await bench.exchange(request) == bench.model.answer(request)


@cocotb.test()
async def bench_bulk(dut: Any) -> None:
    """Long transfers use at least 85 % of the line both ways, with a memory that takes about 20 cycles a word."""
    bench = Bench(dut, registers=False, stall=0.85)
    await bench.start()
    size = bench_parameters()["bulk"]
    for operation in (Operation.WRITE_MEMORY, Operation.READ_MEMORY):
        requests = [
            bench.request(operation, at, PAYLOAD, random.randbytes(PAYLOAD) if operation & 1 else b"")
            for at in range(0, size, PAYLOAD)
        ]
        since = get_sim_time("ps")
        sender = cocotb.start_soon(_windowed(bench, requests))
        await sender
        share = size * 10 * bench.bit / (get_sim_time("ps") - since)
        print(f"{operation.name} of {size} bytes: {share:.1%} of the line rate")
        assert share >= 0.85
    bench.check()


async def _windowed(bench: Bench, requests: list[Request]) -> None:
    """Exchange requests, six at a time."""
    expected = [bench.model.answer(request) for request in requests]
    outstanding = 0

    async def listen() -> None:
        nonlocal outstanding
        for answer in expected:
            assert await bench.answer() == answer
            outstanding -= 1

    listener = cocotb.start_soon(listen())
    for request in requests:
        while outstanding >= 6:
            await Timer(bench.bit, "ps")
        outstanding += 1
        await bench.send(frame(request.encode()))
    await listener


REQUESTS, NOISE = "requests|checks|fills|starts?|starts_wrap|reset", "noise|prefixes|flips|overflow"


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("bus", "divisor", "fills", "checks", "part"),
    [
        (4, 4, False, 1, NOISE),
        (16, 7, True, 4, REQUESTS),
        (4, 4, False, 1, REQUESTS),
        (16, 7, True, 4, NOISE),
    ],
)
def test_link(bus: int, divisor: int, fills: bool, checks: int, part: str) -> None:
    config = PRESETS["tiny"].replace(bus_bytes=bus)
    link = Link(
        config, divisor, board=BOARD, memory_bytes=MEMORY_BYTES, clock=CLOCK, fills=fills, checks=checks
    )
    run_bench(link, parameters=_parameters(link), only=f"bench_({part})$")


def _parameters(link: Link) -> dict[str, Any]:
    features = Feature.FILLS if link.fills else Feature.NONE
    return {
        "config": link.config.to_dict(), "divisor": link.divisor, "buffer": link.buffer, "features": int(features)
    }  # fmt: skip


def test_a_check_takes_a_part_of_a_byte() -> None:
    with pytest.raises(ValueError, match="takes 1, 2 or 4 bits in a cycle, not 8"):
        check_piece(8)


@pytest.mark.parametrize("size", [1 << 13, pytest.param(1 << 16, marks=pytest.mark.long)])
def test_bulk_transfers_fill_the_line(size: int) -> None:
    config = PRESETS["tiny"]
    link = Link(config, 4, board=BOARD, memory_bytes=MEMORY_BYTES, clock=CLOCK)
    run_bench(link, parameters={**_parameters(link), "bulk": size}, only="bench_bulk")


@pytest.mark.parametrize("size", [512, 1500, 1 << 16])
def test_buffers_outside_the_limits_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"power of two from 1024 to 32768 bytes, not {size}"):
        check_buffer(size)
