"""DepthToSpace and SpaceToDepth: every constraint violated once, and which operators they become."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.fallbacks import (
    Case,
    builder,
    check_fallback,
    finish_model,
    mixed_axes,
    one,
    source,
    untested_constraints,
)
from support.graph_runs import device_ops
from support.qdq_models import Builder

from weft.compiler.frontend import import_model
from weft.compiler.onnx.operators.move import (
    DEPTH_TO_SPACE_OPERATORS,
    blocks_small,
    bytes_given,
    channels_stay,
    image_bytes,
)


def of_floats() -> onnx.ModelProto:
    built = builder()
    value = built.node("Erf", [built.dequantise(source(built))])
    return finish_model(built, built.node("SpaceToDepth", [value], blocksize=2))


def channels_first() -> onnx.ModelProto:
    built = Builder(np.random.default_rng(0), opset=28)
    return finish_model(
        built, built.node("SpaceToDepth", [built.dequantise(source(built))], blocksize=2, mode="CRD")
    )


CASES: dict[str, Case] = {
    "floats": (of_floats, "SpaceToDepth", bytes_given),
    "mixed axes": (lambda: mixed_axes(lambda built, value: built.node(
        "DepthToSpace", [value], blocksize=2), (1, 4, 6, 9), (1, 6, 6, 6)), "DepthToSpace", image_bytes),
    "large blocks": (lambda: one("SpaceToDepth", (1, 2, 9, 9), blocksize=9), "SpaceToDepth", blocks_small),
    "many channels": (lambda: one("DepthToSpace", (1, 2052, 1, 1), blocksize=2, mode="CRD"), "DepthToSpace",
                      blocks_small),
    "channels first": (channels_first, "SpaceToDepth", channels_stay),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


def test_every_constraint_has_a_case() -> None:
    assert untested_constraints(DEPTH_TO_SPACE_OPERATORS, CASES.values()) == set()


@pytest.mark.parametrize(
    ("channels", "mode", "kind"), [(8, "DCR", "Rescale"), (8, "CRD", "Conv"), (4, "CRD", "Rescale")]
)
def test_becomes(channels: int, mode: str, kind: str) -> None:
    """Channels that become pixels are beside each other, unless each is of another channel."""
    ops = device_ops(import_model(one("DepthToSpace", (1, channels, 3, 3), blocksize=2, mode=mode)))
    assert [type(op).__name__ for op in ops[:4]] == [kind] * 4
