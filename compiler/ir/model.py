"""A whole model for device and host: segments, and how values get from one to the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weft.compiler.ir.embedding import RowIndices
from weft.compiler.ir.graph import Buffer, DeviceSegment
from weft.compiler.ir.network import Network, State

READ_ON_HOST = "its result is read on the host"
COMPUTED_ON_HOST = "its input is computed on the host"
"""How reasons begin that a node is on the host for because its neighbours are."""
CLAMPED = "are clamped"
"""What notes on nodes of the device say of values that have no range of the device's: results are wrong there."""

Assignment = tuple[tuple[str, str, str, str], ...]
"""(name, operator, "device" or "host", reason) of every node."""


def clamps(assignment: Iterable[tuple[str, str, str, str]]) -> tuple[str, ...]:
    """The warnings of an assignment: a sentence for each value of the device that may be clamped."""
    return tuple(
        f"{name} ({operator}): {note}"
        for name, operator, place, reason in assignment
        if place == "device"
        for note in reason.split("; ")
        if CLAMPED in note
    )


@dataclass(frozen=True, eq=False)
class HostSegment:
    """A part of the model that the host evaluates (`weft.compiler.host`).

    `nodes` are (node name, operator type, reason) for the report.
    """

    name: str
    network: Network
    nodes: tuple[tuple[str, str, str], ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values that it reads."""
        return self.network.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """The values that it makes."""
        return self.network.outputs


@dataclass(frozen=True)
class Transfer:
    """A value of the model that the host writes to a device buffer, or reads from one.

    The value, which has the model's shape and order of axes, is reshaped to `shape`, transposed by `perm` and reshaped
    to `nhwc`: that is the content of the buffer. `unsigned` marks uint8 values, which are stored minus 128.
    `model_shape` is the value's own shape (None: it is `shape`). With `wide` values have 16 bits (unsigned ones are
    stored minus 32768), and the buffer has two planes of shape `nhwc`, as `View.planes` tells. With `index` the value
    is int64, of which that many bits are stored. With `rows` it has indices, and their offsets are stored.
    """

    value: str
    buffer: Buffer
    shape: tuple[int, ...]
    nhwc: tuple[int, int, int, int]
    perm: tuple[int, ...] | None
    unsigned: bool
    model_shape: tuple[int, ...] | None = None
    wide: bool = False
    index: bool = False
    rows: RowIndices | None = None

    @property
    def dtype(self) -> str:
        """The type of the value's elements."""
        if self.rows is not None:
            return self.rows.dtype
        return "int64" if self.index else self.stored

    @property
    def stored(self) -> str:
        """The type of the elements that are stored."""
        return f"{'u' if self.unsigned else ''}int{16 if self.wide else 8}"


@dataclass(frozen=True, eq=False)
class Graph:
    """A whole model: segments in order, how values enter and leave device buffers, and the model's signature.

    `inputs` and `outputs` map names to (numpy dtype name, shape). They are those of the user: `states`, which are kept
    from run to run, are apart.
    """

    segments: tuple[DeviceSegment | HostSegment, ...]
    to_device: tuple[Transfer, ...]
    from_device: tuple[Transfer, ...]
    inputs: dict[str, tuple[str, tuple[int, ...]]]
    outputs: dict[str, tuple[str, tuple[int, ...]]]
    assignment: tuple[tuple[str, str, str, str], ...] = ()
    """(node name, operator type, "device" or "host", reason) for every node of the model, in order."""
    states: tuple[State, ...] = ()
