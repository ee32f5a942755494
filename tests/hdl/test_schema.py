"""Files are read whole, if they are regular and of the size that they may have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft.hdl.errors import SchemaError
from weft.hdl.schema import read_bytes


def test_regular_files_are_read(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"abc")
    link.symlink_to(path)
    for name in (path, link):
        assert read_bytes(name) == read_bytes(name, 3) == read_bytes(name, 3, 3) == b"abc"


@pytest.mark.parametrize(
    ("limit", "size", "words"),
    [
        (2, None, "it has more than 2 bytes"),
        (2, 3, "it has more than 2 bytes"),
        (9, 2, "it has 3 bytes, not 2"),
        (9, 1 << 90, "it has 3 bytes, not 1237940039285380274899124224"),
        (9, -1, "it has 3 bytes, not -1"),
    ],
)
def test_other_sizes_are_refused(tmp_path: Path, limit: int, size: int | None, words: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    with pytest.raises(SchemaError) as caught:
        read_bytes(path, limit, size)
    assert str(caught.value).startswith(words)


def test_irregular_files_are_refused(tmp_path: Path) -> None:
    """Without waiting for a writer, and without reading a device."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(SchemaError, match="it is not a regular file"):
            read_bytes(path)
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "none")
    with pytest.raises(SchemaError, match="no file has such a name"):
        read_bytes(Path("a\0b"))
