"""Cache entries: complete, checked before use, and rebuilt if damaged."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from weft.hdl import cache
from weft.hdl.cache import CONTENTS, cache_root, entry, is_whole
from weft.hdl.errors import CacheError


@pytest.mark.parametrize(
    ("own", "users", "found"),
    [
        (None, None, "/home/me/.cache/weft"),
        ("", "", "/home/me/.cache/weft"),
        (None, "/caches", "/caches/weft"),
        (None, "caches", "/home/me/.cache/weft"),
        ("/builds", "/caches", "/builds"),
        ("builds", None, "/here/builds"),
    ],
)
def test_the_cache_is_an_absolute_folder(
    monkeypatch: pytest.MonkeyPatch, own: str | None, users: str | None, found: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr("os.getcwd", lambda: "/here")
    for name, value in (("WEFT_CACHE", own), ("XDG_CACHE_HOME", users)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert cache_root() == Path(found)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Maker:
    """Makes an entry of two files, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        (folder / "a.so").write_bytes(bytes(range(256)) * 40)
        (folder / "inner").mkdir()
        (folder / "inner" / "b").write_text("b")


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def test_an_entry_is_made_once(root: Path) -> None:
    make = Maker()
    assert entry("one", make) == entry("one", make) == root / "one"
    assert make.calls == 1
    assert names(root) == {"one"}
    assert names(root / "one") == {"a.so", "inner", CONTENTS}


