"""The host against a board model at a pseudo-terminal, on lines with and without noise."""

from __future__ import annotations

import errno
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import serial
from support.board_model import BoardModel
from support.board_terminal import CONFIG, Terminal, check_refused
from support.connected_board import stop_answering_after

from weft.boards.link import session
from weft.boards.link.frames import PAYLOAD, Answer, Operation, Parser, Request, frame
from weft.boards.link.host import BoardDevice
from weft.boards.link.polled import PATIENCE
from weft.hdl.control.counters import HangDetector
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import VERSION, Counter, ListProgress, Reg, Status, base_register, counter_register
from weft.sim.device import Device, DeviceError


@pytest.fixture
def model() -> BoardModel:
    return BoardModel(CONFIG)


@pytest.fixture
def terminal(model: BoardModel) -> Iterator[Terminal]:
    made = Terminal(model.feed)
    yield made
    made.unplug()


@pytest.fixture
def device(terminal: Terminal) -> Iterator[BoardDevice]:
    # Noise here spoils half of the long frames: far more attempts than any line needs.
    with BoardDevice.open(terminal.path, CONFIG, timeout=0.1, attempts=25) as opened:
        yield opened


def test_a_board_is_a_device(device: BoardDevice, model: BoardModel) -> None:
    assert isinstance(device, Device)
    assert device.memory_bytes == len(model.memory)
    assert device.identity == model.identity
    assert model.resets == 1


@pytest.mark.parametrize("noise", [0.0, 0.0003, 0.003])
def test_memory(terminal: Terminal, device: BoardDevice, model: BoardModel, noise: float) -> None:
    expected = bytearray(model.memory)
    terminal.noise = noise
    for size in (0, 1, 255, 256, 257, 30_000):
        address = random.randrange(len(expected) - size)
        payload = random.randbytes(size)
        expected[address : address + size] = payload
        device.write(address, payload)
        address = random.randrange(len(expected) - size)
        assert device.read(address, size) == expected[address : address + size]
    assert model.memory == expected
    assert (device.retries > 0) == (noise > 0)


def test_loaded_data_stays(device: BoardDevice, model: BoardModel) -> None:
    """It is checked once, until an overlapping write or a failed program; only differing parts are written."""

    def load(address: int, payload: bytes) -> tuple[bool, int]:
        """Load, and return whether it was checked, and the number of bytes written."""
        checks, written = model.checks, device.transfer.written
        device.load(address, payload)
        assert model.memory[address : address + len(payload)] == payload
        return model.checks > checks, device.transfer.written - written

    first, second = random.randbytes(1000), random.randbytes(1000)
    assert load(64, first) == (True, 1000)
    assert load(2048, second) == (True, 1000)
    assert load(64, first) == load(2048, second) == (False, 0)
    device.start(0)
    device.wait()
    assert load(64, first) == (False, 0)
    assert load(64, first[:-1]) == (True, 0)
    assert load(64, first) == (True, 0)
    assert load(64, second) == (True, 1000)
    device.write(1063, bytes([second[-1] ^ 1]))  # the last byte
    assert load(64, second) == (True, 1000)
    device.write(1064, b"x")
    device.write(63, b"x")
    assert load(64, second) == load(2048, second) == (False, 0)
    model.result = Status.BUSY | Status.BUS_ERROR
    device.start(0)
    with pytest.raises(DeviceError, match="memory answered"):
        device.wait()
    model.result = Status.DONE
    model.memory[2049] ^= 1
    assert load(64, second) == (True, 0)
    device.start(0)
    device.wait()
    assert load(2048, second) == (True, 1000)
    assert load(64, second) == (False, 0)
    with pytest.raises(DeviceError, match="do not lie in a memory"):
        device.load(len(model.memory), b"x")


def test_remains_of_a_broken_write_do_not_count_as_loaded(
    device: BoardDevice, model: BoardModel, terminal: Terminal
) -> None:
    payload = random.randbytes(1000)
    device.load(0, payload)
    terminal.board = lambda data: model.feed(data) and b""
    device._session.attempts, device._session.patience = 3, 0.1
    with pytest.raises(DeviceError, match="no longer answers"):
        device.write(0, bytes(1000))
    terminal.board = model.feed
    device.load(0, payload)
    assert model.memory[:1000] == payload


