"""The proof that a decoder's program computes its model, step by step: for every place of a token in its text.

One step computes some tokens. Proven of it is that logits, and what it appends to keys and values, are the same
functions of the rows of the tables of tokens and positions, and of all keys and values before, as the model says, and
that it changes nothing else: for any token, and any content of the cache. The registers that a program reads from
memory, and the entries of page tables, are numbers: a step is proven for each place that a token may have, with pages
drawn at random. As an empty cache is one of all contents, and a step leaves in the cache what the model says, that is
the step of an induction over the tokens of a text.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from weft.extras.language.certificate.decoder import Decoder
from weft.extras.language.certificate.decoder_memory import Reads, Steps, Token
from weft.extras.language.certificate.language import Language, LanguageError
from weft.extras.language.certificate.recalled import RecallingDevice
from weft.extras.proof.programs.field import PRIMES
from weft.extras.proof.programs.proof import DEGREE, check_disjoint
from weft.extras.proof.programs.symbols import OFFSET_BYTES, joined_bytes
from weft.extras.proof.programs.values import Values
from weft.extras.proof.programs.words import Unproven
from weft.hdl.isa import Instruction, Normalise
from weft.hdl.isa.config import Config
from weft.sim.device import DeviceError

_MIXED = 8
"""Steps in which texts have several rows, at least; else one for so many places."""


@dataclass(frozen=True)
class ProvenSteps:
    """A proof.

    Attributes
    ----------
    places : int
        Places of a text that a token of every row was proven at.
    steps : int
    compared : int
        Bytes of logits, keys and values that were compared.
    instructions, done : int
        Instructions of all steps, and those that were carried out as they differed.
    values, error, seconds
        As `weft.extras.proof.programs.proof.Proven` has them.
    """

    places: int
    steps: int
    compared: int
    instructions: int
    done: int
    values: int
    error: float
    seconds: float


class _Device(RecallingDevice):
    """Gives attention's results the names that the definition has for them."""

    names: dict[bytes, int]

    def _execute(self, index: int, instruction: Instruction) -> None:
        super()._execute(index, instruction)
        if isinstance(instruction, Normalise):
            self.replace(self.memories.addresses(instruction, "dst").ravel(), self._named)

    def _named(self, numbers: np.ndarray) -> np.ndarray:
        keys = self.values.residues(numbers).reshape(-1, PRIMES)
        flat = numbers.ravel()
        found = [
            self.names.get(key.tobytes(), number) for key, number in zip(keys, flat.tolist(), strict=True)
        ]
        return np.array(found, np.int64).reshape(numbers.shape)


