"""Proofs of programs of kernels, softmax and attention."""

from __future__ import annotations

import numpy as np
import pytest
from support import attention_cases
from support.certified_cases import CONFIGS, KINDS, compile_random
from support.op_cases import segment_of

from weft.compiler.backend import compile_segment
from weft.extras.proof.programs.formula import Evaluator
from weft.extras.proof.programs.graph import Graph, Node
from weft.extras.proof.programs.network import Network
from weft.extras.proof.programs.sums import Sums
from weft.extras.proof.programs.symbols import Symbols
from weft.extras.proof.programs.values import CONSTANTS, Values
from weft.extras.proof.tests.support.certified import graph_before, inputs_of, outputs, prove_program
from weft.hdl.isa.config import Config


@pytest.mark.drawn(8)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_programs(kind: str, seed: int) -> None:
    actual = prove_program(*compile_random(kind, seed), seed=seed)
    assert actual.compared > 0
    assert actual.error < -50


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3, 60))
def test_many_programs(kind: str, seed: int) -> None:
    test_programs(kind, seed)


def evaluate_constants(graph: Graph, config: Config, point: dict[str, np.ndarray]) -> dict[str, bytes]:
    """Evaluate a network's definitions on constant inputs."""
    values = Values(1)
    network = Network(values, config)
    for name in graph.inputs:
        network.buffers[name] = point[name].ravel().view(np.uint8).astype(np.int64)
    network.run(graph)
    result = {name: network.buffers[name] for name in graph.outputs}
    assert all((part < CONSTANTS).all() for part in result.values())
    return {name: part[part >= 0].astype(np.uint8).tobytes() for name, part in result.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_definitions_on_constants(kind: str, seed: int) -> None:
    """On constants, a network's definitions equal the golden interpreter's results of the program."""
    segment, config = compile_random(kind, seed)
    program, graph = compile_segment(segment, config), graph_before(segment)
    rng = np.random.default_rng(seed)
    for point in (inputs_of(graph, program, rng) for _ in range(3)):
        actual = outputs(program, config, point)
        written = written_bytes(graph, config)
        for expected, given, places in zip(
            evaluate_constants(graph, config, point).values(), actual or [], written, strict=True
        ):
            assert np.frombuffer(given, np.uint8)[places].tobytes() == expected


def test_groups_of_different_exponents() -> None:
    """Scores span many octaves over several groups of keys, so sums are shifted in both directions."""
    config = CONFIGS["small"]
    op = attention_cases.attention(9, 5 * config.n, 16, score_scale=2e-3, q_zero=3, v_zero=-5, scale=1.3)
    segment = segment_of(op)
    program, graph = compile_segment(segment, config), graph_before(segment)
    assert prove_program(segment, config, program).compared == 9 * 16
    rng = np.random.default_rng(1)
    point = {name: rng.integers(-90, 90, program.input_shape(name)).astype(np.int8) for name in graph.inputs}
    assert outputs(program, config, point) == [evaluate_constants(graph, config, point)["y"]]


def written_bytes(graph: Graph, config: Config) -> list[np.ndarray]:
    """Return masks of the bytes of outputs that operators write: bool."""
    network = Network(Values(1), config)
    for name, size in graph.inputs.items():
        network.buffers[name] = network.values.new_inputs(size)
    network.run(graph)
    return [network.buffers[name] >= 0 for name in graph.outputs]


@pytest.mark.parametrize("seed", range(12))
def test_ranges_of_formulas(seed: int) -> None:
    """Each number of a formula is within its range for all inputs."""
    segment, _ = compile_random("function", seed)
    operator = graph_before(segment).operators[0]
    formula, rng = operator.formula, np.random.default_rng(seed)
    assert formula is not None
    shape = 3, formula.columns, 1
    values = Values(seed)
    vectors = [
        np.stack([item.numpy >> 8 & 0xFF, item.numpy & 0xFF], axis=-1)[None] for item in formula.vectors
    ]
    inputs = [values.new_inputs(3 * formula.columns).reshape(shape) for _ in operator.sources]
    symbolic = Evaluator(Symbols(values), formula, [*inputs, *vectors])
    symbolic.run()
    for _ in range(6):
        point = [rng.choice([0, 5, 127, 128, 255], shape) for _ in inputs]
        known = Evaluator(Symbols(values), formula, [*point, *vectors])
        known.run()
        for node, a, b in zip(formula.nodes, symbolic.results, known.results, strict=True):
            check_range(node, a.number, b.number)


def check_range(node: Node, number: Sums, known: Sums) -> None:
    assert known.constant.all(), node
    assert (number.low <= known.low).all(), node
    assert (known.low <= number.high).all(), node
