"""Quantisation of float models for the device, by ONNX Runtime's quantiser, and export of PyTorch modules to ONNX.

This module does not import PyTorch: a caller that has a PyTorch module has imported it already.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import inspect
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from weft import files
from weft.arguments import integer
from weft.compiler.errors import CompileError
from weft.compiler.host.onnx_model import first_line
from weft.compiler.ir.network import MAX_ELEMENTS
from weft.compiler.onnx.reader import Source
from weft.errors import InputError
from weft.hdl.schema import printable
from weft.quantiser import float_model, masks, ranges
from weft.quantiser.accuracy import Accuracy, measure
from weft.quantiser.kept_weights import Weights, restore
from weft.quantiser.quantise_plan import Plan, operators
from weft.quantiser.ranges import note_largest
from weft.samples import Samples, SampleSource, arrays_of, fit_samples

METHODS = ("minmax", *ranges.METHODS)
"""Methods that choose the range of an activation from its values."""


@dataclass(frozen=True)
class Quantised:
    """Quantised model, its accuracy, and the weights that the file held as integers."""

    model: onnx.ModelProto
    accuracy: Accuracy
    weights: tuple[Weights, ...] = ()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file; on an error, no part of it is left."""
        with files.whole_file(Path(path)) as part:
            part.write_bytes(float_model.serialise(self.model))


def quantise(
    model: Any,
    samples: SampleSource,
    *,
    held_out: SampleSource | None = None,
    method: str = "minmax",
    keep_float: Sequence[str] = (),
    wide: Sequence[str] = (),
    shapes: Mapping[str, int] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Quantised:
    """Quantise a float model to int8 for the device.

    Weights are symmetric, with one scale for each output channel. Each activation has a scale and a zero point. All
    operators that the device supports are quantised.

    Parameters
    ----------
    model : path, bytes, ModelProto or torch.nn.Module
        The float model: an ONNX file, its bytes, or the loaded model; or a PyTorch module, which is exported. Weights
        may be integers already, as `quantize_dynamic` of ONNX Runtime and tools for 4-bit weights write them. They keep
        their values if int8 can represent them.
    samples : mapping of str to ndarray, ndarray or path
        Calibration samples: an array for each input by name, whose first axis counts samples; a single array for a
        model of one input; or a .npz or .npy file of these. A few hundred samples suffice.
    held_out : mapping of str to ndarray, ndarray or path
        Samples to measure accuracy on. Default: `samples`.
    method : str
        Range of activations: "minmax" (all values), "percentile" (99.99 % of them) or "mse" (least squared error).
    keep_float : sequence of str
        Names of nodes to leave in float; they run on the host.
    wide : sequence of str
        Names of nodes whose results get 16 bits. The device then needs a kernel engine.
    shapes : mapping of str to int
        Sizes of dimensions that the model leaves open, as for `weft.compile`.
    progress : callable
        Called with a description of each step.

    Raises
    ------
    CompileError
        If the model cannot be read, exported or run, or is quantised already.
    InputError, FileError
        If samples do not fit the model, another argument is wrong, or ONNX Runtime is not installed.
    """
    report = progress or (lambda text: None)
    sizes = _check(method, {"keep_float": keep_float, "wide": wide}, shapes)
    float_model.onnx_runtime()
    report("reading the model")
    prepared, remembered = float_model.prepare(_source(model, samples), sizes)
    inputs = float_model.signature(prepared)
    calibrating = fit_samples(samples, inputs)
    measured = calibrating if held_out is None else fit_samples(held_out, inputs)
    _check_names(prepared, (*keep_float, *wide))
    with float_model.silence():
        report(f"calibrating with {len(calibrating):,} samples")
        # Masks first: the plan leaves the nodes that compute them in float.
        prepared, attention_masks = masks.unify(prepared, calibrating)
        plan = Plan(prepared, (*keep_float, *attention_masks.nodes), attention_masks.values)
        result = _run_quantiser(prepared, calibrating, method, plan.excluded, plan.results(wide))
        _check_result(result)
        masks.quantise(result, attention_masks)
        note_largest(result, prepared, calibrating)
        weights = restore(result, prepared, remembered)
        return Quantised(result, measure(prepared, result, measured, report), weights)


def _check(
    method: str, names: Mapping[str, Sequence[str]], shapes: Mapping[str, int] | None
) -> dict[str, int]:
    """Check the types of arguments. Returns the sizes of open dimensions."""
    if method not in METHODS:
        raise InputError(f"'method' must be {', '.join(METHODS)}, not {method!r}")
    for argument, value in names.items():
        if isinstance(value, str) or not all(isinstance(name, str) for name in value):
            raise InputError(f"{argument!r} must be a list of names of nodes, not {value!r}")
    if not isinstance(shapes, Mapping | None):
        raise InputError(f"'shapes' must be a mapping of names to sizes, not {type(shapes).__name__}")
    return {
        name: integer(f"shapes[{name!r}]", size, 1, MAX_ELEMENTS) for name, size in (shapes or {}).items()
    }


def _source(model: Any, samples: SampleSource) -> Source:
    if is_module(model):
        return export(model, samples)
    if not isinstance(model, Source):
        raise InputError(
            f"a model is a path, bytes, an onnx.ModelProto or a torch.nn.Module, not {type(model).__name__}"
        )
    return model


def _check_names(model: onnx.ModelProto, chosen: Sequence[str]) -> None:
    names = [node.name for node in model.graph.node]
    for name in chosen:
        if name not in names:
            near = difflib.get_close_matches(name, names, 3, 0.4) or names[:3]
            similar = ", ".join(repr(printable(each, 60)) for each in near)
            raise InputError(f"no node has the name {printable(name, 60)!r}; there are {similar} and others")


def _check_result(model: onnx.ModelProto) -> None:
    if not any(node.op_type == "QuantizeLinear" for node in model.graph.node):
        raise CompileError(
            "nothing of the model can be quantised: it has no float operator that the device supports, or all of them "
            "are kept in float"
        )


class _Reader:
    """Samples with the interface that the quantiser reads."""

    def __init__(self, runs: Iterator[dict[str, np.ndarray]]) -> None:
        self._runs = runs

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._runs, None)


