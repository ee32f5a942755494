"""Ranges of a model's values on texts, from which fixed quantisation steps are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.extras.language.compiler.model import Block, LanguageModel, Linear, Norm
from weft.extras.language.compiler.reference import Cache, Reference


@dataclass
class Ranges:
    """Largest magnitudes on the texts, of all blocks together or of each block.

    Attributes
    ----------
    residual : float
        Of the residual stream.
    query, key, value : list of float
        For each block; queries and keys both before and after rotation.
    scores : list of float
        Of the largest score of each row, for each block.
    mixed : list of float
        Of attention's results, for each block.
    gate, up, inner : float
        Of the products of feed-forward networks, and of the input of the last product. `gate` is 0 for a model without
        gates.
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
    """Reference that records the largest magnitudes."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__(model)
        self.outputs: dict[int, float] = {}
        self.inputs: dict[int, float] = {}  # by product
        self.scores: dict[int, float] = {}
        self.residual = self.inner = 0.0

    def _record_output(self, linear: Linear, values: np.ndarray) -> np.ndarray:
        self.outputs[id(linear)] = max(self.outputs.get(id(linear), 0.0), float(np.abs(values).max()))
        return values

    def _linear(self, linear: Linear, x: np.ndarray) -> np.ndarray:
        self.inputs[id(linear)] = max(self.inputs.get(id(linear), 0.0), float(np.abs(x).max()))
        return self._record_output(linear, super()._linear(linear, x))

    def _heads(
        self, linear: Linear, x: np.ndarray, heads: int, angles: np.ndarray | None = None
    ) -> np.ndarray:
        return self._record_output(linear, super()._heads(linear, x, heads, angles))

    def _softmax(self, block: Block, scores: np.ndarray) -> np.ndarray:
        largest = float(np.abs(scores.max(axis=-1)).max())
        self.scores[id(block)] = max(self.scores.get(id(block), 0.0), largest)
        return super()._softmax(block, scores)

    def _norm(self, norm: Norm, x: np.ndarray) -> np.ndarray:
        self.residual = max(self.residual, float(np.abs(x).max()))
        return super()._norm(norm, x)

    def _feed_forward(self, block: Block, x: np.ndarray) -> np.ndarray:
        inner = self._inner(block, x)
        self.inner = max(self.inner, float(np.abs(inner).max()))
        return self._linear(block.down, inner)


def measure_ranges(model: LanguageModel, texts: Sequence[Sequence[int]]) -> Ranges:
    """Return the ranges on texts, each of at most as many tokens as the model's context."""
    observer = _Observer(model)
    largest = 0.0
    for text in texts:
        cache: Cache = observer.start()
        largest = max(largest, float(np.abs(observer.logits(text, cache)).max()))
    outputs = observer.outputs
    blocks = model.blocks
    return Ranges(
        residual=observer.residual,
        query=[outputs[id(block.query)] for block in blocks],
        key=[outputs[id(block.key)] for block in blocks],
        value=[outputs[id(block.value)] for block in blocks],
        scores=[observer.scores[id(block)] for block in blocks],
        mixed=[observer.inputs[id(block.attention_output)] for block in blocks],
        gate=max((outputs[id(block.gate)] for block in blocks if block.gate is not None), default=0.0),
        up=max(outputs[id(block.up)] for block in blocks),
        inner=observer.inner,
        logits=largest,
    )
