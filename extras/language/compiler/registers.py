"""The registers of a decoder's program, and the frame in memory that tells it about tokens.

====  =============================================================================
0     constants
1     the record of the current block: parameters, weights; behind all blocks the head's
2     the frame
3     pages of keys and values, those of the current block
4     what lies between: queries, keys, values and results of all tokens
5     logits
====  =============================================================================

The frame begins with the number of tokens. Behind `HEADER_BYTES` are, for each token that there may be, the offset of
its embedding among the constants and then that of what its position has (angles, or an embedding), words of 32 bits.
Behind them, from `descriptors` on, each token has a descriptor of `DESCRIPTOR_WORDS`: the address of its page table,
how many keys it sees, how many pages they take, and where its own keys go behind the register of pages.
"""

from __future__ import annotations

from weft.compiler.machine.emit import ceil_div
from weft.hdl.isa.loops import READ_BYTES, READ_WORDS

CONSTANTS, BLOCK, FRAME, PAGES, BETWEEN, LOGITS = range(6)
LAYERS, DESCRIPTOR, ROWS_LEFT, ROWS, TABLE, LENGTH, BLOCKS, PLACE, TOKEN, RESULT = range(6, 16)
"""Registers of the program's own. Those from TABLE to PLACE are read from descriptors. TOKEN is where what lies between
of one token is loaded from, and RESULT, which is the same place, where its results go. LAYERS also counts turns of the
loop over the head, through which BLOCK and LOGITS move on."""
DESCRIPTOR_WORDS = READ_WORDS
"""Words of a descriptor, of which the first four are used."""
HEADER_BYTES = READ_BYTES
"""Bytes in front of the offsets."""


def descriptors(rows: int) -> int:
    """Where descriptors are in the frame of a program for so many tokens."""
    return ceil_div(HEADER_BYTES + 8 * rows, READ_BYTES) * READ_BYTES
