"""Instructions of the softmax unit on values: TABLE, SOFTMAX and NORMALISE, with the golden interpreter's addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft.extras.proof.programs import softmax as numerics
from weft.extras.proof.programs.form import SATURATE, Form
from weft.extras.proof.programs.sums import Sums
from weft.extras.proof.programs.values import Values
from weft.hdl.isa import Normalise, Softmax, Source, Table
from weft.hdl.isa.config import Config
from weft.sim.device import DeviceError
from weft.sim.golden.vector import LOWEST, SHIFT_MAX, valid_columns

if TYPE_CHECKING:
    from weft.extras.proof.programs.value_device import ValueDevice

_OFFSET = 128
"""Offset of stored probabilities, from 0 to 255, as int8, with wide activations."""


class RowStates:
    """Maxima and sums of rows, alignments, and the table of powers of two; unknown at first, -1 in the table."""

    def __init__(self, values: Values, config: Config) -> None:
        self.maxima, self.sums = unknown_states(values, config.row_states)
        self.alignments = unknown_alignments(values, config.alignments)
        self.table = np.full(config.table_depth, -1)


def unknown_states(values: Values, count: int) -> tuple[Sums, Sums]:
    """Return unknown maxima and sums of `count` rows."""
    sums = values.new_unknown(count)
    unsigned = Sums(sums.primes, sums.f, sums.low * 0, sums.high * 2 + 1)
    return values.new_unknown(count).narrow(LOWEST, -LOWEST), unsigned


def unknown_alignments(values: Values, count: int) -> Sums:
    """Return `count` unknown alignments."""
    return values.new_unknown(count).narrow(-SHIFT_MAX, SHIFT_MAX)


def table(device: ValueDevice, i: Table) -> None:
    """Fill the table of powers of two. Raises `Unproven` if its entries depend on inputs."""
    entries = device.constants(
        device.cells[device.memories.addresses(i, "src")].ravel(), "it fills the table"
    )
    if entries.size > device.rows.table.size:
        raise DeviceError(f"{entries.size} entries do not fit the table of {device.rows.table.size}")
    device.rows.table[: entries.size] = entries


def softmax(device: ValueDevice, i: Softmax) -> None:
    """Compute probabilities of groups, and update the states of their rows."""
    memories, symbols, rows = device.memories, device.symbols, device.rows
    if i.first and i.final:
        raise DeviceError("'first' resets row states, which 'final' only reads")
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
    # Groups of a row update its state in order.
    for group in range(i.ob):
        if i.final:
            alignment = numerics.final_alignment(symbols, m, e[group])
        else:
            m, sums, alignment = numerics.update(symbols, m, sums, e[group], groups[group])
        rows.alignments = rows.alignments.put(places[group], alignment)
    if not i.final:
        rows.maxima = rows.maxima.put(states, m)
        rows.sums = rows.sums.put(states, sums)
    offset = _OFFSET if device.config.wide_activations else 0
    device.cells[dst.reshape(-1)] = _bytes(device, p.plus_constant(-offset), SATURATE)


def normalise(device: ValueDevice, i: Normalise) -> None:
    """Divide elements by the sums of their rows."""
    memories, rows = device.memories, device.rows
    dst, states = memories.addresses(i, "dst"), memories.addresses(i, "state").ravel()
    elements = _source(device, i).reshape(states.size, i.ox, device.config.n)
    if i.source == Source.SCRATCHPAD and device.config.wide_activations:
        elements = elements.plus_constant(_OFFSET)
    alignment = None
    if i.scaled:
        alignment = rows.alignments[memories.addresses(i, "alignment")].reshape(states.size, i.ox)
    quotient = numerics.normalise(
        device.symbols, elements, rows.sums[states], alignment, i.scale, i.exponent, i.v_zero
    )
    device.cells[dst.reshape(-1)] = _bytes(device, quotient, Form(0, i.zero, i.low, i.high))


def _source(device: ValueDevice, i: Softmax | Normalise) -> Sums:
    """Return the integers (ob, oy, ox, N) that an instruction reads."""
    address = device.memories.addresses(i, "src")
    if i.source == Source.ACCUMULATOR:
        return device.sums[address]
    return device.values.integers_of(device.cells[address])


def _bytes(device: ValueDevice, numbers: Sums, form: Form) -> np.ndarray:
    """Convert integers (..., N) to values (vectors, N)."""
    n = device.config.n
    return device.values.apply_forms(numbers.reshape(numbers.low.size // n, n, 1), [form] * n)
