"""``tokenizer.json`` as a vocabulary: byte-pair encoding of bytes, or of SentencePiece's kind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.compiler.ir.graph import CompileError
from weft.extras.language.compiler.encoders import SPACE
from weft.extras.language.compiler.vocabulary import Kind, Vocabulary, find_ends
from weft.extras.language.compiler.words import PATTERNS
from weft.extras.language.onnx.facts import Facts, document
from weft.hdl.schema import short_repr

FILE = "tokenizer.json"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_LONGEST = 1 << 12
"""Characters of the longest token."""
_MOST = 1 << 22
"""Most tokens."""
_IGNORED = ("NFC", "NFKC", "NFD", "NFKD")
"""Normalisers without which most texts are the same."""
_BESIDE = ("single_word", "lstrip", "rstrip")
"""Fields of an added token that takes spaces beside it, or is a word of its own."""
_DIGIT = r"\p{N}"

Part = Mapping[str, Any]


@dataclass(frozen=True)
class Read:
    """A vocabulary, and sentences about what of the file it does not have."""

    vocabulary: Vocabulary
    notes: tuple[str, ...]


def read_tokenizer(folder: Path, facts: Facts, count: int) -> Read:
    """The vocabulary of a folder's ``tokenizer.json``.

    Parameters
    ----------
    folder : Path
    facts : Facts
        Which tokens begin and end texts.
    count : int
        Tokens that the model has; those that the file does not name stand for no text.

    Raises
    ------
    CompileError
        If there is no such file, or if it says something that weft's tokenizers do not do.
    """
    path = folder / FILE
    whole = document(path)
    if whole is None:
        raise CompileError(
            f"there is no {path}: weft takes the vocabulary of an ONNX model from {FILE} beside it"
        )
    try:
        return _Reader(whole, facts, count).read()
    except CompileError as error:
        raise CompileError(f"{path}: {error}") from None


class _Reader:
    def __init__(self, whole: Part, facts: Facts, count: int) -> None:
        self._whole, self._facts, self._count = whole, facts, count
        self._model = _object(whole, "model")
        self._notes: list[str] = []
        if (kind := self._model.get("type", "BPE")) != "BPE":
            raise CompileError(f"its model is {short_repr(kind)}; weft reads byte-pair encoding (BPE)")
        for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
            if self._model.get(name):
                raise CompileError(
                    f"its model has {name} {short_repr(self._model[name])}, which weft does not support"
                )

    def read(self) -> Read:
        pieces = bool(self._model.get("byte_fallback", False))
        tokens, kinds = self._tokens(pieces)
        merges = self._merges(set(tokens))
        numbers = {text: at for at, text in enumerate(tokens)}
        space = self._space() if pieces else False
        pre = "" if pieces else self._pre()
        front, back = self._around()
        begin = (
            front if front is not None else self._special(self._facts.begin_text, self._facts.begin, numbers)
        )
        ends = self._ends(numbers)
        end = back if back is not None else (ends[0] if ends else None)
        unknown = self._model.get("unk_token")
        vocabulary = Vocabulary(
            model="llama" if pieces else "gpt2",
            pre=pre,
            tokens=tuple(tokens),
            kinds=tuple(kinds),
            scores=_scores(tokens, kinds, merges) if pieces else (),
            merges=() if pieces else merges,
            begin=begin,
            end=end,
            unknown=numbers.get(unknown) if isinstance(unknown, str) else None,
            ends=find_ends(tokens, kinds).union(ends, [] if end is None else [end]),
            add_begin=front is not None,
            add_end=back is not None,
            add_space=space,
        )
        return Read(vocabulary, tuple(self._notes))

    def _tokens(self, pieces: bool) -> tuple[list[str], list[Kind]]:
        """Tokens by their numbers."""
        known: dict[int, str] = {}
        kinds: dict[int, Kind] = {}
        entries = [(text, number, Kind.NORMAL) for text, number in _object(self._model, "vocab").items()]
        beside: list[str] = []
        added = self._whole.get("added_tokens")
        for item in added if isinstance(added, list) else []:
            if not isinstance(item, Mapping) or not isinstance(item.get("content"), str):
                raise CompileError(
                    f"added_tokens has {short_repr(item)}; weft expects objects with content and id"
                )
            kind = Kind.CONTROL if item.get("special") else Kind.USER_DEFINED
            beside += [item["content"]] if any(item.get(name) for name in _BESIDE) else []
            entries.append((item["content"], item.get("id"), kind))
        for text, number, kind in entries:
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < _MOST:
                raise CompileError(
                    f"token {short_repr(text)} has the number {short_repr(number)}; weft expects 0 to {_MOST - 1:,}"
                )
            if known.setdefault(number, text) != text:
                raise CompileError(
                    f"tokens {short_repr(known[number])} and {short_repr(text)} both have the number {number:,}"
                )
            if len(text) > _LONGEST:
                raise CompileError(
                    f"token {number:,} has {len(text):,} characters; weft takes up to {_LONGEST:,}"
                )
            if number >= self._count:
                raise CompileError(
                    f"token {number:,} is {short_repr(text)}, and the model has {self._count:,} tokens"
                )
            kinds[number] = kind
        if beside:
            self._notes.append(
                f"the tokenizer looks at what is beside {len(beside):,} added tokens, {short_repr(beside[0])} for "
                "example, which weft does not"
            )
        unknown = self._model.get("unk_token")
        for number, text in known.items():
            if pieces and _BYTE.fullmatch(text) and kinds[number] is Kind.NORMAL:
                kinds[number] = Kind.BYTE
            if text == unknown:
                kinds[number] = Kind.UNKNOWN
        tokens = [known.get(at, f"<unused {at}>") for at in range(self._count)]
        return tokens, [kinds.get(at, Kind.CONTROL) for at in range(self._count)]

    def _merges(self, known: set[str]) -> tuple[tuple[str, str], ...]:
        made = []
        given = self._model.get("merges")
        for at, item in enumerate(given if isinstance(given, list) else []):
            pair = item.split(" ") if isinstance(item, str) else item
            if (
                not isinstance(pair, list)
                or len(pair) != 2
                or not all(isinstance(part, str) and part for part in pair)
            ):
                raise CompileError(f"merge {at:,} is {short_repr(item)}; weft expects two texts")
            if "".join(pair) not in known:
                raise CompileError(f"merge {at:,} makes {short_repr(''.join(pair))}, which is no token")
            made.append((pair[0], pair[1]))
        return tuple(made)

    def _special(self, text: str | None, number: int | None, numbers: Mapping[str, int]) -> int | None:
        if text is not None and text in numbers:
            return numbers[text]
        return number if number is not None and number < self._count else None

    def _ends(self, numbers: Mapping[str, int]) -> list[int]:
        ends = [end for end in self._facts.ends if end < self._count]
        text = self._facts.end_text
        return ends or ([numbers[text]] if text is not None and text in numbers else [])

    def _normalisers(self) -> Iterator[Part]:
        for part in _sequence(self._whole.get("normalizer"), "normalizers"):
            if part.get("type") in _IGNORED:
                self._notes.append(
                    f"the tokenizer normalises texts ({part['type']}) in front, which weft does not: give texts in "
                    "that form"
                )
            else:
                yield part

    def _space(self) -> bool:
        """Whether texts of SentencePiece's kind get a space in front; spaces must become U+2581."""
        added, replaced = False, False
        for part in self._normalisers():
            kind = part.get("type")
            if kind == "Prepend" and part.get("prepend") == SPACE:
                added = True
            elif (
                kind == "Replace" and part.get("pattern") == {"String": " "} and part.get("content") == SPACE
            ):
                replaced = True
            else:
                raise CompileError(
                    f"its normalizer {short_repr(kind)} is none that weft knows for pieces with byte_fallback"
                )
        for part in _sequence(self._whole.get("pre_tokenizer"), "pretokenizers"):
            if (
                part.get("type") != "Metaspace"
                or part.get("replacement", SPACE) != SPACE
                or part.get("split", False)
            ):
                raise CompileError(
                    f"its pre_tokenizer {short_repr(part.get('type'))} is none that weft knows for pieces"
                )
            scheme = part.get("prepend_scheme", "always" if part.get("add_prefix_space", True) else "never")
            added, replaced = added or scheme != "never", True
        if not replaced:
            raise CompileError(
                f"it does not write spaces as {SPACE!r}, which weft expects of pieces with byte_fallback"
            )
        return added

    def _pre(self) -> str:
        """The name of how bytes are split into words."""
        for part in self._normalisers():
            raise CompileError(
                f"its normalizer {short_repr(part.get('type'))} changes texts, which weft does not support"
            )
        expressions, in_bytes = [], False
        for part in _sequence(self._whole.get("pre_tokenizer"), "pretokenizers"):
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
        whole = bool(self._model.get("ignore_merges", False))
        for name, pattern in PATTERNS.items():
            if pattern.expressions == tuple(expressions) and pattern.whole == whole:
                return name
        raise CompileError(
            f"its pre_tokenizer splits texts by {', '.join(map(short_repr, expressions))} (ignore_merges "
            f"{str(whole).lower()}), which weft does not know"
        )

    def _around(self) -> tuple[int | None, int | None]:
        """The tokens that texts get in front and behind."""
        found: list[int | None] = [None, None]
        for part in _sequence(self._whole.get("post_processor"), "processors"):
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
                raise CompileError(
                    "its post_processor puts more than one token in front of a text or behind it"
                )
            middle = kinds.index("Sequence")
            for place, (_, item) in enumerate(names):
                if place != middle:
                    found[place > middle] = self._processed(item, specials)
        return found[0], found[1]

    def _processed(self, item: object, specials: Part) -> int:
        known = specials.get(str(item.get("id"))) if isinstance(item, Mapping) else None
        ids = known.get("ids") if isinstance(known, Mapping) else None
        if (
            not isinstance(ids, list)
            or len(ids) != 1
            or not isinstance(ids[0], int)
            or not 0 <= ids[0] < self._count
        ):
            raise CompileError(f"its post_processor adds {short_repr(item)}, which is no token of the model")
        return ids[0]


