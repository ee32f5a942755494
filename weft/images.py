"""Images as inputs of a model: read by Pillow, which is optional, and never resized."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from weft.errors import FileError
from weft.hdl.files.schema import printable

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
