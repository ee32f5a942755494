"""Certificates: proofs that the device programs of a compiled model compute its network."""

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
from weft.compiler.artefact import MANIFEST, hash_of, read_file
from weft.compiler.backend import DeviceProgram
from weft.compiler.errors import ProgramFileError
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import DeviceSegment, Rounding
from weft.compiler.ir.views import View as IrView
from weft.compiler.ir.windows import Window as IrWindow
from weft.compiler.kernel.expressions import Expression, Rows
from weft.compiler.kernel.operators import RowOp
from weft.compiler.kernel.wide import WideConv
from weft.compiler.machine.areas import CONSTANTS
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
from weft.extras.proof.programs.value_device import Unproven
from weft.hdl import schema
from weft.hdl.errors import SchemaError, WeftError
from weft.hdl.extras import provider
from weft.hdl.isa.config import Config
from weft.run.program import Program
from weft.run.runtime import Image

FORMAT = "weft certificate 2"
CERTIFICATE = "certificate.json"
_INDEX_BYTES = 4
_INPUT_KINDS = ("input", "state", "table")
"""Kinds of buffers with contents before a run: from the host, or from the previous run."""
_RESULT_KINDS = ("output", "state")
"""Kinds of buffers that the host or the next run reads."""
_REPEATABLE = ("name", "operators", "instructions", "compared_bytes")
"""Fields of a part that are equal in every proof of it; others depend on random numbers and time."""
Progress = Callable[[str], None]


class CertificateError(WeftError, RuntimeError):
    """A failed proof, or a certificate that does not match; the message gives the difference."""


class Part(msgspec.Struct, forbid_unknown_fields=True):
    """Proof of one device program, with the size and the hash of its network's file."""

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


class Rewrite(msgspec.Struct, forbid_unknown_fields=True):
    """Rewrite of a network: its rules, its operator, and cycles before and after it."""

    rules: tuple[str, ...]
    operator: str
    before: int
    # Certificates that exist have this name in their files.
    after: int = msgspec.field(name="behind")


class Certificate(msgspec.Struct, forbid_unknown_fields=True):
    """Certificate of `weft compile --certify`: hashes of the model, the program and its configuration, and the proofs.

    It has no signature: anybody who can write to the folder can write any certificate. `roundings` are the rewrites
    that change the model's rounding, within a budget, before the network is compared.
    """

    format: str
    model_sha256: str
    program_sha256: str
    config_digest: int
    parts: tuple[Part, ...]
    roundings: tuple[Rewrite, ...] = ()

    @property
    def lines(self) -> list[str]:
        """Summary: a line for each part, and one for rewrites that change the rounding."""
        lines = [
            f"{part.name}: all {part.compared_bytes:,} bytes of outputs are proven: {part.instructions:,} instructions "
            f"compute the network's {part.operators:,} operators ({part.seconds:.1f} s, wrong with a probability below "
            f"2**{part.error_log2:g})"
            for part in self.parts
        ]
        if count := len(self.roundings):
            lines.append(
                f"the network is the model's after {count:,} rewrites with different rounding: {CERTIFICATE} lists them"
            )
        return lines


@dataclass(frozen=True)
class Verified:
    """Certificate with new proofs, and the name of the model that was imported; None for the folder's network."""

    certificate: Certificate
    model: str | None

    @property
    def lines(self) -> list[str]:
        """Summary: the certificate's, and a line with the origin of the network."""
        if self.model is None:
            origin = (
                "the network and the host's parts come from the folder: `weft verify --model MODEL` compares them with "
                "a model"
            )
        else:
            origin = f"the network and the host's parts are those of {self.model}, which was imported again"
        return [*self.certificate.lines, origin]

    @property
    def json(self) -> dict[str, Any]:
        """The certificate as JSON values; ``network`` is the origin of the network, "model" or "folder"."""
        fields: dict[str, Any] = msgspec.to_builtins(self.certificate)
        return fields | {"network": "folder" if self.model is None else "model"}


