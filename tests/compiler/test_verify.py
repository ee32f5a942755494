"""The verifier refuses every kind of broken graph."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from weft.compiler.errors import IrError
from weft.compiler.ir.graph import Add, Attention, Conv, DeviceOp, DeviceSegment, Rescale
from weft.compiler.ir.model import Graph, Transfer
from weft.compiler.ir.views import Buffer, View
from weft.compiler.verify import verify, verify_op

SHAPE = (1, 4, 4, 2)
X = View(Buffer("x", SHAPE, "input"), SHAPE)
Y = View(Buffer("y", SHAPE, "output"), SHAPE)


def transfer(view: View) -> Transfer:
    return Transfer(view.buffer.name, view.buffer, (1, 2, 4, 4), SHAPE, (0, 2, 3, 1), False)


def graph(*ops: DeviceOp) -> Graph:
    return Graph((DeviceSegment("s", ops),), (transfer(X),), (transfer(Y),), {}, {})


COPY = Rescale("copy", X, Y)
CONV = Conv("conv", X, Y, np.zeros((2, 1, 1, 2), np.int16), np.zeros(2, np.int32), np.ones(2))


MIDDLE = View(Buffer("m", SHAPE), SHAPE)
ADD = Add("add", MIDDLE, X, Y, 1.0, 1.0)


@pytest.mark.parametrize(
    "op", [COPY, CONV, Add("add", X, X, Y, 1.0, 1.0), dataclasses.replace(CONV, epilogue=ADD)]
)
def test_good_graph(op: DeviceOp) -> None:
    verify(graph(op))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 4, 5), (3, 1, 2, 2)])
def test_good_views(shape: tuple[int, int, int, int]) -> None:
    views = (View(Buffer(name, shape, kind), shape) for name, kind in (("x", "input"), ("y", "output")))
    verify_op(Rescale("copy", *views))


def test_buffers_of_one_name_may_differ_in_shape() -> None:
    flat = (1, 1, 1, 32)
    y = View(Buffer("y", flat, "output"), flat)
    x = View(Buffer("x", flat, "input"), flat)
    verify(graph(Rescale("copy", x, y)))


def box(name: str, shape: tuple[int, int, int, int], kind: str) -> View:
    return View(Buffer(name, shape, kind), shape)


ATTENTION = Attention(
    "attention", box("q", (2, 1, 3, 8), "input"), box("k", (4, 1, 5, 2), "input"), box("v", (2, 1, 5, 6), "input"),
    box("y", (8, 1, 3, 3), "output"), 2, 4, 2, 0.1, (5, 3),
)  # fmt: skip


def attention(**changes: object) -> Graph:
    op = dataclasses.replace(ATTENTION, **changes)
    entering = tuple(transfer(view) for view in (op.q, op.k, op.v))
    return Graph((DeviceSegment("s", (op,)),), entering, (transfer(op.dst),), {}, {})


def test_good_attention() -> None:
    verify(attention())
    assert (ATTENTION.head_size, ATTENTION.v_size, ATTENTION.keys) == (2, 3, 5)
    assert ATTENTION.macs == 4 * 3 * (5 + 3) * (2 + 3)


BROKEN = {
    "copy: reads buffer 'z' before it is written": graph(
        dataclasses.replace(COPY, src=box("z", SHAPE, "temp"))
    ),
    "output 'y': buffer 'y' is never written": graph(),
    "copy: buffer 'x' is (1, 4, 4, 3) input, not (1, 4, 4, 2) input": graph(
        dataclasses.replace(COPY, src=box("x", (1, 4, 4, 3), "input"), dst=box("q", (1, 4, 4, 3), "temp"))
    ),
    "copy: buffer 'x' is (1, 4, 4, 2) temp, not (1, 4, 4, 2) input": graph(
        dataclasses.replace(COPY, src=box("x", SHAPE, "temp"))
    ),
    "copy: view (1, 4, 4, 2) leaves buffer 'y' (1, 4, 4, 2)": graph(
        dataclasses.replace(COPY, dst=dataclasses.replace(Y, c=1))
    ),
    "copy: view (1, 2, 4, 2) leaves buffer 'x' (1, 4, 4, 2)": graph(
        dataclasses.replace(COPY, src=dataclasses.replace(X, shape=(1, 2, 4, 2), y=1, step=(3, 1)))
    ),
    "copy: view (1, 4, 2, 2) leaves buffer 'x' (1, 4, 4, 2)": graph(
        dataclasses.replace(COPY, src=dataclasses.replace(X, shape=(1, 4, 2, 2), x=1, step=(1, 3)))
    ),
    "copy: view of 'x' has steps (-1, 1)": graph(
        dataclasses.replace(COPY, src=dataclasses.replace(X, y=3, step=(-1, 1)))
    ),
    "copy: view of 'y' has steps (0, 1)": graph(
        dataclasses.replace(COPY, dst=dataclasses.replace(Y, step=(0, 1)))
    ),
    "copy: empty view (1, 4, 4, 0)": graph(
        dataclasses.replace(COPY, dst=dataclasses.replace(Y, shape=(1, 4, 4, 0)))
    ),
    "copy: clamp 5 to 4": graph(dataclasses.replace(COPY, low=5, high=4)),
    "copy: output is (1, 4, 4, 1), not (1, 4, 4, 2)": graph(
        dataclasses.replace(COPY, dst=dataclasses.replace(Y, shape=(1, 4, 4, 1)))
    ),
    "conv: weight (2, 1, 1, 2) with 2 groups on input (1, 4, 4, 2)": graph(
        dataclasses.replace(CONV, groups=2)
    ),
    "conv: bias (3,) and scale (2,) for 2 outputs": graph(
        dataclasses.replace(CONV, bias=np.zeros(3, np.int32))
    ),
    "add: operands (1, 4, 4, 2) and (1, 4, 4, 3)": graph(
        dataclasses.replace(
            CONV, epilogue=dataclasses.replace(ADD, b=View(Buffer("b", (1, 4, 4, 3)), (1, 4, 4, 3)))
        )
    ),
    "add: clamp 50 to -50": graph(
        dataclasses.replace(CONV, epilogue=dataclasses.replace(ADD, low=50, high=-50))
    ),
    "conv: add makes 'm' of (1, 4, 4, 2), not 'y' of (1, 4, 4, 2)": graph(
        dataclasses.replace(CONV, epilogue=dataclasses.replace(ADD, dst=MIDDLE))
    ),
    "conv: what stays on chip is no temporary of its own, but 'x'": graph(
        dataclasses.replace(CONV, epilogue=dataclasses.replace(ADD, a=X))
    ),
    "buffer 'm' stays on chip in one operator and is used by another": graph(
        dataclasses.replace(CONV, name="first", dst=MIDDLE), dataclasses.replace(CONV, epilogue=ADD)
    ),
    "attention: 4 heads on 3, 2 lengths of 2 images": attention(kv_heads=3),
    "attention: 4 heads on 2, 1 lengths of 2 images": attention(lengths=(5,)),
    "attention: operand (2, 1, 5, 5) is not 2 heads of 2 in 2 images": attention(
        v=box("v", (2, 1, 5, 5), "input")
    ),
    "attention: 5 keys, 4 values, lengths (5, 3)": attention(v=box("v", (2, 1, 4, 6), "input")),
    "attention: 5 keys, 5 values, lengths (6, 3)": attention(lengths=(6, 3)),
    "attention: output is (2, 1, 3, 3), not (8, 1, 3, 3)": attention(dst=box("y", (2, 1, 3, 3), "output")),
    "add: operands (1, 4, 4, 2) and (1, 4, 4, 1)": graph(
        Add("add", X, dataclasses.replace(X, shape=(1, 4, 4, 1)), Y, 1.0, 1.0)
    ),
}


@pytest.mark.parametrize("message", BROKEN)
def test_broken_graph(message: str) -> None:
    with pytest.raises(IrError) as caught:
        verify(BROKEN[message])
    assert str(caught.value) == message
