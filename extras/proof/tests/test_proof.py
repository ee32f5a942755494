"""Proofs of programs, and of programs with faults, which fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from support.certified_cases import draw_network
from support.op_cases import convolution, random_convolutions, segment_of, whole

from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Add, Attention
from weft.compiler.ir.windows import Window
from weft.compiler.machine.areas import CONSTANTS
from weft.extras.proof.certificate import placement_of
from weft.extras.proof.programs.graph import Graph
from weft.extras.proof.programs.proof import Placement, prove
from weft.extras.proof.programs.value_device import Unproven
from weft.extras.proof.tests.support.certified import find_refusal, graph_before, prove_program, rng_of
from weft.hdl.isa import End, Store
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import PRESETS


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed: int) -> None:
    print(f"seed {seed}")
    segment, config = draw_network(seed)
    actual = prove_program(segment, config, seed=seed)
    assert actual.compared > 0
    assert actual.error < -50


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8, 300))
def test_many_random_programs(seed: int) -> None:
    test_random_programs(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_networks_of_convolutions(seed: int) -> None:
    rng = rng_of(seed)
    segment, _ = random_convolutions(rng)
    prove_program(segment, PRESETS[("tiny", "small", "default")[seed % 3]])


def test_an_overflow_is_not_proven() -> None:
    op = convolution(whole("x", (1, 1, 1, 70_000), "input"), 3, Window())
    with pytest.raises(Unproven, match="differ from the network's"):
        prove_program(segment_of(op.replace(weight=np.full_like(op.weight, 255))), PRESETS["default"])


def test_paged_keys_are_not_proven() -> None:
    """Keys are in pages, whose addresses are inputs."""
    q, y = whole("q", (1, 1, 1, 8), "input"), whole("y", (1, 1, 1, 8), "output")
    k, v = whole("k", (4, 1, 16, 8), "pages"), whole("v", (4, 1, 16, 8), "pages")
    table = whole("table", (1, 1, 4, 4), "table")
    op = Attention("paged", q, k, v, y, 1, 1, 1, 0.01, (64,), page=16, table=table)
    with pytest.raises(Unproven, match="comes from a page table, and it depends on inputs"):
        prove_program(segment_of(op), PRESETS["default"])


def test_missing_results_are_not_proven() -> None:
    """A program that ends early leaves arbitrary contents in memory."""
    op = convolution(whole("x", (1, 4, 4, 8), "input"), 8, Window())
    segment, config = segment_of(op), PRESETS["tiny"]
    program = compile_segment(segment, config)
    early = dataclasses.replace(program, instructions=Code.of([End()]))
    assert "differ from the network's" in find_refusal(segment, config, early)


def test_a_store_outside_of_outputs_is_not_proven() -> None:
    """A STORE must not change bytes of an output that the network does not compute, nor bytes outside of buffers."""
    target = whole("y", (1, 5, 4, 8), "output")
    inside = dataclasses.replace(target, shape=(1, 4, 4, 8))
    op = dataclasses.replace(convolution(whole("x", (1, 4, 4, 8), "input"), 8, Window()), dst=inside)
    segment, config = segment_of(op), PRESETS["tiny"]
    program = compile_segment(segment, config)
    assert find_refusal(segment, config, program) == ""
    items = list(program.instructions)
    last = max(index for index, item in enumerate(items) if isinstance(item, Store))
    store = dataclasses.replace(items[last], wait=0, signal=0)
    below = dataclasses.replace(store, offset=store.offset + 8)
    constants = dataclasses.replace(store, base=CONSTANTS, offset=0)
    for again, message in (
        (below, "differ from the network's"),
        (constants, "of memory outside of its buffers"),
    ):
        changed = Code.of([*items[: last + 1], again, *items[last + 1 :]])
        assert message in find_refusal(segment, config, dataclasses.replace(program, instructions=changed))


Change = Callable[[Graph, Placement], tuple[Graph, Placement]]


def _change_view(graph: Graph, **fields: object) -> Graph:
    """Change the view of the network's last output."""
    last = graph.operators[-1]
    changed = msgspec.structs.replace(last, dst=msgspec.structs.replace(last.dst, **fields))
    return msgspec.structs.replace(graph, operators=(*graph.operators[:-1], changed))


def _place(placement: Placement, name: str, **places: tuple[int, int]) -> Placement:
    return dataclasses.replace(placement, **{name: {**getattr(placement, name), **places}})


