"""Float models as ONNX Runtime's quantiser takes them best: valid, of a recent version, simplified, with all types."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, version_converter

from weft.compiler.frontend import check_kind, formats
from weft.compiler.host.evaluate import HOW_TO_INSTALL, runtime
from weft.compiler.host.onnx_model import first_line
from weft.compiler.ir.graph import CompileError
from weft.compiler.onnx.model import QLINEAR
from weft.compiler.onnx.reader import Source, checked
from weft.errors import InputError
from weft.quantiser import fused_operators, integer_models
from weft.quantiser.integer_weights import Remembered

Result = TypeVar("Result")
OPSET = 20
"""What older models become: from here on ONNX has normalisation of layers and GELU as operators of their own, which are
then found in what exporters write out."""
OLDEST = 13
"""The first version with a scale for each channel."""
_FATAL_ONLY = 4
"""Severity of ONNX Runtime's log: what it raises, it need not print as well."""
_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def onnx_runtime() -> Any:
    """ONNX Runtime.

    Raises
    ------
    InputError
        If it is not installed.
    """
    found = runtime()
    if found is None:
        raise InputError(f"models are quantised by ONNX Runtime, which is not installed: {HOW_TO_INSTALL}")
    return found


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Keep what ONNX Runtime and its quantiser print, log and warn of to themselves."""
    disabled = logging.root.manager.disable
    runtime = onnx_runtime()
    logging.disable(logging.ERROR)
    runtime.set_default_logger_severity(_FATAL_ONLY)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        runtime.set_default_logger_severity(2)


def session(model: onnx.ModelProto, optimised: Path | None = None) -> Any:
    """A session that runs a model as it stands, or that simplifies it and writes it to a file.

    Raises
    ------
    CompileError
        If ONNX Runtime does not take the model.
    """
    found = onnx_runtime()
    options = found.SessionOptions()
    level = "ORT_DISABLE_ALL" if optimised is None else "ORT_ENABLE_BASIC"
    options.graph_optimization_level = getattr(found.GraphOptimizationLevel, level)
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    data = serialised(model)
    return guarded(lambda: found.InferenceSession(data, options, providers=["CPUExecutionProvider"]))


def guarded(action: Callable[[], Result]) -> Result:
    """What ONNX Runtime does; any error that it raises as a `CompileError`."""
    try:
        return action()
    except (CompileError, MemoryError):
        raise
    except Exception as error:  # its own classes have no base but this
        raise CompileError(f"ONNX Runtime does not run the model: {first_line(error)}") from None


def serialised(model: onnx.ModelProto) -> bytes:
    """The bytes of a model. Raises `CompileError` if they are more than its format can hold."""
    try:
        return model.SerializeToString(deterministic=True)
    except Exception as error:  # of protobuf, which has several
        raise CompileError(f"the model has more than 2 GiB, which is too much: {first_line(error)}") from None


def prepared(source: Source, shapes: dict[str, int]) -> tuple[onnx.ModelProto, Remembered]:
    """A float model with static shapes, of a recent version, simplified by ONNX Runtime (batch normalisation and
    constants folded, products and their biases made one), all nodes named, and the types of all values known; and the
    constants that the file had as integers.

    Raises
    ------
    CompileError
        If it is no ONNX model, has fixed ranges for activations already, or cannot be read or run.
    InputError
        If ONNX Runtime is not installed.
    """
    onnx_runtime()
    _check_kind(source)
    model, remembered = integer_models.floats(checked(source, shapes))
    _check_float(model)
    with silence():
        model = upgraded(_closed(model))
        if fused_operators.has_any(model):
            model = fused_operators.written_out(typed(model))
        return typed(simplified(model)), remembered


def signature(model: onnx.ModelProto) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The inputs of a model: name to (dtype name, shape)."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return {
        value.name: (
            np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)).name,
            tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim),
        )
        for value in model.graph.input
        if value.name not in constants
    }


def _check_kind(source: Source) -> None:
    if isinstance(source, onnx.ModelProto):
        return
    head = source[:4096] if isinstance(source, bytes) else b""
    if not isinstance(source, bytes) and Path(source).is_file():
        with Path(source).open("rb") as file:
            head = file.read(4096)
    for kind in formats():
        if kind.recognises(head):
            raise CompileError(
                f"`weft quantise` takes ONNX models, and this is {kind.name}: {kind.how_to_quantise}"
            )
    check_kind(head, f"the model of {len(source):,} bytes" if isinstance(source, bytes) else str(source))


def _check_float(model: onnx.ModelProto) -> None:
    """Raise `CompileError` for a model that is quantised already, or computes in half precision."""
    operators = {node.op_type for node in model.graph.node}
    for name in ("QuantizeLinear", "DequantizeLinear", *QLINEAR):
        if name in operators:
            raise CompileError(
                f"the model is quantised already (it has {name}): `weft compile` takes it as it is, and "
                "`weft quantise` the float model that it was made of"
            )
    for value in model.graph.input:
        if value.type.tensor_type.elem_type in _HALVES:
            raise CompileError(f"input {value.name!r} has 16 bits: export the model in float32")
    for tensor in model.graph.initializer:
        if tensor.data_type in _HALVES:
            raise CompileError(f"constant {tensor.name!r} has 16 bits: export the model in float32")


def _closed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with no constant listed as an input, as versions before 4 have them all: nobody may replace them."""
    constants = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in constants]
    if len(kept) == len(model.graph.input):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.input[:]
    made.graph.input.extend(kept)
    made.ir_version = max(made.ir_version, 4)
    return made