def _scores(
    tokens: Sequence[str], kinds: Sequence[Kind], merges: Sequence[tuple[str, str]]
) -> tuple[float, ...]:
    """Scores of SentencePiece's kind that merge as the list says.

    They exist where the list has all pairs of pieces that make a piece, those of one piece behind each other, as the
    conversion of SentencePiece's models makes it.
    """
    places = {text: at for at, text in enumerate(tokens) if kinds[at] is Kind.NORMAL}
    ranks: dict[str, int] = {}
    pairs: dict[str, set[tuple[str, str]]] = {}
    last = ""
    for at, pair in enumerate(merges):
        made = "".join(pair)
        if made != last and made in ranks and made in places:
            raise CompileError(
                f"merge {at:,} makes {short_repr(made)}, as one before with others between: such a list is not one of "
                "SentencePiece's, which weft reads with byte_fallback"
            )
        last = made
        ranks.setdefault(made, at)
        pairs.setdefault(made, set()).add(pair)
    for text in places:
        for at in range(1, len(text)):
            pair = text[:at], text[at:]
            if pair[0] in places and pair[1] in places and pair not in pairs.get(text, ()):
                raise CompileError(
                    f"its merges lack {short_repr(pair[0])} with {short_repr(pair[1])}, which SentencePiece would "
                    "merge: weft reads merges with byte_fallback where they have all pairs of pieces that make one"
                )
    return tuple(-float(ranks[text]) if text in ranks else 0.0 for text in tokens)


def _object(whole: Part, name: str) -> Part:
    value = whole.get(name)
    if not isinstance(value, Mapping):
        raise CompileError(f"{name} is {short_repr(value)}; weft expects an object there")
    return value


def _sequence(part: object, name: str) -> Iterator[Part]:
    """The parts of a chain, which may be one alone, or none."""
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
        yield from _sequence(item, name)
