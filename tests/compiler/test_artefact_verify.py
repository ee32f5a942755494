"""Compiled models whose parts do not fit each other: every class with its message, and random mutants of manifests and
of code, which are refused or run the same everywhere."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from support.manifests import manifest_of, refusal, write
from support.qdq_models import Builder

import weft
from weft.compiler.artefact import MANIFEST
from weft.compiler.backend import DeviceProgram
from weft.compiler.errors import CompileError
from weft.compiler.ir.model import HostSegment
from weft.compiler.ir.network import Network, Node, Type, decode, encode
from weft.hdl.errors import ProgramError
from weft.hdl.isa.config import PRESETS

Paths = tuple[Any, ...]


def network() -> onnx.ModelProto:
    """Rows side by side, results on chip and in memory, an addition, two device segments, and the host between."""
    builder = Builder(np.random.default_rng(1))
    x = builder.conv(builder.input((1, 1, 8, 8), unsigned=True), 24, (5, 5), pads=(2, 2, 2, 2))
    y = builder.conv(x, 24, (3, 3), pads=(1, 1, 1, 1))
    z = builder.add(x, y)
    middle = builder.node("LogSoftmax", [builder.dequantise(z)], axis=1)
    return builder.finish(builder.conv(builder.quantise(middle, z.shape, 0.05, 3, False), 4, (1, 1)))


@pytest.fixture(scope="module")
def program() -> weft.Program:
    compiled = weft.compile(network(), "tiny")
    kinds = [type(segment) for segment in compiled.segments]
    assert kinds.count(DeviceProgram) == 2
    assert HostSegment in kinds
    assert any(isinstance(segment, DeviceProgram) and segment.rows for segment in compiled.segments)
    return compiled


@pytest.fixture
def folder(program: weft.Program, tmp_path: Path) -> Path:
    program.save(tmp_path)
    return tmp_path


def at(manifest: Any, path: Paths) -> Any:
    for key in path:
        manifest = manifest[key]
    return manifest


def device(manifest: Any, index: int = 0) -> Any:
    return [entry for entry in manifest["segments"] if entry["kind"] == "device"][index]


def first(entries: dict[str, Any], **wanted: Any) -> str:
    return next(name for name, entry in entries.items() if all(entry[key] == wanted[key] for key in wanted))


def _offset_of_an_input(m: Any) -> None:
    program = device(m)
    program["offsets"][first(program["buffers"], kind="input")] = 1 << 32


def _offset_below_0(m: Any) -> None:
    program = device(m)
    program["offsets"][first(program["buffers"], kind="output")] = -64


def _moved_output(m: Any) -> None:
    """The program's STOREs then write beside it."""
    program = device(m)
    program["offsets"][first(program["buffers"], kind="output")] += 4096


def _outputs_in_one_place(m: Any) -> None:
    program = device(m)
    name = first(program["buffers"], kind="output")
    program["buffers"]["twin"] = program["buffers"][name] | {"name": "twin"}
    program["offsets"]["twin"] = program["offsets"][name]
    item = next(item for item in m["from_device"] if item["buffer"]["name"] == name)
    m["from_device"].append(item | {"value": "twin", "buffer": item["buffer"] | {"name": "twin"}})


def _input_that_is_written(m: Any) -> None:
    """An input in the place of the program's temporaries."""
    program = device(m)
    program["buffers"][first(program["buffers"], kind="output")]["kind"] = "temp"


def _nobody_fills(m: Any) -> None:
    m["to_device"].pop(0)


def _twice(m: Any) -> None:
    m["to_device"].append(m["to_device"][0])


def _unknown_buffer(m: Any) -> None:
    m["from_device"][0]["buffer"]["name"] = "\x1b[2J"


def _value_of_nobody(m: Any) -> None:
    m["to_device"][0]["value"] = "none"


def _output_of_nobody(m: Any) -> None:
    m["outputs"]["none"] = ["float32", [1]]


