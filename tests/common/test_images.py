"""Images as inputs: pixels, every layout of the input, and refusals."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from weft.arrays import read_inputs
from weft.errors import FileError

LOSSLESS = ["PNG", "BMP", "PPM"]


def draw_pixels(kind: str, height: int = 5, width: int = 7, seed: int = 0) -> np.ndarray:
    """Draw random pixels (height, width, channels) of mode "L", "RGB" or "RGBA"."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (height, width, len(kind))).astype(np.uint8)


def save(path: Path, pixels: np.ndarray, format: str = "PNG", **options: Any) -> Path:
    squeezed = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    Image.fromarray(squeezed).save(path, format=format, **options)
    return path


def read(path: Path, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    actual = read_inputs(path, {"image": (dtype, shape)})["image"]
    assert actual.dtype.name == dtype
    assert actual.shape == shape
    assert actual.flags.c_contiguous
    return actual


def refusal(path: Path, dtype: str, shape: tuple[int, ...]) -> str:
    with pytest.raises(FileError) as caught:
        read(path, dtype, shape)
    text = str(caught.value).removeprefix(str(path))
    assert text != str(caught.value)
    return text


@pytest.mark.parametrize("format", LOSSLESS)
@pytest.mark.parametrize("kind", ["L", "RGB"])
def test_pixels(tmp_path: Path, kind: str, format: str) -> None:
    pixels, c = draw_pixels(kind), len(kind)
    path = save(tmp_path / "image", pixels, format)
    for lead in ((), (1,)):
        last, first = (*lead, 5, 7, c), (*lead, c, 5, 7)
        assert np.array_equal(read(path, "uint8", last), pixels.reshape(last))
        assert np.array_equal(read(path, "uint8", first), pixels.transpose(2, 0, 1).reshape(first))
    if c == 1:
        assert np.array_equal(read(path, "uint8", (5, 7)), pixels[:, :, 0])


def test_four_channels(tmp_path: Path) -> None:
    pixels = draw_pixels("RGBA")
    path = save(tmp_path / "image.png", pixels)
    assert np.array_equal(read(path, "uint8", (1, 5, 7, 4)), pixels[None])
    assert refusal(path, "uint8", (1, 5, 7, 3)) == (
        " has pixels of the kind 'RGBA', but the model takes 3 channels: save it as 8-bit RGB (L is greyscale)"
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_range_from_0_to_1(tmp_path: Path, dtype: str) -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    actual = read(save(tmp_path / "image.png", pixels), dtype, (1, 1, 16, 16))
    assert np.array_equal(actual.ravel(), (np.arange(256, dtype=np.float32) / np.float32(255)).astype(dtype))
    assert actual.min() == 0
    assert actual.max() == 1


def test_grey_and_colours(tmp_path: Path) -> None:
    grey, colours = draw_pixels("L"), draw_pixels("RGB", seed=1)
    path = save(tmp_path / "grey.png", grey)
    assert np.array_equal(read(path, "uint8", (5, 7, 3)), np.repeat(grey, 3, axis=2))
    path = save(tmp_path / "colours.png", colours)
    luma = colours @ np.array([0.299, 0.587, 0.114])
    assert np.abs(read(path, "uint8", (5, 7, 1))[:, :, 0] - luma).max() <= 1


def test_layout_is_chosen_by_the_size(tmp_path: Path) -> None:
    """(3, 3, 4) may be 3 x 4 pixels of 3 channels, or 3 x 3 pixels of 4."""
    pixels = draw_pixels("RGB", 3, 4)
    path = save(tmp_path / "image.png", pixels)
    assert np.array_equal(read(path, "uint8", (3, 3, 4)), pixels.transpose(2, 0, 1))
    four = draw_pixels("RGBA", 3, 3)
    path = save(tmp_path / "image.png", four)
    assert np.array_equal(read(path, "uint8", (3, 3, 4)), four)
    path = save(tmp_path / "image.png", draw_pixels("RGB", 9, 9))
    assert "the model takes 4 x 3 or 3 x 3 (width x height): resize it" in refusal(path, "uint8", (3, 3, 4))


@pytest.mark.parametrize("format", ["JPEG", "WEBP", "GIF"])
def test_other_image_formats(tmp_path: Path, format: str) -> None:
    """Flat images survive lossy formats nearly unchanged."""
    pixels = np.full((16, 24, 3), (200, 30, 90), np.uint8)
    path = save(tmp_path / "image", pixels, format)
    actual = read(path, "uint8", (1, 3, 16, 24)).astype(int)
    assert np.abs(actual - pixels.transpose(2, 0, 1)).max() <= 4


def test_refusals(tmp_path: Path) -> None:
    path = save(tmp_path / "image.png", draw_pixels("RGB"))
    assert refusal(path, "uint8", (1, 3, 7, 5)) == (
        " has 7 x 5 pixels, but the model takes 5 x 7 (width x height): resize it"
    )
    for dtype in ("int8", "int64", "bool", "complex64"):
        assert refusal(path, dtype, (1, 3, 5, 7)) == (
            f" is an image, but the model takes {dtype}, not uint8 or floats: give a .npy file"
        )
    for shape in ((2, 3, 5, 7), (105,), (1, 1, 3, 5, 7), (), (5, 7, 2), (1, 35)):
        assert refusal(path, "uint8", shape) in (
            f" is one image, but the model takes shape {shape}: give a .npy file",
            " has 7 x 5 pixels, but the model takes 35 x 1 (width x height): resize it",
        )
    with pytest.raises(FileError, match=r"image.png holds one array, but the model has 0 inputs \(none\)"):
        read_inputs(path, {})


def test_deep_or_transparent_pixels_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    Image.fromarray(np.zeros((5, 7), np.uint16)).save(path)
    assert refusal(path, "uint8", (5, 7)).startswith(
        " has pixels of the kind 'I;16', but the model takes 1 ch"
    )
    save(path, draw_pixels("RGB"), transparency=(1, 2, 3))
    assert refusal(path, "uint8", (5, 7, 3)).startswith(
        " has transparent pixels, but the model takes 3 channels"
    )


def test_images_with_several_frames_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "image.gif"
    frames = [Image.fromarray(draw_pixels("L", seed=seed)[:, :, 0]) for seed in range(3)]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    assert refusal(path, "uint8", (5, 7)) == " has 3 frames: save one of them"


def test_rotated_images_are_refused(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = save(tmp_path / "image.jpg", draw_pixels("RGB"), "JPEG", exif=exif)
    assert refusal(path, "uint8", (5, 7, 3)) == (
        " is to be turned when it is shown (EXIF orientation 6): save it upright"
    )


@pytest.mark.parametrize("format", [*LOSSLESS, "JPEG", "WEBP", "GIF"])
def test_damaged_images(tmp_path: Path, format: str) -> None:
    """A flipped byte or a cut gives one sentence, or an image of this size."""
    path, rng = tmp_path / "image", np.random.default_rng(0)
    raw = save(path, draw_pixels("RGB"), format).read_bytes()
    for at in (*range(min(len(raw), 60)), *rng.integers(0, len(raw), 60)):
        damaged = bytearray(raw)
        damaged[at] ^= int(rng.integers(1, 256))
        for bad in (bytes(damaged), raw[:at]):
            path.write_bytes(bad)
            try:
                assert read(path, "uint8", (1, 3, 5, 7)).any()
            except FileError as error:
                text = str(error)
                assert text.startswith(str(path))
                assert len(text) < 400


def test_huge_images_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "image.png"
    Image.new("1", (20_000, 20_000)).save(path)
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it was decoded"))
    assert "20000 x 20000 pixels" in refusal(path, "uint8", (5, 7)) or "400000000 pixels" in refusal(
        path, "uint8", (5, 7)
    )


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "image.png", draw_pixels("L"))
    original_import = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "PIL":
            raise ImportError(name)
        return original_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert refusal(path, "uint8", (5, 7)) == (
        " is an image, which needs Pillow: pip install 'weft[images]', or give a .npy file"
    )


def test_format_is_read_from_the_content(tmp_path: Path) -> None:
    pixels = draw_pixels("L")
    path = save(tmp_path / "image.npy", pixels)
    assert np.array_equal(read(path, "uint8", (5, 7)), pixels[:, :, 0])
