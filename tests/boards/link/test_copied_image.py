"""What boards copy from flash to memory: its bytes, and what has no room."""

from __future__ import annotations

import random

import pytest
from support.board_model import crc

from weft.boards.flash.image import FlashImageError
from weft.boards.link.frames import CHECKED
from weft.boards.link.loader import MAGIC, MORE, OVER, copied_bytes, copied_image


@pytest.mark.parametrize("size", [1, CHECKED - 1, CHECKED, CHECKED + 1, 3 * CHECKED + 7])
def test_pages_and_their_crcs(size: int) -> None:
    content = random.Random(size).randbytes(size)
    image = copied_image(content, copied_bytes(size), "there")
    assert len(image) == copied_bytes(size)
    assert image[: len(MAGIC)] == MAGIC
    at, found = len(MAGIC), b""
    while image[at] == MORE:
        page = image[at + 1 : at + 1 + CHECKED]
        found += page
        at += 1 + CHECKED
        assert image[at : at + 8] == crc(page).to_bytes(8, "little")
        at += 8
    assert image[at:] == bytes([OVER])
    assert found == content + bytes(-size % CHECKED)


def test_what_has_no_room() -> None:
    with pytest.raises(FlashImageError, match=r"take 4,114 bytes, and the flash has room for 4,113$"):
        copied_image(bytes(CHECKED), 4113, "the flash")
