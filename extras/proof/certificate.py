"""Certificates: that each device program of a compiled model computes its part of the network."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from weft.api import load
from weft.compiler.artefact import MANIFEST, ProgramFileError, hash_of, read_file
from weft.compiler.backend import DeviceProgram
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import DeviceSegment, Rounding
from weft.compiler.ir.graph import View as IrView
from weft.compiler.ir.graph import Window as IrWindow
from weft.compiler.kernel.expressions import Expression, Rows
from weft.compiler.kernel.operators import RowOp
from weft.compiler.kernel.wide import WideConv
from weft.compiler.machine.memory import CONSTANTS
from weft.errors import FileError
from weft.extras.proof.model_match import differences
from weft.extras.proof.programs.graph import FORMAT as GRAPH_FORMAT
from weft.extras.proof.programs.graph import (
    Array,
    Formula,
    Graph,
    GraphError,
    Node,
    Operator,
    View,
    Window,
    decode,
    encode,
)
from weft.extras.proof.programs.proof import Placement, prove
from weft.extras.proof.programs.words import Unproven
from weft.extras.search.budget import apply_rewrite
from weft.extras.search.substitution.search import Used
from weft.hdl import schema
from weft.hdl.errors import WeftError
from weft.hdl.isa.config import Config
from weft.run.program import Program
from weft.run.runtime import Image

FORMAT = "weft certificate 2"
CERTIFICATE = "certificate.json"
_INDEX_BYTES = 4
_GIVEN = ("input", "state", "table")
"""Kinds of buffers that hold something when a program starts."""
_READ = ("output", "state")
"""Kinds of buffers that are read after a run: by the host, or by the next run."""
_COMPARED = ("name", "operators", "instructions", "compared_bytes")
"""Fields of a part that every proof of it has alike."""
Told = Callable[[str], None]


class CertificateError(WeftError, RuntimeError):
    """A program that is not proven, or not the one that was; the message says what does not match."""


class Part(msgspec.Struct, forbid_unknown_fields=True):
    """What is proven of one device program, and size and hash of the network that it was compared with."""

    name: str
    graph_bytes: int
    graph_sha256: str
    operators: int
    instructions: int
    compared_bytes: int
    values: int
    forms: int
    error_log2: float
    seconds: float


class Certificate(msgspec.Struct, forbid_unknown_fields=True):
    """What `weft compile --certify` writes: hashes of the model, the program and its configuration, and the proofs.

    It has no signature: it records what was proven, and who can write the folder can write any certificate.
    `roundings` are the rewrites with which the network is not the model's, but rounds otherwise, within a budget.
    """

    format: str
    model_sha256: str
    program_sha256: str
    config_digest: int
    parts: tuple[Part, ...]
    roundings: tuple[Used, ...] = ()

    @property
    def told(self) -> list[str]:
        """A line for each part, and one for rewrites that are not proven to change nothing."""
        lines = [
            f"{part.name}: all {part.compared_bytes:,} bytes of outputs are proven to be what {part.operators:,} "
            f"operators say, from {part.instructions:,} instructions in {part.seconds:.1f} s (wrong with a "
            f"probability below 2**{part.error_log2:g})"
            for part in self.parts
        ]
        if count := len(self.roundings):
            lines.append(
                f"the network is the model's with {count:,} rewrites that round otherwise: {CERTIFICATE} lists them"
            )
        return lines


@dataclass(frozen=True)
class Verified:
    """A certificate with new proofs, and the model whose network was proven; None if that was the folder's."""

    certificate: Certificate
    model: str | None

    @property
    def told(self) -> list[str]:
        """The lines of the certificate, and one that says whose network was proven."""
        if self.model is None:
            whose = (
                "the network is the folder's word, and so is what the host does: `weft verify --model MODEL` proves "
                "the program of a model"
            )
        else:
            whose = f"the network, and all that the host does, are those of {self.model}, which was imported again"
        return [*self.certificate.told, whose]

    @property
    def json(self) -> dict[str, Any]:
        """The certificate as JSON values; ``network`` says whose network was proven, "model" or "folder"."""
        own: dict[str, Any] = msgspec.to_builtins(self.certificate)
        return own | {"network": "folder" if self.model is None else "model"}


def certify(program: Program, folder: Path, model: Path, told: Told) -> Certificate:
    """Prove the program that was saved to `folder`, as it is read from there, and write networks and certificate.

    Raises `CertificateError`.
    """
    networks = _networks_of(program.graphs)
    for index, raw in enumerate(networks):
        (folder / _graph_file(index)).write_bytes(raw)
    saved = load(folder)
    made = Certificate(
        FORMAT,
        _model_hash(model),
        _digest(saved),
        saved.config.digest,
        _parts(saved, networks, told),
        () if program.roundings is None else program.roundings.used,
    )
    (folder / CERTIFICATE).write_text(schema.encode(made))
    return made


