"""Variables of TFLite files against LiteRT over runs that follow each other, and those that are refused."""

from __future__ import annotations

import numpy as np
import pytest
from support.graph_runs import run_graph, run_with_states
from support.litert import runs
from support.state_models import Ring
from support.tflite_models import Model

from weft.compiler.errors import CompileError
from weft.compiler.frontend import import_model
from weft.compiler.ir.model import Graph
from weft.compiler.tflite.file import parse
from weft.hdl.isa.config import PRESETS

CONFIG = PRESETS["small"].replace(kernel=64)


def fails(content: bytes) -> str:
    with pytest.raises(CompileError) as caught:
        import_model(content, config=CONFIG)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def check(content: bytes, feeds: list[np.ndarray]) -> Graph:
    file, graph = parse(content, "it"), import_model(content, config=CONFIG)
    states = {state.source: state.initial for state in graph.states}
    expected = runs(content, [{file.inputs[0]: feed} for feed in feeds])
    kept = []
    for feed, known in zip(feeds, expected, strict=True):
        given = dict.fromkeys(graph.inputs, feed)
        actual, alone = run_with_states(graph, given, states), run_graph(graph, given)
        for index, value in zip(file.outputs, actual.values(), strict=True):
            assert np.array_equal(value, known[index])
        kept += [not np.array_equal(value, alone[name]) for name, value in actual.items()]
    assert any(kept) == bool(graph.states)
    return graph


