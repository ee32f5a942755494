"""Model commands with real models: reports agree with the programs they describe."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_static
from onnxruntime.quantization.calibrate import CalibrationDataReader

import weft
from weft import __main__ as command
from weft.boards.registry import BOARDS
from weft.compiler.pipeline import PIPELINE
from weft.errors import InputError
from weft.examples import load
from weft.hdl.isa.config import PRESETS

WITHOUT = PRESETS["tiny"].replace(probability_bits=0)
FOLLOWS = ("its result is read on the host", "its input is computed on the host")
PART = re.compile(r"(\d+) of (\d+) nodes run on the device")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("digits", "attention"):
        Path(f"{name}.onnx").write_bytes(load(name).model())
    np.savez("digit.npz", image=load("digits").held_out()[0][:1])
    Path("none.json").write_text(json.dumps({"preset": "tiny", "probability_bits": 0}))
    return tmp_path


def open_batch() -> None:
    """The digits network with an open batch dimension."""
    model = onnx.load("digits.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "images"
    del model.graph.value_info[:]
    onnx.save(model, "open.onnx")


def test_sizes_of_open_dimensions(capsys: pytest.CaptureFixture[str]) -> None:
    open_batch()
    assert call("check", "open.onnx") == 2
    assert (
        "give its size with --shape images=1, or in Python with shapes={'images': 1}"
        in capsys.readouterr().err
    )
    for command_ in (["check"], ["compile", "-o", "program"]):
        assert call(*command_, "open.onnx", "--config", "tiny", "--shape", "images=1") == 0
        assert call(*command_, "open.onnx", "--config", "tiny", "--shape", "other=1") == 2
        assert "the model's inputs have no open dimension 'other'; it has 'images'" in capsys.readouterr().err
    assert weft.load("program").inputs["image"][1][0] == 1
    capsys.readouterr()
    assert call("run", "program", "--input", "digit.npz") == 0
    line = r"^host: [\d.]+ ms for 2 parts of the model; most of it, [\d.]+ ms, for host\d \((Deq|Q)uantise\)$"
    assert re.search(line, capsys.readouterr().out, re.MULTILINE)
    for wrong in ("images", "images=0", "=1", "images=-1", "images=one"):
        assert call("check", "open.onnx", "--shape", wrong) == 2
        assert f"'{wrong}' is not NAME=SIZE with a whole number above 0" in capsys.readouterr().err.replace(
            "\n", ""
        )
    with pytest.raises(InputError, match=r"^\"shapes\['images'\]\" must be an integer"):
        weft.check("open.onnx", shapes={"images": 0})
    with pytest.raises(InputError, match=r"^'shapes' must be a mapping of names to sizes, not list$"):
        weft.check("open.onnx", shapes=["images"])  # type: ignore[arg-type]


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        command.main(list(arguments))
    return int(stop.value.code or 0)


@pytest.mark.parametrize("model", ["digits", "attention"])
@pytest.mark.parametrize("config", ["tiny", "none.json", "icebreaker", "ulx3s-12f"])
def test_compile_and_check_report_where_nodes_run(
    model: str, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("compile", f"{model}.onnx", "-o", "program", "--config", config) == 0
    compiled = capsys.readouterr().out
    assert call("check", f"{model}.onnx", "--config", config) == 0
    checked = capsys.readouterr().out
    assert call("check", f"{model}.onnx", "--config", config, "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    program = weft.load("program")
    host = [node for node in program.assignment if node[2] == "host"]
    numbers = (str(len(program.assignment) - len(host)), str(len(program.assignment)))
    for text in (compiled, checked):
        match = PART.search(text)
        assert match is not None
        assert match.groups() == numbers
    # Count the nodes of host segments and the graph's inputs and outputs independently.
    inside = sum(len(part.nodes) for part in program.segments if hasattr(part, "nodes"))
    assert 0 <= len(host) - inside <= 2 * (len(program.inputs) + len(program.outputs))
    assert len(compiled.splitlines()) == 2 + len(host)
    lines = checked.splitlines()
    assert PART.search(lines[1 + len(program.assignment)])
    crossing = sum(
        part.buffer.size for part in (*program._compiled.to_device, *program._compiled.from_device)
    )
    assert f"; {crossing:,} bytes cross between host and device" in lines[2 + len(program.assignment)]
    assert listed["bytes_to_device"] + listed["bytes_from_device"] == crossing
    reasons = {
        line.split(maxsplit=1)[1].strip(): int(line.split()[0])
        for line in lines[4 + len(program.assignment) :]
    }
    own = [node[3] for node in host if not node[3].startswith(FOLLOWS)]
    assert sum(reasons.values()) == len(own)
    assert all(any(reason.startswith(told) for reason in own) for told in reasons)
    assert listed["format"] == "weft check 1"
    assert [tuple(node.values()) for node in listed["nodes"]] == list(program.assignment)
    assert listed["on_device"] == int(numbers[0])


def test_compile_reports_4_bit_weights(capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx.load("digits.onnx")
    (weights,) = (item for item in model.graph.initializer if item.name == "classify.weight_quantized")
    values = numpy_helper.to_array(weights)
    weights.CopyFrom(numpy_helper.from_array(np.clip(values, -8, 7), weights.name))
    onnx.save(model, "narrow.onnx")
    for name, told in (("digits", False), ("narrow", True)):
        assert call("compile", f"{name}.onnx", "-o", name, "--config", "small") == 0
        size = -(-values.shape[1] // 8) * 8 * values.shape[0]
        line = f"{size:,} weights are in 4 bits: they take {size // 2:,} bytes\n"
        assert (line in capsys.readouterr().out) is told


def test_compile_reports_dropped_channels(capsys: pytest.CaptureFixture[str]) -> None:
    """6 of 16 filters are zero. Four channels are dropped on 4 x 4, and outputs equal those of the full program."""
    model = onnx.load("digits.onnx")
    for item in model.graph.initializer:
        if item.name in ("conv1.0.weight_quantized", "conv1.0.weight_bias_quantized"):
            values = numpy_helper.to_array(item).copy()
            values[5:11] = 0
            item.CopyFrom(numpy_helper.from_array(values, item.name))
    onnx.save(model, "fewer.onnx")
    message = "4 of 186 channels are not computed: nothing depends on them\n"
    for name, given in (("digits", False), ("fewer", True)):
        assert call("compile", f"{name}.onnx", "-o", name, "--config", "tiny") == 0
        assert (message in capsys.readouterr().out) is given
    program, every = (weft.compile("fewer.onnx", "tiny", reuse=reuse) for reuse in (True, False))
    feeds = {
        name: np.random.default_rng(3).normal(0, 1, shape).astype(np.float32)
        for name, (_, shape) in program.inputs.items()
    }
    for name, value in program.run(feeds).outputs.items():
        assert np.array_equal(value, every.run(feeds).outputs[name])
    assert weft.load("fewer").channels_left_out == (0, 0)


def test_attention_without_softmax_runs_on_the_host() -> None:
    with_softmax, without = (weft.check("attention.onnx", config) for config in ("tiny", "none.json"))
    assert [sum(node[2] == "host" for node in nodes) for nodes in (with_softmax, without)] == [2, 4]
    assert list(weft.compile("attention.onnx", WITHOUT).assignment) == without


def test_compile_writes_the_graph_after_every_pass() -> None:
    assert call("compile", "digits.onnx", "-o", "program", "--config", "tiny", "--dump-passes", "passes") == 0
    actual = {path.name: path.read_text() for path in Path("passes").iterdir()}
    assert sorted(actual) == sorted(
        f"device1-{step:02}-{item.name}.txt" for step, item in enumerate(PIPELINE, start=1)
    )
    assert "ConvPlan(" in actual["device1-15-choose_plans.txt"]
    assert "ConvPlan(" not in actual["device1-13-keep_resident.txt"]
    assert all(text.startswith("device device1:\n") for text in actual.values())


class Reader(CalibrationDataReader):
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.values = iter([{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(2)])

    def get_next(self) -> Any:
        return next(self.values, None)


def quantise_dynamically(model: onnx.ModelProto) -> onnx.ModelProto:
    """Quantise dynamically: scales and zero points of activations come from their values."""
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            node.op_type = "DynamicQuantizeLinear"
            del node.input[1:]
            node.output.extend([f"{node.name}_scale", f"{node.name}_zero"])
            for reader in model.graph.node:
                if reader.input[0] == node.output[0]:
                    reader.input[1:] = node.output[1:]
    return model


def quantise_unsupported(kind: str) -> str:
    """Quantise a convolution and a matrix product in ways that the device does not compute."""
    rng = np.random.default_rng(0)
    shapes = {"k": (4, 3, 3, 3), "m": (256, 10)}
    weights = [
        numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Flatten", ["c"], ["f"], name="flatten"),
        helper.make_node("MatMul", ["f", "m"], ["y"], name="product"),
    ]
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
        for name, shape in {"x": (1, 3, 8, 8), "y": (1, 10)}.items()
    ]
    graph = helper.make_graph(nodes, "graph", *ends, weights)
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), "float.onnx")
    activations = QuantType.QUInt16 if kind == "16 bits" else QuantType.QUInt8
    quantize_static("float.onnx", "model.onnx", Reader(), activation_type=activations)
    if kind == "dynamic":
        onnx.save(quantise_dynamically(onnx.load("model.onnx")), "model.onnx")
    np.savez("x.npz", x=np.ones((1, 3, 8, 8), np.float32))
    return "model.onnx"


@pytest.mark.filterwarnings("ignore")  # of the quantiser
@pytest.mark.parametrize("kind", ["dynamic", "16 bits"])
def test_model_entirely_on_the_host_gets_a_warning(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = quantise_unsupported(kind)
    capsys.readouterr()
    for arguments in (["compile", model, "-o", "program"], ["check", model], ["check", model, "--json"]):
        assert call(*arguments, "--config", "small") == 0
        out, err = capsys.readouterr()
        (warning,) = (line for line in err.splitlines() if line.startswith("warning: "))
        if kind == "dynamic":
            start = "warning: the model is dynamically quantised (with DynamicQuantizeLinear): `weft quantise"
            assert warning.startswith(start)
        else:
            assert warning.startswith(
                "warning: nothing of this model runs on the device: most often because "
            )
            assert "weft check" in warning
        assert "`weft quantise" in warning
        assert ('"on_device": 0' if "--json" in arguments else " 0 of ") in out.replace("; 0", " 0").replace(
            "\n0", " 0"
        )
    program = weft.load("program")
    assert not program.on_device
    assert call("run", "program", "--on", "timing") == 2
    message = "error: nothing of this program runs on the device"
    assert capsys.readouterr().err.splitlines()[-1].startswith(message)
    for target in ("rtl", "board --port virtual:icebreaker", "rtl --waves w.vcd"):
        assert call("run", "program", "--input", "x.npz", "--output", "y.npz", "--on", *target.split()) == 2
        out, err = capsys.readouterr()
        assert err.splitlines()[-1].startswith(message)
        assert "mismatching" not in out
        assert not Path("y.npz").exists()
    with pytest.raises(
        weft.InputError, match=r"^nothing of this program runs on the device, so there are no cycles"
    ):
        program.run({"x": np.ones((1, 3, 8, 8), np.float32)}, on="timing")
    assert call("run", "program", "--input", "x.npz", "--output", "y.npz") == 0


def test_model_on_the_device_gets_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("compile", "digits.onnx", "-o", "program", "--config", "tiny") == 0
    assert "warning" not in capsys.readouterr().err


OVERWRITES = [
    ["run", "program", "--input", "digit.npz", "--output", "digit.npz"],
    ["run", "program", "--input", "digit.npz", "--output", "link.npz"],
    ["run", "program", "--input", "digit.npz", "--output", "hard.npz"],
    ["run", "program", "--input", "digit.npz", "--report", "program/program.json"],
    ["run", "program", "--input", "digit.npz", "--output", "program/segment1.bin"],
    ["run", "program", "--input", "digit.npz", "--output", "new", "--report", "./new"],
    ["run", "program", "--on", "timing", "--report", "program/program.json"],
    ["run", "program", "--on", "rtl", "--input", "w.gtkw", "--waves", "w.vcd"],
    ["run", "program", "--on", "rtl", "--input", "digit.npz", "--waves", "w.vcd", "--report", "w.sucl"],
    ["trace", "program", "-o", "program/program.json"],
    ["trace", "program", "-o", "new", "--svg", "./new"],
    ["tune", "digits.onnx", "--config", "own.json", "-o", "own.json"],
    ["tune", "digits.onnx", "-o", "linked.onnx"],
    ["compile", "segment0.host", "-o", "."],
    ["compile", "digits.onnx", "--config", "program.json", "-o", "."],
    ["verilog", "--config", "own.json", "-o", "own.v"],
    ["demo", "--config", "weft.json", "--keep", "."],
    ["build", "--board", "ulx3s-12f", "--config", "own.json", "-o", "own.json"],
]


def test_input_files_are_never_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("compile", "digits.onnx", "-o", "program", "--config", "tiny") == 0
    for name in ("own.json", "weft.json", "program.json"):
        Path(name).write_text(json.dumps({"preset": "tiny"}))
    for link in ("link.npz", "w.gtkw"):
        Path(link).symlink_to("digit.npz")
    Path("hard.npz").hardlink_to("digit.npz")
    Path("linked.onnx").symlink_to("digits.onnx")
    os.rename("attention.onnx", "segment0.host")
    Path("none.json").unlink()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    names = set(folder.rglob("*"))
    for arguments in OVERWRITES:
        capsys.readouterr()
        assert call(*arguments) == 2, arguments
        error = capsys.readouterr().err.splitlines()[-1]
        assert re.search("which is read: name another|both name|File exists", error), (arguments, error)
        assert {path: path.read_bytes() for path in before} == before, arguments
        assert set(folder.rglob("*")) == names, arguments


def test_special_files_are_written(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        weft, "verilog", lambda config, prefix="": ("module weft;", {"core": "pipelined"}), raising=False
    )
    assert call("compile", "digits.onnx", "-o", "program", "--config", "tiny") == 0
    capfd.readouterr()
    Path("out").symlink_to("somewhere.json")
    commands = [
        ["run", "program", "--input", "digit.npz", "--output", "/dev/null", "--report"],
        ["trace", "program", "--svg", "/dev/null", "-o"],
    ]
    for arguments in commands:
        assert call(*arguments, "out") == 0
        assert Path("out").is_symlink()
        text = Path("somewhere.json").read_text()
        assert json.loads(text)
        Path("somewhere.json").unlink()
        capfd.readouterr()
        assert call(*arguments, "/dev/stdout", "--quiet") == 0
        again, text = (re.sub(r'"seconds": [^\n]+', "", item) for item in (capfd.readouterr().out, text))
        assert again == text
    assert Path("/dev/null").is_char_device()
    assert call("verilog", "--config", "tiny", "-o", "/dev/stdout", "-q") == 0
    assert capfd.readouterr().out == "module weft;"
    assert not Path("/dev/stdout.json").exists()


def test_refused_prefix_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(folder.rglob("*"))
    assert call("verilog", "--config", "tiny", "--prefix", "2nd", "-o", "core.v") == 2
    error = "error: the prefix '2nd' cannot begin a Verilog identifier: use letters, digits and underscores, with no"
    assert capsys.readouterr().err.splitlines()[-1].startswith(error)
    assert set(folder.rglob("*")) == before


def test_lists_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("boards", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["format"] == "weft boards 1"
    for entry, board in zip(listed["boards"], BOARDS.values(), strict=True):
        assert (entry["name"], entry["core"], entry["clock_hz"]) == (
            board.name,
            board.core.value,
            board.clock,
        )
        assert entry["config"] == board.config.to_dict()
        assert entry["memory"] == {"kind": board.memory.kind.value, "bytes": board.memory.size}
        assert set(entry["presets_that_fit"]) <= set(PRESETS)
        assert all(share > 0 for share in entry["estimated_shares"].values())


@pytest.mark.parametrize("name", ["digits", "attention"])
def test_examples(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("example", name, "-o", "new") == 0
    model, image = Path(f"new/{name}.onnx"), Path("new/digit.npz")
    assert model.read_bytes() == load(name).model()
    capsys.readouterr()
    for missing, there in ((model, image), (image, model)):
        there.write_bytes(b"mine")
        missing.unlink()
        assert call("example", name, "-o", "new") == 2
        assert capsys.readouterr().err == (
            f"error: {there} exists: --force overwrites it, --output names another folder\n"
        )
        assert (there.read_bytes(), missing.exists()) == (b"mine", False)
        assert call("example", name, "-o", "new", "--force", "--quiet") == 0
        assert capsys.readouterr() == ("", "")
    assert model.read_bytes() == load(name).model()
    assert call("compile", str(model), "-o", "program", "--config", "tiny") == 0
    assert call("run", "program", "--input", str(image), "--output", "out.npz") == 0
    images, labels = load(name).held_out()
    with np.load(image) as arrays, np.load("out.npz") as outputs:
        assert (arrays["image"] == images[:1]).all()
        assert np.argmax(outputs["logits"]) == labels[0]