def verify(
    program: Program,
    folder: Path,
    told: Told = lambda text: None,
    *,
    model: Path | None = None,
    shapes: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
) -> Verified:
    """Prove once more a program that was read from `folder`, and compare it with the certificate there.

    What is proven is `program` itself: it may be run afterwards, whatever has become of the folder.

    Parameters
    ----------
    program : Program
        As `weft.load` returns it.
    folder : Path
    told : callable
        Told what is being done.
    model : Path, optional
        The model that it has to be the program of: it is imported again, its network is proven, and the host's parts,
        transfers, states, inputs and outputs have to be the model's. Without it, all of these are the folder's word.
    shapes, states
        As `weft.compile` has them, if the model was compiled with any.

    Raises
    ------
    CertificateError
        If anything is not proven or does not match; the message says what.
    FileError
        If there is no certificate.
    CompileError
        If the model cannot be read.
    """
    found = _read(folder)
    _check_sealed(program, folder, found)
    networks = _networks_in(folder, found)
    if model is not None:
        _check_model(program, folder, found, networks, model, shapes, states)
    parts = _parts(program, networks, told)
    for index, (old, new) in enumerate(zip(found.parts, parts, strict=True)):
        for name in _COMPARED:
            if getattr(old, name) != getattr(new, name):
                raise CertificateError(
                    f"{folder / CERTIFICATE}: {name} of part {index} is {getattr(old, name)!r}, not "
                    f"{getattr(new, name)!r}: it was edited"
                )
    return Verified(msgspec.structs.replace(found, parts=parts), None if model is None else model.name)


def _read(folder: Path) -> Certificate:
    """The certificate of a program folder. Raises `FileError`."""
    path = folder / CERTIFICATE
    try:
        return schema.decode(schema.read_bytes(path), Certificate, format=FORMAT)
    except FileNotFoundError:
        raise FileError(f"{folder} has no {CERTIFICATE}: `weft compile --certify` writes one") from None
    except schema.SchemaError as error:
        raise FileError(f"{path}: {error}; compile the model again with --certify") from None


def _check_sealed(program: Program, folder: Path, found: Certificate) -> None:
    """Raises `CertificateError` if a certificate names another program than this one."""
    path = folder / CERTIFICATE
    if found.program_sha256 != _digest(program):
        raise CertificateError(f"{path} is of another program: {MANIFEST} is not the file that was certified")
    if found.config_digest != program.config.digest:
        raise CertificateError(
            f"{path} is of configuration {found.config_digest:#010x}, the program of {program.config.digest:#010x}"
        )
    if len(found.parts) != len(program.device_programs):
        raise CertificateError(
            f"{path} has {len(found.parts)} parts, and the program {len(program.device_programs)}: it was edited"
        )


def _networks_in(folder: Path, found: Certificate) -> list[bytes]:
    """The networks in a folder, which are those that a certificate names. Raises `CertificateError`."""
    networks = []
    for index, part in enumerate(found.parts):
        path = folder / _graph_file(index)
        try:
            networks.append(read_file(path, size=part.graph_bytes))
        except ProgramFileError as error:
            raise CertificateError(f"{error} with --certify") from None
        if hash_of(networks[-1]) != part.graph_sha256:
            raise CertificateError(
                f"{path} is not the network that {CERTIFICATE} names: its checksum does not match"
            )
    return networks


def _check_model(
    program: Program,
    folder: Path,
    found: Certificate,
    networks: Sequence[bytes],
    model: Path,
    shapes: Mapping[str, int] | None,
    states: Mapping[str, str] | None,
) -> None:
    """Raises `CertificateError` if the host's parts of a program, or the networks beside it, are not a model's."""
    if _model_hash(model) != found.model_sha256:
        raise CertificateError(f"{folder / CERTIFICATE} is of another model than {model}")
    graph = import_model(model, config=program.config, shapes=shapes, states=states)
    for rewrite in found.roundings:
        again = apply_rewrite(graph, rewrite)
        if again is None:
            raise CertificateError(
                f"{folder / CERTIFICATE}: the network of {model} has no rewrite {rewrite.summary!r}: it was edited"
            )
        graph = again
    wrong = differences(program.compiled, graph)
    own = _networks_of(segment for segment in graph.segments if isinstance(segment, DeviceSegment))
    wrong += [
        f"{_graph_file(index)} is another network"
        for index, (given, meant) in enumerate(zip(networks, own, strict=False))
        if given != meant
    ]
    if wrong:
        raise CertificateError(f"{folder} is no program of {model}: {'; '.join(wrong)}")


def _model_hash(model: Path) -> str:
    with model.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(program: Program) -> str:
    """The hash of the manifest that a program was read from. Raises `CertificateError`."""
    if program.compiled.digest is None:
        raise CertificateError(
            "a program is certified as it is in its folder: save it, and load it from there"
        )
    return program.compiled.digest


def _networks_of(segments: Iterable[DeviceSegment]) -> list[bytes]:
    return [encode(graph_of(segment)) for segment in segments]


def _parts(program: Program, networks: Sequence[bytes], told: Told) -> tuple[Part, ...]:
    """Prove every device program. Raises `CertificateError`."""
    if not program.device_programs:
        raise CertificateError("nothing of this program runs on the device, so there is nothing to prove")
    return tuple(
        _part(item, raw, program.config, told)
        for item, raw in zip(program.device_programs, networks, strict=True)
    )


