"""The forms in which exporters print operations: words, operands, lists and dictionaries, and types behind a colon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from xdsl.dialects.builtin import UnregisteredOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.parser import Parser
from xdsl.utils.mlir_lexer import MLIRTokenKind

from weft.extras.mlir.literals import Elements, Plain, Resource
from weft.extras.mlir.types import tensor_type

if TYPE_CHECKING:
    from weft.extras.mlir.text import Reader


def form(name: str) -> type[Operation]:
    """The class of an operation that xDSL does not know, with a parser of its form."""
    base = UnregisteredOp.with_name(name)

    class Form(base):  # type: ignore[misc, valid-type]
        @classmethod
        def dialect_name(cls) -> str:
            return name.partition(".")[0]

        @classmethod
        def parse(cls, parser: Parser) -> Operation:
            return _Own(cast("Reader", parser), cls).operation()

    return Form


class _Own:
    """One operation in its own form: words, operands, lists and dictionaries, and types behind a colon."""

    def __init__(self, reader: Reader, kind: type[Operation]) -> None:
        self.reader, self.kind = reader, kind
        self.operands: list[SSAValue] = []
        self.attributes: dict[str, Attribute] = {}
        self.words: list[Any] = []
        self.results: Sequence[Attribute] = ()

    def operation(self) -> Operation:
        """Read it, up to its types."""
        while not self._item():
            self.reader.parse_optional_punctuation(",")
        if self.words:
            self.attributes["words"] = Plain(self.words)
        return self.kind.create(operands=self.operands, result_types=self.results, attributes=self.attributes)

    def _item(self) -> bool:
        """One item; True once the types are read, or there is nothing more."""
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
        """A constant, which has its type with it; True if nothing follows."""
        found = self.reader.parse_optional_attribute()
        if found is None:
            return True
        self.attributes["value"] = found
        if isinstance(found, Elements):
            self.results = (found.data[1],)
        elif isinstance(found, Plain) and isinstance(found.data, Resource):
            self.results = (self.reader_type(found.data),)
        return self.reader._current_token.kind not in (MLIRTokenKind.COLON, MLIRTokenKind.L_BRACE)

    def reader_type(self, resource: Resource) -> Attribute:
        """The type of elements that stand at the end of the file."""
        return tensor_type(resource.dtype, resource.shape)

    def _operand(self) -> None:
        found = self.reader.parse_unresolved_operand()
        known = self.reader.ssa_values.get(found.operand_name)
        if known is None or found.index >= len(known):
            self.reader.raise_error(f"%{found.operand_name} is read before it is made", found.span)
        self.operands.append(known[found.index])

    def _group(self) -> None:
        """Operands in brackets, with words between them, as of reduce."""
        reader = self.reader
        reader.parse_punctuation("(")
        while reader.parse_optional_punctuation(")") is None:
            if reader._current_token.kind == MLIRTokenKind.PERCENT_IDENT:
                self._operand()
            elif not (reader.parse_optional_keyword("init") and reader.parse_optional_punctuation(":")):
                reader.parse_punctuation(",")

    def _word(self) -> bool:
        """A word, with what is assigned to it."""
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
            self.attributes[word] = self._bracketed()
            reader.parse_punctuation(")")
        elif kind == MLIRTokenKind.LESS:
            reader.parse_punctuation("<")
            self.attributes[word] = Plain(self._value())
            reader.parse_punctuation(">")
        else:
            self.words.append(word)
        return False

    def _bracketed(self) -> Attribute:
        if self.reader._current_token.kind == MLIRTokenKind.L_SQUARE:
            return Plain(self._list())
        return self.reader.parse_attribute()

    def _value(self, typed: bool = True) -> Any:
        """A value of the operation's own form; a number may be `typed`, or else a colon behind it is the operation's
        own."""
        reader = self.reader
        kind = reader._current_token.kind
        if kind == MLIRTokenKind.L_SQUARE:
            found: Any = [self._list()]
            while True:
                if (
                    reader.parse_optional_keyword("x") is None
                    and reader.parse_optional_punctuation("->") is None
                ):
                    return found if len(found) > 1 else found[0]
                found.append(self._list())
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
        """A number, whose type is left out; or two or three with colons between, as ranges have them."""
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
        """``{name = value, ...}``"""

        def entry() -> tuple[str, Any]:
            key = self.reader.parse_identifier_or_str_literal()
            return key, self._value() if self.reader.parse_optional_punctuation("=") else True

        return dict(self.reader.parse_comma_separated_list(self.reader.Delimiter.BRACES, entry))

    def _dictionary(self) -> None:
        for key, value in self._braces().items():
            self.attributes[key] = value if isinstance(value, Attribute) else Plain(value)

    def _types(self) -> None:
        """Types of results: behind an arrow, or the last of a list, which operands share."""
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
