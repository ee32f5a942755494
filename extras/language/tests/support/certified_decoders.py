"""Small decoders with proven programs, and faults in their instruction words or constants."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weft.extras.language.certificate.certificate import describe_layout, describe_model
from weft.extras.language.certificate.decoder import Decoder as Definition
from weft.extras.language.certificate.language import Language, StepLayout, Token
from weft.extras.language.certificate.steps import ProvenSteps, StepProver, generate_steps, prove_steps
from weft.extras.language.compiler.decoder import Decoder
from weft.extras.language.compiler.integers import Integers, to_integers
from weft.extras.language.compiler.model import LanguageModel, Sizes
from weft.extras.language.compiler.reference import measure_ranges
from weft.extras.language.gguf.writer import write
from weft.extras.language.run.decoder_run import DecoderMemory, DecoderRun, Program, Row
from weft.extras.language.tests.support.language_models import pieces, random_model
from weft.extras.proof.programs.symbols import Symbols
from weft.extras.proof.programs.value_device import Unproven
from weft.extras.proof.programs.values import CONSTANTS, Values
from weft.extras.proof.tests.support.certified import fill
from weft.hdl.checker.program import check
from weft.hdl.errors import ProgramError
from weft.hdl.isa import WORD_BYTES, Instruction, decode
from weft.hdl.isa.config import Config
from weft.sim.compiled.device import golden_device
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import GoldenDevice

SIZES = Sizes(
    context=10, width=16, blocks=2, heads=2, key_value_heads=1, key_length=8, value_length=8, feed_forward=24,
    vocabulary=0,
)  # fmt: skip
PAGE, PAGES, TOKENS = 8, 6, 43


def config_of(preset: str, int4: int = 0) -> Config:
    """Return a preset with the fields that a decoder requires."""
    return Config.load(preset).replace(loops=1, kernel=256, lookup_tables=4, int4=int4)


def numbers_of(
    architecture: str = "llama", seed: int = 1, sizes: Sizes = SIZES, *, biases: bool | None = None
) -> Integers:
    """Quantise a random model with a small vocabulary."""
    model = _random(architecture, seed, sizes, biases)
    return to_integers(model, measure_ranges(model, [_text(model, seed)]))


def in_blocks(folder: Path, architecture: str = "llama", head: str = "Q4_0", seed: int = 1) -> Integers:
    """Quantise a random model with matrices in blocks of 4 bits; embeddings and head are of type `head`."""
    wide = dict.fromkeys(("width", "key_length", "value_length", "feed_forward"), 32)
    model = _random(architecture, seed, dataclasses.replace(SIZES, **wide), None)
    model = write(model, folder / "model.gguf", "Q4_0", {"token_embd.weight": head, "output.weight": head})
    return to_integers(model, measure_ranges(model, [_text(model, seed)]), blocks=True)


def _random(architecture: str, seed: int, sizes: Sizes, biases: bool | None) -> LanguageModel:
    some = {name: getattr(pieces(), name)[:TOKENS] for name in ("tokens", "kinds", "scores")}
    few = dataclasses.replace(pieces(), **some)
    rng = np.random.default_rng(seed)
    return random_model(rng, architecture, sizes, vocabulary=few, biases=biases)


def _text(model: LanguageModel, seed: int) -> list[int]:
    result: list[int] = np.random.default_rng(seed).integers(0, TOKENS, model.sizes.context).tolist()
    return result


def memory_of(
    numbers: Integers, preset: str = "small", *, rows: int = 1, prompt_rows: int = 0
) -> DecoderMemory:
    """Lay a decoder's program out in memory."""
    config = config_of(preset, 2 if numbers.gains else 0)
    decoder = Decoder(numbers, config, rows=rows, page=PAGE, prompt_rows=prompt_rows)
    return DecoderMemory(decoder, PAGES)


def prove_program(memory: DecoderMemory, program: Program | None = None, seed: int = 1) -> ProvenSteps:
    """Prove a decoder's program, by default for any tokens."""
    chosen = memory.program if program is None else program
    at = describe_layout(memory, chosen)
    return prove_steps(describe_model(memory.decoder.numbers), memory.decoder.config, at, seed)