def _part(item: DeviceProgram, raw: bytes, config: Config, told: Told) -> Part:
    placement = placement_of(item)
    if not placement.results:
        raise CertificateError(f"{item.name} is not proven: it has no output that anything reads")
    try:
        graph = decode(raw)
        proven = prove(graph, config, placement, secrets.randbits(64), told)
    except (Unproven, GraphError) as error:
        raise CertificateError(f"{item.name} is not proven: {error}") from None
    return Part(
        item.name, len(raw), hash_of(raw), len(graph.operators), proven.instructions, proven.compared,
        proven.values, proven.forms, proven.error, round(proven.seconds, 2),
    )  # fmt: skip


def _graph_file(index: int) -> str:
    return f"network{index}.graph"


def graph_of(segment: DeviceSegment) -> Graph:
    """A device segment as the front end made it, for the proof."""
    inputs: dict[str, int] = {}
    outputs: dict[str, int] = {}
    for op in segment.ops:
        inputs |= {view.buffer.name: view.buffer.size for view in op.sources if view.buffer.kind in _GIVEN}
        if op.dst.buffer.kind == "output":
            outputs[op.dst.buffer.name] = op.dst.buffer.size
    operators = tuple(map(_operator, segment.ops))
    return Graph(GRAPH_FORMAT, segment.name, operators, inputs, outputs, dict(segment.states))


def _operator(op: Any) -> Operator:
    numbers: dict[str, float] = {}
    texts: dict[str, str] = {}
    arrays: dict[str, Array] = {}
    windows: dict[str, Window] = {}
    for field in dataclasses.fields(op):
        value = getattr(op, field.name)
        if isinstance(value, bool | int | float):
            numbers[field.name] = float(value)
        elif isinstance(value, str):
            texts[field.name] = value
        elif isinstance(value, np.ndarray):
            arrays[field.name] = Array.of(value)
        elif isinstance(value, tuple) and value and all(isinstance(item, int) for item in value):
            arrays[field.name] = Array.of(np.array(value, np.int64))
        elif isinstance(value, Rounding):
            numbers |= {f"{field.name}.{name}": float(item) for name, item in vars(value).items()}
        elif isinstance(value, IrWindow):
            windows[field.name] = Window(value.kernel, value.stride, value.dilation, value.pad)
    sources = tuple(map(_view, op.sources))
    formula = formula_of(op.kernel, op.vectors) if isinstance(op, RowOp | WideConv) else None
    return Operator(
        type(op).__name__, op.name, sources, _view(op.dst), numbers, texts, arrays, windows, formula
    )


def formula_of(rows: Rows, vectors: Iterable[np.ndarray]) -> Formula:
    """The expressions of a kernel, operands first."""
    places: dict[int, int] = {}
    nodes: list[Node] = []

    def place(item: Expression) -> int:
        if id(item) not in places:
            operands = tuple(map(place, item.operands))
            places[id(item)] = len(nodes)
            nodes.append(Node(item.kind, operands, item.value, item.table))
        return places[id(item)]

    results = tuple(map(place, rows.result))
    return Formula(rows.columns, tuple(nodes), results, not rows.single, tuple(map(Array.of, vectors)))


def _view(view: IrView) -> View:
    start = (view.image, view.y, view.x, view.c)
    return View(view.buffer.name, view.shape, view.buffer.shape, start, view.step)


def placement_of(program: DeviceProgram) -> Placement:
    """Where `weft.run.runtime.Image` puts a program."""
    image = Image(program)
    kinds = {name: buffer.kind for name, buffer in program.buffers.items() if name in program.offsets}
    inputs = {
        name: (image.address(name), _layout(image, name)) for name, kind in kinds.items() if kind in _GIVEN
    }
    buffers = {
        name: (image.address(name), program.buffers[name].size)
        for name, kind in kinds.items()
        if kind not in ("input", "table")
    }
    results = tuple(name for name, kind in kinds.items() if kind in _READ)
    start = image.bases[CONSTANTS]
    return Placement(
        image.bases,
        start + program.entry,
        image.memory_bytes,
        [(start, image.read_only)],
        inputs,
        buffers,
        results,
    )


def _layout(image: Image, name: str) -> np.ndarray:
    """Which element each byte of an input's buffer is, or -1 less the byte that it always is."""
    shape = image.program.input_shape(name)
    size = int(np.prod(shape))

    def laid_out(numbers: np.ndarray) -> np.ndarray:
        raw = image.input_bytes(name, numbers.astype(np.uint8).view(np.int8).reshape(shape))
        return np.frombuffer(raw, np.uint8).astype(np.int64)

    ones, twos = laid_out(np.full(size, 1)), laid_out(np.full(size, 2))
    numbers = np.arange(size)
    found = sum(laid_out(numbers >> 8 * part & 0xFF) << 8 * part for part in range(_INDEX_BYTES))
    return np.where(ones == twos, -1 - ones, found)
