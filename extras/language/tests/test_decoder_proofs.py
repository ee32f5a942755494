"""Decoder programs are proven to compute their models; faulty programs or models are not."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from weft.compiler.errors import CompileError
from weft.extras.language.certificate.certificate import certify, describe_layout, describe_model
from weft.extras.language.certificate.language import Language, StepLayout, Token
from weft.extras.language.certificate.steps import StepProver, generate_steps
from weft.extras.language.compiler.decoder import Decoder as Compiled
from weft.extras.language.run.decoder_run import DecoderMemory
from weft.extras.language.tests.support.certified_decoders import (
    SIZES,
    config_of,
    definition,
    in_blocks,
    instructions_of,
    memory_of,
    numbers_of,
    prove_program,
    run_step,
    with_code,
)
from weft.extras.proof.certificate import CertificateError
from weft.extras.proof.programs.graph import Array, Node
from weft.extras.proof.programs.value_device import Unproven
from weft.hdl.isa import Instruction, Mm, Store


@pytest.fixture(scope="module")
def memory() -> DecoderMemory:
    return memory_of(numbers_of())


def test_all_places_of_a_token(memory: DecoderMemory) -> None:
    actual = prove_program(memory)
    assert (actual.places, actual.steps) == (SIZES.context, SIZES.context)
    vocabulary = memory.decoder.places.sizes.vocabulary
    assert actual.compared == SIZES.context * (2 * vocabulary + 2 * SIZES.blocks * SIZES.key_length)
    assert actual.error < -50
    assert actual.done < actual.instructions


def test_biases_and_learned_places() -> None:
    assert prove_program(memory_of(numbers_of("gpt2"), "tiny")).places == SIZES.context


def test_rows_of_several_texts() -> None:
    memory = memory_of(numbers_of(), rows=2)
    course = StepProver(
        describe_model(memory.decoder.numbers),
        memory.decoder.config,
        describe_layout(memory, memory.program),
        1,
    )
    for tokens in ([Token(0, 9), Token(1, 3)], [Token(0, 7), Token(0, 8)], [Token(1, 2)]):
        course.step(tokens)


def test_tokens_of_a_prompt() -> None:
    memory = memory_of(numbers_of(), prompt_rows=4)
    assert memory.prompts is not None
    actual = prove_program(memory, memory.prompts)
    assert (actual.places, actual.steps) == (SIZES.context, -(-SIZES.context // 4))
    assert actual.compared == SIZES.context * 2 * SIZES.blocks * SIZES.key_length


def test_blocks_of_4_bits(tmp_path: Path) -> None:
    memory = memory_of(in_blocks(tmp_path))
    assert memory.decoder.contents.blocks == {"qkv", "output", "inner", "down", "head"}
    assert find_refusal(memory) == ""


@pytest.mark.long
@pytest.mark.parametrize("head", ["Q4_0", "Q8_0"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_all_places_in_blocks_of_4_bits(architecture: str, head: str, tmp_path: Path) -> None:
    memory = memory_of(in_blocks(tmp_path, architecture, head, 4), prompt_rows=4)
    assert prove_program(memory).places == prove_program(memory, memory.prompts).places == SIZES.context


@pytest.mark.long
@pytest.mark.parametrize("seed", range(24))
def test_many_decoders(seed: int) -> None:
    """Both architectures, with and without biases, over heads, groups, presets, rows and prompts."""
    rng, memory = np.random.default_rng(seed), None
    while memory is None:
        with contextlib.suppress(CompileError):  # there is no room for all that is drawn
            memory = draw_decoder(rng, seed)
    for program in (memory.program, memory.prompts):
        assert program is None or prove_program(memory, program).places == 20


def draw_decoder(rng: np.random.Generator, seed: int) -> DecoderMemory:
    """Draw a decoder of random sizes for texts of 20 tokens."""
    groups, n = int(rng.integers(1, 4)), 16
    sizes = dataclasses.replace(
        SIZES, width=n * int(rng.integers(1, 4)), blocks=int(rng.integers(1, 4)),
        heads=groups * int(rng.integers(1, 4)), key_value_heads=groups, key_length=n, value_length=n,
        feed_forward=n * int(rng.integers(1, 6)), context=20,
    )  # fmt: skip
    numbers = numbers_of(("llama", "gpt2")[seed % 2], seed, sizes, biases=bool(rng.integers(2)))
    preset = ("tiny", "small", "default")[seed % 3]
    rows, prompt_rows = int(rng.choice([1, 1, 2, 3])), int(rng.choice([0, 2, 4]))
    decoder = Compiled(numbers, config_of(preset), rows=rows, page=16, prompt_rows=prompt_rows)
    return DecoderMemory(decoder, 2 * rows)


def test_the_definition_matches_golden(memory: DecoderMemory) -> None:
    """On constants it yields numbers: the golden interpreter's logits, keys and values."""
    check_definition(memory, 9, 33)


