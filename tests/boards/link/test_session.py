"""The host's end of the link on lines that spoil bytes and stand still, in simulated time."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
from support.board_model import BoardModel
from support.board_terminal import CONFIG
from support.simulated_line import SimulatedLine

from weft.boards.bus.memory import BoardMemory
from weft.boards.link.frames import PAYLOAD, Operation, Request
from weft.boards.link.session import PATIENCE, Session, SilenceError
from weft.hdl.isa.memmap import Reg
from weft.sim.device import DeviceError

BYTES = 60_000
CLEAN = BYTES * 10 / 3_000_000
"""Seconds of line time for the payload alone."""


@dataclass
class Setting:
    model: BoardModel
    line: SimulatedLine
    session: Session
    memory: BoardMemory

    def there_and_back(self, address: int = 100, size: int = BYTES) -> tuple[float, float]:
        """Seconds for writing and reading; fails if a byte is wrong, here or anywhere else in memory."""
        expected = bytearray(self.model.memory)
        payload = self.line.rng.randbytes(size)
        expected[address : address + size] = payload
        begun = self.line.now
        self.memory.write(address, payload)
        written = self.line.now
        assert self.memory.read(address, size) == payload
        assert self.model.memory == expected
        return written - begun, self.line.now - written

    def greet(self) -> None:
        """The board has answered at least once."""
        self.session.request(Request(0, Operation.READ_REGISTERS, Reg.MAGIC, 4))


def setting(seed: int, **session: Any) -> Setting:
    random.seed(seed)
    model = BoardModel(CONFIG)
    line = SimulatedLine(model.feed, random.Random(seed))
    made = Session(line, "line", clock=line.clock, **{"timeout": 0.23, "adaptive": True} | session)
    made.buffer = model.identity.buffer
    return Setting(model, line, made, BoardMemory(made, len(model.memory)))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))])
@pytest.mark.parametrize(
    ("rate", "writing", "reading", "payload"),
    [(0, 1.2, 1.2, 256), (0.001, 2.5, 2.5, 128), (0.003, 3.5, 3, 64), (0.01, 6, 6, 32), (0.02, 20, 15, 32)],
)  # fmt: skip
def test_spoilt_bytes(rate: float, writing: float, reading: float, payload: int, seed: int) -> None:
    """They cost what they must: so many times the line time of the payload, and no attempt is the last."""
    made = setting(seed)
    made.greet()
    made.line.rate = rate
    write, read = made.there_and_back()
    print(f"rate {rate}, seed {seed}: write {write / CLEAN:.2f}, read {read / CLEAN:.2f} of the line time")
    assert write < writing * CLEAN
    assert read < reading * CLEAN
    assert payload // 2 <= made.session.payload <= 2 * payload
    assert (made.session.retries > 0) == (rate > 0)


def test_a_line_that_is_bad_from_the_start_and_gets_better() -> None:
    made = setting(3)
    made.line.rate = 0.02
    made.greet()
    made.there_and_back(size=20_000)
    assert made.session.payload <= 64
    made.line.rate = 0.0
    made.there_and_back()
    assert made.session.payload == PAYLOAD
    assert made.session.quality.error_rate < 0.0005


def test_a_line_that_gets_bad_under_long_requests() -> None:
    """A window of requests that hardly arrive at all is divided."""
    made = setting(0)
    made.there_and_back()
    made.line.rate = 0.03
    write, read = made.there_and_back(size=10_000)
    assert write + read < 3


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.01])
def test_a_line_that_stands_still_for_half_a_minute(forgets: bool, rate: float) -> None:
    made = setting(4)
    made.there_and_back(size=20_000)
    repeated = made.session.retries
    made.line.rate, made.line.forgets = rate, forgets
    made.line.still = (made.line.now + 0.05, made.line.now + 30.05)
    write, read = made.there_and_back(size=30_000)
    assert 30 < write + read < 33
    assert made.session.retries - repeated < 400 + 2000 * (rate > 0)
    assert made.session.payload == PAYLOAD or rate


def test_many_short_stalls_do_not_mix_answers_up() -> None:
    made = setting(5)
    made.greet()
    made.line.rate = 0.002
    for _ in range(20):
        begin = made.line.now + made.line.rng.uniform(0, 0.03)
        made.line.still = (begin, begin + made.line.rng.choice([0.05, 0.2, 1.0]))
        made.there_and_back(made.line.rng.randrange(1000), made.line.rng.randrange(1, 9000))


def test_starts_on_a_line_that_stands_still_are_made_once() -> None:
    made = setting(6)
    made.greet()
    for number in range(1, 6):
        made.line.still = (made.line.now, made.line.now + made.line.rng.choice([0.1, 3.0, 30.0]))
        address = Reg.CONTROL | made.session.starts << 24
        made.session.request(Request(0, Operation.START, address, 4, bytes([1, 0, 0, 0])))
        assert made.model.starts == made.session.starts == number


def test_a_board_that_has_answered_is_waited_for_longer() -> None:
    made = setting(7)
    made.line.board = lambda data: b""
    with pytest.raises(SilenceError, match="nothing answers"):
        made.greet()
    assert made.line.now < 6
    made = setting(7)
    made.greet()
    made.line.board = lambda data: b""
    with pytest.raises(SilenceError, match="no longer answers"):
        made.memory.read(0, 20_000)
    assert PATIENCE < made.line.now < PATIENCE + 2


def test_a_host_that_slept_repeats_the_request() -> None:
    """Only silence of the board counts, not the host's own pause."""
    made = setting(8)
    made.model.memory[:] = made.line.rng.randbytes(len(made.model.memory))
    requests = (Request(0, Operation.READ_MEMORY, at, PAYLOAD) for at in range(0, 20 * PAYLOAD, PAYLOAD))
    for request, answer in made.session.exchange(requests):
        assert answer.payload == made.model.memory[request.address : request.address + request.size]
        if request.address == 3 * PAYLOAD:
            made.line._arrived.clear()
            made.line.now += 2 * PATIENCE


def test_a_request_that_always_gets_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.boards.link.session.LOSSES", 7)
    made = setting(9)

    def deaf(data: bytes) -> bytes:
        return b"" if data.startswith(b"\x7e") and b"weft" in data else made.model.feed(data)

    made.line.board = deaf
    made.model.memory[:] = bytes(len(made.model.memory))
    with pytest.raises(
        DeviceError, match="the line to line is too bad: it lost a request or its answer 7 times"
    ):
        made.memory.write(0, bytes(10_000) + b"weft" * 8 + bytes(30_000))
