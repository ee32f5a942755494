"""What counters tell about a program that runs: whether it goes on, and what each unit waits for."""

from __future__ import annotations

from weft.hdl.isa import Queue
from weft.hdl.memmap import Counter

UNITS = tuple(queue.name for queue in Queue)
SLACK = 1000
"""Cycles by which counters that are read while they run may be off."""


def _stalls(unit: str) -> list[Counter]:
    """The counters of a unit that say why it waits."""
    return [
        counter
        for counter in Counter
        if counter.name.startswith(f"{unit}_") and counter.name != f"{unit}_BUSY"
    ]


def goes_on(before: dict[Counter, int], after: dict[Counter, int]) -> bool:
    """Whether, between two readings far more than `SLACK` cycles apart, a beat moved, a row entered the array, or a
    unit was busy for longer than it was stalled."""
    moved = {counter: after[counter] - before[counter] for counter in Counter}
    if any(moved[counter] for counter in (Counter.READ_BEATS, Counter.WRITE_BEATS, Counter.ARRAY_ACTIVE)):
        return True
    working = (
        moved[Counter[f"{unit}_BUSY"]]
        - sum(moved[counter] for counter in _stalls(unit) if counter != Counter[f"{unit}_SEMAPHORE"])
        for unit in UNITS
    )
    return max(working) > SLACK


def waits(before: dict[Counter, int], after: dict[Counter, int]) -> str:
    """What each unit did between two readings."""
    states = []
    for unit in UNITS:
        stalled = [counter for counter in _stalls(unit) if after[counter] > before[counter]]
        causes = [counter.name.removeprefix(f"{unit}_").lower() for counter in stalled]
        busy = Counter[f"{unit}_BUSY"]
        state = "is busy" if after[busy] > before[busy] else "is idle"
        states.append(f"{unit} {'waits for ' + ' and '.join(causes) if causes else state}")
    return ", ".join(states)