class Trial:
    """A decoder's program and variants to prove in its place, each in the time that the differences take."""

    def __init__(self, memory: DecoderMemory, points: Sequence[Point], *, prompts: bool = False) -> None:
        self.memory, self.points, self.prompts = memory, points, prompts
        model, at = (
            describe_model(memory.decoder.numbers),
            describe_layout(memory, program_of(memory, prompts)),
        )
        self._course = StepProver(model, memory.decoder.config, at, 1)
        self._every = [*generate_steps(at, memory.decoder.places.sizes.context, np.random.default_rng(1))]
        self._right = self._outputs(memory)
        assert None not in self._right
        assert self.find_refusal(memory) == ""

    def find_refusal(self, other: DecoderMemory, *, checked: bool = False) -> str:
        """Return why the proof fails (or, if `checked`, the program checker) for `other`; empty if it succeeds."""
        program = program_of(other, self.prompts)
        self._course.set_program(describe_layout(other, program))
        try:
            for tokens in self._every:
                self._course.step(tokens)
            if checked:
                check(instructions_of(program.decoder), other.decoder.config)
        except (Unproven, ProgramError) as error:
            return str(error)
        return ""

    def of(self, model: Language) -> str:
        """Return why the program is not proven to compute another model; empty if it is."""
        at = describe_layout(self.memory, program_of(self.memory, self.prompts))
        try:
            course = StepProver(model, self.memory.decoder.config, at, 1)
            for tokens in self._every:
                course.step(tokens)
        except Unproven as error:
            return str(error)
        return ""

    def difference(self, other: DecoderMemory) -> str:
        """Return the first step after which results differ from the right program's; empty if none does."""
        for point, right in zip(self.points, self._right, strict=True):
            if outputs(other, point, prompts=self.prompts) != right:
                return str(point)
        return ""

    def _outputs(self, memory: DecoderMemory) -> list[list[bytes] | None]:
        return [outputs(memory, point, prompts=self.prompts) for point in self.points]


def program_of(memory: DecoderMemory, prompts: bool) -> Program:
    program = memory.prompts if prompts else memory.program
    assert program is not None
    return program


def instructions_of(decoder: Decoder) -> list[Instruction]:
    """Decode a program's instruction words."""
    return [decode(decoder.code[at : at + WORD_BYTES]) for at in range(0, len(decoder.code), WORD_BYTES)]


def with_code(memory: DecoderMemory, items: Sequence[Instruction], *, prompts: bool = False) -> DecoderMemory:
    """Return a copy whose program (or prompt program) has other instructions of equal number."""
    decoder = copy.copy(memory.decoder)
    changed = decoder
    if prompts:
        changed = decoder.prompts = copy.copy(program_of(memory, prompts).decoder)
    changed.code = b"".join(item.encode() for item in items)
    return DecoderMemory(decoder, memory.pages)


def with_contents(memory: DecoderMemory, name: str, raw: bytes) -> DecoderMemory:
    """Return a copy with other contents of "constants" or of "records", which hold the weights."""
    decoder = copy.copy(memory.decoder)
    decoder.contents = copy.copy(decoder.contents)
    setattr(decoder.contents, name, bytearray(raw))
    return DecoderMemory(decoder, memory.pages)


@dataclass(frozen=True)
class Point:
    """Memory and on-chip state before a step, drawn by a seed; cache bytes are drawn from `cache` (all bytes if
    empty)."""

    seed: int
    tokens: tuple[Token, ...]
    cache: tuple[int, ...] = ()


