"""What a program keeps from run to run: on every device, across saving, and how it is set back."""

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


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_runs_go_on_and_reset_sets_back(ring: weft.Program) -> None:
    """As LiteRT's interpreter does; a program of its own starts anew."""
    feeds, content = RING.feeds(5), RING.build()
    ring.reset()
    found = outputs(ring, feeds)
    ends = parse(content, "it")
    assert same(
        found, [known[ends.outputs[0]] for known in runs(content, [{ends.inputs[0]: it} for it in feeds])]
    )
    assert not same(outputs(ring, feeds), found)
    ring.reset()
    assert same(outputs(ring, feeds), found)
    assert same(outputs(weft.compile(content, CONFIG), feeds), found)


def test_what_is_kept_is_told_and_taken(ring: weft.Program) -> None:
    feeds = RING.feeds(4)
    ring.reset()
    outputs(ring, feeds[:2])
    kept = ring.states
    assert {name: (value.dtype.name, value.shape) for name, value in kept.items()} == {
        "ring": ("int8", (1, 3, 4))
    }
    found = outputs(ring, feeds[2:])
    ring.reset(kept)
    kept["ring"][...] = 0  # a copy
    ring.states["ring"][...] = 0
    assert same(outputs(ring, feeds[2:]), found)


def test_signatures_do_not_have_what_is_kept(svdf: weft.Program) -> None:
    assert list(svdf.inputs) == ["x"]
    assert list(svdf.outputs) == list(svdf.run({"x": SVDF.feeds(1)[0]}).outputs) == ["y"]
    with pytest.raises(InputError, match=r"^the model has no input 'state'"):
        svdf.run({"x": SVDF.feeds(1)[0], "state": svdf.states["state"]})


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ({"other": np.zeros(3)}, r"^the model has no state 'other'; it keeps 'ring'$"),
        ({"ring": np.zeros((1, 3, 4))}, r"^state 'ring' is float64 of shape \(1, 3, 4\); the model keeps int8 of"),
        ({"ring": np.zeros((3, 4), np.int8)}, r"^state 'ring' is int8 of shape \(3, 4\); the model keeps int8 of"),
        ([1], r"^states are a dict of arrays by name, not list$"),
    ],
)  # fmt: skip
def test_states_that_are_none_of_the_model(ring: weft.Program, states: object, said: str) -> None:
    before = ring.states
    with pytest.raises(InputError, match=said):
        ring.reset(states)  # type: ignore[arg-type]
    assert same(list(before.values()), list(ring.states.values()))


@pytest.mark.parametrize("case", [SVDF, RING, Ring(2, taps=2, channels=9, dtype="int16")], ids=str)
def test_rtl_is_golden_in_every_run(case: Svdf | Ring) -> None:
    """Also in what is in memory, under stalls; and the cycle model changes nothing."""
    program, feeds = weft.compile(case.build(), CONFIG), case.feeds(3)
    golden = [program.run({"x": feed}) for feed in feeds]
    program.reset()
    for seed, (feed, wanted) in enumerate(zip(feeds, golden, strict=True)):
        program.run({"x": feed}, on="timing")
        found = program.run({"x": feed}, on="rtl", stall_seed=seed)
        assert found.memory == wanted.memory
        assert np.array_equal(found.outputs["y"], wanted.outputs["y"])


def test_a_device_of_its_own_goes_on_by_itself(svdf: weft.Program) -> None:
    """Who runs a program again and leaves its memory as it is gets what `Program.run` gives."""
    feeds = SVDF.feeds(4)
    svdf.reset()
    wanted = outputs(svdf, feeds)
    (program,) = svdf.segments
    assert isinstance(program, DeviceProgram)
    image, device = Image(program), GoldenDevice(CONFIG, program.areas.memory_bytes)
    (state,) = (name for name, buffer in program.buffers.items() if buffer.kind == "state")
    (result,) = (name for name, buffer in program.buffers.items() if buffer.kind == "output")
    count = program.buffers[state].size // 2
    device.write(image.address(state), bytes(count) + b"\x80" * count)  # zeros, lower bytes less 128
    for feed, value in zip(feeds, wanted, strict=True):
        image.run(device, {"x": feed})
        assert np.array_equal(image.read(device, result).reshape(-1), value.reshape(-1))


