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

from weft import float_model
from weft.compiler.host.onnx_model import first_line
from weft.compiler.ir.graph import CompileError
from weft.errors import InputError
from weft.samples import Given, arrays_of


def is_module(value: Any) -> bool:
    """Whether a value is a module of PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def exported(module: Any, samples: Given) -> onnx.ModelProto:
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
    named, positions = _arguments(module, list(arrays))
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array[:1])) for name, array in arrays.items()}
    options: dict[str, Any] = {"input_names": list(arrays), "opset_version": float_model.OPSET}
    if importlib.util.find_spec("onnxscript") is None:
        options |= {"dynamo": False}
    else:
        options |= {"dynamo": True, "external_data": False, "verbose": False}
    with tempfile.TemporaryDirectory() as folder, _evaluating(module), float_model.silence():
        path = Path(folder, "exported.onnx")
        given = tuple(tensors[name] for name in positions)
        try:
            with torch.no_grad():
                torch.onnx.export(
                    module, given, path, kwargs={name: tensors[name] for name in named}, **options
                )
            return onnx.load(path)
        except Exception as error:  # of the module's own code, of PyTorch and of its exporter
            why = first_line(error) or type(error).__name__
            raise CompileError(f"PyTorch does not export {type(module).__name__} to ONNX: {why}") from None


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


def _arguments(module: Any, names: list[str]) -> tuple[list[str], list[str]]:
    """Which samples are given by name, and which by place."""
    parameters = _parameters(module)
    if all(name in parameters for name in names):
        # ONNX's inputs are in the order of the parameters, whatever that of the samples is.
        in_front = parameters[: len(names)]
        if set(in_front) == set(names):
            return [], in_front
        return names, []
    return [], names


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
