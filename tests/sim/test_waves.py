"""Waveforms: files next to them name what is in them, they show the cycles asked for, and errors leave nothing."""

from __future__ import annotations

import ctypes
import os
import random
import re
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.cli import main
from weft.errors import FileError
from weft.examples import digits
from weft.hdl.isa import End, Vec
from weft.hdl.isa.config import PRESETS
from weft.run.options import RunOptions
from weft.run.trace import recording
from weft.sim import verilate
from weft.sim.device import DeviceError
from weft.sim.rtl.device import RtlDevice
from weft.sim.waves import CYCLE_TIME, GROUPS, Variable, Waves, unpack, variables

TINY = PRESETS["tiny"]
FIRST, CYCLES = 3000, 40


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main.main(list(arguments))
    return int(left.value.code or 0)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture(scope="module")
def program_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with a program and its input."""
    folder = tmp_path_factory.mktemp("program")
    weft.compile(digits.model(), "tiny").save(folder / "built")
    np.savez(folder / "in.npz", image=digits.held_out()[0][:1])
    return folder


@pytest.fixture
def here(program_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, with links to what `program_folder` holds."""
    monkeypatch.chdir(tmp_path)
    for path in program_folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


RUN = ("run", "built", "--input", "in.npz", "--on", "rtl")


