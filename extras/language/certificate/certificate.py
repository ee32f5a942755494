"""Certificates of language models: proofs that a decoder's programs compute the integers of its model."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from weft.extras.language.certificate.language import (
    Cache,
    Language,
    Layer,
    Product,
    ReadSizes,
    StepLayout,
    Token,
)
from weft.extras.language.certificate.steps import ProvenSteps, prove_steps
from weft.extras.language.compiler.integers import Integers, quantise_embedding, rotation_table
from weft.extras.language.compiler.kernel_set import build_kernels
from weft.extras.language.compiler.layout import PRODUCTS
from weft.extras.language.compiler.model import dense
from weft.extras.language.compiler.ordered_code import HEADER_BYTES, ROWS_LEFT
from weft.extras.language.compiler.weights import BYTE_BITS, MAX_ROW_BITS, Weights
from weft.extras.language.run.decoder_run import DecoderMemory, Program, Row
from weft.extras.proof.certificate import CertificateError, formula_of
from weft.extras.proof.programs.graph import Array
from weft.extras.proof.programs.symbols import Rows
from weft.extras.proof.programs.value_device import Unproven
from weft.hdl.checker.program import check
from weft.hdl.errors import ProgramError
from weft.hdl.isa import WORD_BYTES, decode


@dataclass(frozen=True)
class CertifiedProgram:
    """Result of a proof: `name` is that of the program, `results` a description of its outputs."""

    name: str
    results: str
    proven: ProvenSteps

    @property
    def summary(self) -> str:
        """One line for the user."""
        proven = self.proven
        return (
            f"{self.name}: {self.results} are proven to equal the model's integers, at all {proven.places:,} "
            f"positions of a text, for any token and any text before it, from {proven.instructions:,} instructions in "
            f"{proven.seconds:.1f} s (wrong with a probability below 2**{proven.error:g})"
        )


def certify(memory: DecoderMemory, progress: Callable[[str], None]) -> list[CertifiedProgram]:
    """Prove the programs of a decoder as they are in memory; raise `CertificateError` if that fails."""
    programs = [
        _prove_program(memory, memory.program, "the decoder's program", "logits, keys and values", progress)
    ]
    if memory.prompts is not None:
        programs.append(
            _prove_program(memory, memory.prompts, "its program for prompts", "keys and values", progress)
        )
    return programs


def _prove_program(
    memory: DecoderMemory, program: Program, name: str, results: str, progress: Callable[[str], None]
) -> CertifiedProgram:
    code, config = program.decoder.code, program.decoder.config
    words = [decode(code[at : at + WORD_BYTES]) for at in range(0, len(code), WORD_BYTES)]
    try:
        check(words, config)
        model = describe_model(memory.decoder.numbers)
        # The seed is secret: no program can be made that exactly these random values miss.
        proven = prove_steps(model, config, describe_layout(memory, program), secrets.randbits(64), progress)
    except (ProgramError, Unproven) as error:
        raise CertificateError(f"{name} is not proven: {error}") from None
    return CertifiedProgram(name, results, proven)


def describe_model(numbers: Integers) -> Language:
    """Return a decoder for the proof, from its model's integers alone: no part of it comes from a plan or a program."""
    model = numbers.model
    embedding, unit = quantise_embedding(model.token_embedding)
    units = [unit]
    if model.positions is not None:
        positions, unit = quantise_embedding(dense(model.positions)[: model.sizes.context])
        units.append(unit)
    else:
        assert model.rotary is not None
        positions = rotation_table(model.rotary, model.sizes)
    rows = build_kernels(numbers, model.sizes.vocabulary, units)
    head = Product(
        Array.of(numbers.head.values), Array.of(numbers.head_scaled.mantissas), _biases(numbers, "head", 0)
    )
    return Language(
        model.sizes.heads,
        model.sizes.key_value_heads,
        Array.of(embedding),
        Array.of(positions),
        model.rotary is not None,
        {name: formula_of(item, ()) for name, item in rows.items()},
        tuple(_layer(numbers, index) for index in range(len(numbers.layers))),
        numbers.step_ratio,
        MAX_ROW_BITS - BYTE_BITS,
        head,
        _gains(numbers.gains[-1:]),
    )


def _layer(numbers: Integers, index: int) -> Layer:
    layer = numbers.layers[index]
    names = [name for product in PRODUCTS.values() for name in product if name in layer.matrices]
    products = {name: _product(numbers, name, index, layer.matrices[name]) for name in names}
    return Layer(products, layer.octaves, _gains(numbers.gains[2 * index : 2 * index + 2]))


def _product(numbers: Integers, name: str, index: int, weights: Weights) -> Product:
    mantissas = Array.of(numbers.scaled[name][index].mantissas) if name in numbers.scaled else None
    return Product(Array.of(weights.values), mantissas, _biases(numbers, name, index))


def _biases(numbers: Integers, name: str, index: int) -> Array | None:
    return Array.of(numbers.biases[name].numbers[index]) if name in numbers.biases else None


def _gains(gains: Iterable[np.ndarray]) -> tuple[Array, ...]:
    return tuple(map(Array.of, gains))


def describe_layout(memory: DecoderMemory, program: Program) -> StepLayout:
    """Return the memory layout of a decoder's program and all its data."""
    decoder = program.decoder
    places, contents = decoder.places, memory.decoder.contents  # shared by both programs
    constants, records, frame, cache, temporaries, logits = memory.bases
    sizes, rows = places.sizes, places.rows
    codes = [(program.entry, decoder.code), (constants, bytes(contents.constants))]
    prompt = decoder is not memory.decoder
    return StepLayout(
        bases=dict(enumerate(memory.bases)),
        entry=program.entry,
        memory_bytes=memory.memory_bytes,
        contents=[*codes, (records, bytes(contents.records))],
        rows=rows,
        consecutive=places.consecutive,
        frame=frame,
        encode_frame=lambda tokens, numbers, pages: _frame(program, tokens, numbers, pages),
        turn_register=ROWS_LEFT if places.tokens_per_text < rows else None,
        # The prompt program does not read the number of rows.
        unspecified=[(0, HEADER_BYTES)] if prompt else [],
        tokens=HEADER_BYTES,
        places=HEADER_BYTES + 4 * rows,
        token_rows=Rows(sizes.vocabulary, contents.embedding_bytes, contents.embedding),
        place_rows=Rows(sizes.context, contents.position_bytes, contents.positions),
        cache=Cache(
            cache, memory.pages, places.page_bytes, places.page, places.block_bytes, places.head_bytes,
            places.head_bytes // 2, sizes.key_length,
        ),
        logits=None if prompt else (logits, 2 * memory.columns),
        scratch=[(temporaries, places.token_bytes * rows)],
        reads=ReadSizes(sizes.context, sizes.vocabulary, sizes.blocks, sizes.key_value_heads, sizes.key_length),
    )  # fmt: skip


def _frame(
    program: Program, tokens: Sequence[Token], numbers: Sequence[int], pages: Sequence[Sequence[int]]
) -> bytes:
    rows = zip(tokens, numbers, pages, strict=True)
    return program.encode_frame([Row(number, token.place, own) for token, number, own in rows])
