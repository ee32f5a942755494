"""Integer weights as floats, against ONNX Runtime; and as int8 with one scale per channel."""

from __future__ import annotations

import numpy as np
import pytest
from support import integer_nets

from weft.compiler.errors import CompileError
from weft.quantiser.integer_weights import Integers, Packing, Remembered, linear


@pytest.mark.drawn(4)
@pytest.mark.parametrize("seed", range(12))
def test_packed_weights_equal_those_of_onnx_runtime(seed: int) -> None:
    """The product with the identity yields the weights."""
    rng = np.random.default_rng(seed)
    inner, outputs = (int(size) for size in rng.integers(1, 140, 2))
    block, bits = int(rng.choice([16, 32, 64, 128, 256])), (4, 8, 2)[seed % 3]
    zeros = str(rng.choice(["none", "packed", "float"] if bits == 4 else ["none", "packed"]))
    source = integer_nets.packed_product(rng, inner, outputs, block, bits, zeros, accuracy_level=1)
    constants = {item.name: integer_nets.numpy_helper.to_array(item) for item in source.graph.initializer}
    source.graph.input[0].type.tensor_type.shape.dim[0].dim_value = inner
    expected = integer_nets.run(source, x=np.eye(inner, dtype=np.float32))
    packing = Packing(inner, outputs, bits, block)
    actual = packing.weights("node", constants["w"], constants["scales"], constants.get("zeros"))
    assert actual.kind == f"uint{bits} in blocks of {block}"
    assert actual.values.dtype == np.int16
    np.testing.assert_array_equal(actual.floats, expected)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("seed", range(8))
