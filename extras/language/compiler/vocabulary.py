"""Vocabulary of a language model; `weft.extras.language.compiler.tokenizer` uses it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

_END_TEXTS = frozenset({
    "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>",
    "<end_of_utterance>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "[e~[", "<eos>", "</s>", "<|return|>", "<|call|>",
    "<|calls|>", "<|flush|>", "<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
    # Padding, and the separator of files in code models
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>",
    "<reponame>", "<|file_sep|>",
})  # fmt: skip
"""Texts of control tokens that end a turn or a text, from llama.cpp; many files name only one of them by number."""
_PART_ENDS = (
    ("<|end|>", {"<|return|>", "<|call|>"}), ("<|end|>", {"<|calls|>", "<|flush|>"}), ("</s>", {"<|tool_response>"}),
)  # fmt: skip
"""Tokens that end only part of a turn if the vocabulary also has the tokens in the set."""


class Kind(enum.IntEnum):
    """Kind of a token, with GGUF's numbers."""

    NORMAL = 1
    UNKNOWN = 2  # for text that the vocabulary cannot represent
    CONTROL = 3  # no text: the begin or the end of a text, for example
    USER_DEFINED = 4  # text that is always one token
    UNUSED = 5  # takes part in merging, and is split again
    BYTE = 6  # one byte of UTF-8


@dataclass(frozen=True)
class Vocabulary:
    """Tokens, and the rules by which text becomes tokens.

    Attributes
    ----------
    model : str
        ``"llama"``: SentencePiece's merging of characters by scores. ``"gpt2"``: merging of bytes by a list of merges.
    pre : str
        For ``"gpt2"``, the name of the rule that first splits text into words, such as ``"llama-bpe"``.
    tokens : tuple of str
        In ``"llama"`` the character U+2581 stands for a space; in ``"gpt2"`` every byte is written as a character.
    kinds : tuple of Kind
        Kind of each token.
    scores : tuple of float
        Score of each token, higher ones merge first. Only for ``"llama"``.
    merges : tuple of (str, str)
        Pairs that merge, in order of priority. Only for ``"gpt2"``.
    begin, end, unknown : int or None
        Tokens for the begin and the end of a text, and for text that cannot be represented.
    ends : frozenset of int
        All tokens that end a text or a turn: those that the file names, and those of `find_ends`.
    add_begin, add_end : bool
        Whether the tokenizer adds these tokens to texts.
    add_space : bool
        Whether the tokenizer adds a space before a text (``"llama"``).
    """

    model: str
    pre: str
    tokens: tuple[str, ...]
    kinds: tuple[Kind, ...]
    scores: tuple[float, ...] = ()
    merges: tuple[tuple[str, str], ...] = ()
    begin: int | None = None
    end: int | None = None
    unknown: int | None = None
    ends: frozenset[int] = frozenset()
    add_begin: bool = False
    add_end: bool = False
    add_space: bool = False


def find_ends(tokens: Sequence[str], kinds: Sequence[Kind]) -> frozenset[int]:
    """Find the control tokens that end a turn or a text, by their texts.

    Parameters
    ----------
    tokens : sequence of str
    kinds : sequence of Kind
        Kind of each token.
    """
    pairs = enumerate(zip(tokens, kinds, strict=False))
    end_texts = {at: text for at, (text, kind) in pairs if kind is Kind.CONTROL and text in _END_TEXTS}
    texts = set(end_texts.values())
    part_ends = {text for text, others in _PART_ENDS if others <= texts}
    return frozenset(at for at, text in end_texts.items() if text not in part_ends)
