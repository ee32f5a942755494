"""Small decoders whose programs are proven, as they are or with faults in their words or constants."""

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
    """A preset with what a decoder takes."""
    return Config.load(preset).replace(loops=1, kernel=256, lookup_tables=4, int4=int4)


def numbers_of(
    architecture: str = "llama", seed: int = 1, sizes: Sizes = SIZES, *, biases: bool | None = None
) -> Integers:
    """The integers of a random model with few tokens."""
    model = _random(architecture, seed, sizes, biases)
    return to_integers(model, measure_ranges(model, [_text(model, seed)]))


def in_blocks(folder: Path, architecture: str = "llama", head: str = "Q4_0", seed: int = 1) -> Integers:
    """The same of a file with matrices in blocks of 4 bits; embeddings and head are of type `head`."""
    wide = dict.fromkeys(("width", "key_length", "value_length", "feed_forward"), 32)
    made = _random(architecture, seed, dataclasses.replace(SIZES, **wide), None)
    model = write(made, folder / "model.gguf", "Q4_0", {"token_embd.weight": head, "output.weight": head})
    return to_integers(model, measure_ranges(model, [_text(model, seed)]), blocks=True)


def _random(architecture: str, seed: int, sizes: Sizes, biases: bool | None) -> LanguageModel:
    some = {name: getattr(pieces(), name)[:TOKENS] for name in ("tokens", "kinds", "scores")}
    few = dataclasses.replace(pieces(), **some)
    rng = np.random.default_rng(seed)
    return random_model(rng, architecture, sizes, vocabulary=few, biases=biases)


def _text(model: LanguageModel, seed: int) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(0, TOKENS, model.sizes.context).tolist()
    return found


def memory_of(
    numbers: Integers, preset: str = "small", *, rows: int = 1, prompt_rows: int = 0
) -> DecoderMemory:
    """The program of a decoder in memory."""
    config = config_of(preset, 2 if numbers.gains else 0)
    decoder = Decoder(numbers, config, rows=rows, page=PAGE, prompt_rows=prompt_rows)
    return DecoderMemory(decoder, PAGES)


def proven(memory: DecoderMemory, program: Program | None = None, seed: int = 1) -> ProvenSteps:
    """Prove a program of a decoder, that for any tokens if none is given."""
    chosen = memory.program if program is None else program
    at = describe_layout(memory, chosen)
    return prove_steps(describe_model(memory.decoder.numbers), memory.decoder.config, at, seed)


class Trial:
    """A decoder's program, or that for `prompts`, and others that are to be proven in its place, each in the time that
    differences take."""

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
        assert self.refused(memory) == ""

    def refused(self, other: DecoderMemory, *, checked: bool = False) -> str:
        """Why a program is not proven, or, if it is to be `checked`, what the program checker says; empty if it is."""
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
        """Why the program is not proven to compute another model; empty if it is."""
        at = describe_layout(self.memory, program_of(self.memory, self.prompts))
        try:
            course = StepProver(model, self.memory.decoder.config, at, 1)
            for tokens in self._every:
                course.step(tokens)
        except Unproven as error:
            return str(error)
        return ""

    def difference(self, other: DecoderMemory) -> str:
        """The first step after which it leaves something else than the right one; empty if there is none."""
        for point, right in zip(self.points, self._right, strict=True):
            if outputs(other, point, prompts=self.prompts) != right:
                return str(point)
        return ""

    def _outputs(self, memory: DecoderMemory) -> list[list[bytes] | None]:
        return [outputs(memory, point, prompts=self.prompts) for point in self.points]


def program_of(memory: DecoderMemory, prompts: bool) -> Program:
    """The program of a decoder, or that for prompts."""
    found = memory.prompts if prompts else memory.program
    assert found is not None
    return found


def instructions_of(decoder: Decoder) -> list[Instruction]:
    """The words of a program, decoded."""
    return [decode(decoder.code[at : at + WORD_BYTES]) for at in range(0, len(decoder.code), WORD_BYTES)]


