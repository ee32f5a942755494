"""Speed of decoding on the cycle model and the golden interpreter, with a language model of stories15M's shape.

    python extras/language/benchmarks/language.py

The model has 6 blocks of width 288, 6 heads of length 48, 768 elements between the products of a feed-forward network,
and 32,000 tokens, whose embeddings are also the head's weights. Weights are random; cycles do not depend on them. The
first table shows the hundredth token of one text; the second, prompts with many tokens per step, and several texts
side by side; the third, the speed of the golden interpreter.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping

import numpy as np

from weft.boards.registry import find
from weft.extras.language.compiler.decoder import Decoder
from weft.extras.language.compiler.integers import Integers, to_integers
from weft.extras.language.compiler.layout import Places
from weft.extras.language.compiler.model import (
    Block,
    BlockTensor,
    LanguageModel,
    Linear,
    Matrix,
    Norm,
    Rotary,
    Sizes,
    Vocabulary,
)
from weft.extras.language.compiler.reference import Ranges
from weft.extras.language.run.decoder_run import DecoderMemory, DecoderRun, Row
from weft.extras.language.run.lm_machine import choose_page_size, choose_prompt_rows, language_configuration
from weft.hdl.isa import encoding
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.sim.compiled.device import golden_device
from weft.sim.memories import Sdram
from weft.sim.timing import TimingDevice

SIZES = Sizes(
    context=256, width=288, blocks=6, heads=6, key_value_heads=6, key_length=48, value_length=48, feed_forward=768,
    vocabulary=32_000,
)  # fmt: skip
POSITION = 99
PROMPT = 128
GOLDEN_TOKENS = 8
TEXTS = 16
BOARD = find("ulx3s-85f-lm")


def matrix(rng: np.random.Generator, rows: int, columns: int, *, narrow: bool) -> Matrix:
    """Return a random matrix, optionally in blocks of 4 bits."""
    if not narrow:
        return rng.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)
    values = rng.integers(encoding.INT4_MIN, encoding.INT4_MAX + 1, (rows, columns)).astype(np.int8)
    scales = (
        rng.uniform(0.5, 1, (rows, columns // encoding.GROUP_WORDS)).astype(np.float32) * 0.2 * columns**-0.5
    )
    return BlockTensor(values, scales, None, encoding.GROUP_WORDS)


def model(*, narrow: bool) -> LanguageModel:
    rng, sizes = np.random.default_rng(0), SIZES
    width, heads, keys = sizes.width, sizes.heads * sizes.key_length, sizes.key_value_heads * sizes.key_length

    def linear(rows: int, columns: int) -> Linear:
        return Linear(matrix(rng, rows, columns, narrow=narrow))

    norm = Norm(np.ones(width, np.float32))
    blocks = tuple(
        Block(
            norm, linear(heads, width), linear(keys, width), linear(keys, width), linear(width, heads), norm,
            linear(sizes.feed_forward, width), linear(sizes.feed_forward, width), linear(width, sizes.feed_forward),
        )
        for _ in range(sizes.blocks)
    )  # fmt: skip
    embedding = matrix(rng, sizes.vocabulary, width, narrow=narrow)
    return LanguageModel(
        name="", architecture="llama", sizes=sizes, epsilon=1e-5, token_embedding=embedding,
        rotary=Rotary(sizes.key_length, 10_000.0), positions=None, blocks=blocks, output_norm=norm,
        output=Linear(embedding), vocabulary=Vocabulary("llama", "", (), ()),
    )  # fmt: skip


def ranges() -> Ranges:
    """Return arbitrary ranges, on which cycles do not depend."""
    each = [4.0] * SIZES.blocks
    return Ranges(
        residual=8.0,
        query=each,
        key=each,
        value=each,
        scores=each,
        mixed=each,
        gate=4.0,
        up=4.0,
        inner=8.0,
        logits=16.0,
    )


def measure_step(
    decoder: Decoder, *, bandwidth: float | None = None, sdram: Sdram | None = None
) -> tuple[int, int]:
    """Return cycles of a token, and the bytes that it moves."""
    memory = DecoderMemory(decoder, SIZES.context // decoder.places.page)
    device = TimingDevice(decoder.config, memory.memory_bytes, bandwidth=bandwidth, sdram=sdram)
    DecoderRun(memory, device).step([Row(1, POSITION, range(memory.pages))])
    counters = device.counters()
    beats = counters[Counter.READ_BEATS] + counters[Counter.WRITE_BEATS]
    return counters[Counter.CYCLES], beats * decoder.config.bus_bytes


def configuration(preset: str) -> Config:
    return language_configuration(preset, blocks=True).config


def measure_together(decoder: Decoder, texts: int, bandwidth: float) -> tuple[int, float]:
    """Return cycles per token and utilisation of the array: for the first `PROMPT` tokens of a text, or for a step with
    one token of each of several texts."""
    each = SIZES.context // decoder.places.page
    memory = DecoderMemory(decoder, each * max(texts, 1))
    device = TimingDevice(decoder.config, memory.memory_bytes, bandwidth=bandwidth)
    run = DecoderRun(memory, device)
    if texts:
        compute = run.step
        steps = [[Row(1, POSITION, range(text * each, (text + 1) * each)) for text in range(texts)]]
    else:
        assert decoder.prompts is not None
        compute, rows = run.prompt, decoder.prompts.places.rows
        steps = [
            [Row(1, at, range(each)) for at in range(start, start + rows)] for start in range(0, PROMPT, rows)
        ]
    cycles = active = 0
    for step in steps:
        compute(step)
        counters = device.counters()
        cycles, active = cycles + counters[Counter.CYCLES], active + counters[Counter.ARRAY_ACTIVE]
    return cycles // sum(map(len, steps)), active / cycles


def decoder_for(numbers: Integers, config: Config, texts: int) -> Decoder:
    """Compile for several texts side by side, or (without any) for one text with a prompt program."""
    rows = max(texts, 1)
    page = choose_page_size(SIZES, config, rows, numbers.form)
    prompt_rows = 0 if texts else choose_prompt_rows(Places(SIZES, config, rows, page, numbers.form))
    return Decoder(numbers, config, rows=rows, page=page, prompt_rows=prompt_rows)


def row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def decoding_table(every: Mapping[str, Integers]) -> None:
    """Print a table of decoding one text token by token."""
    row(
        "weights",
        "on",
        "memory",
        "program",
        "cycles a token",
        "bytes a token",
        "of its peak",
        "tokens a second",
    )
    row(*["---"] * 8)
    for name, numbers in every.items():
        for preset in ("default", "small", BOARD.name):
            config = configuration(preset)
            decoder = Decoder(numbers, config, page=choose_page_size(SIZES, config, form=numbers.form))
            code, on = f"{len(decoder.code):,} bytes", f"`{preset}`"
            own = preset == BOARD.name
            for bandwidth in (None,) if own else (config.bus_bytes, config.bus_bytes // 2, 2):
                sdram, clock = (BOARD.sdram(BOARD.clock), BOARD.clock) if own else (None, 1e8)
                cycles, moved = measure_step(decoder, bandwidth=bandwidth, sdram=sdram)
                row(
                    name,
                    on,
                    "its SDRAM" if bandwidth is None else f"{bandwidth} bytes a cycle",
                    code,
                    f"{cycles:,}",
                    f"{moved:,}",
                    f"{moved / (bandwidth or BOARD.memory.peak_bytes_per_cycle or config.bus_bytes) / cycles:.1%}",
                    f"{clock / cycles:.1f} at {clock / 1e6:.0f} MHz",
                )


def batching_table(every: Mapping[str, Integers]) -> None:
    """Print a table of prompt tokens computed together, and of several texts side by side."""
    row("tokens", "weights", "on", "memory", "cycles a token", "array")
    row(*["---"] * 6)
    default = configuration("default")
    for (name, numbers), lanes, texts in itertools.product(
        every.items(), (default.lanes, default.n), (0, TEXTS)
    ):
        on = "`default`" + f" with `lanes` {lanes}" * (lanes != default.lanes)
        subject = f"{texts} texts side by side" if texts else f"a prompt of {PROMPT}"
        decoder = decoder_for(numbers, default.replace(lanes=lanes), texts)
        for bandwidth in (default.bus_bytes, 2):
            cycles, share = measure_together(decoder, texts, bandwidth)
            row(subject, name, on, f"{bandwidth} bytes a cycle", f"{cycles:,}", f"{share:.1%}")


def interpreter_table(every: Mapping[str, Integers]) -> None:
    """Print a table of the golden interpreter's tokens per second for one text."""
    row("weights", "configuration", "tokens a second on the golden interpreter")
    row(*["---"] * 3)
    for (name, numbers), preset in itertools.product(every.items(), ("default", "small")):
        config = configuration(preset)
        decoder = Decoder(numbers, config, page=choose_page_size(SIZES, config, form=numbers.form))
        memory = DecoderMemory(decoder, SIZES.context // decoder.places.page)
        run = DecoderRun(memory, golden_device(config, memory.memory_bytes))
        begin = time.perf_counter()
        for at in range(GOLDEN_TOKENS):
            run.step([Row(1, at, range(memory.pages))])
        row(name, f"`{preset}`", f"{GOLDEN_TOKENS / (time.perf_counter() - begin):.2f}")


if __name__ == "__main__":
    both = {
        name: to_integers(model(narrow=narrow), ranges(), blocks=narrow)
        for name, narrow in (("int8", False), ("Q4_0", True))
    }
    decoding_table(both)
    print()
    batching_table(both)
    print()
    interpreter_table(both)
