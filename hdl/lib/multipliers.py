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
    """

    family: str
    wide: WideBlock | None = None
    dual: DualBlock | None = None

    def check(self, config: Config) -> None:
        """Raise `ConfigError` if no array of these blocks can have the activations of `config`."""
        if self.dual and config.wide_activations:
            raise ConfigError(
                f"configuration field 'probability_bits' must be 7 or 0 for {self.family}, whose multipliers take "
                f"signed bytes, not {config.probability_bits}"
            )


INFERRED = Multipliers("any family")
"""Synthesis infers all multipliers."""
