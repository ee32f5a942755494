"""Reader of ``tokenizer.json``: byte-pair encoding of bytes, or of SentencePiece's pieces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.encoders import PATTERNS, SPACE
from weft.extras.language.compiler.model import Kind, Vocabulary, find_ends
from weft.extras.language.onnx.facts import Facts, read_json_object
from weft.hdl.schema import short_repr

FILE = "tokenizer.json"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_MAX_TOKEN_CHARACTERS = 1 << 12
_MAX_TOKENS = 1 << 22
_IGNORED_NORMALISERS = ("NFC", "NFKC", "NFD", "NFKD")
"""Unicode normalisation, which most texts already have; a note tells the user."""
_MATCHING_OPTIONS = ("single_word", "lstrip", "rstrip")
"""Options of an added token that take the neighbouring text into account."""
_DIGIT = r"\p{N}"

Json = Mapping[str, Any]


@dataclass(frozen=True)
class TokenizerFile:
    """Vocabulary, and notes about parts of the file that it lacks."""

    vocabulary: Vocabulary
    notes: tuple[str, ...]


def read_tokenizer(folder: Path, facts: Facts, count: int) -> TokenizerFile:
    """Read the vocabulary from a folder's ``tokenizer.json``.

    Parameters
    ----------
    folder : Path
    facts : Facts
        Tokens that begin and end texts.
    count : int
        Tokens of the model; those that the file does not name stand for no text.

    Raises
    ------
    CompileError
        If the file does not exist, or asks for something that weft's tokenizers do not support.
    """
    path = folder / FILE
    document = read_json_object(path)
    if document is None:
        raise CompileError(
            f"there is no {path}: weft takes the vocabulary of an ONNX model from {FILE} beside it"
        )
    try:
        return _Reader(document, facts, count).read()
    except CompileError as error:
        raise CompileError(f"{path}: {error}") from None


class _Reader:
    def __init__(self, document: Json, facts: Facts, count: int) -> None:
        self._document, self._facts, self._count = document, facts, count
        self._model = _get_object(document, "model")
        self._notes: list[str] = []
        if (kind := self._model.get("type", "BPE")) != "BPE":
            raise CompileError(f"its model is {short_repr(kind)}; weft reads byte-pair encoding (BPE)")
        for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
            if self._model.get(name):
                raise CompileError(
                    f"its model has {name} {short_repr(self._model[name])}, which weft does not support"
                )

    def read(self) -> TokenizerFile:
        pieces = bool(self._model.get("byte_fallback", False))
        tokens, kinds = self._read_tokens(pieces)
        merges = self._read_merges(set(tokens))
        numbers = {text: at for at, text in enumerate(tokens)}
        space = self._adds_space() if pieces else False
        pre = "" if pieces else self._find_splitter()
        begin_token, end_token = self._read_template()
        begin = (
            begin_token
            if begin_token is not None
            else self._find_special(self._facts.begin_text, self._facts.begin, numbers)
        )
        ends = self._find_ends(numbers)
        end = end_token if end_token is not None else (ends[0] if ends else None)
        unknown = self._model.get("unk_token")
        vocabulary = Vocabulary(
            model="llama" if pieces else "gpt2",
            pre=pre,
            tokens=tuple(tokens),
            kinds=tuple(kinds),
            scores=_merge_scores(tokens, kinds, merges) if pieces else (),
            merges=() if pieces else merges,
            begin=begin,
            end=end,
            unknown=numbers.get(unknown) if isinstance(unknown, str) else None,
            ends=find_ends(tokens, kinds).union(ends, [] if end is None else [end]),
            add_begin=begin_token is not None,
            add_end=end_token is not None,
            add_space=space,
        )
        return TokenizerFile(vocabulary, tuple(self._notes))

    def _read_tokens(self, pieces: bool) -> tuple[list[str], list[Kind]]:
        """Return the texts and kinds of all tokens."""
        texts: dict[int, str] = {}
        kinds: dict[int, Kind] = {}
        entries = [(text, number, Kind.NORMAL) for text, number in _get_object(self._model, "vocab").items()]
        with_options: list[str] = []
        added = self._document.get("added_tokens")
        for item in added if isinstance(added, list) else []:
            if not isinstance(item, Mapping) or not isinstance(item.get("content"), str):
                raise CompileError(
                    f"added_tokens has {short_repr(item)}; weft expects objects with content and id"
                )
            kind = Kind.CONTROL if item.get("special") else Kind.USER_DEFINED
            with_options += [item["content"]] if any(item.get(name) for name in _MATCHING_OPTIONS) else []
            entries.append((item["content"], item.get("id"), kind))
        for text, number, kind in entries:
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < _MAX_TOKENS:
                raise CompileError(
                    f"token {short_repr(text)} has the number {short_repr(number)}; weft expects 0 to "
                    f"{_MAX_TOKENS - 1:,}"
                )
            if texts.setdefault(number, text) != text:
                raise CompileError(
                    f"tokens {short_repr(texts[number])} and {short_repr(text)} both have the number {number:,}"
                )
            if len(text) > _MAX_TOKEN_CHARACTERS:
                raise CompileError(
                    f"token {number:,} has {len(text):,} characters; weft takes up to {_MAX_TOKEN_CHARACTERS:,}"
                )
            if number >= self._count:
                raise CompileError(
                    f"token {number:,} is {short_repr(text)}, and the model has {self._count:,} tokens"
                )
            kinds[number] = kind
        if with_options:
            self._notes.append(
                f"the tokenizer looks at the text around {len(with_options):,} added tokens, for example "
                f"{short_repr(with_options[0])}, which weft does not"
            )
        unknown = self._model.get("unk_token")
        for number, text in texts.items():
            if pieces and _BYTE.fullmatch(text) and kinds[number] is Kind.NORMAL:
                kinds[number] = Kind.BYTE
            if text == unknown:
                kinds[number] = Kind.UNKNOWN
        # Exporters pad the vocabulary: numbers without a token stand for no text.
        tokens = [texts.get(at, f"<unused {at}>") for at in range(self._count)]
        return tokens, [kinds.get(at, Kind.CONTROL) for at in range(self._count)]

    def _read_merges(self, known: set[str]) -> tuple[tuple[str, str], ...]:
        pairs = []
        merges = self._model.get("merges")
        for at, item in enumerate(merges if isinstance(merges, list) else []):
            # Older files write a merge as one text.
            pair = item.split(" ") if isinstance(item, str) else item
            if (
                not isinstance(pair, list)
                or len(pair) != 2
                or not all(isinstance(part, str) and part for part in pair)
            ):
                raise CompileError(f"merge {at:,} is {short_repr(item)}; weft expects two texts")
            if "".join(pair) not in known:
                raise CompileError(f"merge {at:,} makes {short_repr(''.join(pair))}, which is no token")
            pairs.append((pair[0], pair[1]))
        return tuple(pairs)

    def _find_special(self, text: str | None, number: int | None, numbers: Mapping[str, int]) -> int | None:
        if text is not None and text in numbers:
            return numbers[text]
        return number if number is not None and number < self._count else None

    def _find_ends(self, numbers: Mapping[str, int]) -> list[int]:
        ends = [end for end in self._facts.ends if end < self._count]
        text = self._facts.end_text
        return ends or ([numbers[text]] if text is not None and text in numbers else [])

    def _normalisers(self) -> Iterator[Json]:
        for part in _flatten(self._document.get("normalizer"), "normalizers"):
            if part.get("type") in _IGNORED_NORMALISERS:
                self._notes.append(
                    f"the tokenizer normalises texts ({part['type']}) in front, which weft does not: give texts in "
                    "that form"
                )
            else:
                yield part

    def _adds_space(self) -> bool:
        """Return whether texts of pieces get a space at their start; raise unless spaces become U+2581."""
        adds_space, replaces_spaces = False, False
        for part in self._normalisers():
            kind = part.get("type")
            if kind == "Prepend" and part.get("prepend") == SPACE:
                adds_space = True
            elif (
                kind == "Replace" and part.get("pattern") == {"String": " "} and part.get("content") == SPACE
            ):
                replaces_spaces = True
            else:
                raise CompileError(
                    f"its normalizer {short_repr(kind)} is none that weft knows for pieces with byte_fallback"
                )
        for part in _flatten(self._document.get("pre_tokenizer"), "pretokenizers"):
            if (
                part.get("type") != "Metaspace"
                or part.get("replacement", SPACE) != SPACE
                or part.get("split", False)
            ):
                raise CompileError(
                    f"its pre_tokenizer {short_repr(part.get('type'))} is none that weft knows for pieces"
                )
            # Older files have add_prefix_space instead.
            scheme = part.get("prepend_scheme", "always" if part.get("add_prefix_space", True) else "never")
            adds_space, replaces_spaces = adds_space or scheme != "never", True
        if not replaces_spaces:
            raise CompileError(
                f"it does not write spaces as {SPACE!r}, which weft expects of pieces with byte_fallback"
            )
        return adds_space

    def _find_splitter(self) -> str:
        """Return the name of the rule that splits text into words."""
        for part in self._normalisers():
            raise CompileError(
                f"its normalizer {short_repr(part.get('type'))} changes texts, which weft does not support"
            )
        expressions, in_bytes = [], False
        for part in _flatten(self._document.get("pre_tokenizer"), "pretokenizers"):
            kind = part.get("type")
            if kind == "ByteLevel" and not part.get("add_prefix_space", True):
                in_bytes = True
                if part.get("use_regex", True):
                    expressions.append(PATTERNS["gpt-2"].expressions[0])
            elif kind == "Digits" and part.get("individual_digits", False):
                expressions.append(_DIGIT)
            elif kind == "Split" and part.get("behavior") == "Isolated" and not part.get("invert", False):
                pattern = part.get("pattern")
                expressions.append(str(pattern.get("Regex") if isinstance(pattern, Mapping) else pattern))
            else:
                raise CompileError(
                    f"its pre_tokenizer {short_repr(kind)} splits texts in a way that weft does not know"
                )
        if not in_bytes:
            raise CompileError(
                "its pre_tokenizer has no ByteLevel; weft reads byte-pair encodings of bytes, or of pieces"
            )
        keep_whole = bool(self._model.get("ignore_merges", False))
        for name, pattern in PATTERNS.items():
            if pattern.expressions == tuple(expressions) and pattern.keep_whole == keep_whole:
                return name
        raise CompileError(
            f"its pre_tokenizer splits texts by {', '.join(map(short_repr, expressions))} (ignore_merges "
            f"{str(keep_whole).lower()}), which weft does not know"
        )

    def _read_template(self) -> tuple[int | None, int | None]:
        """Return the tokens that are added before and after texts."""
        added: list[int | None] = [None, None]
        for part in _flatten(self._document.get("post_processor"), "processors"):
            if part.get("type") == "ByteLevel":
                continue
            single, specials = part.get("single"), part.get("special_tokens")
            if (
                part.get("type") != "TemplateProcessing"
                or not isinstance(single, list)
                or not isinstance(specials, Mapping)
            ):
                raise CompileError(
                    f"its post_processor {short_repr(part.get('type'))} is none that weft knows"
                )
            names = [
                next(iter(item.items())) if isinstance(item, Mapping) and item else ("", {})
                for item in single
            ]
            kinds = [name for name, _ in names]
            if kinds.count("Sequence") != 1 or len(kinds) > 3 or kinds[:-2] not in ([], ["SpecialToken"]):
                raise CompileError("its post_processor adds more than one token before or after a text")
            middle = kinds.index("Sequence")
            for place, (_, item) in enumerate(names):
                if place != middle:
                    added[place > middle] = self._template_token(item, specials)
        return added[0], added[1]

    def _template_token(self, item: object, specials: Json) -> int:
        special = specials.get(str(item.get("id"))) if isinstance(item, Mapping) else None
        ids = special.get("ids") if isinstance(special, Mapping) else None
        if (
            not isinstance(ids, list)
            or len(ids) != 1
            or not isinstance(ids[0], int)
            or not 0 <= ids[0] < self._count
        ):
            raise CompileError(f"its post_processor adds {short_repr(item)}, which is no token of the model")
        return ids[0]


def _merge_scores(
    tokens: Sequence[str], kinds: Sequence[Kind], merges: Sequence[tuple[str, str]]
) -> tuple[float, ...]:
    """Return SentencePiece scores that merge in the order of the list.

    They exist if the list has all pairs of pieces that form a piece, and all pairs of one piece in a row. The
    conversion of SentencePiece's models creates such lists.
    """
    places = {text: at for at, text in enumerate(tokens) if kinds[at] is Kind.NORMAL}
    ranks: dict[str, int] = {}
    pairs: dict[str, set[tuple[str, str]]] = {}
    last = ""
    for at, pair in enumerate(merges):
        merged = "".join(pair)
        if merged != last and merged in ranks and merged in places:
            raise CompileError(
                f"merge {at:,} makes {short_repr(merged)}, as one before with others between: such a list is not "
                "one of SentencePiece's, which weft reads with byte_fallback"
            )
        last = merged
        ranks.setdefault(merged, at)
        pairs.setdefault(merged, set()).add(pair)
    for text in places:
        for at in range(1, len(text)):
            pair = text[:at], text[at:]
            if pair[0] in places and pair[1] in places and pair not in pairs.get(text, ()):
                raise CompileError(
                    f"its merges lack {short_repr(pair[0])} with {short_repr(pair[1])}, which SentencePiece would "
                    "merge: weft reads merges with byte_fallback where they have all pairs of pieces that make one"
                )
    # Earlier merges get higher scores.
    return tuple(-float(ranks[text]) if text in ranks else 0.0 for text in tokens)


def _get_object(source: Json, name: str) -> Json:
    value = source.get(name)
    if not isinstance(value, Mapping):
        raise CompileError(f"{name} is {short_repr(value)}; weft expects an object there")
    return value


def _flatten(part: object, name: str) -> Iterator[Json]:
    """Yield the parts of a Sequence, or the single part, or nothing."""
    if part is None:
        return
    if not isinstance(part, Mapping):
        raise CompileError(f"it has {short_repr(part)} where weft expects an object")
    if part.get("type") != "Sequence":
        yield part
        return
    inner = part.get(name)
    if not isinstance(inner, list):
        raise CompileError(f"a Sequence has {short_repr(inner)} as {name}; weft expects a list")
    for item in inner:
        yield from _flatten(item, name)
