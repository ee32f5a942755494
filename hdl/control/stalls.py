"""Progress of a running program by its counters: whether it hangs, and which unit waits for what."""

from __future__ import annotations

from weft.hdl.isa import FILL_MAX, Opcode, Queue, places
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter

UNITS = tuple(queue.name for queue in Queue)
MOVES = (Counter.READ_BEATS, Counter.WRITE_BEATS, Counter.ARRAY_ACTIVE)
"""Counters of what only a program that goes on does."""
SLACK = 1000
"""Cycles by which counters that are read while they run may be off."""
VECTOR_CYCLES = 64
"""Cycles for a vector of fill bytes, beside `BYTE_CYCLES` for each of its bytes, that the sequential core does not
exceed."""
BYTE_CYCLES = 8
ELEMENT_CYCLES = 1024
"""Cycles for an element of a VEC instruction, from each place of its window, that neither core exceeds."""
FILL_AHEAD = places(Opcode.LOAD)["before"].high + 1
"""More than the fill bytes ahead of a row of LOAD."""
WINDOW = 64
"""Places of the largest window that is reckoned with."""


class Watch:
    """Notices that a program hangs, from counters that are read now and then, of either core.

    A beat on the bus or a row that enters the array is progress. In between, LOAD may pass fill bytes, and MM load
    weights, for no more than `quiet` cycles; and an instruction of VEC may take up to `longest`. What units are stalled
    by does not matter here: counters of stalls say why, but a core need not have them.

    Parameters
    ----------
    config : Config
    patience : int
        Cycles without progress to allow at least, as memory may be slow.
    sequential : bool
        Whether the core may be a sequential one.

    Attributes
    ----------
    quiet, longest : int
        Cycles.
    """

    def __init__(self, config: Config, patience: int, *, sequential: bool = True) -> None:
        vector = VECTOR_CYCLES + BYTE_CYCLES * config.n if sequential else 4
        # Between pixels the pipelined core passes fill bytes as it passes others, the sequential core in no time.
        row = (FILL_AHEAD + FILL_MAX) // config.bus_bytes
        self.quiet = max(patience, vector * config.scratchpad_size + row)
        self.longest = max(patience, config.scratchpad_size * config.n * ELEMENT_CYCLES * WINDOW)
        self._moved: dict[Counter, int] = {}
        self._worked: dict[Counter, int] = {}

    def hangs(self, now: dict[Counter, int]) -> bool:
        """Whether the program hangs, after another reading of its counters."""
        if not self._moved or any(now[counter] != self._moved[counter] for counter in MOVES):
            self._moved = self._worked = now
        elif now[Counter.VEC_BUSY] > self._worked[Counter.VEC_BUSY] + SLACK:
            self._worked = now
        cycles = now[Counter.CYCLES]
        return (
            cycles - self._worked[Counter.CYCLES] >= self.quiet
            or cycles - self._moved[Counter.CYCLES] >= self.longest
        )


def _stalls(unit: str) -> list[Counter]:
    """The counters of a unit that say why it waits."""
    return [
        counter
        for counter in Counter
        if counter.name.startswith(f"{unit}_") and counter.name != f"{unit}_BUSY"
    ]


def waits(before: dict[Counter, int], after: dict[Counter, int], *, hangs: bool = False) -> str:
    """What each unit did between two readings; if none did anything, what the instructions wait for.

    Not all that waits for memory is counted as that: an entry of a page table is not. In a program that `hangs`, LOAD
    and STORE have nothing else to be busy with.
    """
    moved = {counter: after[counter] - before[counter] for counter in Counter}
    states = []
    for unit in UNITS:
        stalled = [counter for counter in _stalls(unit) if moved[counter] > 0]
        causes = [counter.name.removeprefix(f"{unit}_").lower() for counter in stalled]
        busy = moved[Counter[f"{unit}_BUSY"]] > 0
        if hangs and busy and not causes and f"{unit}_MEMORY" in Counter.__members__:
            causes = ["memory"]
        state = "is busy" if busy else "is idle"
        states.append(f"{unit} {'waits for ' + ' and '.join(causes) if causes else state}")
    if all(state.endswith("is idle") for state in states) and not any(moved[counter] for counter in MOVES):
        states.append("the next instruction waits for memory")
    return ", ".join(states)
