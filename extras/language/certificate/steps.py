"""Proof that a decoder's program computes its model, step by step, for every position of a token in its text.

A step computes some tokens. The proof shows that logits, and the keys and values that the step appends, are the model's
functions of the embedding and position rows and of all earlier keys and values. It also shows that nothing else in
memory changes. It holds for any token and any contents of the cache. Registers that a program reads from memory, and
entries of page tables, are concrete numbers: a step is proven for each position of a token, with random pages. An empty
cache is one of the proven contents, and each step leaves the cache as the model says. By induction over the tokens of a
text, the program therefore computes the model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from weft.extras.language.certificate.decoder import Decoder
from weft.extras.language.certificate.language import Language, LanguageError, ReadSizes, StepLayout, Token
from weft.extras.language.certificate.recalled import RecallingDevice
from weft.extras.proof.programs.field import PRIMES
from weft.extras.proof.programs.proof import DEGREE, check_disjoint
from weft.extras.proof.programs.symbols import OFFSET_BYTES, join_bytes
from weft.extras.proof.programs.value_device import Unproven
from weft.extras.proof.programs.values import Values
from weft.hdl.isa import Instruction, Normalise
from weft.hdl.isa.config import Config
from weft.sim.device import DeviceError

_MIN_MIXED_STEPS = 8
"""Minimum number of steps in which texts have several rows; also their ratio to positions."""


@dataclass(frozen=True)
class ProvenSteps:
    """Result of a proof.

    Attributes
    ----------
    places : int
        Positions of a text at which a token in every row was proven.
    steps : int
    compared : int
        Bytes of logits, keys and values that were compared.
    instructions, done : int
        Instructions of all steps, and those that were executed because their inputs were new.
    values, error, seconds
        See `weft.extras.proof.programs.proof.Proof`.
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
    """Device that replaces attention's results by the definition's fresh values for them."""

    result_names: dict[bytes, int]

    def _execute(self, index: int, instruction: Instruction) -> None:
        super()._execute(index, instruction)
        if isinstance(instruction, Normalise):
            self.replace(self.memories.addresses(instruction, "dst").ravel(), self._rename)

    def _rename(self, numbers: np.ndarray) -> np.ndarray:
        keys = self.values.residues(numbers).reshape(-1, PRIMES)
        flat = numbers.ravel()
        renamed = [
            self.result_names.get(key.tobytes(), number)
            for key, number in zip(keys, flat.tolist(), strict=True)
        ]
        return np.array(renamed, np.int64).reshape(numbers.shape)