def outputs(memory: DecoderMemory, point: Point, *, prompts: bool = False) -> list[bytes] | None:
    """Return a step's (or prompt step's) logits and pages on the golden interpreter; None if it refuses the program."""
    rng, tokens = np.random.default_rng(point.seed), point.tokens
    device = golden_device(memory.decoder.config, memory.memory_bytes)
    assert isinstance(device, GoldenDevice)
    fill(device, rng)
    run, places = DecoderRun(memory, device), memory.decoder.places
    pages = rng.permutation(memory.pages).tolist()
    size = memory.pages * places.page_bytes
    content = rng.choice(np.array(point.cache or range(256), np.uint8), size).tobytes()
    device.write(memory.cache, content)
    each = memory.pages // (1 if prompts else places.rows)
    numbers = rng.integers(0, places.sizes.vocabulary, len(tokens)).tolist()
    own = [pages[each * token.text : each * (token.text + 1)] for token in tokens]
    rows = [Row(number, token.place, part) for number, token, part in zip(numbers, tokens, own, strict=True)]
    try:
        (run.prompt if prompts else run.step)(rows)
    except DeviceError:
        return None
    contents = memory.decoder.contents
    fixed = (
        (memory.bases[0], bytes(contents.constants)), (memory.records, bytes(contents.records)),
        (memory.program.entry, memory.program.decoder.code),
    )  # fmt: skip
    unchanged = [bytes([device.read(address, len(payload)) == payload]) for address, payload in fixed]
    logits = [] if prompts else [run.logits(row).tobytes() for row in range(len(tokens))]
    return [*unchanged, *logits, device.read(memory.cache, size)]


class _Exact(Definition):
    """Definition on constants and the keys and values of an earlier text; attention results are numbers."""

    caches: np.ndarray
    place: int

    def result_names(self, layer: int) -> np.ndarray:
        block, seen = self.blocks[layer], self.caches[layer].copy()
        seen[0, self.place], seen[1, self.place] = block.keys[0], block.values[0]
        return self.attend(layer, 0, *seen[:, : self.place + 1])


def definition(
    memory: DecoderMemory, model: Language, token: int, place: int, caches: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return a model's bytes for a token at a position: logits (vocabulary, 2), keys and values (layers, 2, heads,
    length). `caches` holds those of earlier tokens: (layers, 2, positions, heads, length)."""
    symbols = Symbols(Values(3))
    _Exact.caches, _Exact.place = caches, place
    columns = model.embedding.shape[1], model.positions.shape[1]
    offsets = [
        symbols.integers(np.array([number * count * 2]))
        for number, count in zip((token, place), columns, strict=True)
    ]
    exact = _Exact(symbols, memory.decoder.config, model, *offsets)
    key_values = np.array([[block.keys[0], block.values[0]] for block in exact.blocks])
    assert max(exact.logits.max(), key_values.max()) < CONSTANTS
    return exact.logits[0], key_values


def run_step(
    memory: DecoderMemory, token: int, place: int, caches: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the bytes of `definition` by running the program on the golden interpreter."""
    at, config = describe_layout(memory, memory.program), memory.decoder.config
    layers, _, _, heads, length = caches.shape
    device = golden_device(config, memory.memory_bytes)
    run = DecoderRun(memory, device)
    places = _slots(at, np.arange(place), layers, heads, length)
    for address, content in zip(places.ravel(), caches[:, :, :place].ravel(), strict=True):
        device.write(int(address), bytes([int(content)]))
    run.step([Row(token, place, range(memory.pages))])
    raw = np.frombuffer(run.logit_bytes(0), np.uint8).reshape(-1, 2, config.n).swapaxes(1, 2).reshape(-1, 2)
    own = _slots(at, np.array([place]), layers, heads, length)[:, :, 0]
    key_values = np.array([device.read(int(byte), 1)[0] for byte in own.ravel()]).reshape(own.shape)
    return raw[: at.reads.vocabulary], key_values


def _slots(at: StepLayout, slots: np.ndarray, layers: int, heads: int, length: int) -> np.ndarray:
    """Return addresses of keys and values of a text with pages in order: (layers, 2, slots, heads, length)."""
    cache = at.cache
    layer, kind, slot, head, element = np.ogrid[:layers, :2, : len(slots), :heads, :length]
    page = slots[slot] // cache.keys * cache.page_bytes
    within = slots[slot] % cache.keys * cache.slot
    result: np.ndarray = (
        cache.address + page + within + layer * cache.layer + kind * cache.kind + head * cache.head
    )
    return result + element
