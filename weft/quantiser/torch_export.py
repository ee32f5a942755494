"""PyTorch's modules as ONNX models. PyTorch is never imported here: who has a module has imported it."""

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

from weft.compiler.host.onnx_model import first_line
from weft.compiler.ir.graph import CompileError
from weft.errors import InputError
from weft.quantiser import float_model
from weft.samples import SampleSource, arrays_of


def is_module(value: Any) -> bool:
    """Whether a value is a module of PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def exported(module: Any, samples: SampleSource) -> onnx.ModelProto:
    """A module as an ONNX model that takes one sample at a time, as it is for evaluation.

    Its inputs are named as the samples are; if these are not all names of its forward method's parameters, they are its
    parameters in order. A single array without a name is the first parameter.

    Raises
    ------
    InputError
        If there are no samples, or more than there are parameters.
    CompileError
        If PyTorch cannot export it.
    """
    torch = sys.modules["torch"]
    arrays = _by_parameter(module, arrays_of(samples)[0])
    names, by_name = _ordered(module, list(arrays))
    tensors = {name: torch.from_numpy(np.ascontiguousarray(arrays[name][:1])) for name in names}
    given, keywords = ((), tensors) if by_name else (tuple(tensors.values()), {})
    options: dict[str, Any] = {"input_names": names, "opset_version": float_model.OPSET}
    if importlib.util.find_spec("onnxscript") is None:
        options |= {"dynamo": False}
    else:
        options |= {"dynamo": True, "external_data": False, "verbose": False}
    with tempfile.TemporaryDirectory() as folder, _evaluating(module), float_model.silence(), torch.no_grad():
        try:
            module(*given, **keywords)
        except Exception as error:  # of the module's own code
            raise InputError(f"{type(module).__name__} does not take the samples: {_cause(error)}") from None
        path = Path(folder, "exported.onnx")
        try:
            torch.onnx.export(module, given, path, kwargs=keywords, **options)
            return onnx.load(path)
        except Exception as error:  # of PyTorch and of its exporter
            why = _cause(error)
            raise CompileError(f"PyTorch does not export {type(module).__name__} to ONNX: {why}") from None


def _cause(error: Exception) -> str:
    """What is at the bottom of an error: PyTorch wraps it in advice."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return first_line(error) or type(error).__name__


def _by_parameter(module: Any, arrays: dict[str | None, np.ndarray]) -> dict[str, np.ndarray]:
    """The samples, a single one named after the first parameter; refused if there is nothing in them."""
    if not arrays:
        raise InputError("samples is empty: it must have an array for each input of the module")
    first = next(iter(_parameters(module)), "input")
    named = {first if name is None else name: array for name, array in arrays.items()}
    for name, array in named.items():
        if not array.ndim or not array.size:
            raise InputError(f"samples: array {name!r} has shape {array.shape}: there is no sample in it")
    return named


def _parameters(module: Any) -> list[str]:
    """Names of the parameters of a module's forward method that take one value each."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(module.forward).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind in kinds]


def _ordered(module: Any, names: list[str]) -> tuple[list[str], bool]:
    """Inputs in the order of parameters, and whether they are given by name; as they are if they have other names."""
    parameters = _parameters(module)
    if not set(names) <= set(parameters):
        return names, False
    ordered = [name for name in parameters if name in names]
    return ordered, ordered != parameters[: len(ordered)]


@contextlib.contextmanager
def _evaluating(module: Any) -> Iterator[None]:
    """Have the module and all modules in it in evaluation, as `module.eval()` does, and then as they were."""
    before = {each: each.training for each in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for each, training in before.items():
            each.training = training
