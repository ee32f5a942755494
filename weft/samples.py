"""Samples of a model's inputs: what calibrates a quantised model, and what its accuracy is measured on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft import files
from weft.arrays import Signature, member_name
from weft.errors import FileError, InputError
from weft.hdl.errors import WeftError
from weft.hdl.schema import printable

Given = Mapping[str, Any] | np.ndarray | str | os.PathLike[str]
"""Arrays by the names of inputs, one array for a model of one input, or a .npz or .npy file with the same."""


class FileArrays(dict[str, np.ndarray]):
    """Arrays of samples by name, some of those of a `file`, which errors name."""

    def __init__(self, file: str, arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__(arrays)
        self.file = file


@dataclass(frozen=True)
class Samples:
    """For each input an array of (samples, \\*shape of the input), all of the same number of samples."""

    arrays: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        """What the model takes in each run, one run after the other."""
        return (self.run(index) for index in range(len(self)))

    def run(self, index: int) -> dict[str, np.ndarray]:
        """What the model takes in one run."""
        return {name: array[index] for name, array in self.arrays.items()}


def arrays_of(given: Given) -> tuple[dict[str | None, np.ndarray], str | None]:
    """Arrays by name (None of a single array without one), and the file that they are from, if it is one.

    Raises
    ------
    FileError
        If it is a file, and damaged or none of these.
    InputError
        If it is nothing of the kind.
    """
    if isinstance(given, str | os.PathLike):
        return _loaded(Path(given)), str(given)
    if isinstance(given, Mapping):
        file = given.file if isinstance(given, FileArrays) else None
        return {str(name): array_of(value, f"samples[{name!r}]") for name, value in given.items()}, file
    return {None: array_of(given, "samples")}, None


def array_of(value: Any, label: str) -> np.ndarray:
    """An array as it is, one of another library (a tensor of PyTorch) as numpy's."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    try:
        found = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        found = None
    if found is None or found.dtype.kind not in "biufc":
        raise InputError(f"{label} must be an array of numbers, not {type(value).__name__}")
    return found


def fitted(given: Given, signature: Signature) -> Samples:
    """Samples as a model takes them.

    Parameters
    ----------
    given : mapping, array or path
        An array for each input, whose first axis counts samples. What follows is the input's shape, or the input's
        shape without its own first axis: then as many as that axis has are taken together in each run.
    signature : mapping
        The model's inputs: name to (dtype name, shape).

    Raises
    ------
    FileError, InputError
        If arrays are missing, of other types or shapes, empty, not finite, or not of the same number of samples.
    """
    arrays, file = arrays_of(given)
    kind: type[WeftError] = InputError if file is None else FileError
    start = "samples" if file is None else file
    if not signature:
        raise kind(f"{start}: the model has no inputs, so there is nothing to give samples of")
    found = {}
    for name, (dtype, shape) in signature.items():
        array = _of_input(arrays, name, signature, start, kind)
        label = f"{start}: array {printable(name, 60)!r}"
        found[name] = _runs(array, dtype, tuple(shape), label, kind)
        _check_finite(found[name], label, kind)
    counts = {name: len(array) for name, array in found.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{count} of {printable(name, 60)!r}" for name, count in counts.items())
        raise kind(f"{start}: there must be as many samples of each input, not {told}")
    return Samples(found)


def _of_input(
    arrays: dict[str | None, np.ndarray], name: str, signature: Signature, start: str, kind: type[WeftError]
) -> np.ndarray:
    if None in arrays:
        if len(signature) != 1:
            names = ", ".join(repr(printable(each, 60)) for each in signature)
            raise kind(
                f"{start} has one array, but the model has {len(signature)} inputs ({names}): give them by name"
            )
        return arrays[None]
    for key in (name, member_name(name)):
        if key in arrays:
            return arrays[key]
    held = ", ".join(repr(printable(str(each), 60)) for each in list(arrays)[:8]) or "nothing"
    raise kind(
        f"{start} has no array {printable(name, 60)!r} for the model's input of that name; it has {held}"
    )


def _runs(
    array: np.ndarray, dtype: str, shape: tuple[int, ...], label: str, kind: type[WeftError]
) -> np.ndarray:
    """An array as (runs, \\*shape)."""
    if array.dtype.newbyteorder("=") != np.dtype(dtype):
        raise kind(f"{label} is {array.dtype}, but the model takes {dtype}")
    each = shape[1:]
    whole = array.ndim > 0 and array.shape[1:] == shape
    parts = bool(shape) and array.ndim == len(shape) and array.shape[1:] == each
    if not whole and not parts:
        taken = f"(samples, {', '.join(map(str, each))})" if each else "(samples,)"
        raise kind(
            f"{label} has shape {array.shape}, but the model takes {shape}: samples of it have shape {taken}"
        )
    if not array.size:
        raise kind(f"{label} has shape {array.shape}: there is no sample in it")
    if not whole and len(array) % shape[0]:
        raise kind(f"{label} has {len(array)} samples, but the model takes {shape[0]} at a time")
    return np.ascontiguousarray(array, dtype).reshape(-1, *shape)


def _check_finite(array: np.ndarray, label: str, kind: type[WeftError]) -> None:
    for index, sample in enumerate(array):
        if not np.isfinite(sample).all():
            wrong = sample[~np.isfinite(sample)].flat[0]
            raise kind(f"{label} has {wrong} in sample {index}: samples must be finite numbers")


def _loaded(path: Path) -> dict[str | None, np.ndarray]:
    """The arrays of a .npz or .npy file. What a file is, its contents say."""
    files.existing(path)
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray):
                return {None: _numbers(found, str(path))}
            return {name: _numbers(found[name], f"{path}: array {name!r}") for name in found.files}
    except (FileError, MemoryError):
        raise
    except Exception as error:  # damaged files raise anything
        lines = str(error).splitlines() or [type(error).__name__]
        if "pickle" in lines[0]:
            raise FileError(f"{path} is no .npz or .npy file, or holds Python objects") from None
        raise FileError(f"{path} is damaged, or no .npz or .npy file: {printable(lines[0], 100)}") from None


def _numbers(array: np.ndarray, label: str) -> np.ndarray:
    if array.dtype.kind not in "biufc":
        raise FileError(f"{label} is {array.dtype}: samples are numbers")
    return array
