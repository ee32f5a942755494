"""Decoders whose proofs `weft.extras.proof.tests.closure.certificates` attacks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from support.extreme_inputs import COUNT
from support.mutated import change_bytes, change_value, change_words

from weft.extras.language.certificate.certificate import describe_model
from weft.extras.language.certificate.language import Language, Token
from weft.extras.language.run.decoder_run import DecoderMemory
from weft.extras.language.tests.support.certified_decoders import (
    SIZES,
    Point,
    Trial,
    definition,
    in_blocks,
    instructions_of,
    memory_of,
    numbers_of,
    program_of,
    run_step,
    with_code,
    with_contents,
)
from weft.extras.proof.tests.closure.proof_subjects import Result, another, judge
from weft.hdl.isa import End

Rng = np.random.Generator


class DecoderSubject:
    """A decoder's program, either for single tokens or for `prompts`."""

    def __init__(self, memory: DecoderMemory, rng: Rng, *, prompts: bool) -> None:
        self.memory, self.prompts = memory, prompts
        self._model = describe_model(memory.decoder.numbers)
        self._trial = Trial(memory, _points(memory, rng, prompts=prompts), prompts=prompts)

    def attack(self, rng: Rng) -> Result:
        kinds = ["words", "weights and constants", "networks"]
        changed = str(rng.choice(kinds, p=[0.5, 0.35, 0.15]))
        if changed == "networks":
            return self._network(rng)
        if changed == "words":
            items = instructions_of(program_of(self.memory, self.prompts).decoder)[:-1]
            own = another(lambda: change_words(rng, items), items)
            other = with_code(self.memory, [*own, End()], prompts=self.prompts)
        else:
            name = str(rng.choice(["constants", "records"]))
            raw = bytes(getattr(self.memory.decoder.contents, name))
            other = with_contents(self.memory, name, another(lambda: change_bytes(rng, raw), raw))
        refusal = self._refusal(other)
        return judge(changed, refusal, lambda: self._trial.difference(other))

    def _refusal(self, other: DecoderMemory) -> str:
        if other.memory_bytes != self.memory.memory_bytes:
            return "its words take other room"
        return self._trial.find_refusal(other)

    def _network(self, rng: Rng) -> Result:
        """Change the model, or prove the program of another model."""
        stored = msgspec.msgpack.decode(msgspec.msgpack.encode(self._model))
        changed = another(lambda: change_value(rng, stored), stored)
        try:
            model = msgspec.msgpack.decode(msgspec.msgpack.encode(changed), type=Language)
        except (msgspec.MsgspecError, OverflowError) as error:
            return judge("networks", str(error), str)
        return judge("networks", self._trial.of(model), lambda: self._find_difference(rng, model))

    def _find_difference(self, rng: Rng, model: Language) -> str:
        """Return where the model differs from the program's results at sampled tokens and positions."""
        if self.prompts or self.memory.decoder.places.rows > 1:
            memory = memory_of(self.memory.decoder.numbers)  # which is of the same model
        else:
            memory = self.memory
        shape = (
            len(model.layers),
            2,
            SIZES.context,
            model.key_value_heads,
            memory.decoder.places.sizes.key_length,
        )
        for _ in range(5):
            token, place = (
                int(rng.integers(memory.decoder.places.sizes.vocabulary)),
                int(rng.integers(SIZES.context)),
            )
            caches = rng.integers(0, 256, shape)
            meant, result = (
                definition(memory, model, token, place, caches),
                run_step(memory, token, place, caches),
            )
            parts = slice(1, None) if self.prompts else slice(None)  # prompts have no logits
            if not all(map(np.array_equal, meant[parts], result[parts])):
                return f"token {token} at place {place}"
        return ""


def _points(memory: DecoderMemory, rng: Rng, *, prompts: bool) -> list[Point]:
    """Steps with random, saturated and few distinct keys and values."""
    context, rows = SIZES.context, 2 if prompts else memory.decoder.places.rows
    caches: tuple[tuple[int, ...], ...] = ((), (), (128,), (127,), (128, 127), (0,), (255, 0, 1))
    result = []
    for index in range(COUNT):
        place = int(rng.integers(context // rows)) * rows if prompts else int(rng.integers(context))
        tokens = [
            Token(0, place + row) if prompts else Token(row, (place + 3 * row) % context)
            for row in range(rows)
        ]
        result.append(Point(int(rng.integers(1 << 30)), tuple(tokens), caches[index % len(caches)]))
    return result


def decoder_of(seed: int, folder: Path, rng: Rng) -> DecoderSubject:
    """Decoders of both architectures, with several rows, prompts, and weights in blocks of 4 bits."""
    kind, architecture = seed % 4, ("llama", "gpt2")[seed // 4 % 2]
    numbers = in_blocks(folder, architecture, seed=seed) if kind == 3 else numbers_of(architecture, seed)
    memory = memory_of(numbers, rows=2 if kind == 1 else 1, prompt_rows=4 if kind == 2 else 0)
    return DecoderSubject(memory, rng, prompts=kind == 2)


FILES = {"decoders": decoder_of}
