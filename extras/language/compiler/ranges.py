"""How large values of a model become on a text: what the steps of those that have fixed ones are chosen by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.extras.language.compiler.model import Block, LanguageModel, Linear, Norm
from weft.extras.language.compiler.reference import Cache, Reference


@dataclass
class Ranges:
    """The largest magnitudes that were seen, of all blocks together or of each.

    Attributes
    ----------
    residual : float
        Of what blocks add to.
    query, key, value : list of float
        Of each block; queries and keys both before and after they are turned.
    scores : list of float
        Of the largest score of each row, in each block.
    mixed : list of float
        Of attention's results, in each block.
    gate, up, inner : float
        Of the products of feed-forward networks, and of what goes into the last of them. `gate` is 0 for a model
        without gates.
    logits : float
    """

    residual: float
    query: list[float]
    key: list[float]
    value: list[float]
    scores: list[float]
    mixed: list[float]
    gate: float
    up: float
    inner: float
    logits: float


class _Observer(Reference):
    """Remembers the largest magnitudes of what it computes."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__(model)
        self.found: dict[int, float] = {}
        self.given: dict[int, float] = {}  # what goes into products
        self.scores: dict[int, float] = {}
        self.residual = self.inner = 0.0

    def _see(self, linear: Linear, values: np.ndarray) -> np.ndarray:
        self.found[id(linear)] = max(self.found.get(id(linear), 0.0), float(np.abs(values).max()))
        return values

    def _linear(self, linear: Linear, x: np.ndarray) -> np.ndarray:
        self.given[id(linear)] = max(self.given.get(id(linear), 0.0), float(np.abs(x).max()))
        return self._see(linear, super()._linear(linear, x))

    def _heads(
        self, linear: Linear, x: np.ndarray, heads: int, angles: np.ndarray | None = None
    ) -> np.ndarray:
        return self._see(linear, super()._heads(linear, x, heads, angles))

    def _shares(self, block: Block, scores: np.ndarray) -> np.ndarray:
        most = float(np.abs(scores.max(axis=-1)).max())
        self.scores[id(block)] = max(self.scores.get(id(block), 0.0), most)
        return super()._shares(block, scores)

    def _norm(self, norm: Norm, x: np.ndarray) -> np.ndarray:
        self.residual = max(self.residual, float(np.abs(x).max()))
        return super()._norm(norm, x)

    def _feed_forward(self, block: Block, x: np.ndarray) -> np.ndarray:
        inner = self._inner(block, x)
        self.inner = max(self.inner, float(np.abs(inner).max()))
        return self._linear(block.down, inner)


def ranges(model: LanguageModel, texts: Sequence[Sequence[int]]) -> Ranges:
    """The ranges on some texts, each of at most as many tokens as the model's context."""
    observer = _Observer(model)
    largest = 0.0
    for text in texts:
        cache: Cache = observer.start()
        largest = max(largest, float(np.abs(observer.logits(text, cache)).max()))
    seen = observer.found
    blocks = model.blocks
    return Ranges(
        residual=observer.residual,
        query=[seen[id(block.query)] for block in blocks],
        key=[seen[id(block.key)] for block in blocks],
        value=[seen[id(block.value)] for block in blocks],
        scores=[observer.scores[id(block)] for block in blocks],
        mixed=[observer.given[id(block.attention_output)] for block in blocks],
        gate=max((seen[id(block.gate)] for block in blocks if block.gate is not None), default=0.0),
        up=max(seen[id(block.up)] for block in blocks),
        inner=observer.inner,
        logits=largest,
    )
