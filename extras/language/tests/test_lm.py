"""Language models on the device: text from a prompt, alone and beside other texts."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import weft.extras.language.run.lm
from weft.compiler.errors import CompileError
from weft.errors import InputError
from weft.extras.language.compiler.decoder import Decoder
from weft.extras.language.compiler.model import Kind, LanguageModel
from weft.extras.language.compiler.reference import Reference
from weft.extras.language.gguf.reader import read
from weft.extras.language.gguf.writer import write
from weft.extras.language.run import lm_ranges
from weft.extras.language.run.decoder_run import DecoderMemory
from weft.extras.language.run.lm import End, Model
from weft.extras.language.run.lm_machine import min_prompt_tokens
from weft.extras.language.tests.support.language_models import SIZES, byte_pairs, pieces, random_model
from weft.hdl.isa.config import Config
from weft.run.options import RunOptions
from weft.sim.compiled.device import CompiledDevice
from weft.sim.device import Device

PROMPT = "the quick fox"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    write(random_model(np.random.default_rng(5), biases=False), path, "Q8_0")
    return path


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with weft.extras.language.run.lm.load(path, "small", rows=3) as loaded:
        yield loaded


def replace_vocabulary(path: Path, target: Path, **changes: object) -> Path:
    result = read(path)
    vocabulary = dataclasses.replace(result.vocabulary, **changes)  # type: ignore[arg-type]
    write(dataclasses.replace(result, vocabulary=vocabulary), target, "F32")
    return target


def test_tokens_follow_their_logits(model: Model) -> None:
    generation = model.generate(PROMPT, tokens=6)
    steps = list(generation)
    result = generation.result
    assert (result.reason, len(result.tokens)) == (End.TOKENS, 6)
    assert result.prompt == tuple(model.tokenizer.encode(PROMPT))
    assert "".join(steps) == result.text
    logits = model.logits([*result.prompt, *result.tokens])
    assert logits.shape == (len(result.prompt) + 6, model.reference.model.sizes.vocabulary)
    last = len(result.prompt) - 1
    assert [int(row.argmax()) for row in logits[last:-1]] == list(result.tokens)
    decoder = model.tokenizer.decoder()
    assert result.text == "".join(map(decoder.feed, result.tokens)) + decoder.end()


def test_drawn_tokens_follow_their_seed(model: Model) -> None:
    def draw(seed: int, **options: float) -> tuple[int, ...]:
        return model.generate(PROMPT, tokens=5, temperature=1.5, seed=seed, **options).result.tokens  # type: ignore[arg-type]

    assert draw(1) == draw(1)
    assert len({draw(seed) for seed in range(4)}) > 1
    assert draw(1, top_k=1) == model.generate(PROMPT, tokens=5).result.tokens


def test_texts_do_not_depend_on_the_order_of_reading(model: Model, path: Path) -> None:
    asked = [
        {"prompt": PROMPT, "tokens": 9},
        {"prompt": PROMPT, "tokens": 7, "temperature": 2.0, "seed": 3},
        {"prompt": "the quick dog", "tokens": 8},
        {"prompt": "over", "tokens": 5, "temperature": 1.0},
        {"prompt": [5, 6, 7], "tokens": 6},
    ]
    going = [model.generate(**options) for options in asked]  # type: ignore[arg-type]
    actual, rng = [""] * len(going), random.Random(1)
    left = list(range(len(going)))
    while left:
        index = rng.choice(left)
        piece = next(going[index], None)
        if piece is None:
            left.remove(index)
        actual[index] += piece or ""
    with weft.extras.language.run.lm.load(path, "small", rows=1) as other:
        for options, text, generation in zip(asked, actual, going, strict=True):
            alone = other.generate(**options).result  # type: ignore[arg-type]
            assert (text, generation.result) == (alone.text, alone)


@pytest.mark.parametrize(
    ("architecture", "biases", "kind"),
    [("gpt2", True, "Q8_0"), ("gpt2", True, "F16"), ("gpt2", True, "Q4_0"), ("llama", True, "Q8_0")],
)
def test_models_with_biases(architecture: str, biases: bool, kind: str, tmp_path: Path) -> None:
    """Split prompts, neighbours and shared pages give identical texts, near the reference."""
    file = tmp_path / "x.gguf"
    write(random_model(np.random.default_rng(8), architecture, biases=biases), file, kind)
    prompts = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14], [5, 6, 7, 8, 9, 10, 11, 12, 13, 99], [200, 3]]
    with (
        weft.extras.language.run.lm.load(file, "small", rows=1) as alone,
        weft.extras.language.run.lm.load(file, "small", rows=3) as beside,
    ):
        expected = [alone.generate(prompt, tokens=6).result for prompt in prompts]
        going = [beside.generate(prompt, tokens=6) for prompt in prompts]
        while beside.step():
            pass
        assert [each.result for each in going] == expected
        tokens = [*prompts[0], *expected[0].tokens]
        exact, actual = alone.reference.logits(tokens), alone.logits(tokens)
    assert np.sqrt(np.mean((actual - exact) ** 2)) < 0.15 * exact.std()


def test_the_model_ends_a_text(path: Path, tmp_path: Path) -> None:
    with weft.extras.language.run.lm.load(path, "small", calibration="the") as loaded:
        tokens = loaded.generate(PROMPT, tokens=4).result.tokens
    last = next(at for at in range(1, 4) if tokens[at] not in tokens[:at])
    ending = replace_vocabulary(path, tmp_path / "x.gguf", end=tokens[last], ends=frozenset({tokens[last]}))
    with weft.extras.language.run.lm.load(ending, "small", calibration="the") as loaded:
        result = loaded.generate(PROMPT, tokens=4).result
        assert (result.reason, result.tokens) == (End.MODEL, loaded.generate(PROMPT).result.tokens)
        decoder = loaded.tokenizer.decoder()
        assert result.text == "".join(map(decoder.feed, result.tokens[:-1])) + decoder.end()
        assert result.tokens[-1] == tokens[last]


@pytest.mark.parametrize(
    ("name", "stop", "reason"),
    [
        ("<|eot_id|>", (), End.MODEL),
        ("<|start_header_id|>", (), End.TOKENS),
        ("<|start_header_id|>", "<|start_header_id|>", End.STOP),
    ],
)
def test_control_tokens_that_end_a_turn(
    name: str, stop: str | tuple[str, ...], reason: End, path: Path, tmp_path: Path
) -> None:
    """The file names no end; the tokens' texts or the caller do."""
    with weft.extras.language.run.lm.load(path, "small", calibration="the") as loaded:
        complete = loaded.generate(PROMPT, tokens=4).result
    token = complete.tokens[1]
    at = complete.tokens.index(token)
    vocabulary = read(path).vocabulary
    tokens, kinds = list(vocabulary.tokens), list(vocabulary.kinds)
    tokens[token], kinds[token] = name, Kind.CONTROL
    ending = replace_vocabulary(path, tmp_path / "x.gguf", tokens=tuple(tokens), kinds=tuple(kinds))
    with weft.extras.language.run.lm.load(ending, "small", calibration="the") as loaded:
        result = loaded.generate(complete.prompt, tokens=4, stop=stop).result
        assert result.reason is reason
        assert result.tokens == complete.tokens[: at + 1 if reason is not End.TOKENS else 4]
        assert name not in result.text
        assert loaded.step() is False


