"""Streamed text up to a stop sequence."""

from __future__ import annotations

import random

import numpy as np
import pytest

from weft.errors import InputError
from weft.extras.language.compiler.tokenizer import Tokenizer
from weft.extras.language.run.generation import Sampler, TextStream
from weft.extras.language.tests.support.language_models import pieces

TOKENIZER = Tokenizer(pieces())


def pieces_of(text: str, stop: tuple[str, ...]) -> tuple[list[str], bool]:
    stream = TextStream(TOKENIZER, stop)
    result = [stream.feed(token) for token in TOKENIZER.encode(text, begin=False)]
    return [*result, stream.end()], stream.stopped


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("the quick fox", (), " the quick fox"),
        ("the quick fox", ("qu",), " the "),
        ("the quick fox", ("fox", "quick f"), " the "),
        ("the quick fox", ("foxy",), " the quick fox"),
        ("aaab", ("aab",), " a"),
        ("a€b", ("€",), " a"),
    ],
)
def test_text_ends_before_the_first_stop_sequence(text: str, stop: tuple[str, ...], expected: str) -> None:
    actual, stopped = pieces_of(text, stop)
    assert "".join(actual) == expected
    assert stopped == (expected != f" {text}")


def test_pieces_are_emitted_as_soon_as_they_are_certain() -> None:
    assert pieces_of("the fox", ())[0] == [" the", " fox", ""]
    assert pieces_of("the foxes", ("xeno",))[0] == [" the", " fo", "", "xes", ""]
    actual, _ = pieces_of("a€", ())
    assert [piece for piece in actual if piece] == [" ", "a", "€"]


def test_stop_sequences_match_find_for_any_pieces() -> None:
    rng = random.Random(0)
    for _ in range(400):
        text = "".join(rng.choices("ab c", k=rng.randint(1, 12)))
        stop = tuple("".join(rng.choices("ab ", k=rng.randint(1, 4))) for _ in range(rng.randint(0, 3)))
        decoded = f" {text}"
        ends = [at for at in map(decoded.find, stop) if at >= 0]
        actual, stopped = pieces_of(text, stop)
        emitted = "".join(actual)
        # The stop sequence that completes first ends the text.
        assert stopped == bool(ends)
        assert emitted == decoded if not ends else decoded.startswith(emitted)
        assert not any(item in emitted for item in stop)


@pytest.mark.parametrize("stop", [("</s>",), ("foxy", "</s>"), ("</s>", "<s>")])
def test_a_control_token_is_a_stop_sequence_by_its_name(stop: tuple[str, ...]) -> None:
    """Even inside a partial stop sequence or character; other control tokens end nothing."""
    for text, dropped in (("the fo", 0), ("the fox", 0), ("a€", 0), ("a€", 1)):
        tokens = TOKENIZER.encode(text, begin=False)
        tokens = tokens[: len(tokens) - dropped]
        stream = TextStream(TOKENIZER, stop)
        expected = f" {text}" if not dropped else " a\ufffd"
        assert ("".join(map(stream.feed, [*tokens, 2])), stream.stopped) == (expected, True)
        assert stream.feed(5) == stream.end() == ""
    stream = TextStream(TOKENIZER, ("</s",))
    assert ([stream.feed(2), stream.feed(1)], stream.stopped) == (["", ""], False)


def test_half_a_character_at_the_end() -> None:
    stream = TextStream(TOKENIZER)
    tokens = TOKENIZER.encode("€", begin=False)
    assert [stream.feed(token) for token in tokens[:-1]] == [" ", "", ""][: len(tokens) - 1]
    assert stream.end() == "\ufffd"


LOGITS = np.array([0.5, 2.0, -1.0, 2.0, 1.0])


def test_greedy_choice_breaks_ties_by_the_lowest_token() -> None:
    assert Sampler()(LOGITS) == 1
    assert {Sampler(5.0, 1, seed)(LOGITS) for seed in range(20)} == {1}
    assert {Sampler(5.0, 2, seed)(LOGITS) for seed in range(40)} == {1, 3}


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, None), (0.7, None), (2.0, 3)])
def test_tokens_are_drawn_as_often_as_probabilities_say(temperature: float, top_k: int | None) -> None:
    sampler, count = Sampler(temperature, top_k, 7), 4000
    shares = np.bincount([sampler(LOGITS) for _ in range(count)], minlength=5) / count
    exact = np.exp(LOGITS / temperature)
    if top_k:
        exact[[0, 2]] = 0
    assert np.abs(shares - exact / exact.sum()).max() < 0.03
    assert not top_k or shares[[0, 2]].sum() == 0


def test_a_seed_determines_the_draws() -> None:
    draws = [[sampler(LOGITS) for _ in range(50)] for sampler in (Sampler(1.0, seed=3), Sampler(1.0, seed=3))]
    assert draws[0] == draws[1]
    other = Sampler(1.0, seed=4)
    assert draws[0] != [other(LOGITS) for _ in range(50)]


def test_extreme_logits_and_temperatures() -> None:
    wide = np.array([-1e6, 0.0, 1e6])
    assert {Sampler(0.001, seed=seed)(wide) for seed in range(20)} == {2}
    assert {Sampler(1e-300, seed=seed)(np.array([1.0, 1.0])) for seed in range(20)} == {0, 1}
    assert {Sampler(100.0, seed=seed)(np.zeros(3)) for seed in range(40)} == {0, 1, 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "'temperature' must be a finite number from 0 to 100, not -0.1"),
        ({"temperature": float("nan")}, "'temperature' must be a finite number from 0 to 100, not nan"),
        ({"top_k": 0}, "'top_k' must be an integer from 1 to"),
        ({"top_k": 1.5}, "'top_k' must be an integer from 1 to"),
        ({"seed": -1}, "'seed' must be an integer from 0 to"),
    ],
)
def test_arguments_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Sampler(**options)  # type: ignore[arg-type]
