"""Host segments and transfers by themselves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from onnx import TensorProto, helper

from weft.compiler.errors import CompileError
from weft.compiler.host import evaluate, segments
from weft.compiler.host.segments import from_buffer, run_host, to_buffer
from weft.compiler.ir.model import HostSegment, Transfer
from weft.compiler.ir.network import Type
from weft.compiler.ir.views import Buffer
from weft.compiler.onnx.reader import network_of


def segment(op: str, shape: tuple[int, ...] = (2, 3)) -> HostSegment:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], name="only")],
        "g",
        [value("x", TensorProto.FLOAT, shape)],
        [value("y", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return HostSegment("host0", network_of(model), (("only", op, "because"),))


def test_run_host_ignores_other_values() -> None:
    values = {"x": np.array([[-1.0, 0.0, 2.0]] * 2, np.float32), "other": np.zeros(1)}
    assert run_host(segment("Relu"), values)["y"].tolist() == [[0.0, 0.0, 2.0]] * 2


def test_failure_names_segment_and_operators() -> None:
    with pytest.raises(CompileError, match=r"^host0 \(Cholesky\) cannot be evaluated on the host: "):
        run_host(segment("Cholesky"), {"x": np.zeros((2, 3), np.float32)})


@pytest.mark.parametrize(
    ("op", "kind", "shape", "wrong"),
    [
        (
            "Relu",
            "float32",
            (2, 4),
            "float32 of shape (2, 3); the model says float32 of shape (2, 4)",
        ),
        (
            "Relu",
            "float16",
            (2, 3),
            "float32 of shape (2, 3); the model says float16 of shape (2, 3)",
        ),
        ("Size", "int64", (1,), "int64 of shape (); the model says int64 of shape (1,)"),
    ],
)
@pytest.mark.parametrize("installed", [True, False])
def test_results_of_wrong_type_or_shape_are_refused(
    op: str, kind: str, shape: tuple[int, ...], wrong: str, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluator's results are checked against the model's types and shapes."""
    part = segment(op)
    types = {**part.network.types, "y": Type(kind, shape)}
    part = dataclasses.replace(part, network=dataclasses.replace(part.network, types=types))
    if not installed:
        monkeypatch.setattr(evaluate, "runtime", lambda: None)
        segments._evaluator.cache_clear()
    with pytest.raises(CompileError) as caught:
        run_host(part, {"x": np.ones((2, 3), np.float32)})
    assert str(caught.value) == f"host0 ({op}) returns 'y' on the host as {wrong}"