class Course:
    """The steps of a program, each proven by itself; see the module.

    Raises
    ------
    Unproven
        If the description lacks something.
    """

    def __init__(self, model: Language, config: Config, at: Steps, seed: int) -> None:
        self.model, self.at = model, at
        self.compared = self.steps = self.instructions = 0
        self.values = values = Values(seed)
        self._rng = np.random.default_rng([seed, 1])
        self.device = _Device(config, at.memory_bytes, values)
        symbols = self.device.symbols
        self._words = values.inputs(2 * at.rows * OFFSET_BYTES).reshape(2, at.rows, OFFSET_BYTES)
        tokens, places = (joined_bytes(symbols, words) for words in self._words)
        with _described():
            self.decoder = Decoder(symbols, config, model, tokens, places)
        self.device.offsets = {
            tuple(word): rows
            for words, rows in zip(self._words.tolist(), (at.token_rows, at.place_rows), strict=True)
            for word in words
        }
        context = model.positions.shape[0]
        blocks = self.decoder.blocks
        _check_reads(at.reads, context, self.decoder)
        heads, length = blocks[0].keys.shape[1:]
        self._slots = -(-context // at.cache.keys) * at.cache.keys
        texts = 1 if at.together else at.rows
        shape = (texts, len(blocks), 2, self._slots, heads, length)
        self._caches = values.inputs(math.prod(shape)).reshape(shape)
        self._anything = values.inputs(0)
        self.put(at)

    def put(self, at: Steps) -> None:
        """Go on with another program for the same model: what it has in common with others is not carried out again.
        It has as many rows, and what lies in memory besides takes as much room.
        """
        self.at, device, values = at, self.device, self.values
        for base, address in at.bases.items():
            device.set_base(base, address)
        known = np.zeros(at.memory_bytes, bool)
        for address, payload in at.contents:
            device.write(address, payload)
            known[address : address + len(payload)] = True
        others = np.flatnonzero(~known)
        if len(self._anything) < len(others):
            self._anything = values.inputs(len(others))
        for index, plane in enumerate(device.planes):
            plane.dram[others] = self._anything[: len(others)] >> 8 * index & 0xFF
        device.turn = at.turn
        device.fix([(address, address + len(payload)) for address, payload in at.contents])
        self._before = [plane.dram.copy() for plane in device.planes]

    def step(self, tokens: Sequence[Token]) -> None:
        """Prove one step. Raises `Unproven`."""
        at, device = self.at, self.device
        device.forget()
        for plane, before in zip(device.planes, self._before, strict=True):
            plane.dram[:] = before
        pages = self._pages(tokens)
        self._fill(pages)
        self._tell(tokens, pages)
        given = [plane.dram.copy() for plane in device.planes]
        with _described():
            self._name(tokens, self._seen(tokens))
        try:
            device.start(at.entry)
            device.wait()
        except (DeviceError, Unproven) as error:
            raise Unproven(f"{_told(tokens)}: {error}") from None
        self.steps += 1
        self.instructions += device.instructions
        self._compare(tokens, pages, given)

    def _pages(self, tokens: Sequence[Token]) -> dict[int, list[int]]:
        """Pages of each text, drawn."""
        most: dict[int, int] = {}
        for token in tokens:
            most[token.text] = max(most.get(token.text, 0), token.place // self.at.cache.keys + 1)
        drawn = iter(self._rng.permutation(self.at.cache.pages).tolist())
        return {text: [next(drawn) for _ in range(count)] for text, count in most.items()}

    def _fill(self, pages: Mapping[int, Sequence[int]]) -> None:
        """Put keys and values of all texts into memory."""
        cache = self.at.cache
        for text, numbers in pages.items():
            content = self._caches[text]
            for index, page in enumerate(numbers):
                slots = slice(index * cache.keys, (index + 1) * cache.keys)
                whole = self.device.get_values(cache.address + page * cache.page_bytes, cache.page_bytes)
                whole[self._offsets(np.arange(cache.keys))] = content[:, :, slots]
                self.device.set_values(cache.address + page * cache.page_bytes, whole)

    def _tell(self, tokens: Sequence[Token], pages: Mapping[int, Sequence[int]]) -> None:
        """Write what the host does, and in the place of offsets of rows values of which nothing is known."""
        at = self.at
        numbers = self._rng.integers(0, at.token_rows.count, len(tokens)).tolist()
        frame = at.frame_of(tokens, numbers, [pages[token.text] for token in tokens])
        _check_regions(at, len(frame))
        self.device.write(at.frame, frame)
        every = (
            (at.tokens, at.token_rows, numbers),
            (at.places, at.place_rows, [item.place for item in tokens]),
        )
        for (start, rows, wanted), words in zip(every, self._words, strict=True):
            found = np.frombuffer(frame, "<u4", len(tokens), start).tolist()
            if found != [rows.first + rows.pitch * number for number in wanted]:
                raise Unproven(f"{_told(tokens)}: the host tells the program of other rows than theirs")
            self.device.set_values(at.frame + start, words.ravel())
        for start, size in at.free:
            self.device.set_values(at.frame + start, self.values.inputs(size))

    def _offsets(self, slots: np.ndarray) -> np.ndarray:
        """Where in a page the bytes of some slots are: (layers, 2, slots, heads, length)."""
        cache = self.at.cache
        layers, _, _, heads, length = self._caches.shape[1:]
        layer, kind, slot, head, element = np.ogrid[:layers, :2, : len(slots), :heads, :length]
        found: np.ndarray = (
            layer * cache.layer + kind * cache.kind + slots[slot] * cache.slot + head * cache.head + element
        )
        return found

    def _seen(self, tokens: Sequence[Token]) -> dict[int, np.ndarray]:
        """Keys and values of texts as tokens see them, with their own: (layers, 2, slots, heads, length)."""
        found = {token.text: self._caches[token.text].copy() for token in tokens}
        for row, token in enumerate(tokens):
            for layer, block in enumerate(self.decoder.blocks):
                found[token.text][layer, 0, token.place] = block.keys[row]
                found[token.text][layer, 1, token.place] = block.values[row]
        return found

    def _name(self, tokens: Sequence[Token], seen: Mapping[int, np.ndarray]) -> None:
        """Have the device give attention's results, as the definition has them, their names."""
        names: dict[bytes, int] = {}
        for row, token in enumerate(tokens):
            for layer, block in enumerate(self.decoder.blocks):
                keys, values = seen[token.text][layer, :, : token.place + 1]
                made = self.decoder.attended(layer, row, keys, values)
                residues = self.values.residues(made).reshape(-1, PRIMES)
                names |= {
                    key.tobytes(): number
                    for key, number in zip(residues, block.results[row].ravel().tolist(), strict=True)
                }
        self.device.names = names

    def _compare(
        self, tokens: Sequence[Token], pages: Mapping[int, Sequence[int]], given: Sequence[np.ndarray]
    ) -> None:
        """Raises `Unproven` if memory is not what the model says."""
        at, device = self.at, self.device
        changed = np.logical_or.reduce(
            [plane.dram != before for plane, before in zip(device.planes, given, strict=True)]
        )
        for address, size in at.scratch:
            changed[address : address + size] = False
        for row, token in enumerate(tokens):
            places = self._slot(token, pages)
            meant = np.stack([[block.keys[row], block.values[row]] for block in self.decoder.blocks])
            self._same(f"keys and values of {_told([token])}", places, meant)
            changed[places] = False
        for row in range(len(tokens), at.rows) if at.together else ():
            changed[self._slot(Token(tokens[0].text, tokens[0].place + row), pages)] = False
        if at.logits is not None:
            address, size = at.logits
            self._check_logits(tokens, address, size)
            changed[address : address + size * at.rows] = False
        if changed.any():
            raise Unproven(
                f"{_told(tokens)}: {int(changed.sum()):,} bytes of memory are changed that are none of its tokens', "
                f"the one at {int(changed.argmax()):#x} first"
            )

    def _slot(self, token: Token, pages: Mapping[int, Sequence[int]]) -> np.ndarray:
        """Addresses of the keys and values of a token: (layers, 2, heads, length)."""
        cache = self.at.cache
        page, slot = pages[token.text][token.place // cache.keys], np.array([token.place % cache.keys])
        return cache.address + page * cache.page_bytes + self._offsets(slot)[:, :, 0]

    def _check_logits(self, tokens: Sequence[Token], address: int, size: int) -> None:
        n = self.device.config.n
        meant = self.decoder.logits
        column = np.arange(meant.shape[1])
        places = (column // n * 2 * n + column % n)[:, None] + np.array([0, n])
        for row, token in enumerate(tokens):
            self._same(f"logits of {_told([token])}", address + row * size + places, meant[row])

    def _same(self, what: str, places: np.ndarray, meant: np.ndarray) -> None:
        """Compare bytes of memory with what is meant."""
        parts = [
            plane.dram[places].astype(np.int64) << 8 * index for index, plane in enumerate(self.device.planes)
        ]
        found = np.sum(parts, axis=0)
        wrong = (self.values.residues(found) != self.values.residues(meant)).any(axis=-1)
        if wrong.any():
            raise Unproven(
                f"{int(wrong.sum()):,} of {wrong.size:,} bytes of the {what} are not what the model says, byte "
                f"{int(wrong.argmax()):,} first"
            )
        self.compared += wrong.size

    @property
    def error(self) -> float:
        """The probability that what was proven is wrong is below this power of two."""
        values = self.values
        count = len(values) + values.symbols
        return math.ceil(math.log2(max(DEGREE, values.degree) * count**2) - 30 * PRIMES)


def prove_steps(
    model: Language,
    config: Config,
    at: Steps,
    seed: int,
    told: Callable[[str], None] = lambda text: None,
) -> ProvenSteps:
    """Prove a decoder's program for every place of a token.

    Raises `Unproven` if it differs from the model, or it is not known that it does not.
    """
    begin = time.perf_counter()
    context = min(len(model.positions.numpy), at.cache.pages * at.cache.keys)
    texts, pages = 1 if at.together else at.rows, -(-context // at.cache.keys)
    if texts * pages > at.cache.pages:
        raise Unproven(
            f"{texts} texts of {context:,} tokens take {texts * pages:,} pages of keys and values, and there are "
            f"{at.cache.pages:,}: a proof is of rows at all places, so load the model with more pages, or a shorter "
            "context"
        )
    course = Course(model, config, at, seed)
    for tokens in every_step(at, context, np.random.default_rng([seed, 2])):
        told(f"following {_told(tokens)}")
        course.step(tokens)
    return ProvenSteps(
        context, course.steps, course.compared, course.instructions, course.device.done, len(course.values),
        course.error, time.perf_counter() - begin,
    )  # fmt: skip


def every_step(at: Steps, context: int, rng: np.random.Generator) -> Iterator[list[Token]]:
    """Steps in which every row has a token at every place.

    Rows of one text follow each other. Others have texts of their own, at places that are drawn; behind that there are
    some steps with fewer rows, of which several may be of one text.
    """
    if at.together:
        for first in range(0, context, at.rows):
            yield [Token(0, place) for place in range(first, min(first + at.rows, context))]
        return
    if at.rows == 1:
        yield from ([Token(0, place)] for place in range(context))
        return
    orders = [rng.permutation(context) for _ in range(at.rows)]
    for index in range(context):
        yield [Token(row, int(order[index])) for row, order in enumerate(orders)]
    for _ in range(max(_MIXED, context // _MIXED)):
        yield _mixed(int(rng.integers(1, at.rows + 1)), context, rng)


def _mixed(count: int, context: int, rng: np.random.Generator) -> list[Token]:
    """So many rows, those of one text beside each other and in its order."""
    texts = np.sort(rng.integers(0, count, count))
    tokens = []
    for text in np.unique(texts).tolist():
        rows = min(int((texts == text).sum()), context)
        first = int(rng.integers(0, context - rows + 1))
        tokens += [Token(text, first + row) for row in range(rows)]
    return tokens


@contextmanager
def _described() -> Iterator[None]:
    """Raise `Unproven` for a description that has no meaning."""
    try:
        yield
    except LanguageError as error:
        raise Unproven(str(error)) from None
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Unproven(f"the description of the model means nothing: {error}") from None


def _check_reads(reads: Reads, context: int, decoder: Decoder) -> None:
    """Raises `Unproven` if the host reads other than a model has."""
    shapes = {block.keys.shape[1:] for block in decoder.blocks}
    heads, length = shapes.pop() if len(shapes) == 1 else (0, 0)
    found = Reads(context, decoder.logits.shape[1], len(decoder.blocks), heads, length)
    for name, size in vars(reads).items():
        if getattr(found, name) != size:
            raise Unproven(
                f"the host reads {name}={size:,}, and the model has {name}={getattr(found, name):,}"
            )


def _check_regions(at: Steps, frame_bytes: int) -> None:
    """Raises `Unproven` if parts of memory that hold different things overlap."""
    cache = at.cache
    regions = [
        (f"contents {index}", address, len(payload)) for index, (address, payload) in enumerate(at.contents)
    ]
    regions += [(f"scratch {index}", *part) for index, part in enumerate(at.scratch)]
    regions += [
        ("the frame", at.frame, frame_bytes),
        ("pages", cache.address, cache.pages * cache.page_bytes),
    ]
    if at.logits is not None:
        regions.append(("logits", at.logits[0], at.logits[1] * at.rows))
    check_disjoint(regions)


def _told(tokens: Sequence[Token]) -> str:
    """A step in words."""
    places = ", ".join(str(token.place) for token in tokens[:4])
    more = f" and {len(tokens) - 4} more" if len(tokens) > 4 else ""
    return f"token {places}" if len(tokens) == 1 else f"tokens {places}{more}"