@pytest.fixture(scope="module", params=["fst", "vcd"])
def wave_file(
    request: pytest.FixtureRequest, program_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return the waveform of a part of a run, which has its other files beside it."""
    folder = tmp_path_factory.mktemp(request.param)
    path = folder / f"wave.{request.param}"
    arguments = [
        "run",
        str(program_folder / "built"),
        "--input",
        str(program_folder / "in.npz"),
        "--on",
        "rtl",
    ]
    window = ["--waves-from", str(FIRST), "--waves-cycles", str(CYCLES)]
    assert call(*arguments, "--waves", str(path), *window) == 0
    assert names(folder) == {path.name, "wave.gtkw", "wave.sucl"}
    return path


def scopes_of(variable: Variable) -> tuple[str, ...]:
    """Without those that FST has for the words of a memory."""
    inside = variable.name.startswith(f"{variable.scopes[-1]}[")
    return variable.scopes[:-1] if inside else variable.scopes


def test_names_do_not_depend_on_the_format(program_folder: Path, tmp_path: Path) -> None:
    found = []
    for suffix in (".fst", ".vcd"):
        path = tmp_path / f"wave{suffix}"
        with RtlDevice(TINY, 4096, waves=path):
            pass
        found.append({(scopes_of(variable), variable.name, variable.range) for variable in variables(path)})
    assert found[0] == found[1]
    assert len(found[0]) > 1000
    assert {("TOP", "weft"), ("TOP", "weft", "mm", "array", "row0")} <= {scopes for scopes, _, _ in found[0]}


def test_save_file_of_gtkwave(wave_file: Path) -> None:
    lines = wave_file.with_suffix(".gtkw").read_text().splitlines()
    assert f'[dumpfile] "{wave_file}"' in lines
    known = {variable.path + variable.range for variable in variables(wave_file)}
    groups: dict[str, list[str]] = {}
    inside = ""
    for line in lines:
        if line.startswith("-"):
            assert inside in ("", line[1:])
            inside = "" if inside else line[1:]
        elif inside and not line.startswith("@"):
            groups.setdefault(inside, []).append(line)
    assert list(groups) == list(GROUPS)
    assert {name for members in groups.values() for name in members} <= known
    for unit in ("load", "mm", "vec", "store"):
        wanted = {f"{unit}.busy", f"{unit}.signal[15:0]", f"{unit}.stall_port"}
        wanted |= {f"{unit}_queue.instruction__{side}" for side in ("valid", "ready")}
        assert {f"TOP.weft.{name}" for name in wanted} <= set(groups[unit.upper()])
        assert all(
            name.startswith((f"TOP.weft.{unit}.", f"TOP.weft.{unit}_queue.")) for name in groups[unit.upper()]
        )
    assert "TOP.weft.m_axi_araddr[31:0]" in groups["memory"]
    assert len(groups["semaphores"]) == 17


def test_commands_of_surfer(wave_file: Path) -> None:
    known = {variable.path for variable in variables(wave_file)}
    commands = [line.split() for line in wave_file.with_suffix(".sucl").read_text().splitlines()]
    assert {command for command, _ in commands} == {"divider_add", "variable_add", "cursor_set"}
    added = [name for command, name in commands if command == "variable_add"]
    assert set(added) <= known
    assert [name for command, name in commands if command == "divider_add"] == list(GROUPS)
    # The same as in the other file.
    lines = wave_file.with_suffix(".gtkw").read_text().splitlines()
    assert added == [line.partition("[")[0] for line in lines if line.startswith("TOP.")]


def test_window_is_that_of_the_program(wave_file: Path) -> None:
    (cursor,) = re.findall(r"^cursor_set (\d+)$", wave_file.with_suffix(".sucl").read_text(), re.MULTILINE)
    begin, end = int(cursor), int(cursor) + CYCLES * CYCLE_TIME
    raw = wave_file.read_bytes()
    if wave_file.suffix == ".fst":
        kind, _, *times = struct.unpack_from(">BQQQ", raw)
        assert (kind, times) == (0, [begin, end])
    else:
        times = [int(time) for time in re.findall(rb"^#(\d+)$", raw, re.MULTILINE)]
        assert times == list(range(begin, end + 1, CYCLE_TIME // 2))
    assert f"[timestart] {begin}" in wave_file.with_suffix(".gtkw").read_text()


def bits(path: Path, wanted: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
    """Time and value of all changes of one-bit signals of the control unit, in a VCD file."""
    text = path.read_text().partition("$scope module control $end")[2]
    ids = {re.search(rf"\$var wire 1 (\S+) {name} \$end", text)[1]: name for name in wanted}
    seen: dict[str, list[tuple[int, int]]] = {name: [] for name in wanted}
    now = 0
    for line in text.splitlines():
        if line.startswith("#"):
            now = int(line[1:])
        elif line[:1] in ("0", "1") and line[1:] in ids:
            seen[ids[line[1:]]].append((now, int(line[0])))
    return seen


def test_cycle_0_is_the_start(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The pulse that starts the program, even if the bus makes pauses."""
    assert call(*RUN, "--waves", "w.vcd", "--waves-cycles", "2", "--stall-seed", "4") == 0
    assert "\nw.vcd: waveforms from cycle 0 on; w.gtkw and w.sucl open them\n" in capsys.readouterr().out
    seen = bits(here / "w.vcd", ["start", "running"])
    begin = seen["start"][0][0]
    assert seen == {
        "start": [(begin, 1), (begin + CYCLE_TIME, 0)],
        "running": [(begin, 0), (begin + CYCLE_TIME, 1)],
    }


def hang(path: Path, first: int = 0) -> None:
    wanted = RunOptions("rtl", waves=path, waves_from=first)
    with recording(wanted) as options, RtlDevice(TINY, 4096, waves=options.recording) as device:
        device.write(0, Vec(wait=1).encode() + End().encode())
        device.start(0)
        device.wait(100)


def test_a_program_that_hangs_leaves_waveforms(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "w.vcd"
    with pytest.raises(DeviceError, match="VEC waits for semaphore"):
        hang(path)
    assert names(path.parent) == {"w.vcd", "w.gtkw", "w.sucl"}
    assert any(variable.path == "TOP.weft.vec_queue.waiting" for variable in variables(path))
    for suffix in (".vcd", ".fst"):
        with pytest.raises(DeviceError, match="VEC waits for semaphore"):
            hang(tmp_path / f"late{suffix}", 1_000_000)
    assert names(tmp_path) == {"deep"}


def test_runs_that_fail_to_start_leave_nothing(tmp_path: Path) -> None:
    for error in (DeviceError("no start"), KeyboardInterrupt()):
        with pytest.raises(type(error)), recording(RunOptions("rtl", waves=tmp_path / "w.fst")):
            raise error
    assert names(tmp_path) == set()
    with (
        pytest.raises(
            FileError, match=r"^nothing of this program runs on the device, so there are no waveforms$"
        ),
        recording(RunOptions("rtl", waves=tmp_path / "w.fst")),
    ):
        pass
    assert names(tmp_path) == set()
    with pytest.raises(DeviceError, match=r"^cannot write the trace .*missing/w.fst$"):
        RtlDevice(TINY, 4096, waves=Waves(tmp_path / "missing" / "w.fst"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*RUN, "--waves", "w.txt"], "w.txt: the file of waveforms must end in .fst or .vcd"),
        ([*RUN, "--waves", "in.npz/w.fst"], "cannot use in.npz: File exists"),
        ([*RUN, "--waves", "built.fst"], "cannot use built.fst: Is a directory"),
        (
            [*RUN, "--waves-from", "5"],
            "--waves is missing: --waves-from and --waves-cycles select its cycles",
        ),
        (
            [*RUN, "--waves-cycles", "5"],
            "--waves is missing: --waves-from and --waves-cycles select its cycles",
        ),
        (
            [*RUN, "--waves", "w.fst", "--on", "golden"],
            "--waves is for the device rtl, and this one is golden",
        ),
        (
            [*RUN, "--waves", "w.fst", "--on", "timing"],
            "--waves is for the device rtl, and this one is timing",
        ),
    ],
)
def test_errors_are_one_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    Path("built.fst").mkdir()
    before = names(here)
    assert call(*arguments) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if not line.endswith("...")]
    assert errors == [f"error: {message}"]
    assert names(here) == before


