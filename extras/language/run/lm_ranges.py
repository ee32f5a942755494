"""The ranges of a model's values, which steps follow from: on texts that are given, or that the model makes itself.

They are kept in the cache of builds, under the hash of all that they depend on.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from weft.extras.language.compiler import ranges as observed
from weft.extras.language.compiler import reference as exact
from weft.extras.language.compiler.ranges import Ranges, ranges
from weft.extras.language.compiler.reference import Reference
from weft.extras.language.run.sampling import Sampler
from weft.hdl.cache import entry

OWN_TOKENS = 256
"""Tokens that a model makes by itself."""
_OWN_LENGTH = 128
"""Tokens of each of these texts at most."""
GIVEN_TOKENS = 2048
"""Tokens of a text that is given, of which no more are looked at."""
_FILE = "ranges.json"


def own_texts(reference: Reference, count: int = OWN_TOKENS) -> list[list[int]]:
    """Texts that a model makes at temperature 1, from its token for the begin on: `count` tokens together.

    A model without such a token begins with any one. The same model makes the same texts.
    """
    model = reference.model
    length = min(_OWN_LENGTH, model.sizes.context)
    rng, choose = np.random.default_rng(0), Sampler(1.0)
    texts: list[list[int]] = []
    while (left := count - sum(map(len, texts))) > 0:
        begin = model.vocabulary.begin
        tokens = [int(rng.integers(model.sizes.vocabulary)) if begin is None else begin]
        cache = reference.start()
        while len(tokens) < min(length, left) and tokens[-1] not in model.vocabulary.ends - {begin}:
            tokens.append(choose(reference.logits(tokens[-1:], cache, last=True)[0].astype(np.float64)))
        texts.append(tokens)
    return texts


def parts(tokens: Sequence[int], context: int) -> list[list[int]]:
    """The start of a text in parts of a context each."""
    tokens = list(tokens[:GIVEN_TOKENS])
    return [tokens[at : at + context] for at in range(0, len(tokens), context)]


def model_ranges(reference: Reference, digest: str, given: Sequence[int] | None) -> Ranges:
    """The ranges of a model, from the cache if they were found before.

    Parameters
    ----------
    reference : Reference
    digest : str
        Of the model's file.
    given : sequence of int, optional
        Tokens of a text; without it the model makes texts.

    Raises
    ------
    weft.hdl.cache.CacheError
        If the cache cannot be used.
    """
    context = reference.model.sizes.context
    asked = json.dumps([digest, context, None if given is None else list(given[:GIVEN_TOKENS])])
    key = hashlib.sha256(asked.encode())
    for source in (__file__, exact.__file__, observed.__file__):
        key.update(Path(source).read_bytes())

    def make(folder: Path) -> None:
        texts = own_texts(reference) if given is None else parts(given, context)
        found = dataclasses.asdict(ranges(reference.model, texts))
        (folder / _FILE).write_text(json.dumps(found))

    return Ranges(**json.loads((entry(f"ranges-{key.hexdigest()[:32]}", make) / _FILE).read_text()))
