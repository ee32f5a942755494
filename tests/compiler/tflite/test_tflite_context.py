"""Queries of TFLite operators about their inputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from weft.compiler.tflite.builder import Order
from weft.compiler.tflite.context import Context


def context(ranks: list[int | None], constant: int | None = None) -> Any:
    """One of an operator with inputs of these ranks, None for one that is left out."""
    tensors = [
        SimpleNamespace(rank=rank, data=b"1" if at == constant else None) for at, rank in enumerate(ranks)
    ]
    result = object.__new__(Context)
    result.operator = SimpleNamespace(inputs=[-1 if rank is None else at for at, rank in enumerate(ranks)])
    places = {id(tensor): at for at, tensor in enumerate(tensors)}
    result.builder = SimpleNamespace(
        file=SimpleNamespace(tensors=tensors), native=lambda tensor: places[id(tensor)]
    )
    return result


@pytest.mark.parametrize(
    ("ranks", "constant", "asked", "expected"),
    [
        ([4, 4], None, (), 0),
        ([2, 4], None, (), 1),
        ([4, 4], 0, (), 1),
        ([4, 4], None, (1,), 1),
        ([None, 4], None, (), 1),
        ([4, 4], 1, (1,), None),
        ([2, 4], None, (0,), None),
        ([2, 3], None, (), None),
    ],
)
def test_the_order_of_axes_is_that_of_the_first_image_of_those_asked_for(
    ranks: list[int | None], constant: int | None, asked: tuple[int, ...], expected: int | None
) -> None:
    assert context(ranks, constant).order(*asked) == (Order.FILE if expected is None else expected)
