"""Samples of a model's inputs, from files and from arrays: converted, or refused in a sentence."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.torch_tensor import Tensor

from weft.errors import FileError, InputError
from weft.samples import fit_samples

IMAGE = {"x": ("float32", (1, 3, 4))}
TWO = {"x": ("float32", (1, 3)), "/n": ("int64", (2,))}


def floats(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize(
    ("given", "shape", "runs"),
    [
        ((5, 3, 4), (1, 3, 4), 5),
        ((5, 1, 3, 4), (1, 3, 4), 5),
        ((6, 3, 4), (2, 3, 4), 3),
        ((6, 2, 3, 4), (2, 3, 4), 6),
        ((7,), (), 7),
        ((8,), (4,), 2),
        ((8,), (1,), 8),
        ((8, 4), (4,), 8),
    ],
)
def test_first_axis_counts_samples(given: tuple[int, ...], shape: tuple[int, ...], runs: int) -> None:
    array = floats(*given)
    for order in ("C", "F"):
        actual = fit_samples({"x": np.asarray(array, order=order)}, {"x": ("float32", shape)})  # type: ignore[call-overload]
        assert len(actual) == runs
        listed = list(actual)
        assert [run["x"].shape for run in listed] == [shape] * runs
        assert (np.stack([run["x"] for run in listed]).ravel() == array.ravel()).all()


def test_forms_of_samples(tmp_path: Path) -> None:
    array = floats(5, 3, 4)
    np.save(tmp_path / "a.npy", array)
    np.savez_compressed(tmp_path / "a.npz", x=array, other=np.arange(3))
    (tmp_path / "swapped.anything").write_bytes(save_samples(array.astype(">f4")))
    ways: list[Any] = [{"x": array, "y": 1}, array, tmp_path / "a.npy", str(tmp_path / "a.npz"),
                       tmp_path / "swapped.anything", {"x": Tensor(array)}]  # fmt: skip
    for given in ways:
        actual = fit_samples(given, IMAGE).arrays["x"]
        assert actual.dtype == np.float32
        assert (actual == array[:, None]).all()
    np.savez(tmp_path / "two.npz", **{"x": floats(2, 3), "%2Fn": np.ones((2, 2), np.int64)})
    assert len(fit_samples(tmp_path / "two.npz", TWO)) == 2


def save_samples(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def wrong(position: tuple[int, ...], value: float) -> np.ndarray:
    array = floats(5, 3, 4)
    array[position] = value
    return array


ARRAYS: dict[str, tuple[Any, Any, str]] = {
    "name": ({"y": floats(5, 3, 4)}, IMAGE, r"samples has no array 'x' for the model's input of that name; it has 'y'"),
    "none": ({}, IMAGE, r"it has nothing$"),
    "dtype": (np.ones((5, 3, 4)), IMAGE, r"samples: array 'x' is float64, but the model takes float32"),
    "integers": ({"x": np.ones((5, 3, 4), np.uint8)}, IMAGE, r"is uint8, but the model takes float32"),
    "shape": (floats(5, 4, 3), IMAGE, r"array 'x' has shape \(5, 4, 3\), but the model takes \(1, 3, 4\): samples of "
              r"it have shape \(samples, 3, 4\)"),
    "vector": (floats(5, 4), {"x": ("float32", (1,))}, r"have shape \(samples,\)"),
    "one": (floats(3, 4), IMAGE, r"array 'x' has shape \(3, 4\)"),
    "scalar": (np.float32(1), IMAGE, r"array 'x' has shape \(\)"),
    "empty": (floats(0, 3, 4), IMAGE, r"array 'x' has shape \(0, 3, 4\): there is no sample in it"),
    "uneven": (floats(5, 3), {"x": ("float32", (2, 3))}, r"has 5 samples, but the model takes 2 at a time"),
    "nan": (wrong((3, 1, 2), np.nan), IMAGE, r"array 'x' has nan in sample 3: samples must be finite numbers"),
    "infinite": (wrong((4, 0, 0), -np.inf), IMAGE, r"array 'x' has -inf in sample 4"),
    "numbers": ({"x": floats(5, 3), "/n": np.ones((3, 2), np.int64)}, TWO,
                r"as many samples of each input, not 5 of 'x', 3 of '/n'"),
    "one array": (floats(5, 3), TWO, r"samples has one array, but the model has 2 inputs \('x', '/n'\): give them by"),
    "no inputs": ({}, {}, r"the model has no inputs"),
    "text": ({"x": "a"}, IMAGE, r"samples\['x'\] must be an array of numbers, not str"),
    "ragged": ({"x": [[1], [1, 2]]}, IMAGE, r"samples\['x'\] must be an array of numbers, not list"),
    "nothing": (None, IMAGE, r"samples must be an array of numbers, not NoneType"),
}  # fmt: skip


@pytest.mark.parametrize("case", ARRAYS)
def test_mismatched_arrays_are_refused(case: str) -> None:
    given, signature, message = ARRAYS[case]
    with pytest.raises(InputError, match=message) as error:
        fit_samples(given, signature)
    assert "\n" not in str(error.value)


def test_mismatched_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=floats(5, 3, 4))
    good = path.read_bytes()
    contents = {
        good[:200]: r"is damaged, or no .npz or .npy file",
        good[:-30]: r"is damaged, or no .npz or .npy file",
        b"": r"is damaged, or no .npz or .npy file|no .npz or .npy file, or holds",
        b"nonsense": r"is no .npz or .npy file, or holds Python objects",
        save_samples(np.array([{}])): r"is no .npz or .npy file, or holds Python objects",
        save_samples(np.array(["a"])): r"is <U1: samples are numbers",
        save_samples(floats(5, 4, 3)): r"array 'x' has shape \(5, 4, 3\)",
    }
    for data, told in contents.items():
        path.write_bytes(data)
        with pytest.raises(FileError, match=told) as error:
            fit_samples(path, IMAGE)
        assert str(error.value).startswith(str(path))
        assert "\n" not in str(error.value)
    with pytest.raises(FileError, match=r"is a folder, not a file"):
        fit_samples(tmp_path, IMAGE)
    with pytest.raises(FileNotFoundError):
        fit_samples(tmp_path / "missing.npz", IMAGE)
