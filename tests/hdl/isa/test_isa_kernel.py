"""Micro-operations as bits."""

from __future__ import annotations

import random

import pytest

from weft.hdl.errors import IsaError
from weft.hdl.isa import Kernel, Microcode, MicroOp, decode
from weft.hdl.isa.kernel import MICRO_BITS, MICRO_OPS, kernel_at, micro_places


def random_op(rng: random.Random) -> MicroOp:
    return MicroOp(**{name: rng.randint(place.low, place.high) for name, place in micro_places().items()})


def test_encode_and_decode() -> None:
    rng = random.Random(1)
    for _ in range(500):
        op = random_op(rng)
        word = op.encode()
        assert 0 <= word < 1 << MICRO_BITS
        assert MicroOp.decode(word) == op


def test_places() -> None:
    places = list(micro_places().values())
    assert places[-1].position + places[-1].width == MICRO_BITS
    layout = MicroOp.layout()
    assert layout.size == MICRO_BITS
    assert {name: (field.offset, field.width) for name, field in layout} == {
        name: (place.position, place.width) for name, place in micro_places().items()
    }


@pytest.mark.parametrize(("name", "value"), [("immediate", 1 << 23), ("shift", 64), ("a", -1)])
def test_a_value_that_does_not_fit(name: str, value: int) -> None:
    with pytest.raises(IsaError, match=f"{name!r} is {value}, outside"):
        MicroOp(**{name: value}).encode()


def test_microcode() -> None:
    rng = random.Random(2)
    words = [random_op(rng).encode() for _ in range(MICRO_OPS)]
    code = Microcode(entry=200, count=5, **{f"op{at}": word for at, word in enumerate(words)})
    assert decode(code.encode()) == code
    assert code.ops == tuple(words[:5])


def test_a_kernel_in_memory() -> None:
    ops = [MicroOp(op=3), MicroOp(op=1, end=1), MicroOp()]
    memory = [None, *(op.encode() for op in ops)]
    assert kernel_at(memory, 1) == tuple(ops[:2])
    with pytest.raises(IsaError, match="from entry 3 on has no micro-operation with 'end'"):
        kernel_at(memory, 3)
    with pytest.raises(IsaError, match="no MICROCODE before it wrote"):
        kernel_at(memory, 0)
    assert Kernel.layout().size == 512
