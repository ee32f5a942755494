"""The kernels of a decoder: what a token's vector goes through between two matrix products.

Every token is a row, and has exponents of its own. In front of a product a row of 16 bits becomes int8 by a power of
two, so that its largest element has 7 bits: ``x = x8 * 2**(bits - 7)`` steps. What a kernel stores of that is ``16 -
bits``, in all elements of a vector, so that the kernel behind the product only shifts to the right: sums times a
mantissa for each column, and one shift for each row, rounded half to even once. A bias is a number for each column, in
the steps that come of that: where these are int8, with `BIAS_PLACES` more, so that it is rounded once, with the sum.

The residual stream has three digits, 24 bits: a few tokens have elements that are hundreds of times larger than all
others, and one step is for all of them. Its rows are two tensors: the upper two digits of each column, and the lowest
digit beside the shift of the product that is added to the row next (`begin`, `prepare`).

Values of 16 bits are two digits, as `weft.compiler.kernel.expressions.Rows.digits` has them. Operands are numbered as
in `weft.hdl.isa.kernel.SOURCES`: 0 is the one that may be in the accumulator. All functions return the kernel; what
they store is in their docstrings, with the target of `Rows.put`.
"""

from __future__ import annotations

import math

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.kernel.expressions import (
    DIGITS,
    FACTOR,
    RECIPROCAL_PLACES,
    WORD,
    Expression,
    Rows,
    constant,
)
from weft.extras.language.compiler.scaled import BIAS_PLACES, BYTE_BITS, MOST_BITS, Scaled

RESIDUAL_BITS = 23
"""Of elements of the residual stream, without the sign."""
UNIT_PLACES = 15
"""Places of elements that are divided by a power of two above the largest of them."""
NORMAL_PLACES = 8
"""Places of a row divided by the root of its sum of squares, when its bits are counted."""
GAIN_PLACES = 15
"""Places of what a norm multiplies by, divided by the largest of it."""
ANGLE_PLACES = 14
"""Places of sines and cosines."""
TABLE_PLACES = 8
"""Places between two entries of the tables for SiLU and GELU."""
GATE_PLACES = 12
"""Places of what goes into them; of two digits of a gate there may be fewer."""
ENTRY_PLACES = GATE_PLACES - TABLE_PLACES
"""Places of what the entries are for: they are 1/16 apart, from -8 on."""
SHARE_PLACES = 14
"""Places of what they have: by how much SiLU and GELU multiply."""
_ENTRIES = np.arange(-128, 128) / (1 << ENTRY_PLACES)
_SIGMOID = np.rint(2**SHARE_PLACES / (1 + np.exp(-_ENTRIES))).astype(np.int16)
_GELU = np.tanh(np.sqrt(2 / np.pi) * (_ENTRIES + 0.044715 * _ENTRIES**3))
_GELU_SHARE = np.rint(2 ** (SHARE_PLACES - 1) * (1 + _GELU)).astype(np.int16)


def _row(rows: Rows, tensor: int) -> Expression:
    """The shift of a row."""
    return rows.shared(tensor).known(0, MOST_BITS)


def _steps(rows: Rows, vector: int, scaled: Scaled, mantissa: int, row: Expression) -> Expression:
    """Sums as steps, for the shift `row`."""
    factor = row.power(rows.digits(mantissa).known(0, DIGITS))
    return rows.accumulated(vector, scaled.most).over(factor, RECIPROCAL_PLACES - scaled.shift, scaled.reach)


def _with_bias(rows: Rows, steps: Expression, tensor: int, shift: int) -> Expression:
    """Steps with a bias of two digits, times ``2**shift``."""
    return steps + (rows.read(tensor) << 8 + shift) + (rows.behind(tensor) << shift)


def _residual(rows: Rows, upper: int, lowest: int) -> Expression:
    """An element of three digits."""
    return (rows.digits(upper) << 8) + rows.read(lowest)


def _put_residual(rows: Rows, value: Expression) -> None:
    """Store three digits."""
    rows.put_digits((value + 128).floored(8), 0)
    rows.put(value.low_byte(), 1)


def _size(rows: Rows, x: Expression) -> Expression:
    """The largest magnitude of a row."""
    return rows.largest(x.maximum(0 - x).known(0, WORD - 1))


def quantise(columns: int) -> Rows:
    """A row of two digits (0) as int8 (target 0), and its shift (target 1)."""
    rows = Rows(columns, 1)
    x = rows.digits(0)
    bits = _size(rows, x).bits()
    rows.put(x.over(bits.power(), BYTE_BITS, 128), 0)
    rows.put(MOST_BITS - bits, 1)
    return rows