def test_blocks_equal_those_of_onnx_runtime(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inner, outputs, block = (int(rng.integers(*ends)) for ends in ((1, 70), (1, 30), (1, 40)))
    kind, axis, zeros = ("int4", "uint4", "int8", "uint8")[seed % 4], seed % 2, bool(rng.integers(2))
    shape = (inner, outputs) if axis == 0 else (outputs, inner)
    source = integer_nets.blocked_product(rng, shape, axis, block, kind, zeros)
    constants = {item.name: integer_nets.numpy_helper.to_array(item) for item in source.graph.initializer}
    source.graph.input[0].type.tensor_type.shape.dim[0].dim_value = inner
    expected = integer_nets.run(source, x=np.eye(inner, dtype=np.float32))
    actual = linear("node", constants["w"], constants["s"], constants.get("z"), axis, block).floats
    np.testing.assert_array_equal(actual if axis == 0 else actual.T, expected)


def channels(integers: Integers, axis: int) -> tuple[list[bool], np.ndarray]:
    values, scales, exact = integers.by_channel(axis)
    shape = [1] * values.ndim
    shape[axis] = -1
    return exact.tolist(), values * scales.reshape(shape)


@pytest.mark.parametrize("axis", [0, 1])
def test_channels_that_fit_int8(axis: int) -> None:
    values = np.array([[-128, 5, 127], [-127, 0, 128], [1, 2, 3], [-128, 0, 9], [7, -8, 0]], np.int16)
    scale = np.array([[0.5], [0.5], [0.0], [-2.0], [-0.25]], np.float32)
    integers = Integers(values, scale, "int8")
    if axis:
        integers = integers.transpose()
    exact, result = channels(integers, axis)
    assert exact == [True, False, True, False, True]
    expected = integers.floats
    for channel in (0, 2, 4):
        np.testing.assert_array_equal(result.take(channel, axis), expected.take(channel, axis))


def test_scales_that_differ_within_a_channel() -> None:
    scale = np.array([[1, 1], [1, 2], [2, 2]], np.float32)
    exact, _ = channels(Integers(np.ones((3, 2), np.int16), scale, "int4"), 0)
    assert exact == [True, False, True]
    exact, _ = channels(Integers(np.ones((3, 2), np.int16), scale, "int4"), 1)
    assert exact == [False, False]
    exact, _ = channels(Integers(np.ones((3, 2), np.int16), np.ones((), np.float32), "int4"), 1)
    assert exact == [True, True]


def test_integers_are_found_by_their_floats() -> None:
    rng = np.random.default_rng(0)
    remembered = Remembered()
    integers = Integers(
        rng.integers(-128, 128, (4, 6)).astype(np.int16), np.full((1, 6), 0.3, np.float32), "int8"
    )
    floats = remembered.add(integers)
    assert len(remembered) == 1
    assert remembered.find(floats.copy()) is integers
    turned = remembered.find(np.ascontiguousarray(floats.T))
    assert turned is not None
    np.testing.assert_array_equal(turned.values, integers.values.T)
    np.testing.assert_array_equal(turned.floats, floats.T)
    assert remembered.find(floats + 1) is None
    assert remembered.find(floats.reshape(6, 4)) is None
    assert remembered.find(floats.astype(np.float64)) is None


def weights(scale: float = 1.0, dtype: type = np.float32) -> Integers:
    return linear(
        "node 'a' (DequantizeLinear)", np.zeros((2, 3), np.int8), np.array(scale, dtype), None, 1, 0
    )


@pytest.mark.parametrize(("scale", "text"), [(np.inf, "inf"), (-np.inf, "-inf"), (np.nan, "nan")])
def test_scales_that_are_not_finite(scale: float, text: str) -> None:
    with pytest.raises(CompileError) as caught:
        weights(scale)
    assert str(caught.value) == (
        f"node 'a' (DequantizeLinear) has scale {text}; scales of weights must be finite numbers"
    )
    assert not weights(0.0).floats.any()


def test_scales_of_half_precision() -> None:
    with pytest.raises(CompileError, match="has scales of float16; weft reads float32: export the model in"):
        weights(1.0, np.float16)


GOOD = {"inner": 40, "outputs": 3, "bits": 4, "block": 16}
HOSTILE = {
    "K": ({"inner": 0}, {}, "has K 0; it must be at least 1"),
    "N": ({"outputs": -3}, {}, "has N -3; it must be at least 1"),
    "bits": ({"bits": 3}, {}, "has weights of 3 bits; weft reads 2, 4 and 8"),
    "no bits": ({"bits": 0}, {}, "has weights of 0 bits; weft reads 2, 4 and 8"),
    "block": ({"block": 24}, {}, "has block_size 24; it must be a power of two from 16 on"),
    "no block": ({"block": 0}, {}, "has block_size 0; it must be a power of two from 16 on"),
    "small block": ({"block": 8}, {}, "has block_size 8; it must be a power of two from 16 on"),
    "shape": (
        {},
        {"packed": np.zeros((3, 2, 8), np.uint8)},
        "has weights of uint8 and shape 3x2x8; K, N, bits and block_size ask for uint8 of shape 3x3x8",
    ),
    "type": (
        {},
        {"packed": np.zeros((3, 3, 8), np.int8)},
        "has weights of int8 and shape 3x3x8; K, N, bits and block_size ask for uint8 of shape 3x3x8",
    ),
    "scales": ({}, {"scales": np.ones(8, np.float32)}, "has 8 scales for 9 blocks of 16"),
    "scale": (
        {},
        {"scales": np.full(9, np.nan, np.float32)},
        "has scale nan; scales of weights must be finite numbers",
    ),
    "zeros": (
        {},
        {"zeros": np.zeros(5, np.uint8)},
        "has 5 bytes of zero points; 3 outputs of 3 blocks take 6",
    ),
    "float zeros": (
        {},
        {"zeros": np.full(9, 0.5, np.float32)},
        "has zero points of float32 and shape 9 that are no whole numbers of 4 bits, one for each block; weft reads "
        "packed uint8, and floats that are whole",
    ),
    "large zeros": (
        {},
        {"zeros": np.full((3, 3), np.inf, np.float32)},
        "has zero points of float32 and shape 3x3 that are no whole numbers of 4 bits, one for each block; weft reads "
        "packed uint8, and floats that are whole",
    ),
    "few zeros": (
        {},
        {"zeros": np.zeros(4, np.float32)},
        "has zero points of float32 and shape 4 that are no whole numbers of 4 bits, one for each block; weft reads "
        "packed uint8, and floats that are whole",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_invalid_packed_weights_are_refused(name: str) -> None:
    settings, arrays, message = HOSTILE[name]
    packing = Packing(**{**GOOD, **settings})
    arguments = {
        "packed": np.zeros((3, 3, 8), np.uint8),
        "scales": np.ones(9, np.float32),
        "zeros": None,
        **arrays,
    }
    with pytest.raises(CompileError) as caught:
        packing.weights("node 'a' (MatMulNBits)", **arguments)
    assert str(caught.value) == f"node 'a' (MatMulNBits) {message}"