def test_a_stop_sequence_ends_a_text(model: Model) -> None:
    complete = model.generate(PROMPT, tokens=8).result
    stop = complete.text[-1]
    at = complete.text.index(stop)
    for option in (stop, ["no such text", stop]):
        result = model.generate(PROMPT, tokens=16, stop=option).result
        assert (result.text, result.reason) == (complete.text[:at], End.STOP)
    assert model.step() is False  # nothing goes on
    longer = model.generate(PROMPT, tokens=8, stop=stop + "x").result
    assert (longer.text, longer.reason) == (complete.text, End.TOKENS)


def test_the_context_ends_a_text(path: Path) -> None:
    with weft.extras.language.run.lm.load(path, "small", context=6) as loaded:
        result = loaded.generate(PROMPT, tokens=20).result
        assert (len(result.prompt) + len(result.tokens), result.reason) == (7, End.CONTEXT)
        with pytest.raises(InputError, match="the prompt has 7 tokens; the context has room for 6"):
            loaded.generate([1] * 7)
        with pytest.raises(InputError, match="the prompt has 1,000,000 tokens; the context has room for 6"):
            loaded.encode([-1] * 1_000_000)
        assert len(loaded.generate([1] * 6, tokens=1).result.tokens) == 1


def test_long_texts_are_not_encoded_completely(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.extras.language.run.lm._MAX_EXCESS_COUNTED", 2)
    with weft.extras.language.run.lm.load(path, "small", context=6) as loaded:
        encoded: list[str] = []
        merged = loaded.tokenizer._encoder._merge_word  # type: ignore[attr-defined]
        monkeypatch.setattr(
            loaded.tokenizer._encoder, "_cached_merge", lambda word: encoded.append(word) or merged(word)
        )
        with pytest.raises(
            InputError, match=r"^the prompt has more than 8 tokens; the context has room for 6$"
        ):
            loaded.encode("a b c d e f g h i j k l m n")
        assert len(encoded) == 5
        encoded.clear()
        message = (
            "the prompt has 37 characters; the context has room for 6 tokens of at most 6 characters each"
        )
        with pytest.raises(InputError, match=f"^{message}$"):
            loaded.encode("a" * 37)
        assert not encoded


def test_pages_end_a_text(tmp_path: Path) -> None:
    sizes = dataclasses.replace(SIZES, context=80)
    file = tmp_path / "x.gguf"
    write(random_model(np.random.default_rng(1), sizes=sizes, biases=False), file, "F32")
    with weft.extras.language.run.lm.load(file, "small", rows=16, pages=2, calibration="the") as loaded:
        result = loaded.generate([7] * 60, tokens=20).result
        assert (len(result.tokens), result.reason) == (5, End.CACHE)
        with pytest.raises(
            InputError, match="the text has 70 tokens, and pages of keys and values have room for 64"
        ):
            loaded.logits([7] * 70)


def test_an_abandoned_text_leaves_the_batch(model: Model) -> None:
    going = model.generate(PROMPT, tokens=50)
    next(going)
    going.close()
    assert model.step() is False
    assert going.result.reason is End.CANCELLED


def test_empty_prompts(path: Path, tmp_path: Path, model: Model) -> None:
    assert model.encode("") == [1]
    ends = replace_vocabulary(path, tmp_path / "ends.gguf", add_begin=False, add_end=True)
    with weft.extras.language.run.lm.load(ends, "small", calibration="the") as loaded:
        assert loaded.encode("") == [1]  # there is a token for the begin, even if texts do not get it
        assert loaded.encode("fox") == loaded.tokenizer.encode("fox")[:-1]  # without the end
    vocabulary = dataclasses.replace(byte_pairs(), begin=None)
    without = tmp_path / "without.gguf"
    write(random_model(np.random.default_rng(1), biases=False, vocabulary=vocabulary), without, "F32")
    with weft.extras.language.run.lm.load(without, "small", calibration="the") as loaded:
        assert loaded.encode("the")
        with pytest.raises(
            InputError, match="the prompt is empty, and the model's vocabulary has no token for"
        ):
            loaded.generate("")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 0}, "'tokens' must be an integer of at least 1, not 0"),
        ({"temperature": -1}, "'temperature' must be a finite number from 0 to 100, not -1"),
        ({"top_k": 0}, "'top_k' must be an integer from 1 to"),
        ({"stop": ""}, "'stop' must be texts that are not empty, not ''"),
        ({"stop": ["a", 3]}, "'stop' must be texts that are not empty, not "),
        ({"prompt": [300_000]}, "'prompt' must be an integer from 0 to 3"),
        ({"prompt": []}, "the prompt is empty, and"),
    ],
)
def test_arguments_that_are_refused(model: Model, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model.generate(**{"prompt": PROMPT, **options})  # type: ignore[arg-type]
    assert model.step() is False


# --- loading


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "'rows' must be an integer from 1 to 64, not 0"),
        ({"context": 25}, "'context' must be an integer from 1 to 24, not 25"),
        ({"pages": 0}, "'pages' must be an integer of at least 1, not 0"),
        ({"pages": 1 << 24}, "a device has 4,294,967,296 at most: choose fewer pages, or a shorter context"),
        ({"calibration": ""}, None),
        ({"on": "board"}, "unknown device 'board'"),
    ],
)
def test_options_that_are_refused(path: Path, options: dict[str, object], message: str | None) -> None:
    if message is None:
        weft.extras.language.run.lm.load(path, "small", **options).close()  # type: ignore[arg-type] # the token for the begin is a text
        return
    with pytest.raises(InputError, match=message):
        weft.extras.language.run.lm.load(path, "small", **options)  # type: ignore[arg-type]