def _output_of_another_shape(m: Any) -> None:
    (name,) = m["outputs"]
    m["outputs"][name][1][2] += 1


def _dtype(m: Any) -> None:
    (name,) = m["inputs"]
    m["inputs"][name][0] = "float31"


def _another_dtype(m: Any) -> None:
    (name,) = m["inputs"]
    m["inputs"][name][0] = "float64"


def _huge(m: Any) -> None:
    (name,) = m["inputs"]
    m["inputs"][name][1] = [1, 1 << 20, 1 << 20]


def _negative(m: Any) -> None:
    (name,) = m["inputs"]
    m["inputs"][name][1][0] = -1


def _perm(m: Any) -> None:
    m["to_device"][0]["perm"] = [0, 0, 1, 2]


def _transfer_of_another_size(m: Any) -> None:
    m["to_device"][0]["shape"][0] += 1


def _make_unsigned(m: Any) -> None:
    m["to_device"][0]["unsigned"] ^= True


def _wide(m: Any) -> None:
    m["to_device"][0]["wide"] ^= True


def _wide_output(m: Any) -> None:
    m["from_device"][0]["wide"] ^= True


def _wide_of_half_the_size(m: Any) -> None:
    """As many bytes as there are, as half as many elements."""
    item = m["from_device"][0]
    for shape in (item["nhwc"], item["shape"], item["model_shape"]):
        shape[next(index for index, size in enumerate(shape) if size % 2 == 0)] //= 2
    item["wide"] = True


def _rows(m: Any) -> None:
    (rows,) = device(m)["rows"].values()
    rows["kernel"] += 1


def _no_rows(m: Any) -> None:
    (rows,) = device(m)["rows"].values()
    rows["kernel"] = 0


def _rows_of_an_output(m: Any) -> None:
    program = device(m)
    (rows,) = program["rows"].values()
    program["rows"][first(program["buffers"], kind="output")] = rows


def _queue_twice(m: Any) -> None:
    device(m)["layers"][0]["queued"]["MM"] += 1


def _write_input(m: Any) -> None:
    device(m)["layers"][-1]["written_bytes"] += 1


def _macs(m: Any) -> None:
    device(m)["layers"][0]["macs"] = -1


def _queue_names(m: Any) -> None:
    device(m)["layers"][0]["cycles"].pop("VEC")


def _queued_names(m: Any) -> None:
    device(m)["layers"][0]["queued"].pop("VEC")


def _buffer_name(m: Any) -> None:
    next(iter(device(m)["buffers"].values()))["name"] = "other"


def _no_place(m: Any) -> None:
    device(m)["offsets"].popitem()


def _pages(m: Any) -> None:
    next(iter(device(m)["buffers"].values()))["kind"] = "pages"


def _two_segments(m: Any) -> None:
    name = first(device(m, 1)["buffers"], kind="input")
    device(m)["buffers"][name] = device(m, 1)["buffers"][name]
    device(m)["offsets"][name] = 1 << 20


def _constants(m: Any) -> None:
    device(m)["constants"] = 1 << 40


def _code_as_constants(m: Any) -> None:
    device(m)["constants"] -= 1


def _size(m: Any) -> None:
    device(m)["bytes"] += 1


def _config(m: Any) -> None:
    m["config"] = PRESETS["small"].to_dict()


def _config_field(m: Any) -> None:
    m["config"]["n"] = 5


def _order(m: Any) -> None:
    m["assignment"][0] = ["a", "b", "c"]


def _spare(m: Any) -> None:
    device(m)["file"] = "../../etc/passwd"


