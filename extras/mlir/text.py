"""MLIR text through xDSL's parser, extended by the assembly forms that exporters print."""

from __future__ import annotations

import bisect
import json
import math
import re
from collections.abc import Sequence
from typing import Any, cast

import ml_dtypes
import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, TensorType, UnregisteredOp
from xdsl.dialects.func import Func
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.parser import Parser
from xdsl.parser.generic_parser import ParserState
from xdsl.utils.lexer import Input
from xdsl.utils.mlir_lexer import MLIRLexer, MLIRTokenKind

from weft.compiler.errors import CompileError
from weft.extras.mlir.attributes import Elements, Plain, Resource, decode_float_bits, decode_hex, tensor_type
from weft.extras.mlir.program import DTYPES, OPERATIONS, check_shape


def form(name: str) -> type[Operation]:
    """Return an operation class with a parser of the operation's assembly form."""
    base = UnregisteredOp.with_name(name)

    class Form(base):  # type: ignore[misc, valid-type]
        @classmethod
        def dialect_name(cls) -> str:
            return name.partition(".")[0]

        @classmethod
        def parse(cls, parser: Parser) -> Operation:
            return _Own(cast("Reader", parser), cls).operation()

    return Form


# Token by token: exporters differ in order and punctuation, and a grammar per operation would refuse their variants.
class _Own:
    """Parser of one operation's assembly form: words, operands, lists, dictionaries, and types after a colon."""

    def __init__(self, reader: Reader, kind: type[Operation]) -> None:
        self.reader, self.kind = reader, kind
        self.operands: list[SSAValue] = []
        self.attributes: dict[str, Attribute] = {}
        self.words: list[Any] = []
        self.results: Sequence[Attribute] = ()

    def operation(self) -> Operation:
        """Parse the operation up to its types."""
        while not self._item():
            self.reader.parse_optional_punctuation(",")
        if self.words:
            self.attributes["words"] = Plain(self.words)
        return self.kind.create(operands=self.operands, result_types=self.results, attributes=self.attributes)

    def _item(self) -> bool:
        """Parse one item. Return True after the types, or if nothing follows."""
        reader = self.reader
        token = reader._current_token
        if token.kind == MLIRTokenKind.PERCENT_IDENT:
            self._operand()
        elif token.kind == MLIRTokenKind.COLON:
            reader.parse_punctuation(":")
            self._types()
            return True
        elif token.kind == MLIRTokenKind.L_BRACE:
            self._dictionary()
        elif token.kind == MLIRTokenKind.L_PAREN:
            self._group()
        elif token.kind == MLIRTokenKind.L_SQUARE:
            self.words.append(self._list())
        # These three words begin a constant, which has a syntax of its own.
        elif token.kind == MLIRTokenKind.BARE_IDENT and token.span.text not in (
            "dense",
            "dense_resource",
            "array",
        ):
            return self._word()
        elif token.kind == MLIRTokenKind.AT_IDENT:
            self.words.append(reader.parse_symbol_name().data)
        else:
            return self._attribute()
        return False

    def _attribute(self) -> bool:
        """Parse a constant, which includes its type. Return True if nothing follows."""
        attribute = self.reader.parse_optional_attribute()
        if attribute is None:
            return True
        self.attributes["value"] = attribute
        if isinstance(attribute, Elements):
            self.results = (attribute.data[1],)
        elif isinstance(attribute, Plain) and isinstance(attribute.data, Resource):
            self.results = (self.reader_type(attribute.data),)
        return self.reader._current_token.kind not in (MLIRTokenKind.COLON, MLIRTokenKind.L_BRACE)

    def reader_type(self, resource: Resource) -> Attribute:
        """Return the type of a constant at the end of the file."""
        return tensor_type(resource.dtype, resource.shape)

    def _operand(self) -> None:
        operand = self.reader.parse_unresolved_operand()
        known = self.reader.ssa_values.get(operand.operand_name)
        if known is None or operand.index >= len(known):
            self.reader.raise_error(f"%{operand.operand_name} is read before it is defined", operand.span)
        self.operands.append(known[operand.index])

    def _group(self) -> None:
        """Parse operands in parentheses with words between them, as `stablehlo.reduce` has them."""
        reader = self.reader
        reader.parse_punctuation("(")
        while reader.parse_optional_punctuation(")") is None:
            if reader._current_token.kind == MLIRTokenKind.PERCENT_IDENT:
                self._operand()
            elif not (reader.parse_optional_keyword("init") and reader.parse_optional_punctuation(":")):
                reader.parse_punctuation(",")

    def _word(self) -> bool:
        """Parse a word and the value assigned to it. Return True if only a location follows."""
        reader = self.reader
        if reader._current_token.span.text == "loc":
            return True
        word = reader.parse_identifier()
        kind = reader._current_token.kind
        if kind == MLIRTokenKind.EQUAL:
            reader.parse_punctuation("=")
            self.attributes[word] = Plain(self._value(typed=False))
        elif kind == MLIRTokenKind.L_PAREN:
            reader.parse_punctuation("(")
            self.attributes[word] = self._parse_parentheses()
            reader.parse_punctuation(")")
        elif kind == MLIRTokenKind.LESS:
            reader.parse_punctuation("<")
            self.attributes[word] = Plain(self._value())
            reader.parse_punctuation(">")
        else:
            self.words.append(word)
        return False

    def _parse_parentheses(self) -> Attribute:
        if self.reader._current_token.kind == MLIRTokenKind.L_SQUARE:
            return Plain(self._list())
        return self.reader.parse_attribute()

    def _value(self, typed: bool = True) -> Any:
        """Parse a value. With `typed`, a colon after a number starts its type; else the colon belongs to the
        operation."""
        reader = self.reader
        kind = reader._current_token.kind
        if kind == MLIRTokenKind.L_SQUARE:
            lists: Any = [self._list()]
            while True:
                if (
                    reader.parse_optional_keyword("x") is None
                    and reader.parse_optional_punctuation("->") is None
                ):
                    return lists if len(lists) > 1 else lists[0]
                lists.append(self._list())
        if kind == MLIRTokenKind.L_BRACE:
            return self._braces()
        if kind in (MLIRTokenKind.INTEGER_LIT, MLIRTokenKind.FLOAT_LIT, MLIRTokenKind.MINUS):
            return self._numeral() if typed else reader.parse_number()
        if kind == MLIRTokenKind.BARE_IDENT and reader._current_token.span.text not in (
            "dense",
            "array",
            "dense_resource",
        ):
            word = reader.parse_identifier()
            return {"true": True, "false": False}.get(word, word)
        return reader.parse_attribute()

    def _numeral(self) -> Any:
        """Parse a number without its type, or the two or three numbers of a range, separated by colons."""
        reader = self.reader
        numbers = [reader.parse_number()]
        while reader.parse_optional_punctuation(":") is not None:
            if reader._current_token.kind == MLIRTokenKind.BARE_IDENT:
                reader.parse_type()
                break
            numbers.append(reader.parse_number())
        return numbers if len(numbers) > 1 else numbers[0]

    def _list(self) -> list[Any]:
        return self.reader.parse_comma_separated_list(self.reader.Delimiter.SQUARE, self._value)

    def _braces(self) -> dict[str, Any]:
        """Parse ``{name = value, ...}``."""

        def entry() -> tuple[str, Any]:
            key = self.reader.parse_identifier_or_str_literal()
            return key, self._value() if self.reader.parse_optional_punctuation("=") else True

        return dict(self.reader.parse_comma_separated_list(self.reader.Delimiter.BRACES, entry))

    def _dictionary(self) -> None:
        for key, value in self._braces().items():
            self.attributes[key] = value if isinstance(value, Attribute) else Plain(value)

    def _types(self) -> None:
        """Parse the result types: after an arrow, or the last type of a list that operands share."""
        reader = self.reader
        if reader._current_token.kind == MLIRTokenKind.L_PAREN:
            self.results = tuple(reader.parse_function_type().outputs.data)
            return
        types = [reader.parse_type()]
        while reader.parse_optional_punctuation(",") is not None:
            types.append(reader.parse_type())
        if reader.parse_optional_punctuation("->") is not None:  # as operations of CHLO have it
            types = [reader.parse_type()]
        self.results = (types[-1],)


