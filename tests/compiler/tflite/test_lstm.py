"""UNIDIRECTIONAL_SEQUENCE_LSTM against LiteRT, and the forms of it that are refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from support.graph_runs import run_with_states
from support.litert import runs, steps
from support.tflite_models import Model

from weft.compiler.errors import CompileError
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import DeviceSegment
from weft.hdl.isa.config import PRESETS

CONFIG = PRESETS["small"].replace(kernel=64)


@dataclass(frozen=True)
class Lstm:
    """An LSTM of integers: `changes` are inputs by their place, -1 to leave them out."""

    seed: int
    batch: int
    steps: int
    inputs: int
    size: int
    major: bool = False
    clip: float = 0.0
    cell: int = -11
    activation: int = 4
    changes: tuple[tuple[int, int], ...] = ()

    def shape(self, count: int) -> tuple[int, int, int]:
        first, second = (self.steps, self.batch) if self.major else (self.batch, self.steps)
        return first, second, count

    def build(self) -> tuple[bytes, int, int, np.ndarray]:
        """The file, its input and its output by index, and values for the former."""
        rng, m = np.random.default_rng(self.seed), Model()
        scale = float(rng.uniform(0.01, 0.03))
        x = m.tensor(self.shape(self.inputs), scale=scale, zero=int(rng.integers(-128, 128)), name="x")
        products = [
            [m.tensor((self.size, count), scale=float(rng.uniform(0.5, 1.5)) / (64 * count**0.5),
                      data=rng.integers(-127, 128, (self.size, count)).astype(np.int8)) for _ in range(4)]
            for count in (self.inputs, self.size)
        ]  # fmt: skip
        biases = [
            m.tensor((self.size,), "int32", scale=scale * m.tensors[at].scale[0],
                     data=rng.integers(-3000, 3000, self.size).astype(np.int32)) for at in products[0]
        ]  # fmt: skip
        state = {"scale": 1 / 128, "zero": int(rng.integers(-5, 6))}
        rows = (self.batch, self.size)
        hidden = m.tensor(rows, name="h", IsVariable=True, **state)
        cell = m.tensor(rows, "int16", scale=2.0**self.cell, name="c", IsVariable=True)
        y = m.tensor(self.shape(self.size), name="y", **state)
        between = [*(m.tensor((1,), "int16", scale=2.0**-12) for _ in range(4)), m.tensor(rows, **state)]
        arguments = [x, *products[0], *products[1], -1, -1, -1, *biases, -1, -1, hidden, cell, -1, -1, -1, -1]
        for at, index in self.changes:
            arguments[at] = arguments[index] if index >= 0 else -1
        m.operator(
            "UNIDIRECTIONAL_SEQUENCE_LSTM", arguments, [y], "UnidirectionalSequenceLSTM", between,
            FusedActivationFunction=self.activation, TimeMajor=self.major, CellClip=self.clip,
        )  # fmt: skip
        return m.write([x], [y]), x, y, rng.integers(-128, 128, self.shape(self.inputs)).astype(np.int8)


CASES = (
    Lstm(0, 1, 5, 7, 9),
    Lstm(1, 2, 8, 16, 12),
    Lstm(2, 3, 4, 5, 6, major=True),
    Lstm(3, 1, 12, 10, 32, clip=10.0, cell=-12),
    Lstm(4, 1, 1, 1, 1, cell=-15),
    Lstm(5, 1, 20, 40, 20, clip=0.5),
    Lstm(6, 2, 3, 70, 33, cell=-9),
)


def check(case: Lstm) -> None:
    """All on the device, and at most a step from LiteRT in every element of every step, in two runs that follow each
    other."""
    content, x, y, values = case.build()
    graph = import_model(content, config=CONFIG)
    assert [type(segment) for segment in graph.segments] == [DeviceSegment]
    states = {state.source: state.initial for state in graph.states}
    assert list(states) == ["h", "c"]
    arguments = values, values[:, ::-1]
    for feed, theirs in zip(arguments, runs(content, [{x: feed} for feed in arguments]), strict=True):
        (actual,) = run_with_states(graph, {"x": feed}, states).values()
        assert steps(actual, theirs[y]).max() <= 1


@pytest.mark.drawn(3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_litert(case: Lstm) -> None:
    check(case)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_drawn_against_litert(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = map(int, rng.integers(1, (4, 30, 80, 60)))
    clip = float(rng.choice([0.0, 0.7, 10.0]))
    check(Lstm(seed, *sizes, bool(rng.integers(2)), clip, int(rng.integers(-15, -8))))


PLAIN = Lstm(0, 1, 2, 3, 4)
REFUSED = {
    "has no input gate of its own, which weft does not read": replace(PLAIN, changes=((1, -1),)),
    "has peepholes, which weft does not read": replace(PLAIN, changes=((9, 12),)),
    "has a projection, which weft does not read": replace(PLAIN, changes=((16, 5),)),
    "has normalisation of its gates, which weft does not read": replace(PLAIN, changes=((21, 12),)),
    "takes sequences of rows, of three dimensions; tensor 13 ('h') has 2": replace(PLAIN, changes=((0, 18),)),
    "has 5,001 steps; weft takes up to 5,000": replace(PLAIN, steps=5001),
    "has activation 1; weft reads 4, the tangent": replace(PLAIN, activation=1),
    "has weights tensor 5 ('t5') of shape (4, 4); it must be (4, 3)": replace(PLAIN, changes=((2, 5),)),
    "reads tensor 9 ('t9'), which must be int8 with one scale": replace(PLAIN, changes=((3, 12),)),
    "has biases tensor 1 ('t1'), which must be 4 constants": replace(PLAIN, changes=((13, 1),)),
    "keeps tensor 14 ('c'), which must be int8 with one scale": replace(PLAIN, changes=((18, 19),)),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused(why: str) -> None:
    with pytest.raises(CompileError) as caught:
        import_model(REFUSED[why].build()[0], config=CONFIG)
    start = "operator 0 (UNIDIRECTIONAL_SEQUENCE_LSTM), which makes tensor 15 ('y'), "
    assert str(caught.value) == start + why