def test_a_program(device: BoardDevice, model: BoardModel) -> None:
    device.wait()  # none was started
    for index in range(8):
        device.set_base(index, 0x1000 * index + 0xFF000000)
    for number in range(1, 4):
        device.start(0x40)
        assert model.get(Reg.PROGRAM) == 0x40
        assert [model.get(base_register(index)) for index in (0, 7)] == [0xFF000000, 0xFF007000]
        device.wait()
        assert model.runs == number
        assert device.counters()[Counter.CYCLES] == 3000
        assert device.counters()[Counter.STORE_PORT] == 0
    model.set(counter_register(Counter.STORE_PORT) + 4, 7)
    assert device.counters()[Counter.STORE_PORT] == 7 << 32


def test_a_list() -> None:
    """It starts as a program does; the host does not trust base registers after it."""
    config = CONFIG.replace(descriptors=1)
    model = BoardModel(config)
    terminal = Terminal(model.feed)
    with BoardDevice.open(terminal.path, config, timeout=0.1, attempts=25) as device:
        device.set_base(2, 0x80)
        for number in range(1, 3):
            device.start_list(0x40)
            assert model.get(Reg.LIST) == 0x40
            model.set(base_register(2), 0x12340000)  # by the last descriptor
            device.wait()
            assert (model.runs, model.starts) == (number, number)
        device.set_base(2, 0x80)
        assert model.get(base_register(2)) == 0x80
        device.start(0x40)
        device.wait()
        model.set(Reg.LISTED, 3 | 1 << 31)
        assert device.list_progress() == ListProgress(3, at_descriptor=True)
        model.result = Status.DONE | Status.OPCODE_ERROR
        for start, words in (
            (
                device.start_list,
                r"^descriptor 3 of the list: a descriptor cannot begin with the word in memory$",
            ),
            (device.start, r"^the program holds a word that is no instruction$"),
        ):
            start(0x40)
            model.set(Reg.LISTED, 3 | 1 << 31)
            with pytest.raises(DeviceError, match=words):
                device.wait()
        for address, words in (
            (0x20, "no multiple of 64 bytes"),
            (len(model.memory), "do not lie in a memory"),
        ):
            with pytest.raises(DeviceError, match=words):
                device.start_list(address)
    terminal.unplug()


def test_a_list_where_there_are_none(device: BoardDevice) -> None:
    with pytest.raises(
        DeviceError, match=r"^the configuration runs no lists of programs \('descriptors' is 0\)$"
    ):
        device.start_list(0)


def test_base_registers_that_change_are_written(
    terminal: Terminal, device: BoardDevice, model: BoardModel
) -> None:
    """A language model sets equal ones for every token."""
    asked: list[bytes] = []
    terminal.board = lambda data: asked.append(data) or model.feed(data)
    for address, written in ((0, True), (64, True), (64, False), (0, True), (0, False)):
        asked.clear()
        device.set_base(2, address)
        assert bool(asked) == written
        assert model.get(base_register(2)) == address


def test_starts_are_not_repeated(terminal: Terminal, device: BoardDevice, model: BoardModel) -> None:
    """The answer to a start is lost again and again, until the program is long done."""
    lost = 0

    def forgetful(data: bytes) -> bytes:
        nonlocal lost
        said = model.feed(data)
        for body in Parser().feed(said):
            if Answer.decode(body).operation is Operation.START and lost < 3:
                lost += 1
                for _ in range(10):  # the program goes on
                    model.answer(Request(0, Operation.READ_REGISTERS, Reg.STATUS, 4))
                assert model.get(Reg.STATUS) == Status.DONE
                return b""
        return said

    terminal.board = forgetful
    device.start(0)
    device.wait()
    assert lost == 3
    assert (model.starts, model.runs) == (1, 1)


def test_programs_on_a_noisy_line(terminal: Terminal, device: BoardDevice, model: BoardModel) -> None:
    terminal.noise = 0.005
    for number in range(1, 15):
        device.start(4 * number)
        device.wait()
        assert model.runs == number


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Status.DONE | Status.OPCODE_ERROR, "the program holds a word that is no instruction"),
        (Status.BUSY | Status.BUS_ERROR, "memory answered with an error"),
        (Status(0), "was reset while the program ran"),
    ],
)
def test_failed_programs(device: BoardDevice, model: BoardModel, status: Status, words: str) -> None:
    model.result = status
    device.set_base(3, 0x123)
    device.start(0)
    with pytest.raises(DeviceError, match=words):
        device.wait()
    model.result = Status.DONE
    device.start(0)
    assert model.resets == 2
    assert model.get(base_register(3)) == 0x123
    device.wait()


