"""weft as a backend of the onnx package (`onnx.backend.base`), for its conformance suite and whoever speaks that API.

```python
from weft import onnx_backend

outputs = onnx_backend.run_model(model, inputs, device="golden", config="small")
```

A model of several nodes must be quantised, as for `weft.compile`. A model of one node is given its weights, scales and
zero points with its inputs, and is compiled for them (`weft.onnx_wrap`); where the device could not give exactly what
the operator is defined to give, it is refused.
"""

from __future__ import annotations

import unittest
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

import weft
from weft.api import Program
from weft.compiler.ir.graph import CompileError
from weft.onnx_wrap import NATIVE, bind, wrap

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
