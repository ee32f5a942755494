"""Layout of biases in records of blocks and of the head."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from weft.extras.language.compiler.contents import Contents
from weft.extras.language.compiler.integers import Integers, to_integers
from weft.extras.language.compiler.layout import MANTISSAS, PRODUCTS, Places
from weft.extras.language.compiler.model import Sizes
from weft.extras.language.compiler.reference import measure_ranges
from weft.extras.language.tests.support.language_models import config_of, random_model

_SIZES = Sizes(
    context=16, width=48, blocks=2, heads=2, key_value_heads=2, key_length=16, value_length=16, feed_forward=80,
    vocabulary=0,
)  # fmt: skip


def numbers_of(architecture: str) -> Integers:
    model = random_model(np.random.default_rng(6), architecture, _SIZES, biases=True)
    return to_integers(model, measure_ranges(model, [[1, 2, 3]]))


def biases_of(contents: Contents, places: Places, block: int, product: str) -> np.ndarray:
    """Return a product's biases in a record, in rows of N columns."""
    n, result = places.config.n, []
    for part, offset in zip(contents.ring.parts, contents.offsets, strict=True):
        if part.name == product:
            skipped = part.tiles * (n * places.columns[product] + MANTISSAS) * n
            size = part.tiles * places.biases(product) * n
            at = block * contents.record_bytes + offset + skipped
            vectors = np.frombuffer(contents.records[at : at + size], np.int8).astype(int).reshape(-1, n)
            upper = vectors[: 2 * part.tiles].reshape(part.tiles, 2, n)
            values = upper[:, 0] * 256 + upper[:, 1]
            result.append(values * 256 + vectors[2 * part.tiles :] if places.biases(product) == 3 else values)
    return np.concatenate(result)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("preset", ["tiny", "small", "default"])
def test_biases_follow_mantissas(architecture: str, preset: str) -> None:
    numbers = numbers_of(architecture)
    config = config_of(preset).replace(scratchpad_depth=2048)
    places = Places(numbers.model.sizes, config, 1, 16, numbers.form)
    contents = Contents(numbers, places)
    for block, layer in enumerate(numbers.layers):
        for product, named in PRODUCTS.items():
            rows = [
                numbers.biases[name].numbers[block].reshape(-1, config.n)
                for name in named
                if name in layer.matrices
            ]
            # Tiles of the gate and of the up projection alternate.
            order = np.stack(rows, axis=1) if product == "inner" else np.concatenate(rows)
            assert np.array_equal(biases_of(contents, places, block, product), order.reshape(-1, config.n)), (
                product
            )


def test_the_residual_stream_has_room_for_biases() -> None:
    """Its three digits hold biases far above the measured range."""
    model = random_model(np.random.default_rng(6), "gpt2", _SIZES)
    ranges = dataclasses.replace(measure_ranges(model, [[1, 2, 3]]), residual=1e-4)
    numbers = to_integers(model, ranges)
    for name, field in (("output", "attention_output"), ("down", "down")):
        assert numbers.biases[name].shift == 0
        for block, steps in zip(model.blocks, numbers.biases[name].numbers, strict=True):
            exact = getattr(block, field).bias
            assert np.abs(steps * numbers.unit - exact).max() <= numbers.unit / 2 * 1.001
