"""Samples of a model's inputs, for calibration and for measuring accuracy."""

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

SampleSource = Mapping[str, Any] | np.ndarray | str | os.PathLike[str]
"""Arrays by the names of inputs, a single array for a model with one input, or a .npz or .npy file of these."""


class FileArrays(dict[str, np.ndarray]):
    """Arrays of samples by name that were read from `file`, which error messages name."""

    def __init__(self, file: str, arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__(arrays)
        self.file = file


@dataclass(frozen=True)
class Samples:
    """Arrays (samples, \\*shape of the input) by input, all with the same number of samples."""

    arrays: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield the inputs of each run."""
        return (self.run(index) for index in range(len(self)))

    def run(self, index: int) -> dict[str, np.ndarray]:
        """Return the inputs of one run."""
        return {name: array[index] for name, array in self.arrays.items()}


def arrays_of(source: SampleSource) -> tuple[dict[str | None, np.ndarray], str | None]:
    """Return arrays by name (None for a single array), and the name of the file that they come from, or None.

    Raises
    ------
    FileError
        If `source` is a file that is damaged or of another kind.
    InputError
        If `source` has a wrong type.
    """
    if isinstance(source, str | os.PathLike):
        return _load(Path(source)), str(source)
    if isinstance(source, Mapping):
        file = source.file if isinstance(source, FileArrays) else None
        return {str(name): array_of(value, f"samples[{name!r}]") for name, value in source.items()}, file
    return {None: array_of(source, "samples")}, None


def array_of(value: Any, label: str) -> np.ndarray:
    """Return a numeric array, or another library's array such as a PyTorch tensor, as a numpy array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        array = None
    if array is None or array.dtype.kind not in "biufc":
        raise InputError(f"{label} must be an array of numbers, not {type(value).__name__}")
    return array


def fit_samples(source: SampleSource, signature: Signature) -> Samples:
    """Arrange samples as runs of a model.

    Parameters
    ----------
    source : mapping, array or path
        An array for each input, whose first axis counts samples. The other axes are the input's shape, or the input's
        shape without its batch axis; then each run takes a whole batch of samples.
    signature : mapping
        The model's inputs: name to (dtype name, shape).

    Raises
    ------
    FileError, InputError
        If arrays are missing, empty, not finite, have wrong types or shapes, or different numbers of samples.
    """
    arrays, file = arrays_of(source)
    kind: type[WeftError] = InputError if file is None else FileError
    start = "samples" if file is None else file
    if not signature:
        raise kind(f"{start}: the model has no inputs, so there is nothing to give samples of")
    runs = {}
    for name, (dtype, shape) in signature.items():
        array = _array_of_input(arrays, name, signature, start, kind)
        label = f"{start}: array {printable(name, 60)!r}"
        runs[name] = _runs(array, dtype, tuple(shape), label, kind)
        _check_finite(runs[name], label, kind)
    counts = {name: len(array) for name, array in runs.items()}
    if len(set(counts.values())) > 1:
        numbers = ", ".join(f"{count} of {printable(name, 60)!r}" for name, count in counts.items())
        raise kind(f"{start}: there must be as many samples of each input, not {numbers}")
    return Samples(runs)


def _array_of_input(
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
    present = ", ".join(repr(printable(str(each), 60)) for each in list(arrays)[:8]) or "nothing"
    raise kind(
        f"{start} has no array {printable(name, 60)!r} for the model's input of that name; it has {present}"
    )


def _runs(
    array: np.ndarray, dtype: str, shape: tuple[int, ...], label: str, kind: type[WeftError]
) -> np.ndarray:
    """Return an array as (runs, \\*shape)."""
    if array.dtype.newbyteorder("=") != np.dtype(dtype):
        raise kind(f"{label} is {array.dtype}, but the model takes {dtype}")
    each = shape[1:]  # the shape of one sample, if the first axis is a batch
    batches = array.ndim > 0 and array.shape[1:] == shape
    single = bool(shape) and array.ndim == len(shape) and array.shape[1:] == each
    if not batches and not single:
        expected = f"(samples, {', '.join(map(str, each))})" if each else "(samples,)"
        raise kind(
            f"{label} has shape {array.shape}, but the model takes {shape}: samples of it have shape {expected}"
        )
    if not array.size:
        raise kind(f"{label} has shape {array.shape}: there is no sample in it")
    if not batches and len(array) % shape[0]:
        raise kind(f"{label} has {len(array)} samples, but the model takes {shape[0]} at a time")
    return np.ascontiguousarray(array, dtype).reshape(-1, *shape)


def _check_finite(array: np.ndarray, label: str, kind: type[WeftError]) -> None:
    for index, sample in enumerate(array):
        if not np.isfinite(sample).all():
            wrong = sample[~np.isfinite(sample)].flat[0]
            raise kind(f"{label} has {wrong} in sample {index}: samples must be finite numbers")


def _load(path: Path) -> dict[str | None, np.ndarray]:
    """Read the arrays of a .npz or .npy file, whose contents determine its kind."""
    files.require_file(path)
    try:
        with path.open("rb") as file:
            contents = np.load(file, allow_pickle=False)
            if isinstance(contents, np.ndarray):
                return {None: _numbers(contents, str(path))}
            return {name: _numbers(contents[name], f"{path}: array {name!r}") for name in contents.files}
    except (FileError, MemoryError):
        raise
    except Exception as error:  # numpy raises many kinds of errors for damaged files
        lines = str(error).splitlines() or [type(error).__name__]
        if "pickle" in lines[0]:
            raise FileError(f"{path} is no .npz or .npy file, or holds Python objects") from None
        raise FileError(f"{path} is damaged, or no .npz or .npy file: {printable(lines[0], 100)}") from None


def _numbers(array: np.ndarray, label: str) -> np.ndarray:
    if array.dtype.kind not in "biufc":
        raise FileError(f"{label} is {array.dtype}: samples are numbers")
    return array
