"""What a model's decoder has, of all that models differ in: its program is made for that, whatever the architecture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.compiler.ir.graph import CompileError
from weft.extras.language.compiler.model import Block, LanguageModel, Linear, Norm

PRODUCTS = {
    "qkv": {"query": "query", "key": "key", "value": "value"},
    "output": {"output": "attention_output"},
    "inner": {"gate": "gate", "up": "up"},
    "down": {"down": "down"},
}
"""The products of a block in their order, and the matrices that each of them multiplies with: names and fields of
`Block`."""
_NORMS = {"qkv": "attention_norm", "inner": "feed_forward_norm"}
"""The norms in front of products, as fields of `Block`."""


@dataclass(frozen=True)
class Form:
    """See the module; by default as the models of architecture llama have it.

    Attributes
    ----------
    centred : bool
        Norms take the mean of a row off first: LayerNorm, not RMSNorm.
    rotary : bool
        Queries and keys are turned by their position; else positions have vectors that are added to those of tokens.
    gated : bool
        A feed-forward network multiplies two products, one of which goes through SiLU; else it has one, which goes
        through GELU.
    biased : frozenset of str
        The products of `PRODUCTS`, and "head", that have biases: their own in any block, or that of the norm in front
        of them, which becomes a part of theirs.
    gains : bool
        Norms multiply by numbers of their own, which are else a part of the weights behind them.
    """

    centred: bool = False
    rotary: bool = True
    gated: bool = True
    biased: frozenset[str] = frozenset()
    gains: bool = False

    @property
    def turned_sums(self) -> bool:
        """Whether one kernel turns sums of queries and keys and makes them int8: it has no room for biases."""
        return self.rotary and "qkv" not in self.biased

    @property
    def gated_sums(self) -> bool:
        """Whether one kernel takes the sums of a gate and of what it is multiplied with: it has no room for biases
        either."""
        return self.gated and "inner" not in self.biased


def form_of(model: LanguageModel, *, gains: bool = False) -> Form:
    """The form of a model's decoder.

    Raises
    ------
    CompileError
        If there is no program for it.
    """
    norms = [norm for block in model.blocks for norm in (block.attention_norm, block.feed_forward_norm)]
    centred = _alike("norms with a bias", [norm.bias is not None for norm in (*norms, model.output_norm)])
    gated = _alike("gates in feed-forward networks", [block.gate is not None for block in model.blocks])
    biased = {name for name in PRODUCTS if any(_has_bias(block, name) for block in model.blocks)}
    if model.output.bias is not None or model.output_norm.bias is not None:
        biased.add("head")
    if (model.rotary is None) == (model.positions is None):
        raise CompileError("a decoder on the device has either rotary or learned positions")
    return Form(centred, model.rotary is not None, gated, frozenset(biased), gains)


def matrices(block: Block, product: str) -> Iterator[tuple[str, Linear, Norm | None]]:
    """The matrices of a product of a block, each with its name, and the norm in front of them."""
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


def _alike(what: str, found: list[bool]) -> bool:
    """Whether all of a model have something, or none of it."""
    if len(set(found)) > 1:
        raise CompileError(
            f"the model has {what} in some places and not in others: a decoder on the device has them everywhere, or "
            "nowhere"
        )
    return found[0]
