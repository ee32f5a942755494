"""weft as a backend of the onnx package (`onnx.backend.base`), for its conformance suite and whoever speaks that API.

```python
from weft import onnx_backend

outputs = onnx_backend.run_model(model, inputs, device="golden", config="small")
```

A model of several nodes must be quantised, as for `weft.compile`. A model of one node is given its weights, scales and
zero points with its inputs, and is compiled for them (`support.onnx_backend`); where the device could not give
exactly what the operator is defined to give, it is refused.
"""

from __future__ import annotations

import math
import unittest
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.base import Backend, BackendRep

import weft
from weft.api import Program
from weft.compiler.errors import CompileError, EvaluationError
from weft.compiler.host.evaluate import Evaluator
from weft.compiler.onnx.reader import network_of

NATIVE = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul")
"""Operators that weft reads as they are."""
INTEGER = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}
"""Integer operators, and the ones that compute the same between DequantizeLinear nodes of scale 1."""
WEIGHTS = ("Conv", "ConvTranspose", "MatMul", "Gemm", *INTEGER)
"""Operators whose second input is weights."""
_FINEST = 8
"""Binary digits after the point that scales may have."""
_OPSET = 13
"""First version of the operator set whose QuantizeLinear and DequantizeLinear have scales along an axis."""
_IR_VERSION = 7
"""The file format's version that belongs to it."""


class NotExact(CompileError):
    """Data on which a quantised form would compute something else; one sentence."""


@dataclass(frozen=True)
class Levels:
    """8-bit integers that stand for values: ``(integer - zero) * scale``, exactly."""

    scale: float
    zero: int
    dtype: np.dtype[Any]

    def of(self, values: np.ndarray) -> np.ndarray:
        return (values.astype(np.float64) / self.scale + self.zero).astype(self.dtype)


@dataclass(frozen=True)
class Wrapped:
    """A quantised model, and the scale of each value that was quantised for it."""

    model: onnx.ModelProto
    scales: dict[str, float]


def activations(node: onnx.NodeProto, inputs: dict[str, np.ndarray]) -> tuple[str, ...]:
    """The inputs of an operator that stay inputs: those that a network would compute."""
    if node.op_type in ("Concat", "Max", "Min", "Sum"):
        return tuple(node.input)
    if node.op_type == "Add" and inputs[node.input[0]].shape == inputs[node.input[1]].shape:
        return tuple(node.input)
    return tuple(node.input[:1])