def test_a_window_beyond_the_end(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = names(here)
    assert call(*RUN, "--waves", "w.fst", "--waves-from", "1000000") == 2
    assert re.search(
        r"^error: there are no waveforms from cycle 1,000,000 on: the program takes 1\d\d,\d\d\d$",
        capsys.readouterr().err,
        re.MULTILINE,
    )
    assert names(here) == before


@pytest.fixture(scope="module")
def compression(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("compression")
    header = Path(verilate.__file__).with_name("fst_compression.h")
    (folder / "c.cpp").write_text(
        f'#include "{header}"\n'
        'extern "C" int pack(const char* from, char* to, int size) {\n'
        "    return LZ4_compress_default(from, to, size, LZ4_compressBound(size));\n}\n"
    )
    verilate.Tools(folder).link(["-shared", "-fPIC", "-O1", "c.cpp"], "c.so")
    return ctypes.CDLL(os.fspath(folder / "c.so"))


def pack(library: ctypes.CDLL, plain: bytes) -> bytes:
    room = ctypes.create_string_buffer(len(plain) + len(plain) // 255 + 16 + 8)
    room[-8:] = b"untouchd"
    size = library.pack(plain, room, len(plain))
    assert room[-8:] == b"untouchd"
    return room.raw[:size]


def test_compression_keeps_everything(compression: ctypes.CDLL) -> None:
    pick = random.Random(1)
    sizes = [*range(40), *(pick.randrange(40, 3000) for _ in range(100)), 70_000, 200_000]
    for size in sizes:
        for letters in (1, 2, 5, 256):
            word = bytes(pick.randrange(letters) for _ in range(pick.randrange(1, 400)))
            noise = pick.randbytes(size // 8 if letters > 2 else 0)
            plain = (noise + word * size + noise)[:size]
            assert unpack(pack(compression, plain), size) == plain
    twice = pick.randbytes(1000)
    for apart in (60_000, 70_000):
        plain = twice + bytes(apart) + twice
        assert unpack(pack(compression, plain), len(plain)) == plain
    assert len(pack(compression, b"abcdefg" * 10_000)) < 400


@pytest.mark.parametrize("packed", [b"", b"\x10", b"\x10ab\x00\x00", b"\x10a\x09\x00", b"\x50ab"])
def test_unknown_blocks_are_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="are no LZ4 block of 20"):
        unpack(packed, 20)
