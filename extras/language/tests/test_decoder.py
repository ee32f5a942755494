"""Decoder programs on the interpreters and the RTL, compared with the reference alone and in batches."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.mostly_long import mostly_long

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.decoder import Decoder
from weft.extras.language.compiler.integers import Integers, to_integers
from weft.extras.language.compiler.layout import PRODUCTS
from weft.extras.language.compiler.model import Block, LanguageModel, Linear, Sizes
from weft.extras.language.compiler.ordered_code import PAGES
from weft.extras.language.compiler.reference import Reference, measure_ranges
from weft.extras.language.gguf.writer import write
from weft.extras.language.tests.support.decoder_run import DecoderRun
from weft.extras.language.tests.support.language_models import config_of, random_model
from weft.hdl.checker.program import check
from weft.hdl.isa import WORD_BYTES, Instruction, decode
from weft.hdl.isa.config import Config
from weft.sim.compiled.device import CompiledDevice
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice

_SIZES = Sizes(
    context=48, width=64, blocks=2, heads=4, key_value_heads=2, key_length=16, value_length=16, feed_forward=96,
    vocabulary=0,
)  # fmt: skip
_TOKENS = 24
_PRODUCTS = [found for named in PRODUCTS.values() for found in named.items()]
KINDS = ("gpt2", "gpt2 some biases", "gpt2 no biases", "qwen", "llama biases", "llama some biases")
"""All but ``llama``, which has no biases: `random_model`'s architectures with all biases, those of a random part of the
products of each block, those of queries, keys and values (``qwen``), or none but what LayerNorm adds."""


def in_blocks(
    seed: int, folder: Path, head: str, sizes: Sizes = _SIZES, kind: str = "llama"
) -> tuple[LanguageModel, list[int], Integers]:
    """Like `build_model`, with matrices in blocks of 4 bits; embeddings and head are of type `head`."""
    rng = np.random.default_rng(seed)
    model = of_kind(kind, rng, sizes)
    model = write(
        model, str(folder / "model.gguf"), "Q4_0", {"token_embd.weight": head, "output.weight": head}
    )
    text = rng.integers(0, model.sizes.vocabulary, _TOKENS).tolist()
    return model, text, to_integers(model, measure_ranges(model, [text]), blocks=True)


def without_biases(model: LanguageModel, rng: np.random.Generator) -> LanguageModel:
    """Return a model in which each product lacks a bias in some blocks."""

    def some(block: Block) -> Block:
        lost = [name for _, name in _PRODUCTS if rng.integers(3) == 0 and getattr(block, name) is not None]
        return dataclasses.replace(block, **{name: Linear(getattr(block, name).weight) for name in lost})

    return dataclasses.replace(model, blocks=tuple(map(some, model.blocks)))


def of_kind(
    kind: str, rng: np.random.Generator, sizes: Sizes = _SIZES, *, tied: bool = False
) -> LanguageModel:
    """Return a random model of a kind of `KINDS`."""
    gpt2 = kind.startswith("gpt2")
    if kind in ("llama", "gpt2 no biases"):
        return random_model(rng, kind.split()[0], sizes, biases=False, tied=tied)
    model = random_model(rng, "gpt2" if gpt2 else "llama", sizes, biases=True, tied=tied)
    if kind == "qwen":
        plain = [name for _, name in _PRODUCTS if name not in ("query", "key", "value")]
        blocks = (
            dataclasses.replace(block, **{name: Linear(getattr(block, name).weight) for name in plain})
            for block in model.blocks
        )
        return dataclasses.replace(model, blocks=tuple(blocks))
    return without_biases(model, rng) if kind.endswith("some biases") else model


def build_model(
    seed: int, sizes: Sizes = _SIZES, kind: str = "llama", *, tied: bool = False
) -> tuple[LanguageModel, list[int], Integers]:
    rng = np.random.default_rng(seed)
    model = of_kind(kind, rng, sizes, tied=tied)
    text = rng.integers(0, model.sizes.vocabulary, _TOKENS).tolist()
    return model, text, to_integers(model, measure_ranges(model, [text]))


@pytest.mark.parametrize("preset", mostly_long(["small", "default"], 0))
@pytest.mark.parametrize(("heads", "groups"), [(4, 2), (4, 4), (4, 1)])
def test_logits_are_near_the_reference(preset: str, heads: int, groups: int) -> None:
    model, text, numbers = build_model(
        heads + groups, dataclasses.replace(_SIZES, heads=heads, key_value_heads=groups)
    )
    run = DecoderRun(Decoder(numbers, config_of(preset), page=16), CompiledDevice, 4)
    actual = np.stack([run.step([(token, at, [2, 0, 3])])[0] for at, token in enumerate(text)])
    exact = Reference(model).logits(text)
    near = [np.corrcoef(a, b)[0, 1] for a, b in zip(exact, actual, strict=True)]
    assert min(near) > 0.98
    assert np.sqrt(np.mean((actual - exact) ** 2)) < 0.12 * exact.std()


def errors_of(model: LanguageModel, text: list[int], decoder: Decoder, pages: int = 4) -> tuple[float, float]:
    """Return the least cosine similarity to the reference's logits, and the RMS error relative to their standard
    deviation."""
    run = DecoderRun(decoder, CompiledDevice, pages)
    result = np.stack([run.step([(token, at, [2, 0, 3])])[0] for at, token in enumerate(text)])
    exact = Reference(model).logits(text)
    norms = np.linalg.norm(exact, axis=1) * np.linalg.norm(result, axis=1)
    return float(((exact * result).sum(axis=1) / norms).min()), float(
        np.sqrt(np.mean((result - exact) ** 2)) / exact.std()
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("preset", "tied"), mostly_long([("small", True), ("default", False)], 0))
def test_all_kinds_are_near_the_reference(kind: str, preset: str, tied: bool) -> None:
    model, text, numbers = build_model(3, kind=kind, tied=tied)
    near, error = errors_of(model, text, Decoder(numbers, config_of(preset), page=16))
    assert near > 0.97
    assert error < 0.08


@pytest.mark.parametrize(
    ("preset", "kind", "head"),
    mostly_long(
        [
            (preset, kind, head)
            for preset, kind in (
                ("small", "llama"), ("default", "llama"), ("large", "llama"), ("default", "gpt2"), ("small", "qwen"),
            )
            for head in ("Q4_0", "Q8_0")
        ],
        0, 3, 4, 7, 8,
    ),
)  # fmt: skip
def test_blocks_of_4_bits_are_as_near_to_their_reference(
    preset: str, kind: str, head: str, tmp_path: Path
) -> None:
    """At half the bytes, as near to the file's reference as int8 is to its own."""
    sizes = dataclasses.replace(_SIZES, key_length=32, value_length=32)
    model, text, numbers = in_blocks(13, tmp_path, head, sizes, kind)
    wide = to_integers(model, measure_ranges(model, [text]))
    exact, errors, bytes_ = Reference(model).logits(text), [], []
    for each in (numbers, wide):
        config = config_of(preset)
        decoder = Decoder(each, config, page=max(8, config.n))
        run = DecoderRun(decoder, CompiledDevice, 4)
        actual = np.stack([run.step([(token, at, [2, 0, 3])])[0] for at, token in enumerate(text)])
        errors.append(np.sqrt(np.mean((actual - exact) ** 2)) / exact.std())
        bytes_.append(decoder.contents.record_bytes)
    assert decoder.contents.blocks == set()
    assert errors[0] < min(0.12, 1.3 * errors[1])
    assert bytes_[0] < 0.62 * bytes_[1]


