"""Programs of decoders are proven to compute their models, and programs or models with faults are not."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from support.certified_decoders import (
    PAGE,
    SIZES,
    differs,
    faulty,
    instructions_of,
    memory_of,
    numbers_of,
    proven,
    refused,
    with_code,
)

from weft.compiler.language.integers import Integers
from weft.decoder_run import DecoderMemory, DecoderRun, Row
from weft.hdl.isa import Instruction, Load, Mm, Softmax, Store, Vec
from weft.hdl.isa.config import Config
from weft.lm_certificate import description, steps_of
from weft.sim.certify.decoder import Decoder
from weft.sim.certify.graph import Array
from weft.sim.certify.language import Language
from weft.sim.certify.steps import Course, Token, every_step, prove_steps
from weft.sim.certify.values import Values
from weft.sim.certify.symbols import Symbols
from weft.sim.certify.words import Unproven
from weft.sim.golden.interpreter import GoldenDevice


@pytest.fixture(scope="module")
def memory() -> DecoderMemory:
    return memory_of(numbers_of())


def test_all_places_of_a_token(memory: DecoderMemory) -> None:
    found = proven(memory)
    assert (found.places, found.steps) == (SIZES.context, SIZES.context)
    vocabulary = memory.decoder.places.sizes.vocabulary
    assert found.compared == SIZES.context * (2 * vocabulary + 2 * SIZES.blocks * SIZES.key_length)
    assert found.error < -50
    assert found.done < found.instructions


def test_biases_and_learned_places() -> None:
    assert proven(memory_of(numbers_of("gpt2"), "tiny")).places == SIZES.context


def test_rows_of_several_texts() -> None:
    memory = memory_of(numbers_of(), rows=2)
    course = Course(description(memory.decoder.numbers), memory.decoder.config, steps_of(memory, memory.program), 1)
    for tokens in ([Token(0, 9), Token(1, 3)], [Token(0, 7), Token(0, 8)], [Token(1, 2)]):
        course.step(tokens)


def test_tokens_of_a_prompt() -> None:
    memory = memory_of(numbers_of(), prompt_rows=4)
    assert memory.prompts is not None
    found = proven(memory, memory.prompts)
    assert (found.places, found.steps) == (SIZES.context, -(-SIZES.context // 4))
    assert found.compared == SIZES.context * 2 * SIZES.blocks * SIZES.key_length


class _Exact(Decoder):
    """The definition on constants, with keys and values of a text before: its attention's results are numbers."""

    caches: np.ndarray
    place: int

    def results(self, layer: int) -> np.ndarray:
        block, seen = self.blocks[layer], self.caches[layer].copy()
        seen[0, self.place], seen[1, self.place] = block.keys[0], block.values[0]
        return self.attended(layer, 0, *seen[:, : self.place + 1])


def test_the_definition_is_what_golden_computes(memory: DecoderMemory) -> None:
    """On constants it is numbers: logits, keys and values that the golden interpreter has."""
    check_definition(memory, 9, 33)


@pytest.mark.long
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("seed", range(4))
def test_definitions_are_what_golden_computes(architecture: str, seed: int) -> None:
    memory = memory_of(numbers_of(architecture, seed, biases=bool(seed % 2)), ("small", "tiny")[seed % 2])
    for place in (0, 4, 9):
        check_definition(memory, place, 7 * seed + place)


def check_definition(memory: DecoderMemory, place: int, token: int) -> None:
    model, config = description(memory.decoder.numbers), memory.decoder.config
    symbols, rng = Symbols(Values(3)), np.random.default_rng(token)
    layers, heads, length = len(model.layers), model.key_value_heads, SIZES.key_length
    caches = rng.integers(0, 256, (layers, 2, SIZES.context, heads, length))
    _Exact.caches, _Exact.place = caches, place
    at = steps_of(memory, memory.program)
    offsets = [
        symbols.integers(np.array([number * columns * 2]))
        for number, columns in ((token, SIZES.width), (place, model.positions.shape[1]))
    ]
    found = _Exact(symbols, config, model, *offsets)
    run = DecoderRun(memory, GoldenDevice(config, memory.memory_bytes))
    places = _slots(at.cache.address, at, np.arange(place), layers, heads, length)
    for address, content in zip(places.ravel(), caches[:, :, :place].ravel(), strict=True):
        run.device.write(int(address), bytes([int(content)]))
    run.step([Row(token, place, [0, 1])])
    raw = np.frombuffer(run.raw(0), np.uint8).reshape(-1, 2, config.n).swapaxes(1, 2).reshape(-1, 2)
    assert found.logits.max() < 256
    assert np.array_equal(found.logits[0], raw[: found.logits.shape[1]])
    own = _slots(at.cache.address, at, np.array([place]), layers, heads, length)[:, :, 0]
    kept = np.array([[found.blocks[layer].keys[0], found.blocks[layer].values[0]] for layer in range(layers)])
    assert np.array_equal(kept, np.array([run.device.read(int(byte), 1)[0] for byte in own.ravel()]).reshape(own.shape))


def _slots(start: int, at, slots: np.ndarray, layers: int, heads: int, length: int) -> np.ndarray:
    cache = at.cache
    layer, kind, slot, head, element = np.ogrid[:layers, :2, : len(slots), :heads, :length]
    page = slots[slot] // cache.keys * cache.page_bytes
    within = slots[slot] % cache.keys * cache.slot
    return start + page + within + layer * cache.layer + kind * cache.kind + head * cache.head + element