ENDS: dict[str, tuple[Change, str]] = {
    "no network": (
        lambda graph, at: (msgspec.structs.replace(graph, operators=(), outputs={}), at),
        "the program has 64 bytes of 'y', which the network does not compute",
    ),
    "no operator": (
        lambda graph, at: (msgspec.structs.replace(graph, operators=graph.operators[:-1]), at),
        "no operator of the network computes 'z'",
    ),
    "part of an output": (
        lambda graph, at: (_change_view(graph, buffer_shape=(1, 4, 2, 8), shape=(1, 2, 2, 8)), at),
        "operator 'z' (Conv) is invalid: cannot reshape array of size 64 into shape (1,2,2,8)",
    ),
    "twice": (
        lambda graph, at: (msgspec.structs.replace(graph, operators=(*graph.operators, graph.operators[-1])), at),
        "writes bytes of 'z' that are already written",
    ),
    "over an input": (
        lambda graph, at: (_change_view(graph, buffer="x"), at), "writes bytes of 'x' that are already written"
    ),
    "outside": (
        lambda graph, at: (_change_view(graph, start=(0, -1, 0, 0)), at), "is not inside 'z' of (1, 2, 4, 8)"
    ),
    "an output more": (
        lambda graph, at: (msgspec.structs.replace(graph, outputs={**graph.outputs, "w": 64}), at),
        "the network computes 'w', and the program has no such buffer",
    ),
    "another size": (
        lambda graph, at: (msgspec.structs.replace(graph, outputs={**graph.outputs, "z": 32}), at),
        "the network computes 32 bytes of 'z'; the program has 64",
    ),
    "an input more": (
        lambda graph, at: (msgspec.structs.replace(graph, inputs={**graph.inputs, "w": 64}), at),
        "the network reads 'w', and the program has no such input",
    ),
    "less of an input": (
        lambda graph, at: (msgspec.structs.replace(graph, inputs={"x": 63}), at),
        "the network reads 63 bytes of 'x', unlike the program",
    ),
    "outputs in one place": (
        lambda graph, at: (graph, _place(at, "buffers", z=(at.buffers["y"][0] + 8, 64))),
        "'y' and 'z' share memory at ",
    ),
    "an output over weights": (
        lambda graph, at: (graph, _place(at, "buffers", t=(at.contents[0][0] + 8, 8))),
        "'t' overlaps the program's words and constants at 0x8",
    ),
    "inputs in one place": (
        lambda graph, at: (
            graph, dataclasses.replace(at, inputs={**at.inputs, "w": (at.inputs["x"][0] + 3, np.arange(8))})
        ),
        "'x' and 'w' share memory at ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_inputs_and_outputs_are_compared(name: str) -> None:
    """All bytes that the host reads are proven, and buffers do not overlap: two outputs of one input."""
    x = whole("x", (1, 2, 4, 8), "input")
    ops = [
        dataclasses.replace(convolution(x, 8, Window()), name=out, dst=whole(out, (1, 2, 4, 8), "output"))
        for out in "yz"
    ]
    segment, config = segment_of(*ops), PRESETS["tiny"]
    graph, placement = graph_before(segment), placement_of(compile_segment(segment, config))
    assert prove(graph, config, placement, 1).compared == 128
    change, words = ENDS[name]
    with pytest.raises(Unproven) as caught:
        prove(*change(graph, placement)[:1], config, change(graph, placement)[1], 1)
    assert words in str(caught.value)


def test_every_byte_that_the_host_reads_is_computed() -> None:
    target = whole("y", (1, 5, 4, 8), "output")
    inside = dataclasses.replace(target, shape=(1, 4, 4, 8))
    op = dataclasses.replace(convolution(whole("x", (1, 4, 4, 8), "input"), 8, Window()), dst=inside)
    segment, config = segment_of(op), PRESETS["tiny"]
    program = compile_segment(segment, config)
    with pytest.raises(Unproven, match="no operator of the network computes 32 of 160 bytes of 'y'"):
        prove(graph_before(segment), config, placement_of(program), 1)


def test_other_inputs_are_arbitrary() -> None:
    """A program that stores the difference of two such inputs does not compute a network with output 0."""
    a, b, c = (whole(name, (1, 1, 1, 8), "input") for name in "abc")
    y, config = whole("y", (1, 1, 1, 8), "output"), PRESETS["tiny"]
    placement = placement_of(compile_segment(segment_of(Add("sum", b, c, y, 1.0, -1.0)), config))
    zero = Add("sum", a, a, y, 1.0, -1.0)
    own = (placement.memory_bytes, np.arange(8))
    other = dataclasses.replace(
        placement, memory_bytes=placement.memory_bytes + 8, inputs={**placement.inputs, "a": own}
    )
    with pytest.raises(Unproven, match="8 of 8 bytes of 'y' differ from the network's"):
        prove(graph_before(segment_of(zero)), config, other, 1)
