"""MLIR text through xDSL's parser, with the forms of operations that exporters print, and constants as arrays."""

from __future__ import annotations

import bisect
import json
import math
import re
from typing import Any

import ml_dtypes
import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, TensorType, UnregisteredOp
from xdsl.dialects.func import Func
from xdsl.ir import Attribute, Operation
from xdsl.parser import Parser
from xdsl.parser.generic_parser import ParserState
from xdsl.utils.lexer import Input
from xdsl.utils.mlir_lexer import MLIRLexer, MLIRTokenKind

from weft.compiler.ir.graph import CompileError
from weft.extras.mlir.assembly import form
from weft.extras.mlir.literals import Elements, Plain, Resource, bits, of_hex
from weft.extras.mlir.program import DTYPES, OPERATIONS, check_shape

DIALECTS = ("stablehlo", "chlo", "tosa", "mhlo", "vhlo")
"""Dialects whose operations are read in the forms that exporters print."""


class _Lexer(MLIRLexer):
    """xDSL's lexer, which takes no time that grows without bounds for a string that does not end."""

    _unescaped_characters_regex = re.compile(r'"(?:[^"\\\n\v\f]++|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+"')


class Reader(Parser):
    """xDSL's parser, which also takes what JAX, PyTorch and MLIR's tools print. `lines` has the line of each operation,
    and `resources` the constants at the end of the file."""

    def __init__(self, text: str, what: str) -> None:
        context = Context(allow_unregistered=True)
        context.load_dialect(Builtin)
        context.load_dialect(Func)
        super().__init__(context, "", what)
        self._parser_state = ParserState(_Lexer(Input(text, what)))
        self._starts = [0]
        self._starts.extend(found.end() for found in re.finditer("\n", text))
        self._forms: dict[str, type[Operation]] = {}
        self.lines: dict[Operation, int] = {}
        self.resources: dict[str, str] = {}
        self._line = 1

    @property
    def line(self) -> int:
        """The line that the parser is at."""
        return bisect.bisect_right(self._starts, self._current_token.span.start)

    # Operations

    def parse_operation(self) -> Operation:
        line = self._line = self.line
        op = super().parse_operation()
        self.lines[op] = line
        if len(self.lines) > OPERATIONS:
            raise CompileError(
                f"the file has more than {OPERATIONS:,} operations; weft takes up to that many"
            )
        return op

    def _get_op_by_name(self, name: str) -> type[Operation]:
        if name.partition(".")[0] not in DIALECTS:
            found = super()._get_op_by_name(name)
            if issubclass(found, UnregisteredOp) and self._current_token.span.text != "(":
                raise CompileError(
                    f"line {self._line}: {name[:80]} is none that weft reads; "
                    "extras/mlir/operations.md lists the supported operations"
                )
            return found
        if name not in self._forms:
            self._forms[name] = form(name)
        return self._forms[name]

    def parse_optional_location(self) -> None:  # lines are known without them
        if self.parse_optional_characters("loc"):
            self._skip("(", ")")

    def _parse_alias_def(self) -> None:
        if not self._current_token.span.text.startswith("#loc"):
            return super()._parse_alias_def()
        self._consume_token()
        self.parse_punctuation("=")
        self.parse_optional_location()
        return None

    def _skip(self, opening: str, closing: str) -> None:
        """Leave out what is in brackets."""
        depth = 0
        while True:
            text, kind = self._current_token.span.text, self._current_token.kind
            if kind == MLIRTokenKind.EOF:
                self.raise_error("the text ends in the middle of brackets")
            depth += (text == opening) - (text == closing)
            self._consume_token()
            if not depth:
                return

    # Constants

    def parse_dense_int_or_fp_elements_attr(self, type: Any = None) -> Any:
        """``<...> : type`` behind the word dense."""
        where = self.where
        self.parse_punctuation("<", " in dense attribute")
        literal: Any = []
        text = self.parse_optional_str_literal()
        if text is None and self._current_token.span.text != ">":
            literal = self._numbers()
        self.parse_punctuation(">", " in dense attribute")
        if type is None:
            self.parse_punctuation(":", " in dense attribute")
            type = self.parse_type()
        shape, dtype = self._dense_type(type)
        values = of_hex(text, shape, dtype, where) if text is not None else self._array(literal, shape, dtype)
        return Elements((values, type))

    def _parse_builtin_dense_attr(self) -> Any:
        return self.parse_dense_int_or_fp_elements_attr(None)

    def _parse_builtin_dense_resource_attr(self) -> Any:
        where = self.where
        self.parse_punctuation("<")
        key = self.parse_identifier_or_str_literal()
        self.parse_punctuation(">")
        self.parse_punctuation(":")
        return Plain(Resource(key, *self._dense_type(self.parse_type()), where))

    def _parse_single_dialect_resources(self) -> None:
        self.parse_identifier()
        self.parse_punctuation(":")
        self.parse_comma_separated_list(self.Delimiter.BRACES, self._resource)

    def _resource(self) -> None:
        key = self.parse_identifier_or_str_literal()
        self.parse_punctuation(":")
        self.resources[key] = self.parse_str_literal()

    def _parse_external_resources(self) -> None:
        self._skip("{", "}")

    @property
    def where(self) -> str:
        """The place in the text, for messages."""
        return f"line {self.line}"

    def _dense_type(self, type_: Attribute) -> tuple[tuple[int, ...], str]:
        if not isinstance(type_, TensorType):
            self.raise_error("a constant must have the type of a tensor")
        dtype = DTYPES.get(str(type_.element_type), "")
        if not dtype:
            self.raise_error(f"weft reads no constants of {type_.element_type}")
        return check_shape(tuple(type_.get_shape()), self.where), dtype

    def _numbers(self) -> Any:
        """A number, or lists of them: at once if they are as JSON has them, as decimal numbers are."""
        content, start = self.lexer.input.content, self._current_token.span.start
        end = content.find(">", start)
        try:
            found = json.loads(content[start:end])
        except ValueError:
            return self._literal()
        self.lexer.pos = end
        self._parser_state.current_token = self.lexer.lex()
        return found

    def _literal(self) -> Any:
        """The same, number by number."""
        if self.parse_optional_punctuation("[") is None:
            return self._number()
        found: list[Any] = []
        while self.parse_optional_punctuation("]") is None:
            found.append(self._literal())
            if self.parse_optional_punctuation(",") is None:
                self.parse_punctuation("]")
                break
        return found

    def _number(self) -> Any:
        """One number; of floats in hexadecimal, which are bits, the text."""
        word = self.parse_optional_keyword_in(("true", "false"))
        if word is not None:
            return word == "true"
        negative = self.parse_optional_punctuation("-") is not None
        text = self._current_token.span.text
        if self._current_token.kind == MLIRTokenKind.INTEGER_LIT and text.lower().startswith("0x"):
            self._consume_token()
            return text
        number = self.parse_number(allow_boolean=False)
        return -number if negative else number

    def _array(self, literal: Any, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """What a literal stands for: lists must have the shape, one number is for all elements."""
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        try:
            values = np.array(bits(literal, kind))
            if not np.issubdtype(kind, np.integer) and kind != np.bool_:
                values = values.astype(np.float64)
            elif values.dtype.kind == "f" and values.size:
                self.raise_error(f"a constant of {dtype} has numbers with a point")
            with np.errstate(all="ignore"):
                converted = values.astype(kind)
            width = 8 * kind.itemsize
            ends = (
                (int(values.min()), int(values.max()))
                if np.issubdtype(kind, np.integer) and values.size
                else (0, 0)
            )
            if ends[0] < -(1 << (width - 1)) or ends[1] >= 1 << width:
                self.raise_error(f"a constant of {dtype} has numbers that do not fit")
        except (ValueError, TypeError, OverflowError):
            self.raise_error(f"a constant of {dtype} has lists of different lengths, or what is no number")
        if converted.ndim and converted.shape != shape and not (converted.size == 0 == math.prod(shape)):
            self.raise_error(f"a constant has lists of shape {converted.shape} for type {shape}")
        return np.broadcast_to(converted, shape) if not converted.ndim else converted.reshape(shape)
