"""States between runs: on every device, across saving, and reset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from support.litert import runs
from support.qdq_models import Builder, finish_all
from support.state_models import Ring, Svdf

import weft
from weft import __main__ as command
from weft.compiler.artefact import STATES
from weft.compiler.backend import DeviceProgram
from weft.compiler.errors import ProgramFileError
from weft.compiler.tflite.file import parse
from weft.errors import InputError
from weft.hdl.isa.config import PRESETS
from weft.run.runtime import Image
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import GoldenDevice

CONFIG = PRESETS["tiny"].replace(kernel=64)
SVDF, RING = Svdf(1, inputs=6, units=4, rank=2, memory=3), Ring(1, taps=3, channels=4, outputs=3)


@pytest.fixture(scope="module")
def svdf() -> weft.Program:
    return weft.compile(SVDF.build(), CONFIG)


@pytest.fixture(scope="module")
def ring() -> weft.Program:
    return weft.compile(RING.build(), CONFIG)


def outputs(
    program: weft.Program, feeds: list[np.ndarray], on: str | GoldenDevice = "golden"
) -> list[np.ndarray]:
    return [program.run({"x": feed}, on=on).outputs["y"] for feed in feeds]


def all_equal(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_states_persist_until_reset(ring: weft.Program) -> None:
    """States evolve as in LiteRT's interpreter; a new program starts from the initial state."""
    feeds, content = RING.feeds(5), RING.build()
    ring.reset()
    actual = outputs(ring, feeds)
    ends = parse(content, "it")
    assert all_equal(
        actual, [known[ends.outputs[0]] for known in runs(content, [{ends.inputs[0]: it} for it in feeds])]
    )
    assert not all_equal(outputs(ring, feeds), actual)
    ring.reset()
    assert all_equal(outputs(ring, feeds), actual)
    assert all_equal(outputs(weft.compile(content, CONFIG), feeds), actual)


def test_states_can_be_read_and_set(ring: weft.Program) -> None:
    feeds = RING.feeds(4)
    ring.reset()
    outputs(ring, feeds[:2])
    kept = ring.states
    assert {name: (value.dtype.name, value.shape) for name, value in kept.items()} == {
        "ring": ("int8", (1, 3, 4))
    }
    actual = outputs(ring, feeds[2:])
    ring.reset(kept)
    kept["ring"][...] = 0  # a copy
    ring.states["ring"][...] = 0
    assert all_equal(outputs(ring, feeds[2:]), actual)


def test_signatures_omit_states(svdf: weft.Program) -> None:
    assert list(svdf.inputs) == ["x"]
    assert list(svdf.outputs) == list(svdf.run({"x": SVDF.feeds(1)[0]}).outputs) == ["y"]
    with pytest.raises(InputError, match=r"^the model has no input 'state'"):
        svdf.run({"x": SVDF.feeds(1)[0], "state": svdf.states["state"]})


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ({"other": np.zeros(3)}, r"^the model has no state 'other'; it keeps 'ring'$"),
        ({"ring": np.zeros((1, 3, 4))}, r"^state 'ring' is float64 of shape \(1, 3, 4\); the model keeps int8 of"),
        ({"ring": np.zeros((3, 4), np.int8)}, r"^state 'ring' is int8 of shape \(3, 4\); the model keeps int8 of"),
        ([1], r"^states are a dict of arrays by name, not list$"),
    ],
)  # fmt: skip
def test_unknown_states_are_refused(ring: weft.Program, states: object, message: str) -> None:
    before = ring.states
    with pytest.raises(InputError, match=message):
        ring.reset(states)  # type: ignore[arg-type]
    assert all_equal(list(before.values()), list(ring.states.values()))


@pytest.mark.parametrize("case", [SVDF, RING, Ring(2, taps=2, channels=9, dtype="int16")], ids=str)
def test_rtl_equals_golden_in_every_run(case: Svdf | Ring) -> None:
    """Memory agrees too, under stalls; the cycle model changes no state."""
    program, feeds = weft.compile(case.build(), CONFIG), case.feeds(3)
    golden = [program.run({"x": feed}) for feed in feeds]
    program.reset()
    for seed, (feed, expected) in enumerate(zip(feeds, golden, strict=True)):
        program.run({"x": feed}, on="timing")
        actual = program.run({"x": feed}, on="rtl", stall_seed=seed)
        assert actual.memory == expected.memory
        assert np.array_equal(actual.outputs["y"], expected.outputs["y"])


def test_states_persist_on_a_device(svdf: weft.Program) -> None:
    """Repeated runs on a device with its memory intact equal repeated `Program.run`."""
    feeds = SVDF.feeds(4)
    svdf.reset()
    expected = outputs(svdf, feeds)
    (program,) = svdf.segments
    assert isinstance(program, DeviceProgram)
    image, device = Image(program), GoldenDevice(CONFIG, program.areas.memory_bytes)
    (state,) = (name for name, buffer in program.buffers.items() if buffer.kind == "state")
    (result,) = (name for name, buffer in program.buffers.items() if buffer.kind == "output")
    count = program.buffers[state].size // 2
    device.write(
        image.address(state), bytes(count) + b"\x80" * count
    )  # zeros; lower bytes are stored less 128
    for feed, value in zip(feeds, expected, strict=True):
        image.run(device, {"x": feed})
        assert np.array_equal(image.read(device, result).reshape(-1), value.reshape(-1))


