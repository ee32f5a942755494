"""What benches with outside AXI models share: random pauses on their channels."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any


def pauses(rate: float) -> Iterator[bool]:
    """Endless random pauses, in `rate` of all cycles, for a channel's ``set_pause_generator``."""
    return (random.random() < rate for _ in itertools.count())


def channels(model: Any) -> tuple[Any, ...]:
    """The five channels of a cocotbext AXI memory or master."""
    write, read = model.write_if, model.read_if
    return write.aw_channel, write.w_channel, write.b_channel, read.ar_channel, read.r_channel
