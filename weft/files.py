"""Write files atomically, through links and to special files, and without overwriting inputs."""

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


def require_file(path: Path) -> Path:
    """Return `path`. Raises `FileError` or `OSError` if it cannot be opened as a file."""
    if path.is_dir():
        raise FileError(f"{path} is a folder, not a file")
    path.open("rb").close()
    return path


def check_overwrites(
    writes: Mapping[str, Path | None],
    reads: Iterable[Path | None],
    suffixes: Mapping[str, tuple[str, ...]] = {},
) -> None:
    """Check before any work that no output overwrites an input or another output.

    Parameters
    ----------
    writes : mapping of str to Path or None
        Output files by the option that names them.
    reads : iterable of Path or None
        Input files. Paths, links and hard links to one file are recognised as one file.
    suffixes : mapping of str to tuple of str
        Allowed suffixes of output files, by option.

    Raises
    ------
    FileError
        If an output is also an input, two outputs are one file, or an output has the suffix of another format.
    IsADirectoryError
        If an output is a folder.
    """
    read = {_identity(path) for path in reads if path is not None}
    written: dict[Any, str] = {}
    for option, path in writes.items():
        if path is None:
            continue
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if is_special(path):
            continue
        identity = _identity(path)
        if identity in read:
            raise FileError(f"{option} would overwrite {path}, which is read: name another file")
        if identity in written:
            raise FileError(f"{written[identity]} and {option} both name {path}: they are two files")
        written[identity] = option
    for option, known in suffixes.items():
        path = writes[option]
        if path is not None and path.suffix.lower() not in ("", *known) and not is_special(path):
            raise FileError(
                f"{option} writes {known[0]}, which {path} would not be by its name: end it in {known[0]}"
            )


def program_files(folder: Path) -> list[Path]:
    """Return the files of a program folder that are read."""
    names = ("segment*", "states.bin", "certificate.json", "network*.graph")
    return [folder / "program.json", *(path for name in names for path in folder.glob(name))]


def is_special(path: Path) -> bool:
    """Return True if `path` leads to a device, a pipe or an open descriptor, which cannot be replaced by a file."""
    if _descriptor(path) is not None:
        return True
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` at the end of the block; if the block fails, it is deleted.

    A regular file is replaced atomically. Links are followed. A special file (a device, a pipe, an open descriptor such
    as ``/dev/stdout``) is written to.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    # Links keep pointing to their target, which is replaced. Special files get the contents at the end.
    through = is_special(path)
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    parent = Path(tempfile.gettempdir()) if through else target.parent
    prefix = f".{path.stem}-"
    with _folder(parent), _rename_errors(path, parent / prefix):
        handle, name = tempfile.mkstemp(dir=parent, prefix=prefix, suffix=path.suffix)
        os.close(handle)
        part = Path(name)
        try:
            yield part
            if through:
                _write_through(part, path)
            else:  # `part` is in the same folder, so the replacement is atomic
                part.chmod(_mode(target))
                os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path, reads: Iterable[Path | None] = ()) -> Iterator[Path]:
    """Yield a temporary folder whose files move into `path` at the end of the block; if the block fails, it is deleted.

    Other files in `path` stay. If a file would overwrite one of `reads`, raises `FileError` and moves nothing.
    """
    if path.exists() and not path.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    # Inside `path` if it exists, because its parent may be on another file system.
    inside = path if path.is_dir() else path.parent
    prefix = f".{path.name}-"
    with _folder(inside), _rename_errors(path, inside / prefix):
        part = Path(tempfile.mkdtemp(dir=inside, prefix=prefix))
        try:
            yield part
            files = sorted(file.relative_to(part) for file in part.rglob("*") if not file.is_dir())
            # Check all files before the first one moves.
            check_overwrites({f"{path / file}:": path / file for file in files}, reads)
            for file in files:
                (path / file).parent.mkdir(parents=True, exist_ok=True)
                _move(part / file, path / file)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 with `whole_file`."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON with `whole_file`; numpy scalars become numbers."""
    write_text(path, json.dumps(value, indent=2, default=lambda scalar: scalar.item()) + "\n")


def _identity(path: Path) -> Any:
    """Return a value that is equal for all paths of one file, whether it exists or not."""
    try:
        status = path.stat()
    except OSError:
        return os.path.realpath(path)
    return status.st_dev, status.st_ino


def _descriptor(path: Path) -> int | None:
    """Return the descriptor of this process that `path` names (1 for ``/dev/stdout`` and ``/dev/fd/1``), or None."""
    for _ in range(40):  # the kernel's limit of links
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
    # Opening /dev/stdout by name would overwrite a redirected stdout from its start.
    opened = path.open("wb") if descriptor is None else os.fdopen(os.dup(descriptor), "wb")
    with part.open("rb") as source, opened as target:
        shutil.copyfileobj(source, target)


def _move(file: Path, target: Path) -> None:
    if target.is_symlink() or is_special(target):
        with whole_file(target) as part:
            shutil.copyfile(file, part)
    else:
        file.chmod(_mode(target))
        os.replace(file, target)


def _mode(target: Path) -> int:
    """Return the permissions of `target`, or the default permissions if it is new."""
    with suppress(FileNotFoundError):
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)  # the only way to read it is to set it
    os.umask(mask)
    return 0o666 & ~mask


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Create a folder with its parents; if the block fails, remove the created folders."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for folder in missing:
            with suppress(OSError):  # another process has written to it
                folder.rmdir()
        raise


@contextmanager
def _rename_errors(path: Path, temporary: Path) -> Iterator[None]:
    """Replace the file name in an `OSError` by `path`, if it begins with `temporary` or is missing."""
    try:
        yield
    except OSError as error:
        if error.filename is None or str(error.filename).startswith(str(temporary)):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
