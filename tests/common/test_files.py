"""Files that commands write: complete or absent, to pipes and devices too, and never over an input."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import weft
from weft import __main__ as command
from weft import files
from weft.errors import FileError
from weft.examples import digits


def text_file(path: Path) -> None:
    files.write_text(path, "new")


def json_file(path: Path) -> None:
    files.write_json(path, "new")


def in_folder(path: Path) -> None:
    with files.whole_folder(path.parent) as part:
        (part / path.name).write_text("new")


WRITERS = [text_file, json_file, in_folder]


def list_folder(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("write", WRITERS)
def test_links_are_followed_and_stay_links(tmp_path: Path, write: Callable[[Path], None]) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere/target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to("elsewhere/target")
    write(link)
    assert link.is_symlink()
    assert "new" in target.read_text()
    assert list_folder(tmp_path) == {"elsewhere", "link"}
    target.unlink()
    write(link)
    assert "new" in target.read_text()


@pytest.mark.parametrize("write", WRITERS)
def test_pipes_are_written_to(tmp_path: Path, write: Callable[[Path], None]) -> None:
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    write(pipe)
    reader.join(10)
    assert "new" in got[0]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_devices_are_written_to(tmp_path: Path) -> None:
    text_file(Path("/dev/null"))
    (tmp_path / "link").symlink_to("/dev/null")
    text_file(tmp_path / "link")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert (tmp_path / "link").is_symlink()
    with pytest.raises(OSError, match="No space left on device") as failed:
        text_file(Path("/dev/full"))
    assert (failed.value.filename, failed.value.errno) == ("/dev/full", errno.ENOSPC)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"])
def test_open_descriptor_is_written_at_its_position(tmp_path: Path, name: str) -> None:
    """A file behind a descriptor is not replaced: text before and after the write stays."""
    (tmp_path / "link").symlink_to("/dev/stdout")
    script = f"import pathlib, weft.files as f; print('a'); f.write_text(pathlib.Path({name!r}), 'b\\n'); print('c')"
    with (tmp_path / "log").open("w") as log:
        buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        subprocess.run([sys.executable, "-c", script], cwd=tmp_path, stdout=log, env=buffered, check=True)
    assert (tmp_path / "log").read_text() == "a\nb\nc\n"


def test_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    kept, new = tmp_path / "kept", tmp_path / "new"
    kept.write_text("old")
    kept.chmod(0o640)
    umask = os.umask(0o027)
    try:
        text_file(kept)
        text_file(new)
    finally:
        os.umask(umask)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (kept, new)] == [0o640, 0o640 & ~0o027]


def write_and_fail(path: Path) -> None:
    with files.whole_file(path) as part:
        part.write_text("newer")
        raise RuntimeError


def test_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with path.open() as before:
        with files.whole_file(path) as part:
            part.write_text("new")
            assert path.read_text() == "old"
        assert before.read() == "old"
    assert path.read_text() == "new"
    with pytest.raises(RuntimeError):
        write_and_fail(path)
    assert path.read_text() == "new"
    assert list_folder(tmp_path) == {"file"}


def test_failed_write_leaves_no_folders(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), files.whole_file(tmp_path / "a/b/c"):
        raise RuntimeError
    with pytest.raises(RuntimeError), files.whole_folder(tmp_path / "a/b/c"):
        raise RuntimeError
    assert list_folder(tmp_path) == set()


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """An operating system's error that names the temporary file, or no file."""
    with pytest.raises(OSError, match="No space left") as failed:
        yield
    assert failed.value.filename == str(path)


def test_errors_name_the_requested_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for named in (True, False):
        with full_disk(path), files.whole_file(path) as part:
            raise OSError(errno.ENOSPC, "No space left", *([str(part)] if named else []))
        with full_disk(path), files.whole_folder(path) as part:
            raise OSError(errno.ENOSPC, "No space left", *([str(part / "x")] if named else []))
    with pytest.raises(OSError, match="other") as failed, files.whole_file(path):
        raise OSError(errno.ENOENT, "other", "/of/another")
    assert failed.value.filename == "/of/another"
    (tmp_path / "loop").symlink_to("loop")
    path.write_text("")
    for wrong, named in (("loop", "loop"), ("file/x", "file")):
        with pytest.raises(OSError) as failed:  # noqa: PT011
            text_file(tmp_path / wrong)
        assert failed.value.filename == str(tmp_path / named)