def test_programs_without_end(device: BoardDevice, model: BoardModel) -> None:
    model.duration = 1 << 30
    model.moving |= {Counter.LOAD_BUSY, Counter.MM_BUSY, Counter.MM_WEIGHTS}
    device.start(0)
    with pytest.raises(DeviceError, match="not done after 5000 cycles: LOAD is busy, MM waits for weights"):
        device.wait(5000)
    device.start(0)
    model.step = 300_000
    model.moving = {Counter.CYCLES, Counter.LOAD_BUSY, Counter.LOAD_MEMORY, Counter.MM_SEMAPHORE}
    with pytest.raises(
        DeviceError, match="the program hangs: LOAD waits for memory, MM waits for semaphore, VEC"
    ):
        device.wait()
    model.duration = 20
    model.moving |= {Counter.WRITE_BEATS}
    device.start(0)
    device.wait()
    assert model.resets == 3


UNITS = (Counter.LOAD_BUSY, Counter.MM_BUSY, Counter.STORE_BUSY)


@pytest.mark.parametrize("busy", UNITS, ids=lambda counter: counter.name)
def test_a_hang_is_noticed_without_counters_of_stalls(
    device: BoardDevice, model: BoardModel, busy: Counter
) -> None:
    """A unit that is busy for ever without progress is a hang, too; VEC only after very long."""
    model.duration, model.step = 1 << 30, 100_000
    unit = busy.name.removesuffix("_BUSY")
    cause = f"{unit} is busy" if unit == "MM" else f"{unit} waits for memory"
    model.moving = {Counter.CYCLES, busy}
    device.start(0)
    with pytest.raises(DeviceError, match=rf"^the program hangs: .*{cause}"):
        device.wait()
    assert model.get(counter_register(Counter.CYCLES)) < 4_000_000


def test_a_hang_of_the_vector_unit_is_noticed_late(device: BoardDevice, model: BoardModel) -> None:
    longest = HangDetector(CONFIG, 0).longest
    model.duration, model.step = 1 << 30, longest // 100
    model.moving = {Counter.CYCLES, Counter.VEC_BUSY}
    device.start(0)
    with pytest.raises(DeviceError, match=r"^the program hangs: .*VEC is busy"):
        device.wait()
    assert longest <= model.get(counter_register(Counter.CYCLES)) < 2 * longest


@pytest.mark.parametrize("timeout", [None, 10_000])
def test_a_core_that_stands_still_is_not_waited_for(
    device: BoardDevice, model: BoardModel, timeout: int | None
) -> None:
    model.duration, model.moving = 1 << 30, set()
    device.start(0)
    with pytest.raises(DeviceError, match=r"^the core at .* has stopped: its cycle counter does not change$"):
        device.wait(timeout)
    model.duration, model.moving = 3, {Counter.CYCLES}
    device.start(0)
    device.wait()


@pytest.mark.parametrize(
    "moving",
    [{Counter.READ_BEATS}, {Counter.WRITE_BEATS}, {Counter.ARRAY_ACTIVE}, {Counter.VEC_BUSY}],
    ids=lambda moving: "-".join(counter.name for counter in moving),
)
def test_a_long_program_is_waited_for(device: BoardDevice, model: BoardModel, moving: set[Counter]) -> None:
    model.duration, model.step = 60, PATIENCE // 3
    model.moving = moving | {Counter.CYCLES, Counter.LOAD_BUSY, Counter.LOAD_MEMORY, Counter.MM_SEMAPHORE}
    device.start(0)
    device.wait()
    assert device.counters()[Counter.CYCLES] >= 15 * PATIENCE


def test_a_program_that_runs_is_not_disturbed(device: BoardDevice, model: BoardModel) -> None:
    device.start(0)
    with pytest.raises(DeviceError, match="a program is still running"):
        device.start(0)
    device.wait()
    assert model.runs == 1


def test_a_reconfigured_board(device: BoardDevice, model: BoardModel) -> None:
    device.start(0)
    device.wait()
    model.starts = 0
    with pytest.raises(DeviceError, match="was configured again meanwhile: open it again"):
        device.start(0)
    assert model.runs == 1
    device.start(0)
    device.wait()
    assert (model.runs, model.resets) == (2, 2)