@pytest.mark.long
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("seed", range(4))
def test_random_definitions_match_golden(architecture: str, seed: int) -> None:
    memory = memory_of(numbers_of(architecture, seed, biases=bool(seed % 2)), ("small", "tiny")[seed % 2])
    for place in (0, 4, 9):
        check_definition(memory, place, 7 * seed + place)


def check_definition(memory: DecoderMemory, place: int, token: int) -> None:
    model, rng = describe_model(memory.decoder.numbers), np.random.default_rng(token)
    shape = len(model.layers), 2, SIZES.context, model.key_value_heads, SIZES.key_length
    caches = rng.integers(0, 256, shape)
    meant = definition(memory, model, token, place, caches)
    for one, other in zip(meant, run_step(memory, token, place, caches), strict=True):
        assert np.array_equal(one, other)


def find_refusal(
    memory: DecoderMemory, model: Language | None = None, at: StepLayout | None = None, place: int = 9
) -> str:
    """Return why a step is not proven to compute a model; empty if it is."""
    chosen = describe_model(memory.decoder.numbers) if model is None else model
    layout = describe_layout(memory, memory.program) if at is None else at
    try:
        StepProver(chosen, memory.decoder.config, layout, 1).step([Token(0, place)])
    except Unproven as error:
        return str(error)
    return ""


def _changed(array: Array, *place: int) -> Array:
    numbers = array.numpy.copy()
    numbers[place] += 1 if numbers[place] < 100 else -1
    return Array.of(numbers)


def _with_layer(model: Language, **changes: object) -> Language:
    layer = msgspec.structs.replace(model.layers[1], **changes)
    return msgspec.structs.replace(model, layers=(model.layers[0], layer))


def _with_weight(model: Language, name: str) -> Language:
    products = dict(model.layers[1].products)
    item = products[name]
    products[name] = msgspec.structs.replace(item, weights=_changed(item.weights, 3, 5))
    return _with_layer(model, products=products)


def _with_formula(model: Language, name: str, kind: str) -> Language:
    formula = model.formulas[name]
    nodes = list(formula.nodes)
    place = next(at for at, node in enumerate(nodes) if node.kind == kind)
    nodes[place] = msgspec.structs.replace(nodes[place], value=nodes[place].value + 1)
    changed = msgspec.structs.replace(formula, nodes=tuple(nodes))
    return msgspec.structs.replace(model, formulas=model.formulas | {name: changed})


MODELS: dict[str, tuple[Callable[[Language], Language], str]] = {
    "a weight": (lambda model: _with_weight(model, "value"), "of the keys and values of token 9"),
    "scores": (lambda model: _with_layer(model, octaves=1.01 * model.layers[1].octaves), "logits of token 9"),
    "a place": (
        lambda model: msgspec.structs.replace(model, positions=_changed(model.positions, 9, 2)), "keys and values"
    ),
}  # fmt: skip
MORE: dict[str, tuple[Callable[[Language], Language], str]] = {
    "another weight": (lambda model: _with_weight(model, "down"), "logits"),
    "a token": (
        lambda model: msgspec.structs.replace(model, embedding=_changed(model.embedding, 40, 2)), "keys and values"
    ),
    "a mantissa": (
        lambda model: msgspec.structs.replace(
            model, head=msgspec.structs.replace(model.head, mantissas=_changed(model.head.mantissas, 7))  # type: ignore[arg-type]
        ), "2 of",
    ),
    "a norm": (lambda model: _with_formula(model, "normalise", "multiply"), "keys and values"),
    "a gate": (lambda model: _with_formula(model, "inner", "multiply"), "keys and values"),
    "steps of results": (
        lambda model: msgspec.structs.replace(model, step_ratio=1.5 * model.step_ratio), "keys and values"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_another_model_is_not_proven(memory: DecoderMemory, name: str) -> None:
    change, part = (MODELS | MORE)[name]
    assert part in find_refusal(memory, change(describe_model(memory.decoder.numbers)))


@pytest.mark.long
@pytest.mark.parametrize("name", MORE)
def test_other_models_are_not_proven(memory: DecoderMemory, name: str) -> None:
    test_another_model_is_not_proven(memory, name)


def _with(model: Language, **formula: object) -> Language:
    """Return a model whose row-beginning formula has changes."""
    changed = msgspec.structs.replace(model.formulas["begin"], **formula)
    return msgspec.structs.replace(model, formulas=model.formulas | {"begin": changed})


def _narrow(model: Language) -> Language:
    products = dict(model.layers[1].products)
    weights = Array.of(products["value"].weights.numpy[:, 1:])
    products["value"] = msgspec.structs.replace(products["value"], weights=weights)
    return _with_layer(model, products=products)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: msgspec.structs.replace(model, formulas={}), "the decoder has no formula 'begin'"),
        (
            lambda model: _with(model, nodes=(Node("sine", (), 3),), results=(0, 0, 0)),
            "the formula 'begin' of the decoder is invalid: a formula has the unknown kind 'sine'",
        ),
        (lambda model: _with(model, results=(0, 1)), "the formula 'begin' has 2 results; there must be 3"),
        (
            lambda model: msgspec.structs.replace(
                model, positions=msgspec.structs.replace(model.positions, shape=(SIZES.context, -16))
            ),
            "the description of the model is invalid: an array has shape (10, -16)",
        ),
        (_narrow, "product 'value' has weights for 15 inputs, and there are 16"),
        (
            lambda model: msgspec.structs.replace(model, embedding=Array.of(model.embedding.numpy * 300)),
            "has more than 2 digits",
        ),
        (lambda model: _with_layer(model, products={}), "layer 1 of the decoder has no product 'query'"),
    ],
)
def test_an_empty_model_is_refused(
    memory: DecoderMemory, change: Callable[[Language], Language], message: str
) -> None:
    assert message in find_refusal(memory, change(describe_model(memory.decoder.numbers)))