def test_blocks_of_4_bits_need_them(tmp_path: Path) -> None:
    _, _, numbers = in_blocks(13, tmp_path, "Q4_0")
    with pytest.raises(CompileError, match=r"LOAD has no block factors for 4-bit values \('int4' is not 2\)"):
        Decoder(numbers, config_of("small").replace(int4=1))


def test_probabilities_of_seven_bits() -> None:
    """FPGAs whose multipliers take only signed bytes."""
    model, text, numbers = build_model(9)
    config = config_of("default").replace(probability_bits=7)
    run = DecoderRun(Decoder(numbers, config, page=16), CompiledDevice, 4)
    actual = np.stack([run.step([(token, at, [2, 0, 3])])[0] for at, token in enumerate(text)])
    exact = Reference(model).logits(text)
    assert np.sqrt(np.mean((actual - exact) ** 2)) < 0.12 * exact.std()


def test_interpreters_agree() -> None:
    _, text, numbers = build_model(5)
    decoder = Decoder(numbers, config_of("small"), page=8)
    runs = [DecoderRun(decoder, device, 4) for device in (GoldenDevice, CompiledDevice)]
    for at, token in enumerate(text[:3]):
        first, second = (run.step([(token, at, [1, 3])]) for run in runs)
        assert np.array_equal(first, second)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "llama biases"])