DIALECTS = ("stablehlo", "chlo", "tosa", "mhlo", "vhlo")
"""Dialects whose operations are read in their own assembly form."""


class _Lexer(MLIRLexer):
    """xDSL's lexer with a pattern for strings that cannot backtrack on a string without end."""

    _unescaped_characters_regex = re.compile(r'"(?:[^"\\\n\v\f]++|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+"')


class Reader(Parser):
    """xDSL's parser, extended by the forms that JAX, PyTorch and MLIR's own tools print.

    `lines` has the line of each operation, `resources` the constants at the end of the file.
    """

    def __init__(self, text: str, label: str) -> None:
        context = Context(allow_unregistered=True)
        context.load_dialect(Builtin)
        context.load_dialect(Func)
        super().__init__(context, "", label)
        self._parser_state = ParserState(_Lexer(Input(text, label)))
        self._starts = [0]
        self._starts.extend(match.end() for match in re.finditer("\n", text))
        self._forms: dict[str, type[Operation]] = {}
        self.lines: dict[Operation, int] = {}
        self.resources: dict[str, str] = {}
        self._line = 1

    @property
    def line(self) -> int:
        """Line number of the current token."""
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
            operation = super()._get_op_by_name(name)
            # The generic form begins with a parenthesis; xDSL parses no other of an unknown operation.
            if issubclass(operation, UnregisteredOp) and self._current_token.span.text != "(":
                raise CompileError(
                    f"line {self._line}: {name[:80]} is not supported; "
                    "extras/mlir/operations.md lists the supported operations"
                )
            return operation
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
        """Skip a bracketed part of the text."""
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
        """Parse ``<...> : type`` after the word dense."""
        place = self.place
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
        values = (
            decode_hex(text, shape, dtype, place) if text is not None else self._array(literal, shape, dtype)
        )
        return Elements((values, type))

    def _parse_builtin_dense_attr(self) -> Any:
        return self.parse_dense_int_or_fp_elements_attr(None)

    def _parse_builtin_dense_resource_attr(self) -> Any:
        place = self.place
        self.parse_punctuation("<")
        key = self.parse_identifier_or_str_literal()
        self.parse_punctuation(">")
        self.parse_punctuation(":")
        return Plain(Resource(key, *self._dense_type(self.parse_type()), place))

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
    def place(self) -> str:
        """Current place in the text, for messages."""
        return f"line {self.line}"

    def _dense_type(self, type_: Attribute) -> tuple[tuple[int, ...], str]:
        if not isinstance(type_, TensorType):
            self.raise_error("a constant must have the type of a tensor")
        dtype = DTYPES.get(str(type_.element_type), "")
        if not dtype:
            self.raise_error(f"weft reads no constants of {type_.element_type}")
        return check_shape(tuple(type_.get_shape()), self.place), dtype

    def _numbers(self) -> Any:
        """Parse a number or nested lists. Decimal literals are valid JSON, which parses much faster."""
        content, start = self.lexer.input.content, self._current_token.span.start
        # Weights have millions of numbers; xDSL's token loop takes seconds for them.
        end = content.find(">", start)
        try:
            numbers = json.loads(content[start:end])
        except ValueError:
            return self._literal()
        self.lexer.pos = end
        self._parser_state.current_token = self.lexer.lex()
        return numbers

    def _literal(self) -> Any:
        """Parse a number or nested lists token by token."""
        if self.parse_optional_punctuation("[") is None:
            return self._number()
        items: list[Any] = []
        while self.parse_optional_punctuation("]") is None:
            items.append(self._literal())
            if self.parse_optional_punctuation(",") is None:
                self.parse_punctuation("]")
                break
        return items

    def _number(self) -> Any:
        """Parse one number; hexadecimal bits of a float stay text."""
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
        """Return the array of a literal: lists must have the shape, one number fills it."""
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        try:
            values = np.array(decode_float_bits(literal, kind))
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
            # Exporters print bytes signed or unsigned, whatever their type.
            if ends[0] < -(1 << (width - 1)) or ends[1] >= 1 << width:
                self.raise_error(f"a constant of {dtype} has numbers that do not fit")
        except (ValueError, TypeError, OverflowError):
            self.raise_error(
                f"a constant of {dtype} has lists of different lengths, or items that are not numbers"
            )
        if converted.ndim and converted.shape != shape and not (converted.size == 0 == math.prod(shape)):
            self.raise_error(f"a constant has lists of shape {converted.shape} for type {shape}")
        return np.broadcast_to(converted, shape) if not converted.ndim else converted.reshape(shape)