def test_a_start_without_answer(terminal: Terminal, device: BoardDevice, model: BoardModel) -> None:
    """It is unknown whether it was carried out: the next start resets the core."""
    device._session.attempts, device._session.patience = 3, 0.3
    parser = Parser()

    def deaf(data: bytes) -> bytes:
        requests = [Request.decode(body) for body in parser.feed(data)]
        wanted = [request for request in requests if request.operation is not Operation.START]
        return b"".join(frame(model.answer(request).encode()) for request in wanted)

    terminal.board = deaf
    with pytest.raises(DeviceError, match="no longer answers"):
        device.start(0)
    terminal.board = model.feed
    model.answer(Request(0, Operation.START, Reg.CONTROL, 4, bytes([1, 0, 0, 0])))
    device.start(0)
    device.wait()
    assert (model.runs, model.resets) == (2, 2)


def test_wrong_arguments(device: BoardDevice, model: BoardModel) -> None:
    size = len(model.memory)
    before = bytes(model.memory)
    for address, length in ((-1, 1), (size, 1), (size - 3, 4)):
        words = f"{length} bytes at {address:#x} do not lie in a memory of {size} bytes"
        with pytest.raises(DeviceError, match=words):
            device.write(address, bytes([255]) * length)
        with pytest.raises(DeviceError, match=words):
            device.read(address, length)
    with pytest.raises(DeviceError, match="do not lie in a memory"):
        device.read(0, -1)
    with pytest.raises(DeviceError, match="base register 8 does not exist; there are 8"):
        device.set_base(8, 0)
    with pytest.raises(DeviceError, match="cannot hold 4294967296: it is 32 bits"):
        device.set_base(0, 1 << 32)
    with pytest.raises(DeviceError, match="0x2 is no multiple of 4 bytes"):
        device.start(2)
    with pytest.raises(DeviceError, match="do not lie in a memory"):
        device.start(size + 4)
    assert model.memory == before
    assert model.runs == 0


def test_boards_for_something_else_are_refused(terminal: Terminal, model: BoardModel) -> None:
    own = CONFIG.replace(accumulator_depth=128)
    model.identity = replace(model.identity, digest=PRESETS["small"].digest)
    check_refused(
        terminal,
        f"the board model at {terminal.path} is built for configuration small "
        f"(digest {PRESETS['small'].digest:#010x}), the program is for configuration tiny "
        f"(digest {CONFIG.digest:#010x}): compile for the board or flash the other bitstream",
    )
    model.identity = replace(model.identity, digest=own.digest)
    check_refused(terminal, f"built for configuration of your own (digest {own.digest:#010x}), the program")
    model.identity = replace(model.identity, protocol=9)
    check_refused(terminal, "speaks version 9 of the link, this weft version 2: build and flash it again")
    model.identity = replace(model.identity, protocol=2, digest=CONFIG.digest)
    model.set(Reg.VERSION, 77)
    check_refused(terminal, "register VERSION of the core")
    model.set(Reg.VERSION, VERSION)
    BoardDevice.open(terminal.path, CONFIG).close()


def test_ports_without_a_board_are_refused(terminal: Terminal, model: BoardModel) -> None:
    terminal.board = lambda data: b""
    check_refused(terminal, "nothing answers at")
    terminal.board = lambda data: data
    check_refused(terminal, "is no weft board, or runs at another baud rate: of")
    terminal.board = lambda data: random.randbytes(len(data))
    check_refused(terminal, "is no weft board, or runs at another baud rate: of")

    def other(data: bytes) -> bytes:
        bodies = Parser().feed(model.feed(data))
        return b"".join(frame(body[:3] + bytes(len(body) - 3)) for body in bodies)

    terminal.board = other
    check_refused(terminal, "is no weft board: an identity starts with")


def test_a_board_that_is_lost(terminal: Terminal, device: BoardDevice, model: BoardModel) -> None:
    terminal.board = stop_answering_after(model, 5000)
    device._session.attempts, device._session.patience = 3, 0.3
    with pytest.raises(DeviceError, match=f"the board at {terminal.path} no longer answers"):
        device.write(0, bytes(20_000))
    terminal.board = model.feed
    assert device.read(0, 100) == bytes(100)
    terminal.unplug()
    with pytest.raises(DeviceError, match=f"lost {terminal.path}: "):
        device.write(0, bytes(20_000))


