"""`weft quantise`: files, reports, and one sentence with nothing written for wrong input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from support import float_nets

import weft
from weft import __main__ as command
from weft.compiler.ir.model import host_reasons


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    model = float_nets.residual()
    onnx.save(model, "float.onnx")
    np.savez("data.npz", **float_nets.samples(model, 6))
    np.savez("more.npz", **float_nets.samples(model, 4, seed=1))
    return tmp_path


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        command.main(list(arguments))
    return int(stop.value.code or 0)


def quantise(
    *options: str, model: str = "float.onnx", data: str = "data.npz", output: str = "int8.onnx"
) -> int:
    return call("quantise", model, "--data", data, "-o", output, *options)


def test_quantise_writes_a_model_and_reports(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        quantise("--report", "report.json", "--held-out", "more.npz", "--top", "2", "--config", "small") == 0
    )
    out, err = capsys.readouterr()
    quantised = weft.quantise("float.onnx", "data.npz", held_out="more.npz")
    assert Path("int8.onnx").read_bytes() == quantised.model.SerializeToString(deterministic=True)
    report = json.loads(Path("report.json").read_text())
    nodes = weft.check("int8.onnx", "small")
    assert report["format"] == "weft quantise 1"
    assert (report["runs"], report["held_out"], report["method"]) == (4, True, "minmax")
    assert [layer["name"] for layer in report["layers"]] == [
        layer.name for layer in quantised.accuracy.layers
    ]
    assert [layer["snr_db"] for layer in report["layers"]] == [
        round(layer.snr, 3) for layer in quantised.accuracy.layers
    ]
    (output,) = quantised.accuracy.outputs
    assert report["outputs"] == [{"name": "y", "snr_db": round(output.snr, 3), "same_arg_max": output.same}]
    assert (report["nodes"], report["on_device"]) == (len(nodes), len(nodes) - 2)
    assert (report["device_macs"], report["host_macs"]) == (nodes.shares.device_macs, 0)
    lines = out.splitlines()
    worst = quantised.accuracy.layers[0]
    assert lines[1].split() == [worst.name, worst.operator, f"{worst.snr:.1f}", "dB"]
    assert lines[3] == f"and {len(report['layers']) - 2} more layers with smaller errors (--top, --report)"
    assert lines[4] == (
        f"output y: {output.snr:.1f} dB from float on 4 runs with more.npz; the same arg max as in float for "
        f"{output.same:.2%}"
    )
    assert lines[5] == (
        f"{len(nodes) - 2} of {len(nodes)} nodes run on the device, 2 on the host (configuration small)"
    )
    assert lines[-1] == "int8.onnx: float.onnx quantised to int8 (ranges by minmax)"
    assert len(lines) == 9 + len(host_reasons(nodes))
    assert "warning" not in err
    assert call("compile", "int8.onnx", "-o", "program", "--config", "small") == 0


def test_device_shares_equal_those_of_check(capsys: pytest.CaptureFixture[str]) -> None:
    Path("plain.json").write_text(json.dumps({"preset": "tiny", "lookup_tables": 0, "multiply": 0}))
    model = float_nets.separable()
    onnx.save(model, "separable.onnx")
    np.savez("separable.npz", **float_nets.samples(model))
    for config in ("plain.json", "tiny"):
        assert quantise("--config", config, model="separable.onnx", data="separable.npz") == 0
        printed = capsys.readouterr().out
        assert call("check", "int8.onnx", "--config", config) == 0
        checked = capsys.readouterr().out.splitlines()
        start = next(at for at, line in enumerate(checked) if "nodes run on the device" in line)
        assert f"{checked[start]} (configuration {config})\n" + "\n".join(checked[start + 1 :]) in printed


def test_options_reach_the_quantiser(capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(float_nets.residual(batch="images"), "open.onnx")
    np.savez("data.npz", **float_nets.samples(float_nets.residual(), 60))
    assert (
        quantise(
            "--shape", "images=2", "--method", "percentile", "--keep-float", "classify", model="open.onnx"
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "on 30 runs with data.npz" in out
    assert "(ranges by percentile)" in out
    options = {"method": "percentile", "keep_float": ["classify"], "shapes": {"images": 2}}
    quantised = weft.quantise("open.onnx", "data.npz", **options)  # type: ignore[arg-type]
    assert Path("int8.onnx").read_bytes() == quantised.model.SerializeToString(deterministic=True)
    assert weft.compile("int8.onnx", "tiny").inputs["x"] == ("float32", (2, 3, 12, 12))
    assert ("classify", "Gemm", "host") in [node[:3] for node in weft.check("int8.onnx")]


def test_budget(capsys: pytest.CaptureFixture[str]) -> None:
    layers = weft.quantise("float.onnx", "data.npz").accuracy.layers
    assert quantise("--budget", "20", "--report", "report.json") == 0
    assert json.loads(Path("report.json").read_text())["below_budget"] == []
    assert "warning" not in capsys.readouterr().err
    budget = layers[1].snr + 0.01
    assert quantise("--budget", str(budget), "--report", "report.json") == 1
    assert Path("int8.onnx").exists()
    report = json.loads(Path("report.json").read_text())
    assert report["below_budget"] == [layers[0].name, layers[1].name]
    (cause,) = report["causes"]
    (warning,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: "))
    assert warning == (
        f"warning: 2 of {len(layers)} layers have less than {budget:g} dB; the error comes from 1 of them: "
        f"--wide {cause!r} gives these 16 bits, --keep-float leaves them in float on the host"
    )
    assert quantise("--wide", cause) == 0
    quantised = weft.quantise("float.onnx", "data.npz", wide=[cause])
    wide = {layer.name: layer.snr for layer in quantised.accuracy.layers}
    assert Path("int8.onnx").read_bytes() == quantised.model.SerializeToString()
    assert quantise("--keep-float", cause) == 0
    kept = {
        layer.name: layer.snr
        for layer in weft.quantise("float.onnx", "data.npz", keep_float=[cause]).accuracy.layers
    }
    assert kept[cause] > layers[0].snr
    assert wide[cause] > layers[0].snr


def test_quiet_and_without_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert quantise("--quiet") == 0
    assert capsys.readouterr() == ("", "")
    assert quantise("--top", "0", "--quiet", "--report", "/dev/stdout") == 0
    assert quantise("--top", "0") == 0
    assert "signal to noise" not in capsys.readouterr().out


def test_stdout_holds_results_only(folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "weft",
            "quantise",
            "float.onnx",
            "--data",
            "data.npz",
            "-o",
            "int8.onnx",
            "-q",
        ],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def writer(name: str, data: bytes) -> Callable[[], None]:
    return lambda: (Path(name).write_bytes(data), None)[1]


def save_quantised() -> None:
    weft.quantise("float.onnx", "data.npz").save("already.onnx")


def save_arrays(**arrays: np.ndarray) -> Callable[[], None]:
    return lambda: np.savez("wrong.npz", **arrays)


X = np.ones((2, 3, 12, 12), np.float32)
REFUSED: dict[str, tuple[Callable[[], object], list[str], str]] = {
    "no model": (lambda: None, ["missing.onnx"], "cannot use missing.onnx: No such file or directory"),
    "no data": (lambda: None, ["--data", "missing.npz"], "cannot use missing.npz: No such file or directory"),
    "no held out": (lambda: None, ["--held-out", "missing.npz"], "cannot use missing.npz: No such file"),
    "folder": (lambda: Path("there").mkdir(), ["-o", "there"], "cannot use there: Is a directory"),
    "folder of data": (lambda: Path("there").mkdir(), ["--data", "there"], "there is a folder, not a file"),
    "over model": (lambda: None, ["-o", "float.onnx"], "--output would overwrite float.onnx, which is read"),
    "over link": (lambda: Path("a.onnx").symlink_to("float.onnx"), ["-o", "a.onnx"], "would overwrite a.onnx"),
    "over data": (lambda: None, ["-o", "data.npz"], "--output would overwrite data.npz, which is read"),
    "over held out": (lambda: None, ["--held-out", "more.npz", "--report", "more.npz"], "--report would overwrite"),
    "twice": (lambda: None, ["--report", "int8.onnx"], "--output and --report both name int8.onnx"),
    "not onnx": (writer("a.onnx", b"nonsense"), ["a.onnx"], "a.onnx is not an ONNX model or is truncated"),
    "empty": (writer("a.onnx", b""), ["a.onnx"], "the file is empty, truncated or not ONNX"),
    "tflite": (writer("a.onnx", b"\x1c\0\0\0TFL3"), ["a.onnx"], "`weft quantise` takes ONNX models, and this is a "),
    "already": (save_quantised, ["already.onnx"], "the model is quantised already (it has QuantizeLinear)"),
    "names": (save_arrays(y=X), ["--data", "wrong.npz"], "wrong.npz has no array 'x' for the model's input of that"),
    "shapes": (save_arrays(x=X[..., 1:]), ["--data", "wrong.npz"], "wrong.npz: array 'x' has shape (2, 3, 12, 11)"),
    "dtypes": (save_arrays(x=X.astype(int)), ["--data", "wrong.npz"], "wrong.npz: array 'x' is int64, but the model"),
    "none": (save_arrays(x=X[:0]), ["--data", "wrong.npz"], "there is no sample in it"),
    "nan": (save_arrays(x=X * np.float32("nan")), ["--data", "wrong.npz"], "array 'x' has nan in sample 0"),
    "held out": (save_arrays(x=X[..., 1:]), ["--held-out", "wrong.npz"], "wrong.npz: array 'x' has shape"),
    "damaged": (writer("wrong.npz", b"PK\3\4"), ["--data", "wrong.npz"], "wrong.npz is damaged, or no .npz or .npy"),
    "node": (lambda: None, ["--keep-float", "clasify"], "no node has the name 'clasify'; there are 'classify'"),
    "shape": (lambda: None, ["--shape", "n=2"], "the model's inputs have no open dimension 'n'; it has none"),
    "method": (lambda: None, ["--method", "best"], "'best' is not one of"),
    "budget": (lambda: None, ["--budget", "much"], "'--budget' must be a finite number from 0 to 200"),
    "top": (lambda: None, ["--top", "-1"], "'--top' must be an integer from 0"),
    "config": (lambda: None, ["--config", "none"], "unknown configuration 'none'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare, options, message = REFUSED[case]
    prepare()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()
    chosen = [] if options[0].endswith(".onnx") else ["float.onnx"]
    given = ["--data", "data.npz", "-o", "int8.onnx"]
    arguments = [*chosen, *given, *options] if chosen else [options[0], *given, *options[1:]]
    if options[0] in ("-o", "--data"):
        at = given.index(options[0])
        arguments = ["float.onnx", *given[:at], *given[at + 2 :], *options]
    assert call("quantise", *arguments) == 2
    out, err = capsys.readouterr()
    (error,) = (line for line in err.splitlines() if not line.endswith("..."))
    assert error.startswith("error: ")
    assert message in error
    assert out == ""
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_refused_model_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    """For example a model whose shapes are known only at run time."""
    net = float_nets.FloatNet()
    found = net.add("NonZero", "x")
    value = net.add("Gemm", net.add("Cast", found, to=1), net.weight(2, 3), transA=1)
    onnx.save(net.model({"x": (3, 4)}, value, ("n", 3)), "wild.onnx")
    np.savez("wild.npz", x=np.ones((2, 3, 4), np.float32))
    assert quantise(model="wild.onnx", data="wild.npz") == 2
    assert "whose shape is only known at run time" in capsys.readouterr().err.splitlines()[-1]
    assert not Path("int8.onnx").exists()


def test_model_that_cannot_run_gets_one_message(capfd: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime prints no message of its own."""
    net = float_nets.FloatNet()
    value = net.add("Gemm", net.add("Cast", net.add("NonZero", "x"), to=1), net.weight(4, 3))
    onnx.save(net.model({"x": (3, 4)}, value, ("n", 3)), "wild.onnx")
    np.savez("wild.npz", x=np.ones((2, 3, 4), np.float32))
    assert quantise("-q", model="wild.onnx", data="wild.npz") == 2
    out, err = capfd.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("error: ONNX Runtime does not run the model: ")


@pytest.mark.parametrize("name", ["compile", "check"])
def test_float_models_name_the_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["-o", "program"] if name == "compile" else []
    assert call(name, "float.onnx", *options) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "the model is not quantised" in error
    assert "`weft quantise MODEL.onnx --data SAMPLES.npz -o QUANTISED.onnx`" in error
