"""Float models prepared for ONNX Runtime's quantiser: valid, of a recent opset, simplified, with all types known."""

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

from weft.compiler.errors import CompileError
from weft.compiler.frontend import check_kind, formats
from weft.compiler.host.evaluate import HOW_TO_INSTALL, runtime
from weft.compiler.host.onnx_model import first_line
from weft.compiler.onnx.model import QLINEAR
from weft.compiler.onnx.reader import Source, read_proto
from weft.errors import InputError
from weft.quantiser import fused_operators, integer_models
from weft.quantiser.integer_weights import Remembered

Result = TypeVar("Result")
OPSET = 20
"""Opset that older models are converted to. It has LayerNormalization and Gelu as operators, so that ONNX Runtime can
fuse the operators into which exporters expand them."""
OLDEST = 13
"""First opset whose DequantizeLinear has a scale for each channel."""
_FATAL_ONLY = 4
"""Log severity of ONNX Runtime: errors that it raises need not be printed too."""
_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def onnx_runtime() -> Any:
    """Return the package `onnxruntime`.

    Raises
    ------
    InputError
        If it is not installed.
    """
    package = runtime()
    if package is None:
        raise InputError(f"models are quantised by ONNX Runtime, which is not installed: {HOW_TO_INSTALL}")
    return package


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Suppress the prints, logs and warnings of ONNX Runtime and its quantiser."""
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
    """Return an inference session that runs the model unchanged.

    With `optimised`, ONNX Runtime instead simplifies the model and writes it to this file.

    Raises
    ------
    CompileError
        If ONNX Runtime refuses the model.
    """
    package = onnx_runtime()
    options = package.SessionOptions()
    level = "ORT_DISABLE_ALL" if optimised is None else "ORT_ENABLE_BASIC"
    options.graph_optimization_level = getattr(package.GraphOptimizationLevel, level)
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    data = serialise(model)
    return call_runtime(lambda: package.InferenceSession(data, options, providers=["CPUExecutionProvider"]))


def call_runtime(action: Callable[[], Result]) -> Result:
    """Call ONNX Runtime, and turn its errors into `CompileError`."""
    try:
        return action()
    except (CompileError, MemoryError):
        raise
    except Exception as error:  # its error classes have no other base in common
        raise CompileError(f"ONNX Runtime does not run the model: {first_line(error)}") from None


def serialise(model: onnx.ModelProto) -> bytes:
    """Return the bytes of a model. Raises `CompileError` above 2 GiB, the limit of protobuf."""
    try:
        return model.SerializeToString(deterministic=True)
    except Exception as error:  # protobuf raises several classes
        raise CompileError(f"the model has more than 2 GiB, which is too much: {first_line(error)}") from None


def prepare(source: Source, shapes: dict[str, int]) -> tuple[onnx.ModelProto, Remembered]:
    """Read a float model and prepare it for the quantiser.

    The result has static shapes, a recent opset, a name for every node, and known types of all values. ONNX Runtime has
    folded constants and batch normalisation, and merged products with their biases.

    Returns
    -------
    The model, and the weights that the file held as integers.

    Raises
    ------
    CompileError
        If it is not an ONNX model, is quantised already, or cannot be read or run.
    InputError
        If ONNX Runtime is not installed.
    """
    onnx_runtime()
    _check_kind(source)
    model, remembered = integer_models.to_floats(read_proto(source, shapes))
    _check_float(model)
    with silence():
        model = upgrade(_close_inputs(model))
        if fused_operators.has_any(model):
            model = fused_operators.expand(infer_types(model))
        return infer_types(simplify(model)), remembered


def signature(model: onnx.ModelProto) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the inputs of a model: name to (dtype name, shape)."""
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
    # The first bytes tell formats apart.
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
    """Raise `CompileError` if a model is quantised already, or computes in half precision."""
    operators = {node.op_type for node in model.graph.node}
    for name in ("QuantizeLinear", "DequantizeLinear", *QLINEAR):
        if name in operators:
            raise CompileError(
                f"the model is quantised already (it has {name}): give it to `weft compile` as it is, or give "
                "`weft quantise` the float model it came from"
            )
    for value in model.graph.input:
        if value.type.tensor_type.elem_type in _HALVES:
            raise CompileError(f"input {value.name!r} has 16 bits: export the model in float32")
    for tensor in model.graph.initializer:
        if tensor.data_type in _HALVES:
            raise CompileError(f"constant {tensor.name!r} has 16 bits: export the model in float32")


