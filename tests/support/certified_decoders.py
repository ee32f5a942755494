"""Small decoders whose programs are proven, as they are or with faults in their words or constants."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from support.certified import with_fault
from support.language_models import pieces, random_model
from weft.compiler.gguf.writer import write
from weft.compiler.language.decoder import Decoder
from weft.compiler.language.integers import Integers, integers
from weft.compiler.language.model import LanguageModel, Sizes
from weft.compiler.language.ranges import ranges
from weft.decoder_run import DecoderMemory, DecoderRun, Program, Row
from weft.hdl.checker.program import ProgramError, check
from weft.hdl.isa import WORD_BYTES, End, Instruction, decode
from weft.hdl.isa.config import Config
from weft.lm_certificate import description, steps_of
from weft.sim.certify.decoder_memory import Token
from weft.sim.certify.steps import Course, ProvenSteps, every_step, prove_steps
from weft.sim.certify.words import Unproven
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
    return integers(model, ranges(model, [_text(model, seed)]))


def in_blocks(folder: Path, architecture: str = "llama", head: str = "Q4_0", seed: int = 1) -> Integers:
    """The same of a file with matrices in blocks of 4 bits; embeddings and head are of type `head`."""
    wide = dict.fromkeys(("width", "key_length", "value_length", "feed_forward"), 32)
    made = _random(architecture, seed, dataclasses.replace(SIZES, **wide), None)
    model = write(made, folder / "model.gguf", "Q4_0", {"token_embd.weight": head, "output.weight": head})
    return integers(model, ranges(model, [_text(model, seed)]), blocks=True)


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
    at = steps_of(memory, chosen)
    return prove_steps(description(memory.decoder.numbers), memory.decoder.config, at, seed)


class Trial:
    """A decoder's program, or that for `prompts`, and others that are to be proven in its place, each in the time that
    differences take."""

    def __init__(
        self, memory: DecoderMemory, steps: Sequence[Sequence[Token]], *, prompts: bool = False
    ) -> None:
        self.memory, self.steps, self.prompts = memory, steps, prompts
        model, at = description(memory.decoder.numbers), steps_of(memory, program_of(memory, prompts))
        self._course = Course(model, memory.decoder.config, at, 1)
        self._every = [*every_step(at, memory.decoder.places.sizes.context, np.random.default_rng(1))]
        self._right = self._outputs(memory)
        assert None not in self._right
        assert self.refused(memory) == ""

    def refused(self, other: DecoderMemory, *, checked: bool = False) -> str:
        """Why a program is not proven, or, if it is to be `checked`, what the program checker says; empty if it is."""
        program = program_of(other, self.prompts)
        self._course.put(steps_of(other, program))
        try:
            for tokens in self._every:
                self._course.step(tokens)
            if checked:
                check(instructions_of(program.decoder), other.decoder.config)
        except (Unproven, ProgramError) as error:
            return str(error)
        return ""

    def differs(self, other: DecoderMemory) -> bool:
        """Whether it leaves something else than the right one behind a step on the golden interpreter."""
        return self._outputs(other) != self._right

    def _outputs(self, memory: DecoderMemory) -> list[list[bytes] | None]:
        return [
            outputs(memory, tokens, np.random.default_rng(seed), prompts=self.prompts)
            for seed, tokens in enumerate(self.steps)
        ]


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


def with_constants(memory: DecoderMemory, rng: np.random.Generator) -> DecoderMemory:
    """The same with another bit in its constants or weights."""
    decoder = copy.copy(memory.decoder)
    decoder.contents = copy.copy(decoder.contents)
    name = str(rng.choice(["constants", "records"]))
    raw = bytearray(getattr(decoder.contents, name))
    raw[int(rng.integers(len(raw)))] ^= 1 << int(rng.integers(8))
    setattr(decoder.contents, name, raw)
    return DecoderMemory(decoder, memory.pages)


def faulty(memory: DecoderMemory, rng: np.random.Generator, *, prompts: bool = False) -> DecoderMemory:
    """The same with a fault in one field of the words of its program, or of that for prompts, or now and then in its
    constants."""
    if rng.random() < 0.15:
        return with_constants(memory, rng)
    decoder = program_of(memory, prompts).decoder
    items = [item for item in instructions_of(decoder) if not isinstance(item, End)]
    return with_code(memory, [*with_fault(rng, items), End()], prompts=prompts)


def outputs(
    memory: DecoderMemory, tokens: Sequence[Token], rng: np.random.Generator, *, prompts: bool = False
) -> list[bytes] | None:
    """What a step, or one of `prompts`, leaves on the golden interpreter: logits, and the pages; None if it refuses the
    program. What is on the chip and in the pages before it is drawn, and so are tokens and pages."""
    device = GoldenDevice(memory.decoder.config, memory.memory_bytes)
    memories, run = device.memories, DecoderRun(memory, device)
    memories.scratchpad[:] = rng.integers(-128, 128, memories.scratchpad.shape)
    memories.accumulator[:] = rng.integers(-9999, 9999, memories.accumulator.shape)
    memories.maxima[:], memories.sums[:] = 3, 99_999
    memories.alignments[:] = rng.integers(-31, 32, memories.alignments.shape)
    places = memory.decoder.places
    pages = rng.permutation(memory.pages).tolist()
    size = memory.pages * places.page_bytes
    device.write(memory.cache, rng.bytes(size))
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
