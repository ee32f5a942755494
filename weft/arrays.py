"""Read the inputs of a model from .npz, .npy, images or stdin, and write its outputs to .npz.

Files are not trusted: an array's header is read and compared with the model before its data.
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


# First bytes of image files, by Pillow's name of the format
_FORMATS = {
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "JPEG": (b"\xff\xd8\xff",),
    "BMP": (b"BM",),
    "GIF": (b"GIF87a", b"GIF89a"),
    "WEBP": (b"RIFF",),
    "PPM": (b"P4", b"P5", b"P6"),
}
# Pillow's modes by number of channels
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# Modes of images that can be converted to a number of channels
_CONVERTIBLE_MODES = {1: ("1", "L", "P", "RGB"), 3: ("1", "L", "P", "RGB"), 4: ("RGBA",)}
_ORIENTATION_TAG = 0x0112


def is_image(head: bytes) -> bool:
    """Return True if a file that begins with `head` may be an image."""
    return any(head.startswith(magic) for magics in _FORMATS.values() for magic in magics)


def read_image(file: BinaryIO, label: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Read an image as a model's input.

    Parameters
    ----------
    file : BinaryIO
        PNG, JPEG, BMP, GIF, WebP or PPM, with 8 bits a channel.
    label : str
        Name of the file in error messages.
    dtype, shape
        The input's dtype and shape. For uint8, pixels are not scaled; for floats, they are divided by 255. The shape is
        (height, width), (channels, height, width) or (height, width, channels) with 1, 3 or 4 channels, optionally
        with a batch axis of 1. Grey pixels are repeated for 3 channels. For 1 channel, colours are converted to grey
        by ITU-R 601.

    Returns
    -------
    ndarray
        Array of this dtype and shape.

    Raises
    ------
    FileError
        If Pillow is missing, the image is damaged or has another size, or its pixels cannot be converted.
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
                channels_last, channels = _fitting_layout(image, label, layouts)
                pixels = np.asarray(image.convert(_MODES[channels]), np.uint8)
    except FileError:
        raise
    except Exception as error:  # Pillow raises many kinds of errors for damaged files
        raise FileError(f"{label} is no image that can be read: {printable(str(error), 100)}") from None
    pixels = pixels.reshape(*pixels.shape[:2], channels)  # Pillow drops a single channel's axis
    if not channels_last:
        pixels = pixels.transpose(2, 0, 1)
    scaled = pixels if kind == np.uint8 else pixels / np.float32(255)
    return np.ascontiguousarray(scaled, kind).reshape(shape)


def _layouts(label: str, shape: tuple[int, ...]) -> list[tuple[bool, int, int, int]]:
    """Return the possible layouts of a shape as (channels last, channels, height, width)."""
    image = shape[1:] if len(shape) == 4 and shape[0] == 1 else shape
    layouts = [(False, 1, *image)] if len(image) == 2 else []
    if len(image) == 3:
        layouts = [(False, *image), (True, image[2], image[0], image[1])]
    layouts = [layout for layout in layouts if layout[1] in _MODES]
    if not layouts:
        raise FileError(f"{label} is one image, but the model takes shape {shape}: give a .npy file")
    return layouts


def _fitting_layout(image: Image, label: str, layouts: list[tuple[bool, int, int, int]]) -> tuple[bool, int]:
    """Return (channels last, channels) of the first layout with the image's size.

    Raises `FileError` if no layout has this size, or the pixels cannot be converted to its channels.
    """
    fitting = [layout for layout in layouts if layout[2:] == (image.height, image.width)]
    if not fitting:
        sizes = " or ".join(f"{width} x {height}" for _, _, height, width in layouts)
        raise FileError(
            f"{label} has {image.width} x {image.height} pixels, but the model takes {sizes} (width x height): "
            "resize it"
        )
    channels_last, channels = fitting[0][:2]
    transparent = "transparency" in image.info
    if image.mode not in _CONVERTIBLE_MODES[channels] or transparent:
        has = "transparent pixels" if transparent else f"pixels of the kind {image.mode!r}"
        raise FileError(
            f"{label} has {has}, but the model takes {channels} channels: save it as 8-bit {_MODES[channels]} "
            "(L is greyscale)"
        )
    if (frames := getattr(image, "n_frames", 1)) != 1:
        raise FileError(f"{label} has {frames} frames: save one of them")
    if (orientation := image.getexif().get(_ORIENTATION_TAG, 1)) != 1:
        raise FileError(
            f"{label} is to be turned when it is shown (EXIF orientation {orientation}): save it upright"
        )
    return channels_last, channels


Signature = Mapping[str, tuple[str, Sequence[int]]]
"""Inputs or outputs in order: (dtype name, shape) by name."""

STDIN = Path("-")
_ZIP, _NPY = b"PK", b"\x93NUMPY"
# Most bytes of a name in a zip file
_NAME_BYTES = 65_535 - len(".npy")
# Most bytes to read from stdin, or twice the inputs' size if that is more
_STDIN_BYTES = 1 << 28
# Most names in an error message
_MAX_NAMES = 8
# Parts of an array's name to escape: as a file name they would leave the folder, or not give the name back.
_UNSAFE = re.compile(r"^/|/$|/(?=/)|(?<=/)/|(?<![^/])\.+(?![^/])|^[A-Za-z]:|\.npy$|[%\\]")


def read_inputs(source: Path, signature: Signature) -> dict[str, np.ndarray]:
    """Read the inputs of a model from a file, or from stdin if `source` is ``-``.

    Parameters
    ----------
    source : Path
        A .npz file with an array for each input, by name (other arrays are ignored). For a model with one input, also a
        .npy file or an image for `weft.arrays.read_image`. The contents determine the kind of file, not its name.
    signature : mapping
        The inputs: name to (dtype name, shape).

    Returns
    -------
    dict of str to ndarray
        An array for each input with exactly its dtype and shape, in C order and this machine's byte order.

    Raises
    ------
    FileError
        If the file is damaged or of another kind, or an array is missing or has another dtype or shape.
    OSError
        If the file cannot be read.
    """
    label = "stdin" if source == STDIN else str(source)
    with _open(source, signature) as file:
        head = file.read(16)
        file.seek(0)
        if head.startswith(_ZIP):
            return _read_npz(file, label, signature)
        if head.startswith(_NPY):
            name, dtype, shape = _single_input(label, signature)
            return {name: _read_npy(file, None, label, dtype, shape)}
        if is_image(head):
            name, dtype, shape = _single_input(label, signature)
            return {name: read_image(file, label, dtype, shape)}
    raise FileError(f"{label} is no .npz or .npy file, and no image of a known kind")


@contextmanager
def _open(source: Path, signature: Signature) -> Iterator[BinaryIO]:
    """Open a file for random access; stdin and pipes are buffered up to a limit."""
    if source == STDIN:
        if sys.stdin is None or sys.stdin.isatty():
            raise FileError("--input - reads a file from stdin: put one there, with a pipe or <")
        yield _buffer(sys.stdin.buffer, "stdin", signature)
        return
    with source.open("rb") as file:
        yield file if file.seekable() else _buffer(file, str(source), signature)


def _buffer(file: BinaryIO, label: str, signature: Signature) -> BinaryIO:
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


def _single_input(label: str, signature: Signature) -> tuple[str, str, tuple[int, ...]]:
    if len(signature) != 1:
        names = _quote_names(signature) or "none"
        raise FileError(
            f"{label} holds one array, but the model has {len(signature)} inputs ({names}): "
            "give a .npz with these names"
        )
    ((name, (dtype, shape)),) = signature.items()
    return name, dtype, tuple(shape)


def _quote_names(names: Mapping[str, object]) -> str:
    quoted = [repr(printable(name, 60)) for name in list(names)[:_MAX_NAMES]]
    return ", ".join([*quoted, *(["..."] if len(names) > _MAX_NAMES else [])])


@contextmanager
def _file_errors(label: str) -> Iterator[None]:
    """Turn errors of zipfile and numpy, which raise many kinds for damaged files, into a `FileError`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns about headers written by Python 2
            yield
    except FileError:
        raise
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise FileError(f"{label} is damaged, or no .npz or .npy file: {printable(lines[0], 100)}") from None