def test_texts_do_not_change_each_other(kind: str) -> None:
    """A text's bits do not depend on its row, its neighbours or the location of its pages."""
    _, text, numbers = build_model(6, kind=kind)
    config = config_of("default")
    other = text[::-1]
    alone = DecoderRun(Decoder(numbers, config, page=16), CompiledDevice, 6)
    expected = [alone.step([(token, at, [0, 1])])[0] for at, token in enumerate(text)]
    beside = DecoderRun(Decoder(numbers, config, rows=3, page=16), CompiledDevice, 6)
    for at, token in enumerate(text):
        mine = (token, at, [5, 2])
        if at % 3 == 0:
            actual = beside.step([mine])[0]
            beside.step([(other[at], at, [4, 3])])  # later, by itself
        else:
            actual = beside.step([(other[at], at, [4, 3]), mine])[1]
        assert np.array_equal(actual, expected[at]), at


def steps_of(
    run: DecoderRun, rows: int, text: Sequence[int], pages: Sequence[int], start: int = 0
) -> np.ndarray:
    """Return the logits after a text whose tokens from `start` up to the last are computed `rows` at a time."""
    last = len(text) - 1
    for first in range(start, last, rows):
        run.prompt([(text[at], at, pages) for at in range(first, min(first + rows, last))])
    result: np.ndarray = run.step([(text[last], last, pages)])[0]
    return result


@pytest.mark.parametrize(
    ("preset", "groups", "rows", "changes"),
    [
        ("default", 2, 16, {}), ("default", 4, 8, {}), ("small", 1, 4, {}), ("small", 4, 2, {}),
        ("default", 4, 16, {"row_states": 32}),  # heads of two groups at a time
        ("small", 2, 8, {"accumulator_depth": 16, "scratchpad_depth": 1024}),  # and of one
    ],
)  # fmt: skip
def test_prompt_tokens_together_match_one_by_one(
    preset: str, groups: int, rows: int, changes: dict[str, int]
) -> None:
    """Bit-exact whatever pages held before, also if some tokens are computed again."""
    _, text, numbers = build_model(20 + groups, dataclasses.replace(_SIZES, key_value_heads=groups))
    decoder = Decoder(numbers, config_of(preset).replace(**changes), page=16, prompt_rows=rows)
    assert decoder.prompts is not None
    if changes:
        assert decoder.prompts.places.groups < groups
    for each in (decoder, decoder.prompts):
        check(instructions_of(each), each.config)
    pages, run = [2, 0, 3], DecoderRun(decoder, CompiledDevice, 4)
    run.device.write(run.bases[PAGES], np.random.default_rng(0).bytes(4 * decoder.places.page_bytes))
    expected = [run.step([(token, at, pages)])[0] for at, token in enumerate(text)]
    for count in (2, rows, rows + 1, 17, len(text)):
        assert np.array_equal(steps_of(run, rows, text[:count], pages), expected[count - 1]), count
    start = (len(text) - 2) // rows * rows
    assert np.array_equal(steps_of(run, rows, text, pages, start), expected[-1])