def fill(folder: Path, names: list[str], reads: list[Path]) -> None:
    with files.whole_folder(folder, reads) as part:
        for name in names:
            (part / name).write_text("new")


@pytest.mark.parametrize("way", ["same", "dots", "link", "hard link", "linked folder"])
def test_input_files_are_not_overwritten(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    read = Path("folder/read")
    read.parent.mkdir()
    read.write_text("precious")
    Path("link").symlink_to(read)
    Path("hard").hardlink_to(read)
    Path("linked").symlink_to("folder")
    ways = {"same": "folder/read", "dots": "folder/../folder/read", "link": "link", "hard link": "hard"}
    path = Path(ways.get(way, "linked/read"))
    with pytest.raises(
        FileError, match=f"^--output would overwrite {path}, which is read: name another file$"
    ):
        files.check_overwrites({"--output": path}, [None, Path("other"), read])
    message = "^--output and --report both name other: they are two files$"
    for there in (False, True):
        if there:
            Path("other").write_text("")
        with pytest.raises(FileError, match=message):
            files.check_overwrites({"--output": Path("folder/../other"), "--report": Path("other")}, [read])
    with pytest.raises(FileError, match="would overwrite folder/read"):
        fill(read.parent, ["new", "read"], [path])
    assert read.read_text() == "precious"
    assert list_folder(read.parent) == {"read"}


def test_suffixes_of_other_formats_are_refused(tmp_path: Path) -> None:
    """Case does not matter. Names without a suffix and special files are accepted."""
    suffixes = {"--output": (".npz",), "--svg": (".v", ".sv")}
    for name in ("x.csv", "x.npy", "x.NPZ.zip", "x.json"):
        message = rf"^--output writes \.npz, which {name} would not be by its name: end it in \.npz$"
        with pytest.raises(FileError, match=message):
            files.check_overwrites({"--output": Path(name)}, [], suffixes)
    for name in ("x.npz", "x.NPZ", "x", "/dev/null"):
        files.check_overwrites(
            {"--output": Path(name), "--svg": Path("y.sv"), "--report": Path("z.csv")}, [], suffixes
        )


REFUSED = {
    "run program --input s.npz --output x.csv": ".npz",
    "run program --input s.npz --report x.csv": ".json",
    "run program --on timing --report x.csv": ".json",
    "trace program --output x.csv": ".json",
    "trace program --svg x.png": ".svg",
    "tune model.onnx -o x.csv": ".json",
    "quantise model.onnx -o x.tflite --data s.npz": ".onnx",
    "train model.onnx -o x.pt --data s.npz": ".onnx",
    "convert model.onnx -o x.onnx": ".mlir",
    "verilog -o x.vhd": ".v",
}
"""Command lines with a name of another format, and the suffix that they need."""


def test_commands_refuse_names_of_other_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(digits.model())
    np.savez("s.npz", image=np.zeros((1, 1, 8, 8), np.float32))
    weft.compile("model.onnx", "tiny").save("program")
    before = list_folder(tmp_path)
    for line, end in REFUSED.items():
        with pytest.raises(SystemExit) as ended:
            command.main(line.split())
        assert ended.value.code == 2
        (message,) = capsys.readouterr().err.splitlines()
        assert message.endswith(f" would not be by its name: end it in {end}"), line
        assert list_folder(tmp_path) == before


def test_distinct_files_are_accepted() -> None:
    null = Path("/dev/null")
    files.check_overwrites(
        {"--output": null, "--report": null, "--waves": Path("a"), "--svg": Path("b")}, [null, Path("c")]
    )
    with pytest.raises(IsADirectoryError):
        files.check_overwrites({"--output": Path("/tmp")}, [])


def test_existing_folder_is_filled_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder may be a mount point, so temporary files must lie inside it."""
    target = tmp_path / "mount"
    target.mkdir()
    (target / "mine").write_text("mine")
    moved: list[tuple[Path, Path]] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (moved.append((Path(a), Path(b))), replace(a, b)))
    with files.whole_folder(target) as part:
        (part / "sub").mkdir()
        (part / "sub/file").write_text("new")
    assert (target / "sub/file").read_text() == "new"
    assert list_folder(target) == {"mine", "sub"}
    assert [source.is_relative_to(target) for source, _ in moved] == [True]
