"""Kernels of a decoder, for a token's vector between two matrix products.

Every token is a row with its own exponents. Before a product, a power of two brings a row of 16 bits into int8, so that
its largest element has 7 bits: ``x = x8 * 2**(bits - 7)`` steps. The kernel stores ``16 - bits`` in all elements of a
vector, so that the kernel after the product only shifts to the right. It multiplies each sum by its column's mantissa
and shifts by the row's shift, with one rounding, half to even. A bias is a number for each column in the steps of the
result. For int8 results it has `BIAS_PLACES` more fractional bits, so that it is rounded once, together with the sum.

The residual stream has three digits, 24 bits, in one step. It needs them because a few tokens have elements that are
hundreds of times larger than all others. A row of it is two tensors: the upper two digits of each column, and the
lowest digit beside the shift for the product that is added to the row next (`begin`, `prepare`).

Values of 16 bits are two digits; see `weft.compiler.kernel.expressions.Rows.digits`. Operands are numbered as in
`weft.hdl.isa.kernel.SOURCES`; only operand 0 can be in the accumulator. In the docstrings a number in parentheses is an
operand, and a target is one of `Rows.put`. All functions return the kernel.
"""

from __future__ import annotations

import math

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.kernel.expressions import (
    DIGITS,
    FACTOR,
    RECIPROCAL_PLACES,
    WORD,
    Expression,
    Rows,
    constant,
)
from weft.extras.language.compiler.weights import BIAS_PLACES, BYTE_BITS, MAX_ROW_BITS, Scaled

RESIDUAL_BITS = 23
"""Bits of elements of the residual stream, without the sign."""
UNIT_PLACES = 15
"""Fractional bits of elements after division by a power of two above the largest one."""
NORMAL_PLACES = 8
"""Fractional bits of a row divided by the root of its sum of squares, for counting its bits."""
GAIN_PLACES = 15
"""Fractional bits of a norm's weights, relative to the largest."""
ANGLE_PLACES = 14
"""Fractional bits of sines and cosines."""
TABLE_PLACES = 8
"""Fractional bits between two entries of the tables for SiLU and GELU."""
GATE_PLACES = 12
"""Fractional bits of the input of SiLU and GELU; a gate of two digits may have fewer."""
ENTRY_PLACES = GATE_PLACES - TABLE_PLACES
"""Fractional bits of the tables' arguments, which are 1/16 apart, from -8 on."""
SHARE_PLACES = 14
"""Fractional bits of the tables' entries: the factors ``silu(x) / x`` and ``gelu(x) / x``."""
_ENTRIES = np.arange(-128, 128) / (1 << ENTRY_PLACES)
_SIGMOID = np.rint(2**SHARE_PLACES / (1 + np.exp(-_ENTRIES))).astype(np.int16)
_GELU = np.tanh(np.sqrt(2 / np.pi) * (_ENTRIES + 0.044715 * _ENTRIES**3))
_GELU_SHARE = np.rint(2 ** (SHARE_PLACES - 1) * (1 + _GELU)).astype(np.int16)


def _row_shift(rows: Rows, tensor: int) -> Expression:
    return rows.row_constant(tensor).assume(0, MAX_ROW_BITS)


def _scale_sums(rows: Rows, vector: int, scaled: Scaled, mantissa: int, row: Expression) -> Expression:
    """Scale sums to steps by mantissas and the shift of the row."""
    factor = row.power(rows.digits(mantissa).assume(0, DIGITS))
    return rows.accumulator(vector, scaled.max_sum).over(
        factor, RECIPROCAL_PLACES - scaled.shift, scaled.max_result
    )


def _add_bias(rows: Rows, steps: Expression, tensor: int, shift: int) -> Expression:
    """Add a bias of two digits times ``2**shift``."""
    return steps + (rows.read(tensor) << 8 + shift) + (rows.second_vector(tensor) << shift)


def _read_residual(rows: Rows, upper: int, lowest: int) -> Expression:
    return (rows.digits(upper) << 8) + rows.read(lowest)


def _put_residual(rows: Rows, value: Expression) -> None:
    # The upper digits are rounded, so that the lowest digit is a signed byte.
    rows.put_digits((value + 128).shift_right(8), 0)
    rows.put(value.low_byte(), 1)


