"""Parser of TFLite files, which are flatbuffers, with full validation; the only module that knows the format.

The packages `tflite` and `flatbuffers` follow any offset. Here all of their errors become sentences. A limit on the
bytes that are read stops files whose tables overlap.
"""

from __future__ import annotations

import functools
import inspect
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.network import MAX_ELEMENTS
from weft.compiler.ir.quantisation import Quantisation
from weft.hdl.isa import encoding
from weft.hdl.schema import printable

IDENTIFIER = b"TFL3"
"""Bytes 4 to 8 of every file."""
_BROKEN = (struct.error, LookupError, TypeError, ValueError, OverflowError, AttributeError, AssertionError)
"""Exceptions of the packages for invalid offsets."""
_OVERLAP = 16
"""Most bytes to read, as a multiple of the file's size: tensors may share contents."""
_SMALL = 1 << 16
"""Bytes that may be read of any file."""
_RANK = 64
"""Largest rank of a tensor, as in numpy."""
_SHOWN = 80
"""Characters of a name in a message."""
_DTYPES = {
    "FLOAT32": "float32", "FLOAT16": "float16", "FLOAT64": "float64", "BOOL": "bool", "INT4": "int4", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32",
    "UINT64": "uint64",
}  # fmt: skip
_INTEGERS = ("int4", "int8", "uint8", "int16", "int32", "int64")
"""Types of quantised values."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value of the graph.

    `dtype` is numpy's name of its type, or the file's if numpy has none. `data` holds the values of a constant, else
    None.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    quantisation: Quantisation | None
    data: np.ndarray | None
    variable: bool

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def label(self) -> str:
        """Name in messages."""
        return f"tensor {self.index} ({printable(self.name, _SHOWN)!r})"


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator. `inputs` has -1 for omitted inputs; `options` has numbers and texts."""

    index: int
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, float | str]

    @property
    def label(self) -> str:
        """Name in messages."""
        return f"operator {self.index} ({self.name})"


@dataclass(frozen=True, eq=False)
class File:
    """First subgraph of a file: operators in execution order, inputs and outputs as indices of tensors.

    `once` are the subgraphs that its CALL_ONCE operators call, by index.
    """

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    once: Mapping[int, File] = field(default_factory=dict)


def parse(data: bytes, label: str) -> File:
    """Parse the bytes of a file, which messages call `label`.

    Raises
    ------
    CompileError
        If they are no TFLite file, damaged, or contain unsupported parts: several subgraphs, sparse tensors.
    """
    if data[4:8] != IDENTIFIER:
        identifier = repr(data[4:8])[1:] if data[4:8] else "missing"
        raise CompileError(
            f"{label} is not a TFLite model: its bytes 4 to 8 must be 'TFL3', but are {identifier}"
        )
    try:
        return _Parser(data).file()
    except CompileError:
        raise
    except _BROKEN as error:
        why = printable(str(error).splitlines()[0] if str(error) else type(error).__name__, _SHOWN)
        raise CompileError(
            f"{label} is truncated or damaged: it cannot be read as a TFLite model ({why})"
        ) from None


