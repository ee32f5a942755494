"""CRC-64/XZ, as boards compute it over their memory: see `weft.boards.frames.CHECK_BYTES`.

Blocks that differ by chance have the same CRC once in 2**64 times; those that differ within 64 neighbouring bits never
have. Who means to make two blocks with the same CRC can: it is no protection against that.
"""

from __future__ import annotations

import numpy as np

_POLYNOMIAL = 0xC96C5795D7870F42
_ONES = np.uint64((1 << 64) - 1)


def _table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        table = table >> np.uint64(1) ^ (table & np.uint64(1)) * np.uint64(_POLYNOMIAL)
    return table


_TABLE = _table()


def crc64(blocks: np.ndarray) -> np.ndarray:
    """The CRC of each row.

    Parameters
    ----------
    blocks : np.ndarray
        Shape (count, bytes), uint8.

    Returns
    -------
    np.ndarray
        Shape (count,), uint64.
    """
    crc = np.full(len(blocks), _ONES)
    for column in np.ascontiguousarray(blocks.T):
        crc = _TABLE[(crc.astype(np.uint8)) ^ column] ^ crc >> np.uint64(8)
    return crc ^ _ONES
