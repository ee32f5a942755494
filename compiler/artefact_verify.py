"""Consistency checks of a compiled model: each value is computed before it is read, in the type that its reader
expects.

Instructions are checked by `weft.hdl.checker.program.check`, with `weft.compiler.machine.areas.Areas.extents`. Both
check compiler output as well as files, which may contain anything.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from weft.compiler.artefact import Compiled
from weft.compiler.backend import DeviceProgram
from weft.compiler.errors import CompileError, NetworkError
from weft.compiler.host.onnx_model import check
from weft.compiler.ir.layout import Rows
from weft.compiler.ir.model import HostSegment, Transfer
from weft.compiler.ir.network import DTYPES, Network, State, dtype_of, type_of
from weft.compiler.ir.products import INDICES, RowIndices
from weft.hdl.isa import PAGE_ENTRY, Opcode, Queue
from weft.hdl.schema import short_repr

_LARGEST = 1 << 32
"""Most bytes of a value, and largest size of a dimension: the range of addresses."""
_KINDS = ("temp", "input", "output", "state", "table")
"""Kinds of buffers in compiled models."""

Type = tuple[str, tuple[int, ...]]
"""Type of a value: dtype name and shape."""


def verify(compiled: Compiled) -> None:
    """Check that the parts of a compiled model fit together.

    Raises
    ------
    CompileError
        With one sentence on the first inconsistency.
    """
    for kind, signature in (("input", compiled.inputs), ("output", compiled.outputs)):
        for name, (dtype, shape) in signature.items():
            _check_type(f"{kind} {short_repr(name)}", dtype, shape)
    _check_states(compiled)
    programs = [segment for segment in compiled.segments if isinstance(segment, DeviceProgram)]
    for program in programs:
        _check_program(program)
    names = Counter(name for program in programs for name in program.buffers)
    if names and max(names.values()) > 1:
        raise CompileError(f"two segments have a buffer {short_repr(names.most_common(1)[0][0])}")
    for item in (*compiled.to_device, *compiled.from_device):
        if item.buffer.name not in names:
            raise CompileError(
                f"{_name(item)} is in buffer {short_repr(item.buffer.name)}, which is in no segment"
            )
    _check_flow(compiled)


def _check_states(compiled: Compiled) -> None:
    taken = set(compiled.inputs)
    for state in compiled.states:
        label = f"state {short_repr(state.source)}"
        if state.source in taken:
            raise CompileError(f"{label} is also an input, or is listed twice")
        taken.add(state.source)
        _check_type(label, *_state_type(state))


def _state_type(state: State) -> Type:
    dtype, shape = type_of(state.initial)
    assert shape is not None
    return dtype, tuple(size for size in shape if size is not None)


def _check_type(label: str, dtype: str, shape: Sequence[int]) -> None:
    if dtype not in DTYPES:
        raise CompileError(f"{label} has dtype {short_repr(dtype)}, which numpy does not know")
    _check_shape(label, shape)
    if math.prod(shape) * dtype_of(dtype).itemsize > _LARGEST:
        raise CompileError(
            f"{label} is {dtype} of shape {short_repr(shape)}, which is more than {_LARGEST} bytes"
        )


def _check_shape(label: str, shape: Sequence[int]) -> None:
    if any(not 0 <= size <= _LARGEST for size in shape):
        raise CompileError(f"{label} has shape {short_repr(tuple(shape))}")


def _check_program(program: DeviceProgram) -> None:
    if program.offsets.keys() != program.buffers.keys():
        odd = min(program.offsets.keys() ^ program.buffers.keys())
        raise CompileError(
            f"{short_repr(program.name)}: buffer {short_repr(odd)} is missing from buffers or from offsets"
        )
    for name, buffer in program.buffers.items():
        label = f"{short_repr(program.name)}: buffer {short_repr(name)}"
        if buffer.name != name:
            raise CompileError(f"{label} is named {short_repr(buffer.name)}")
        if buffer.kind not in _KINDS:
            raise CompileError(f"{label} is of kind {short_repr(buffer.kind)}, not {', '.join(_KINDS)}")
        _check_shape(label, buffer.shape)
        if not 0 <= program.offsets[name] <= _LARGEST:
            raise CompileError(f"{label} is at offset {short_repr(program.offsets[name])}")
    for name, rows in program.rows.items():
        _check_rows(program, name, rows)
    _check_layers(program)


def _check_rows(program: DeviceProgram, name: str, rows: Rows) -> None:
    label = f"{short_repr(program.name)}: rows of {short_repr(name)}"
    buffer = program.buffers.get(name)
    if buffer is None or buffer.kind != "input":
        raise CompileError(f"{label}: only input buffers have interleaved rows")
    numbers = (rows.height, rows.kernel, rows.stride, rows.dilation, rows.count)
    fits = (
        all(1 <= number <= _LARGEST for number in numbers)
        and abs(rows.pad) <= _LARGEST
        and -128 <= rows.fill <= 127
        and buffer.shape[1] == rows.count
        and buffer.shape[3] % rows.kernel == 0
    )
    if not fits:
        raise CompileError(f"{label} do not fit its shape {short_repr(buffer.shape)}: {short_repr(rows)}")


def _check_layers(program: DeviceProgram) -> None:
    """Check that layers partition every queue, and that STOREs write the stated bytes: measured times are assigned by
    these."""
    code = program.instructions
    queues = code.queues
    own = {queue.name: int((queues == int(queue)).sum()) for queue in Queue}
    stores = np.flatnonzero(code.opcodes == int(Opcode.STORE))
    rows, pixels, length = (code.field(name, Opcode.STORE, stores) for name in ("rows", "pixels", "length"))
    # Bytes written by the first i STOREs.
    stored = np.cumsum([0, *(rows * pixels * length)])
    at = dict.fromkeys(own, 0)
    for layer in program.layers:
        label = f"{short_repr(program.name)}: layer {short_repr(layer.name)}"
        numbers = (layer.macs, layer.read_bytes, *layer.cycles.values(), *layer.queued.values())
        if layer.cycles.keys() != own.keys() or layer.queued.keys() != own.keys():
            raise CompileError(f"{label} must have the queues {', '.join(own)}")
        if any(not 0 <= number < 1 << 63 for number in numbers):
            raise CompileError(f"{label} has a number that is negative or too large: {short_repr(numbers)}")
        start = at[Queue.STORE.name]
        at = {name: count + layer.queued[name] for name, count in at.items()}
        # A hostile file may count more STOREs than there are; the check after the loop reports it.
        written = int(np.subtract(*stored[[min(at[Queue.STORE.name], stores.size), min(start, stores.size)]]))
        if written != layer.written_bytes:
            raise CompileError(f"{label} writes {written} bytes, not {short_repr(layer.written_bytes)}")
    for name, count in at.items():
        if count != own[name]:
            raise CompileError(
                f"{short_repr(program.name)} has {own[name]} instructions for {name}, but its layers have "
                f"{short_repr(count)}"
            )


def _check_flow(compiled: Compiled) -> None:
    """Follow the values through all segments."""
    values: dict[str, Type] = dict(compiled.inputs)
    values |= {state.source: _state_type(state) for state in compiled.states}
    for segment in compiled.segments:
        if isinstance(segment, HostSegment):
            values |= _check_host(segment, values)
            continue
        for item in _transfers(compiled.to_device, segment, ("input", "table", "state")):
            _check_transfer(item, segment)
            _check_known(f"the device's {short_repr(item.value)}", item.value, _type(item), values)
        outgoing = _transfers(compiled.from_device, segment, ("output",), may=("state",))
        for item in outgoing:
            _check_transfer(item, segment)
        values |= {item.value: _type(item) for item in outgoing}
    for name, kind in compiled.outputs.items():
        _check_known(f"output {short_repr(name)}", name, kind, values)
    for state in compiled.states:
        _check_known(
            f"the new value of state {short_repr(state.source)}", state.target, _state_type(state), values
        )


def _check_known(label: str, name: str, wanted: Type, values: dict[str, Type]) -> None:
    if name not in values:
        raise CompileError(f"{label} is never computed")
    if values[name] != wanted:
        raise CompileError(f"{label} is {_describe(values[name])}, but {_describe(wanted)} is expected")


def _describe(kind: Type) -> str:
    dtype, shape = kind
    return f"{dtype} of shape {short_repr(shape)}"


def _transfers(
    items: Iterable[Transfer], program: DeviceProgram, kinds: tuple[str, ...], *, may: tuple[str, ...] = ()
) -> list[Transfer]:
    """Return a program's transfers: at least one per buffer of `kinds`, and possibly some for buffers of kinds
    `may`."""
    mine = [item for item in items if item.buffer.name in program.buffers]
    for item in mine:
        kind = program.buffers[item.buffer.name].kind
        if kind not in (*kinds, *may):
            raise CompileError(
                f"{_name(item)} is in buffer {short_repr(item.buffer.name)}, which is not an {kinds[0]} buffer"
            )
        if (kind == "table") != (item.rows is not None):
            raise CompileError(
                f"{_name(item)} is in {kind} {short_repr(item.buffer.name)}, but tables hold indices, and only "
                "tables do"
            )
    moved = {item.buffer.name for item in mine}
    for name, buffer in program.buffers.items():
        if buffer.kind in kinds and name not in moved:
            raise CompileError(
                f"{short_repr(program.name)}: no value is transferred for {kinds[0]} {short_repr(name)}"
            )
    if "input" in kinds and len(moved) < len(mine):
        raise CompileError(f"{short_repr(program.name)}: two values are written to one input")
    return mine


def _type(item: Transfer) -> Type:
    shape = item.shape if item.model_shape is None else item.model_shape
    return item.dtype, shape


def _name(item: Transfer) -> str:
    return f"value {short_repr(item.value)}"


def _check_transfer(item: Transfer, program: DeviceProgram) -> None:
    """Check that value and buffer have equal sizes, and that axes are a permutation."""
    buffer = program.buffers[item.buffer.name]
    inside = program.input_shape(buffer.name) if buffer.kind == "input" else buffer.shape
    own = item.shape if item.model_shape is None else item.model_shape
    planes = 2 if item.wide else 1
    each = planes
    if item.rows is not None:
        _check_indices(item, item.rows, program)
        each = PAGE_ENTRY
    for shape, times in ((item.shape, each), (item.nhwc, planes), (item.buffer.shape, 1), (own, each)):
        _check_shape(_name(item), shape)
        if math.prod(shape) * times != math.prod(inside):
            raise CompileError(
                f"{_name(item)} has shape {short_repr(shape)}, which does not fill {short_repr(inside)} of buffer "
                f"{short_repr(buffer.name)}"
            )
    if item.perm is not None and sorted(item.perm) != list(range(len(item.shape))):
        raise CompileError(
            f"{_name(item)}: {short_repr(item.perm)} is not a permutation of {len(item.shape)} axes"
        )


def _check_indices(item: Transfer, rows: RowIndices, program: DeviceProgram) -> None:
    """Check that indices are integers, and that their rows are constants."""
    if rows.dtype not in INDICES:
        raise CompileError(
            f"{_name(item)} has indices of type {short_repr(rows.dtype)}, not {' or '.join(INDICES)}"
        )
    if min(rows.rows, rows.pitch) < 1 or rows.rows * rows.pitch > len(program.constants):
        raise CompileError(
            f"{_name(item)} has indices of {short_repr(rows.rows)} rows of {short_repr(rows.pitch)} bytes, but "
            f"constants have {len(program.constants)}"
        )


def _check_host(segment: HostSegment, values: dict[str, Type]) -> dict[str, Type]:
    """Check a host segment, and return the types of its outputs."""
    label, network = f"host segment {short_repr(segment.name)}", segment.network
    types: dict[str, Type] = {}
    for name in (*network.inputs, *network.outputs):
        kind = _known_type(network, name)
        if kind is None:
            raise CompileError(f"{short_repr(name)} of {label} has no type, or no shape")
        _check_type(f"{short_repr(name)} of {label}", *kind)
        types[name] = kind
    for name in network.inputs:
        _check_known(f"{short_repr(name)} of {label}", name, types[name], values)
    try:
        check(network)
    except NetworkError as error:
        raise CompileError(f"{label} is not valid ({error})") from None
    return {name: types[name] for name in network.outputs}


def _known_type(network: Network, name: str) -> Type | None:
    """Return the type of a value if all its sizes are known."""
    kind = network.type_of(name)
    if kind is None or kind.shape is None:
        return None
    shape = tuple(size for size in kind.shape if size is not None)
    return (kind.dtype, shape) if len(shape) == len(kind.shape) else None