class _Parser:
    """Parser of one file, with a limit on the bytes that it reads."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = _OVERLAP * len(data) + _SMALL

    def file(self) -> File:
        model = _library().Model.GetRootAs(self._data)
        if model.Version() != 3:
            raise CompileError(
                f"the file is of version {model.Version()} of the TFLite format; weft reads version 3"
            )
        count = model.SubgraphsLength()
        codes = [_operator_name(model.OperatorCodes(at)) for at in self._range(model.OperatorCodesLength())]
        main = self._graph(model, codes, 0) if count else None
        indices = set() if main is None else {_called_subgraph(item) for item in main.operators} - {None}
        if main is None or len(indices) != count - 1 or not all(at in range(1, count) for at in indices):
            raise CompileError(
                f"the file has {count} subgraphs; weft reads the first, whose CALL_ONCE operators must call all others"
            )
        return replace(main, once={at: self._graph(model, codes, at) for at in range(1, count)})

    def _graph(self, model: Any, codes: list[str], at: int) -> File:
        graph = model.Subgraphs(at)
        tensors = tuple(
            self._tensor(model, graph.Tensors(at), at) for at in self._range(graph.TensorsLength())
        )
        operators = tuple(
            self._operator(codes, graph.Operators(at), at) for at in self._range(graph.OperatorsLength())
        )
        return File(tensors, operators, self._ints(graph.InputsAsNumpy()), self._ints(graph.OutputsAsNumpy()))

    def _range(self, count: int) -> range:
        """Return the indices of a vector of tables, which has an offset for each."""
        self._spend(4 * count)
        return range(count)

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ValueError("its tables overlap")

    def _array(self, vector: np.ndarray | int) -> np.ndarray:
        """Return a vector of numbers; the packages return 0 for a missing vector."""
        if isinstance(vector, int):
            return np.zeros(0, np.int64)
        self._spend(vector.nbytes)
        return vector

    def _ints(self, vector: np.ndarray | int) -> tuple[int, ...]:
        return tuple(self._array(vector).tolist())

    def _tensor(self, model: Any, table: Any, index: int) -> Tensor:
        name = table.Name() or b""
        self._spend(len(name) + 4 * table.ShapeLength())
        shape = self._ints(table.ShapeAsNumpy())
        text = printable(name.decode("utf-8", "backslashreplace")) or f"tensor_{index}"
        bare = Tensor(index, text, shape, _dtype(table.Type()), None, None, bool(table.IsVariable()))
        if len(shape) > _RANK:
            raise CompileError(f"{bare.label} has {len(shape)} dimensions; weft takes up to {_RANK}")
        sizes = "x".join(map(str, shape))
        if min(shape, default=1) < 0:
            raise CompileError(f"{bare.label} has shape {sizes}; sizes must not be negative")
        if math.prod(shape) > MAX_ELEMENTS:
            raise CompileError(
                f"{bare.label} has shape {sizes}, {math.prod(shape):,} elements; weft takes up to {MAX_ELEMENTS:,}"
            )
        if table.Sparsity() is not None:
            raise CompileError(f"{bare.label} is sparse; convert the model with dense tensors")
        quantisation = self._quantisation(table.Quantization(), bare)
        content = self._contents(model, table.Buffer(), bare)
        dtype = "int8" if content is not None and bare.dtype == "int4" else bare.dtype
        return Tensor(index, text, shape, dtype, quantisation, content, bare.variable)

    def _contents(self, model: Any, at: int, tensor: Tensor) -> np.ndarray | None:
        """Return the values of a constant; None for a tensor that an operator writes."""
        if at >= model.BuffersLength():
            raise CompileError(
                f"{tensor.label} has its contents in buffer {at}; the file has {model.BuffersLength()} buffers"
            )
        table = model.Buffers(at)
        start, size = table.Offset(), table.Size()
        if start > 1:  # large files have contents after the flatbuffer
            if start + size > len(self._data):
                raise CompileError(
                    f"{tensor.label} has its contents after the end of the file, at byte {start:,}"
                )
            raw = np.frombuffer(self._data, np.uint8, size, start)
        else:
            raw = np.asarray(self._array(table.DataAsNumpy()), np.uint8)
        # Buffer 0 is always empty: it marks a tensor that an operator writes.
        return _to_values(raw, tensor) if raw.size or (at and 0 in tensor.shape) else None

    def _quantisation(self, table: Any, tensor: Tensor) -> Quantisation | None:
        if table is None:
            return None
        if table.DetailsType():
            raise CompileError(
                f"{tensor.label} has quantisation parameters of a kind of its own, which weft does not read"
            )
        scales, zeros = self._array(table.ScaleAsNumpy()), self._array(table.ZeroPointAsNumpy())
        with np.errstate(invalid="ignore"):  # damaged scales may be NaN
            if not scales.any():  # tensors of shapes and axes may have scale 0
                return None
        axis = int(table.QuantizedDimension()) if scales.size > 1 else 0
        count = tensor.shape[axis] if 0 <= axis < tensor.rank else 1
        if scales.size not in (1, count):
            raise CompileError(
                f"{tensor.label} of shape {'x'.join(map(str, tensor.shape))} has {scales.size} scales along dimension "
                f"{axis}; it must have 1, or 1 per element there"
            )
        if zeros.size not in (0, 1, scales.size):
            raise CompileError(f"{tensor.label} has {scales.size} scales, but {zeros.size} zero points")
        bad = scales[~np.isfinite(scales) | (scales < 0)]
        if bad.size:
            raise CompileError(
                f"{tensor.label} has scale {bad[0]:g}; scales must be finite and not below zero"
            )
        _check_zeros(zeros, tensor)
        shape = () if scales.size == 1 else scales.shape
        # Values of 4 bits are stored in 8.
        dtype = {"int4": "int8"}.get(tensor.dtype, tensor.dtype if tensor.dtype in _INTEGERS else "int64")
        all_zeros = np.zeros(scales.size, dtype)
        all_zeros[:] = zeros if zeros.size else 0
        return Quantisation(scales.astype(np.float32).reshape(shape), all_zeros.reshape(shape), axis)

    def _operator(self, codes: list[str], table: Any, index: int) -> Operator:
        code = table.OpcodeIndex()
        if code >= len(codes):
            raise CompileError(f"operator {index} has code {code}; the file lists {len(codes)} codes")
        inputs, outputs = self._ints(table.InputsAsNumpy()), self._ints(table.OutputsAsNumpy())
        return Operator(index, codes[code], inputs, outputs, _options(table))


def _check_zeros(zeros: np.ndarray, tensor: Tensor) -> None:
    if not zeros.size or tensor.dtype not in _INTEGERS:
        return
    info = ml_dtypes.iinfo(tensor.dtype) if tensor.dtype == "int4" else np.iinfo(tensor.dtype)
    for zero in (int(zeros.min()), int(zeros.max())):
        if not info.min <= zero <= info.max:
            raise CompileError(
                f"{tensor.label} of type {tensor.dtype} has zero point {zero}, which it cannot hold"
            )


def _to_values(raw: np.ndarray, tensor: Tensor) -> np.ndarray:
    """Return bytes as an array of the tensor's type and shape. The lower half of a byte is the first int4 value."""
    count, dtype = math.prod(tensor.shape), tensor.dtype
    if dtype not in _DTYPES.values():
        return raw  # weft needs only its name
    size = (count + 1) // 2 if dtype == "int4" else count * np.dtype(dtype).itemsize
    if raw.size != size:
        raise CompileError(
            f"{tensor.label} of type {dtype} and shape {'x'.join(map(str, tensor.shape))} has {raw.size:,} bytes of "
            f"contents; it must have {size:,}"
        )
    if dtype == "int4":
        return encoding.unpack_int4(raw)[:count].reshape(tensor.shape)
    return raw.view(np.dtype(dtype).newbyteorder("<")).reshape(tensor.shape)