def _read_npz(file: BinaryIO, label: str, signature: Signature) -> dict[str, np.ndarray]:
    with _file_errors(label), zipfile.ZipFile(file) as archive:
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
    infos = members.get(member_name(name)) or members.get(name)
    quoted = repr(printable(name, 60))
    if not infos:
        present = _quote_names(members) or "nothing"
        raise FileError(
            f"{label} has no array {quoted} for the model's input of that name; it holds {present}"
        )
    if len(infos) > 1:
        raise FileError(f"{label} has {len(infos)} arrays of the name {quoted}")
    with archive.open(infos[0]) as member:
        return _read_npy(member, infos[0].file_size, f"{label}: array {quoted}", dtype, tuple(shape))


def _read_npy(
    file: IO[bytes], size: int | None, label: str, dtype: str, shape: tuple[int, ...]
) -> np.ndarray:
    """Read an array whose header fits the model; `size` is that of the whole file, or None if unknown."""
    with _file_errors(label):
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise FileError(
                f"{label} is a .npy file of version {version[0]}.{version[1]}; weft reads 1.0 and 2.0"
            )
        two = version == (2, 0)
        read_header = np.lib.format.read_array_header_2_0 if two else np.lib.format.read_array_header_1_0
        try:
            stored_shape, fortran, stored = read_header(file)
        except (
            Exception
        ):  # the header is a Python expression, and numpy's error would quote Python's own message
            raise FileError(f"{label} is damaged: its header cannot be read") from None
        _check_header(label, stored, stored_shape, dtype, shape)
        expected = math.prod(shape) * stored.itemsize
        # Check the size before reading, so that a damaged header cannot make weft allocate memory.
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
    text = stored.kind == "U" and dtype == "object"  # strings of ONNX are objects in numpy
    if stored.newbyteorder("=") != np.dtype(dtype) and not text:
        raise FileError(f"{label} is {stored}, but the model takes {dtype}")


def check_outputs(signature: Signature) -> None:
    """Raise `FileError` if an output cannot be stored in a .npz file; call this before a run."""
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
    """Write arrays atomically to a .npz file, under the names from `member_name`.

    Raises
    ------
    FileError
        If a .npz file cannot hold a name or dtype.
    """
    stored = {name: _storable(name, np.asarray(array)) for name, array in arrays.items()}
    with whole_file(path) as part, zipfile.ZipFile(part, "w") as archive:
        for name, array in stored.items():
            info = zipfile.ZipInfo(f"{member_name(name)}.npy")
            info.external_attr = 0o644 << 16  # permissions for tools that unpack the file
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
    """Return the file name of an array in a .npz file, where unsafe or unprintable characters are escaped.

    As in URLs, an escape is ``%`` and two hexadecimal digits per byte. The empty name becomes ``%``. Names stay
    distinct, and `array_name` restores them.
    """
    safe = _UNSAFE.sub(lambda match: _percent_encode(match.group()), name)
    return "".join(letter if letter.isprintable() else _percent_encode(letter) for letter in safe) or "%"


def _percent_encode(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "surrogatepass"))


def array_name(member: str) -> str:
    """Return the array's name, the inverse of `member_name`."""
    return "" if member == "%" else unquote(member, errors="surrogatepass")
