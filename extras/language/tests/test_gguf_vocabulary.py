"""Vocabularies from metadata, and the full message of every refusal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.encoders import PATTERNS
from weft.extras.language.compiler.model import Kind, Vocabulary
from weft.extras.language.gguf.metadata import Metadata, read_vocabulary

LLAMA: dict[str, Any] = {
    "model": "llama",
    "tokens": ("<unk>", "<s>", "</s>", "<0x0A>", "a", "<eot>"),
    "scores": np.array([0, 0, 0, 0, -1.5, float("-inf")], np.float32),
    "token_type": np.array([2, 3, 3, 6, 1, 3], np.int32),
}
GPT2: dict[str, Any] = {
    "model": "gpt2",
    "tokens": ("a", "b", "ab", "abb", "<|end|>"),
    "merges": ("a b", "ab b"),
}


def read(entries: dict[str, Any], **changes: Any) -> Vocabulary:
    """Read the vocabulary of entries, leaving out None."""
    entries = {
        f"tokenizer.ggml.{key}": value for key, value in (entries | changes).items() if value is not None
    }
    return read_vocabulary(Metadata(entries))


def refusal(entries: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(CompileError) as caught:
        read(entries, **changes)
    return str(caught.value)


def test_vocabularies_of_pieces() -> None:
    actual = read(LLAMA)
    assert actual == Vocabulary(
        model="llama",
        pre="",
        tokens=LLAMA["tokens"],
        kinds=(Kind.UNKNOWN, Kind.CONTROL, Kind.CONTROL, Kind.BYTE, Kind.NORMAL, Kind.CONTROL),
        scores=(0, 0, 0, 0, -1.5, float("-inf")),
        begin=1,
        end=2,
        unknown=0,
        ends=frozenset({2}),
        add_begin=True,
        add_end=False,
        add_space=True,
    )
    others = read(
        LLAMA, bos_token_id=2, eos_token_id=1, unknown_token_id=4, eot_token_id=5, add_bos_token=False,
        add_eos_token=True, add_space_prefix=False,
    )  # fmt: skip
    assert (others.begin, others.end, others.unknown, others.ends) == (2, 1, 4, {1, 2, 5})
    assert (others.add_begin, others.add_end, others.add_space) == (False, True, False)


def test_vocabularies_of_byte_pairs() -> None:
    actual = read(GPT2)
    assert actual.merges == (("a", "b"), ("ab", "b"))
    assert actual.kinds == (Kind.NORMAL,) * 5
    assert (actual.pre, actual.begin, actual.end, actual.unknown) == ("default", None, None, None)
    assert (actual.add_begin, actual.add_end, actual.add_space, actual.ends) == (
        False,
        False,
        False,
        frozenset(),
    )
    assert read(GPT2, merges=None).merges == ()
    for pre, pattern in PATTERNS.items():
        named = read(GPT2, pre=pre, bos_token_id=4)
        assert named.pre == pre
        assert named.add_begin == pattern.adds_begin == (pre in ("llama-bpe", "llama3"))
    assert not read(GPT2, pre="llama-bpe").add_begin


END_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]",
    "<|end_of_text|>", "<end_of_utterance>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "</s>", "<|file_sep|>",
    "<|fim_pad|>",
)  # fmt: skip


@pytest.mark.parametrize("kind", Kind)
def test_control_tokens_that_end_turns_are_found_by_their_texts(kind: Kind) -> None:
    """Tokens of llama.cpp's list; `eos` ends a text, and no entry names the end of a turn."""
    tokens = ("a", "<|begin|>", "<|start_header_id|>", "<0x0A>", *END_TEXTS)
    kinds = [Kind.NORMAL, Kind.CONTROL, Kind.CONTROL, Kind.BYTE, *[kind] * len(END_TEXTS)]
    if kind is Kind.BYTE:
        kinds[4:] = [Kind.NORMAL] * len(END_TEXTS)
    actual = read(GPT2, tokens=tokens, merges=None, token_type=np.array(kinds, np.int32), eos_token_id=1)
    by_text = set(range(4, len(tokens))) if kind is Kind.CONTROL else set()
    assert (actual.end, actual.ends) == (1, {1, *by_text})