def test_models_that_are_refused(tmp_path: Path) -> None:
    rng, file = np.random.default_rng(1), tmp_path / "x.gguf"
    write(random_model(rng, biases=False), file, "F32")
    with pytest.raises(CompileError, match="key_length is 8, no multiple of the 16 columns"):
        weft.extras.language.run.lm.load(file)
    small = Config.load("tiny").replace(loops=1, kernel=256, scratchpad_depth=64)
    with pytest.raises(CompileError, match="the scratchpad of 256 vectors has room for"):
        weft.extras.language.run.lm.load(file, small, rows=4)


def test_a_device_with_too_little_memory(path: Path) -> None:
    config = Config.load("small").replace(loops=1, kernel=256)
    with pytest.raises(
        InputError, match="bytes of memory, the device has 4096; fewer pages, or a shorter co"
    ):
        weft.extras.language.run.lm.load(path, config, on=CompiledDevice(config, 4096))
    device = CompiledDevice(config, 1 << 20)
    with weft.extras.language.run.lm.load(path, config, on=device) as loaded:
        assert loaded.generate(PROMPT, tokens=2).result.tokens


# --- devices


class Spoiled(CompiledDevice):
    """A device with one wrong bit in the logits that it reads back."""

    def read(self, address: int, size: int) -> bytes:
        content = super().read(address, size)
        wrong = bytes([content[0] ^ 1]) if size > 100 else content[:1]
        return wrong + content[1:]


