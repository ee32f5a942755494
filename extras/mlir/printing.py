"""TOSA operations as xDSL objects, in order, and their text."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from xdsl.dialects import builtin, func
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.printer import Printer

from weft.extras.mlir import forms
from weft.extras.mlir.attributes import Elements, tensor_type

_LISTS = {"perms": builtin.i32}
"""Element types of list attributes that are not i64."""


class Ssa(NamedTuple):
    """A value with numpy's name of its element type, and its shape."""

    value: SSAValue
    dtype: str
    shape: tuple[int, ...]


class Body:
    """Body of a function under construction."""

    def __init__(self, arguments: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        self.types = [tensor_type(dtype, shape) for dtype, shape in arguments]
        self.block = Block(arg_types=self.types)
        self.arguments = [
            Ssa(value, dtype, shape) for value, (dtype, shape) in zip(self.block.args, arguments, strict=True)
        ]
        self._constants: dict[tuple[str, tuple[int, ...], bytes], Ssa] = {}
        self._shapes: dict[tuple[int, ...], SSAValue] = {}

    def op(
        self,
        name: str,
        operands: Sequence[Ssa | SSAValue],
        dtype: str,
        shape: Sequence[int],
        **attributes: Any,
    ) -> Ssa:
        """Add an operation with one result."""
        values = [item.value if isinstance(item, Ssa) else item for item in operands]
        type_ = tensor_type(dtype, tuple(shape))
        result = self._add(
            name, values, type_, {key: _attribute(key, item) for key, item in attributes.items()}
        )
        return Ssa(result, dtype, tuple(shape))

    def _add(
        self, name: str, values: Sequence[SSAValue], type_: Attribute, properties: Mapping[str, Attribute]
    ) -> SSAValue:
        kind = builtin.UnregisteredOp.with_name(name)
        op = kind.create(operands=values, result_types=[type_], properties=dict(properties))
        self.block.add_op(op)
        return op.results[0]

    def constant(self, values: np.ndarray) -> Ssa:
        """Add a constant, or return an equal one."""
        key = (values.dtype.name, values.shape, values.tobytes())
        if key not in self._constants:
            type_ = tensor_type(values.dtype.name, values.shape)
            value = self._add(
                "tosa.const", [], type_, {"values": Elements((np.ascontiguousarray(values), type_))}
            )
            self._constants[key] = Ssa(value, values.dtype.name, values.shape)
        return self._constants[key]

    def number(self, value: int, dtype: str = "int8") -> Ssa:
        """Add a list of one number, as zero points are."""
        return self.constant(np.array([value], dtype))

    def sizes(self, numbers: Sequence[int]) -> SSAValue:
        """Add a shape, or another list of sizes."""
        key = tuple(int(number) for number in numbers)
        if key not in self._shapes:
            values = Elements((np.array(key, np.int64), tensor_type("int64", (len(key),), index=True)))
            self._shapes[key] = self._add("tosa.const_shape", [], _shape_type(len(key)), {"values": values})
        return self._shapes[key]

    # Movement

    def reshape(self, x: Ssa, shape: Sequence[int]) -> Ssa:
        if tuple(shape) == x.shape:
            return x
        return self.op("tosa.reshape", (x, self.sizes(shape)), x.dtype, shape)

    def transpose(self, x: Ssa, perm: Sequence[int]) -> Ssa:
        if tuple(perm) == tuple(range(len(perm))):
            return x
        return self.op("tosa.transpose", (x,), x.dtype, [x.shape[axis] for axis in perm], perms=list(perm))

    def slice(self, x: Ssa, starts: Sequence[int], shape: Sequence[int]) -> Ssa:
        if tuple(shape) == x.shape:
            return x
        return self.op("tosa.slice", (x, self.sizes(starts), self.sizes(shape)), x.dtype, shape)

    def concat(self, parts: Sequence[Ssa], axis: int) -> Ssa:
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.op("tosa.concat", parts, parts[0].dtype, shape, axis=axis)

    def form(self, term: forms.Node, values: Mapping[str, Any]) -> Ssa:
        """Add the operations of a pattern, with values for its holes and numbers."""
        return self._form(term, values, {})

    def _form(self, term: forms.Node, values: Mapping[str, Any], results: dict[int, Ssa]) -> Ssa:
        if isinstance(term, forms.Hole):
            value: Ssa = values[term.name]
            return value
        if isinstance(term, forms.Number):
            numbers = np.asarray(values.get(term.name, forms.CONSTANTS.get(term.name)), term.dtype).reshape(
                -1
            )
            # TOSA broadcasts only between equal ranks, and images have four axes.
            return self.constant(numbers if term.listed else numbers.reshape(1, 1, 1, -1))
        if id(term) not in results:
            parts = [self._form(part, values, results) for part in term.args]
            attributes = dict(term.attributes)
            if term.op == "tosa.rescale":
                attributes["per_channel"] = parts[1].shape != (1,)
                shape: tuple[int, ...] = parts[0].shape
            else:
                shape = np.broadcast_shapes(*(part.shape for part in parts if len(part.shape) == 4))
            results[id(term)] = self.op(term.op, parts, term.dtype, shape, **attributes)
        return results[id(term)]


def _shape_type(rank: int) -> Attribute:
    return builtin.UnregisteredAttr.with_name_and_type("tosa.shape", True)(
        "tosa.shape", True, False, str(rank)
    )


def _attribute(key: str, value: Any) -> Attribute:
    """Return an attribute in TOSA's form."""
    if isinstance(value, bool):
        return builtin.BoolAttr.from_bool(value)
    if isinstance(value, list):
        return builtin.DenseArrayBase.from_list(_LISTS.get(key, builtin.i64), value)
    # `acc_type` is a type; the only other text is a rounding mode.
    if isinstance(value, str) and value.startswith("i"):
        return builtin.IntegerType(int(value[1:]))
    if isinstance(value, str):
        kind = builtin.UnregisteredAttr.with_name_and_type("tosa.rounding_mode", False)
        return kind("tosa.rounding_mode", False, False, value)
    # The bounds of a clamp have the type of its elements.
    return builtin.IntegerAttr(
        value, builtin.IntegerType(8) if key in ("min_val", "max_val") else builtin.i32
    )


def module_text(
    body: Body,
    results: Sequence[Ssa],
    argument_notes: Sequence[Mapping[str, Any]],
    result_notes: Sequence[Mapping[str, Any]],
) -> str:
    """Return the text of a module whose function ``main`` has this body."""
    body.block.add_op(func.ReturnOp(*(result.value for result in results)))
    type_ = builtin.FunctionType.from_lists(body.types, [result.value.type for result in results])
    function = func.FuncOp(
        "main", type_, Region(body.block), arg_attrs=_notes(argument_notes), res_attrs=_notes(result_notes)
    )
    module: Operation = builtin.ModuleOp([function])
    stream = io.StringIO()
    Printer(stream=stream).print_op(module)
    return stream.getvalue() + "\n"


def _notes(notes: Sequence[Mapping[str, Any]]) -> builtin.ArrayAttr[builtin.DictionaryAttr]:
    def attribute(value: Any) -> Attribute:
        if isinstance(value, str):
            return builtin.StringAttr(value)
        if isinstance(value, float):
            return builtin.FloatAttr(value, builtin.f64)
        return builtin.IntegerAttr(value, builtin.i32)

    return builtin.ArrayAttr(
        builtin.DictionaryAttr({key: attribute(value) for key, value in item.items()}) for item in notes
    )
