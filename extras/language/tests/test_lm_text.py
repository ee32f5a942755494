"""Text as it comes, up to a stop sequence."""

from __future__ import annotations

import random

import pytest

from weft.extras.language.compiler.tokenizer import Tokenizer
from weft.extras.language.run.lm_text import TextStream
from weft.extras.language.tests.support.language_models import pieces

TOKENIZER = Tokenizer(pieces())


def pieces_of(text: str, stop: tuple[str, ...]) -> tuple[list[str], bool]:
    made = TextStream(TOKENIZER, stop)
    found = [made.feed(token) for token in TOKENIZER.encode(text, begin=False)]
    return [*found, made.end()], made.stopped


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
def test_it_ends_in_front_of_the_first_stop_sequence(text: str, stop: tuple[str, ...], expected: str) -> None:
    found, stopped = pieces_of(text, stop)
    assert "".join(found) == expected
    assert stopped == (expected != f" {text}")


def test_pieces_are_given_as_soon_as_they_are_certain() -> None:
    assert pieces_of("the fox", ())[0] == [" the", " fox", ""]
    assert pieces_of("the foxes", ("xeno",))[0] == [" the", " fo", "", "xes", ""]
    found, _ = pieces_of("a€", ())
    assert [piece for piece in found if piece] == [" ", "a", "€"]


def test_whatever_the_pieces_it_is_what_find_says() -> None:
    rng = random.Random(0)
    for _ in range(400):
        text = "".join(rng.choices("ab c", k=rng.randint(1, 12)))
        stop = tuple("".join(rng.choices("ab ", k=rng.randint(1, 4))) for _ in range(rng.randint(0, 3)))
        whole = f" {text}"
        ends = [at for at in map(whole.find, stop) if at >= 0]
        found, stopped = pieces_of(text, stop)
        given = "".join(found)
        # Of several stop sequences the one that is complete first ends the text.
        assert stopped == bool(ends)
        assert given == whole if not ends else whole.startswith(given)
        assert not any(item in given for item in stop)


@pytest.mark.parametrize("stop", [("</s>",), ("foxy", "</s>"), ("</s>", "<s>")])
def test_a_control_token_is_a_stop_sequence_by_its_name(stop: tuple[str, ...]) -> None:
    """Also where a stop sequence or a character has begun; other control tokens end nothing."""
    for text, dropped in (("the fo", 0), ("the fox", 0), ("a€", 0), ("a€", 1)):
        tokens = TOKENIZER.encode(text, begin=False)
        tokens = tokens[: len(tokens) - dropped]
        made = TextStream(TOKENIZER, stop)
        expected = f" {text}" if not dropped else " a\ufffd"
        assert ("".join(map(made.feed, [*tokens, 2])), made.stopped) == (expected, True)
        assert made.feed(5) == made.end() == ""
    made = TextStream(TOKENIZER, ("</s",))
    assert ([made.feed(2), made.feed(1)], made.stopped) == (["", ""], False)


def test_half_a_character_at_the_end() -> None:
    made = TextStream(TOKENIZER)
    tokens = TOKENIZER.encode("€", begin=False)
    assert [made.feed(token) for token in tokens[:-1]] == [" ", "", ""][: len(tokens) - 1]
    assert made.end() == "\ufffd"