def certify(program: Program, folder: Path, model: Path, progress: Progress) -> Certificate:
    """Load the program that was saved to `folder`, prove it, and write its networks and certificate there.

    Raises `CertificateError`.
    """
    networks = _networks_of(program.graphs)
    for index, raw in enumerate(networks):
        (folder / _graph_file(index)).write_bytes(raw)
    saved = load(folder)
    certificate = Certificate(
        FORMAT,
        _model_hash(model),
        _digest(saved),
        saved.config.digest,
        _prove_parts(saved, networks, progress),
        msgspec.convert(
            program.roundings.used if program.roundings else (), tuple[Rewrite, ...], from_attributes=True
        ),
    )
    (folder / CERTIFICATE).write_text(schema.encode(certificate))
    return certificate


def verify(
    program: Program,
    folder: Path,
    progress: Progress = lambda text: None,
    *,
    model: Path | None = None,
    shapes: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
) -> Verified:
    """Prove a program again that was read from `folder`, and compare the proof with the certificate there.

    The proof is of `program` itself. It may be run afterwards, even if the folder has changed.

    Parameters
    ----------
    program : Program
        Result of `weft.load`.
    folder : Path
    progress : callable
        Is called with a description of each step.
    model : Path, optional
        The model to compare with: it is imported again. The networks of the proof, the host's parts, transfers, states,
        inputs and outputs have to be the model's. Without it, all of these are the folder's.
    shapes, states
        Arguments of `weft.compile`, if the model was compiled with them.

    Raises
    ------
    CertificateError
        If the proof fails or something does not match.
    FileError
        If there is no certificate.
    CompileError
        If the model cannot be read.
    """
    certificate = _read(folder)
    _check_program(program, folder, certificate)
    networks = _read_networks(folder, certificate)
    if model is not None:
        _check_model(program, folder, certificate, networks, model, shapes, states)
    parts = _prove_parts(program, networks, progress)
    for index, (old, new) in enumerate(zip(certificate.parts, parts, strict=True)):
        for name in _REPEATABLE:
            if getattr(old, name) != getattr(new, name):
                raise CertificateError(
                    f"{folder / CERTIFICATE}: {name} of part {index} is {getattr(old, name)!r}, not "
                    f"{getattr(new, name)!r}: it was edited"
                )
    return Verified(msgspec.structs.replace(certificate, parts=parts), None if model is None else model.name)


def _read(folder: Path) -> Certificate:
    path = folder / CERTIFICATE
    try:
        return schema.decode(schema.read_bytes(path), Certificate, format=FORMAT)
    except FileNotFoundError:
        raise FileError(f"{folder} has no {CERTIFICATE}: `weft compile --certify` writes one") from None
    except SchemaError as error:
        raise FileError(f"{path}: {error}; compile the model again with --certify") from None


def _check_program(program: Program, folder: Path, certificate: Certificate) -> None:
    """Raise `CertificateError` if the certificate belongs to another program."""
    path, config = folder / CERTIFICATE, program.config
    if certificate.program_sha256 != _digest(program):
        raise CertificateError(f"{path} belongs to another program: {MANIFEST} is not the certified file")
    if certificate.config_digest != config.digest:
        raise CertificateError(
            f"{path} is for configuration {certificate.config_digest:#010x}, the program for {config.digest:#010x}"
        )
    if (count := len(certificate.parts)) != len(program.device_programs):
        raise CertificateError(
            f"{path} has {count} parts, and the program {len(program.device_programs)}: it was edited"
        )


def _read_networks(folder: Path, certificate: Certificate) -> list[bytes]:
    """Read the networks' files in a folder. Raises `CertificateError` if their hashes do not match."""
    networks = []
    for index, part in enumerate(certificate.parts):
        path = folder / _graph_file(index)
        try:
            networks.append(read_file(path, size=part.graph_bytes))
        except ProgramFileError as error:
            raise CertificateError(f"{error} with --certify") from None
        if hash_of(networks[-1]) != part.graph_sha256:
            raise CertificateError(f"{path} is not the network of {CERTIFICATE}: its checksum does not match")
    return networks