def test_the_host_must_supply_the_rows_of_tokens(memory: DecoderMemory) -> None:
    at = describe_layout(memory, memory.program)

    def wrong(tokens: Sequence[Token], numbers: Sequence[int], pages: Sequence[Sequence[int]]) -> bytes:
        return at.encode_frame([Token(0, 8)], numbers, pages)

    other = dataclasses.replace(at, encode_frame=wrong)
    assert (
        find_refusal(memory, at=other) == "token 9: the host passes the program other rows than these tokens'"
    )


@pytest.mark.parametrize("name", ["context", "vocabulary", "layers", "heads", "length"])
def test_everything_that_the_host_reads_is_proven(memory: DecoderMemory, name: str) -> None:
    at = describe_layout(memory, memory.program)
    size = getattr(at.reads, name)
    other = dataclasses.replace(at, reads=dataclasses.replace(at.reads, **{name: size + 1}))
    assert find_refusal(memory, at=other) == (
        f"the host reads {name}={size + 1}, but the model has {name}={size}"
    )


def test_overlapping_memory_regions_are_refused(memory: DecoderMemory) -> None:
    """Scratch space that overlaps pages would destroy the keys of other texts."""
    at = describe_layout(memory, memory.program)
    other = dataclasses.replace(at, scratch=[(at.cache.address + 8, 16)])
    assert find_refusal(memory, at=other).startswith("pages and scratch 0 share memory at ")
    other = dataclasses.replace(at, frame=at.contents[0][0])
    assert "share memory at" in find_refusal(memory, at=other)


def _first(memory: DecoderMemory, kind: type[Instruction], **fields: int) -> tuple[list[Instruction], int]:
    items = instructions_of(memory.decoder)
    result = (
        at
        for at, item in enumerate(items)
        if isinstance(item, kind) and all(getattr(item, name) == value for name, value in fields.items())
    )
    return items, next(result)


def test_a_misplaced_store_is_not_proven(memory: DecoderMemory) -> None:
    """Keys stored over values, over constants, or into another text's page."""
    items, at = _first(memory, Store)
    misplaced = dataclasses.replace(items[at], offset=describe_layout(memory, memory.program).cache.kind)
    over = dataclasses.replace(items[at], base=0, offset=0)
    other = Store(base=3, offset=0, length=8)
    for changed, part in (
        (
            [*items[:at], misplaced, *items[at + 1 :]],
            "of the keys and values of token 9 differ from the model",
        ),
        ([*items[:at], over, *items[at + 1 :]], "which holds the program or constants"),
        ([*items[:-1], other, items[-1]], "token 9: 8 bytes of memory changed that are not its tokens'"),
    ):
        assert part in find_refusal(with_code(memory, changed))


def test_a_program_with_races_is_not_proven(memory: DecoderMemory) -> None:
    items, at = _first(memory, Mm)
    assert items[at].wait
    other = with_code(memory, [*items[:at], dataclasses.replace(items[at], wait=0), *items[at + 1 :]])
    with pytest.raises(
        CertificateError, match=r"the decoder's program is not proven: .* waits for semaphore"
    ):
        certify(other, lambda text: None)


def test_steps_have_every_row_at_every_place() -> None:
    memory = memory_of(numbers_of(), rows=3)
    steps = list(
        generate_steps(describe_layout(memory, memory.program), SIZES.context, np.random.default_rng(2))
    )
    for row in range(3):
        seen = {tokens[row].place for tokens in steps if len(tokens) > row}
        assert seen == set(range(SIZES.context))
    assert {len(tokens) for tokens in steps} == {1, 2, 3}
    assert any(len({token.text for token in tokens}) < len(tokens) for tokens in steps)


def test_too_few_pages_for_all_rows_are_reported() -> None:
    memory = DecoderMemory(memory_of(numbers_of(), rows=3).decoder, 4)
    with pytest.raises(
        Unproven, match="3 texts of 10 tokens take 6 pages of keys and values, and there are 4"
    ):
        prove_program(memory)