CASES = (
    Ring(),
    Ring(1, taps=2, channels=1, outputs=1),
    Ring(2, taps=9, channels=30, outputs=17, start="computed"),
    Ring(3, dtype="int16"),
    Ring(4, twice=True),
    Ring(5, shown=True),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_ring_of_rows(case: Ring) -> None:
    """All on the device, and the same as LiteRT: its variable is memory of the device."""
    graph = check(case.build(), case.feeds(3 * case.taps))
    assert {place for *_, place, _ in graph.assignment} == {"device"}
    (state,) = graph.states
    assert state.source == "ring"
    kinds = {item.value: item.buffer.kind for item in (*graph.to_device, *graph.from_device)}
    assert kinds["ring"] == kinds["ring:next"] == "state"


def counter(dtype: str = "float32") -> bytes:
    """Counts runs in a variable, and adds their number to its input."""
    m, first = Model(), Model()
    x = m.tensor((1, 4), scale=0.1, zero=-3, name="x")
    real = m.tensor((1, 4), "float32")
    handle = m.tensor((), "resource", name="handle")
    old, new, total = (m.tensor((1,) if at < 2 else (1, 4), dtype) for at in range(3))
    y = m.tensor((1, 4), scale=0.2, zero=4, name="y")
    m.operator("CALL_ONCE", [], [], "CallOnce", InitSubgraphIndex=1)
    m.operator("VAR_HANDLE", [], [handle], "VarHandle", Container="", SharedName="count")
    m.operator("READ_VARIABLE", [handle], [old], "ReadVariable")
    m.operator("ADD", [old, m.constant([1.5], dtype)], [new], "Add")
    m.operator("ASSIGN_VARIABLE", [handle, new], [], "AssignVariable")
    m.operator("DEQUANTIZE", [x], [real], "Dequantize")
    m.operator("ADD", [real, new], [total], "Add")
    m.operator("QUANTIZE", [total], [y], "Quantize")
    again = first.tensor((), "resource", name="handle")
    first.operator("VAR_HANDLE", [], [again], "VarHandle", Container="", SharedName="count")
    first.operator("ASSIGN_VARIABLE", [again, first.constant([0.25], dtype)], [], "AssignVariable")
    return m.write([x], [y], others=[first])


def test_a_counter_in_float_runs_on_the_host() -> None:
    graph = check(counter(), [np.full((1, 4), 5, np.int8)] * 5)
    assert not [item for item in (*graph.to_device, *graph.from_device) if item.buffer.kind == "state"]


def test_a_variable_that_is_never_assigned_is_a_constant() -> None:
    case = Ring(assigned=())
    assert not check(case.build(), case.feeds(3)).states


UNKNOWN = "is read before anything is assigned to it; start it in a subgraph that CALL_ONCE calls"
OTHER = "holds int8 of shape 1x4x6, but is assigned int8 of shape 1x24; weft supports variables of one type and shape"


@pytest.mark.parametrize(
    ("case", "message"),
    [(Ring(start=""), UNKNOWN), (Ring(late=True), UNKNOWN), (Ring(assigned=(1, 24)), OTHER)],
)
def test_resources_that_are_refused(case: Ring, message: str) -> None:
    assert fails(case.build()) == f"variable 'ring' {message}"


class Small:
    """A model of a handle and what else is said, which is wrong."""

    def __init__(self) -> None:
        self.m, self.first = Model(), Model()
        self.x = self.m.tensor((1, 4), scale=0.1, name="x")
        self.y = self.m.tensor((1, 4), scale=0.1, name="y")
        self.handle = self.m.tensor((), "resource", name="handle")

    def written(self, *others: Model) -> bytes:
        return self.m.write([self.x], [self.y], others=others)

    def with_handle(self) -> Small:
        self.m.operator("VAR_HANDLE", [], [self.handle], "VarHandle", SharedName="v")
        return self


def test_missing_handles_are_refused() -> None:
    small = Small().with_handle()
    small.m.operator("READ_VARIABLE", [small.x], [small.y], "ReadVariable")
    message = "takes tensor 0 ('x') for a variable, but no VAR_HANDLE creates it"
    assert fails(small.written()) == f"operator 1 (READ_VARIABLE), which makes tensor 1 ('y'), {message}"


def test_a_handle_is_no_value() -> None:
    small = Small().with_handle()
    small.m.operator("ADD", [small.x, small.handle], [small.y], "Add")
    message = "has tensor 2 ('handle') of type RESOURCE, which weft does not read"
    assert fails(small.written()).endswith(message)


def test_a_handle_that_comes_too_late() -> None:
    small = Small()
    small.m.operator("READ_VARIABLE", [small.handle], [small.y], "ReadVariable")
    assert "reads tensor 2 ('handle'), which no earlier operator writes" in fails(small.written())


def test_initialisation_after_use_is_refused() -> None:
    small = Small().with_handle()
    small.m.operator("ASSIGN_VARIABLE", [small.handle, small.x], [], "AssignVariable")
    small.m.operator("READ_VARIABLE", [small.handle], [small.y], "ReadVariable")
    small.m.operator("CALL_ONCE", [], [], "CallOnce", InitSubgraphIndex=1)
    again = small.first.tensor((), "resource")
    small.first.operator("VAR_HANDLE", [], [again], "VarHandle", SharedName="v")
    value = small.first.tensor((1, 4), scale=0.1, data=np.zeros((1, 4), np.int8))
    small.first.operator("ASSIGN_VARIABLE", [again, value], [], "AssignVariable")
    assert fails(small.written(small.first)) == "variable 'v' is used before the CALL_ONCE that starts it"


@pytest.mark.parametrize(("called", "count"), [(0, 1), (1, 1), (2, 2), (1, 3), (-1, 2)])
def test_subgraphs_that_are_not_there_or_not_called(called: int, count: int) -> None:
    small = Small().with_handle()
    small.m.operator("CALL_ONCE", [], [], "CallOnce", InitSubgraphIndex=called)
    small.m.operator("RELU", [small.x], [small.y])
    assert fails(small.written(*[Model()] * (count - 1))) == (
        f"the file has {count} subgraphs; weft reads the first, whose CALL_ONCE operators must call all others"
    )


def test_a_call_in_a_called_subgraph() -> None:
    small = Small().with_handle()
    small.m.operator("CALL_ONCE", [], [], "CallOnce", InitSubgraphIndex=1)
    small.m.operator("RELU", [small.x], [small.y])
    small.first.operator("CALL_ONCE", [], [], "CallOnce", InitSubgraphIndex=1)
    assert fails(small.written(small.first)) == (
        "CALL_ONCE in a subgraph calls subgraph 1; only the first subgraph may have CALL_ONCE"
    )


def variable(**changes: object) -> tuple[Model, int, int, int]:
    """A model with a variable tensor that nobody reads yet."""
    m = Model()
    x, y = (m.tensor((1, 4), scale=0.1, name=name) for name in "xy")
    return m, x, y, m.tensor((1, 4), scale=0.1, name="v", IsVariable=True, **changes)  # type: ignore[arg-type]


def test_variables_of_stateless_operators_are_refused() -> None:
    m, x, y, v = variable()
    m.operator("ADD", [x, v], [y], "Add")
    message = "reads or writes tensor 2 ('v'), a variable; only UNIDIRECTIONAL_SEQUENCE_LSTM, SVDF may"
    assert fails(m.write([x], [y])).endswith(message)
    m, x, y, v = variable()
    m.operator("RELU", [x], [v])
    m.operator("RELU", [v], [y])
    assert fails(m.write([x], [y])).endswith(message)


def two(contents: np.ndarray | None) -> bytes:
    """Two SVDF of which the second has the state of the first."""
    m = Model()
    x = m.tensor((1, 3), scale=0.1, name="x")
    state = m.tensor((1, 6), "int16", scale=0.01, name="v", IsVariable=True, data=contents)
    z, y = (m.tensor((1, 3), scale=0.1, zero=-128, name=name) for name in "zy")
    for source, result in ((x, z), (z, y)):
        features = m.tensor((3, 3), scale=0.1, data=np.ones((3, 3), np.int8))
        time = m.tensor((3, 2), "int16", scale=0.1, data=np.ones((3, 2), np.int16))
        arguments = [source, features, time, -1, state]
        m.operator("SVDF", arguments, [result], "SVDF", Rank=1, FusedActivationFunction=1)
    return m.write([x], [y])


def test_a_variable_with_contents() -> None:
    message = (
        "which makes tensor 2 ('z'), keeps tensor 1 ('v'), which has contents; variables start with zeros"
    )
    assert fails(two(np.zeros((1, 6), np.int16))) == f"operator 0 (SVDF), {message}"


def test_a_variable_of_two_operators() -> None:
    message = "which makes tensor 3 ('y'), keeps tensor 1 ('v'), as an earlier operator does"
    assert fails(two(None)) == f"operator 1 (SVDF), {message}"


def test_damaged_files_with_variables() -> None:
    content = Ring(taps=2, channels=2, outputs=2).build()
    rng, refused = np.random.default_rng(0), 0
    for _ in range(300):
        broken = bytearray(content)
        broken[int(rng.integers(len(broken)))] = int(rng.integers(256))
        try:
            import_model(bytes(broken), config=CONFIG)
        except CompileError:
            refused += 1
    assert 0 < refused < 300
