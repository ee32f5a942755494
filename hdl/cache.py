"""Disk cache of expensive builds, keyed by content.

An entry is a folder with a manifest of its files' sizes and hashes. It is built under a temporary name and renamed into
place, so no process sees a partial entry. Every use checks the manifest, and a damaged entry is rebuilt. A process that
builds an entry holds a lock; other processes wait and use its result. Shared libraries are loaded from the cache, so
files that another user owns or can write are not used.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from weft.hdl.errors import CacheError

CONTENTS = "contents.txt"
"""Manifest of an entry: a line `_FORMAT`, then SHA-256, size in bytes and name of each other file."""
PART = "part-"
"""Prefix of the temporary folders of entries that are being built or removed."""
_FORMAT = "weft cache 1"
_STALE_SECONDS = 3600.0
"""Age at which an unlocked temporary folder counts as left by a killed process."""
_REMEDY = "set WEFT_CACHE to a folder of your own that can be written"


def cache_root() -> Path:
    """Return the cache folder: ``$WEFT_CACHE``, else ``weft`` in the user's cache folder.

    Empty variables count as unset, and so does a relative ``$XDG_CACHE_HOME`` (XDG Base Directory Specification).
    Raises `CacheError` if the user's home folder is unknown.
    """
    if folder := os.environ.get("WEFT_CACHE"):
        return Path(folder).absolute()
    parent = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (parent if parent.is_absolute() else Path.home() / ".cache") / "weft"
    except RuntimeError:
        raise CacheError(f"there is no home folder for the cache: {_REMEDY}") from None


def entry(name: str, make: Callable[[Path], None], root: Path | None = None) -> Path:
    """Return the folder of cache entry `name`, building it if it is missing or damaged.

    Parameters
    ----------
    name : str
        Name of the entry. It must identify everything that the content depends on.
    make : callable
        Writes the files into the empty folder that it is passed. Called only to build the entry.
    root : Path, optional
        The cache folder; by default `cache_root()`.

    Raises
    ------
    CacheError
        If the cache belongs to another user or cannot be written.
    """
    root = cache_root() if root is None else root
    target = root / name
    if root.exists():
        _check_owner(root)
    if is_whole(target):
        return target
    with _convert_os_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(stat.S_IMODE(root.stat().st_mode) & ~0o022)
        _sweep(root)
        with _lock(root / f".{name}.lock"):
            if not is_whole(target):  # another process may have built it while this one waited
                _build(target, make)
    return target


def is_whole(folder: Path) -> bool:
    """Check that `folder` is an entry of this user with all its files unchanged."""
    try:
        if not _is_private(folder) or not _is_private(folder / CONTENTS):
            return False
        first, *lines = (folder / CONTENTS).read_text().splitlines()
        files = [folder / line.split(" ", 2)[2] for line in lines]
        expected = [_manifest_line(folder, path) for path in files]
        return first == _FORMAT and all(map(_is_private, files)) and lines == expected
    except (OSError, ValueError, IndexError):
        return False


def _is_private(path: Path) -> bool:
    """Check that this user owns `path`, which is no symbolic link, and that nobody else can write to it."""
    status = path.lstat()
    return status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode) and not status.st_mode & 0o022


def _manifest_line(folder: Path, path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{digest} {path.stat().st_size} {path.relative_to(folder)}"


def _check_owner(root: Path) -> None:
    owner = root.stat().st_uid
    if owner != os.geteuid():
        raise CacheError(f"the cache folder {root} belongs to another user (uid {owner}): {_REMEDY}")


@contextmanager
def _convert_os_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        path = error.filename or root
        raise CacheError(
            f"cannot write to the cache folder {path}: {error.strerror or error}; {_REMEDY}"
        ) from error


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    # The kernel releases the lock when the process ends. On a file system without locks the last writer wins.
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            # The previous holder may have unlinked the file: then other processes would lock a new one.
            if not (path.exists() and os.path.samestat(os.fstat(handle), path.stat())):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(handle)


def _build(target: Path, make: Callable[[Path], None]) -> None:
    """Build an entry in a temporary folder and move it to `target`, replacing a damaged entry."""
    part = Path(tempfile.mkdtemp(dir=target.parent, prefix=PART))
    handle = os.open(part, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)  # keeps `_sweep` from removing the folder
        make(part)
        _seal(part)
        _remove(target)
        os.rename(part, target)
    finally:
        os.close(handle)
        shutil.rmtree(part, ignore_errors=True)


def _seal(folder: Path) -> None:
    """Write the manifest and remove write permission for other users."""
    lines = [_manifest_line(folder, path) for path in sorted(folder.rglob("*")) if path.is_file()]
    (folder / CONTENTS).write_text("\n".join([_FORMAT, *lines, ""]))
    for path in (folder, *folder.rglob("*")):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o022)


def _remove(target: Path) -> None:
    # Renamed first, so that no process sees a partly removed entry.
    if target.is_symlink() or target.exists():
        aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=PART))
        os.rename(target, aside / target.name)
        shutil.rmtree(aside, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Remove the temporary folders that killed processes left."""
    for part in root.glob(f"{PART}*"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime < _STALE_SECONDS:
                continue
            handle = os.open(part, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(part, ignore_errors=True)
            finally:
                os.close(handle)
