"""Files that commands write: whole or not at all, through links and special files, and never over what is read."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from weft.errors import FileError


def existing(path: Path) -> Path:
    """`path`, opened once so that a wrong one is reported by name before anything else is done."""
    if path.is_dir():
        raise FileError(f"{path} is a folder, not a file")
    path.open("rb").close()
    return path


def apart(
    writes: Mapping[str, Path | None],
    reads: Iterable[Path | None],
    suffixes: Mapping[str, tuple[str, ...]] = {},
) -> None:
    """Refuse files that must not be written, before any work is done.

    Parameters
    ----------
    writes : mapping of str to Path or None
        Files that are to be written, by the option that names them.
    reads : iterable of Path or None
        Files that are read. Names, links and hard links of the same file are the same file.
    suffixes : mapping of str to tuple of str
        By option, how names of files in its format end.

    Raises
    ------
    FileError
        If one of `writes` is read, or two of them are the same, or one's name ends like those of another format.
    IsADirectoryError
        If one of them is a folder.
    """
    read = {_identity(path) for path in reads if path is not None}
    written: dict[Any, str] = {}
    for option, path in writes.items():
        if path is None:
            continue
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if special(path):
            continue
        identity = _identity(path)
        if identity in read:
            raise FileError(f"{option} would overwrite {path}, which is read: name another file")
        if identity in written:
            raise FileError(f"{written[identity]} and {option} both name {path}: they are two files")
        written[identity] = option
    for option, known in suffixes.items():
        path = writes[option]
        if path is not None and path.suffix.lower() not in ("", *known) and not special(path):
            raise FileError(
                f"{option} writes {known[0]}, which {path} would not be by its name: end it in {known[0]}"
            )


def program_files(folder: Path) -> list[Path]:
    """What is read of a program folder."""
    names = ("segment*", "states.bin", "certificate.json", "network*.graph")
    return [folder / "program.json", *(path for name in names for path in folder.glob(name))]


def special(path: Path) -> bool:
    """Whether `path` leads to something that cannot be replaced by a file: a device, a pipe, an open descriptor."""
    if _descriptor(path) is not None:
        return True
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path whose contents become those of `path` when the block ends, and vanish if it fails.

    A regular file is replaced at once. Links are followed, and what is no regular file (a device, a pipe, an open
    descriptor such as ``/dev/stdout``) is written to.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    through = special(path)
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    parent = Path(tempfile.gettempdir()) if through else target.parent
    prefix = f".{path.stem}-"
    with _folder(parent), _named(path, parent / prefix):
        handle, name = tempfile.mkstemp(dir=parent, prefix=prefix, suffix=path.suffix)
        os.close(handle)
        part = Path(name)
        try:
            yield part
            if through:
                _write_through(part, path)
            else:
                part.chmod(_mode(target))
                os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path, reads: Iterable[Path | None] = ()) -> Iterator[Path]:
    """A temporary folder whose files move into the folder `path` when the block ends, and vanish if it fails.

    Other files that `path` holds stay as they are. Raises `FileError`, and moves nothing, if one of `reads` would be
    overwritten.
    """
    if path.exists() and not path.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    # Inside it if it is there: it may be on another file system than the folder that it is in.
    inside = path if path.is_dir() else path.parent
    prefix = f".{path.name}-"
    with _folder(inside), _named(path, inside / prefix):
        part = Path(tempfile.mkdtemp(dir=inside, prefix=prefix))
        try:
            yield part
            files = sorted(file.relative_to(part) for file in part.rglob("*") if not file.is_dir())
            apart({f"{path / file}:": path / file for file in files}, reads)
            for file in files:
                (path / file).parent.mkdir(parents=True, exist_ok=True)
                _move(part / file, path / file)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, as `whole_file` does."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, as `whole_file` does; numpy scalars are written as numbers."""
    write_text(path, json.dumps(value, indent=2, default=lambda scalar: scalar.item()) + "\n")


def _identity(path: Path) -> Any:
    """Equal for two paths of one file, whether it is there or not."""
    try:
        found = path.stat()
    except OSError:
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def _descriptor(path: Path) -> int | None:
    """The descriptor of this process that `path` is a name of, as ``/dev/stdout`` and ``/dev/fd/1`` are of 1."""
    for _ in range(40):  # links: the kernel follows as many
        folder = os.path.realpath(path.parent)
        if folder in (f"/proc/{os.getpid()}/fd", "/dev/fd") and path.name.isdecimal():
            return int(path.name)
        path = Path(folder, path.name)
        if not path.is_symlink():
            return None
        path = Path(folder, os.readlink(path))
    return None


def _write_through(part: Path, path: Path) -> None:
    descriptor = _descriptor(path)
    sys.stdout.flush()
    # Opened by its name, a file that stdout goes to would be written from its start again.
    opened = path.open("wb") if descriptor is None else os.fdopen(os.dup(descriptor), "wb")
    with part.open("rb") as source, opened as target:
        shutil.copyfileobj(source, target)


def _move(file: Path, target: Path) -> None:
    if target.is_symlink() or special(target):
        with whole_file(target) as part:
            shutil.copyfile(file, part)
    else:
        file.chmod(_mode(target))
        os.replace(file, target)


def _mode(target: Path) -> int:
    """Permissions of `target`; if it is new, those of any new file."""
    with suppress(FileNotFoundError):
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Make a folder and those that it is in; those that were not there are gone again if the block fails."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for folder in missing:
            with suppress(OSError):  # it is not empty any more
                folder.rmdir()
        raise


@contextmanager
def _named(path: Path, temporary: Path) -> Iterator[None]:
    """Have errors of the operating system name `path` where they name a file that begins with `temporary`, or none."""
    try:
        yield
    except OSError as error:
        if error.filename is None or str(error.filename).startswith(str(temporary)):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
