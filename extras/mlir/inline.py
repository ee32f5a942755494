"""The main function of a module as a `weft.extras.mlir.program.Program`, with all calls inlined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xdsl.dialects import builtin, func
from xdsl.ir import Block, Operation, SSAValue
from xdsl.utils.exceptions import ParseError, VerifyException

from weft.compiler.errors import CompileError
from weft.extras.mlir.attributes import Resource, parse_type, plain
from weft.extras.mlir.program import WRITTEN_OUT, Op, Program, TensorType, Value
from weft.extras.mlir.text import Reader

_DEPTH = 64
"""Largest depth of nested calls."""
_RETURNS = ("func.return", "stablehlo.return", "return")


def parse_program(text: str, label: str) -> Program:
    """Return the function ``main`` of a module, or its only public function; messages call the module `label`.

    Raises
    ------
    CompileError
        If the text is not MLIR, or weft does not read some part of it.
    """
    reader = Reader(text, label)
    try:
        module = reader.parse_module()
    except ParseError as error:
        line = text.count("\n", 0, error.span.start) + 1
        message = " ".join(error.msg.split())[:200] or "it is not MLIR"
        raise CompileError(
            f"{label}, line {line}: {message}; weft reads StableHLO and TOSA as MLIR text"
        ) from None
    except RecursionError:
        raise CompileError(
            f"{label}, line {reader.line}: brackets are nested too deep; print the module again"
        ) from None
    # xDSL raises these, also by assertions, for text that it does not expect.
    except (
        VerifyException,
        ValueError,
        TypeError,
        KeyError,
        AssertionError,
        NotImplementedError,
        IndexError,
    ) as error:
        # A CompileError is a ValueError, and has the place already.
        if isinstance(error, CompileError):
            raise
        message = " ".join(str(error).split())[:200]
        raise CompileError(f"{label}, line {reader.line}: {message or 'this is not MLIR'}") from None
    return _Inliner(reader, module, label).program()


class _Inliner:
    """Converter of a function and of the functions that it calls."""

    def __init__(self, reader: Reader, module: builtin.ModuleOp, label: str) -> None:
        self.reader, self.label = reader, label
        self.functions = {op.sym_name.data: op for op in _functions(module)}
        self.ops: list[Op] = []
        self.count = 0
        names = {_name(op).partition(".")[0] for op in reader.lines}
        # TOSA's operations take stored numbers and explicit zero points; quantised types only annotate them.
        self.raw = "tosa" in names and "stablehlo" not in names

    def program(self) -> Program:
        main = self._main()
        block = main.body.blocks.first
        if block is None:
            raise CompileError(f"{self.label}: function {main.sym_name.data!r} has no body")
        if len(main.body.blocks) > 1:
            raise CompileError(
                f"{self.label}: function {main.sym_name.data!r} has branches; weft reads one block"
            )
        line = self.reader.lines.get(main, 1)
        arguments = tuple(
            Value(argument.name_hint or f"input{at}", self._type(argument, line))
            for at, argument in enumerate(block.args)
        )
        results = self._run(block, arguments, 0)
        counts = len(arguments), len(results)
        notes = (
            _notes(attributes, count)
            for attributes, count in zip((main.arg_attrs, main.res_attrs), counts, strict=True)
        )
        return Program(tuple(self.ops), arguments, tuple(results), *notes)

    def _main(self) -> func.FuncOp:
        if "main" in self.functions:
            return self.functions["main"]
        public = [
            op
            for op in self.functions.values()
            if op.sym_visibility is None or op.sym_visibility.data != "private"
        ]
        if len(public) == 1:
            return public[0]
        names = ", ".join(sorted(self.functions)[:8]) or "none"
        raise CompileError(
            f"{self.label} must have a function main, or one alone that is not private; it has {names}"
        )

    def _run(self, block: Block, arguments: Sequence[Value], depth: int) -> list[Value]:
        """Convert a block whose arguments have the values `arguments`; return the values that it returns."""
        known: dict[SSAValue, Value] = dict(zip(block.args, arguments, strict=True))
        for op in block.ops:
            # Calls of calls multiply: count what is written out, before it fills the memory.
            self.count += 1
            line = self.reader.lines.get(op, 0)
            if self.count > WRITTEN_OUT:
                raise CompileError(
                    f"line {line}: calls make more than {WRITTEN_OUT:,} operations; weft takes up to that many"
                )
            operands = [self._look_up(known, value, op) for value in op.operands]
            name = _name(op)
            if name in _RETURNS:
                return operands
            if name in ("func.call", "call"):
                results = self._call(op, operands, depth)
            else:
                outputs = tuple(
                    Value(result.name_hint or "", self._type(result, line)) for result in op.results
                )
                self.ops.append(
                    Op(name, line, tuple(operands), outputs, self._attributes(op), self._body(op))
                )
                results = list(outputs)
            known.update(zip(op.results, results, strict=True))
        raise CompileError(f"{self.label}: a function ends without a return")

    def _call(self, op: Operation, operands: list[Value], depth: int) -> list[Value]:
        line, name = (
            self.reader.lines.get(op, 0),
            plain(op.properties.get("callee", op.attributes.get("callee", ""))),
        )
        callee = self.functions.get(name)
        block = None if callee is None else callee.body.blocks.first
        if callee is None or block is None or len(callee.body.blocks) > 1:
            raise CompileError(
                f"line {line}: func.call calls {name!r}, of which the file has no body of one block"
            )
        if depth >= _DEPTH:
            raise CompileError(f"line {line}: calls are more than {_DEPTH} deep; weft takes no recursion")
        if len(block.args) != len(operands) or any(
            not _equal_types(self._type(argument, line), operand.type)
            for argument, operand in zip(block.args, operands, strict=True)
        ):
            raise CompileError(f"line {line}: func.call gives {name!r} other arguments than it takes")
        results = self._run(block, operands, depth + 1)
        if len(results) != len(op.results):
            raise CompileError(
                f"line {line}: func.call takes {len(op.results)} results of {name!r}, which makes {len(results)}"
            )
        return results

    def _look_up(self, known: Mapping[SSAValue, Value], value: SSAValue, op: Operation) -> Value:
        operand = known.get(value)
        if operand is None:
            line = self.reader.lines.get(op, 0)
            raise CompileError(
                f"line {line}: {_name(op)} reads %{value.name_hint or '?'} before it is defined"
            )
        return operand

    def _body(self, op: Operation) -> tuple[Op, ...]:
        """Return the operations of an operation's region. Their values have names, but no types."""
        ops = []
        for region in op.regions:
            for block in region.blocks:
                values: dict[SSAValue, Value] = {}
                for at, argument in enumerate(block.args):
                    values[argument] = Value(f"argument{at}", TensorType("float32", ()))
                for inner in block.ops:
                    operands = tuple(
                        values.get(item, Value("outside", TensorType("float32", ())))
                        for item in inner.operands
                    )
                    results = tuple(Value("", TensorType("float32", ())) for _ in inner.results)
                    values.update(zip(inner.results, results, strict=True))
                    ops.append(Op(_name(inner), self.reader.lines.get(inner, 0), operands, results))
        return tuple(ops)

    def _type(self, value: SSAValue, line: int) -> TensorType:
        type_ = parse_type(value.type, f"line {line}")
        return TensorType(type_.dtype, type_.shape) if self.raw else type_

    def _attributes(self, op: Operation) -> dict[str, Any]:
        attributes = {**op.attributes, **op.properties}
        return {key: self._resolve(plain(value)) for key, value in attributes.items() if key != "op_name__"}

    def _resolve(self, value: Any) -> Any:
        return value.values(self.reader.resources) if isinstance(value, Resource) else value


def _functions(module: builtin.ModuleOp) -> list[func.FuncOp]:
    """Return all functions, including those in nested modules."""
    functions: list[func.FuncOp] = []
    for op in module.ops:
        if isinstance(op, func.FuncOp):
            functions.append(op)
        elif isinstance(op, builtin.ModuleOp):
            functions += _functions(op)
    return functions


def _name(op: Operation) -> str:
    return op.op_name.data if isinstance(op, builtin.UnregisteredOp) else op.name


def _equal_types(one: TensorType, other: TensorType) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape)


def _notes(attributes: Any, count: int) -> tuple[Mapping[str, Any], ...]:
    notes = plain(attributes) if attributes is not None else []
    return tuple(item if isinstance(item, dict) else {} for item in [*notes, *[{}] * count][:count])
