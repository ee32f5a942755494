"""Structure of a decoder, as far as the device program depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.model import Block, LanguageModel, Linear, Norm

PRODUCTS = {
    "qkv": {"query": "query", "key": "key", "value": "value"},
    "output": {"output": "attention_output"},
    "inner": {"gate": "gate", "up": "up"},
    "down": {"down": "down"},
}
"""Products of a block in order, and the matrices of each: names, and fields of `Block`."""
_NORMS = {"qkv": "attention_norm", "inner": "feed_forward_norm"}
"""Norms before products, as fields of `Block`."""


@dataclass(frozen=True)
class Form:
    """Structure of a decoder; the defaults are those of the architecture ``llama``.

    Attributes
    ----------
    centred : bool
        Norms subtract the mean of a row first: LayerNorm instead of RMSNorm.
    rotary : bool
        Queries and keys are rotated by their position. Otherwise position embeddings are added to token embeddings.
    gated : bool
        Feed-forward networks multiply two products, one of them after SiLU. Otherwise they have one product, followed
        by GELU.
    biased : frozenset of str
        Products of `PRODUCTS`, or "head", with biases in any block: their own, or the bias of the norm before them.
    gains : bool
        Norms multiply by their weights. Otherwise these are folded into the matrices that follow.
    """

    centred: bool = False
    rotary: bool = True
    gated: bool = True
    biased: frozenset[str] = frozenset()
    gains: bool = False

    @property
    def rotates_sums(self) -> bool:
        """True if one kernel rotates and requantises sums of queries and keys, which leaves no operand for biases."""
        return self.rotary and "qkv" not in self.biased

    @property
    def gates_sums(self) -> bool:
        """True if one kernel processes sums of a gate and of its factor, which leaves no operand for biases."""
        return self.gated and "inner" not in self.biased


def form_of(model: LanguageModel, *, gains: bool = False) -> Form:
    """Return the form of a model's decoder.

    Raises
    ------
    CompileError
        If the device has no program for the model.
    """
    norms = [norm for block in model.blocks for norm in (block.attention_norm, block.feed_forward_norm)]
    centred = _uniform("norms with a bias", [norm.bias is not None for norm in (*norms, model.output_norm)])
    gated = _uniform("gates in feed-forward networks", [block.gate is not None for block in model.blocks])
    biased = {name for name in PRODUCTS if any(_has_bias(block, name) for block in model.blocks)}
    if model.output.bias is not None or model.output_norm.bias is not None:
        biased.add("head")
    if (model.rotary is None) == (model.positions is None):
        raise CompileError("a decoder on the device has either rotary or learned positions")
    return Form(centred, model.rotary is not None, gated, frozenset(biased), gains)


def matrices(block: Block, product: str) -> Iterator[tuple[str, Linear, Norm | None]]:
    """Yield the matrices of a block's product, each with its name and the norm before the product."""
    norm = getattr(block, _NORMS[product]) if product in _NORMS else None
    for name, field in PRODUCTS[product].items():
        linear = getattr(block, field)
        if linear is not None:
            yield name, linear, norm


def _has_bias(block: Block, product: str) -> bool:
    return any(
        linear.bias is not None or (norm is not None and norm.bias is not None)
        for _, linear, norm in matrices(block, product)
    )


def _uniform(what: str, flags: list[bool]) -> bool:
    """Return the common value of all flags; raise `CompileError` if they differ."""
    if len(set(flags)) > 1:
        raise CompileError(
            f"the model has {what} in some places and not in others: a decoder on the device has them everywhere, or "
            "nowhere"
        )
    return flags[0]
