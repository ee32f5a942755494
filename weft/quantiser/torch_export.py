"""Export of PyTorch modules to ONNX.

This module does not import PyTorch: a caller that has a module has imported it already.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from weft.compiler.errors import CompileError
from weft.compiler.host.onnx_model import first_line
from weft.errors import InputError
from weft.quantiser import float_model
from weft.samples import SampleSource, arrays_of


def is_module(value: Any) -> bool:
    """Return True for a PyTorch module."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def export(module: Any, samples: SampleSource) -> onnx.ModelProto:
    """Export a module, in evaluation mode, as an ONNX model that takes one sample at a time.

    Inputs get the names of the samples. If all of these name parameters of `forward`, they are passed by name, else in
    order. A single array without a name is passed to the first parameter.

    Raises
    ------
    InputError
        If there are no samples, or the module does not accept them.
    CompileError
        If PyTorch cannot export the module.
    """
    torch = sys.modules["torch"]
    arrays = _named_arrays(module, arrays_of(samples)[0])
    names, by_name = _argument_order(module, list(arrays))
    tensors = {name: torch.from_numpy(np.ascontiguousarray(arrays[name][:1])) for name in names}
    positional, keywords = ((), tensors) if by_name else (tuple(tensors.values()), {})
    options: dict[str, Any] = {"input_names": names, "opset_version": float_model.OPSET}
    # The new exporter needs onnxscript; the old one does not.
    if importlib.util.find_spec("onnxscript") is None:
        options |= {"dynamo": False}
    else:
        options |= {"dynamo": True, "external_data": False, "verbose": False}
    with (
        tempfile.TemporaryDirectory() as folder,
        _evaluation_mode(module),
        float_model.silence(),
        torch.no_grad(),
    ):
        try:
            module(*positional, **keywords)
        except Exception as error:  # raised by the module's own code
            raise InputError(f"{type(module).__name__} does not take the samples: {_cause(error)}") from None
        path = Path(folder, "exported.onnx")
        try:
            torch.onnx.export(module, positional, path, kwargs=keywords, **options)
            return onnx.load(path)
        except Exception as error:  # raised by PyTorch or its exporter
            why = _cause(error)
            raise CompileError(f"PyTorch does not export {type(module).__name__} to ONNX: {why}") from None


def _cause(error: Exception) -> str:
    """Return the message of the root cause of an error: PyTorch wraps it in advice."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return first_line(error) or type(error).__name__


def _named_arrays(module: Any, arrays: dict[str | None, np.ndarray]) -> dict[str, np.ndarray]:
    """Name a single array after the first parameter. Raises `InputError` for empty samples."""
    if not arrays:
        raise InputError("samples is empty: it must have an array for each input of the module")
    first = next(iter(_parameters(module)), "input")
    named = {first if name is None else name: array for name, array in arrays.items()}
    for name, array in named.items():
        if not array.ndim or not array.size:
            raise InputError(f"samples: array {name!r} has shape {array.shape}: there is no sample in it")
    return named


def _parameters(module: Any) -> list[str]:
    """Return the names of the parameters of `forward` that take one value each."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(module.forward).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind in kinds]


def _argument_order(module: Any, names: list[str]) -> tuple[list[str], bool]:
    """Return the inputs in the order of parameters, and True if they must be passed by name.

    Inputs that do not name parameters keep their order.
    """
    parameters = _parameters(module)
    # Names that are not parameters are only labels: pass by position.
    if not set(names) <= set(parameters):
        return names, False
    ordered = [name for name in parameters if name in names]
    return ordered, ordered != parameters[: len(ordered)]


@contextlib.contextmanager
def _evaluation_mode(module: Any) -> Iterator[None]:
    """Put a module and its submodules into evaluation mode, and restore their modes afterwards."""
    before = {each: each.training for each in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for each, training in before.items():
            each.training = training