def test_programs_take_turns_on_a_device(svdf: weft.Program, ring: weft.Program) -> None:
    """Each has its own states, whatever is in the device's memory."""
    first, second = SVDF.feeds(3), RING.feeds(3)
    for program in (svdf, ring):
        program.reset()
    wanted = outputs(svdf, first), outputs(ring, second)
    for program in (svdf, ring):
        program.reset()
    device = GoldenDevice(CONFIG, 1 << 16)
    for index in range(3):
        assert same(outputs(svdf, first[index : index + 1], device), wanted[0][index : index + 1])
        assert same(outputs(ring, second[index : index + 1], device), wanted[1][index : index + 1])


class Failing(GoldenDevice):
    def start(self, entry: int) -> None:
        raise DeviceError("it broke")


def test_a_run_that_fails_keeps_what_was(ring: weft.Program) -> None:
    outputs(ring, RING.feeds(1))
    before = ring.states
    with pytest.raises(DeviceError):
        ring.run({"x": RING.feeds(1)[0]}, on=Failing(CONFIG, 1 << 16))
    assert same(list(before.values()), list(ring.states.values()))


def test_host_and_device_share_what_is_kept() -> None:
    """Without a kernel engine the rows are the device's, and products of 16 bits the host's."""
    case = Ring(3, dtype="int16", shown=True)
    program = weft.compile(case.build(), PRESETS["tiny"])
    whole = weft.compile(case.build(), CONFIG)
    assert any(node[2] == "host" for node in program.assignment)
    for feed in case.feeds(6):
        found, wanted = (item.run({"x": feed}).outputs for item in (program, whole))
        for name, value in wanted.items():
            assert np.abs(found[name].astype(int) - value).max() <= 1


def test_states_are_saved_as_they_are_at_first(
    svdf: weft.Program, ring: weft.Program, tmp_path: Path
) -> None:
    for program, case in ((svdf, SVDF), (ring, RING)):
        feeds = case.feeds(3)
        program.reset()
        wanted = outputs(program, feeds)
        program.save(tmp_path)
        loaded = weft.load(tmp_path)
        assert same(outputs(loaded, feeds), wanted)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.unlink(), r"cannot read .*states\.bin: No such file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), r"states\.bin is damaged: it has \d+ bytes"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\7"),
            r"is damaged: its checksum does not match",
        ),
    ],
)
def test_files_of_states_that_are_damaged(
    ring: weft.Program, tmp_path: Path, change: object, said: str
) -> None:
    ring.save(tmp_path)
    change(tmp_path / STATES)  # type: ignore[operator]
    with pytest.raises(ProgramFileError, match=said):
        weft.load(tmp_path)


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        command.main(list(arguments))
    return int(left.value.code or 0)


def sums() -> onnx.ModelProto:
    """y, which is the sum of all inputs so far, as is "y1"."""
    builder = Builder(np.random.default_rng(0))
    total = builder.add(builder.input((1, 4)), builder.input((1, 4)))
    return finish_all(builder, total, total)


def test_states_of_onnx_models_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sums.onnx").write_bytes(sums().SerializeToString())
    before = sums().graph.input[1].name
    given = ("sums.onnx", "--config", "tiny", "--state", f"{before}=y1")
    assert call("compile", *given, "-o", "program") == 0
    assert call("check", *given) == 0
    assert "0 on the host" not in capsys.readouterr().out  # float inputs and outputs are quantised there
    program = weft.load("program")
    assert list(program.outputs) == ["y0"]
    assert list(program.states) == [f"{before}/kept"]
    for wrong, said in (
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
        assert said in capsys.readouterr().err


def test_states_that_cannot_be_given() -> None:
    with pytest.raises(weft.CompileError, match=r"^a TFLite model declares its own states, so x=y"):
        weft.compile(RING.build(), CONFIG, states={"x": "y"})
    with pytest.raises(InputError, match=r"^'states' must be a mapping of inputs to outputs, not list$"):
        weft.check(RING.build(), CONFIG, states=["x"])  # type: ignore[arg-type]


def test_inputs_of_several_runs(
    ring: weft.Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the command line; on rtl, and against LiteRT, they are the same runs."""
    monkeypatch.chdir(tmp_path)
    feeds = RING.feeds(3)
    ring.reset()
    wanted = outputs(ring, feeds)
    ring.save("program")
    Path("ring.tflite").write_bytes(RING.build())
    for index, feed in enumerate(feeds):
        np.save(f"{index}.npy", feed)
    given = [word for index in range(3) for word in ("--input", f"{index}.npy")]
    assert call("run", "program", *given, "--on", "rtl", "--output", "y.npz", "--against", "ring.tflite") == 0
    assert np.array_equal(np.load("y.npz")["y"], np.stack(wanted))
    said = capsys.readouterr().out
    assert "LiteRT: 0 of 9 output values differ" in said
    assert "mismatching bytes: 0" in said
