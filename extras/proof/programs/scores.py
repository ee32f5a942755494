"""Instructions of the softmax unit on values: TABLE, SOFTMAX and NORMALISE; addresses and order are the golden ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft.extras.proof.programs import softmax as numerics
from weft.extras.proof.programs.form import Form
from weft.extras.proof.programs.sums import Sums
from weft.extras.proof.programs.values import Values
from weft.hdl.isa import Normalise, Softmax, Source, Table
from weft.hdl.isa.config import Config
from weft.sim.device import DeviceError
from weft.sim.golden.vector import LOWEST, SHIFT_MAX, valid_columns

if TYPE_CHECKING:
    from weft.extras.proof.programs.words import ValueDevice

_OFFSET = 128
"""What stored probabilities lack where they have 8 bits."""


class RowStates:
    """Maxima and sums of rows, and alignments: anything at first, as the table is."""

    def __init__(self, values: Values, config: Config) -> None:
        self.maxima, self.sums = any_states(values, config.row_states)
        self.alignments = any_alignments(values, config.alignments)
        self.table = np.full(config.table_depth, -1)


def any_states(values: Values, count: int) -> tuple[Sums, Sums]:
    """Maxima and sums of so many rows, of which nothing is known."""
    sums = values.unknown(count)
    whole = Sums(sums.primes, sums.f, sums.low * 0, sums.high * 2 + 1)
    return values.unknown(count).ranging(LOWEST, -LOWEST), whole


def any_alignments(values: Values, count: int) -> Sums:
    """So many alignments of which nothing is known."""
    return values.unknown(count).ranging(-SHIFT_MAX, SHIFT_MAX)


def table(device: ValueDevice, i: Table) -> None:
    """Fill the table of powers of two."""
    entries = device.constants(
        device.cells[device.memories.addresses(i, "src")].ravel(), "it fills the table"
    )
    if entries.size > device.rows.table.size:
        raise DeviceError(f"{entries.size} entries do not fit the table of {device.rows.table.size}")
    device.rows.table[: entries.size] = entries


def softmax(device: ValueDevice, i: Softmax) -> None:
    """Probabilities of groups, and the states of their rows."""
    memories, symbols, rows = device.memories, device.symbols, device.rows
    if i.first and i.final:
        raise DeviceError("'first' starts row states anew, which 'final' only reads")
    mantissa, shift, bias = device.parameters(i)
    dst, alignments, states = (memories.addresses(i, name) for name in ("dst", "alignment", "state"))
    states = states.ravel()
    if np.unique(states).size != states.size:
        raise DeviceError(i.operand("state").clash)
    valid = np.broadcast_to(valid_columns(memories, i), (*dst.shape, device.config.n))
    y = numerics.octave_logits(symbols, _source(device, i), bias, mantissa, shift)
    e = numerics.group_exponents(symbols, y, valid)
    p = numerics.probabilities(symbols, y, valid, e, device.powers())
    e, groups = e.reshape(i.ob, states.size), p.reshape(i.ob, states.size, device.config.n)
    m, sums = rows.maxima[states], rows.sums[states]
    if i.first:
        m, sums = symbols.integers(LOWEST, states.shape), symbols.integers(0, states.shape)
    places = alignments.reshape(i.ob, states.size)
    for group in range(i.ob):
        if i.final:
            alignment = numerics.final_alignment(symbols, m, e[group])
        else:
            m, sums, alignment = numerics.update(symbols, m, sums, e[group], groups[group])
        rows.alignments = rows.alignments.put(places[group], alignment)
    if not i.final:
        rows.maxima = rows.maxima.put(states, m)
        rows.sums = rows.sums.put(states, sums)
    less = _OFFSET if device.config.wide_activations else 0
    device.cells[dst.reshape(-1)] = _bytes(device, p.shifted(-less), Form(0, 0, -128, 127))


def normalise(device: ValueDevice, i: Normalise) -> None:
    """Elements divided by the sums of their rows."""
    memories, rows = device.memories, device.rows
    dst, states = memories.addresses(i, "dst"), memories.addresses(i, "state").ravel()
    elements = _source(device, i).reshape(states.size, i.ox, device.config.n)
    if i.source == Source.SCRATCHPAD and device.config.wide_activations:
        elements = elements.shifted(_OFFSET)
    alignment = None
    if i.scaled:
        alignment = rows.alignments[memories.addresses(i, "alignment")].reshape(states.size, i.ox)
    quotient = numerics.normalised(
        device.symbols, elements, rows.sums[states], alignment, i.scale, i.exponent, i.v_zero
    )
    device.cells[dst.reshape(-1)] = _bytes(device, quotient, Form(0, i.zero, i.low, i.high))


def _source(device: ValueDevice, i: Softmax | Normalise) -> Sums:
    """Numbers (ob, oy, ox, N) that an instruction without reduction reads."""
    address = device.memories.addresses(i, "src")
    if i.source == Source.ACCUMULATOR:
        return device.sums[address]
    return device.values.terms(device.cells[address])


def _bytes(device: ValueDevice, numbers: Sums, form: Form) -> np.ndarray:
    """Values (vectors, N) of numbers (..., N)."""
    n = device.config.n
    return device.values.results(numbers.reshape(numbers.low.size // n, n, 1), [form] * n)
