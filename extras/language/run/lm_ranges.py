"""Ranges of a model's values, from a calibration text or from texts that the model generates.

The build cache keeps them, by a hash of everything that they depend on.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from weft.extras.language.compiler import reference as reference_module
from weft.extras.language.compiler.reference import Ranges, Reference, measure_ranges
from weft.extras.language.run.generation import Sampler
from weft.hdl.cache import entry

GENERATED_TOKENS = 256
"""Number of tokens to generate for calibration."""
_GENERATED_LENGTH = 128
"""Limit for tokens of one generated text."""
CALIBRATION_TOKENS = 2048
"""Limit for tokens of a calibration text; later tokens are ignored."""
_FILE = "ranges.json"


def generate_texts(reference: Reference, count: int = GENERATED_TOKENS) -> list[list[int]]:
    """Return texts of `count` tokens together that a model generates at temperature 1.

    Texts start with the begin token, or with a random token if the vocabulary has none. The result is reproducible.
    """
    model = reference.model
    length = min(_GENERATED_LENGTH, model.sizes.context)
    rng, choose = np.random.default_rng(0), Sampler(1.0)
    texts: list[list[int]] = []
    while (remaining := count - sum(map(len, texts))) > 0:
        begin = model.vocabulary.begin
        tokens = [int(rng.integers(model.sizes.vocabulary)) if begin is None else begin]
        cache = reference.start()
        while len(tokens) < min(length, remaining) and tokens[-1] not in model.vocabulary.ends - {begin}:
            tokens.append(choose(reference.logits(tokens[-1:], cache, last=True)[0].astype(np.float64)))
        texts.append(tokens)
    return texts


def split_text(tokens: Sequence[int], context: int) -> list[list[int]]:
    """Split the first `CALIBRATION_TOKENS` tokens into parts of at most `context` tokens."""
    tokens = list(tokens[:CALIBRATION_TOKENS])
    return [tokens[at : at + context] for at in range(0, len(tokens), context)]


def model_ranges(reference: Reference, digest: str, tokens: Sequence[int] | None) -> Ranges:
    """Return the ranges of a model, from the cache if possible.

    Parameters
    ----------
    reference : Reference
    digest : str
        Hash of the model's file.
    tokens : sequence of int, optional
        Calibration text; without it the model generates texts.

    Raises
    ------
    weft.hdl.errors.CacheError
        If the cache cannot be used.
    """
    context = reference.model.sizes.context
    key_text = json.dumps([digest, context, None if tokens is None else list(tokens[:CALIBRATION_TOKENS])])
    key = hashlib.sha256(key_text.encode())
    # A change of these sources may change the ranges.
    for source in (__file__, reference_module.__file__):
        key.update(Path(source).read_bytes())

    def make(folder: Path) -> None:
        texts = generate_texts(reference) if tokens is None else split_text(tokens, context)
        value_ranges = dataclasses.asdict(measure_ranges(reference.model, texts))
        (folder / _FILE).write_text(json.dumps(value_ranges))

    return Ranges(**json.loads((entry(f"ranges-{key.hexdigest()[:32]}", make) / _FILE).read_text()))
