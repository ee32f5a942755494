"""The language model shipped with weft matches extras/language/README.md."""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path

import pytest

from weft.extras.language import example
from weft.extras.language.compiler.integers import to_integers
from weft.extras.language.compiler.model import BlockTensor, LanguageModel
from weft.extras.language.compiler.reference import Reference, measure_ranges, perplexity
from weft.extras.language.compiler.tokenizer import Tokenizer
from weft.extras.language.example import measure
from weft.extras.language.example.corpus import Problems, prose
from weft.extras.language.gguf.reader import read
from weft.extras.language.tests.support.language_device import decoder_config, device_perplexity

PAGE = Path(__file__).parents[1] / "README.md"
LEAST_SOLVED = {"sums": 0.9, "stories": 0.8, "letters": 0.7}
"""Fraction solved of 30 problems; extras/language/README.md reports larger samples."""


@functools.cache
def model() -> LanguageModel:
    return read(example.model())


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer(model().vocabulary)


def read_perplexity(name: str) -> float:
    """Return the stored model's perplexity in a table of the page."""
    (result,) = re.findall(rf"^\| {re.escape(name)} \|.* ([0-9.]+) \|$", PAGE.read_text(), re.MULTILINE)
    return float(result)


def test_sizes() -> None:
    stored = model()
    assert len(example.model()) < 3_000_000
    assert stored.architecture == "llama"
    assert stored.tied
    assert isinstance(stored.token_embedding, BlockTensor)
    sizes = stored.sizes
    for name in ("width", "key_length", "value_length", "feed_forward"):
        assert getattr(sizes, name) % 16 == 0, "arrays of 4, 8 and 16 columns run it"


def test_perplexity_of_foreign_prose() -> None:
    tokens = measure.encode_all(tokenizer(), example.held_out())
    assert len(tokens) > 2000
    actual = perplexity(Reference(model()).logits, tokens, window=measure.WINDOW)
    assert actual.value == pytest.approx(read_perplexity("prose of weft"), rel=1e-3)
    assert actual.value < model().sizes.vocabulary / 10


def test_problems() -> None:
    problems = Problems(measure.SEED, held=True)
    texts = [problems.any().text for _ in range(measure.COUNT)]
    actual = perplexity(
        Reference(model()).logits, measure.encode_all(tokenizer(), texts), window=measure.WINDOW
    )
    assert actual.value == pytest.approx(read_perplexity("problems"), rel=1e-3)


@pytest.mark.parametrize("kind", measure.KINDS)
def test_share_of_solved_problems(kind: str) -> None:
    logits = Reference(model()).logits
    solved = [measure.solves(logits, tokenizer(), problem) for problem in measure.problems(kind, 30)]
    assert sum(solved) >= LEAST_SOLVED[kind] * len(solved)


def test_it_continues_the_prompt() -> None:
    reference = Reference(model())
    cache, actual = reference.start(), []
    tokens = tokenizer().encode(example.PROMPT)
    while not model().vocabulary.ends.intersection(actual) and len(actual) < 60:
        actual.append(int(reference.logits(tokens, cache, last=True)[0].argmax()))
        tokens = actual[-1:]
    assert tokenizer().decode(actual) == "3 + 5 = 8, 2 + 4 = 6, so 68 apples."


def test_texts_round_trip() -> None:
    texts = [
        *example.held_out(),
        example.PROMPT,
        "日本 ümlaut\t\n tabs",
        *(item.text for item in measure.problems("sums")),
    ]
    for text in texts:
        assert tokenizer().decode(tokenizer().encode(text)) == text


def test_digits_are_single_tokens() -> None:
    names = model().vocabulary.tokens
    assert {name for name in names if re.search(r"\d", name) and not name.startswith("<0x")} <= set(
        "0123456789"
    )


@pytest.mark.long
@pytest.mark.parametrize("preset", ["default", "small"])
def test_perplexity_on_the_device(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of int8 numbers with ranges measured on training text."""
    problems = Problems(measure.SEED + 1, held=False)
    samples = [*prose(held=False)[::100], *(problems.any().text for _ in range(100))]
    joined = measure.encode_all(tokenizer(), samples)
    window = measure.WINDOW
    numbers = to_integers(
        model(), measure_ranges(model(), [joined[at : at + window] for at in range(0, 20 * window, window)])
    )
    for name, texts in measure.texts().items():
        tokens = measure.encode_all(tokenizer(), texts)[:4000]
        exact = perplexity(Reference(model()).logits, tokens, window=window)
        actual = device_perplexity(numbers, tokens, window, decoder_config(preset))
        with capsys.disabled():
            print(
                f"\n{preset}, {name}, {exact.tokens} tokens: float32 {exact.value:.3f}, device {actual.value:.3f}"
            )
        assert math.log(actual.value / exact.value) < 0.01
