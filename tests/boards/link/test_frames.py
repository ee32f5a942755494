"""Frames: what is encoded is decoded, whatever comes before, and nothing else is."""

from __future__ import annotations

import itertools
import random
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.serial_models import disturb

from weft.boards.errors import FrameError
from weft.boards.link.frames import (
    END,
    ESC,
    FLASH_STATE,
    IDENTITY_BYTES,
    LONGEST,
    Answer,
    Feature,
    Identity,
    Operation,
    Parser,
    Request,
    block_limit,
    carries_payload,
    fill_pattern,
    frame,
)
from weft.boards.sdram.calibration import CALIBRATION_BYTES, Calibration, CalibrationState

BYTE = st.sampled_from([END, ESC, END ^ 0x20, ESC ^ 0x20, 0, 255]) | st.integers(0, 255)
BYTES = st.lists(BYTE, max_size=60).map(bytes)
BODY = st.lists(BYTE, min_size=1, max_size=80).map(bytes)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    address = draw(st.integers(0, (1 << 32) - 1))
    operation = draw(st.sampled_from(Operation))
    size = draw(st.integers(0, block_limit(operation) - address % block_limit(operation)))
    payload = draw(st.binary(min_size=size, max_size=size)) if carries_payload(operation) else b""
    inverse = operation is Operation.FILL_MEMORY and draw(st.booleans())
    return Request(draw(st.integers(0, 255)), operation, address, size, payload, inverse)


@given(requests())
def test_requests_round_trip(request: Request) -> None:
    (body,) = Parser().feed(frame(request.encode()))
    assert Request.decode(body) == request


@given(st.integers(0, 255), st.sampled_from(Operation), st.integers(0, 255), BYTES)
def test_answers_round_trip(sequence: int, operation: Operation, starts: int, payload: bytes) -> None:
    answer = Answer(sequence, operation, starts, payload)
    (body,) = Parser().feed(frame(answer.encode()))
    assert Answer.decode(body) == answer


@given(st.lists(BODY, max_size=5), st.data())
def test_frames_are_found_however_they_arrive(bodies: list[bytes], data: st.DataObject) -> None:
    line = b"".join(frame(body) for body in bodies)
    parser, found = Parser(), []
    while line:
        cut = data.draw(st.integers(1, len(line)))
        found += parser.feed(line[:cut])
        line = line[cut:]
    assert found == bodies
    assert parser.damaged == 0


@given(st.lists(BYTE, max_size=4 * LONGEST).map(bytes), BODY)
def test_a_frame_is_found_after_any_prefix(prefix: bytes, body: bytes) -> None:
    assert Parser().feed(prefix + frame(body))[-1] == body


@given(BODY, BODY, st.integers(0), st.integers(0, 255))
def test_damage_never_makes_another_body(body: bytes, other: bytes, at: int, byte: int) -> None:
    line = bytearray(frame(body))
    line[at % len(line)] = byte
    found = Parser().feed(bytes(line) + frame(other))
    assert found in ([body, other], [other])
    line = bytearray(frame(body))
    del line[at % len(line)]
    found = Parser().feed(bytes(line) + frame(other))
    assert found in ([body, other], [other])


@given(st.integers(0, 1 << 32))
def test_noise_makes_no_bodies(seed: int) -> None:
    rng = random.Random(seed)
    bodies = [bytes([number]) + rng.randbytes(rng.randrange(30)) for number in range(30)]
    found = Parser().feed(disturb(b"".join(map(frame, bodies)), 0.05, rng))
    places = [bodies.index(body) for body in found]  # raises for one that was never sent
    assert places == sorted(places)


def test_the_frame_of_rfc_1662() -> None:
    body = bytes([1, END, ESC, 2])
    crc = zlib.crc32(body).to_bytes(4, "little")
    assert frame(body) == bytes([0x7E, 1, 0x7D, 0x5E, 0x7D, 0x5D, 2]) + crc + b"\x7e"


def test_damaged_frames() -> None:
    good = frame(b"weft")
    # Cut short in an escape: its first byte happens to be the one that was meant.
    body = next(
        body for body in map(bytes, itertools.product(range(256), repeat=2)) if zlib.crc32(body) >> 24 == ESC
    )
    assert frame(body).endswith(bytes([ESC, ESC ^ 0x20, END]))
    assert Parser().feed(frame(body)[:-2] + bytes([END])) == []
    assert Parser().feed(frame(bytes(LONGEST - 4))) == [bytes(LONGEST - 4)]
    assert Parser().feed(frame(bytes(LONGEST - 3))) == []
    assert Parser().feed(frame(b"")) == []
    parser = Parser()
    parser.feed(bytes([END]) * 5)
    assert parser.damaged == 0  # idle
    parser.feed(b"?" + good[:-2] + good)
    assert parser.damaged == 2