CLASSES = {
    _offset_of_an_input: "bytes at offset 4294967296 are not in memory, which ends at 4294967296",
    _offset_below_0: "is at offset -64",
    _moved_output: "(STORE): writes bytes ",
    _outputs_in_one_place: "overlap in memory",
    _input_that_is_written: "which is not an output buffer",
    _nobody_fills: "no value is transferred for input ",
    _twice: "two values are written to one input",
    _unknown_buffer: "is in buffer '\\x1b[2J', which is in no segment",
    _value_of_nobody: "the device's 'none' is never computed",
    _output_of_nobody: "output 'none' is never computed",
    _output_of_another_shape: "is float32 of shape (1, 4, 8, 8), but float32 of shape (1, 4, 9, 8) is expected",
    _dtype: "has dtype 'float31', which numpy does not know",
    _another_dtype: "is float64 of shape (1, 1, 8, 8), but float32 of shape (1, 1, 8, 8) is expected",
    _huge: "is float32 of shape (1, 1048576, 1048576), which is more than 4294967296 bytes",
    _negative: "has shape (-1, 1, 8, 8)",
    _perm: "(0, 0, 1, 2) is not a permutation of 4 axes",
    _transfer_of_another_size: "which does not fill ",
    _make_unsigned: "but int8 of shape",
    _wide: "which does not fill ",
    _wide_output: "which does not fill ",
    _wide_of_half_the_size: "is uint16 of shape (1, 12, 8, 8), but ",
    _rows: "do not fit its shape",
    _no_rows: "do not fit its shape",
    _rows_of_an_output: "only input buffers have interleaved rows",
    _queue_twice: "instructions for MM, but its layers have",
    _write_input: "bytes, not ",
    _macs: "has a number that is negative or too large",
    _queue_names: "must have the queues LOAD, MM, VEC, STORE",
    _queued_names: "must have the queues LOAD, MM, VEC, STORE",
    _buffer_name: "is named 'other'",
    _no_place: "is missing from buffers or from offsets",
    _pages: "is of kind 'pages', not temp, input, output",
    _two_segments: "two segments have a buffer ",
    _constants: "so no 1099511627776 bytes of constants",
    _code_as_constants: "a program is a multiple of",
    _size: "is damaged: it has ",
    _config: "instruction ",
    _config_field: "configuration field 'n' must be a power of two from 2 to 128, not 5",
    _order: "assignment[0]: expected array of length 4; compile",
    _spare: "object contains unknown field file",
}


@pytest.mark.parametrize("change", CLASSES, ids=lambda change: change.__name__.strip("_"))
def test_classes(folder: Path, change: Any) -> None:
    manifest = manifest_of(folder)
    change(manifest)
    write(folder, manifest)
    assert CLASSES[change] in refusal(folder)


@pytest.mark.parametrize(
    "raw", ["null", "[]", "3", '"x"', "{}", "[" * 100_000, "9" * 5000, '{"format": "weft program 8"}']
)
def test_manifests_that_are_something_else(folder: Path, raw: str) -> None:
    (folder / MANIFEST).write_text(f"{raw}\n{hashlib.sha256(raw.encode()).hexdigest()}\n")
    assert MANIFEST in refusal(folder)


def _no_types(network: Network) -> Network:
    return dataclasses.replace(network, types={})


def _no_shape(network: Network) -> Network:
    (name, *_), types = network.outputs, dict(network.types)
    return dataclasses.replace(network, types=types | {name: Type(types[name].dtype, None)})


def _huge_output(network: Network) -> Network:
    (name, *_), types = network.outputs, dict(network.types)
    return dataclasses.replace(network, types=types | {name: Type(types[name].dtype, (1 << 20, 1 << 20))})


def _unmade_input(network: Network) -> Network:
    types = {**network.types, "none": Type("float32", (1,))}
    return dataclasses.replace(network, inputs=(*network.inputs, "none"), types=types)


def _unmade_operand(network: Network) -> Network:
    first, *rest = network.nodes
    return _of_nodes(network, dataclasses.replace(first, inputs=("none", *first.inputs[1:])), *rest)


def _of_nodes(network: Network, *nodes: Node) -> Network:
    return dataclasses.replace(network, nodes=nodes)


def _attribute(value: Any) -> Callable[[Network], Network]:
    def change(network: Network) -> Network:
        first, *rest = network.nodes
        attributes = {**first.attributes, "axis": value}
        return _of_nodes(network, dataclasses.replace(first, attributes=attributes), *rest)

    return change


