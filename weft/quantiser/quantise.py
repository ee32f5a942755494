"""Quantising float models for the device, by ONNX Runtime's quantiser with the settings that suit it."""

from __future__ import annotations

import difflib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from weft import files
from weft.arguments import integer
from weft.compiler.ir.graph import CompileError
from weft.compiler.onnx.limits import ELEMENTS
from weft.compiler.onnx.reader import Source
from weft.errors import InputError
from weft.hdl.schema import printable
from weft.quantiser import float_model, masks, ranges
from weft.quantiser.accuracy import Accuracy, measure
from weft.quantiser.kept_weights import Weights, keep
from weft.quantiser.quantise_plan import Plan, operators
from weft.quantiser.ranges import note_largest
from weft.samples import Samples, SampleSource, fit_samples

METHODS = ("minmax", *ranges.METHODS)
"""How the range of an activation is chosen from its values."""


@dataclass(frozen=True)
class Quantised:
    """A quantised model, how far it is from float, and what became of weights that the file had as integers."""

    model: onnx.ModelProto
    accuracy: Accuracy
    weights: tuple[Weights, ...] = ()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file, whole or not at all."""
        with files.whole_file(Path(path)) as part:
            part.write_bytes(float_model.serialised(self.model))


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

    Weights get one scale for each output channel and are symmetric, activations have a scale and a zero point each; all
    operators that the device has are quantised.

    Parameters
    ----------
    model : path, bytes, ModelProto or torch.nn.Module
        The float model: an ONNX file, or serialised, or in memory; or a module of PyTorch, which is exported. Or one
        whose weights are integers and whose activations are not: what `quantize_dynamic` of ONNX Runtime makes, or
        tools that store weights in 4 bits. Its weights keep their integers where int8 has them.
    samples : mapping of str to ndarray, ndarray or path
        What calibrates it: for each input an array by its name, whose first axis counts samples; a single array for a
        model of one input; or a .npz or .npy file with the same. A few hundred samples do.
    held_out : mapping of str to ndarray, ndarray or path
        What accuracy is measured on; `samples` if it is not given.
    method : str
        How ranges are chosen: "minmax" (all values), "percentile" (99.99 % of them) or "mse" (least squared error).
    keep_float : sequence of str
        Names of nodes that are not quantised, and run on the host.
    wide : sequence of str
        Names of nodes whose results get 16 bits: for these the device needs a kernel engine.
    shapes : mapping of str to int
        Sizes of dimensions that the model leaves open, as of `weft.compile`.
    progress : callable
        Told what is being done.

    Raises
    ------
    CompileError
        If the model cannot be read, exported or run, or is quantised already.
    InputError, FileError
        If samples do not fit the model, or another argument is wrong; or if ONNX Runtime is not installed.
    """
    tell = progress or (lambda text: None)
    sizes = _checked(method, {"keep_float": keep_float, "wide": wide}, shapes)
    float_model.onnx_runtime()
    tell("reading the model")
    prepared, remembered = float_model.prepared(_source(model, samples), sizes)
    taken = float_model.signature(prepared)
    calibrating = fit_samples(samples, taken)
    measured = calibrating if held_out is None else fit_samples(held_out, taken)
    _check_names(prepared, (*keep_float, *wide))
    with float_model.silence():
        tell(f"calibrating with {len(calibrating):,} samples")
        prepared, found = masks.unified(prepared, calibrating)
        plan = Plan(prepared, (*keep_float, *found.nodes), found.values)
        made = _quantised(prepared, calibrating, method, plan.excluded, plan.results(wide))
        _check_made(made)
        masks.quantised(made, found)
        note_largest(made, prepared, calibrating)
        weights = keep(made, prepared, remembered)
        return Quantised(made, measure(prepared, made, measured, tell), weights)


def _checked(
    method: str, names: Mapping[str, Sequence[str]], shapes: Mapping[str, int] | None
) -> dict[str, int]:
    """The sizes of open dimensions, once all arguments are of their types."""
    if method not in METHODS:
        raise InputError(f"'method' must be {', '.join(METHODS)}, not {method!r}")
    for what, given in names.items():
        if isinstance(given, str) or not all(isinstance(name, str) for name in given):
            raise InputError(f"{what!r} must be a list of names of nodes, not {given!r}")
    if not isinstance(shapes, Mapping | None):
        raise InputError(f"'shapes' must be a mapping of names to sizes, not {type(shapes).__name__}")
    return {name: integer(f"shapes[{name!r}]", size, 1, ELEMENTS) for name, size in (shapes or {}).items()}


def _source(model: Any, samples: SampleSource) -> Source:
    from weft.quantiser.torch_export import exported, is_module

    if is_module(model):
        return exported(model, samples)
    if not isinstance(model, Source):
        raise InputError(
            f"a model is a path, bytes, an onnx.ModelProto or a torch.nn.Module, not {type(model).__name__}"
        )
    return model


def _check_names(model: onnx.ModelProto, given: Sequence[str]) -> None:
    """Raise `InputError` for a name of no node."""
    names = [node.name for node in model.graph.node]
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, 3, 0.4) or names[:3]
            told = ", ".join(repr(printable(each, 60)) for each in near)
            raise InputError(f"no node has the name {printable(name, 60)!r}; there are {told} and others")


def _check_made(model: onnx.ModelProto) -> None:
    if not any(node.op_type == "QuantizeLinear" for node in model.graph.node):
        raise CompileError(
            "nothing of the model can be quantised: it has no operator of floats that the device has, or none is left"
        )


class _Reader:
    """Samples as the quantiser reads them."""

    def __init__(self, runs: Iterator[dict[str, np.ndarray]]) -> None:
        self._runs = runs

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._runs, None)


def _quantised(
    model: onnx.ModelProto, samples: Samples, method: str, excluded: Sequence[str], wide: Sequence[str]
) -> onnx.ModelProto:
    """What ONNX Runtime's quantiser makes of a prepared model, with 16 bits for the values `wide`."""
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
        "ActivationSymmetric": False,  # no slower, and half of the range would be lost behind ReLU
        "ForceQuantizeNoInputCheck": True,  # operators that move what is not quantised yet
    }
    runs = iter(samples)
    if method != "minmax":
        chosen = ranges.ranges(model, samples, method)
        options["TensorQuantOverrides"] = {
            name: [{"rmin": np.float32(low), "rmax": np.float32(high)}]
            for name, (low, high) in chosen.items()
        }
        runs = itertools.islice(
            runs, 1
        )  # the quantiser looks for ranges in any case, and does not use them then
    overrides = options.setdefault("TensorQuantOverrides", {})
    for name in wide:
        overrides.setdefault(name, [{}])[0]["quant_type"] = QuantType.QInt16
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "float.onnx"), Path(folder, "quantised.onnx")
        source.write_bytes(float_model.serialised(model))
        float_model.guarded(
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