def check_prompt_program(numbers: Integers, text: Sequence[int]) -> None:
    """Check that the prompt program has no races and matches token-by-token results bit for bit."""
    decoder = Decoder(numbers, config_of("default"), page=16, prompt_rows=8)
    assert decoder.prompts is not None
    check(instructions_of(decoder.prompts), decoder.config)
    run, other = (DecoderRun(decoder, CompiledDevice, 4) for _ in range(2))
    expected = [run.step([(token, at, [1, 3])])[0] for at, token in enumerate(text)][-1]
    assert np.array_equal(steps_of(other, 8, text, [1, 3]), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_a_prompt_of_all_kinds(kind: str) -> None:
    _, text, numbers = build_model(22, dataclasses.replace(_SIZES, key_value_heads=4), kind)
    check_prompt_program(numbers, text)


def test_tokens_of_a_prompt_in_blocks_of_4_bits(tmp_path: Path) -> None:
    _, text, numbers = in_blocks(15, tmp_path, "Q8_0")
    check_prompt_program(numbers, text)


def instructions_of(decoder: Decoder) -> list[Instruction]:
    return [decode(decoder.code[at : at + WORD_BYTES]) for at in range(0, len(decoder.code), WORD_BYTES)]


@pytest.mark.parametrize(("preset", "rows"), [("tiny", 1), ("small", 1), ("small", 3), ("default", 2)])
def test_nothing_races(preset: str, rows: int) -> None:
    """For any number of layers, tokens, pages and parts of the head."""
    _, _, numbers = build_model(11)
    decoder = Decoder(numbers, config_of(preset), rows=rows, page=16)
    check(instructions_of(decoder), decoder.config)


@pytest.mark.parametrize(
    ("kind", "rows"),
    mostly_long([(kind, rows) for kind in ("gpt2", "qwen", "llama biases") for rows in (1, 3)], 1, 2, 5),
)
def test_nothing_races_with_biases(kind: str, rows: int) -> None:
    _, _, numbers = build_model(11, kind=kind)
    decoder = Decoder(numbers, config_of("small"), rows=rows, page=16)
    check(instructions_of(decoder), decoder.config)


@pytest.mark.parametrize("head", ["Q4_0", "Q8_0"])
def test_nothing_races_in_blocks_of_4_bits(head: str, tmp_path: Path) -> None:
    _, _, numbers = in_blocks(11, tmp_path, head)
    decoder = Decoder(numbers, config_of("small"), page=16)
    check(instructions_of(decoder), decoder.config)


def check_rtl(
    decoder: Decoder,
    steps: list[list[tuple[int, int, list[int]]]],
    seed: int,
    prompts: Sequence[list[tuple[int, int, list[int]]]] = (),
) -> None:
    """Check that all of memory matches after each step and prompt step, with random stalls."""

    def rtl(config: Config, size: int) -> RtlDevice:
        return RtlDevice(config, size, stall_probability=0.2, stall_seed=seed)

    golden, real = (DecoderRun(decoder, device, 6) for device in (CompiledDevice, rtl))
    size = golden.device.memory_bytes
    with real.device:
        for step in prompts:
            golden.prompt(step)
            real.prompt(step)
            assert golden.device.read(0, size) == real.device.read(0, size)
        for step in steps:
            assert np.array_equal(golden.step(step), real.step(step))
            assert golden.device.read(0, size) == real.device.read(0, size)


@pytest.mark.parametrize("rows", mostly_long([1, 3], 1))
def test_rtl_is_golden(rows: int) -> None:
    _, text, numbers = build_model(12)
    decoder = Decoder(numbers, config_of("small"), rows=rows, page=8)
    mine = [(token, at, [2, 0, 3]) for at, token in enumerate(text)]
    steps = [mine[at : at + rows] for at in range(0, 12, rows)]
    if rows > 1:
        steps.append([(text[0], 0, [5]), mine[12]])  # another text beside it
    check_rtl(decoder, steps, rows)


@pytest.mark.parametrize("kind", ["gpt2", "llama biases"])
@pytest.mark.parametrize("rows", mostly_long([1, 3], 1))
def test_rtl_is_golden_with_biases(kind: str, rows: int) -> None:
    _, text, numbers = build_model(12, kind=kind)
    decoder = Decoder(numbers, config_of("small"), rows=rows, page=8)
    mine = [(token, at, [2, 0, 3]) for at, token in enumerate(text)]
    steps = [mine[at : at + rows] for at in range(0, 9, rows)]
    if rows > 1:
        steps.append([(text[0], 0, [5]), mine[9]])  # another text beside it
    check_rtl(decoder, steps, rows)


def test_rtl_is_golden_on_tiny() -> None:
    sizes = dataclasses.replace(_SIZES, width=32, heads=1, key_value_heads=1)
    _, text, numbers = build_model(16, sizes, "gpt2 some biases")
    decoder = Decoder(numbers, config_of("tiny"), page=16)
    check_rtl(decoder, [[(token, at, [2, 0, 3])] for at, token in enumerate(text[:3])], 2)


@pytest.mark.parametrize(("head", "kind"), [("Q4_0", "llama"), ("Q8_0", "llama"), ("Q8_0", "gpt2")])
def test_rtl_is_golden_in_blocks_of_4_bits(head: str, kind: str, tmp_path: Path) -> None:
    _, text, numbers = in_blocks(14, tmp_path, head, kind=kind)
    decoder = Decoder(numbers, config_of("small"), page=8)
    check_rtl(decoder, [[(token, at, [2, 0, 3])] for at, token in enumerate(text[:4])], 3)


def test_rtl_is_golden_on_prompts() -> None:
    _, text, numbers = build_model(16)
    decoder = Decoder(numbers, config_of("small"), page=16, prompt_rows=8)
    mine = [(token, at, [2, 0, 3]) for at, token in enumerate(text)]
    check_rtl(decoder, [[mine[19]]], 4, [mine[:8], mine[8:16], mine[16:19]])


def test_stale_page_contents_are_masked() -> None:
    """Keys after a text's end are masked, in its first page and in later ones."""
    _, text, numbers = build_model(10)
    decoder = Decoder(numbers, config_of("small"), page=8)
    clean, used = (DecoderRun(decoder, CompiledDevice, 4) for _ in range(2))
    stale = np.random.default_rng(0).bytes(4 * decoder.places.page_bytes)
    used.device.write(used.bases[PAGES], stale)
    for at, token in enumerate(text):
        first, second = (run.step([(token, at, [1, 3, 0])]) for run in (clean, used))
        assert np.array_equal(first, second), at


def test_one_program_for_all_positions_is_short() -> None:
    _, _, numbers = build_model(7, dataclasses.replace(_SIZES, blocks=12))
    assert len(Decoder(numbers, config_of("default"), page=16).code) < 16384


@pytest.mark.parametrize(
    ("changes", "page", "message"),
    [
        ({"kernel": 64}, 16, "micro-operations"),
        ({"lookup_tables": 1}, 16, "look-up tables"),
        ({"lookup_tables": 0}, 16, "a decoder does not run on this configuration: "),
        ({"kernel": 0}, 16, "a decoder does not run on this configuration: "),
        ({"loops": 0}, 16, "a decoder does not run on this configuration: "),
        ({"probability_bits": 0}, 16, "a decoder does not run on this configuration: "),
        ({"scratchpad_depth": 32}, 16, "the scratchpad of 256 vectors has room for"),
        ({}, 24, "pages have 24 keys, no multiple of 16"),
    ],
)
def test_sizes_that_do_not_fit_are_reported(changes: dict[str, int], page: int, message: str) -> None:
    _, _, numbers = build_model(8)
    with pytest.raises(CompileError, match=message):
        Decoder(numbers, config_of("default").replace(**changes), page=page)


@st.composite
def draw_sizes(draw: st.DrawFn) -> Sizes:
    """Draw sizes that arrays of 4 to 16 columns accept."""
    groups = draw(st.sampled_from([1, 2, 3]))
    length = 16 * draw(st.integers(1, 3))
    return Sizes(
        context=64, width=16 * draw(st.integers(1, 6)), blocks=draw(st.integers(1, 3)),
        heads=groups * draw(st.integers(1, 3)), key_value_heads=groups, key_length=length, value_length=length,
        feed_forward=16 * draw(st.integers(1, 9)), vocabulary=0,
    )  # fmt: skip


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["llama", "llama", *KINDS]), st.booleans(), draw_sizes(),
    st.sampled_from(["tiny", "small", "default"]), st.sampled_from([1, 1, 2, 3, 5, 9]), st.sampled_from([16, 32]),
    st.sampled_from([0, 2, 4, 8, 16]), st.integers(0, 1 << 30),
)  # fmt: skip
def test_random_models(
    kind: str, narrow: bool, sizes: Sizes, preset: str, rows: int, page: int, together: int, seed: int
) -> None:
    """The program checker accepts, and the RTL matches, random kinds, heads, groups, sizes, pages, rows and 4-bit
    blocks."""
    narrow = narrow and kind in ("llama", "gpt2", "qwen", "llama biases")  # files of gpt2 have all biases
    if narrow:  # blocks of 32
        lengths = {
            name: -(-getattr(sizes, name) // 32) * 32 for name in ("width", "feed_forward", "key_length")
        }
        sizes = dataclasses.replace(sizes, **lengths, value_length=lengths["key_length"])
        head = ("Q4_0", "Q8_0")[seed % 2]
        with tempfile.TemporaryDirectory() as folder:
            _, text, numbers = in_blocks(seed, Path(folder), head, sizes, kind)
    else:
        _, text, numbers = build_model(seed, sizes, kind, tied=seed % 3 == 0)
    try:
        decoder = Decoder(numbers, config_of(preset), rows=rows, page=page, prompt_rows=together)
    except CompileError as error:
        assume("room" not in str(error) and "does not fit" not in str(error))
        raise
    for each in (decoder, decoder.prompts):
        if each is not None:
            check(instructions_of(each), each.config)
    mine = [(token, at, [2, 0, 3]) for at, token in enumerate(text)]
    steps = [mine[at : at + rows] for at in range(0, 20, rows)]
    prompts = [mine[at : min(at + together, 19)] for at in range(0, 19, together)] if together else []
    check_rtl(decoder, steps[:1] + steps[-2:], seed, prompts)