def _largest_magnitude(rows: Rows, x: Expression) -> Expression:
    return rows.largest(x.maximum(0 - x).assume(0, WORD - 1))


def quantise(columns: int) -> Rows:
    """Quantise a row of two digits (0) to int8 (target 0), with its shift (target 1)."""
    rows = Rows(columns, 1)
    x = rows.digits(0)
    bits = _largest_magnitude(rows, x).bits()
    rows.put(x.over(bits.power(), BYTE_BITS, 128), 0)
    rows.put(MAX_ROW_BITS - bits, 1)
    return rows


def normalise(
    columns: int, epsilon: float, unit: float, *, gains: bool = False, centred: bool = False
) -> Rows:
    """Normalise a row of three digits (0 and 1) in steps of `unit` to int8 (target 0), with its shift (target 1).

    The row is divided by the root of its mean square plus `epsilon`; results are in steps of `normal_unit`. Row and
    epsilon are first divided by a power of two above the largest element, so that squares fit. With `gains`, elements
    are multiplied by two digits (2) with `GAIN_PLACES`. A `centred` norm first subtracts the row's mean: the sum of all
    upper two digits times ``256 / columns`` plus the sum of all lowest digits times ``1 / columns``. These are factors
    of 17 bits, and each product is rounded half to even. The error of the mean is at most one step plus one part in
    2**17 of it, or one step if `columns` is a power of two.
    """
    rows, dropped = Rows(columns, 2 + gains), _dropped_bits(columns)
    x = _read_residual(rows, 0, 1)
    if centred:
        x = x - _mean_of_row(rows, 0, 1)
    largest_value = _largest_magnitude(rows, x)
    epsilon_steps = epsilon * columns / unit**2 * 2.0 ** (2 * UNIT_PLACES - dropped)
    # With fewer bits, epsilon would overflow the sum. It dominates the sum then, so squares need no precision.
    min_bits = max(0, math.ceil((math.log2(epsilon_steps) - 30) / 2)) if epsilon_steps > 0 else 0
    _check_epsilon(min_bits, epsilon, unit)
    bits = largest_value.bits().maximum(min_bits) if min_bits else largest_value.bits()
    scaled = x.over(bits.power(), UNIT_PLACES, 1 << UNIT_PLACES)
    # Each square loses `dropped` bits, so that the sum of all columns has at most 31.
    square = rows.sum(scaled.times(scaled, dropped), high=1 << 30)
    epsilon_part = _divide_by_square(epsilon_steps, bits)
    # A row of zeros has no root.
    root = (square + epsilon_part).maximum(1).rsqrt()
    if gains:
        scaled = scaled.times(rows.digits(2).assume(-DIGITS, DIGITS), GAIN_PLACES)
        largest = _largest_magnitude(rows, scaled)
    else:
        largest = largest_value.over(bits.power(), UNIT_PLACES, 1 << UNIT_PLACES)
    normal_bits = largest.over(root, NORMAL_PLACES, 2 << NORMAL_PLACES + (dropped + 1) // 2).bits()
    rows.put(scaled.over(root.divide_by_power(normal_bits), NORMAL_PLACES + BYTE_BITS, 1 << 8), 0)
    rows.put(MAX_ROW_BITS - normal_bits, 1)
    return rows


def _mean_of_row(rows: Rows, upper: int, lowest: int) -> Expression:
    """Return the mean of a row of three digits, summed in two parts because one sum would exceed 32 bits."""
    upper_sum, lowest_sum = rows.sum(rows.digits(upper)), rows.sum(rows.read(lowest))
    return upper_sum.scale(256 / rows.columns) + lowest_sum.scale(1 / rows.columns)


def _check_epsilon(min_bits: int, epsilon: float, unit: float) -> None:
    if min_bits > RESIDUAL_BITS - 1:
        raise CompileError(
            f"a normalisation adds {epsilon:g} to mean squares, in which values of 24 bits in steps of {unit:g} vanish"
        )


def _dropped_bits(columns: int) -> int:
    """Return the number of bits that squares lose, so that their sum has at most 31."""
    return max(columns - 1, 1).bit_length()


def normal_unit(columns: int) -> float:
    """Return the step of `normalise` before the conversion to int8."""
    return math.sqrt(columns) * 2.0 ** (-NORMAL_PLACES - _dropped_bits(columns) / 2)


def _divide_by_square(value: float, bits: Expression) -> Expression | int:
    """Return ``value / 4**bits``, which must be at most 2**30."""
    if value <= 0:
        return 0
    exponent = math.frexp(value)[1]
    mantissa = min(round(math.ldexp(value, 17 - exponent)), FACTOR - 1)  # of 17 bits
    first_shift = min(max(exponent - 17, 0), 22)
    places = first_shift + 17 - exponent
    # The part that exceeds the first factor is subtracted from the exponent.
    exponent_offset = max(0, -places + 1) // 2
    if places + 2 * exponent_offset > 31:
        return 0
    factor = (bits - exponent_offset << 1).power(mantissa)
    quotient = constant(1 << first_shift).over(
        factor, RECIPROCAL_PLACES - places - 2 * exponent_offset, WORD - 1
    )
    return quotient.assume(0, (1 << 30) - 1)


def rotate(columns: int, max_sum: int, mantissa: int, shift: int) -> Rows:
    """Rotate the sums of a head's query or key (0), at most `max_sum`, to int8 (target 0).

    Adjacent elements are rotated by the cosines (1) and sines (2) of their angles, two digits with `ANGLE_PLACES`. The
    sums are multiplied by ``mantissa / 2**(shift + row)``, for the shift of the row (3). Sines of even elements are
    negated: element j becomes ``x[j] * cosine[j] + x[j ^ 1] * sine[j]``.
    """
    rows = Rows(columns, 4)
    x, limit = rows.accumulator(0, max_sum), 1 << ANGLE_PLACES
    cosine, sine = (rows.digits(tensor).assume(-limit, limit) for tensor in (1, 2))
    rotated = x.times(cosine, ANGLE_PLACES) + x.neighbour().times(sine, ANGLE_PLACES)
    factor = _row_shift(rows, 3).power(mantissa)
    rows.put(rotated.over(factor, RECIPROCAL_PLACES - shift, WORD - 1), 0)
    return rows


def rotate_digits(columns: int) -> Rows:
    """Rotate a head's query or key, two digits (0) with `BIAS_PLACES`, to int8 (target 0); see `rotate`."""
    rows = Rows(columns, 3)
    limit = 1 << ANGLE_PLACES
    cosine, sine = (rows.digits(tensor).assume(-limit, limit) for tensor in (1, 2))
    x = rows.digits(0)
    rotated = x.times(cosine, ANGLE_PLACES) + x.neighbour().times(sine, ANGLE_PLACES)
    rows.put(rotated.times(1, BIAS_PLACES), 0)
    return rows


def requantise(columns: int, scaled: Scaled, bias: int | None = None) -> Rows:
    """Requantise sums (0) to int8 (target 0), with mantissas (1) and the shift of the row (2).

    With a shift `bias`, add biases of two digits (3); sums and biases are then in steps with `BIAS_PLACES`.
    """
    rows = Rows(columns, 3 if bias is None else 4)
    steps = _scale_sums(rows, 0, scaled, 1, _row_shift(rows, 2))
    rows.put(steps if bias is None else _add_bias(rows, steps, 3, bias).times(1, BIAS_PLACES), 0)
    return rows


def widen(columns: int, scaled: Scaled, bias: int | None = None) -> Rows:
    """Scale sums (0) to two digits (target 0), with mantissas (1) and the shift of the row (2).

    With a shift `bias`, add biases of two digits (3).
    """
    rows = Rows(columns, 3 if bias is None else 4)
    steps = _scale_sums(rows, 0, scaled, 1, _row_shift(rows, 2))
    rows.put_digits(steps if bias is None else _add_bias(rows, steps, 3, bias), 0)
    return rows


def begin(columns: int, factor: float, positions: float | None = None) -> Rows:
    """Turn a row of two digits (0) into a row of the residual stream (targets 0 to 2).

    The row is multiplied by `factor`. With a factor for `positions`, a second row (1) times that factor is added.
    """
    rows = Rows(columns, 1 if positions is None else 2)
    value = _multiply(rows.digits(0), factor)
    _put_residual(rows, value if positions is None else value + _multiply(rows.digits(1), positions))
    return rows


def _multiply(value: Expression, factor: float) -> Expression:
    fraction, exponent = math.frexp(factor)
    return value.times(round(math.ldexp(fraction, 17)) - (fraction >= 1), 17 - exponent)


def prepare(columns: int) -> Rows:
    """Copy the shift of a row (0) to each column (target 0)."""
    rows = Rows(columns, 1)
    rows.put(rows.read(0), 0)
    return rows


def add(columns: int, scaled: Scaled) -> Rows:
    """Add sums (0) with mantissas (1) to a row of the residual stream (2 and 3, also targets 0 to 3)."""
    rows = Rows(columns, 4)
    # The shift is kept in a register, because the row must not be read after a part of it is overwritten.
    shift = (rows.second_vector(3) + 0).assume(0, MAX_ROW_BITS)
    _put_residual(rows, _read_residual(rows, 2, 3) + _scale_sums(rows, 0, scaled, 1, shift))
    rows.put(shift, 3)
    return rows


def offset(columns: int) -> Rows:
    """Add biases of three digits (2 and 3) to a row of the residual stream (0 and 1, also targets 0 to 2)."""
    rows = Rows(columns, 4)
    _put_residual(rows, _add_bias(rows, _read_residual(rows, 0, 1), 2, 8) + rows.read(3))
    return rows


def gate_and_multiply(columns: int, gate: Scaled, up: Scaled, places: int) -> Rows:
    """Compute ``silu(gate) * up`` from sums to two digits (target 0).

    Each element has two sums (0), the gate's first, with their mantissas (1 and 2) and the shift of the row (3). Sums
    of the gate become steps with `GATE_PLACES`, the others steps of at most 17 bits. The product loses `places` bits
    more than `GATE_PLACES`.
    """
    rows = Rows(columns, 4)
    shift_of_row = _row_shift(rows, 3)
    x = _scale_sums(rows, 0, gate, 1, shift_of_row)
    share = x.interpolate(_SIGMOID, TABLE_PLACES)
    limit = FACTOR - 1
    # The second factor of a product has at most 17 bits.
    factor = _scale_sums(rows, 1, up, 2, shift_of_row).minimum(limit).maximum(-limit)
    silu = x.times(share, SHARE_PLACES)
    rows.put_digits(silu.times(factor, GATE_PLACES + places).assume(-(1 << 30), 1 << 30), 0)
    return rows


def gated_digits(columns: int, gate_places: int, places: int) -> Rows:
    """Compute ``silu(gate) * up`` like `gate_and_multiply`, from two digits of the gate (0) and the other product (1).

    The gate has `gate_places` fractional bits; the result has two digits (target 0).
    """
    rows = Rows(columns, 2)
    x = rows.digits(0)
    share = x.interpolate(_SIGMOID, gate_places - ENTRY_PLACES)
    silu = x.times(share, SHARE_PLACES - (GATE_PLACES - gate_places))
    rows.put_digits(silu.times(rows.digits(1), GATE_PLACES + places).assume(-(1 << 30), 1 << 30), 0)
    return rows


def gelu(columns: int, up: Scaled, places: int, bias: int | None = None) -> Rows:
    """Compute ``gelu(up)``, by the hyperbolic tangent, from sums (0) to two digits (target 0).

    The sums have mantissas (1) and the shift of the row (2). With a shift `bias`, biases of two digits (3) are added.
    Sums and biases are steps with `GATE_PLACES`, of which the result loses `places`.
    """
    rows = Rows(columns, 3 if bias is None else 4)
    x = _scale_sums(rows, 0, up, 1, _row_shift(rows, 2))
    x = x if bias is None else _add_bias(rows, x, 3, bias)
    share = x.interpolate(_GELU_SHARE, TABLE_PLACES)
    rows.put_digits(x.times(share, SHARE_PLACES + places).assume(-(1 << 30), 1 << 30), 0)
    return rows
