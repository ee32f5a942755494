"""Command line against a stand-in for the Python API: exit codes, messages and files."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import weft
from weft import __main__ as command
from weft import report
from weft.api import Check
from weft.cli.demo import Demo
from weft.compiler.errors import CompileError
from weft.compiler.ir.model import Shares
from weft.hdl.isa.config import PRESETS
from weft.run.options import RunOptions
from weft.sim.device import DeviceError

NODES = [("conv1", "Conv", "device", ""), ("top", "TopK", "host", "the device has no TopK")]
LAYER = {
    "name": "conv1",
    "cycles": 100,
    "macs": 12800,
    "utilisation": 0.5,
    "dram_bytes": 4096,
    "bound": "array",
}


@dataclass
class Result:
    outputs: dict[str, np.ndarray]
    report: dict[str, Any]
    memory: bytes


@dataclass
class FakeDevice:
    trace: Path | None
    closed: bool = False

    def close(self) -> None:
        self.closed = True


@dataclass
class Program:
    """Doubles its input. `corrupt` flips a bit in the RTL's memory; `run` raises `fails`."""

    inputs: dict[str, tuple[str, tuple[int, ...]]] = field(
        default_factory=lambda: {"image": ("float32", (1, 2))}
    )
    outputs: dict[str, tuple[str, tuple[int, ...]]] = field(
        default_factory=lambda: {"logits": ("float32", (1, 2))}
    )
    corrupt: bool = False
    fails: Exception | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    compiled: list[dict[str, Any]] = field(default_factory=list)

    on_device = True
    narrow_bytes = 0
    roundings = substitutions = None
    channels_left_out = (0, 0)
    memory = 16.0
    config = PRESETS["default"]
    assignment = tuple(NODES)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "program.bin").write_bytes(b"words")
        if self.fails:
            raise self.fails

    def reset(self) -> None:
        self.calls.append({"on": "reset"})

    def disassemble(self) -> str:
        return "END\n"

    def run(
        self, inputs: dict[str, np.ndarray], on: Any = "golden", *, memory: bool = True, **options: Any
    ) -> Result:
        record = RunOptions.of(on, **options)
        on = record.on
        self.calls.append(vars(record))
        if self.fails and on != "golden":
            raise self.fails
        cycles = 100 if on != "golden" else None
        layers = [LAYER | {"cycles": cycles, "utilisation": cycles and 0.5}]
        totals = {
            "cycles": cycles,
            "macs": 12800,
            "utilisation": cycles and np.float64(0.5),
            "dram_bytes": 4096,
        }
        memory = b"\x01\x02\x03" if self.corrupt and on != "golden" else b"\x00\x02\x03"
        return Result({"logits": 2 * inputs["image"]}, totals | {"layers": layers}, memory)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Program:
    program = Program()

    def compile(model: Path, config: object = "default", **options: Any) -> Program:
        options.pop("progress", None)
        program.compiled.append(options)
        return program

    api: dict[str, Any] = {
        "compile": compile,
        "load": lambda folder: program,
        "check": lambda model, config, shapes, states: Check(NODES, Shares(9, 1, 2, 3)),
        "verilog": lambda config, prefix="": (
            f"module {prefix}top;\nendmodule\n",
            {"core": "pipelined", "parameters": config.to_dict()},
        ),
    }
    for name, function in api.items():
        monkeypatch.setattr(weft, name, function, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(b"onnx")
    Path("built").mkdir()
    np.savez("in.npz", image=np.array([[1, 2]], np.float32), spare=np.zeros(3))
    return program


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        command.main(list(arguments))
    return int(stop.value.code or 0)


def files() -> set[str]:
    return {str(path) for path in Path().rglob("*") if path.is_file()}


def test_compile_writes_the_program_and_names_host_nodes(
    program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("compile", "model.onnx", "-o", "deep/out", "--config", "tiny") == 0
    assert Path("deep/out/program.bin").read_bytes() == b"words"
    text = capsys.readouterr().out
    assert "1 of 2 nodes run on the device" in text
    assert "the device has no TopK" in text
    assert program.compiled == [{"plain_inputs": False, "shapes": {}, "states": {}, "memory": None}]


def test_plain_inputs_option_reaches_the_compiler(program: Program) -> None:
    assert call("compile", "model.onnx", "-o", "out", "--plain-inputs") == 0
    assert program.compiled == [{"plain_inputs": True, "shapes": {}, "states": {}, "memory": None}]


@pytest.mark.parametrize(
    ("config", "memory", "planned"),
    [
        ("tiny", "2", 2),
        ("default", "2.5", 2.5),
        ("tiny", "ulx3s-85f", 1.9),
        ("ulx3s-85f", None, 1.9),
        ("tiny", None, None),
    ],
)
def test_compile_plans_for_a_memory(
    program: Program, config: str, memory: str | None, planned: float | None
) -> None:
    arguments = [] if memory is None else ["--memory", memory]
    assert call("compile", "model.onnx", "-o", "out", "--config", config, *arguments) == 0
    assert program.compiled[-1]["memory"] == planned


@pytest.mark.parametrize("memory", ["0", "-1", "nan", "inf", "1000001.0", "", "fast", "tiny", "2 bytes"])
def test_unknown_memory_is_refused(program: Program, capsys: pytest.CaptureFixture[str], memory: str) -> None:
    before = files()
    assert call("compile", "model.onnx", "-o", "out", "--memory", memory) == 2
    assert files() == before
    message = capsys.readouterr().err
    assert message.startswith("error: 'memory'")
    assert memory in message
    assert message.count("\n") == 1
    assert not program.compiled


@pytest.mark.parametrize(
    ("bandwidth", "behind"), [("2", "2"), ("15.5", "15.5"), ("16", ""), ("64", ""), (None, "")]
)
def test_run_warns_of_a_plan_for_another_memory(
    program: Program, capsys: pytest.CaptureFixture[str], bandwidth: str | None, behind: str
) -> None:
    arguments = [] if bandwidth is None else ["--bandwidth", bandwidth]
    assert call("run", "built", "--input", "in.npz", "--on", "rtl", *arguments) == 0
    printed = capsys.readouterr().out
    assert ("is planned for" in printed) == bool(behind)
    assert (
        f"of 16 bytes a cycle, and ran behind one of {behind}: `weft compile --memory {behind}`" in printed
        or not behind
    )


def test_compile_keeps_other_files_in_the_folder(program: Program) -> None:
    Path("built/notes.txt").write_text("mine")
    assert call("compile", "model.onnx", "-o", "built") == 0
    assert {"built/notes.txt", "built/program.bin"} <= files()


def test_run_on_rtl_compares_reports_and_stores_outputs(
    program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--input", "in.npz", "--output", "out.npz", "--report", "report.json", "--latency", "7"]
    arguments += ["--bandwidth", "2.5", "--stall-seed", "3"]
    assert call("run", "built", "--on", "rtl", *arguments) == 0
    assert program.calls[-1] == {
        "on": "rtl",
        "latency": 7,
        "bandwidth": 2.5,
        "stall_seed": 3,
        "waves": None,
        "waves_from": 0,
        "waves_cycles": None,
    }
    with np.load("out.npz") as stored:
        assert stored.files == ["logits"]
        assert stored["logits"].tolist() == [[2, 4]]
    stored_report = json.loads(Path("report.json").read_text())
    assert set(stored_report) == {"cycles", "macs", "utilisation", "dram_bytes", "layers"}
    assert stored_report["layers"] == [LAYER]
    text = capsys.readouterr().out
    assert "mismatching bytes: 0" in text
    assert re.search(r"conv1 +100 +12,800 +50.0% +4,096 +array", text)


def test_run_on_golden_has_no_cycles(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "built", "--input", "in.npz", "--report", "report.json") == 0
    assert json.loads(Path("report.json").read_text())["cycles"] is None
    assert re.search(r"total +- +12,800 +- +4,096", capsys.readouterr().out)
    assert [made["on"] for made in program.calls] == ["golden"]


def test_mismatch_exits_with_1(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    program.corrupt = True
    assert call("run", "built", "--on", "rtl", "--input", "in.npz") == 1
    assert "mismatching bytes: 1\n" in capsys.readouterr().out


def test_check_prints_every_node_with_its_reason(
    program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("check", "model.onnx") == 0
    text = capsys.readouterr().out
    assert re.search(r"top +TopK +host +the device has no TopK", text)
    assert "1 of 2 nodes run on the device, 1 on the host" in text
    assert (
        "90.0% of the multiplications are on the device; 5 bytes cross between host and device in each run"
        in text
    )
    assert re.search(r"\n +1 +the device has no TopK", text)


def test_verilog_writes_text_and_description(program: Program) -> None:
    assert call("verilog", "--config", "small", "-o", "core.v") == 0
    assert Path("core.v").read_text().startswith("module top;")
    assert json.loads(Path("core.json").read_text())["parameters"]["n"] == 8
    assert call("verilog", "--config", "small", "--prefix", "edge_", "-o", "core.v") == 0
    assert Path("core.v").read_text().startswith("module edge_top;")


def test_dis_prints_instructions(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("dis", "built") == 0
    assert capsys.readouterr().out == "END\n"


BAD: list[tuple[list[str], str]] = [
    (["compile", "none.onnx", "-o", "o"], "cannot use none.onnx: No such file or directory"),
    (["compile", "built", "-o", "o"], "built is a folder, not a file"),
    (["compile", "model.onnx", "-o", "model.onnx"], "cannot use model.onnx: File exists"),
    (
        ["compile", "model.onnx", "-o", "o", "--config", "vast"],
        "unknown configuration 'vast'; choose a preset (tiny, small",
    ),
    (
        ["compile", "model.onnx", "-o", "o", "--config", "no.json"],
        "cannot read configuration no.json: No such file",
    ),
    (["run", "none", "--input", "in.npz"], "none is not a folder that `weft compile` wrote"),
    (
        ["run", "model.onnx", "--input", "in.npz"],
        "is not a folder that `weft compile` wrote; compile the model first: weft compile model.onnx -o FOLDER",
    ),
    (["run", "built", "--input", "none.npz"], "cannot use none.npz: No such file or directory"),
    (["run", "built", "--input", "model.onnx"], "model.onnx is no .npz or .npy file, and no image"),
    (["run", "built", "--input", "plain.npy"], "plain.npy has shape (2,), but the model takes (1, 2)"),
    (["run", "built", "--input", "objects.npz"], "objects.npz: array 'image' holds Python objects"),
    (
        ["run", "built", "--input", "broken.npz"],
        "broken.npz is damaged, or no .npz or .npy file: File is not a zip",
    ),
    (
        ["run", "built", "--input", "other.npz"],
        "other.npz has no array 'image' for the model's input of that name",
    ),
    (["run", "built", "--input", "shape.npz"], "array 'image' has shape (2, 1), but the model takes (1, 2)"),
    (["run", "built", "--input", "dtype.npz"], "array 'image' is float64, but the model takes float32"),
    (
        ["run", "built", "--input", "in.npz", "--port", "/dev/ttyUSB0"],
        "--port and --on golden do not go together: it is for --on board",
    ),
    (["verilog", "-o", "core.json"], "core.json: the Verilog file must not end in .json"),
    (["verilog", "-o", "built"], "cannot use built"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), BAD, ids=lambda value: "-".join(value)[:40].replace("/", ".")
)
def test_bad_input_prints_one_sentence_and_exits_with_2(
    program: Program, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    np.save("plain.npy", np.zeros(2))
    np.savez("objects.npz", image=np.array([[1, None]], object))
    np.savez("other.npz", picture=np.zeros((1, 2), np.float32))
    np.savez("shape.npz", image=np.zeros((2, 1), np.float32))
    np.savez("dtype.npz", image=np.zeros((1, 2)))
    Path("broken.npz").write_bytes(Path("in.npz").read_bytes()[:200])
    before = files()
    assert call(*arguments) == 2
    assert files() == before
    errors = [line for line in capsys.readouterr().err.splitlines() if not line.endswith("...")]
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert message in errors[0]


def test_input_from_an_array_an_image_and_stdin(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.array([[51, 255]], np.float32) / 255
    np.save("in.npy", array)
    Image.fromarray(np.array([[51, 255]], np.uint8)).save("in.png")
    for source in ("in.npy", "in.png", "-"):
        with Path("in.npz").open("rb") as file:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
            assert call("run", "built", "--input", source, "--output", "out.npz") == 0
        with np.load("out.npz") as stored:
            expected = np.array([[1, 2]], np.float32) if source == "-" else array
            assert np.array_equal(stored["logits"], 2 * expected)


def test_unstorable_outputs_are_refused_before_the_run(
    program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    program.outputs["x" * 70_000] = ("float32", (1,))
    assert call("run", "built", "--input", "in.npz", "--output", "out.npz") == 2
    assert "more than a .npz file can hold" in capsys.readouterr().err
    assert not program.calls
    assert call("run", "built", "--input", "in.npz") == 0


MISUSES = {
    "": "missing argument 'FOLDER'; `... run -h` shows how to call it",
    "built": "--input is missing: name the file with the model's inputs",
    "built --on silicon": "invalid value for '--on': 'silicon' is not one of 'golden', 'rtl', 'timing', 'board'; "
    "`... run -h` shows how to call it",
    "built --quick": "no such option: --quick (Possible options: --quiet); `... run -h` shows how to call it",
    "built more": "got unexpected extra argument(s) (more); `... run -h` shows how to call it",
    "built --latency": "option '--latency' requires an argument",
}


@pytest.mark.parametrize("line", MISUSES)
def test_usage_error_prints_one_sentence(
    line: str, program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("run", *line.split()) == 2
    message = re.sub(r"`.* run -h`", "`... run -h`", capsys.readouterr().err)
    assert message == f"error: {MISUSES[line]}\n"


def test_unknown_command_is_refused(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("fly") == 2
    assert capsys.readouterr().err.startswith("error: no such command 'fly'; `")
    assert call() == 2
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "Usage" in captured.out


@pytest.mark.parametrize("value", ["0.001", "1000000", "1e6", " 8 "])
def test_numbers_at_limits_are_accepted(value: str, program: Program) -> None:
    assert call("run", "built", "--input", "in.npz", "--on", "rtl", "--bandwidth", value) == 0
    assert program.calls[-1]["bandwidth"] == float(value)


def test_failed_compile_writes_nothing(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    program.fails = CompileError("node 'conv1': no room")
    before = files()
    assert call("compile", "model.onnx", "-o", "out") == 2
    assert capsys.readouterr().err.endswith("error: node 'conv1': no room\n")
    assert files() == before


def test_device_failure_exits_with_1(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    program.fails = DeviceError("no end after 1000 cycles")
    assert call("run", "built", "--on", "rtl", "--input", "in.npz", "--output", "out.npz") == 1
    assert capsys.readouterr().err.endswith("error: no end after 1000 cycles\n")
    assert not Path("out.npz").exists()


def test_internal_error_raises(program: Program) -> None:
    program.fails = ValueError("numpy said so")
    with pytest.raises(ValueError, match="numpy said so"):
        command.main(["run", "built", "--on", "rtl", "--input", "in.npz"])


@pytest.fixture
def digits(program: Program, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.setattr(Demo, "_device", lambda self, memory_bytes, waves=None: FakeDevice(waves))
    program.inputs = {"image": ("float32", (1, 1, 8, 8))}
    return program


def test_demo_stores_its_files_and_agrees(digits: Program, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("demo", "--config", "small", "--images", "3", "--keep", "kept") == 0
    text = capsys.readouterr().out
    assert "mismatching bytes: 0" in text
    assert "images on the RTL: 3" in text
    assert {"kept/weft.v", "kept/weft.json", "kept/report.json", "kept/program/program.bin"} <= files()
    on_rtl = [made["on"] for made in digits.calls if made["on"] != "golden"]
    *images, waves = [device.trace for device in on_rtl]
    assert images == [None, None, None]
    assert waves is not None
    assert (waves.parent, waves.suffix) == (Path("kept").resolve(), ".vcd")
    assert Path("kept/image0.vcd").exists()
    assert all(device.closed for device in on_rtl)


def test_demo_with_a_mismatch_exits_with_1(digits: Program, capsys: pytest.CaptureFixture[str]) -> None:
    digits.corrupt = True
    assert call("demo", "--images", "2") == 1
    assert "mismatching bytes: 2" in capsys.readouterr().out


def test_demo_stops_the_rtl_at_its_time_limit(digits: Program, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    assert Demo("digits", PRESETS["tiny"], Path("kept"), Console()).run(seconds=0.0)
    assert "images on the RTL: 1," in capsys.readouterr().out


def test_missing_bytes_count_as_mismatches() -> None:
    assert report.mismatches(b"abcd", b"abX") == 2
    assert report.mismatches(np.array([1, 256], np.int16), np.array([1, 257], np.int16)) == 1
