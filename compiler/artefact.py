"""Compiled models on disk: a JSON manifest and one blob per segment, with hashes that are checked on reading.

Segment files are named by their index; a manifest contains no file names.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from weft.compiler.backend import DeviceProgram, Layer
from weft.compiler.errors import ProgramFileError
from weft.compiler.ir.layout import Rows
from weft.compiler.ir.model import HostSegment, Transfer
from weft.compiler.ir.network import Network, State, decode, encode
from weft.compiler.ir.views import Buffer
from weft.hdl import schema
from weft.hdl.errors import ConfigError, IsaError, SchemaError
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import Config

MANIFEST = "program.json"
STATES = "states.bin"
FORMAT = "weft program 8"
MOST_BYTES = 1 << 32
"""Most bytes of a program's file: the range of device addresses."""

Signature = dict[str, tuple[str, tuple[int, ...]]]


class _Segment(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind"):
    """Name of a segment, and size and hash of its file."""

    name: str
    bytes: int
    sha256: str


class _Host(_Segment, tag="host"):
    """Host segment; its file holds its network. `nodes` are as in `HostSegment`."""

    nodes: tuple[tuple[str, str, str], ...]


class _Device(_Segment, tag="device"):
    """Device segment; its file has `constants` bytes of constants, then the instructions."""

    constants: int
    layers: tuple[Layer, ...]
    offsets: dict[str, int]
    buffers: dict[str, Buffer]
    rows: dict[str, Rows]
    compact: bool = False


class _States(msgspec.Struct, forbid_unknown_fields=True):
    """Outputs that become states, by state, and size and hash of the file of initial contents."""

    targets: dict[str, str]
    bytes: int
    sha256: str


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    config: dict[str, Any]
    inputs: Signature
    outputs: Signature
    segments: tuple[_Host | _Device, ...]
    to_device: tuple[Transfer, ...]
    from_device: tuple[Transfer, ...]
    assignment: tuple[tuple[str, str, str, str], ...]
    states: _States | None = None
    memory: Annotated[float, msgspec.Meta(gt=0)] | None = None


@dataclass(frozen=True, eq=False)
class Compiled:
    """A compiled model: segments in order, transfers, signature, and the place where every node runs.

    Attributes
    ----------
    segments : tuple of DeviceProgram or HostSegment
    inputs, outputs : dict
        (dtype name, shape) by name, without states.
    states : tuple of State
        Values that persist between runs.
    memory : float or None
        Bandwidth that it is planned for, in bytes per cycle; None for the width of the bus.
    digest : str or None
        SHA-256 of the manifest that it was read from, which holds the hashes of all other files; None if not read
        from files.
    """

    config: Config
    segments: tuple[DeviceProgram | HostSegment, ...]
    to_device: tuple[Transfer, ...]
    from_device: tuple[Transfer, ...]
    inputs: Signature
    outputs: Signature
    assignment: tuple[tuple[str, str, str, str], ...]
    states: tuple[State, ...] = ()
    memory: float | None = None
    digest: str | None = None

    def save(self, folder: Path) -> None:
        """Write manifest and blobs to `folder`, which must exist."""
        entries = []
        for index, segment in enumerate(self.segments):
            blob, host = _blob(segment), isinstance(segment, HostSegment)
            (folder / _file(index, host)).write_bytes(blob)
            entries.append(_entry(segment, blob))
        manifest = _Manifest(
            FORMAT,
            self.config.to_dict(),
            self.inputs,
            self.outputs,
            tuple(entries),
            self.to_device,
            self.from_device,
            self.assignment,
            _save_states(folder, self.states),
            self.memory,
        )
        # The last line is the hash of the lines before it.
        body = schema.encode(manifest).rstrip("\n").encode()
        (folder / MANIFEST).write_bytes(body + f"\n{hash_of(body)}\n".encode())


def hash_of(raw: bytes) -> str:
    """Return the SHA-256 of `raw`, in hexadecimal."""
    return hashlib.sha256(raw).hexdigest()


def _file(index: int, host: bool) -> str:
    return f"segment{index}.host" if host else f"segment{index}.bin"


def _blob(segment: DeviceProgram | HostSegment) -> bytes:
    """Return the contents of a segment's file."""
    return encode(segment.network) if isinstance(segment, HostSegment) else segment.constants + segment.code


def _save_states(folder: Path, states: tuple[State, ...]) -> _States | None:
    """Write the states' initial contents, if there are states, as the constants of a network."""
    if not states:
        return None
    contents = {state.source: state.initial for state in states}
    blob = encode(Network((), (), tuple(contents), {}, contents))
    (folder / STATES).write_bytes(blob)
    return _States({state.source: state.target for state in states}, len(blob), hash_of(blob))


def _load_states(folder: Path, entry: _States | None) -> tuple[State, ...]:
    if entry is None:
        return ()
    path = folder / STATES
    blob = _blob_at(path, entry.bytes, entry.sha256)
    try:
        contents = decode(blob).constants
    except SchemaError as error:
        raise ProgramFileError(f"{path}: {error}; compile the model again") from None
    if contents.keys() != entry.targets.keys():
        raise ProgramFileError(f"{path} holds other states than {MANIFEST}; compile the model again")
    return tuple(State(name, target, contents[name]) for name, target in entry.targets.items())


def _entry(segment: DeviceProgram | HostSegment, blob: bytes) -> _Host | _Device:
    about = segment.name, len(blob), hash_of(blob)
    if isinstance(segment, HostSegment):
        return _Host(*about, segment.nodes)
    return _Device(
        *about,
        len(segment.constants),
        segment.layers,
        segment.offsets,
        segment.buffers,
        segment.rows,
        segment.compact,
    )


def load(folder: Path) -> Compiled:
    """Read what `Compiled.save` wrote. `weft.compiler.artefact_verify` checks that its parts fit together.

    Raises
    ------
    ProgramFileError
        If a file is missing, damaged, or written by another version.
    """
    path = folder / MANIFEST
    raw = read_file(path, schema.MAX_FILE_BYTES)
    try:
        manifest = _manifest(raw)
        config = Config.from_dict(manifest.config)
    except (SchemaError, ConfigError) as error:
        raise ProgramFileError(f"{path}: {error}; compile the model again") from None
    return Compiled(
        config,
        tuple(_segment(folder, index, entry) for index, entry in enumerate(manifest.segments)),
        manifest.to_device,
        manifest.from_device,
        manifest.inputs,
        manifest.outputs,
        manifest.assignment,
        _load_states(folder, manifest.states),
        manifest.memory,
        hash_of(raw),
    )


def _manifest(raw: bytes) -> _Manifest:
    body, _, digest = raw.rstrip(b"\n").rpartition(b"\n")
    if hash_of(body).encode() != digest:
        raise SchemaError("it is damaged: its checksum does not match")
    return schema.decode(body, _Manifest, format=FORMAT)


def read_file(path: Path, limit: int = MOST_BYTES, size: int | None = None) -> bytes:
    """Return the bytes of a file in a program's folder.

    Raises
    ------
    ProgramFileError
        If it cannot be read, is no regular file, has more than `limit` bytes, or not exactly `size`.
    """
    try:
        return schema.read_bytes(path, limit, size)
    except SchemaError as error:
        raise ProgramFileError(f"{path} is damaged: {error}; compile the model again") from None
    except OSError as error:
        raise ProgramFileError(f"cannot read {path}: {error.strerror}; compile the model again") from None


def _blob_at(path: Path, size: int, digest: str) -> bytes:
    """Return the bytes of a file, after a check of size and hash."""
    blob = read_file(path, size=size)
    if hash_of(blob) != digest:
        raise ProgramFileError(f"{path} is damaged: its checksum does not match; compile the model again")
    return blob


def _segment(folder: Path, index: int, entry: _Host | _Device) -> DeviceProgram | HostSegment:
    path = folder / _file(index, isinstance(entry, _Host))
    blob = _blob_at(path, entry.bytes, entry.sha256)
    if isinstance(entry, _Host):
        try:
            return HostSegment(entry.name, decode(blob), entry.nodes)
        except SchemaError as error:
            raise ProgramFileError(f"{path}: {error}; compile the model again") from None
    at = entry.constants
    if not 0 <= at <= len(blob):
        raise ProgramFileError(
            f"{path} has {len(blob)} bytes, so no {schema.short_repr(at)} bytes of constants; compile the model again"
        )
    try:
        instructions = Code.from_bytes(blob[at:])
    except IsaError as error:
        raise ProgramFileError(f"{path}: from byte {at} on: {error}; compile the model again") from None
    return DeviceProgram(
        entry.name,
        instructions,
        blob[:at],
        entry.layers,
        entry.offsets,
        entry.buffers,
        entry.rows,
        entry.compact,
    )
