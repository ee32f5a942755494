"""A cache on disk of expensive builds, keyed by content: entries are checked when used, and built anew if damaged.

An entry is a folder. It is made under another name and moved into place at once, with a list of the sizes and hashes of
its files, so that nobody sees half of it, and damage is found before anything is loaded or run. Whoever makes an entry
holds a lock: another process that wants it waits, and takes what the first one made. Libraries are loaded from here:
what belongs to another user, or could be written by one, is not used.
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

from weft.hdl.errors import WeftError

CONTENTS = "contents.txt"
"""In every entry: a line with SHA-256, size and name of each of its other files, behind `_FORMAT`."""
PART = "part-"
"""Begins the names of entries that are being made, or taken away."""
_FORMAT = "weft cache 1"
_SETTLED = 3600.0
"""Seconds without a new file after which a part that nobody holds is what a process that was killed has left."""
_REMEDY = "set WEFT_CACHE to a folder of your own that can be written"


class CacheError(WeftError, RuntimeError):
    """The folder for builds cannot be used; the message names it and says what to do."""


def cache_root() -> Path:
    """The folder of all builds: ``$WEFT_CACHE``, else ``weft`` in the user's cache folder.

    Empty variables count as not set, and so does a relative ``$XDG_CACHE_HOME`` (XDG Base Directory Specification).
    Raises `CacheError` if nobody says where the user's home is.
    """
    if own := os.environ.get("WEFT_CACHE"):
        return Path(own).absolute()
    users = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (users if users.is_absolute() else Path.home() / ".cache") / "weft"
    except RuntimeError:
        raise CacheError(f"there is no home folder to keep builds in: {_REMEDY}") from None


def entry(name: str, make: Callable[[Path], None], root: Path | None = None) -> Path:
    """The folder `name` of the cache, as `make` filled it.

    Parameters
    ----------
    name : str
        Of the entry; it must tell all that the content depends on.
    make : callable
        Writes the files into an empty folder that it is given. Not called if there is a whole entry.
    root : Path
        Where entries are kept; `cache_root` if None.

    Raises
    ------
    CacheError
        If the cache belongs to another user, or cannot be written.
    """
    root = cache_root() if root is None else root
    target = root / name
    if root.exists():
        _check_owner(root)
    if is_whole(target):
        return target
    with _told(root):
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(stat.S_IMODE(root.stat().st_mode) & ~0o022)
        _sweep(root)
        with _locked(root / f".{name}.lock"):
            if not is_whole(target):  # else another process was quicker
                _make(target, make)
    return target


def is_whole(folder: Path) -> bool:
    """Whether `folder` is an entry of this user's with all its files, unchanged."""
    try:
        if not _own(folder) or not _own(folder / CONTENTS):
            return False
        first, *lines = (folder / CONTENTS).read_text().splitlines()
        files = [folder / line.split(" ", 2)[2] for line in lines]
        return first == _FORMAT and all(map(_own, files)) and lines == [_line(folder, path) for path in files]
    except (OSError, ValueError, IndexError):
        return False


def _own(path: Path) -> bool:
    """Whether a file or folder is the user's, and nobody else may write to it. Links are not followed."""
    found = path.lstat()
    return found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode) and not found.st_mode & 0o022


def _line(folder: Path, path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{digest} {path.stat().st_size} {path.relative_to(folder)}"


def _check_owner(root: Path) -> None:
    owner = root.stat().st_uid
    if owner != os.geteuid():
        raise CacheError(f"the folder for builds {root} belongs to another user (number {owner}): {_REMEDY}")


@contextmanager
def _told(root: Path) -> Iterator[None]:
    """Errors of the operating system as sentences that name the folder."""
    try:
        yield
    except OSError as error:
        where = error.filename or root
        raise CacheError(f"cannot keep builds in {where}: {error.strerror or error}; {_REMEDY}") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that ends with the process. File systems without locks do without: the last one wins then."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            # The holder before took the file away: what is locked now is not what others would find.
            if not (path.exists() and os.path.samestat(os.fstat(handle), path.stat())):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(handle)


def _make(target: Path, make: Callable[[Path], None]) -> None:
    """Fill a part and move it into place, where there is nothing, or something damaged."""
    part = Path(tempfile.mkdtemp(dir=target.parent, prefix=PART))
    handle = os.open(part, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)  # what `_sweep` looks at
        make(part)
        _seal(part)
        _take_away(target)
        os.rename(part, target)
    finally:
        os.close(handle)
        shutil.rmtree(part, ignore_errors=True)


def _seal(folder: Path) -> None:
    """Write the list of files, and let nobody else change them."""
    lines = [_line(folder, path) for path in sorted(folder.rglob("*")) if path.is_file()]
    (folder / CONTENTS).write_text("\n".join([_FORMAT, *lines, ""]))
    for path in (folder, *folder.rglob("*")):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o022)


def _take_away(target: Path) -> None:
    if target.is_symlink() or target.exists():
        aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=PART))
        os.rename(target, aside / target.name)
        shutil.rmtree(aside, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Remove what processes that were killed have left."""
    for part in root.glob(f"{PART}*"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime < _SETTLED:
                continue
            handle = os.open(part, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(part, ignore_errors=True)
            finally:
                os.close(handle)