def _opset(domain: str, version: int) -> Callable[[Network], Network]:
    return lambda network: dataclasses.replace(network, opsets={domain: version})


NETWORKS = {
    "types": (_no_types, "of host segment 'host0' has no type, or no shape"),
    "shape": (_no_shape, "of host segment 'host0' has no type, or no shape"),
    "size": (_huge_output, "which is more than 4294967296 bytes"),
    "input": (_unmade_input, "'none' of host segment 'host0' is never computed"),
    "operand": (
        _unmade_operand,
        "host segment 'host0' is not valid (Nodes in a graph must be topologically",
    ),
    "large attribute": (_attribute((1 << 64) - 1), "host segment 'host0' is not valid ("),
    "mixed attribute": (_attribute((1, "a")), "host segment 'host0' is not valid ("),
    "another attribute": (_attribute("a"), "host segment 'host0' is not valid ("),
    "empty attribute": (_attribute(()), "host segment 'host0' is not valid ("),
    "large version": (_opset("", 1 << 40), "host segment 'host0' is not valid ("),
    "no version": (_opset("other", 1), "host segment 'host0' is not valid ("),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_for_the_host(folder: Path, name: str) -> None:
    change, expected = NETWORKS[name]
    raw = encode(change(decode((folder / "segment0.host").read_bytes())))
    seal(folder, manifest_of(folder), 0, raw)
    assert expected in refusal(folder)


def test_bytes_that_are_no_network(folder: Path) -> None:
    seal(folder, manifest_of(folder), 0, b"\xff\xff\xff")
    assert "segment0.host: " in refusal(folder)


def test_a_pipe_instead_of_a_file(folder: Path) -> None:
    (folder / "segment0.host").unlink()
    os.mkfifo(folder / "segment0.host")
    assert "segment0.host is damaged: it is not a regular file" in refusal(folder)


STRANGE = [
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 255, 4096, 1 << 16, 1 << 31, 1 << 32, 1 << 40, -(1 << 31), 1 << 63,
    1 << 64, 10**4000, 0.5, -1.5, 1e300, "", "x", "float32", "uint8", "int8", "object", "temp", "input", "output",
    "\x00", "../../x", "\u202e", "a" * 20_000, [], [1], {}, {"a": 1}, [[[]]],
]  # fmt: skip


def paths(node: Any, path: Paths = ()) -> Iterator[Paths]:
    if path:
        yield path
    for key, value in (
        node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    ):
        yield from paths(value, (*path, key))


def mutant(rng: random.Random, manifest: Any) -> Any:
    """One value is missing, doubled, another one's, a little more or less, or anything."""
    result = copy.deepcopy(manifest)
    everywhere = list(paths(result))
    path = rng.choice(everywhere)
    parent, key = at(result, path[:-1]), path[-1]
    kind = rng.randrange(6)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(rng.choice(parent)))
    elif kind == 2 and type(parent[key]) is int:
        parent[key] += rng.choice([-64, -1, 1, 64, 256])
    elif kind == 3:
        alike = [other for other in everywhere if type(at(result, other)) is type(parent[key])]
        parent[key] = copy.deepcopy(at(result, rng.choice(alike)))
    else:
        parent[key] = copy.deepcopy(rng.choice(STRANGE))
    return result


def try_load(folder: Path) -> weft.Program | None:
    """The program, if it is not refused in one sentence."""
    try:
        return weft.load(folder)
    except (CompileError, ProgramError) as error:
        text = str(error)
    assert text.isprintable()
    assert len(text) < 700
    return None


def run(program: weft.Program, on: Any) -> weft.Result:
    rng = np.random.default_rng(0)
    return program.run(
        {name: rng.normal(0, 1, shape).astype(dtype) for name, (dtype, shape) in program.inputs.items()}, on
    )


