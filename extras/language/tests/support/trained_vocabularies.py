"""Vocabularies trained by, or known to, other libraries, with those libraries' tokenizers."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable

import numpy as np
import regex
import sentencepiece
import tiktoken
from sentencepiece import sentencepiece_model_pb2

from weft.extras.language.compiler.encoders import CHARACTERS
from weft.extras.language.compiler.model import Kind, Vocabulary
from weft.extras.language.tests.support import plain_merging

_TEXT = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which
one you were her all she there would their we him been has when who will more no if out so said what up its about into
than them can only other new some could time these two may then do first any my now such like our over man me even most
made after also did many before must through back years where much your way well down should because each just those
people how too little state good very make world still own see men work long get here between both life being under
never day same another know while last might us great old year off come since against go came right used take
grüßen éclair naïve 中文 日本 привет 123 2024 3.14 won't it's they'll I'D <tag> f(x) = a[i] + b; \t tabs  and   spaces
"""
WORDS = _TEXT.strip().replace("\n", " ").split(" ")


def lines(count: int = 400, seed: int = 0) -> list[str]:
    """Return lines of random words, frequent ones first."""
    rng = np.random.default_rng(seed)
    shares = 1 / np.arange(1, len(WORDS) + 1)
    draws = (rng.choice(WORDS, size=rng.integers(3, 14), p=shares / shares.sum()) for _ in range(count))
    return [" ".join(draw) for draw in draws]


@functools.cache
def pieces(
    size: int = 420, *, space: bool = True, symbols: tuple[str, ...] = (), fallback: bool = True
) -> bytes:
    """Train a SentencePiece model without normalisation, as Llama's, and return its bytes."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines()),
        model_writer=model,
        model_type="bpe",
        vocab_size=size + (256 if fallback else 0),
        byte_fallback=fallback,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=space,
        user_defined_symbols=list(symbols),
        character_coverage=0.995,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def of_sentencepiece(content: bytes, *, space: bool = True) -> Vocabulary:
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    return Vocabulary(
        model="llama",
        pre="",
        tokens=tuple(piece.piece for piece in model.pieces),
        kinds=tuple(Kind(piece.type) for piece in model.pieces),
        scores=tuple(piece.score for piece in model.pieces),
        begin=model.trainer_spec.bos_id,
        end=model.trainer_spec.eos_id,
        unknown=model.trainer_spec.unk_id,
        add_begin=False,
        add_space=space,
    )


def without(content: bytes, unused: Callable[[str], bool]) -> bytes:
    """Return a model with pieces marked as unused."""
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    for piece in model.pieces:
        if Kind(piece.type) is Kind.NORMAL and unused(piece.piece):
            piece.type = int(Kind.UNUSED)
    return bytes(model.SerializeToString())


@functools.cache
def byte_pairs(pre: str, expression: str, count: int = 300) -> tuple[Vocabulary, tiktoken.Encoding]:
    """Learn byte merges of words that an expression cuts out; return the vocabulary and tiktoken's tokenizer."""
    words = [match[0] for line in lines() for match in regex.finditer(expression, line)]
    written = ["".join(CHARACTERS[byte] for byte in word.encode()) for word in words]
    merges = plain_merging.train(sorted(set(written)), count)
    tokens = [*CHARACTERS.values(), *map("".join, merges)]
    back = {character: byte for byte, character in CHARACTERS.items()}
    ranks = {bytes(back[character] for character in token): at for at, token in enumerate(tokens)}
    end = len(tokens)
    encoding = tiktoken.Encoding(
        pre, pat_str=expression, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": end}
    )
    known = Vocabulary(
        model="gpt2",
        pre=pre,
        tokens=(*tokens, "<|endoftext|>"),
        kinds=(*[Kind.NORMAL] * len(tokens), Kind.CONTROL),
        merges=tuple(merges),
        begin=end,
        end=end,
        ends=frozenset({end}),
    )
    return known, encoding
