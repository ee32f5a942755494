"""TFLite files for tests, written with the builders of the `tflite` package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import tflite

TYPES = {
    "float32": "FLOAT32", "float16": "FLOAT16", "int4": "INT4", "int8": "INT8", "uint8": "UINT8", "int16": "INT16",
    "int32": "INT32", "int64": "INT64", "bool": "BOOL", "resource": "RESOURCE",
}  # fmt: skip


@dataclass
class _Tensor:
    name: str
    shape: tuple[int, ...]
    dtype: str
    scale: Sequence[float]
    zero: Sequence[int]
    axis: int
    data: bytes | None
    changes: dict[str, Any]


@dataclass
class _Operator:
    name: str
    inputs: Sequence[int]
    outputs: Sequence[int]
    kind: str
    options: dict[str, Any]
    code: int | None = None
    intermediates: Sequence[int] = ()


@dataclass
class Model:
    """A file under construction; `write` returns its bytes. Wrong fields may be given to `write` or `tensor`."""

    tensors: list[_Tensor] = field(default_factory=list)
    operators: list[_Operator] = field(default_factory=list)

    def tensor(
        self,
        shape: Sequence[int],
        dtype: str = "int8",
        scale: float | Sequence[float] | np.ndarray | None = None,
        zero: int | Sequence[int] | np.ndarray = 0,
        *,
        axis: int = 0,
        data: np.ndarray | bytes | None = None,
        name: str | None = None,
        **changes: Any,
    ) -> int:
        """Add a tensor, constant if it has data; return its index."""
        scales = () if scale is None else np.atleast_1d(np.asarray(scale, np.float32)).tolist()
        zeros = () if scale is None else np.atleast_1d(np.asarray(zero)).tolist()
        raw = data if isinstance(data, bytes | None) else np.ascontiguousarray(data).tobytes()
        name = f"t{len(self.tensors)}" if name is None else name
        self.tensors.append(_Tensor(name, tuple(shape), dtype, scales, zeros, axis, raw, changes))
        return len(self.tensors) - 1

    def constant(self, values: Any, dtype: str = "int32") -> int:
        array = np.asarray(values, dtype)
        return self.tensor(array.shape, dtype, data=array)

    def operator(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        kind: str = "",
        intermediates: Sequence[int] = (),
        **options: Any,
    ) -> None:
        """Add an operator, with options of the class `kind`Options."""
        kind = kind and f"{kind}Options"
        self.operators.append(_Operator(name, inputs, outputs, kind, options, None, intermediates))

    def write(self, inputs: Sequence[int], outputs: Sequence[int], **changes: Any) -> bytes:
        """Return the file. `changes` are of `version`, `subgraphs` (number of copies), and `others`, models that become
        further subgraphs, without inputs and outputs."""
        b = flatbuffers.Builder(1024)
        graphs = (self, *changes.get("others", ()))
        names = list(dict.fromkeys(operator.name for graph in graphs for operator in graph.operators))
        contents = [item.data for graph in graphs for item in graph.tensors]
        buffers = [self._buffer(b, None), *(self._buffer(b, data) for data in contents)]
        first = self._subgraph(b, names, 0, inputs, outputs)
        behind, at = [], len(self.tensors)
        for graph in graphs[1:]:
            behind.append(graph._subgraph(b, names, at, (), ()))
            at += len(graph.tensors)
        codes = [self._code(b, name) for name in names]
        fields = {
            "OperatorCodes": _offsets(b, "Model", "OperatorCodes", codes),
            "Subgraphs": _offsets(b, "Model", "Subgraphs", [first] * changes.get("subgraphs", 1) + behind),
            "Buffers": _offsets(b, "Model", "Buffers", buffers),
            "Version": changes.get("version", 3),
        }
        b.Finish(_table(b, "Model", fields), b"TFL3")
        return bytes(b.Output())

    def _subgraph(
        self,
        b: flatbuffers.Builder,
        names: list[str],
        at: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
    ) -> int:
        """Write the subgraph; its tensors' buffers follow `at` others."""
        tensors = [self._tensor(b, at + index, item) for index, item in enumerate(self.tensors)]
        operators = [self._operator(b, names.index(item.name), item) for item in self.operators]
        parts = [_numbers(b, "SubGraph", "Inputs", inputs), _numbers(b, "SubGraph", "Outputs", outputs)]
        parts += [
            _offsets(b, "SubGraph", "Tensors", tensors),
            _offsets(b, "SubGraph", "Operators", operators),
        ]
        return _table(
            b, "SubGraph", dict(zip(("Inputs", "Outputs", "Tensors", "Operators"), parts, strict=True))
        )

    def _buffer(self, b: flatbuffers.Builder, data: bytes | None) -> int:
        if data is None:
            return _table(b, "Buffer", {})
        b.StartVector(1, len(data), 16)  # as LiteRT wants it
        b.head -= len(data)
        b.Bytes[b.head : b.head + len(data)] = data
        return _table(b, "Buffer", {"Data": b.EndVector()})

    def _tensor(self, b: flatbuffers.Builder, at: int, item: _Tensor) -> int:
        fields: dict[str, Any] = {
            "Name": b.CreateString(item.name),
            "Type": getattr(tflite.TensorType, TYPES.get(item.dtype, item.dtype)),
        }
        fields["Shape"] = _numbers(b, "Tensor", "Shape", item.shape)
        fields["Buffer"] = at + 1 if item.data is not None else 0
        if item.scale:
            parts = {
                "Scale": _numbers(b, "QuantizationParameters", "Scale", item.scale, "PrependFloat32"),
                "ZeroPoint": _numbers(b, "QuantizationParameters", "ZeroPoint", item.zero, "PrependInt64"),
            }
            fields["Quantization"] = _table(
                b, "QuantizationParameters", parts | {"QuantizedDimension": item.axis}
            )
        return _table(b, "Tensor", fields | item.changes)

    def _operator(self, b: flatbuffers.Builder, code: int, item: _Operator) -> int:
        fields: dict[str, Any] = {
            "OpcodeIndex": code if item.code is None else item.code,
            "Inputs": _numbers(b, "Operator", "Inputs", item.inputs),
            "Outputs": _numbers(b, "Operator", "Outputs", item.outputs),
        }
        if item.intermediates:
            fields["Intermediates"] = _numbers(b, "Operator", "Intermediates", item.intermediates)
        if item.kind:
            fields["BuiltinOptionsType"] = getattr(tflite.BuiltinOptions, item.kind)
            options = {
                name: b.CreateString(value) if isinstance(value, str) else value
                for name, value in item.options.items()
            }
            fields["BuiltinOptions"] = _table(b, item.kind, options)
        return _table(b, "Operator", fields)

    def _code(self, b: flatbuffers.Builder, name: str) -> int:
        custom = b.CreateString(name.removeprefix("CUSTOM ")) if name.startswith("CUSTOM ") else None
        code = (
            tflite.BuiltinOperator.CUSTOM
            if custom is not None
            else getattr(tflite.BuiltinOperator, name, None)
        )
        code = int(name.rpartition(" ")[2]) if code is None else code
        fields: dict[str, Any] = {
            "BuiltinCode": code,
            "DeprecatedBuiltinCode": min(code, 127),
            "Version": 2 if name == "BROADCAST_TO" else 1,
        }
        return _table(b, "OperatorCode", fields | ({} if custom is None else {"CustomCode": custom}))


def _table(b: flatbuffers.Builder, kind: str, fields: dict[str, Any]) -> int:
    """Write a table, whose fields are numbers or offsets."""
    getattr(tflite, f"{kind}Start")(b)
    for name, value in fields.items():
        getattr(tflite, f"{kind}Add{name}")(b, value)
    return getattr(tflite, f"{kind}End")(b)


def _numbers(
    b: flatbuffers.Builder, kind: str, name: str, values: Sequence[float], add: str = "PrependInt32"
) -> int:
    getattr(tflite, f"{kind}Start{name}Vector")(b, len(values))
    for value in reversed(values):
        getattr(b, add)(value)
    return b.EndVector()


def _offsets(b: flatbuffers.Builder, kind: str, name: str, values: Sequence[int]) -> int:
    return _numbers(b, kind, name, values, "PrependUOffsetTRelative")