@pytest.mark.parametrize(
    ("texts", "inner"),
    [
        (("<|end|>", "<|return|>", "<|call|>"), "<|end|>"),
        (("<|end|>", "<|calls|>", "<|flush|>"), "<|end|>"),
        (("</s>", "<|tool_response>"), "</s>"),
        (("<|end|>", "<|call|>"), None),
    ],
)
def test_ends_of_parts_of_turns(texts: tuple[str, ...], inner: str | None) -> None:
    actual = read(GPT2, tokens=texts, merges=None, token_type=np.full(len(texts), Kind.CONTROL, np.int32))
    assert {texts[at] for at in actual.ends} == set(texts) - {inner}


def test_a_vocabulary_too_small_for_the_usual_tokens() -> None:
    actual = read(LLAMA, tokens=("x",), scores=np.zeros(1, np.float32), token_type=None)
    assert (actual.begin, actual.end, actual.unknown, actual.add_begin) == (None, None, 0, False)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": "t5"},
         "tokenizer.ggml.model is 't5'; weft has tokenizers for 'llama' (SentencePiece) and 'gpt2' (byte pairs)"),
        ({"tokens": ()}, "tokenizer.ggml.tokens is empty; a language model needs a vocabulary"),
        ({"tokens": np.zeros(0, np.uint8)}, "tokenizer.ggml.tokens is empty; a language model needs a vocabulary"),
        ({"tokens": "x"}, "tokenizer.ggml.tokens is 'x'; it must be an array of texts"),
        ({"tokens": np.zeros(3)}, "tokenizer.ggml.tokens is an array; it must be an array of texts"),
        ({"tokens": ("a" * 5000,)}, "tokenizer.ggml.tokens has a token of 5,000 characters; weft takes up to 4,096"),
        ({"scores": np.zeros(5, np.float32)}, "tokenizer.ggml.scores has 5 elements for 6 tokens"),
        ({"scores": np.zeros(6, np.int32)}, "tokenizer.ggml.scores is an array; it must be an array of numbers"),
        ({"scores": np.array([0, 0, np.nan, 0, 0, 0], np.float32)},
         "tokenizer.ggml.scores has NaN for token 2; scores must be numbers"),
        ({"token_type": np.zeros(7, np.int32)}, "tokenizer.ggml.token_type has 7 elements for 6 tokens"),
        ({"token_type": np.array([2, 3, 3, 6, 1, 7])},
         "tokenizer.ggml.token_type has 7; kinds of tokens are 1 to 6"),
        ({"token_type": np.array([2, 3, -3, 6, 1, 1])},
         "tokenizer.ggml.token_type has -3; kinds of tokens are 1 to 6"),
        ({"token_type": np.array([2, 3, 3, 6, 6, 3])},
         "token 4 is 'a', said to be a byte; bytes are written as '<0x0A>'"),
        ({"bos_token_id": 6}, "tokenizer.ggml.bos_token_id is 6; it must be an integer from 0 to 5"),
        ({"eos_token_id": -1}, "tokenizer.ggml.eos_token_id is -1; it must be an integer from 0 to 5"),
        ({"eot_token_id": "x"}, "tokenizer.ggml.eot_token_id is 'x'; it must be an integer"),
        ({"add_bos_token": 1}, "tokenizer.ggml.add_bos_token is 1; it must be a truth value"),
        ({"add_space_prefix": "no"}, "tokenizer.ggml.add_space_prefix is 'no'; it must be a truth value"),
    ],
)  # fmt: skip
def test_pieces_that_do_not_fit(changes: dict[str, Any], why: str) -> None:
    assert refusal(LLAMA, **changes) == why


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"pre": "deepseek-llm"},
         "tokenizer.ggml.pre is 'deepseek-llm'; weft splits text into words as 'default', 'gpt-2', 'llama-bpe', "
         "'llama3', 'qwen2', 'smollm' do"),
        ({"merges": ("a b", "ab")}, "merge 1 is 'ab'; a merge is two texts with a space between them"),
        ({"merges": (" b",)}, "merge 0 is ' b'; a merge is two texts with a space between them"),
        ({"merges": ("a b b",)}, "merge 0 is 'a b b'; a merge is two texts with a space between them"),
        ({"merges": ("b a",)}, "merge 0 makes 'ba', which is no token"),
        ({"add_bos_token": True},
         "tokenizer.ggml.add_bos_token is true, and the file has no tokenizer.ggml.bos_token_id"),
        ({"add_eos_token": True},
         "tokenizer.ggml.add_eos_token is true, and the file has no tokenizer.ggml.eos_token_id"),
    ],
)  # fmt: skip
def test_byte_pairs_that_do_not_fit(changes: dict[str, Any], why: str) -> None:
    assert refusal(GPT2, **changes) == why
