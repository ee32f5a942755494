"""Programs are proven to compute their networks, and programs with faults are not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.certified import proven, refused, rng_of, with_faults
from support.certified_cases import drawn
from support.op_cases import (
    convolution,
    random_convolutions,
    segment_of,
    whole,
)

from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Attention, Window
from weft.compiler.machine.memory import CONSTANTS
from weft.hdl.isa import End, Store
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import PRESETS
from weft.sim.certify.words import Unproven

FAULTS = 6
"""Faults for each program; of those of `make regression` four times as many."""


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed: int) -> None:
    print(f"seed {seed}")
    segment, config = drawn(seed)
    found = proven(segment, config, seed=seed)
    assert found.compared > 0
    assert found.error < -50


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8, 300))
def test_many_random_programs(seed: int) -> None:
    test_random_programs(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_networks_of_convolutions(seed: int) -> None:
    rng = rng_of(seed)
    segment, _ = random_convolutions(rng)
    proven(segment, PRESETS[("tiny", "small", "default")[seed % 3]])


def check_faults(seed: int, count: int) -> None:
    print(f"seed {seed}")
    segment, config = drawn(seed)
    changed, accepted = with_faults(segment, config, np.random.default_rng(seed), count)
    print(f"{changed} of {count} faults changed a byte; {accepted} were accepted")
    assert changed > count // 12


@pytest.mark.parametrize("seed", range(3))
def test_faults(seed: int) -> None:
    check_faults(seed, FAULTS)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3, 45))
def test_a_thousand_faults(seed: int) -> None:
    check_faults(seed, 4 * FAULTS)


def test_an_overflow_is_not_proven() -> None:
    op = convolution(whole("x", (1, 1, 1, 70_000), "input"), 3, Window())
    with pytest.raises(Unproven, match="not what the network says"):
        proven(segment_of(op.replace(weight=np.full_like(op.weight, 255))), PRESETS["default"])


def test_what_is_not_known_is_not_proven() -> None:
    """Keys in pages, whose places are inputs."""
    q, y = whole("q", (1, 1, 1, 8), "input"), whole("y", (1, 1, 1, 8), "output")
    k, v = whole("k", (4, 1, 16, 8), "pages"), whole("v", (4, 1, 16, 8), "pages")
    table = whole("table", (1, 1, 4, 4), "table")
    op = Attention("paged", q, k, v, y, 1, 1, 1, 0.01, (64,), page=16, table=table)
    with pytest.raises(Unproven, match="comes from a page table, and it depends on inputs"):
        proven(segment_of(op), PRESETS["default"])


def test_results_left_out_are_not_proven() -> None:
    """A program that ends early leaves memory as it was, which may be anything."""
    op = convolution(whole("x", (1, 4, 4, 8), "input"), 8, Window())
    segment, config = segment_of(op), PRESETS["tiny"]
    program = compile_segment(segment, config)
    early = dataclasses.replace(program, instructions=Code.of([End()]))
    assert "not what the network says" in refused(segment, config, early)


def test_a_store_beside_its_output_is_not_proven() -> None:
    """Neither where an output's buffer has bytes of which the network says nothing, nor where there is no buffer."""
    target = whole("y", (1, 5, 4, 8), "output")
    inside = dataclasses.replace(target, shape=(1, 4, 4, 8))
    op = dataclasses.replace(convolution(whole("x", (1, 4, 4, 8), "input"), 8, Window()), dst=inside)
    segment, config = segment_of(op), PRESETS["tiny"]
    program = compile_segment(segment, config)
    assert refused(segment, config, program) == ""
    items = list(program.instructions)
    last = max(index for index, item in enumerate(items) if isinstance(item, Store))
    store = dataclasses.replace(items[last], wait=0, signal=0)
    below = dataclasses.replace(store, offset=store.offset + 8)
    constants = dataclasses.replace(store, base=CONSTANTS, offset=0)
    for again, told in ((below, "not what the network says"), (constants, "that are in no buffer")):
        changed = Code.of([*items[: last + 1], again, *items[last + 1 :]])
        assert told in refused(segment, config, dataclasses.replace(program, instructions=changed))