def _close_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without constants among its inputs, where IR versions before 4 list all of them."""
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    if len(inputs) == len(model.graph.input):
        return model
    closed = onnx.ModelProto()
    closed.CopyFrom(model)
    del closed.graph.input[:]
    closed.graph.input.extend(inputs)
    closed.ir_version = max(closed.ir_version, 4)
    return closed


def _opset(model: onnx.ModelProto) -> int:
    return next((int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)


def upgrade(model: onnx.ModelProto) -> onnx.ModelProto:
    """Convert the model to the newest of three opsets that the onnx package can convert it to.

    Raises `CompileError` if none of them works.
    """
    current = _opset(model)
    reason = ""
    # The converter cannot bring every model to the newest opset.
    for version in (OPSET, OPSET - 3, OLDEST):
        if current >= version:
            return model
        try:
            converted = version_converter.convert_version(model, version)
            session(converted)  # the converter may succeed with a model that does not run
            return converted
        except (CompileError, RuntimeError, ValueError, IndexError) as error:
            reason = first_line(error)
    raise CompileError(
        f"the model has opset version {current}, and cannot be converted to {OLDEST} ({reason}): export it "
        f"again with opset_version={OPSET}"
    )


def simplify(model: onnx.ModelProto) -> onnx.ModelProto:
    """Apply ONNX Runtime's optimisations that hold for any device, and name every node."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "simplified.onnx")
        session(model, optimised=path)
        result = onnx.load(path)
    used = {node.domain for node in result.graph.node}
    opsets = [entry for entry in result.opset_import if entry.domain == "" or entry.domain in used]
    # ONNX Runtime declares all of its domains: keep those in use.
    del result.opset_import[:]
    result.opset_import.extend(opsets)
    names: set[str] = set()
    for index, node in enumerate(result.graph.node):
        name = node.name or f"{node.op_type}_{index}"
        # Plans and reports identify nodes by name.
        while name in names:
            name = f"{name}_{index}"
        node.name = name
        names.add(name)
    return result


def infer_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Add the types of all values to the model, in place: ONNX Runtime infers them for its own operators too."""
    # ONNX Runtime reports the types of outputs only: make every value an output.
    outputs = {value.name for value in model.graph.output}
    inside = [name for node in model.graph.node for name in node.output if name and name not in outputs]
    values = {value.name: value for value in session(_with_outputs(model, inside)).get_outputs()}
    del model.graph.value_info[:]
    for name in inside:
        kind = _TYPES.get(values[name].type)
        if kind is not None:
            sizes = [size if isinstance(size, int) else None for size in values[name].shape]
            model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, kind, sizes))
    return model


def float_results(model: onnx.ModelProto) -> list[str]:
    """Return the names of the float32 values that the nodes of a prepared model compute."""
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*model.graph.value_info, *model.graph.output)
    }
    results = (name for node in model.graph.node for name in node.output)
    return [name for name in results if types.get(name) == TensorProto.FLOAT]


class Probe:
    """Model as a function from its inputs to the named values inside it."""

    def __init__(self, model: onnx.ModelProto, names: Iterable[str]) -> None:
        self._names = list(dict.fromkeys(names))
        self._session = session(_with_outputs(model, self._names))

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
        values = call_runtime(lambda: self._session.run(self._names, dict(inputs)))
        return dict(zip(self._names, values, strict=True))


def _with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """Return a copy of a model with further values as outputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    have = {value.name for value in model.graph.output}
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in have)
    return copy


_TYPES = {
    "tensor(float)": TensorProto.FLOAT,
    "tensor(double)": TensorProto.DOUBLE,
    "tensor(bool)": TensorProto.BOOL,
    "tensor(int32)": TensorProto.INT32,
    "tensor(int64)": TensorProto.INT64,
    "tensor(int8)": TensorProto.INT8,
    "tensor(uint8)": TensorProto.UINT8,
}
"""Types of values in float models, by their names in ONNX Runtime."""
