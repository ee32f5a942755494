"""Models of functions of one int8 or uint8 value, and their bytes by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper

from support.graph_runs import device_ops, run_graph
from support.qdq_models import Builder
from weft.compiler.frontend import import_model
from weft.compiler.ir.model import Graph

KINDS = {np.int8: TensorProto.INT8, np.uint8: TensorProto.UINT8}


class Chain(Builder):
    """Builder of a model from int8 or uint8 `source` (all 256 values in `shape`) to bytes again.

    `value` is the dequantised source; `finish_with` returns the model of a value computed from it.
    """

    def __init__(
        self,
        scale: float = 0.05,
        zero: int = 0,
        dtype: type[np.integer] = np.int8,
        opset: int = 24,
        shape: tuple[int, ...] = (1, 4, 8, 8),
    ) -> None:
        super().__init__(np.random.default_rng(0), opset)
        self.shape, self.dtype = shape, dtype
        self.inputs.append(helper.make_tensor_value_info("source", KINDS[dtype], shape))
        self.value = self.add_dequantise("source", scale, zero, dtype)
        self.outputs: list[onnx.ValueInfoProto] = []

    def number(self, value: float) -> str:
        return self.constant(np.float32(value))

    def apply(self, op: str, *inputs: str | float, **attributes: Any) -> str:
        names = [name if isinstance(name, str) else self.number(name) for name in inputs]
        return self.node(op, names, **attributes)

    def add_quantise(self, value: str, scale: float, zero: int = 0, dtype: type[np.integer] = np.int8) -> str:
        return self.node("QuantizeLinear", [value, self.number(scale), self.constant(np.array(zero, dtype))])

    def add_dequantise(
        self, value: str, scale: float, zero: int = 0, dtype: type[np.integer] = np.int8
    ) -> str:
        return self.node(
            "DequantizeLinear", [value, self.number(scale), self.constant(np.array(zero, dtype))]
        )

    def round_trip(self, value: str, scale: float = 0.03, zero: int = 3) -> str:
        """Pass a value through a Q/DQ pair."""
        return self.add_dequantise(self.add_quantise(value, scale, zero), scale, zero)

    def give(self, value: str, kind: int, shape: tuple[int, ...] | None = None) -> None:
        """Make a value an output."""
        self.outputs.append(helper.make_tensor_value_info(value, kind, shape or self.shape))

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "chain", self.inputs, self.outputs, self.constants)
        domains = (("", self.opset), ("com.microsoft", 1), ("ai.onnx.ml", 4))
        opsets = [helper.make_opsetid(*domain) for domain in domains]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def finish_with(
        self, value: str, scale: float = 0.02, zero: int = 5, dtype: type[np.integer] = np.int8
    ) -> onnx.ModelProto:
        self.give(self.add_quantise(value, scale, zero, dtype), KINDS[dtype])
        return self.model()

    @property
    def feeds(self) -> dict[str, npt.NDArray[Any]]:
        """Return each of the 256 values once, in order if the shape has as many elements."""
        every = np.arange(256).astype(np.uint8).view(self.dtype)
        return {"source": np.resize(every, self.shape)}


def run_ort(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)


def check(model: onnx.ModelProto, feeds: dict[str, np.ndarray], steps: int = 0) -> Graph:
    """Import a model and check that it gives ONNX Runtime's bytes, with `steps` other operators beside look-ups."""
    graph = import_model(model)
    given = run_graph(graph, feeds)
    for output, expected in zip(model.graph.output, run_ort(model, feeds), strict=True):
        assert given[output.name].dtype == expected.dtype
        assert np.abs(given[output.name].astype(float) - expected).max() <= steps, output.name
    return graph


def one_table(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> Graph:
    """Check that a model becomes one look-up on the device, with ONNX Runtime's bytes."""
    graph = check(model, feeds)
    assert [type(op).__name__ for op in device_ops(graph)] == ["Rescale"]
    assert device_ops(graph)[0].lookup is not None
    assert {place for _, _, place, _ in graph.assignment} == {"device"}
    return graph


Step = Callable[[Chain, str], str]


def silu(chain: Chain, x: str) -> str:
    return chain.apply("Mul", x, chain.apply("Sigmoid", x))


def gelu_erf(chain: Chain, x: str) -> str:
    """Add GELU as exporters write it: five nodes."""
    inner = chain.apply("Add", chain.apply("Erf", chain.apply("Div", x, 2**0.5)), 1.0)
    return chain.apply("Mul", chain.apply("Mul", x, inner), 0.5)


def gelu_tanh(chain: Chain, x: str) -> str:
    """Add GELU's tanh approximation: eight nodes."""
    cube = chain.apply("Mul", chain.apply("Pow", x, 3.0), 0.044715)
    inner = chain.apply("Mul", chain.apply("Add", x, cube), float((2 / np.pi) ** 0.5))
    return chain.apply("Mul", chain.apply("Mul", x, 0.5), chain.apply("Add", chain.apply("Tanh", inner), 1.0))


def hard_swish(chain: Chain, x: str) -> str:
    clipped = chain.apply("Clip", chain.apply("Add", x, 3.0), 0.0, 6.0)
    return chain.apply("Div", chain.apply("Mul", x, clipped), 6.0)


def mish(chain: Chain, x: str) -> str:
    return chain.apply("Mul", x, chain.apply("Tanh", chain.apply("Softplus", x)))


def softplus(chain: Chain, x: str) -> str:
    """Add softplus with the threshold that exporters write."""
    long = chain.apply("Log", chain.apply("Add", chain.apply("Exp", x), 1.0))
    return chain.apply("Where", chain.apply("Greater", x, 20.0), x, long)


WRITTEN_OUT: dict[str, Step] = {
    "silu": silu, "gelu of five": gelu_erf, "gelu of eight": gelu_tanh, "hard swish": hard_swish, "mish": mish,
    "softplus": softplus,
}  # fmt: skip
