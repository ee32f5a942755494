"""Blocks of every type against the gguf library's dequantisation, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from weft.extras.language.compiler.model import BlockTensor, dense
from weft.extras.language.gguf import tensors as ours
from weft.extras.language.tests.support.gguf_bytes import KINDS, blocks


@pytest.mark.parametrize("kind", ours.READABLE_TYPES)
@pytest.mark.parametrize("shape", [(1, 256), (3, 512), (7, 768)])
def test_every_type_matches_the_library(kind: str, shape: tuple[int, int]) -> None:
    raw = np.frombuffer(blocks(np.random.default_rng(shape[0]), kind, shape), np.uint8)
    actual = ours.decode(raw, kind, shape)
    rows = raw.reshape(shape[0], -1)
    wanted = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[kind]).reshape(shape)
    assert actual.shape == shape
    assert dense(actual).dtype == np.float32
    assert np.array_equal(dense(actual), wanted)
    assert np.unique(wanted).size > 50
    if isinstance(actual, BlockTensor):
        assert actual.values.dtype == np.int8
        assert actual.scales.shape == (shape[0], shape[1] // actual.block)
        assert (actual.minimums is not None) == (kind.endswith("_1") or kind in ("Q2_K", "Q4_K", "Q5_K"))
        limits = {"8": (128, -128), "4": (16, -8), "5": (32, -16), "6": (32, -32), "3": (4, -4), "2": (4, 0)}
        upper, lower = limits[kind[1]]
        assert lower <= actual.values.min() < actual.values.max() < upper
    else:
        assert not kind.startswith("Q")


def test_blocks_in_rows_of_32() -> None:
    for kind in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        raw = np.frombuffer(blocks(np.random.default_rng(1), kind, (5, 32)), np.uint8)
        wanted = gguf.quants.dequantize(raw.reshape(5, -1), gguf.GGMLQuantizationType[kind])
        assert np.array_equal(dense(ours.decode(raw, kind, (5, 32))), wanted)


def test_the_extremes_of_scales() -> None:
    """Denormal, negative and largest half-precision scales; nothing is rounded."""
    places = {kind: [0, 2] for kind in ("Q4_K", "Q5_K")} | {"Q2_K": [80, 82], "Q3_K": [108], "Q6_K": [208]}
    for kind, starts in places.items():
        for scale in (2.0**-24, -(2.0**-24), 65504.0, -65504.0, 0.0):
            raw = np.frombuffer(blocks(np.random.default_rng(2), kind, (1, 256)), np.uint8).copy()
            for at in starts:
                raw[at : at + 2] = np.array([scale], "<f2").view(np.uint8)
            wanted = gguf.quants.dequantize(raw[None], gguf.GGMLQuantizationType[kind])
            assert np.array_equal(dense(ours.decode(raw, kind, (1, 256))), wanted)


@pytest.mark.parametrize("kind", ours.READABLE_TYPES)
def test_numbers_that_are_not_finite(kind: str) -> None:
    raw = np.frombuffer(blocks(np.random.default_rng(3), kind, (1, 256)), np.uint8)
    assert ours.is_finite(ours.decode(raw, kind, (1, 256)))
    two = kind.endswith("_1") or kind in ("Q4_K", "Q5_K")
    places = {"Q6_K": [208], "Q3_K": [108], "Q2_K": [80, 82], "F32": [8]}.get(kind, [0, 2] if two else [0])
    for at in places:
        for value in ("nan", "inf"):
            dtype = {"F32": "<f4", "BF16": "<f4"}.get(kind, "<f2")
            bad = np.array([value], dtype).view(np.uint8)[-2:] if kind == "BF16" else None
            content = raw.copy()
            replacement = np.array([value], dtype).view(np.uint8) if bad is None else bad
            content[at : at + replacement.size] = replacement
            assert not ours.is_finite(ours.decode(content, kind, (1, 256))), (kind, at, value)


def test_types_have_the_numbers_of_the_library() -> None:
    """Checks the support module."""
    for name, (code, block, size) in KINDS.items():
        kind = gguf.GGMLQuantizationType(code)
        assert kind.name == name
        assert gguf.GGML_QUANT_SIZES[kind] == (block, size)
