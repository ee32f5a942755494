"""Optional parts of the hardware that instructions and fields require."""

from __future__ import annotations

import enum

from weft.hdl.isa.config import Config

_NO_MULTIPLIERS = "the configuration has no products of elements ('multiply' is 0)"
_NO_KERNELS = "the configuration has no kernel engine ('kernel' is 0)"
_NO_TAPS = "the configuration's array adds up no products of neighbouring rows ('depthwise_taps' is 0)"
_NO_INT4 = "the configuration's LOAD widens no values of 4 bits ('int4' is 0)"
_NO_BLOCKS = "the configuration's LOAD multiplies no blocks of values of 4 bits ('int4' is not 2)"
_NO_LOOPS = "the configuration's programs are straight lists of instructions ('loops' is 0)"
_NO_TABLES = "the configuration has no look-up tables ('lookup_tables' is 0)"


class Feature(enum.Enum):
    """Something optional, by what documentation calls it."""

    SOFTMAX = "softmax only"
    WIDE_ACTIVATIONS = "softmax with 8-bit probabilities only"
    LOOKUP = "look-up tables only"
    MULTIPLY = "products of elements only"
    KERNEL = "kernel engine only"
    DEPTHWISE = "sums along rows only"
    INT4 = "values of 4 bits only"
    BLOCKS = "blocks of values of 4 bits only"
    LOOPS = "loops only"

    def missing(self, config: Config) -> str | None:
        """Why a configuration does not have it, as a clause; None if it has."""
        if self is Feature.LOOKUP:
            return None if config.lookup_tables else _NO_TABLES
        if self is Feature.KERNEL:
            return None if config.kernel else _NO_KERNELS
        if self is Feature.DEPTHWISE:
            return None if config.depthwise_taps else _NO_TAPS
        if self is Feature.INT4:
            return None if config.int4 else _NO_INT4
        if self is Feature.BLOCKS:
            return None if config.blocks else _NO_BLOCKS
        if self is Feature.LOOPS:
            return None if config.loops else _NO_LOOPS
        if self is Feature.MULTIPLY:
            return None if config.multiply else _NO_MULTIPLIERS
        if not config.softmax:
            return "the configuration has no softmax ('probability_bits' is 0)"
        if self is Feature.WIDE_ACTIVATIONS and not config.wide_activations:
            return f"'probability_bits' is {config.probability_bits} and not 8"
        return None