def _run_quantiser(
    model: onnx.ModelProto, samples: Samples, method: str, excluded: Sequence[str], wide: Sequence[str]
) -> onnx.ModelProto:
    """Run ONNX Runtime's quantiser on a prepared model, with 16 bits for the values `wide`."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    CalibrationDataReader.register(_Reader)
    options: dict[str, Any] = {
        "WeightSymmetric": True,
        "ActivationSymmetric": False,  # as fast, and after ReLU a symmetric range would waste half of it
        "ForceQuantizeNoInputCheck": True,  # quantise operators that only move values, too
    }
    runs = iter(samples)
    if method != "minmax":
        chosen = ranges.ranges(model, samples, method)
        options["TensorQuantOverrides"] = {
            name: [{"rmin": np.float32(low), "rmax": np.float32(high)}]
            for name, (low, high) in chosen.items()
        }
        # The quantiser measures ranges in any case, but the overrides replace them: one sample is enough.
        runs = itertools.islice(runs, 1)
    overrides = options.setdefault("TensorQuantOverrides", {})
    for name in wide:
        overrides.setdefault(name, [{}])[0]["quant_type"] = QuantType.QInt16
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "float.onnx"), Path(folder, "quantised.onnx")
        source.write_bytes(float_model.serialise(model))
        float_model.call_runtime(
            lambda: quantize_static(
                str(source),
                str(target),
                _Reader(runs),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=operators(),
                per_channel=True,
                reduce_range=False,
                activation_type=QuantType.QInt8,
                weight_type=QuantType.QInt8,
                nodes_to_exclude=list(excluded),
                calibrate_method=CalibrationMethod.MinMax,
                extra_options=options,
            )
        )
        return onnx.load(target)


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