def test_programs_take_turns_on_a_device(svdf: weft.Program, ring: weft.Program) -> None:
    """Each program has its own states, whatever the device's memory holds."""
    first, second = SVDF.feeds(3), RING.feeds(3)
    for program in (svdf, ring):
        program.reset()
    expected = outputs(svdf, first), outputs(ring, second)
    for program in (svdf, ring):
        program.reset()
    device = GoldenDevice(CONFIG, 1 << 16)
    for index in range(3):
        assert all_equal(outputs(svdf, first[index : index + 1], device), expected[0][index : index + 1])
        assert all_equal(outputs(ring, second[index : index + 1], device), expected[1][index : index + 1])


class Failing(GoldenDevice):
    def start(self, entry: int) -> None:
        raise DeviceError("it broke")


def test_failed_run_keeps_states(ring: weft.Program) -> None:
    outputs(ring, RING.feeds(1))
    before = ring.states
    with pytest.raises(DeviceError):
        ring.run({"x": RING.feeds(1)[0]}, on=Failing(CONFIG, 1 << 16))
    assert all_equal(list(before.values()), list(ring.states.values()))


def test_host_and_device_share_states() -> None:
    """Without a kernel engine the device computes rows, and the host 16-bit products."""
    case = Ring(3, dtype="int16", shown=True)
    program = weft.compile(case.build(), PRESETS["tiny"])
    whole = weft.compile(case.build(), CONFIG)
    assert any(node[2] == "host" for node in program.assignment)
    for feed in case.feeds(6):
        actual, expected = (item.run({"x": feed}).outputs for item in (program, whole))
        for name, value in expected.items():
            assert np.abs(actual[name].astype(int) - value).max() <= 1


def test_saved_programs_have_initial_states(svdf: weft.Program, ring: weft.Program, tmp_path: Path) -> None:
    for program, case in ((svdf, SVDF), (ring, RING)):
        feeds = case.feeds(3)
        program.reset()
        expected = outputs(program, feeds)
        program.save(tmp_path)
        loaded = weft.load(tmp_path)
        assert all_equal(outputs(loaded, feeds), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.unlink(), r"cannot read .*states\.bin: No such file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), r"states\.bin is damaged: it has \d+ bytes"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\7"),
            r"is damaged: its checksum does not match",
        ),
    ],
)
def test_damaged_state_files_are_refused(
    ring: weft.Program, tmp_path: Path, change: object, message: str
) -> None:
    ring.save(tmp_path)
    change(tmp_path / STATES)  # type: ignore[operator]
    with pytest.raises(ProgramFileError, match=message):
        weft.load(tmp_path)


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        command.main(list(arguments))
    return int(stop.value.code or 0)


def sums() -> onnx.ModelProto:
    """Model of y, the sum of all inputs so far, which is also output "y1"."""
    builder = Builder(np.random.default_rng(0))
    total = builder.add(builder.input((1, 4)), builder.input((1, 4)))
    return finish_all(builder, total, total)


def test_states_of_onnx_models_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sums.onnx").write_bytes(sums().SerializeToString())
    before = sums().graph.input[1].name
    arguments = ("sums.onnx", "--config", "tiny", "--state", f"{before}=y1")
    assert call("compile", *arguments, "-o", "program") == 0
    assert call("check", *arguments) == 0
    assert "0 on the host" not in capsys.readouterr().out  # the host quantises float inputs and outputs
    program = weft.load("program")
    assert list(program.outputs) == ["y0"]
    assert list(program.states) == [f"{before}/kept"]
    for wrong, message in (
        ((f"{before}=no",), "the model has no output 'no' for a state; it has 'y0', 'y1'"),
        (("=y1",), "'=y1' is not INPUT=OUTPUT with an input that is named once"),
        ((f"{before}=",), f"'{before}=' is not INPUT=OUTPUT with an input that is named once"),
        (
            (f"{before}=y1", f"{before}=y0"),
            f"'{before}=y0' is not INPUT=OUTPUT with an input that is named once",
        ),
    ):
        options = [word for text in wrong for word in ("--state", text)]
        assert call("check", "sums.onnx", *options) == 2
        assert message in capsys.readouterr().err


def test_invalid_states_are_refused() -> None:
    with pytest.raises(weft.CompileError, match=r"^a TFLite model declares its own states, so x=y"):
        weft.compile(RING.build(), CONFIG, states={"x": "y"})
    with pytest.raises(InputError, match=r"^'states' must be a mapping of inputs to outputs, not list$"):
        weft.check(RING.build(), CONFIG, states=["x"])  # type: ignore[arg-type]


def test_inputs_of_several_runs(
    ring: weft.Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Command line, RTL and the comparison with LiteRT agree."""
    monkeypatch.chdir(tmp_path)
    feeds = RING.feeds(3)
    ring.reset()
    expected = outputs(ring, feeds)
    ring.save("program")
    Path("ring.tflite").write_bytes(RING.build())
    for index, feed in enumerate(feeds):
        np.save(f"{index}.npy", feed)
    arguments = [word for index in range(3) for word in ("--input", f"{index}.npy")]
    assert (
        call("run", "program", *arguments, "--on", "rtl", "--output", "y.npz", "--against", "ring.tflite")
        == 0
    )
    assert np.array_equal(np.load("y.npz")["y"], np.stack(expected))
    message = capsys.readouterr().out
    assert "LiteRT: 0 of 9 output values differ" in message
    assert "mismatching bytes: 0" in message