def with_code(memory: DecoderMemory, items: Sequence[Instruction], *, prompts: bool = False) -> DecoderMemory:
    """The same with other instructions, as many, in its program or in that for prompts."""
    decoder = copy.copy(memory.decoder)
    changed = decoder
    if prompts:
        changed = decoder.prompts = copy.copy(program_of(memory, prompts).decoder)
    changed.code = b"".join(item.encode() for item in items)
    return DecoderMemory(decoder, memory.pages)


def with_contents(memory: DecoderMemory, name: str, raw: bytes) -> DecoderMemory:
    """The same with other "constants", or with other "records", which hold weights."""
    decoder = copy.copy(memory.decoder)
    decoder.contents = copy.copy(decoder.contents)
    setattr(decoder.contents, name, bytearray(raw))
    return DecoderMemory(decoder, memory.pages)


@dataclass(frozen=True)
class Point:
    """What is in memory and on the chip ahead of a step: drawn by a seed. Bytes of keys and values are of `cache`, all
    of them if it is empty."""

    seed: int
    tokens: tuple[Token, ...]
    cache: tuple[int, ...] = ()


def outputs(memory: DecoderMemory, point: Point, *, prompts: bool = False) -> list[bytes] | None:
    """What a step, or one of `prompts`, leaves on the golden interpreter: logits, and the pages; None if it refuses the
    program."""
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
    kept = [bytes([device.read(address, len(payload)) == payload]) for address, payload in fixed]
    logits = [] if prompts else [run.logits(row).tobytes() for row in range(len(tokens))]
    return [*kept, *logits, device.read(memory.cache, size)]


class _Exact(Definition):
    """The definition on constants, with keys and values of a text before: its attention's results are numbers."""

    caches: np.ndarray
    place: int

    def result_names(self, layer: int) -> np.ndarray:
        block, seen = self.blocks[layer], self.caches[layer].copy()
        seen[0, self.place], seen[1, self.place] = block.keys[0], block.values[0]
        return self.attend(layer, 0, *seen[:, : self.place + 1])


def definition(
    memory: DecoderMemory, model: Language, token: int, place: int, caches: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The bytes that a model says for a token at a place: logits (vocabulary, 2), and keys and values (layers, 2,
    heads, length). `caches` are those of a text: (layers, 2, places, heads, length)."""
    symbols = Symbols(Values(3))
    _Exact.caches, _Exact.place = caches, place
    columns = model.embedding.shape[1], model.positions.shape[1]
    offsets = [
        symbols.integers(np.array([number * count * 2]))
        for number, count in zip((token, place), columns, strict=True)
    ]
    found = _Exact(symbols, memory.decoder.config, model, *offsets)
    kept = np.array([[block.keys[0], block.values[0]] for block in found.blocks])
    assert max(found.logits.max(), kept.max()) < CONSTANTS
    return found.logits[0], kept


def computed(
    memory: DecoderMemory, token: int, place: int, caches: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same as the program computes it on the golden interpreter."""
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
    kept = np.array([device.read(int(byte), 1)[0] for byte in own.ravel()]).reshape(own.shape)
    return raw[: at.reads.vocabulary], kept


def _slots(at: StepLayout, slots: np.ndarray, layers: int, heads: int, length: int) -> np.ndarray:
    """Addresses of keys and values of a text whose pages lie in their order: (layers, 2, slots, heads, length)."""
    cache = at.cache
    layer, kind, slot, head, element = np.ogrid[:layers, :2, : len(slots), :heads, :length]
    page = slots[slot] // cache.keys * cache.page_bytes
    within = slots[slot] % cache.keys * cache.slot
    found: np.ndarray = (
        cache.address + page + within + layer * cache.layer + kind * cache.kind + head * cache.head
    )
    return found + element