def test_devices_are_compared(path: Path, model: Model) -> None:
    config = Config.load("small").replace(loops=1, kernel=256)
    for kind, expected in ((CompiledDevice, 0), (Spoiled, 5)):
        device: Device = kind(config, 1 << 20)
        with weft.extras.language.run.lm.load(path, config, on=device, compare=True) as loaded:
            result = loaded.generate([3, 4, 5], tokens=3).result
            assert (loaded.mismatches, len(loaded.step_costs)) == (expected, 5)
            assert result.tokens == model.generate([3, 4, 5], tokens=3).result.tokens


def test_cycles_are_counted_without_changing_results(path: Path, model: Model) -> None:
    with weft.extras.language.run.lm.load(path, "small", rows=3, on="timing") as loaded:
        result = loaded.generate(PROMPT, tokens=4).result
        assert result == model.generate(PROMPT, tokens=4).result
        assert [step.tokens for step in loaded.step_costs] == [3, 1, 1, 1, 1]
        assert min(step.cycles or 0 for step in loaded.step_costs) > 10_000
        assert min(step.bytes_moved or 0 for step in loaded.step_costs) > 10_000
    slow = RunOptions("timing", bandwidth=0.5)
    with weft.extras.language.run.lm.load(path, "small", rows=3, on=slow) as other:
        other.generate(PROMPT[:1], tokens=1).result  # noqa: B018
        assert (other.step_costs[0].cycles or 0) > 2 * (loaded.step_costs[1].cycles or 0)
        assert other.step_costs[0].bytes_moved == pytest.approx(loaded.step_costs[1].bytes_moved, rel=0.2)
    assert all(step.cycles is None for step in model.step_costs)


def test_prompts_run_together_where_memory_is_the_bottleneck(path: Path, model: Model) -> None:
    """Many tokens then take as long as one; otherwise time grows with products and kernels."""
    slow = RunOptions("timing", bandwidth=0.25)
    with weft.extras.language.run.lm.load(path, "small", on=slow) as loaded:
        prompts = loaded.decoder.prompts
        assert prompts is not None
        memory = DecoderMemory(loaded.decoder, 3)
        least = min_prompt_tokens(memory, slow)
        assert 2 <= least < min_prompt_tokens(memory, RunOptions())
        prompt = [3 + at % 7 for at in range(least + 1)]
        result = loaded.generate(prompt, tokens=2).result
        assert [step.tokens for step in loaded.step_costs] == [least, 1, 1]
        assert result == model.generate(prompt, tokens=2).result
    alone = Decoder(loaded.decoder.numbers, loaded.decoder.config, page=8)
    assert min_prompt_tokens(DecoderMemory(alone, 3), slow) == 0


@pytest.mark.long
def test_the_rtl_matches_the_interpreter(path: Path, model: Model) -> None:
    with weft.extras.language.run.lm.load(path, "small", rows=3, on="rtl", compare=True) as loaded:
        assert loaded.generate(PROMPT, tokens=3).result == model.generate(PROMPT, tokens=3).result
        assert (loaded.mismatches, len(loaded.step_costs)) == (0, 4)


# --- perplexity and ranges