@pytest.mark.parametrize("opset", [10, 13, 18, 19, 21])
def test_dequantize_linear_of_every_opset(opset: int) -> None:
    """Opsets from 13 on have a scale per channel."""
    value = helper.make_tensor_value_info
    each = opset >= 13
    scales, zeros = ([0.5, 2.0], [1, -2]) if each else ([0.5], [1])
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"], **({"axis": 0} if each else {}))],
        "g",
        [value("x", TensorProto.INT8, (2, 2))],
        [value("y", TensorProto.FLOAT, (2, 2))],
        [
            helper.make_tensor("s", TensorProto.FLOAT, [2] if each else [], scales),
            helper.make_tensor("z", TensorProto.INT8, [2] if each else [], zeros),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    segment = HostSegment("host0", network_of(model), (("only", "D", "because"),))
    y = run_host(segment, {"x": np.array([[-128, 1], [127, -2]], np.int8)})["y"]
    assert y.tolist() == [[-64.5, 0.0], [258.0, 0.0] if each else [63.0, -1.5]]


def transfer(*, unsigned: bool) -> Transfer:
    nhwc = (2, 4, 5, 3)
    return Transfer("v", Buffer("b", nhwc, "input"), (2, 3, 4, 5), nhwc, (0, 2, 3, 1), unsigned, (2, 60))


def test_transfer_transposes() -> None:
    value = np.arange(120, dtype=np.int8).reshape(2, 60)
    contents = to_buffer(transfer(unsigned=False), value)
    assert np.array_equal(contents, value.reshape(2, 3, 4, 5).transpose(0, 2, 3, 1))
    assert np.array_equal(from_buffer(transfer(unsigned=False), contents), value)


def test_transfer_stores_uint8_minus_128() -> None:
    value = np.arange(136, 256, dtype=np.uint8).reshape(2, 60)
    contents = to_buffer(transfer(unsigned=True), value)
    assert contents.dtype == np.int8
    assert sorted(contents.reshape(-1).tolist()) == list(range(8, 128))
    assert np.array_equal(from_buffer(transfer(unsigned=True), contents), value)


@pytest.mark.parametrize("wide", [False, True])
def test_transfer_of_indices(wide: bool) -> None:
    """The model's int64 is stored in 8 or 16 bits, also for a scalar."""
    given = dataclasses.replace(transfer(unsigned=True), wide=wide, index=True)
    value = np.linspace(0, 65535 if wide else 255, 120).astype(np.int64).reshape(2, 60)
    contents = to_buffer(given, value)
    assert contents.dtype == np.int8
    assert contents.size == 120 * (1 + wide)
    assert contents.reshape(-1)[0] == -128
    actual = from_buffer(given, contents)
    assert actual.dtype == np.int64
    assert np.array_equal(actual, value)
    one = dataclasses.replace(given, shape=(), nhwc=(1, 1, 1, 1), perm=None, model_shape=())
    assert from_buffer(one, to_buffer(one, np.array(255))) == 255


def test_transfer_of_another_type() -> None:
    with pytest.raises(ValueError, match=r"^value 'v' has type int8$"):
        to_buffer(transfer(unsigned=True), np.zeros((2, 60), np.int8))


LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[int, int, int, int], tuple[int, ...] | None]] = {
    "images": ((2, 3, 4, 5), (2, 4, 5, 3), (0, 2, 3, 1)),
    "as it is": ((2, 3, 4, 5), (2, 3, 4, 5), None),
    "rows": ((6, 20), (1, 1, 6, 20), None),
    "reversed": ((3, 4, 10), (1, 10, 4, 3), (2, 1, 0)),
    "five axes": ((2, 3, 2, 2, 5), (2, 2, 2, 15), (0, 2, 3, 1, 4)),
    "flat": ((120,), (1, 1, 1, 120), None),
}


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_transfers_of_16_bits(name: str, unsigned: bool) -> None:
    """All upper bytes, then all lower bytes less 128, each plane in the layout of 8-bit values; and back."""
    shape, nhwc, perm = LAYOUTS[name]
    rng, half = np.random.default_rng(1), 32768 * unsigned
    item = Transfer(
        "v", Buffer("b", (2 * nhwc[0], *nhwc[1:]), "input"), shape, nhwc, perm, unsigned, (8, 15), True
    )
    assert item.dtype == ("uint16" if unsigned else "int16")
    stored = rng.integers(-32768, 32768, (8, 15))
    stored.flat[:4] = -32768, 32767, -1, 0
    value = (stored + half).astype(item.dtype)
    contents = to_buffer(item, value)
    assert (contents.dtype, contents.shape) == (np.int8, item.buffer.shape)
    laid = stored.reshape(shape) if perm is None else stored.reshape(shape).transpose(perm)
    upper, lower = np.split(contents.astype(int), 2)
    assert np.array_equal(upper * 256 + lower + 128, laid.reshape(nhwc))
    given = from_buffer(item, contents)
    assert given.dtype == value.dtype
    assert np.array_equal(given, value)


def test_all_values_of_16_bits_round_trip() -> None:
    for dtype in (np.int16, np.uint16):
        item = Transfer(
            "v",
            Buffer("b", (2, 1, 256, 256), "input"),
            (65536,),
            (1, 1, 256, 256),
            None,
            dtype == np.uint16,
            None,
            True,
        )
        value = np.arange(65536).astype(np.uint16).view(dtype)
        assert np.array_equal(from_buffer(item, to_buffer(item, value)), value)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32])
def test_transfer_of_16_bits_of_another_type(dtype: type[np.integer]) -> None:
    item = Transfer("v", Buffer("b", (2, 1, 1, 4), "input"), (4,), (1, 1, 1, 4), None, False, None, True)
    with pytest.raises(ValueError, match=rf"^value 'v' has type {np.dtype(dtype).name}$"):
        to_buffer(item, np.zeros(4, dtype))
