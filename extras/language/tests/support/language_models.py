"""Small random language models of both architectures, and files of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from weft.extras.language.compiler.encoders import CHARACTERS, SPACE
from weft.extras.language.compiler.model import (
    Block,
    Kind,
    LanguageModel,
    Linear,
    Norm,
    Rotary,
    Sizes,
    Vocabulary,
)
from weft.extras.language.gguf.writer import write
from weft.hdl.isa.config import Config

SIZES = Sizes(
    context=24,
    width=32,
    blocks=2,
    heads=4,
    key_value_heads=2,
    key_length=8,
    value_length=8,
    feed_forward=64,
    vocabulary=0,
)
"""Sizes small enough to inspect, with rows that are multiples of 32."""


def config_of(preset: str) -> Config:
    """Return a preset with all fields that decoders require."""
    return Config.load(preset).replace(loops=1, kernel=256, lookup_tables=4, int4=2)


def pieces(words: str = "the quick brown fox jumps over lazy dogs") -> Vocabulary:
    """Return a ``llama`` vocabulary: bytes, letters, and the beginnings of a few words."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [Kind.UNKNOWN, Kind.CONTROL, Kind.CONTROL, *[Kind.BYTE] * 256]
    longer = {f"{SPACE}{word}"[:end]: None for word in words.split() for end in range(2, len(word) + 2)}
    normal = [*longer, SPACE, *"abcdefghijklmnopqrstuvwxyz"]
    scores = [0.0] * len(names) + [-float(at) for at in range(len(normal))]
    return Vocabulary(
        model="llama",
        pre="",
        tokens=(*names, *normal),
        kinds=(*kinds, *[Kind.NORMAL] * len(normal)),
        scores=tuple(scores),
        begin=1,
        end=2,
        unknown=0,
        ends=frozenset({2}),
        add_begin=True,
        add_space=True,
    )


def byte_pairs(
    words: str = "the quick brown fox jumps over lazy dogs", pre: str = "gpt-2", added: tuple[str, ...] = ()
) -> Vocabulary:
    """Return a ``gpt2`` vocabulary: bytes, beginnings of a few words, `added` tokens, and the end."""
    tokens = [CHARACTERS[byte] for byte in range(256)]
    merges: dict[tuple[str, str], None] = {}
    for word in words.split():
        written = CHARACTERS[ord(" ")] + word
        merges |= {(written[:end], written[end]): None for end in range(1, len(written))}
    tokens += ["".join(pair) for pair in merges]
    kinds = [Kind.NORMAL] * len(tokens) + [Kind.USER_DEFINED] * len(added) + [Kind.CONTROL]
    end = len(tokens) + len(added)
    return Vocabulary(
        model="gpt2",
        pre=pre,
        tokens=(*tokens, *added, "<|endoftext|>"),
        kinds=tuple(kinds),
        merges=tuple(merges),
        begin=end,
        end=end,
        ends=frozenset({end}),
    )


def random_model(
    rng: np.random.Generator,
    architecture: str = "llama",
    sizes: Sizes = SIZES,
    *,
    tied: bool = False,
    biases: bool | None = None,
    rotary: Rotary | None = None,
    vocabulary: Vocabulary | None = None,
) -> LanguageModel:
    """Return a model with random float32 weights and a vocabulary of `sizes.vocabulary` tokens.

    `biases` are those of products, by default as the architecture has them; `rotary` is how ``llama`` turns heads, by
    default the whole of them.
    """
    gpt2 = architecture == "gpt2"
    vocabulary = (byte_pairs() if gpt2 else pieces()) if vocabulary is None else vocabulary
    sizes = replace(sizes, vocabulary=len(vocabulary.tokens))
    if gpt2:
        sizes = replace(sizes, key_value_heads=sizes.heads)
    with_bias = gpt2 if biases is None else biases

    def array(*shape: int, scale: float = 1.0) -> np.ndarray:
        return rng.normal(0, scale, shape).astype(np.float32)

    def linear(outputs: int, inputs: int) -> Linear:
        return Linear(
            array(outputs, inputs, scale=1.5 / math.sqrt(inputs)),
            array(outputs, scale=0.3) if with_bias else None,
        )

    def norm() -> Norm:
        return Norm(1 + array(sizes.width, scale=0.2), array(sizes.width, scale=0.2) if gpt2 else None)

    def block() -> Block:
        width, inner = sizes.width, sizes.feed_forward
        return Block(
            norm(),
            linear(sizes.heads * sizes.key_length, width),
            linear(sizes.key_value_heads * sizes.key_length, width),
            linear(sizes.key_value_heads * sizes.value_length, width),
            linear(width, sizes.heads * sizes.value_length),
            norm(),
            None if gpt2 else linear(inner, width),
            linear(inner, width),
            linear(width, inner),
        )

    embedding = array(sizes.vocabulary, sizes.width)
    return LanguageModel(
        name="random",
        architecture=architecture,
        sizes=sizes,
        epsilon=1e-5,
        token_embedding=embedding,
        rotary=None if gpt2 else rotary or Rotary(sizes.key_length, 10000.0),
        positions=array(sizes.context, sizes.width, scale=0.3) if gpt2 else None,
        blocks=tuple(block() for _ in range(sizes.blocks)),
        output_norm=norm(),
        output=Linear(embedding if tied else array(sizes.vocabulary, sizes.width, scale=0.3)),
        vocabulary=vocabulary,
    )


def write_random(
    path: Path, rng: np.random.Generator, architecture: str = "llama", kind: str = "Q8_0", **options: object
) -> LanguageModel:
    """Write a `random_model` to a file and read it back."""
    return write(random_model(rng, architecture, **options), path, kind)  # type: ignore[arg-type]