@pytest.mark.drawn(1)
@pytest.mark.parametrize("seed", range(4))
def test_mutants_of_manifests(folder: Path, seed: int) -> None:
    rng, manifest, ran = random.Random(seed), manifest_of(folder), 0
    for _ in range(60):
        write(folder, mutant(rng, manifest))
        if program := try_load(folder):
            run(program, "golden")
            run(program, "timing")
            ran += 1
    assert 2 < ran < 40


def seal(folder: Path, manifest: Any, index: int, raw: bytes) -> None:
    """Another content of a segment's file, with the size and checksum that belong to it."""
    result = copy.deepcopy(manifest)
    result["segments"][index] |= {"sha256": "new", "bytes": len(raw)}
    next(folder.glob(f"segment{index}.*")).write_bytes(raw)
    write(folder, result)


def mutants_of_networks(program: weft.Program, folder: Path, seed: int, count: int) -> None:
    rng, manifest, ran = random.Random(seed), manifest_of(folder), 0
    hosts = [index for index, entry in enumerate(manifest["segments"]) if entry["kind"] == "host"]
    stored = {
        index: msgspec.msgpack.decode((folder / f"segment{index}.host").read_bytes()) for index in hosts
    }
    for _ in range(count):
        program.save(folder)
        index = rng.choice(hosts)
        try:
            raw = msgspec.msgpack.encode(mutant(rng, stored[index]))
        except OverflowError:  # integers of more than 64 bits
            continue
        seal(folder, manifest, index, raw)
        if actual := try_load(folder):
            with contextlib.suppress(CompileError):
                run(actual, "golden")
                ran += 1
    assert count // 50 < ran < count


@pytest.mark.drawn(1)
@pytest.mark.parametrize("seed", range(5, 9))
def test_mutants_of_networks(program: weft.Program, folder: Path, seed: int) -> None:
    mutants_of_networks(program, folder, seed, 60)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_mutants_of_networks(program: weft.Program, folder: Path, seed: int) -> None:
    mutants_of_networks(program, folder, seed, 2000)


def mutate_code(rng: random.Random, folder: Path, manifest: Any) -> Any:
    """A few flipped bits in instructions."""
    result = copy.deepcopy(manifest)
    index = rng.choice([index for index, entry in enumerate(result["segments"]) if entry["kind"] == "device"])
    raw = bytearray((folder / f"segment{index}.bin").read_bytes())
    for _ in range(rng.choice([1, 1, 2])):
        bit = rng.randrange(8 * result["segments"][index]["constants"], 8 * len(raw))
        raw[bit // 8] ^= 1 << bit % 8
    (folder / f"segment{index}.bin").write_bytes(raw)
    result["segments"][index]["sha256"] = "new"
    return result


def differing(program: weft.Program) -> bool:
    golden, rtl, timing = (run(program, on) for on in ("golden", "rtl", "timing"))
    same = all(
        np.array_equal(rtl.outputs[name], value, equal_nan=True) for name, value in golden.outputs.items()
    )
    assert timing.report["cycles"] is not None
    return rtl.memory != golden.memory or not same


def mutants_on_rtl(program: weft.Program, folder: Path, seed: int, count: int) -> None:
    rng, manifest, ran = random.Random(seed), manifest_of(folder), 0
    for _ in range(count):
        program.save(folder)
        result = mutate_code(rng, folder, manifest) if rng.random() < 0.7 else mutant(rng, manifest)
        write(folder, result)
        actual = try_load(folder)
        if actual is not None and actual.config == program.config:
            assert not differing(actual)
            ran += 1
    assert ran > count // 8


@pytest.mark.drawn(1)
@pytest.mark.parametrize("seed", range(5, 9))
def test_accepted_mutants_run_equally_on_the_rtl(program: weft.Program, folder: Path, seed: int) -> None:
    mutants_on_rtl(program, folder, seed, 16)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_mutants_run_the_same_on_the_rtl(program: weft.Program, folder: Path, seed: int) -> None:
    mutants_on_rtl(program, folder, seed, 1000)
