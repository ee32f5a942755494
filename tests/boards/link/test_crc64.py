"""The CRC of the host is that of the library which makes the board's."""

from __future__ import annotations

import random

import numpy as np
from amaranth.lib.crc.catalog import CRC64_XZ

from weft.boards.link.framing import crc64


def test_the_check_value() -> None:
    """From the catalogue of parametrised CRC algorithms."""
    assert crc64(np.frombuffer(b"123456789", np.uint8)[None]) == 0x995DC9BBDF1939FA


def test_random_blocks() -> None:
    reference = CRC64_XZ()
    for size in (0, 1, 7, 300):
        rows = np.frombuffer(random.randbytes(5 * size), np.uint8).reshape(5, size)
        assert crc64(rows).tolist() == [reference.compute(row.tobytes()) for row in rows]
        assert crc64(rows).dtype == np.uint64