def _operator_name(table: Any) -> str:
    """Return an operator's name in the format, for custom operators with their own name."""
    # Old files have only the deprecated field of one byte, which new files leave at its limit for larger codes.
    code = max(table.BuiltinCode(), table.DeprecatedBuiltinCode())
    name = _names("BuiltinOperator").get(code, f"unknown code {code}")
    if name == "CUSTOM":
        custom = (table.CustomCode() or b"")[:_SHOWN].decode("utf-8", "replace")
        return f"CUSTOM {printable(custom, _SHOWN)!r}"
    return name


def _dtype(code: int) -> str:
    name = _names("TensorType").get(code, f"unknown type {code}")
    return _DTYPES.get(name, name)


def _options(table: Any) -> dict[str, float | str]:
    """Return all numbers and texts among an operator's options, by the format's names."""
    kind = _names("BuiltinOptions").get(table.BuiltinOptionsType(), "NONE")
    union = table.BuiltinOptions()
    if kind == "NONE" or union is None:
        return {}
    options = getattr(_library(), kind)()
    options.Init(union.Bytes, union.Pos)
    values = {name: read(options) for name, read in _fields(kind)}
    texts = {name: value for name, value in values.items() if isinstance(value, bytes)}
    numbers = {name: value for name, value in values.items() if isinstance(value, bool | int | float)}
    return numbers | {name: value.decode("utf-8", "backslashreplace") for name, value in texts.items()}


def _called_subgraph(operator: Operator) -> int | None:
    """Return the subgraph that an operator calls before the first run; None for other operators."""
    return int(operator.options.get("InitSubgraphIndex", 0)) if operator.name == "CALL_ONCE" else None


@functools.cache
def _fields(kind: str) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    """Return the methods of a class of options that return a field: those without arguments,
    helpers of vectors aside.
    """

    def fields() -> Iterator[tuple[str, Callable[[Any], Any]]]:
        for name, method in inspect.getmembers(getattr(_library(), kind), inspect.isfunction):
            if list(inspect.signature(method).parameters) == ["self"] and not name.endswith(
                ("AsNumpy", "IsNone")
            ):
                yield name, method

    return tuple(fields())


@functools.cache
def _names(enumeration: str) -> dict[int, str]:
    return {
        value: name
        for name, value in vars(getattr(_library(), enumeration)).items()
        if isinstance(value, int)
    }


@functools.cache
def _library() -> ModuleType:
    """Return the package of the format. Its import is slow, so it happens on first use."""
    import tflite

    return tflite