def _put(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": lambda folder: (folder / "a.so").unlink(),
    "empty": _put("a.so", b""),
    "truncated": lambda folder: os.truncate(folder / "a.so", 5000),
    "one bit": lambda folder: (folder / "a.so").write_bytes(b"\x01" + (folder / "a.so").read_bytes()[1:]),
    "inner file": _put("inner/b", b"c"),
    "no list": lambda folder: (folder / CONTENTS).unlink(),
    "empty list": _put(CONTENTS, b""),
    "list that is none": _put(CONTENTS, b"\xff\x00\n"),
    "short lines": _put(CONTENTS, b"weft cache 1\na.so\n"),
    "cut list": lambda folder: os.truncate(folder / CONTENTS, 100),
    "file outside": lambda folder: (folder / CONTENTS).write_text(
        (folder / CONTENTS).read_text().replace("a.so", "../a.so")
    ),
    "other format": lambda folder: (folder / CONTENTS).write_text(
        (folder / CONTENTS).read_text().replace("cache 1", "cache 0")
    ),
    "others may write the file": lambda folder: (folder / "a.so").chmod(0o666),
    "others may write the folder": lambda folder: folder.chmod(0o777),
    "link": lambda folder: (folder / "a.so").rename(folder / "c") and (folder / "a.so").symlink_to("c"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entries_are_rebuilt(root: Path, damage: str) -> None:
    make = Maker()
    folder = entry("one", make)
    wanted = (folder / "a.so").read_bytes()
    DAMAGES[damage](folder)
    assert entry("one", make) == folder
    assert make.calls == 2
    assert (folder / "a.so").read_bytes() == wanted
    assert is_whole(folder)
    assert names(root) == {"one"}


@pytest.mark.parametrize("there", ["file", "link"])
def test_entries_that_are_no_folders_are_replaced(root: Path, there: str) -> None:
    root.mkdir()
    (root / "one").write_text("x") if there == "file" else (root / "one").symlink_to("/nowhere")
    assert is_whole(entry("one", Maker()))


def test_files_of_another_user_are_not_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Maker()
    folder = entry("one", make)
    monkeypatch.setattr(os, "geteuid", lambda uid=os.geteuid(): uid + 1)
    assert not is_whole(folder)
    with pytest.raises(
        CacheError,
        match=rf"^the cache folder {root} belongs to another user \(uid \d+\): "
        r"set WEFT_CACHE to a folder of your own that can be written$",
    ):
        entry("one", make)
    assert make.calls == 1


def test_only_the_owner_may_write_entries(root: Path) -> None:
    old = os.umask(0)
    try:
        folder = entry("one", Maker())
    finally:
        os.umask(old)
    for path in (root, folder, *folder.rglob("*")):
        assert not path.stat().st_mode & 0o022, path


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), SystemExit(143), MemoryError()])
def test_failed_builds_leave_nothing(root: Path, error: BaseException) -> None:
    def make(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise error

    with pytest.raises(type(error)):
        entry("one", make)
    assert names(root) == set()


def test_a_damaged_entry_stays_until_it_is_made_again(root: Path) -> None:
    """Another process may have it loaded."""
    folder = entry("one", Maker())
    (folder / "a.so").unlink()

    def fail(folder: Path) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        entry("one", fail)
    assert names(folder) == {"inner", CONTENTS}


@pytest.mark.parametrize(
    ("number", "why"), [(errno.ENOSPC, "No space left on device"), (errno.EROFS, "Read-only file")]
)
def test_errors_of_the_file_system_name_folder_and_remedy(root: Path, number: int, why: str) -> None:
    def make(folder: Path) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(
        CacheError, match=rf"^cannot write to the cache folder {root}: {why}.*; set WEFT_CACHE to a folder"
    ):
        entry("one", make)
    assert names(root) == set()


def test_a_cache_that_is_a_file(root: Path) -> None:
    root.write_text("")
    with pytest.raises(
        CacheError, match=rf"^cannot write to the cache folder {root}: File exists; set WEFT_CACHE to"
    ):
        entry("one", Maker())


def test_a_folder_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", "/proc/weft")
    with pytest.raises(
        CacheError, match=r"^cannot write to the cache folder /proc/weft: No such file.*; set WEFT_CACHE to"
    ):
        entry("one", Maker())


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("WEFT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    with pytest.raises(CacheError, match=r"^there is no home folder for the cache: set WEFT_CACHE to"):
        cache_root()


def test_a_cache_that_is_whole_needs_not_be_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Maker()
    entry("one", make)
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: pytest.fail("writes"))
    monkeypatch.setattr(os, "open", lambda *_, **__: pytest.fail("writes"))
    assert entry("one", make) == root / "one"


def test_parts_of_processes_that_were_killed_are_removed(root: Path) -> None:
    for name in ("part-old", "part-held", "part-new"):
        (root / name).mkdir(parents=True)
        (root / name / "half").write_text("half")
    for name in ("part-old", "part-held"):
        os.utime(root / name, times=(time.time() - 2 * cache._STALE_SECONDS,) * 2)
    handle = os.open(root / "part-held", os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        entry("one", Maker())
    finally:
        os.close(handle)
    assert names(root) == {"one", "part-held", "part-new"}


_SLOW = """
import sys, time
from pathlib import Path
from weft.hdl.cache import entry

def make(folder):
    print("makes", flush=True)
    (folder / "half").write_text("half")
    time.sleep(float(sys.argv[1]))
    (folder / "whole").write_text("whole")

entry("one", make)
print("has", flush=True)
"""


def _start(seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _SLOW, str(seconds)], stdout=subprocess.PIPE, text=True)


def test_only_one_of_several_processes_builds_the_entry(root: Path) -> None:
    processes = [_start(0.3) for _ in range(4)]
    said = [process.communicate()[0].split() for process in processes]
    assert sorted(said) == [["has"], ["has"], ["has"], ["makes", "has"]]
    assert names(root) == {"one"}
    assert is_whole(root / "one")


def test_after_a_kill_the_next_process_makes_it(root: Path) -> None:
    first = _start(60)
    assert first.stdout is not None
    assert first.stdout.readline() == "makes\n"
    second = _start(0)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert second.communicate()[0].split() == ["makes", "has"]
    assert is_whole(root / "one")


def test_the_list_has_sizes_and_hashes(root: Path) -> None:
    folder = entry("one", Maker())
    lines = [line.split() for line in (folder / CONTENTS).read_text().splitlines()]
    assert lines == [
        ["weft", "cache", "1"],
        [hashlib.sha256((folder / "a.so").read_bytes()).hexdigest(), "10240", "a.so"],
        [hashlib.sha256(b"b").hexdigest(), "1", "inner/b"],
    ]