def _check_model(
    program: Program,
    folder: Path,
    certificate: Certificate,
    networks: Sequence[bytes],
    model: Path,
    shapes: Mapping[str, int] | None,
    states: Mapping[str, str] | None,
) -> None:
    """Raise `CertificateError` if the networks in the folder or the host's parts of a program are not the model's."""
    if _model_hash(model) != certificate.model_sha256:
        raise CertificateError(f"{folder / CERTIFICATE} belongs to another model than {model}")
    graph = import_model(model, config=program.config, shapes=shapes, states=states)
    for rewrite in certificate.roundings:
        rewritten = provider("apply a rewrite")(graph, rewrite)
        if rewritten is None:
            raise CertificateError(
                f"{folder / CERTIFICATE}: the network of {model} has no rewrite "
                f"{'; '.join(rewrite.rules)!r} at {rewrite.operator!r}: it was edited"
            )
        graph = rewritten
    wrong = differences(program.compiled, graph)
    expected = _networks_of(segment for segment in graph.segments if isinstance(segment, DeviceSegment))
    wrong += [
        f"{_graph_file(index)} is another network"
        for index, (raw, expected_raw) in enumerate(zip(networks, expected, strict=False))
        if raw != expected_raw
    ]
    if wrong:
        raise CertificateError(f"{folder} is not a program of {model}: {'; '.join(wrong)}")


def _model_hash(model: Path) -> str:
    with model.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(program: Program) -> str:
    """Return the hash of the manifest that a program was read from. Raises `CertificateError` without a manifest."""
    if program.compiled.digest is None:
        raise CertificateError(
            "only a program from a folder can be certified: save it, and load it from there"
        )
    return program.compiled.digest


def _networks_of(segments: Iterable[DeviceSegment]) -> list[bytes]:
    return [encode(graph_of(segment)) for segment in segments]


def _prove_parts(program: Program, networks: Sequence[bytes], progress: Progress) -> tuple[Part, ...]:
    if not program.device_programs:
        raise CertificateError("nothing of this program runs on the device, so there is nothing to prove")
    return tuple(
        _prove_part(item, raw, program.config, progress)
        for item, raw in zip(program.device_programs, networks, strict=True)
    )


def _prove_part(item: DeviceProgram, raw: bytes, config: Config, progress: Progress) -> Part:
    placement = placement_of(item)
    if not placement.results:
        raise CertificateError(
            f"{item.name} is not proven: neither the host nor the next run reads its outputs"
        )
    try:
        graph = decode(raw)
        proven = prove(graph, config, placement, secrets.randbits(64), progress)
    except (Unproven, GraphError) as error:
        raise CertificateError(f"{item.name} is not proven: {error}") from None
    return Part(
        item.name,
        len(raw),
        hash_of(raw),
        len(graph.operators),
        proven.instructions,
        proven.compared,
        proven.values,
        proven.forms,
        proven.error,
        round(proven.seconds, 2),
    )


def _graph_file(index: int) -> str:
    return f"network{index}.graph"


def graph_of(segment: DeviceSegment) -> Graph:
    """Convert a device segment, as the front end made it, to a network for the proof."""
    inputs: dict[str, int] = {}
    outputs: dict[str, int] = {}
    for op in segment.ops:
        inputs |= {
            view.buffer.name: view.buffer.size for view in op.sources if view.buffer.kind in _INPUT_KINDS
        }
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
    """Convert a kernel's expressions to nodes, operands before their users."""
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
    """Return the addresses at which `weft.run.runtime.Image` places a program and its buffers."""
    image = Image(program)
    kinds = {name: buffer.kind for name, buffer in program.buffers.items() if name in program.offsets}
    inputs = {
        name: (image.address(name), _layout(image, name))
        for name, kind in kinds.items()
        if kind in _INPUT_KINDS
    }
    buffers = {
        name: (image.address(name), program.buffers[name].size)
        for name, kind in kinds.items()
        if kind not in ("input", "table")
    }
    results = tuple(name for name, kind in kinds.items() if kind in _RESULT_KINDS)
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
    """Return the index of each byte's element in an input's buffer, or ``-1 - byte`` for a constant byte."""
    shape = image.program.input_shape(name)
    size = int(np.prod(shape))

    def buffer_bytes(numbers: np.ndarray) -> np.ndarray:
        raw = image.input_bytes(name, numbers.astype(np.uint8).view(np.int8).reshape(shape))
        return np.frombuffer(raw, np.uint8).astype(np.int64)

    # The buffer of known inputs shows the layout: constant bytes do not change with the input, and buffers of the
    # elements' indices, one byte at a time, show where each element is.
    ones, twos = buffer_bytes(np.full(size, 1)), buffer_bytes(np.full(size, 2))
    numbers = np.arange(size)
    index = sum(buffer_bytes(numbers >> 8 * part & 0xFF) << 8 * part for part in range(_INDEX_BYTES))
    return np.where(ones == twos, -1 - ones, index)
