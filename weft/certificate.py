"""Certificates: that each device program of a compiled model computes its part of the network."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from weft.compiler.artefact import MANIFEST
from weft.compiler.backend import DeviceProgram
from weft.compiler.ir.graph import DeviceSegment, Rounding
from weft.compiler.ir.graph import View as IrView
from weft.compiler.ir.graph import Window as IrWindow
from weft.compiler.kernel.expressions import Expression, Rows
from weft.compiler.kernel.operators import RowOp
from weft.compiler.kernel.wide_conv import WideConv
from weft.compiler.machine.memory import CONSTANTS
from weft.errors import FileError
from weft.hdl.errors import WeftError
from weft.hdl.files import schema
from weft.program import Program
from weft.runtime import Image
from weft.sim.certify.graph import FORMAT as GRAPH_FORMAT
from weft.sim.certify.graph import (
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
from weft.sim.certify.proof import Placement, Proven, prove
from weft.sim.certify.words import Unproven

FORMAT = "weft certificate 1"
CERTIFICATE = "certificate.json"
_INDEX_BYTES = 4
_GIVEN = ("input", "state", "table")
"""Kinds of buffers that hold something when a program starts."""
Told = Callable[[str], None]


class CertificateError(WeftError, RuntimeError):
    """A program that is not proven, or not the one that was; the message says what does not match."""


class Part(msgspec.Struct, forbid_unknown_fields=True):
    """What is proven of one device program, and the hash of the network that it was compared with."""

    name: str
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

    `roundings` are the rewrites with which the network is not the model's, but rounds otherwise, within a budget.
    """

    format: str
    model_sha256: str
    program_sha256: str
    config_digest: int
    parts: tuple[Part, ...]
    roundings: tuple[str, ...] = ()

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


def certify(program: Program, folder: Path, model: bytes, told: Told) -> Certificate:
    """Prove the program that was saved to `folder`, and write networks and certificate there.

    Raises `CertificateError`.
    """
    for index, segment in enumerate(program.graphs):
        (folder / _graph_file(index)).write_bytes(encode(graph_of(segment)))
    made = Certificate(
        FORMAT,
        hashlib.sha256(model).hexdigest(),
        _hash(folder / MANIFEST),
        program.config.digest,
        tuple(_parts(program, folder, told)),
        () if program.roundings is None else tuple(item.told for item in program.roundings.used),
    )
    (folder / CERTIFICATE).write_text(schema.encode(made))
    return made


def verify(program: Program, folder: Path, model: bytes | None, told: Told) -> Certificate:
    """Prove the program in `folder` once more, and compare with its certificate.

    Raises `CertificateError` if anything does not match, `FileError` if there is no certificate.
    """
    found = read(folder)
    check(program, folder, found)
    if model is not None and hashlib.sha256(model).hexdigest() != found.model_sha256:
        raise CertificateError(f"{folder / CERTIFICATE} is of another model than this one")
    parts = tuple(_parts(program, folder, told))
    for index, (old, new) in enumerate(zip(found.parts, parts, strict=True)):
        for name in ("name", "graph_sha256", "operators", "instructions", "compared_bytes"):
            if getattr(old, name) != getattr(new, name):
                raise CertificateError(
                    f"{folder / CERTIFICATE}: {name} of part {index} is {getattr(old, name)!r}, not "
                    f"{getattr(new, name)!r}: it was edited"
                )
    return msgspec.structs.replace(found, parts=parts)


def check(program: Program, folder: Path, found: Certificate) -> None:
    """Raises `CertificateError` if a certificate is not of the program in `folder`; proves nothing."""
    path = folder / CERTIFICATE
    if found.program_sha256 != _hash(folder / MANIFEST):
        raise CertificateError(f"{path} is of another program: {MANIFEST} is not the file that was certified")
    if found.config_digest != program.config.digest:
        raise CertificateError(
            f"{path} is of configuration {found.config_digest:#010x}, the program of {program.config.digest:#010x}"
        )
    if len(found.parts) != len(program.device_programs):
        raise CertificateError(
            f"{path} has {len(found.parts)} parts, and the program {len(program.device_programs)}: it was edited"
        )


def read(folder: Path) -> Certificate:
    """The certificate of a program folder. Raises `FileError`."""
    path = folder / CERTIFICATE
    if not path.exists():
        raise FileError(f"{folder} has no {CERTIFICATE}: `weft compile --certify` writes one")
    try:
        return schema.decode(schema.read_bytes(path, schema.LIMIT), Certificate, format=FORMAT)
    except schema.SchemaError as error:
        raise FileError(f"{path}: {error}; compile the model again with --certify") from None


def _parts(program: Program, folder: Path, told: Told) -> list[Part]:
    parts = []
    for index, item in enumerate(program.device_programs):
        path = folder / _graph_file(index)
        try:
            raw = path.read_bytes()
            graph = decode(raw)
            proven = prove(graph, program.config, placement_of(item), secrets.randbits(64), told)
        except (Unproven, GraphError, OSError) as error:
            raise CertificateError(f"{item.name} is not proven: {error}") from None
        parts.append(_part(item, raw, graph, proven))
    return parts


def _part(item: DeviceProgram, raw: bytes, graph: Graph, proven: Proven) -> Part:
    return Part(
        item.name, hashlib.sha256(raw).hexdigest(), len(graph.operators), proven.instructions, proven.compared,
        proven.values, proven.forms, proven.error, round(proven.seconds, 2),
    )  # fmt: skip


def _graph_file(index: int) -> str:
    return f"network{index}.graph"


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


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
    """Where `weft.runtime.Image` puts a program."""
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
    start = image.bases[CONSTANTS]
    return Placement(
        image.bases, start + program.entry, image.memory_bytes, [(start, image.fixed)], inputs, buffers
    )


def _layout(image: Image, name: str) -> np.ndarray:
    """Which element each byte of an input's buffer is, or -1 less the byte that it always is."""
    shape = image.program.input_shape(name)
    size = int(np.prod(shape))

    def laid_out(numbers: np.ndarray) -> np.ndarray:
        raw = image.laid_out(name, numbers.astype(np.uint8).view(np.int8).reshape(shape))
        return np.frombuffer(raw, np.uint8).astype(np.int64)

    ones, twos = laid_out(np.full(size, 1)), laid_out(np.full(size, 2))
    numbers = np.arange(size)
    found = sum(laid_out(numbers >> 8 * part & 0xFF) << 8 * part for part in range(_INDEX_BYTES))
    return np.where(ones == twos, -1 - ones, found)
