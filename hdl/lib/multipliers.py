"""The multiplier blocks of an FPGA family, as far as hardware is generated for them.

They decide which cells multiply, and when, never a result: they belong to hardware generation, not to `Config`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from amaranth.hdl import Instance, Signal, Value

from weft.hdl.isa.config import Config, ConfigError

WideBlock = Callable[[Value, Value, Signal], Instance]
"""``block(a, b, product)`` multiplies two signed values of up to 18 bits; `product`, the low bits, follows three cycles
later."""
DualBlock = Callable[[Value, Value, Value, Value], Instance]
"""``block(a, b, hold_b, products)`` multiplies the signed byte `a` by the two signed bytes of `b`; `products`, twice
16 bits, follow two cycles later. Operands are registers inside; that of `b` keeps its content where `hold_b` is 1."""

NarrowBlock = Callable[[Value, Value, Signal], Instance]
"""``block(a, b, product)`` multiplies two signed values of up to 9 bits; `product`, the low bits, follows two cycles
after `a`, and one cycle after `b`: registers inside take `a` and the product."""


@dataclass(frozen=True)
class Multipliers:
    """Multiplier blocks that synthesis does not infer from a product, at most one of `wide` and `dual`.

    Parameters
    ----------
    family : str
        Name of the FPGA family, for messages.
    wide : WideBlock, optional
        Makes a block whose one product holds the products of two weights with an activation.
    dual : DualBlock, optional
        Makes a block that multiplies two weights by an activation of 8 bits. The array takes all blocks that there
        are: the pipelined core then requantises without multipliers, unless it has softmax.
    narrow : NarrowBlock, optional
        Makes a block with one product. The sequential core's array takes `narrow_blocks` of them, as many as the
        smallest FPGA of the family has; its other products, and those of the pipelined core, are inferred.
    narrow_blocks : int
    """

    family: str
    wide: WideBlock | None = None
    dual: DualBlock | None = None
    narrow: NarrowBlock | None = None
    narrow_blocks: int = 0

    def narrow_count(self, products: int) -> int:
        """How many of a sequential core's `products` are in blocks, `narrow` or inferred."""
        return min(products, self.narrow_blocks) if self.narrow else products

    def check(self, config: Config) -> None:
        """Raise `ConfigError` if no array of these blocks can have the activations of `config`."""
        if self.dual and config.wide_activations:
            raise ConfigError(
                f"configuration field 'probability_bits' must be 7 or 0 for {self.family}, whose multipliers take "
                f"signed bytes, not {config.probability_bits}"
            )


INFERRED = Multipliers("any family")
"""Synthesis infers all multipliers."""