def _opset(model: onnx.ModelProto) -> int:
    return next((int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)


def upgraded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in a version of ONNX that has what quantised models need, where the onnx package can convert it."""
    now = _opset(model)
    told = ""
    for version in (OPSET, OPSET - 3, OLDEST):
        if now >= version:
            return model
        try:
            made = version_converter.convert_version(model, version)
            session(made)
            return made
        except (CompileError, RuntimeError, ValueError, IndexError) as error:
            told = first_line(error)
    raise CompileError(
        f"the model has version {now} of ONNX's operators, and cannot be converted to {OLDEST} ({told}): export it "
        f"again with opset_version={OPSET}"
    )


def simplified(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as ONNX Runtime simplifies it for any device; a name for each node."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "simplified.onnx")
        session(model, optimised=path)
        made = onnx.load(path)
    used = {node.domain for node in made.graph.node}
    kept = [entry for entry in made.opset_import if entry.domain == "" or entry.domain in used]
    del made.opset_import[:]
    made.opset_import.extend(kept)
    names: set[str] = set()
    for index, node in enumerate(made.graph.node):
        name = node.name or f"{node.op_type}_{index}"
        while name in names:
            name = f"{name}_{index}"
        node.name = name
        names.add(name)
    return made


def typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the types of all values as ONNX Runtime finds them, those of its own operators included."""
    outputs = {value.name for value in model.graph.output}
    inside = [name for node in model.graph.node for name in node.output if name and name not in outputs]
    found = {value.name: value for value in session(_giving(model, inside)).get_outputs()}
    del model.graph.value_info[:]
    for name in inside:
        kind = _TYPES.get(found[name].type)
        if kind is not None:
            sizes = [size if isinstance(size, int) else None for size in found[name].shape]
            model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, kind, sizes))
    return model


def made_floats(model: onnx.ModelProto) -> list[str]:
    """Values of float32 that the nodes of a prepared model make."""
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*model.graph.value_info, *model.graph.output)
    }
    made = (name for node in model.graph.node for name in node.output)
    return [name for name in made if types.get(name) == TensorProto.FLOAT]


class Probe:
    """A model that gives any of its values."""

    def __init__(self, model: onnx.ModelProto, names: Iterable[str]) -> None:
        self._names = list(dict.fromkeys(names))
        self._session = session(_giving(model, self._names))

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
        values = guarded(lambda: self._session.run(self._names, dict(inputs)))
        return dict(zip(self._names, values, strict=True))


def _giving(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """A copy of a model with further values as outputs."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    have = {value.name for value in model.graph.output}
    made.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in have)
    return made


_TYPES = {
    "tensor(float)": TensorProto.FLOAT,
    "tensor(double)": TensorProto.DOUBLE,
    "tensor(bool)": TensorProto.BOOL,
    "tensor(int32)": TensorProto.INT32,
    "tensor(int64)": TensorProto.INT64,
    "tensor(int8)": TensorProto.INT8,
    "tensor(uint8)": TensorProto.UINT8,
}
"""ONNX Runtime's names of types that are in float models."""
