"""Vocabularies from tokenizer.json: identical tokens, and one sentence for unsupported features."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.encoders import PATTERNS
from weft.extras.language.compiler.model import Kind
from weft.extras.language.compiler.tokenizer import Tokenizer
from weft.extras.language.onnx.facts import Facts
from weft.extras.language.onnx.tokenizer_file import TokenizerFile, read_tokenizer
from weft.extras.language.tests.support import trained_vocabularies
from weft.extras.language.tests.support.language_models import byte_pairs
from weft.extras.language.tests.support.onnx_decoders import tokenizer_file

TEXTS = [*trained_vocabularies.lines(20, seed=3), "", " a  b\n\nc", "🦊 it's 12345"]


def put(folder: Path, content: object, count: int = 1000, facts: Facts | None = None) -> TokenizerFile:
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return read_tokenizer(folder, facts or Facts(), count)


def split(expressions: list[str], ignore: bool) -> dict[str, Any]:
    """Return a file that splits texts by expressions."""
    content = tokenizer_file(byte_pairs())
    parts = [
        {"type": "Split", "pattern": {"Regex": text}, "behavior": "Isolated", "invert": False}
        for text in expressions
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*parts, level]}
    content["model"]["ignore_merges"] = ignore
    return content


@pytest.mark.parametrize("space", [False, True])
def test_pieces(space: bool, tmp_path: Path) -> None:
    vocabulary = trained_vocabularies.of_sentencepiece(trained_vocabularies.pieces(space=space), space=space)
    content = tokenizer_file(vocabulary)
    if not space:
        del content["normalizer"]["normalizers"][0]
    actual = put(tmp_path, content, len(vocabulary.tokens), Facts(ends=(2,)))
    assert actual.notes == ()
    one, other = Tokenizer(actual.vocabulary), Tokenizer(vocabulary)
    for text in TEXTS:
        tokens = other.encode(text, begin=True)
        assert one.encode(text) == tokens
        assert one.decode(tokens) == text
    assert (actual.vocabulary.begin, actual.vocabulary.end, actual.vocabulary.unknown) == (1, 2, 0)


def test_metaspace(tmp_path: Path) -> None:
    """A pre-tokeniser may replace spaces instead of a normaliser."""
    vocabulary = trained_vocabularies.of_sentencepiece(trained_vocabularies.pieces())
    content = tokenizer_file(vocabulary)
    content["normalizer"] = None
    content["pre_tokenizer"] = {
        "type": "Metaspace",
        "replacement": "\u2581",
        "prepend_scheme": "first",
        "split": False,
    }
    actual = put(tmp_path, content).vocabulary
    assert actual.add_space
    assert Tokenizer(actual).encode(TEXTS[0]) == Tokenizer(vocabulary).encode(TEXTS[0], begin=True)


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "smollm"])
def test_byte_pairs(pre: str, tmp_path: Path) -> None:
    pattern = PATTERNS[pre]
    vocabulary, _ = trained_vocabularies.byte_pairs(pre, pattern.expressions[-1])
    content = tokenizer_file(vocabulary)
    content |= {"pre_tokenizer": split(list(pattern.expressions), False)["pre_tokenizer"]}
    content["model"]["ignore_merges"] = pattern.keep_whole
    actual = put(tmp_path, content, len(vocabulary.tokens) + 3, Facts(ends=(len(vocabulary.tokens) - 1,)))
    assert actual.vocabulary.pre == pre
    assert actual.vocabulary.end == vocabulary.end
    assert actual.vocabulary.kinds[-3:] == (Kind.CONTROL,) * 3
    for text in TEXTS:
        assert Tokenizer(actual.vocabulary).encode(text) == Tokenizer(vocabulary).encode(text, begin=False)


def test_digits_and_words(tmp_path: Path) -> None:
    content = tokenizer_file(byte_pairs())
    level = content["pre_tokenizer"]
    digits = {"type": "Digits", "individual_digits": True}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, level]}
    assert put(tmp_path, content).vocabulary.pre == "smollm"


def test_begin_and_end_by_their_text(tmp_path: Path) -> None:
    actual = put(
        tmp_path, tokenizer_file(byte_pairs()), facts=Facts(begin_text="the", end_text="<|endoftext|>")
    ).vocabulary
    end = actual.tokens.index("<|endoftext|>")
    assert (actual.begin, actual.end, actual.ends, actual.add_begin) == (None, end, frozenset({end}), False)


def test_an_end_of_turns_by_its_text(tmp_path: Path) -> None:
    """The configuration names only the end of texts; an ordinary token ends nothing."""
    content = tokenizer_file(byte_pairs(added=("<|im_end|>", "<|end|>")))
    names = {item["content"]: item for item in content["added_tokens"]}
    names["<|im_end|>"]["special"] = True
    actual = put(tmp_path, content, facts=Facts(end_text="<|endoftext|>")).vocabulary
    assert {actual.tokens[at] for at in actual.ends} == {"<|im_end|>", "<|endoftext|>"}


def test_texts_with_tokens_around(tmp_path: Path) -> None:
    content = tokenizer_file(byte_pairs())
    end = len(byte_pairs().tokens) - 1
    content["post_processor"] = {
        "type": "Sequence",
        "processors": [
            {"type": "ByteLevel"},
            {
                "type": "TemplateProcessing",
                "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<|endoftext|>"}}],
                "special_tokens": {"<|endoftext|>": {"ids": [end]}},
            },
        ],
    }
    actual = put(tmp_path, content).vocabulary
    assert (actual.add_begin, actual.add_end, actual.end) == (False, True, end)


def test_normalisation_is_reported(tmp_path: Path) -> None:
    content = tokenizer_file(byte_pairs())
    content["normalizer"] = {"type": "NFC"}
    content["added_tokens"][-1]["rstrip"] = True
    assert put(tmp_path, content).notes == (
        "the tokenizer looks at the text around 1 added tokens, for example '<|endoftext|>', which weft does not",
        "the tokenizer normalises texts (NFC) in front, which weft does not: give texts in that form",
    )


REFUSED: list[tuple[str, Any, str]] = [
    ("model.type", "Unigram", "its model is 'Unigram'; weft reads byte-pair encoding (BPE)"),
    ("model", [], "model is []; weft expects an object there"),
    ("model.vocab", 5, "vocab is 5; weft expects an object there"),
    ("model.vocab.x", -1, "token 'x' has the number -1"),
    ("model.vocab.x", 1 << 70, "has the number 1180591620717411303424"),
    ("model.vocab.x", "1", "token 'x' has the number '1'"),
    ("model.vocab.x", 3, "both have the number 3"),
    ("model.vocab.x", 1000, "token 1,000 is 'x', and the model has 1,000 tokens"),
    ("model.dropout", 0.1, "its model has dropout 0.1"),
    ("model.continuing_subword_prefix", "##", "continuing_subword_prefix '##'"),
    ("model.merges", [["a"]], "merge 0 is ['a']"),
    ("model.merges", ["a b c"], "merge 0 is 'a b c'"),
    ("model.merges", ["q z"], "merge 0 makes 'qz', which is no token"),
    ("added_tokens", [7], "added_tokens has 7"),
    ("normalizer", {"type": "Lowercase"}, "its normalizer 'Lowercase' changes texts"),
    ("normalizer", 5, "it has 5 where weft expects an object"),
    ("pre_tokenizer", None, "its pre_tokenizer has no ByteLevel"),
    ("pre_tokenizer", {"type": "Whitespace"}, "its pre_tokenizer 'Whitespace' splits texts"),
    ("pre_tokenizer", {"type": "ByteLevel"}, "its pre_tokenizer 'ByteLevel' splits texts"),
    ("pre_tokenizer", {"type": "Sequence", "pretokenizers": 1}, "a Sequence has 1 as pretokenizers"),
    (
        "post_processor",
        {"type": "BertProcessing"},
        "its post_processor 'BertProcessing' is none that weft knows",
    ),
]


@pytest.mark.parametrize(("place", "value", "words"), REFUSED, ids=lambda value: str(value)[:20])
def test_unsupported_features_are_refused(place: str, value: Any, words: str, tmp_path: Path) -> None:
    content = copy.deepcopy(tokenizer_file(byte_pairs()))
    inner: Any = content
    *parents, last = place.split(".")
    for name in parents:
        inner = inner[name]
    inner[last] = value
    with pytest.raises(CompileError) as caught:
        put(tmp_path, content)
    assert str(caught.value).startswith(f"{tmp_path / 'tokenizer.json'}: ")
    assert words in str(caught.value)


def test_expressions_that_are_not_known(tmp_path: Path) -> None:
    pattern = PATTERNS["llama-bpe"].expressions[0]
    with pytest.raises(CompileError, match=r"\(ignore_merges false\), which weft does not know"):
        put(tmp_path, split([pattern], False))
    with pytest.raises(CompileError, match=r"splits texts by '\\\\s', '\\\\d'"):
        put(tmp_path, split([r"\s", r"\d"], False))


def test_merges_of_pieces_must_be_complete(tmp_path: Path) -> None:
    """Scores do not tell which pairs may merge; missing merges would change tokens."""
    vocabulary = trained_vocabularies.of_sentencepiece(trained_vocabularies.pieces())
    content = tokenizer_file(vocabulary)
    gone = content["model"]["merges"].pop(40).split(" ")
    with pytest.raises(CompileError, match=f"its merges lack '{gone[0]}' with '{gone[1]}'"):
        put(tmp_path, content)
    content["model"]["merges"] += [" ".join(gone)]
    merged = {"".join(pair.split(" ")) for pair in content["model"]["merges"][:-1]}
    if "".join(gone) in merged:
        with pytest.raises(CompileError, match="with others between"):
            put(tmp_path, content)


NORMALISED = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
SPACED = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
PIECES: list[tuple[dict[str, Any] | None, dict[str, Any] | None, str]] = [
    (None, None, "it does not write spaces as '\u2581', which weft expects of pieces with byte_fallback"),
    ({"type": "Prepend", "prepend": "\u2581"}, None, "it does not write spaces as"),
    ({"type": "Prepend", "prepend": " "}, None, "its normalizer 'Prepend' is none that weft knows for pieces"),
    *(
        ({**NORMALISED, **change}, None, "its normalizer 'Replace' is none that weft knows for pieces")
        for change in (
            {"content": "_"}, {"content": "\u2582"}, {"pattern": {"String": "\t"}}, {"pattern": {"Regex": " "}},
        )
    ),
    ({"type": "Lowercase"}, None, "its normalizer 'Lowercase' is none that weft knows for pieces"),
    *(
        (None, {**SPACED, **change}, "its pre_tokenizer 'Metaspace' is none that weft knows for pieces")
        for change in ({"replacement": "_"}, {"replacement": "\u2582"}, {"split": True})
    ),
    (NORMALISED, {"type": "Whitespace"}, "its pre_tokenizer 'Whitespace' is none that weft knows for pieces"),
]  # fmt: skip


@pytest.mark.parametrize(("normaliser", "splitter", "words"), PIECES)
def test_other_spaces_of_pieces(
    normaliser: dict[str, Any] | None, splitter: dict[str, Any] | None, words: str, tmp_path: Path
) -> None:
    content = tokenizer_file(trained_vocabularies.of_sentencepiece(trained_vocabularies.pieces()))
    with pytest.raises(CompileError) as caught:
        put(tmp_path, content | {"normalizer": normaliser, "pre_tokenizer": splitter})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("change", "space"),
    [({}, True), ({"prepend_scheme": "always"}, True), ({"prepend_scheme": "never"}, False),
     ({"prepend_scheme": None, "add_prefix_space": True}, True),
     ({"prepend_scheme": None, "add_prefix_space": False}, False)],
)  # fmt: skip
def test_whether_texts_get_a_space_in_front(change: dict[str, Any], space: bool, tmp_path: Path) -> None:
    content = tokenizer_file(trained_vocabularies.of_sentencepiece(trained_vocabularies.pieces()))
    splitter = {name: value for name, value in {**SPACED, **change}.items() if value is not None}
    actual = put(tmp_path, content | {"normalizer": None, "pre_tokenizer": splitter})
    assert actual.vocabulary.add_space == space


def test_a_file_without_json(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe")
    with pytest.raises(CompileError, match=r"tokenizer.json: it is not JSON|not UTF-8"):
        read_tokenizer(tmp_path, Facts(), 10)
