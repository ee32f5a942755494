"""Registers of a decoder's program, and the frame in memory that holds its arguments.

====  =============================================================================
0     constants
1     record of the current block: parameters, weights; after all blocks the head's
2     frame
3     pages of keys and values, of the current block
4     temporaries: queries, keys, values and results of all tokens
5     logits
====  =============================================================================

The frame begins with the number of tokens. After `HEADER_BYTES` it holds words of 32 bits: for each row the offset of
the token's embedding among the constants, then for each row the offset of its position's row (angles, or an embedding).
At `descriptors` each text's descriptor of `DESCRIPTOR_WORDS` follows. It holds the address of the page table, the
number of visible keys, the number of pages, and the offset of the token's own keys from the page register.
"""

from __future__ import annotations

from weft.compiler.machine.emit import ceil_div
from weft.hdl.isa.loops import READ_BYTES, READ_WORDS

CONSTANTS, BLOCK, FRAME, PAGES, TEMPORARIES, LOGITS = range(6)
LAYERS, DESCRIPTOR, ROWS_LEFT, ROWS, TABLE, LENGTH, BLOCKS, PLACE, TOKEN, RESULT = range(6, 16)
"""Other registers of the program. Those from TABLE to PLACE are read from descriptors. TOKEN is the address of one
token's queries, keys and values; RESULT, at the same place, is that of its results. LAYERS also counts the turns of the
loop over the head, which advances BLOCK and LOGITS."""
DESCRIPTOR_WORDS = READ_WORDS
"""Words of a descriptor, of which the first four are used."""
HEADER_BYTES = READ_BYTES
"""Bytes before the offsets."""


def descriptors(rows: int) -> int:
    """Return the offset of descriptors in the frame of a program with so many rows."""
    return ceil_div(HEADER_BYTES + 8 * rows, READ_BYTES) * READ_BYTES