def bind(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> onnx.ModelProto:
    """The model with the inputs that are no activations as initialisers."""
    kept = activations(model.graph.node[0], inputs)
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    given = [value for value in bound.graph.input if value.name in kept]
    del bound.graph.input[:]
    bound.graph.input.extend(given)
    for name, values in inputs.items():
        if name not in kept:
            bound.graph.initializer.append(numpy_helper.from_array(values, name))
    return bound


def levels(values: np.ndarray) -> Levels | None:
    """The 8-bit integers and the scale that give `values` exactly; scale 1 if that is one. None if there are none."""
    wide = values.astype(np.float64)
    if not np.isfinite(wide).all():
        return None
    fine = wide * 2**_FINEST
    if not np.array_equal(fine, np.rint(fine)) or np.abs(fine).max(initial=0) >= 1 << 24:
        return None
    common = math.gcd(*np.unique(np.abs(fine)).astype(np.int64).tolist()) / 2**_FINEST
    for scale in (1.0, common or 1.0):
        steps = wide / scale
        low, high = math.floor(steps.min(initial=0)), math.ceil(steps.max(initial=0))
        if not np.array_equal(steps, np.rint(steps)) or high - low > 255:
            continue
        if low >= -128 and high <= 127:
            return Levels(scale, 0, np.dtype(np.int8))
        return Levels(scale, -low, np.dtype(np.uint8))
    return None


def wrap(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> Wrapped:
    """A quantised model of the one node of `model` that computes exactly what the node computes on `inputs`.

    Raises
    ------
    NotExact
        If there is none.
    """
    expected = dict(zip(_outputs(model), _evaluate(model, inputs), strict=True))
    wrapped = _Wrapping(model, inputs).build(expected)
    kept = {value.name: inputs[value.name] for value in wrapped.model.graph.input}
    for name, value in zip(_outputs(model), _evaluate(wrapped.model, kept), strict=True):
        if not np.array_equal(value, expected[name]):
            operator = model.graph.node[0].op_type
            raise NotExact(f"between QuantizeLinear and DequantizeLinear {operator} gives other values")
    return wrapped


def _opset(model: onnx.ModelProto) -> int:
    """The version of the operator set for the wrapped operator: a newer one only if it defines the operator alike."""
    opset = next((int(item.version) for item in model.opset_import if item.domain in ("", "ai.onnx")), 1)
    operator = model.graph.node[0].op_type
    if opset >= _OPSET or operator in INTEGER:
        return max(opset, _OPSET)
    old, new = (onnx.defs.get_schema(operator, version).since_version for version in (opset, _OPSET))
    if old != new:
        raise NotExact(
            f"opset {_OPSET}, which scales along an axis need, defines {operator} otherwise than opset {opset}"
        )
    return _OPSET


def _outputs(model: onnx.ModelProto) -> list[str]:
    return [value.name for value in model.graph.output]


def _evaluate(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    try:
        with np.errstate(all="ignore"):
            return [np.asarray(value) for value in Evaluator(network_of(model)).run(inputs)]
    except EvaluationError as error:
        raise NotExact(f"the host cannot evaluate it ({error}), so no scale is known") from None


class _Wrapping:
    """A graph under construction around one node."""

    def __init__(self, model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> None:
        self._model = model
        self._node = model.graph.node[0]
        self._inputs = inputs
        self._activations = activations(self._node, inputs)
        self._nodes: list[onnx.NodeProto] = []
        self._initialisers: list[onnx.TensorProto] = []
        self._scales: dict[str, float] = {}

    def build(self, expected: dict[str, np.ndarray]) -> Wrapped:
        """The whole model, whose results are `expected`."""
        node = self._node
        core = onnx.NodeProto()
        core.CopyFrom(node)
        core.op_type = INTEGER.get(node.op_type, node.op_type)
        del core.input[:]
        count = 2 if node.op_type in INTEGER else len(node.input)
        core.input.extend(self._operand(index) for index in range(count))
        self._nodes.append(core)
        for index, name in enumerate(node.output):
            if (
                name in expected and expected[name].dtype != np.int64
            ):  # those are indices, which stay as they are
                core.output[index] = self._result(name, expected[name])
        graph = helper.make_graph(
            self._nodes,
            self._model.graph.name,
            [value for value in self._model.graph.input if value.name in self._activations],
            list(self._model.graph.output),
            self._initialisers,
        )
        opsets = [helper.make_opsetid("", _opset(self._model))]
        ir_version = max(self._model.ir_version, _IR_VERSION)
        return Wrapped(helper.make_model(graph, opset_imports=opsets, ir_version=ir_version), self._scales)

    def _operand(self, index: int) -> str:
        """The name under which the node reads an input."""
        name = self._node.input[index]
        if not name:
            return ""
        values, weight = self._inputs[name], index == 1 and self._node.op_type in WEIGHTS
        if name not in self._activations and not weight:
            # A second operand of 8 bits has to become float with the first.
            first = self._inputs[self._node.input[0]].dtype
            narrow = values.dtype == first and first in (np.int8, np.uint8)
            self._constant(name, values.astype(np.float32) if narrow else values)
            return name
        if values.dtype in (np.int8, np.uint8):
            if weight:
                self._constant(name, values)
            return self._dequantised(index, name, values)
        found = self._levels(f"input {name!r}", values)
        self._scales[name] = found.scale
        if weight:
            self._constant(f"{name}/levels", found.of(values))
            return self._link("DequantizeLinear", f"{name}/levels", found)
        return self._link("DequantizeLinear", self._link("QuantizeLinear", name, found), found)

    def _dequantised(self, index: int, name: str, values: np.ndarray) -> str:
        """An integer operand behind DequantizeLinear of scale 1, with the operator's zero points if it has any."""
        node = self._node
        zero = np.zeros((), values.dtype)
        if node.op_type in INTEGER and len(node.input) > 2 + index and node.input[2 + index]:
            zero = self._inputs[node.input[2 + index]]
        axis = 0 if node.op_type == "ConvInteger" else values.ndim - (2 if index == 0 else 1)
        if zero.size != 1 and zero.shape != (values.shape[axis],):
            raise NotExact(f"input {node.input[2 + index]!r} has shape {zero.shape}")
        zero = zero.reshape(()) if zero.size == 1 else zero
        result = f"{name}/DequantizeLinear"
        self._constant(f"{result}/scale", np.ones(zero.shape, np.float32))
        self._constant(f"{result}/zero", zero)
        given = [name, f"{result}/scale", f"{result}/zero"]
        attributes: dict[str, Any] = {"axis": axis} if zero.ndim else {}
        self._nodes.append(helper.make_node("DequantizeLinear", given, [result], name=result, **attributes))
        return result

    def _result(self, name: str, values: np.ndarray) -> str:
        """The name under which the node writes an output, whose values are known."""
        written = f"{name}/float"
        if values.dtype in (np.int8, np.uint8):
            self._link("QuantizeLinear", written, Levels(1.0, 0, values.dtype), name)
            return written
        found = self._levels(f"output {name!r}", values)
        self._scales[name] = found.scale
        quantised = self._link("QuantizeLinear", written, found)
        if values.dtype == np.float32:
            self._link("DequantizeLinear", quantised, found, name)
        else:
            floats = self._link("DequantizeLinear", quantised, found)
            self._nodes.append(helper.make_node("Cast", [floats], [name], to=TensorProto.INT32))
        return written

    def _levels(self, what: str, values: np.ndarray) -> Levels:
        allowed = (np.float32, np.int32) if self._node.op_type in INTEGER else (np.float32,)
        if values.dtype not in allowed:
            raise NotExact(f"{what} is {values.dtype}, not 8-bit integers or float32")
        found = levels(values)
        if found is None:
            raise NotExact(f"{what} holds values that are not 8-bit integers times one scale")
        return found

    def _constant(self, name: str, values: np.ndarray) -> None:
        self._initialisers.append(numpy_helper.from_array(values, name))

    def _link(self, operator: str, name: str, found: Levels, result: str = "") -> str:
        """A Q or DQ node behind value `name`; the name of what it makes."""
        result = result or f"{name}/{operator}"
        self._constant(f"{result}/scale", np.array(found.scale, np.float32))
        self._constant(f"{result}/zero", np.array(found.zero, found.dtype))
        given = [name, f"{result}/scale", f"{result}/zero"]
        self._nodes.append(helper.make_node(operator, given, [result], name=result))
        return result


DEVICES = {"golden": "golden", "rtl": "rtl", "CPU": "golden"}
"""Devices by the names they may be asked for: CPU is what onnx's own test runner calls the machine it runs on."""


class Unsupported(CompileError):
    """A model that this backend does not run, with the reason in one sentence."""


class Skipped(Unsupported, unittest.SkipTest):
    """The same for test runners, which take it as a skip."""


@dataclass(frozen=True)
class Compiled:
    """What a run executed: the program, where every node of it is placed, and the scales of a wrapped operator.

    `assignment` has the rows of `weft.check`. `scales` is None if the operator was quantised as it came.
    """

    program: Program
    assignment: tuple[tuple[str, str, str, str], ...]
    scales: dict[str, float] | None


class WeftRep(BackendRep):
    """A model that is ready to run.

    Attributes
    ----------
    compiled : Compiled or None
        What the last run executed.
    """

    def __init__(
        self, model: onnx.ModelProto, device: str, config: str | weft.Config, refusal: type[Unsupported]
    ) -> None:
        self._refusal = refusal
        self._model = model
        self._device = DEVICES[device]
        self._config = config
        given = {tensor.name for tensor in model.graph.initializer}
        self._inputs = [value.name for value in model.graph.input if value.name not in given]
        self._single = len(model.graph.node) == 1
        self.compiled: Compiled | None = None if self._single else self._compile(model, None)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run on `inputs`: a sequence in the model's order, a mapping by name, or one array.

        Raises
        ------
        Unsupported
            If the model cannot be compiled for these inputs.
        weft.api.InputError
            If an input of a model of several nodes is missing or has another dtype or shape.
        """
        values = self._named(inputs)
        if self._single:
            self.compiled = self._for_data(values)
        assert self.compiled is not None
        program = self.compiled.program
        feeds = {name: values[name] for name in program.inputs if name in values}
        found = program.run(feeds, on=self._device, **kwargs).outputs
        return tuple(found[value.name] for value in self._model.graph.output)

    def _named(self, inputs: Any) -> dict[str, np.ndarray]:
        if isinstance(inputs, Mapping):
            pairs = dict(inputs)
        else:
            many = inputs if isinstance(inputs, Sequence) else (inputs,)
            if len(many) != len(self._inputs):
                raise self._refusal(f"{len(many)} inputs were given; the model reads {len(self._inputs)}")
            pairs = dict(zip(self._inputs, many, strict=True))
        return {name: self._array(name, value) for name, value in pairs.items()}

    def _for_data(self, values: dict[str, np.ndarray]) -> Compiled:
        """The program for a single operator and its data."""
        node = self._model.graph.node[0]
        if node.op_type in NATIVE:
            return self._compile(bind(self._model, values), None)
        try:
            wrapped = wrap(self._model, values)
        except CompileError as error:
            raise self._refusal(str(error)) from None
        return self._compile(wrapped.model, wrapped.scales)

    def _compile(self, model: onnx.ModelProto, scales: dict[str, float] | None) -> Compiled:
        try:
            program = weft.compile(model, self._config)
            return Compiled(program, program.assignment, scales)
        except CompileError as error:
            raise self._refusal(str(error)) from None

    def _array(self, name: str, value: Any) -> np.ndarray:
        if isinstance(value, onnx.TensorProto):
            return onnx.numpy_helper.to_array(value)
        if not isinstance(value, np.ndarray | np.generic):
            raise self._refusal(f"input {name!r} is not a tensor but {type(value).__name__}")
        return np.asarray(value)


class WeftBackend(Backend):
    """`onnx.backend.base.Backend` with the devices of `DEVICES`; `config` is a preset's name or a configuration."""

    refusal: ClassVar[type[Unsupported]] = Unsupported
    """What is raised for models that it does not run."""

    @classmethod
    def prepare(
        cls,
        model: onnx.ModelProto,
        device: str = "golden",
        config: str | weft.Config = "small",
        **kwargs: Any,
    ) -> WeftRep:
        """Check a model and compile it, or, if it is a single operator, leave that to the first run.

        Raises
        ------
        Unsupported
            If the device is unknown or the model cannot be compiled.
        """
        if not cls.supports_device(device):
            raise cls.refusal(f"unknown device {device!r}; choose {', '.join(map(repr, DEVICES))}")
        return WeftRep(model, device, config, cls.refusal)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device in DEVICES


class TestedBackend(WeftBackend):
    """The same for `onnx.backend.test.BackendTest`: what is refused counts as skipped."""

    __test__ = False  # of pytest
    refusal = Skipped


prepare = WeftBackend.prepare
run_model = WeftBackend.run_model
supports_device = WeftBackend.supports_device
