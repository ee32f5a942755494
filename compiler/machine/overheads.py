"""Cycles that estimates add to the work itself: for starting instructions, for runs of bytes, and for handing over.

Latencies of the hardware are in `weft.hdl.isa.latencies`. The numbers here were fitted to programs on the cycle model,
and stand for what a closed form cannot follow; where two of them are of the same thing in two estimates, each is right
only beside the other terms of its own.
"""

from weft.hdl.isa.latencies import DIVISION

RUN = 2
"""Of a run of bytes on the bus, beside its beats."""
ATTENTION_RUN = 1
"""The same, of rows of keys and values that are no whole beats."""
LOAD = 8
"""From a LOAD's last vector to the first one of the next."""
ATTENTION_VEC = 60
"""Of an instruction of the vector unit in attention: its start, and the wait for the array, as they take turns."""
DIVIDE = 2 * DIVISION
"""The least that a row of Normalise is reckoned with. The divider takes half of that by itself."""
HANDOVER = 16
"""From one unit's signal to another's start, and through the accumulator."""
SWAP = 2
"""Of a tile of weights of attention, on average, that are lost to other units in a bank."""
SLOT_LATENCY = 50.0
"""From the end of a use of a slot to its next content."""
DRAIN = 60.0
"""From a block's last product to the next block's first, where they share accumulator rows."""
ENDS = 100
"""At the start of a convolution, before anything overlaps, and again at its end."""
ALONE = 300
"""Of a pooling, addition or requantisation by itself: both of its ends."""