class StepProver:
    """Prover of a program's steps, each on its own.

    Raises
    ------
    Unproven
        If the description is incomplete.
    """

    def __init__(self, model: Language, config: Config, at: StepLayout, seed: int) -> None:
        self.model, self.at = model, at
        self.compared = self.steps = self.instructions = 0
        self.values = values = Values(seed)
        self._rng = np.random.default_rng([seed, 1])
        self.device = _Device(config, at.memory_bytes, values)
        symbols = self.device.symbols
        self._words = values.new_inputs(2 * at.rows * OFFSET_BYTES).reshape(2, at.rows, OFFSET_BYTES)
        tokens, places = (join_bytes(symbols, words) for words in self._words)
        with _catch_description_errors():
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
        texts = 1 if at.consecutive else at.rows
        shape = (texts, len(blocks), 2, self._slots, heads, length)
        self._caches = values.new_inputs(math.prod(shape)).reshape(shape)
        self._arbitrary = values.new_inputs(0)
        self.set_program(at)

    def set_program(self, at: StepLayout) -> None:
        """Switch to another program for the same model; cached results of common instructions are kept.

        It must have as many rows, and the same amount of memory outside its contents.
        """
        self.at, device, values = at, self.device, self.values
        for base, address in at.bases.items():
            device.set_base(base, address)
        is_content = np.zeros(at.memory_bytes, bool)
        for address, payload in at.contents:
            device.write(address, payload)
            is_content[address : address + len(payload)] = True
        # Memory outside the contents holds arbitrary bytes.
        unknown_addresses = np.flatnonzero(~is_content)
        if len(self._arbitrary) < len(unknown_addresses):
            self._arbitrary = values.new_inputs(len(unknown_addresses))
        for index, plane in enumerate(device.planes):
            plane.dram[unknown_addresses] = self._arbitrary[: len(unknown_addresses)] >> 8 * index & 0xFF
        device.turn_register = at.turn_register
        device.fix([(address, address + len(payload)) for address, payload in at.contents])
        self._initial_memory = [plane.dram.copy() for plane in device.planes]

    def step(self, tokens: Sequence[Token]) -> None:
        """Prove one step; raise `Unproven` if that fails."""
        at, device = self.at, self.device
        device.forget()
        for plane, before in zip(device.planes, self._initial_memory, strict=True):
            plane.dram[:] = before
        # Random pages, so that the program cannot rely on an order.
        pages = self._draw_pages(tokens)
        self._fill_cache(pages)
        self._write_frame(tokens, pages)
        memory_before = [plane.dram.copy() for plane in device.planes]
        with _catch_description_errors():
            self._name_results(tokens, self._visible_cache(tokens))
        try:
            device.start(at.entry)
            device.wait()
        except (DeviceError, Unproven) as error:
            raise Unproven(f"{_describe(tokens)}: {error}") from None
        self.steps += 1
        self.instructions += device.instructions
        self._compare(tokens, pages, memory_before)

    def _draw_pages(self, tokens: Sequence[Token]) -> dict[int, list[int]]:
        """Return random pages for each text."""
        page_counts: dict[int, int] = {}
        for token in tokens:
            page_counts[token.text] = max(
                page_counts.get(token.text, 0), token.place // self.at.cache.keys + 1
            )
        drawn = iter(self._rng.permutation(self.at.cache.pages).tolist())
        return {text: [next(drawn) for _ in range(count)] for text, count in page_counts.items()}

    def _fill_cache(self, pages: Mapping[int, Sequence[int]]) -> None:
        """Write keys and values of all texts to memory."""
        cache = self.at.cache
        for text, numbers in pages.items():
            content = self._caches[text]
            for index, page in enumerate(numbers):
                slots = slice(index * cache.keys, (index + 1) * cache.keys)
                content_of_page = self.device.get_values(
                    cache.address + page * cache.page_bytes, cache.page_bytes
                )
                content_of_page[self._offsets(np.arange(cache.keys))] = content[:, :, slots]
                self.device.set_values(cache.address + page * cache.page_bytes, content_of_page)

    def _write_frame(self, tokens: Sequence[Token], pages: Mapping[int, Sequence[int]]) -> None:
        """Write the host's frame, with unknown values in place of the offsets of rows."""
        at = self.at
        numbers = self._rng.integers(0, at.token_rows.count, len(tokens)).tolist()
        frame = at.encode_frame(tokens, numbers, [pages[token.text] for token in tokens])
        _check_regions(at, len(frame))
        self.device.write(at.frame, frame)
        tables = (
            (at.tokens, at.token_rows, numbers),
            (at.places, at.place_rows, [item.place for item in tokens]),
        )
        for (start, rows, expected), words in zip(tables, self._words, strict=True):
            actual = np.frombuffer(frame, "<u4", len(tokens), start).tolist()
            if actual != [rows.first + rows.pitch * number for number in expected]:
                raise Unproven(
                    f"{_describe(tokens)}: the host passes the program other rows than these tokens'"
                )
            # Symbolic offsets stand for any token, and for the row of any position.
            self.device.set_values(at.frame + start, words.ravel())
        for start, size in at.unspecified:
            self.device.set_values(at.frame + start, self.values.new_inputs(size))

    def _offsets(self, slots: np.ndarray) -> np.ndarray:
        """Return the offsets in a page of the bytes of slots: (layers, 2, slots, heads, length)."""
        cache = self.at.cache
        layers, _, _, heads, length = self._caches.shape[1:]
        layer, kind, slot, head, element = np.ogrid[:layers, :2, : len(slots), :heads, :length]
        offsets: np.ndarray = (
            layer * cache.layer + kind * cache.kind + slots[slot] * cache.slot + head * cache.head + element
        )
        return offsets

    def _visible_cache(self, tokens: Sequence[Token]) -> dict[int, np.ndarray]:
        """Return the keys and values that the tokens see, including their own: (layers, 2, slots, heads, length) by
        text.
        """
        visible = {token.text: self._caches[token.text].copy() for token in tokens}
        for row, token in enumerate(tokens):
            for layer, block in enumerate(self.decoder.blocks):
                visible[token.text][layer, 0, token.place] = block.keys[row]
                visible[token.text][layer, 1, token.place] = block.values[row]
        return visible

    def _name_results(self, tokens: Sequence[Token], visible: Mapping[int, np.ndarray]) -> None:
        """Register the definition's fresh values for attention's results with the device."""
        names: dict[bytes, int] = {}
        for row, token in enumerate(tokens):
            for layer, block in enumerate(self.decoder.blocks):
                keys, values = visible[token.text][layer, :, : token.place + 1]
                results = self.decoder.attend(layer, row, keys, values)
                residues = self.values.residues(results).reshape(-1, PRIMES)
                names |= {
                    key.tobytes(): number
                    for key, number in zip(residues, block.results[row].ravel().tolist(), strict=True)
                }
        self.device.result_names = names

    def _compare(
        self, tokens: Sequence[Token], pages: Mapping[int, Sequence[int]], memory_before: Sequence[np.ndarray]
    ) -> None:
        """Raise `Unproven` if memory is not as the model says."""
        at, device = self.at, self.device
        changed = np.logical_or.reduce(
            [plane.dram != before for plane, before in zip(device.planes, memory_before, strict=True)]
        )
        # Allowed changes: scratch memory, the tokens' keys and values, and logits.
        for address, size in at.scratch:
            changed[address : address + size] = False
        for row, token in enumerate(tokens):
            places = self._token_addresses(token, pages)
            expected = np.stack([[block.keys[row], block.values[row]] for block in self.decoder.blocks])
            self._check_equal(f"keys and values of {_describe([token])}", places, expected)
            changed[places] = False
        # A prompt program also writes undefined keys and values for missing rows.
        for row in range(len(tokens), at.rows) if at.consecutive else ():
            changed[self._token_addresses(Token(tokens[0].text, tokens[0].place + row), pages)] = False
        if at.logits is not None:
            address, size = at.logits
            self._check_logits(tokens, address, size)
            changed[address : address + size * at.rows] = False
        if changed.any():
            raise Unproven(
                f"{_describe(tokens)}: {int(changed.sum()):,} bytes of memory changed that are not its tokens', "
                f"the one at {int(changed.argmax()):#x} first"
            )

    def _token_addresses(self, token: Token, pages: Mapping[int, Sequence[int]]) -> np.ndarray:
        """Return the addresses of a token's keys and values: (layers, 2, heads, length)."""
        cache = self.at.cache
        page, slot = pages[token.text][token.place // cache.keys], np.array([token.place % cache.keys])
        return cache.address + page * cache.page_bytes + self._offsets(slot)[:, :, 0]

    def _check_logits(self, tokens: Sequence[Token], address: int, size: int) -> None:
        n = self.device.config.n
        expected = self.decoder.logits
        column = np.arange(expected.shape[1])
        places = (column // n * 2 * n + column % n)[:, None] + np.array([0, n])
        for row, token in enumerate(tokens):
            self._check_equal(f"logits of {_describe([token])}", address + row * size + places, expected[row])

    def _check_equal(self, subject: str, places: np.ndarray, expected: np.ndarray) -> None:
        """Compare bytes of memory with expected values."""
        parts = [
            plane.dram[places].astype(np.int64) << 8 * index for index, plane in enumerate(self.device.planes)
        ]
        actual = np.sum(parts, axis=0)
        differs = (self.values.residues(actual) != self.values.residues(expected)).any(axis=-1)
        if differs.any():
            raise Unproven(
                f"{int(differs.sum()):,} of {differs.size:,} bytes of the {subject} differ from the model, byte "
                f"{int(differs.argmax()):,} first"
            )
        self.compared += differs.size

    @property
    def error(self) -> float:
        """Exponent of a power of two above the probability that the proof is wrong."""
        values = self.values
        count = len(values) + values.function_count
        # Union bound over all pairs of values; each prime has 30 bits.
        return math.ceil(math.log2(max(DEGREE, values.degree) * count**2) - 30 * PRIMES)


def prove_steps(
    model: Language,
    config: Config,
    at: StepLayout,
    seed: int,
    progress: Callable[[str], None] = lambda text: None,
) -> ProvenSteps:
    """Prove a decoder's program for every position of a token.

    Raises
    ------
    Unproven
        If the program differs from the model, or equality cannot be shown.
    """
    begin = time.perf_counter()
    context = min(len(model.positions.numpy), at.cache.pages * at.cache.keys)
    texts, pages = 1 if at.consecutive else at.rows, -(-context // at.cache.keys)
    if texts * pages > at.cache.pages:
        raise Unproven(
            f"{texts} texts of {context:,} tokens take {texts * pages:,} pages of keys and values, and there are "
            f"{at.cache.pages:,}: the proof covers all positions; load the model with more pages, or a shorter "
            "context"
        )
    prover = StepProver(model, config, at, seed)
    for tokens in generate_steps(at, context, np.random.default_rng([seed, 2])):
        progress(f"following {_describe(tokens)}")
        prover.step(tokens)
    return ProvenSteps(
        context, prover.steps, prover.compared, prover.instructions, prover.device.executed, len(prover.values),
        prover.error, time.perf_counter() - begin,
    )  # fmt: skip


def generate_steps(at: StepLayout, context: int, rng: np.random.Generator) -> Iterator[list[Token]]:
    """Yield steps in which every row has a token at every position.

    Consecutive rows share one text. Other rows have texts of their own at random positions; then follow steps with
    fewer rows, of which several may belong to one text.
    """
    if at.consecutive:
        for first in range(0, context, at.rows):
            yield [Token(0, place) for place in range(first, min(first + at.rows, context))]
        return
    if at.rows == 1:
        yield from ([Token(0, place)] for place in range(context))
        return
    orders = [rng.permutation(context) for _ in range(at.rows)]
    for index in range(context):
        yield [Token(row, int(order[index])) for row, order in enumerate(orders)]
    for _ in range(max(_MIN_MIXED_STEPS, context // _MIN_MIXED_STEPS)):
        yield _draw_mixed_step(int(rng.integers(1, at.rows + 1)), context, rng)


def _draw_mixed_step(count: int, context: int, rng: np.random.Generator) -> list[Token]:
    """Return a random step with `count` rows, in which rows of one text are adjacent and in order."""
    texts = np.sort(rng.integers(0, count, count))
    tokens = []
    for text in np.unique(texts).tolist():
        rows = min(int((texts == text).sum()), context)
        first = int(rng.integers(0, context - rows + 1))
        tokens += [Token(text, first + row) for row in range(rows)]
    return tokens


@contextmanager
def _catch_description_errors() -> Iterator[None]:
    """Turn errors of an invalid description into `Unproven`."""
    try:
        yield
    except LanguageError as error:
        raise Unproven(str(error)) from None
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Unproven(f"the description of the model is invalid: {error}") from None


def _check_reads(reads: ReadSizes, context: int, decoder: Decoder) -> None:
    """Raise `Unproven` if the host reads other sizes than the model has."""
    shapes = {block.keys.shape[1:] for block in decoder.blocks}
    heads, length = shapes.pop() if len(shapes) == 1 else (0, 0)
    actual = ReadSizes(context, decoder.logits.shape[1], len(decoder.blocks), heads, length)
    for name, size in vars(reads).items():
        if getattr(actual, name) != size:
            raise Unproven(
                f"the host reads {name}={size:,}, but the model has {name}={getattr(actual, name):,}"
            )


def _check_regions(at: StepLayout, frame_bytes: int) -> None:
    """Raise `Unproven` if memory regions with different purposes overlap."""
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


def _describe(tokens: Sequence[Token]) -> str:
    places = ", ".join(str(token.place) for token in tokens[:4])
    more = f" and {len(tokens) - 4} more" if len(tokens) > 4 else ""
    return f"token {places}" if len(tokens) == 1 else f"tokens {places}{more}"
