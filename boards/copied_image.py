"""What a board with SDRAM finds in its flash behind its bitstream, and copies to memory when its FPGA starts.

An image is `MAGIC` and pages of memory, from its address 0 on: of each the byte `MORE`, `CHECKED` bytes, and their
CRC-64 as `weft.boards.crc64` computes it, least significant byte first. Behind the last one is the byte `OVER`.
"""

from __future__ import annotations

import numpy as np

from weft.boards.crc64 import crc64
from weft.boards.flash_image import FlashImageError
from weft.boards.frames import CHECK_BYTES, CHECKED

MAGIC = b"weft cp1"
MORE, OVER = 0xA5, 0x5A
"""All bits of the one are others than those of the other."""


def copied_bytes(size: int) -> int:
    """Bytes of the image of so many bytes."""
    return len(MAGIC) + -(-size // CHECKED) * (1 + CHECKED + CHECK_BYTES) + 1


def copied_image(content: bytes, room: int, where: str) -> bytes:
    """The image of what memory is to hold from its address 0 on, in at most `room` bytes of what `where` names.

    Raises `FlashImageError` if it has no room.
    """
    if (size := copied_bytes(len(content))) > room:
        raise FlashImageError(
            f"the program's code and constants take {size:,} bytes, and {where} has room for {room:,}"
        )
    pages = np.frombuffer(content + bytes(-len(content) % CHECKED), np.uint8).reshape(-1, CHECKED)
    records = (
        bytes([MORE]) + page.tobytes() + int(crc).to_bytes(CHECK_BYTES, "little")
        for page, crc in zip(pages, crc64(pages), strict=True)
    )
    return MAGIC + b"".join(records) + bytes([OVER])
