"""Images that boards copy from flash to memory: their bytes, and images that are too large."""

from __future__ import annotations

import random

import pytest
from support.board_model import crc

from weft.boards.errors import FlashImageError
from weft.boards.link.frames import CHECK_BLOCK
from weft.boards.link.loader import END_MARKER, MAGIC, PAGE_MARKER, build_copy_image, copy_image_bytes


@pytest.mark.parametrize("size", [1, CHECK_BLOCK - 1, CHECK_BLOCK, CHECK_BLOCK + 1, 3 * CHECK_BLOCK + 7])
def test_pages_and_their_crcs(size: int) -> None:
    content = random.Random(size).randbytes(size)
    image = build_copy_image(content, copy_image_bytes(size), "there")
    assert len(image) == copy_image_bytes(size)
    assert image[: len(MAGIC)] == MAGIC
    at, found = len(MAGIC), b""
    while image[at] == PAGE_MARKER:
        page = image[at + 1 : at + 1 + CHECK_BLOCK]
        found += page
        at += 1 + CHECK_BLOCK
        assert image[at : at + 8] == crc(page).to_bytes(8, "little")
        at += 8
    assert image[at:] == bytes([END_MARKER])
    assert found == content + bytes(-size % CHECK_BLOCK)


def test_images_that_are_too_large_are_refused() -> None:
    with pytest.raises(FlashImageError, match=r"take 4,114 bytes, and the flash has room for 4,113$"):
        build_copy_image(bytes(CHECK_BLOCK), 4113, "the flash")
