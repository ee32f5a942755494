"""Text to tokens and back: special tokens, leading spaces, and streaming."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weft.extras.language.compiler.encoders import SPACE, TokenError
from weft.extras.language.compiler.model import Kind, Vocabulary
from weft.extras.language.compiler.tokenizer import Tokenizer
from weft.extras.language.tests.support import language_models

ADDED = ("<tag>", "<tag>>", "\n\n", "Ġ", "é")


def pieces(*, space: bool = True) -> Vocabulary:
    """Return pieces with user-defined tokens."""
    vocabulary = language_models.pieces()
    return replace(
        vocabulary,
        tokens=(*vocabulary.tokens, *ADDED, f"{SPACE}{SPACE}", "<|turn|>"),
        kinds=(*vocabulary.kinds, *[Kind.USER_DEFINED] * (len(ADDED) + 1), Kind.CONTROL),
        scores=(*vocabulary.scores, *[0.0] * (len(ADDED) + 2)),
        add_space=space,
    )


VOCABULARIES: dict[str, Callable[[], Vocabulary]] = {
    "pieces": language_models.pieces,
    "pieces with added ones": pieces,
    "pieces without a space": lambda: pieces(space=False),
    "byte pairs": language_models.byte_pairs,
    "byte pairs with added ones": lambda: language_models.byte_pairs(added=ADDED),
    "llama-bpe": lambda: replace(language_models.byte_pairs(pre="llama-bpe"), add_begin=True, add_end=True),
}
PARTS = [
    *ADDED,
    "<s>",
    "</s>",
    "<|turn|>",
    "<|endoftext|>",
    "the",
    " the",
    " ",
    "  ",
    "\n",
    "🦊",
    "quick",
    "<",
    "<unk>",
]
TEXTS = (st.text() | st.lists(st.sampled_from(PARTS)).map("".join)).filter(lambda text: SPACE not in text)


@pytest.mark.parametrize("name", VOCABULARIES)
@given(text=TEXTS | st.text(SPACE + " a<", max_size=9), special=st.booleans())
def test_a_text_has_no_more_characters_than_its_tokens_allow(name: str, text: str, special: bool) -> None:
    tokenizer = Tokenizer(VOCABULARIES[name]())
    tokens = tokenizer.encode(text, special=special, begin=False, end=False)
    assert len(text) <= len(tokens) * tokenizer.max_token_characters


@pytest.mark.parametrize("name", VOCABULARIES)
@given(text=TEXTS)
@example(text="  <tag>> the<s> the</s><|turn|>")
def test_texts_round_trip(name: str, text: str) -> None:
    """With and without control tokens by name, at once and token by token."""
    tokenizer = Tokenizer(VOCABULARIES[name]())
    kinds = tokenizer.vocabulary.kinds
    for special in (False, True):
        tokens = tokenizer.encode(text, special=special, begin=False)
        tokens = tokens[:-1] if tokenizer.vocabulary.add_end else tokens
        assert tokenizer.decode(tokens, special=special) == text
        assert special or Kind.CONTROL not in {kinds[token] for token in tokens}
        decoder = tokenizer.decoder(special=special, at_start=True)
        parts = [decoder.feed(token) for token in tokens]
        assert "\ufffd" not in "".join(parts).replace("\ufffd", "", text.count("\ufffd"))
        assert "".join(parts) == text
        assert decoder.end() == ""
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("name", VOCABULARIES)
@given(data=st.data())
def test_any_tokens_make_text(name: str, data: st.DataObject) -> None:
    """Streaming matches decoding at once, with whole characters; invalid bytes become U+FFFD."""
    tokenizer = Tokenizer(VOCABULARIES[name]())
    tokens = data.draw(st.lists(st.integers(0, len(tokenizer.vocabulary.tokens) - 1), max_size=12))
    raw = b"".join(map(tokenizer.content, tokens))
    decoder = tokenizer.decoder()
    text = "".join(map(decoder.feed, tokens)) + decoder.end()
    if not any(tokenizer.vocabulary.kinds[token] is Kind.CONTROL for token in tokens):
        assert text == raw.decode(errors="replace")
        assert tokenizer.decode(tokens) == (
            text.removeprefix(" ") if tokenizer.vocabulary.add_space else text
        )


def test_a_character_in_parts() -> None:
    tokenizer = Tokenizer(language_models.pieces())
    fox = [3 + byte for byte in "🦊".encode()]
    decoder = tokenizer.decoder()
    assert [decoder.feed(token) for token in fox] == ["", "", "", "🦊"]
    assert [decoder.feed(token) for token in fox[:3]] == ["", "", ""]
    assert decoder.feed(2) == "\ufffd"  # a control token ends what came before
    assert [decoder.feed(token) for token in fox[:2]] == ["", ""]
    assert decoder.end() == "\ufffd"
    assert decoder.end() == ""
    assert [decoder.feed(token) for token in fox] == ["", "", "", "🦊"]


def test_spaces_in_front() -> None:
    """Encoding adds a leading space and decoding removes it; continuations keep theirs."""
    tokenizer = Tokenizer(language_models.pieces())
    tokens = tokenizer.vocabulary.tokens
    actual = tokenizer.encode("the the")
    assert [tokens[token] for token in actual] == ["<s>", f"{SPACE}the", f"{SPACE}the"]
    assert tokenizer.decode(actual) == "the the"
    decoder = tokenizer.decoder()
    assert [decoder.feed(token) for token in actual] == ["", "the", " the"]  # behind <s> a text starts
    decoder = tokenizer.decoder()
    assert decoder.feed(actual[1]) == " the"
    assert tokenizer.encode("") == [1]
    bare = Tokenizer(replace(tokenizer.vocabulary, add_space=False))
    assert [tokens[token] for token in bare.encode("the the")] == ["<s>", "t", "h", "e", f"{SPACE}the"]


def test_begin_and_end() -> None:
    vocabulary = replace(language_models.byte_pairs(), add_begin=True, add_end=True, begin=256, end=257)
    tokenizer = Tokenizer(vocabulary)
    assert tokenizer.encode("a") == [256, tokenizer.encode("a", begin=False)[0], 257]
    plain = Tokenizer(replace(vocabulary, add_begin=False, add_end=False))
    assert plain.encode("a", begin=True)[0] == 256
    assert len(plain.encode("a")) == 1
    none = Tokenizer(replace(vocabulary, begin=None, end=None, add_begin=False, add_end=False))
    assert len(none.encode("a", begin=True)) == 1


def test_control_tokens() -> None:
    """Their names are plain text by default."""
    tokenizer = Tokenizer(pieces())
    turn = len(tokenizer.vocabulary.tokens) - 1
    assert turn not in tokenizer.encode("a<|turn|>b")
    actual = tokenizer.encode("the<|turn|>the</s>", special=True)
    the = tokenizer.vocabulary.tokens.index(f"{SPACE}the")
    assert actual == [1, the, turn, the, 2]
    assert tokenizer.decode(actual) == "thethe"
    assert tokenizer.decode(actual, special=True) == "<s>the<|turn|>the</s>"


def test_added_tokens() -> None:
    """The longest match wins, and lookalikes do not match."""
    tokenizer = Tokenizer(language_models.byte_pairs(added=ADDED))
    tokens = tokenizer.vocabulary.tokens
    actual = [tokens[token] for token in tokenizer.encode("<tag>><tag>\n\n\né<ta")]
    assert actual == ["<tag>>", "<tag>", "\n\n", "Ċ", "é", "<", "t", "a"]


def test_the_last_of_equal_tokens_counts() -> None:
    vocabulary = language_models.byte_pairs(added=("<x>", "<x>"))
    assert Tokenizer(vocabulary).encode("<x>") == [len(vocabulary.tokens) - 2]


@pytest.mark.parametrize("token", [-1, 290, 1 << 70])
def test_invalid_tokens(token: int) -> None:
    tokenizer = Tokenizer(language_models.byte_pairs())
    count = len(tokenizer.vocabulary.tokens)
    assert count == 290
    with pytest.raises(TokenError, match=f"^there is no token {token}; the vocabulary has 290$"):
        tokenizer.decode([0, token])


def test_surrogate_halves() -> None:
    with pytest.raises(TokenError) as caught:
        Tokenizer(language_models.byte_pairs()).encode("ab\ud800c")
    assert str(caught.value) == ("character 2 of the text is '\\ud800', half of a surrogate pair")


def test_many_added_tokens_do_not_make_it_slow() -> None:
    added = tuple(f"<{at}>" for at in range(5000))
    tokenizer = Tokenizer(language_models.byte_pairs(added=added))
    assert len(tokenizer.encode("<17>a" * 2000)) == 4000
    assert len(tokenizer.encode("<<<<" * 2000)) == 8000