def normalise(
    columns: int, epsilon: float, unit: float, *, gains: bool = False, centred: bool = False
) -> Rows:
    """A row of three digits (0 and 1), in steps of `unit`, divided by the root of its mean square plus `epsilon`, as
    int8 (target 0), and its shift (target 1). In steps of `normal_unit`.

    The row is first divided by a power of two above its largest element, so that squares fit; epsilon likewise. With
    `gains` elements are multiplied by those, two digits (2) with `GAIN_PLACES`. If the norm is `centred`, the row's
    mean is taken off first: the sum of all upper two digits times ``256 / columns``, and that of all lowest digits
    times ``1 / columns``, by factors of 17 bits, each product rounded half to even. The mean is so off by one step and
    one part in 2**17 of it at most; where `columns` is a power of two, by one step.
    """
    rows, lost = Rows(columns, 2 + gains), _lost(columns)
    x = _residual(rows, 0, 1)
    if centred:
        x = x - _mean(rows, 0, 1)
    size = _size(rows, x)
    wanted = epsilon * columns / unit**2 * 2.0 ** (2 * UNIT_PLACES - lost)
    # With fewer bits epsilon's part of the sum would not fit: then it is most of the sum, and squares need no places.
    least = max(0, math.ceil((math.log2(wanted) - 30) / 2)) if wanted > 0 else 0
    _check_epsilon(least, epsilon, unit)
    bits = size.bits().maximum(least) if least else size.bits()
    scaled = x.over(bits.power(), UNIT_PLACES, 1 << UNIT_PLACES)
    square = rows.sum(scaled.times(scaled, lost), high=1 << 30)
    added = _divided_twice(wanted, bits)
    root = (square + added).maximum(1).rsqrt()
    if gains:
        scaled = scaled.times(rows.digits(2).known(-DIGITS, DIGITS), GAIN_PLACES)
        largest = _size(rows, scaled)
    else:
        largest = size.over(bits.power(), UNIT_PLACES, 1 << UNIT_PLACES)
    normal_bits = largest.over(root, NORMAL_PLACES, 2 << NORMAL_PLACES + (lost + 1) // 2).bits()
    rows.put(scaled.over(root.further(normal_bits), NORMAL_PLACES + BYTE_BITS, 1 << 8), 0)
    rows.put(MOST_BITS - normal_bits, 1)
    return rows


def _mean(rows: Rows, upper: int, lowest: int) -> Expression:
    """The mean of a row of three digits, whose sum alone would have more than 32 bits."""
    whole, rest = rows.sum(rows.digits(upper)), rows.sum(rows.read(lowest))
    return whole.scaled(256 / rows.columns) + rest.scaled(1 / rows.columns)


def _check_epsilon(least: int, epsilon: float, unit: float) -> None:
    if least > RESIDUAL_BITS - 1:
        raise CompileError(
            f"a normalisation adds {epsilon:g} to mean squares, in which values of 24 bits in steps of {unit:g} vanish"
        )


def _lost(columns: int) -> int:
    """Bits that squares lose, so that their sum has 31 at most."""
    return max(columns - 1, 1).bit_length()


def normal_unit(columns: int) -> float:
    """The step of what `normalise` has before it becomes int8."""
    return math.sqrt(columns) * 2.0 ** (-NORMAL_PLACES - _lost(columns) / 2)


def _divided_twice(value: float, bits: Expression) -> Expression | int:
    """``value / 4**bits``, which is at most 2**30."""
    if value <= 0:
        return 0
    exponent = math.frexp(value)[1]
    mantissa = min(round(math.ldexp(value, 17 - exponent)), FACTOR - 1)  # of 17 bits
    first = min(max(exponent - 17, 0), 22)
    places = first + 17 - exponent
    # What the first factor has no room for is taken off the exponent.
    taken = max(0, -places + 1) // 2
    if places + 2 * taken > 31:
        return 0
    factor = (bits - taken << 1).power(mantissa)
    made = constant(1 << first).over(factor, RECIPROCAL_PLACES - places - 2 * taken, WORD - 1)
    return made.known(0, (1 << 30) - 1)


def rotate(columns: int, most: int, mantissa: int, shift: int) -> Rows:
    """The sums of a head's query or key (0), at most `most`, with neighbours turned by the cosines (1) and sines (2) of
    their angles, two digits with `ANGLE_PLACES`, as int8 (target 0): turned sums times ``mantissa / 2**(shift + row)``,
    for the shift of the row (3).

    Sines of elements 0, 2 and so on are negative: element j becomes ``x[j] * cosine[j] + x[j ^ 1] * sine[j]``.
    """
    rows = Rows(columns, 4)
    x, limit = rows.accumulated(0, most), 1 << ANGLE_PLACES
    cosine, sine = (rows.digits(tensor).known(-limit, limit) for tensor in (1, 2))
    turned = x.times(cosine, ANGLE_PLACES) + x.neighbour().times(sine, ANGLE_PLACES)
    factor = _row(rows, 3).power(mantissa)
    rows.put(turned.over(factor, RECIPROCAL_PLACES - shift, WORD - 1), 0)
    return rows


def turn(columns: int) -> Rows:
    """A head's query or key, two digits (0) with `BIAS_PLACES`, turned as `rotate` turns sums, as int8 (target 0)."""
    rows = Rows(columns, 3)
    limit = 1 << ANGLE_PLACES
    cosine, sine = (rows.digits(tensor).known(-limit, limit) for tensor in (1, 2))
    x = rows.digits(0)
    turned = x.times(cosine, ANGLE_PLACES) + x.neighbour().times(sine, ANGLE_PLACES)
    rows.put(turned.times(1, BIAS_PLACES), 0)
    return rows


def requantise(columns: int, scaled: Scaled, bias: int | None = None) -> Rows:
    """Sums (0) with mantissas (1) and the shift of the row (2) as int8 (target 0).

    With a shift `bias` there are biases, two digits (3): they and the sums are in steps with `BIAS_PLACES`.
    """
    rows = Rows(columns, 3 if bias is None else 4)
    steps = _steps(rows, 0, scaled, 1, _row(rows, 2))
    rows.put(steps if bias is None else _with_bias(rows, steps, 3, bias).times(1, BIAS_PLACES), 0)
    return rows


def widen(columns: int, scaled: Scaled, bias: int | None = None) -> Rows:
    """Sums (0) with mantissas (1) and the shift of the row (2) as two digits (target 0). With a shift `bias` there are
    biases, two digits (3)."""
    rows = Rows(columns, 3 if bias is None else 4)
    steps = _steps(rows, 0, scaled, 1, _row(rows, 2))
    rows.put_digits(steps if bias is None else _with_bias(rows, steps, 3, bias), 0)
    return rows


def begin(columns: int, factor: float, positions: float | None = None) -> Rows:
    """A row of two digits (0) times a factor, and with a factor for `positions` another one (1) times that, as a row of
    the residual stream (targets 0 to 2)."""
    rows = Rows(columns, 1 if positions is None else 2)
    value = _multiplied(rows.digits(0), factor)
    _put_residual(rows, value if positions is None else value + _multiplied(rows.digits(1), positions))
    return rows


def _multiplied(value: Expression, factor: float) -> Expression:
    fraction, exponent = math.frexp(factor)
    return value.times(round(math.ldexp(fraction, 17)) - (fraction >= 1), 17 - exponent)


def prepare(columns: int) -> Rows:
    """The shift of a row (0) for each column (target 0)."""
    rows = Rows(columns, 1)
    rows.put(rows.read(0), 0)
    return rows


def add(columns: int, scaled: Scaled) -> Rows:
    """Sums (0) with mantissas (1), added to a row of the residual stream (2 and 3): that again (targets 0 to 3)."""
    rows = Rows(columns, 4)
    # Read into a register: nothing of the row may be read once a part of it is overwritten.
    shift = (rows.behind(3) + 0).known(0, MOST_BITS)
    _put_residual(rows, _residual(rows, 2, 3) + _steps(rows, 0, scaled, 1, shift))
    rows.put(shift, 3)
    return rows


def offset(columns: int) -> Rows:
    """Biases of three digits (2 and 3) added to a row of the residual stream (0 and 1): that again (targets 0 to 2)."""
    rows = Rows(columns, 4)
    _put_residual(rows, _with_bias(rows, _residual(rows, 0, 1), 2, 8) + rows.read(3))
    return rows


def gated(columns: int, gate: Scaled, up: Scaled, places: int) -> Rows:
    """silu(gate) * up, two digits (target 0), of two sums for each element (0), those of the gate first, with their
    mantissas (1 and 2) and the shift of the row (3).

    Sums of the gate become steps with `GATE_PLACES`, those of the other product steps that are at most 17 bits, and the
    product of both loses `places` more bits than `GATE_PLACES`.
    """
    rows = Rows(columns, 4)
    row = _row(rows, 3)
    x = _steps(rows, 0, gate, 1, row)
    share = x.interpolated(_SIGMOID, TABLE_PLACES)
    limit = FACTOR - 1
    other = _steps(rows, 1, up, 2, row).minimum(limit).maximum(-limit)
    silu = x.times(share, SHARE_PLACES)
    rows.put_digits(silu.times(other, GATE_PLACES + places).known(-(1 << 30), 1 << 30), 0)
    return rows


def opened(columns: int, gate_places: int, places: int) -> Rows:
    """silu(gate) * up as `gated` has it, two digits (target 0), of two digits of the gate (0), with so many places, and
    two digits of the other product (1)."""
    rows = Rows(columns, 2)
    x = rows.digits(0)
    share = x.interpolated(_SIGMOID, gate_places - ENTRY_PLACES)
    silu = x.times(share, SHARE_PLACES - (GATE_PLACES - gate_places))
    rows.put_digits(silu.times(rows.digits(1), GATE_PLACES + places).known(-(1 << 30), 1 << 30), 0)
    return rows


def gelu(columns: int, up: Scaled, places: int, bias: int | None = None) -> Rows:
    """gelu(up), by the hyperbolic tangent, two digits (target 0), of sums (0) with their mantissas (1) and the shift of
    the row (2), and with a shift `bias` biases of two digits (3).

    Sums and biases are steps with `GATE_PLACES`, of which the result loses `places`.
    """
    rows = Rows(columns, 3 if bias is None else 4)
    x = _steps(rows, 0, up, 1, _row(rows, 2))
    x = x if bias is None else _with_bias(rows, x, 3, bias)
    share = x.interpolated(_GELU_SHARE, TABLE_PLACES)
    rows.put_digits(x.times(share, SHARE_PLACES + places).known(-(1 << 30), 1 << 30), 0)
    return rows