def test_a_request_that_never_arrives(
    terminal: Terminal, device: BoardDevice, model: BoardModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "LOSSES", 5)

    def deaf(data: bytes) -> bytes:
        out = b""
        for body in parser.feed(data):
            request = Request.decode(body)
            if request.address != 0x300:
                out += frame(model.answer(request).encode())
        return out

    parser = Parser()
    terminal.board = deaf
    with pytest.raises(DeviceError, match="too bad: it lost a request or its answer 5 times"):
        device.write(0, bytes(60_000))


def test_ports_that_cannot_be_opened(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        DeviceError, match="there is no serial port /dev/nowhere; the ports of this machine: "
    ):
        BoardDevice.open("/dev/nowhere", CONFIG)
    with pytest.raises(DeviceError, match="/dev/null is no serial port"):
        BoardDevice.open("/dev/null", CONFIG)
    with pytest.raises(DeviceError, match=f"cannot open {terminal.path} at -5 baud: "):
        BoardDevice.open(terminal.path, CONFIG, baud=-5)
    with pytest.raises(DeviceError, match="cannot open nothing://1 at 3000000 baud: "):
        BoardDevice.open("nothing://1", CONFIG)
    with (
        BoardDevice.open(terminal.path, CONFIG),
        pytest.raises(DeviceError, match=f"another program has {terminal.path} open: end it first"),
    ):
        BoardDevice.open(terminal.path, CONFIG)
    for number, words in (
        (errno.EACCES, f"you may not open {terminal.path}: join the group that owns it"),
        (errno.EIO, f"cannot open {terminal.path}: .*out of order"),
    ):

        def fail(*arguments: Any, number: int = number, **options: Any) -> None:
            raise serial.SerialException(number, "out of order")

        monkeypatch.setattr(serial, "serial_for_url", fail)
        with pytest.raises(DeviceError, match=words):
            BoardDevice.open(terminal.path, CONFIG)
    monkeypatch.setitem(sys.modules, "serial", None)
    with pytest.raises(DeviceError, match=re.escape("boards need pyserial: pip install 'weft[boards]'")):
        BoardDevice.open(terminal.path, CONFIG)


def test_an_interrupted_session(terminal: Terminal, model: BoardModel) -> None:
    """Remains of an interrupted host on the line and in the board do not harm the next session."""
    first = BoardDevice.open(terminal.path, CONFIG)
    model.duration = 1 << 30
    first.start(0)
    for _ in first._session.exchange(
        Request(0, Operation.READ_MEMORY, at, 256) for at in range(0, 5120, 256)
    ):
        break
    first._session._write(frame(b"half")[:3])
    first.close()
    with BoardDevice.open(terminal.path, CONFIG) as second:
        model.duration = 3
        second.start(0)
        second.wait()
        assert model.runs == 2


def test_answers_of_an_earlier_session(terminal: Terminal, device: BoardDevice, model: BoardModel) -> None:
    """Late answers to other requests with equal sequence numbers are ignored."""

    def old(data: bytes) -> bytes:
        out = b""
        for body in parser.feed(data):
            answer = model.answer(Request.decode(body))
            for stale in (
                replace(answer, operation=Operation.READ_REGISTERS, payload=bytes(256)),
                replace(answer, payload=bytes(255)),
                replace(answer, sequence=(answer.sequence + 100) % 256),
                answer,
            ):
                out += frame(stale.encode())
        return out

    parser = Parser()
    model.memory[:] = random.randbytes(len(model.memory))
    terminal.board = old
    assert device.read(0, 5000) == model.memory[:5000]


def test_windows_fit_in_the_buffer(terminal: Terminal, device: BoardDevice, model: BoardModel) -> None:
    """Requests never overflow a board that is slow to carry them out."""
    seen: list[int] = []
    parser = Parser()

    def slow(data: bytes) -> bytes:
        bodies = parser.feed(data)
        seen.append(sum(map(len, bodies)))
        return b"".join(frame(model.answer(Request.decode(body)).encode()) for body in bodies)

    terminal.board = slow
    device.write(0, bytes(20_000))
    device.read(0, 20_000)
    assert device.retries == 0
    assert PAYLOAD < max(seen) < model.identity.buffer
