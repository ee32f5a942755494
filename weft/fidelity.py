"""How close the device's attention is to attention in float64 of the same int8 queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import weft
from weft.compiler.backend import DeviceProgram
from weft.compiler.frontend import import_model
from weft.compiler.ir import reference
from weft.compiler.ir.graph import Attention, DeviceSegment, View
from weft.hdl.isa.config import Config
from weft.runtime import Image


@dataclass(frozen=True)
class Errors:
    """Of `count` outputs: root mean square and largest error in steps of the output, and the most that rounding makes.

    An exact result rounded to int8 has 0.29 steps root mean square.
    """

    rms: float
    largest: float
    count: int

    def __str__(self) -> str:
        return f"{self.rms:.2f} LSB RMS, {self.largest:.2f} at most ({self.count:,} outputs; rounding alone is 0.29)"


def attention_errors(
    model: bytes,
    config: Config,
    name: str,
    inputs: np.ndarray,
    progress: Callable[[str], None] = lambda text: None,
) -> Errors | None:
    """Errors of all attention in a model's only device segment, over some inputs; None if it has none.

    Where there is some, `progress` is told so, as it takes a while.

    Intermediate values are kept apart in memory, read from the golden interpreter, and put through
    `weft.compiler.ir.reference`.
    """
    graph = import_model(model, config=config)
    segments = [segment for segment in graph.segments if isinstance(segment, DeviceSegment)]
    ops = [op for segment in segments for op in segment.ops if isinstance(op, Attention)]
    if len(segments) != 1 or not ops:
        return None
    progress("comparing attention with float64")
    program = weft.compile(model, config, reuse=False)
    (compiled,) = (segment for segment in program.segments if isinstance(segment, DeviceProgram))
    image = Image(compiled)
    errors = []
    for value in inputs:
        memory = np.frombuffer(program.run({name: value[None]}).memory, np.int8)
        for op in ops:
            exact = (
                reference.means(op, *(_read(memory, image, view) for view in (op.q, op.k, op.v))) + op.y_zero
            )
            errors.append((_read(memory, image, op.dst) - np.clip(exact, op.low, op.high)).ravel())
    every = np.concatenate(errors)
    return Errors(float(np.sqrt(np.mean(every**2))), float(np.abs(every).max()), every.size)


def _read(memory: np.ndarray, image: Image, view: View) -> np.ndarray:
    start, (_, h, w, c) = image.address(view.buffer.name), view.shape
    whole = memory[start : start + view.buffer.size].reshape(view.buffer.shape)
    return whole[:, view.y : view.y + h, view.x : view.x + w, view.c : view.c + c]