def test_perplexity_is_near_the_reference(model: Model) -> None:
    text = "the quick brown fox jumps over the lazy dogs " * 4
    device, exact = model.perplexity(text), model.perplexity(text, exact=True)
    assert device.tokens == exact.tokens > 10
    assert 0.8 < device.value / exact.value < 1.25
    assert device.value != exact.value
    assert model.perplexity(text, window=4, stride=3).value != device.value


def rms(actual: np.ndarray, exact: np.ndarray) -> float:
    return float(np.sqrt(np.mean((actual - exact) ** 2)) / exact.std())


@pytest.mark.parametrize("seed", range(3))
def test_generated_texts_calibrate_other_texts(seed: int, tmp_path: Path) -> None:
    rng, file = np.random.default_rng(seed), tmp_path / "x.gguf"
    write(random_model(rng, biases=False), file, "F32")
    with weft.extras.language.run.lm.load(file, "small", rows=8) as loaded:
        text = [1, *rng.integers(3, loaded.reference.model.sizes.vocabulary, 20).tolist()]
        assert rms(loaded.logits(text), loaded.reference.logits(text)) < 0.2


def lengths(model: LanguageModel, count: int) -> list[int]:
    return [len(text) for text in lm_ranges.generate_texts(Reference(model), count)]


def test_generated_texts() -> None:
    model = random_model(np.random.default_rng(1), biases=False)
    texts = lm_ranges.generate_texts(Reference(model), 60)
    assert sum(map(len, texts)) == 60
    assert max(map(len, texts)) <= model.sizes.context
    assert all(text[0] == 1 and 2 not in text[:-1] for text in texts)
    assert texts == lm_ranges.generate_texts(Reference(model), 60)
    without = dataclasses.replace(
        model, vocabulary=dataclasses.replace(pieces(), begin=None, ends=frozenset())
    )
    assert lengths(without, 60) == [24, 24, 12]
    assert len({text[0] for text in lm_ranges.generate_texts(Reference(without), 60)}) > 1
    # GPT-2 uses one token for begin and end.
    both = random_model(np.random.default_rng(1), biases=False, vocabulary=byte_pairs())
    assert sum(lengths(both, 30)) == 30
    assert max(lengths(both, 30)) > 1


def test_ranges_are_cached(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm_ranges, "entry", _entry_in(tmp_path))
    counts: list[int] = []
    actual = lm_ranges.generate_texts

    def record(reference: Reference, count: int = 30) -> list[list[int]]:
        counts.append(count)
        return actual(reference, 30)

    monkeypatch.setattr(lm_ranges, "generate_texts", record)
    reference = Reference(read(path))
    first = lm_ranges.model_ranges(reference, "one", None)
    assert lm_ranges.model_ranges(reference, "one", None) == first
    assert len(counts) == 1
    lm_ranges.model_ranges(reference, "other", None)
    assert len(counts) == 2
    cached = lm_ranges.model_ranges(reference, "one", [1, 5, 6])
    assert cached != first
    assert cached == lm_ranges.model_ranges(reference, "one", [1, 5, 6])
    assert len(counts) == 2


def _entry_in(root: Path) -> object:
    from weft.hdl.cache import entry

    return lambda name, make: entry(name, make, root)


def test_texts_are_split_into_windows() -> None:
    tokens: Sequence[int] = list(range(5000))
    actual = lm_ranges.split_text(tokens, 600)
    assert [len(part) for part in actual] == [600, 600, 600, 248]
    assert [token for part in actual for token in part] == list(range(2048))


def test_memory_regions_do_not_overlap(model: Model) -> None:
    memory = DecoderMemory(model.decoder, 5)
    program, prompts = memory.program, memory.prompts
    assert prompts is not None
    places, contents = model.decoder.places, model.decoder.contents
    sizes = [
        (memory.bases[0], len(contents.constants)), (program.entry, len(model.decoder.code)),
        (memory.records, len(contents.records)),
        (program.frame, max(program.frame_bytes(each) for each in (model.decoder, prompts.decoder))),
        (memory.cache, 5 * places.page_bytes), (memory.bases[4], 3 * places.token_bytes),
        (memory.logits, 3 * 2 * memory.columns), (prompts.entry, len(prompts.decoder.code)),
    ]  # fmt: skip
    ends = [at + size for at, size in sizes]
    assert all(end <= at for end, (at, _) in zip(ends, sizes[1:], strict=False))
    assert ends[-1] <= memory.memory_bytes
