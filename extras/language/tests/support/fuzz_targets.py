"""GGUF files for fuzzers."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from fuzz.outcome import check_sentence
from fuzz.targets import Target

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.encoders import TokenError
from weft.extras.language.compiler.reference import Reference
from weft.extras.language.compiler.tokenizer import Tokenizer
from weft.extras.language.gguf.reader import read
from weft.extras.language.tests.support import language_models

_KINDS = {"convolutions": ("llama", "Q8_0"), "rows": ("gpt2", "Q4_0"), "attention": ("llama", "Q5_1")}
"""Architecture and matrix type, by seed model of `fuzz.seeds`."""


@cache
def _file(model: str) -> bytes:
    """Return a language model so small that many mutations fall outside its weights."""
    sizes = replace(language_models.SIZES, blocks=1, feed_forward=32)
    with tempfile.TemporaryDirectory(prefix="weft-fuzz-") as folder:
        path = Path(folder) / "model.gguf"
        rng = np.random.default_rng(len(model))
        language_models.write_random(path, rng, *_KINDS[model], sizes=sizes, tied=True)
        return path.read_bytes()


def _offer(content: bytes, folder: Path) -> str:
    """Read a model, encode and decode a text, and compute logits if the model is small."""
    try:
        model = read(content)
        tokenizer = Tokenizer(model.vocabulary)
        tokens = tokenizer.encode("the quick <s> 🦊  x", special=True)
        tokenizer.decode(tokens, special=True)
        if model.sizes.blocks < 5 and model.sizes.context >= len(tokens):
            Reference(model).logits(tokens)
    except (CompileError, TokenError) as error:
        check_sentence(str(error))
        return str(error)
    return ""


TARGETS = {"gguf": Target(5, _file, _offer)}
