"""Images for a board's flash chip: what is found in them, and what of damage is noticed."""

from __future__ import annotations

import random

import pytest

from weft.boards.errors import FlashImageError
from weft.boards.flash.image import (
    ALIGN,
    DIRECTORY,
    HEAD_BYTES,
    MAGIC,
    MAX_PROGRAMS,
    Directory,
    build_image,
    directory_bytes,
)

START = 0x1100000


def open_image(image: bytes) -> Directory:
    """Return the directory of a chip that holds an image, and is erased after it."""

    def read(at: int, size: int) -> bytes:
        return (image + b"\xff" * 64)[at - START : at - START + size]

    return Directory(read, START)


def test_blobs_are_found_by_their_content() -> None:
    draw = random.Random(1)
    blobs = [draw.randbytes(size) for size in (1, ALIGN, 3 * ALIGN + 64)]
    image = build_image([*blobs, blobs[1]], 1 << 16, "a chip")
    assert len(image) == DIRECTORY + ALIGN * (1 + 1 + 4)
    directory = open_image(image)
    for blob in blobs:
        at = directory.find(blob)
        assert at is not None
        assert at % ALIGN == 0
        assert image[at - START :][: len(blob)] == blob
    assert directory.find(blobs[2][:-1]) is None
    assert directory.state == "other programs"


def test_most_programs() -> None:
    blobs = [bytes([index]) for index in range(MAX_PROGRAMS)]
    image = build_image(blobs, 1 << 20, "a chip")
    assert directory_bytes(image) <= DIRECTORY
    assert all(open_image(image).find(blob) == START + DIRECTORY + ALIGN * blob[0] for blob in blobs)
    with pytest.raises(
        FlashImageError, match=f"holds {MAX_PROGRAMS} device programs at most, not {MAX_PROGRAMS + 1}"
    ):
        build_image([*blobs, b"more"], 1 << 20, "a chip")


def test_too_little_room() -> None:
    assert build_image([b"one"], DIRECTORY + ALIGN, "a chip")
    message = "^the program's code and constants take 8,192 bytes, and a chip has room for 8,191$"
    with pytest.raises(FlashImageError, match=message):
        build_image([b"one"], DIRECTORY + ALIGN - 1, "a chip")


def test_chips_without_an_image() -> None:
    for content in (bytes(64), b"\xff" * 64, b"WEFT" * 16):
        assert open_image(content).state == "no program"
        assert open_image(content).find(content) is None


def test_damaged_directories() -> None:
    """No blob is found in a directory of which any bit is wrong."""
    blob = b"a program"
    image = build_image([blob], 1 << 16, "a chip")
    for at in range(len(MAGIC), directory_bytes(image)):
        for bit in range(8):
            damaged = bytearray(image)
            damaged[at] ^= 1 << bit
            directory = open_image(bytes(damaged))
            assert directory.find(blob) is None
            counted = at >= HEAD_BYTES
            assert directory.state.startswith("an image of which the directory is damaged: it"), (at, counted)
    wrong = image[: len(MAGIC)] + (1000).to_bytes(4, "little") + image[HEAD_BYTES:]
    assert open_image(wrong).state.endswith("damaged: it claims 1,000 programs")
