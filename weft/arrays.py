"""Arrays on disk: the inputs of a model from .npz, .npy, images or stdin, and its outputs to .npz.

Files may hold anything: what an array will be is read from its header, and compared with the model, before its data is.
"""

from __future__ import annotations

import io
import math
import re
import sys
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO
from urllib.parse import unquote

import numpy as np

from weft.errors import FileError
from weft.files import whole_file
from weft.hdl.schema import printable

if TYPE_CHECKING:
    from PIL.Image import Image


_FORMATS = {
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "JPEG": (b"\xff\xd8\xff",),
    "BMP": (b"BM",),
    "GIF": (b"GIF87a", b"GIF89a"),
    "WEBP": (b"RIFF",),
    "PPM": (b"P4", b"P5", b"P6"),
}
"""How files of a format, by Pillow's name of it, begin."""
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's pixels of so many channels."""
_READ = {1: ("1", "L", "P", "RGB"), 3: ("1", "L", "P", "RGB"), 4: ("RGBA",)}
"""Pixels that become those."""
_ORIENTATION = 0x0112
"""EXIF's tag."""


def is_image(head: bytes) -> bool:
    """Whether a file that begins so may be an image."""
    return any(head.startswith(magic) for magics in _FORMATS.values() for magic in magics)


def read_image(file: BinaryIO, label: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """An image as a model's input.

    Parameters
    ----------
    file : BinaryIO
        PNG, JPEG, BMP, GIF, WebP or PPM, with 8 bits a channel.
    label : str
        What messages call the file.
    dtype, shape
        Of the input: uint8 takes pixels as they are, floats take them divided by 255. The shape is (height, width), or
        (channels, height, width) or (height, width, channels) with 1, 3 or 4 channels, perhaps with 1 in front. Grey
        pixels are repeated for 3 channels; colours become grey as ITU-R 601 has it for 1.

    Returns
    -------
    ndarray
        Of that dtype and shape.

    Raises
    ------
    FileError
        If Pillow is missing, the image is damaged, has another size, or nothing says what its pixels become.
    """
    try:
        from PIL import Image
    except ImportError:
        raise FileError(
            f"{label} is an image, which needs Pillow: pip install 'weft[images]', or give a .npy file"
        ) from None
    kind = np.dtype(dtype)
    if kind != np.uint8 and kind.kind != "f":
        raise FileError(
            f"{label} is an image, but the model takes {dtype}, not uint8 or floats: give a .npy file"
        )
    layouts = _layouts(label, shape)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(file, formats=list(_FORMATS)) as image:
                channels_last, channels = _fitting(image, label, layouts)
                pixels = np.asarray(image.convert(_MODES[channels]), np.uint8)
    except FileError:
        raise
    except Exception as error:  # Pillow's readers raise anything
        raise FileError(f"{label} is no image that can be read: {printable(str(error), 100)}") from None
    pixels = pixels.reshape(*pixels.shape[:2], channels)
    if not channels_last:
        pixels = pixels.transpose(2, 0, 1)
    scaled = pixels if kind == np.uint8 else pixels / np.float32(255)
    return np.ascontiguousarray(scaled, kind).reshape(shape)


def _layouts(label: str, shape: tuple[int, ...]) -> list[tuple[bool, int, int, int]]:
    """What a shape may mean: whether channels come last, their number, height and width."""
    one = shape[1:] if len(shape) == 4 and shape[0] == 1 else shape
    found = [(False, 1, *one)] if len(one) == 2 else []
    if len(one) == 3:
        found = [(False, *one), (True, one[2], one[0], one[1])]
    found = [layout for layout in found if layout[1] in _MODES]
    if not found:
        raise FileError(f"{label} is one image, but the model takes shape {shape}: give a .npy file")
    return found


def _fitting(image: Image, label: str, layouts: list[tuple[bool, int, int, int]]) -> tuple[bool, int]:
    """The first layout with the image's size, as (channels last, channels); the pixels must become its channels."""
    fitting = [layout for layout in layouts if layout[2:] == (image.height, image.width)]
    if not fitting:
        sizes = " or ".join(f"{width} x {height}" for _, _, height, width in layouts)
        raise FileError(
            f"{label} has {image.width} x {image.height} pixels, but the model takes {sizes} (width x height): "
            "resize it"
        )
    channels_last, channels = fitting[0][:2]
    clear = "transparency" in image.info
    if image.mode not in _READ[channels] or clear:
        has = "transparent pixels" if clear else f"pixels of the kind {image.mode!r}"
        raise FileError(
            f"{label} has {has}, but the model takes {channels} channels: save it as 8-bit {_MODES[channels]} "
            "(L is greyscale)"
        )
    if (frames := getattr(image, "n_frames", 1)) != 1:
        raise FileError(f"{label} has {frames} frames: save one of them")
    if (turned := image.getexif().get(_ORIENTATION, 1)) != 1:
        raise FileError(
            f"{label} is to be turned when it is shown (EXIF orientation {turned}): save it upright"
        )
    return channels_last, channels


Signature = Mapping[str, tuple[str, Sequence[int]]]
"""Names with (dtype name, shape)."""

STDIN = Path("-")
_ZIP, _NPY = b"PK", b"\x93NUMPY"
_NAME_BYTES = 65_535 - len(".npy")
"""What a name in a zip file may have."""
_STDIN_BYTES = 1 << 28
"""What stdin may have in any case; more if the model reads more."""
_NAMES = 8
"""Names that a message shows."""
_UNSAFE = re.compile(r"^/|/$|/(?=/)|(?<=/)/|(?<![^/])\.+(?![^/])|^[A-Za-z]:|\.npy$|[%\\]")
"""In the name of an array: what would make a file name that leads elsewhere, or is not read back as it was."""


def read_inputs(source: Path, signature: Signature) -> dict[str, np.ndarray]:
    """Read the inputs of a model from a file, or from stdin if `source` is ``-``.

    Parameters
    ----------
    source : Path
        A .npz file whose arrays carry the names of the inputs (others are ignored); for a model of one input, a .npy
        file or an image as `weft.arrays.read_image` takes it. Contents tell which, not the file's name.
    signature : mapping
        The inputs: name to (dtype name, shape).

    Returns
    -------
    dict of str to ndarray
        For each input an array of exactly that dtype and shape, in C order and the byte order of this machine,
        whatever the file's.

    Raises
    ------
    FileError
        If the file is damaged or none of these, or an array is missing or has another dtype or shape.
    OSError
        If the file cannot be read.
    """
    label = "stdin" if source == STDIN else str(source)
    with _opened(source, signature) as file:
        head = file.read(16)
        file.seek(0)
        if head.startswith(_ZIP):
            return _read_npz(file, label, signature)
        if head.startswith(_NPY):
            name, dtype, shape = _only(label, signature)
            return {name: _read_npy(file, None, label, dtype, shape)}
        if is_image(head):
            name, dtype, shape = _only(label, signature)
            return {name: read_image(file, label, dtype, shape)}
    raise FileError(f"{label} is no .npz or .npy file, and no image of a known kind")


@contextmanager
def _opened(source: Path, signature: Signature) -> Iterator[BinaryIO]:
    """A file that can be read from any place on; of stdin and pipes no more is kept than the model can need."""
    if source == STDIN:
        if sys.stdin is None or sys.stdin.isatty():
            raise FileError("--input - reads a file from stdin: put one there, with a pipe or <")
        yield _buffered(sys.stdin.buffer, "stdin", signature)
        return
    with source.open("rb") as file:
        yield file if file.seekable() else _buffered(file, str(source), signature)


def _buffered(file: BinaryIO, label: str, signature: Signature) -> BinaryIO:
    needed = sum(math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape in signature.values())
    limit = max(_STDIN_BYTES, 2 * needed)
    raw = io.BytesIO()
    while part := file.read(1 << 20):
        raw.write(part)
        if raw.tell() > limit:
            raise FileError(
                f"{label} has more than {limit:,} bytes, and the model reads {needed:,}: give a file"
            )
    raw.seek(0)
    return raw


def _only(label: str, signature: Signature) -> tuple[str, str, tuple[int, ...]]:
    """The one input of a model."""
    if len(signature) != 1:
        names = _listed(signature) or "none"
        raise FileError(
            f"{label} holds one array, but the model has {len(signature)} inputs ({names}): "
            "give a .npz with these names"
        )
    ((name, (dtype, shape)),) = signature.items()
    return name, dtype, tuple(shape)


def _listed(names: Mapping[str, object]) -> str:
    shown = [repr(printable(name, 60)) for name in list(names)[:_NAMES]]
    return ", ".join([*shown, *(["..."] if len(names) > _NAMES else [])])


@contextmanager
def _damage(label: str) -> Iterator[None]:
    """What zipfile and numpy raise on damaged files, which is anything, as one sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # headers of Python 2
            yield
    except FileError:
        raise
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise FileError(f"{label} is damaged, or no .npz or .npy file: {printable(lines[0], 100)}") from None


def _read_npz(file: BinaryIO, label: str, signature: Signature) -> dict[str, np.ndarray]:
    with _damage(label), zipfile.ZipFile(file) as archive:
        members: dict[str, list[zipfile.ZipInfo]] = {}
        for info in archive.infolist():
            members.setdefault(info.filename.removesuffix(".npy"), []).append(info)
        return {name: _read_member(archive, members, label, name, *kind) for name, kind in signature.items()}


def _read_member(
    archive: zipfile.ZipFile,
    members: Mapping[str, list[zipfile.ZipInfo]],
    label: str,
    name: str,
    dtype: str,
    shape: Sequence[int],
) -> np.ndarray:
    found = members.get(member_name(name)) or members.get(name)
    shown = repr(printable(name, 60))
    if not found:
        held = _listed(members) or "nothing"
        raise FileError(f"{label} has no array {shown} for the model's input of that name; it holds {held}")
    if len(found) > 1:
        raise FileError(f"{label} has {len(found)} arrays of the name {shown}")
    with archive.open(found[0]) as member:
        return _read_npy(member, found[0].file_size, f"{label}: array {shown}", dtype, tuple(shape))


def _read_npy(
    file: IO[bytes], size: int | None, label: str, dtype: str, shape: tuple[int, ...]
) -> np.ndarray:
    """An array, read once its header fits; `size` is the whole file's, if that is known."""
    with _damage(label):
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise FileError(
                f"{label} is a .npy file of version {version[0]}.{version[1]}; weft reads 1.0 and 2.0"
            )
        two = version == (2, 0)
        read_header = np.lib.format.read_array_header_2_0 if two else np.lib.format.read_array_header_1_0
        try:
            stored_shape, fortran, stored = read_header(file)
        except Exception:  # it is a Python expression, and what reading it raises names Python's objects
            raise FileError(f"{label} is damaged: its header cannot be read") from None
        _check_header(label, stored, stored_shape, dtype, shape)
        expected = math.prod(shape) * stored.itemsize
        if size is not None and size - file.tell() != expected:
            raise FileError(f"{label} is damaged: its data has {size - file.tell()} bytes, not {expected}")
        raw = file.read(expected)
        if len(raw) != expected or file.read(1):
            raise FileError(f"{label} is damaged: its data has not {expected} bytes")
        array = np.frombuffer(raw, stored).reshape(shape, order="F" if fortran else "C")
        return np.ascontiguousarray(array, np.dtype(dtype)).reshape(shape)


def _check_header(
    label: str, stored: np.dtype, stored_shape: tuple[int, ...], dtype: str, shape: tuple[int, ...]
) -> None:
    if stored.hasobject:
        raise FileError(f"{label} holds Python objects, which weft does not read")
    if stored_shape != shape:
        raise FileError(f"{label} has shape {stored_shape}, but the model takes {shape}")
    text = stored.kind == "U" and dtype == "object"  # ONNX's strings
    if stored.newbyteorder("=") != np.dtype(dtype) and not text:
        raise FileError(f"{label} is {stored}, but the model takes {dtype}")


def check_outputs(signature: Signature) -> None:
    """Raises `FileError` if an output cannot be kept in a .npz file: to be asked before anything runs."""
    for name, (dtype, _) in signature.items():
        _check_output(name, np.dtype(dtype))


def _check_output(name: str, dtype: np.dtype) -> None:
    size = len(member_name(name).encode())
    if size > _NAME_BYTES:
        raise FileError(
            f"output {printable(name, 60)!r} has a name of {size:,} bytes, more than a .npz file can hold"
        )
    if dtype.kind not in "biufcOU":
        raise FileError(
            f"output {printable(name, 60)!r} is {dtype}, which a .npz file cannot hold; cast it in the model"
        )


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write named arrays to a .npz file, whole or not at all; `member_name` tells under which names.

    Raises
    ------
    FileError
        For a name or a dtype that such a file cannot hold.
    """
    stored = {name: _storable(name, np.asarray(array)) for name, array in arrays.items()}
    with whole_file(path) as part, zipfile.ZipFile(part, "w") as archive:
        for name, array in stored.items():
            info = zipfile.ZipInfo(f"{member_name(name)}.npy")
            info.external_attr = 0o644 << 16
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    _check_output(name, array.dtype)
    if array.dtype != object:
        return array
    if not all(isinstance(item, str) for item in array.flat):
        raise FileError(f"output {printable(name, 60)!r} holds Python objects, which a .npz file cannot hold")
    return array.astype(np.str_)


def member_name(name: str) -> str:
    """The name of an array in a .npz file: as it is, but for what would not be a plain file name, or not be printed.

    That is written as ``%`` and two hexadecimal digits for each byte, as in URLs; the empty name is ``%``. No two names
    become one, and `array_name` gives the name back.
    """
    safe = _UNSAFE.sub(lambda match: _quoted(match.group()), name)
    return "".join(letter if letter.isprintable() else _quoted(letter) for letter in safe) or "%"


def _quoted(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "surrogatepass"))


def array_name(member: str) -> str:
    """The inverse of `member_name`."""
    return "" if member == "%" else unquote(member, errors="surrogatepass")