def test_bits_without_end_are_forgotten() -> None:
    parser = Parser()
    for _ in range(100):
        parser.feed(bytes([ESC]) * 1001)
    assert len(parser._rest) <= 2 * LONGEST + 1
    assert parser.feed(frame(b"weft")) == [b"weft"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"address": 250, "size": 7}, "7 bytes from 0xfa are not inside a block of 256"),
        ({"size": 257}, "are not inside a block"),
        ({"operation": Operation.CHECK_MEMORY, "address": 0x1FFF, "size": 2}, "2 bytes .* a block of 4096"),
        ({"size": -1}, "are not inside a block"),
        ({"operation": Operation.WRITE_MEMORY, "size": 2, "payload": b"1"}, "WRITE_MEMORY of 2 bytes carries 1"),
        ({"payload": b"1"}, "READ_MEMORY of 0 bytes carries 1"),
        ({"address": 1 << 32}, "does not fit into a frame"),
        ({"sequence": 256}, "does not fit into a frame"),
    ],
)  # fmt: skip
def test_requests_that_cannot_be_are_refused(fields: dict[str, int | bytes], words: str) -> None:
    with pytest.raises(FrameError, match=words):
        Request(**{"sequence": 0, "operation": Operation.READ_MEMORY} | fields).encode()


@pytest.mark.parametrize(
    ("decode", "body", "words"),
    [
        (Request.decode, bytes(7), "at least 8 bytes, not 7"),
        (Request.decode, bytes([0, 9, 0, 0, 0, 0, 0, 0]), "unknown operation 0x9"),
        (Request.decode, bytes([0, 1, 1, 0, 0, 0, 0, 0]), "carries 0"),
        (Answer.decode, bytes(2), "at least 3 bytes, not 2"),
        (Answer.decode, bytes([0, 1, 0]), "an answer has no operation 0x1"),
        (Answer.decode, bytes([0, 0x89, 0]), "an answer has no operation 0x89"),
        (Identity.decode, bytes(35), f"has {IDENTITY_BYTES} bytes, not 35"),
        (Identity.decode, bytes(IDENTITY_BYTES), "starts with 0x54464557, not 0x0"),
    ],
)  # fmt: skip
def test_bodies_that_are_none_are_refused(decode, body: bytes, words: str) -> None:
    with pytest.raises(FrameError, match=words):
        decode(body)


def test_identities() -> None:
    identity = Identity("tang-primer-20k", 0xFFFFFFFF, 1 << 31, 100_000_000, 2048)
    assert Identity.decode(identity.encode()) == identity
    found = Calibration(CalibrationState.FOUND, 3, 2, 1024, 1023, 1022, 1021, 1020)
    looked = replace(identity, calibration=found)
    assert Identity.decode(looked.encode()) == looked
    fills = replace(looked, features=Feature.FILLS)
    assert Identity.decode(fills.encode()) == fills
    # A board that looks for nothing answers zeros.
    assert Identity.decode(looked.encode()[: FLASH_STATE + 1] + bytes(CALIBRATION_BYTES)) == identity
    with pytest.raises(FrameError, match="an identity has an invalid calibration: 4 is"):
        Identity.decode(identity.encode()[: FLASH_STATE + 1] + bytes([4]) + bytes(CALIBRATION_BYTES - 1))
    with pytest.raises(FrameError, match="longer than 15 bytes"):
        Identity("a-very-long-board-name", 0, 0, 0, 0).encode()
    with pytest.raises(FrameError, match="does not fit"):
        Identity("board", 0, 1 << 32, 0, 0).encode()


@pytest.mark.parametrize("inverse", [False, True])
def test_filling_of_memory_has_no_equal_eight_bytes(inverse: bool) -> None:
    """A part determines all of the filling; every bit of memory is 0 once and 1 once."""
    size = 1 << 16
    whole = fill_pattern(0, size, inverse=inverse)
    words = {whole[at : at + 8] for at in range(0, size, 8)}
    assert len(words) == size // 8
    for at, length in ((0, 1), (3, 5), (7, 2), (4095, 1), (1000, 3001), (0, 0)):
        assert fill_pattern(at, length, inverse=inverse) == whole[at : at + length]
    assert (
        bytes(a ^ b for a, b in zip(whole, fill_pattern(0, size, inverse=not inverse), strict=True))
        == b"\xff" * size
    )
    assert fill_pattern(32 << 20, 8) == bytes([0, 0, 0x40, 0, 255, 255, 0xBF, 255])


def test_only_filling_has_an_inverse() -> None:
    with pytest.raises(FrameError, match="WRITE_MEMORY has no inverse"):
        Request(0, Operation.WRITE_MEMORY, 0, 1, b"x", inverse=True)
