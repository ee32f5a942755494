"""SVDF against LiteRT over runs that follow each other, and the forms of it that are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.graph_runs import on_host, run_with_states
from support.litert import runs, steps
from support.state_models import Svdf

from weft.compiler.errors import CompileError
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.tflite.file import parse
from weft.hdl.isa.config import PRESETS

CONFIG = PRESETS["small"].replace(kernel=64)
CASES = (
    Svdf(0),
    Svdf(1, batch=3, inputs=40, units=16, rank=1, memory=8, relu=False),
    Svdf(2, units=1, rank=1, memory=1, inputs=1),
    Svdf(3, units=7, rank=3, memory=2, inputs=33, bias=False),
    Svdf(4, batch=2, units=5, rank=4, memory=10, relu=False),
    Svdf(5, units=40, rank=2, memory=6, inputs=70),
    Svdf(6, units=9, rank=2, memory=7, narrow=True, relu=False),
    Svdf(7, spread=0.01),
    Svdf(8, batch=2, units=12, rank=1, memory=9, spread=8.0, relu=False),
    Svdf(9, batch=2, units=12, coarse=True, bias=False, relu=False),
)


def check(case: Svdf, count: int = 4, places: tuple[type, ...] = (DeviceSegment,)) -> None:
    """At most a step from LiteRT in every element of states and outputs, in every run; but for RELU, which LiteRT
    leaves to the output's zero point."""
    content, theirs = case.build(), case.for_litert()
    graph = import_model(content, config=CONFIG)
    assert tuple(type(segment) for segment in graph.segments) == places
    actual = {tensor.name: tensor.index for tensor in parse(content, "it").tensors}
    states = {state.source: state.initial for state in graph.states}
    assert list(states) == ["state"]
    feeds, reached = case.feeds(count), list[np.ndarray]()
    expected = runs(theirs, [{actual["x"]: feed} for feed in feeds])
    for feed, known in zip(feeds, expected, strict=True):
        (result,) = run_with_states(graph, {"x": feed}, states).values()
        assert steps(states["state"], known[actual["state"]]).max() <= 1
        least = np.maximum(known[actual["y"]], case.above - 128)
        assert steps(result, least).max() <= 1
        reached.append(result)
    assert len(np.unique(reached)) > 1, "nothing to compare"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_litert(case: Svdf) -> None:
    check(case)


def test_relu_with_any_zero_point() -> None:
    check(Svdf(10, units=20, above=100))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100))
def test_drawn_against_litert(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch, inputs, units, rank, memory = map(int, rng.integers(1, (4, 80, 40, 5, 13)))
    relu, bias, narrow = (bool(item) for item in rng.integers(2, size=3))
    spread = 2.0 ** float(rng.uniform(-4, 4))
    coarse = bool(rng.integers(4) == 0)
    check(Svdf(seed, batch, inputs, units, rank, memory, relu, bias, narrow, coarse, spread=spread), 6)


def test_memory_of_one_step_keeps_nothing_that_is_read() -> None:
    graph = import_model(Svdf(2, memory=1).build(), config=CONFIG)
    assert {item.buffer.kind for item in (*graph.to_device, *graph.from_device)} == {"input", "output"}


def test_results_beyond_16_bits_run_on_the_host() -> None:
    """The lower bytes of weights alone exceed 8000 steps."""
    graph = import_model(Svdf(0, spread=1e-4).build(), config=CONFIG)
    assert "svdf_0.product" in on_host(graph)
    check(Svdf(0, spread=1e-4), places=tuple(type(segment) for segment in graph.segments))


def test_without_a_kernel_engine_the_host_runs_it() -> None:
    graph = import_model(Svdf(0).build(), config=PRESETS["small"])
    assert "Values of 16 bits need a kernel engine" in " ".join(on_host(graph).values())


PLAIN = Svdf(0)
WRONG = {
    "has rank 5 for 12 filters; they must be a multiple of it": replace(PLAIN, told=5),
    "has rank 0 for 12 filters; they must be a multiple of it": replace(PLAIN, told=0),
    "has activation 3; weft reads 0, none, and 1, RELU": replace(PLAIN, activation=3),
    "reads tensor 2 ('t2'), which must be int8 with one scale": replace(PLAIN, changes=((1, 2),)),
    "reads tensor 0 ('x'), which must be constant": replace(PLAIN, batch=12, changes=((1, 0),)),
    "reads tensor 1 ('t1') of shape (12, 8); it must be (6,)": replace(PLAIN, changes=((3, 1),)),
    "reads tensor 4 ('state') of shape (1, 60); it must be (1, 96)": replace(PLAIN, changes=((2, 1),)),
    "keeps tensor 4 ('state'), which must have elements, and 0 as its zero point": replace(
        PLAIN, state_zero=5
    ),
    "makes tensor 5 ('y'), which must be int8 with one scale": replace(PLAIN, spread=0.0),
    "keeps tensor 1 ('t1') from run to run, which must be a variable": replace(PLAIN, changes=((4, 1),)),
    "has 6 inputs; it takes 5": replace(PLAIN, changes=((5, 1),)),
}


@pytest.mark.parametrize("why", WRONG)
def test_refused(why: str) -> None:
    with pytest.raises(CompileError) as caught:
        import_model(WRONG[why].build(), config=CONFIG)
    assert str(caught.value).startswith(f"operator 0 (SVDF), which makes tensor 5 ('y'), {why}")
