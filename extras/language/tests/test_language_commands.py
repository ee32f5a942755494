"""`weft generate` and `weft perplexity`: text on stdout, all else on stderr, and one sentence for wrong input."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.mostly_long import mostly_long

import weft.extras.language.run.lm
from weft import __main__ as command
from weft.boards.registry import BOARDS
from weft.extras.language import language_commands
from weft.extras.language.certificate import certificate
from weft.extras.language.certificate.certificate import describe_model
from weft.extras.language.certificate.language import Language
from weft.extras.language.compiler.integers import Integers
from weft.extras.language.gguf.writer import write
from weft.extras.language.run.decoder_run import DecoderMemory, Row
from weft.extras.language.run.language_target import Part, Timing
from weft.extras.language.run.lm_machine import Machine, StepCost
from weft.extras.language.tests.support.language_models import random_model
from weft.hdl.isa.config import PRESETS
from weft.run.options import RunOptions

PROMPT = "the quick fox"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write(random_model(np.random.default_rng(5), biases=False), folder / "model.gguf", "Q8_0")
    write(random_model(np.random.default_rng(5), "gpt2"), folder / "gpt2.gguf", "F32")
    return folder


@pytest.fixture(autouse=True)
def folder(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for file in models.iterdir():
        shutil.copy(file, tmp_path)
    Path("text.txt").write_text("the quick brown fox jumps over the lazy dogs")
    return tmp_path


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        command.main(list(arguments))
    return int(left.value.code or 0)


def generate(*options: str, model: str = "model.gguf", config: str = "small") -> int:
    return call("generate", model, "--config", config, *options)


def generate_text(tokens: int = 5, **options: float) -> weft.extras.language.run.lm.Completion:
    with weft.extras.language.run.lm.load("model.gguf", "small") as model:
        return model.generate(PROMPT, tokens=tokens, **options).result  # type: ignore[arg-type]


def test_text_goes_to_stdout_and_all_else_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    result = generate_text()
    assert generate("--prompt", PROMPT, "--tokens", "5") == 0
    out, err = capsys.readouterr()
    assert out == result.text + "\n"
    assert err.splitlines()[-2:] == [
        "configuration: small with loops=1, kernel=256",
        f"{len(result.prompt)} prompt tokens, 5 generated: token limit reached",
    ]
    Path("prompt.txt").write_text(PROMPT)
    assert generate("--prompt-file", "prompt.txt", "--tokens", "5", "--quiet", "--rows", "4") == 0
    assert capsys.readouterr() == (result.text + "\n", "")


def test_options_match_the_interface(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--temperature", "2", "--top-k", "9", "--seed", "4", "--quiet")
    assert generate("--prompt", PROMPT, "--tokens", "5", *options) == 0
    drawn = generate_text(temperature=2.0, top_k=9, seed=4)
    assert capsys.readouterr().out == drawn.text + "\n"
    assert drawn.text != generate_text().text
    stop = generate_text().text[1]
    assert generate("--prompt", PROMPT, "--stop", stop, "--quiet") == 0
    assert capsys.readouterr().out == generate_text().text.split(stop)[0] + "\n"
    assert generate("--prompt", PROMPT, "--context", "5") == 0
    assert "context full" in capsys.readouterr().err
    assert generate("--prompt", PROMPT, "--calibration", "text.txt", "--tokens", "5", "--json") == 0
    assert json.loads(capsys.readouterr().out)["reason"] == "tokens"


def test_programs_are_proven_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--prompt", "the", "--tokens", "1", "--context", "4", "--certify")
    assert generate(*options) == 0
    first, second = (line for line in capsys.readouterr().err.splitlines() if "proven" in line)
    assert first.startswith(
        "the decoder's program: logits, keys and values are proven to equal the model's integers, at all 4 "
        "positions of a text, for any token and any text before it, from "
    )
    assert second.startswith("its program for prompts: keys and values are proven to equal the model's")

    def other(numbers: Integers) -> Language:
        return msgspec.structs.replace(describe_model(numbers), step_ratio=3.0)

    monkeypatch.setattr(certificate, "describe_model", other)
    assert generate(*options) == 1
    out, err = capsys.readouterr()
    assert (out, "Traceback" in err) == ("", False)
    assert "the decoder's program is not proven: " in err.splitlines()[-1]


def test_json_has_tokens_and_cycles(capsys: pytest.CaptureFixture[str]) -> None:
    result = generate_text(3)
    assert generate("--prompt", PROMPT, "--tokens", "3", "--on", "timing", "--clock", "50", "--json") == 0
    actual = json.loads(capsys.readouterr().out)
    assert (actual["format"], actual["on"], actual["text"]) == ("weft generate 1", "timing", result.text)
    assert (actual["prompt_tokens"], actual["tokens"]) == (list(result.prompt), list(result.tokens))
    timing = actual["timing"]
    assert (timing["clock"], timing["peak"]) == (50e6, 8)
    assert (timing["prompt"]["tokens"], timing["following"]["tokens"]) == (len(result.prompt), 2)
    assert timing["prompt"]["cycles"] > timing["following"]["cycles"] > 0
    assert actual["mismatching_bytes"] is None
    assert actual["config"]["loops"] == 1


def test_cycles_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--prompt", PROMPT, "--tokens", "3", "--on", "timing")
    assert generate(*options, "--clock", "50", "--bandwidth", "2") == 0
    lines = capsys.readouterr().err.splitlines()[-2:]
    pattern = (
        r"{}: {} tokens in {} steps, [\d,]+ cycles a token.*, [\d,]+ bytes a token, [\d.]+% of the memory's 2 bytes "
        r"a cycle; at 50 MHz [\d,.]+ tokens a second"
    )
    assert re.fullmatch(pattern.format("prompt", 4, 4), lines[0])
    assert re.fullmatch(pattern.format("following", 2, 2), lines[1])
    assert generate(*options) == 0
    assert "MHz" not in capsys.readouterr().err


def test_sums_of_steps() -> None:
    counted = [StepCost(3, 300, 1200), StepCost(1, 150, 600), StepCost(1, 250, 600)]
    timing = Timing.of(counted, 4, 8, 100e6)
    assert timing.prompt == Part(2, 4, 450, 1800, 150, 300)
    assert timing.following == Part(1, 1, 250, 600, 250, 250)
    assert timing.lines() == [
        "prompt: 4 tokens in 2 steps, 112 cycles a token (steps of 150 to 300), 450 bytes a token, 50.0% of the "
        "memory's 8 bytes a cycle; at 100 MHz 888,888.9 tokens a second",
        "following: 1 token in 1 step, 250 cycles a token, 600 bytes a token, 30.0% of the memory's 8 bytes a "
        "cycle; at 100 MHz 400,000.0 tokens a second",
    ]
    assert len(Timing.of(counted, None, 8, None).lines()) == 1


class TwoAlike(Machine):
    """Runs a second golden interpreter in place of the RTL and injects the differences of `WRONG`."""

    WRONG = 0

    def __init__(self, memory: DecoderMemory, options: RunOptions, *, compare: bool) -> None:
        assert (options.on, compare) == ("rtl", True)
        super().__init__(memory, dataclasses.replace(options, on="golden"))

    def step(self, rows: Sequence[Row]) -> None:
        super().step(rows)
        self.mismatches += self.WRONG


@pytest.mark.parametrize("wrong", [0, 3])
def test_differences_are_exit_code_1(
    wrong: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(weft.extras.language.run.lm, "Machine", TwoAlike)
    monkeypatch.setattr(TwoAlike, "WRONG", wrong)
    assert generate("--prompt", PROMPT, "--tokens", "2", "--on", "rtl") == int(wrong > 0)
    assert capsys.readouterr().err.endswith(f"mismatching bytes: {5 * wrong}\n")
    assert call("perplexity", "model.gguf", "text.txt", "--config", "small", "--on", "rtl") == int(wrong > 0)
    assert "mismatching bytes: " in capsys.readouterr().err


def test_perplexity_beside_float_and_chance(capsys: pytest.CaptureFixture[str]) -> None:
    text = Path("text.txt").read_text()
    with weft.extras.language.run.lm.load("model.gguf", "small", rows=4) as model:
        device, exact = model.perplexity(text), model.perplexity(text, exact=True)
        chance = model.reference.model.sizes.vocabulary
    command_ = ("perplexity", "model.gguf", "text.txt", "--config", "small", "--rows", "4")
    assert call(*command_) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"device:  {device.value:,.4g} ({device.tokens} tokens)", f"float32: {exact.value:,.4g}", f"chance:  {chance}"
    ]  # fmt: skip
    assert call(*command_, "--json", "--on", "timing", "--context", "8", "--stride", "4") == 0
    actual = json.loads(capsys.readouterr().out)
    assert (actual["format"], actual["tokens"], actual["chance"]) == (
        "weft perplexity 1",
        device.tokens,
        chance,
    )
    assert actual["device"] != device.value
    assert actual["timing"]["prompt"]["tokens"] > device.tokens
    assert actual["timing"]["following"]["tokens"] == 0


def test_text_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text is flushed token by token."""
    shown: list[int] = []
    counted = []

    def record(self: Machine, rows: Sequence[Row]) -> None:
        before(self, rows)
        counted.append(len(rows))

    before = Machine.step
    monkeypatch.setattr(Machine, "step", record)
    monkeypatch.setattr(
        language_commands, "without_controls", lambda text: shown.append(len(counted)) or text
    )
    assert generate("--prompt", PROMPT, "--tokens", "6", "--quiet") == 0
    assert len(set(shown)) > 3


def test_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a\x1b[2Jb\n\tc\x07\x9b"
    assert language_commands.without_controls(text) == text
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert language_commands.without_controls(text) == "a\ufffd[2Jb\n\tc\ufffd\ufffd"


REFUSED = [
    ([], "the prompt is missing: give --prompt, or a file with --prompt-file"),
    (
        ["--prompt", "a", "--prompt-file", "text.txt"],
        "--prompt and --prompt-file exclude each other: give one of",
    ),
    (["--prompt", "a", "--clock", "5"], "--clock and --on golden do not go together: it is for --on timing"),
    (["--prompt", "a", "--port", "x"], "--port and --on golden do not go together: it is for --on board"),
    (["--prompt", "a", "--baud", "9600"], "--baud and --on golden do not go together: it is for --on board"),
    (["--prompt", "a", "--compare"], "--compare and --on golden do not go together: it is for --on board"),
    (["--prompt", "a", "--on", "board", "--port", "virtual:none"], "unknown board 'none'; choose "),
    (["--prompt-file", "model.gguf"], "model.gguf is not UTF-8 text: byte "),
    (["--prompt-file", "none"], "cannot use none: No such file or directory"),
    (["--prompt", "a", "--calibration", "."], ". is a folder, not a file"),
    (["--prompt", "the quick fox over dogs" * 6], " tokens; the context has room for 24"),
    (
        ["--prompt", "the quick fox over dogs" * 9],
        "the prompt has 207 characters; the context has room for 24 tokens of at most 6 characters each",
    ),
    (
        ["--prompt", "a", "--temperature", "-1"],
        "'--temperature' must be a finite number from 0 to 100, not -1",
    ),
    (["--prompt", "a", "--top-k", "0"], "'--top-k' must be an integer from 1 to 16,777,216, not 0"),
    (["--prompt", "a", "--rows", "65"], "'--rows' must be an integer from 1 to 64, not 65"),
    (["--prompt", "a", "--context", "25"], "'context' must be an integer from 1 to 24, not 25"),
    (["--prompt", "a", "--stop", ""], "'stop' must be texts that are not empty, not ['']"),
    (["--prompt", "a", "--config", "tiny", "--rows", "64"], "the scratchpad of 1024 vectors has room for "),
    (
        ["--prompt", "a", "--config", "icebreaker"],
        "do not run on configuration icebreaker: they need loops=1",
    ),
    (["--prompt", "a", "--config", "own.json"], "do not run on configuration own.json: they need loops=1"),
    (["--prompt", "a", "--config", "other"], "unknown configuration 'other'"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_wrong_input(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.json").write_text(json.dumps({"preset": "small"}))
    assert generate(*options) == 2
    out, err = capsys.readouterr()
    last = err.splitlines()[-1]
    assert out == ""
    assert last.startswith("error: ")
    assert message in last


def test_a_missing_port(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("--prompt", "a", "--on", "board", "--port", "none") == 1
    assert "error: there is no serial port none" in capsys.readouterr().err


@pytest.mark.parametrize("on", mostly_long(["golden", "timing", "rtl"], 0, 1))
def test_other_architectures_run(on: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("--prompt", PROMPT, "--tokens", "2", "--on", on, model="gpt2.gguf") == 0
    out, err = capsys.readouterr()
    with weft.extras.language.run.lm.load("gpt2.gguf", "small") as model:
        assert out.removesuffix("\n") == model.generate(PROMPT, tokens=2).result.text
    assert ("mismatching bytes: 0" in err) == (on == "rtl")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("text.txt", "text.txt is no GGUF file"),
        ("none.gguf", "cannot use none.gguf: No such file or directory"),
        (".", ". is a folder, not a file"),
    ],
)
def test_wrong_models(model: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("--prompt", "a", model=model) == 2
    assert message in capsys.readouterr().err
    assert call("perplexity", model, "text.txt") == 2
    assert message in capsys.readouterr().err


def test_texts_that_are_too_short_for_a_perplexity(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.txt").write_text("")
    assert call("perplexity", "model.gguf", "empty.txt", "--config", "small") == 2
    assert "a perplexity needs two tokens at least; the text has 1" in capsys.readouterr().err


def test_the_summary_follows_the_text(models: Path) -> None:
    """Both streams in one file keep their order, although stdout is no terminal."""
    arguments = ["generate", "model.gguf", "--prompt", PROMPT, "--tokens", "3", "--config", "small"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.run(
        [sys.executable, "-m", "weft", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=models,
        check=True, env=environment,
    )  # fmt: skip
    assert b" prompt tokens, 3 generated: " in process.stdout


def test_without_the_extra() -> None:
    """Runs in its own process because libraries are loaded only once."""
    code = (
        "import sys; sys.modules['gguf'] = None\n"
        "from weft.__main__ import main\n"
        "main(['generate', 'model.gguf', '--prompt', 'a'])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ
    )
    assert process.returncode == 2
    assert process.stderr.splitlines()[-1] == (
        "error: language models need the Python package 'gguf', which is not installed: pip install 'weft[lm]'"
    )


def test_boards_set_clock_and_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cycles use the board's clock and memory timing, and its memory limits the model."""
    board = BOARDS["ulx3s-85f"]
    config = PRESETS["small"].replace(loops=1, kernel=256, lookup_tables=4)
    changed = dataclasses.replace(board, config=config)
    monkeypatch.setitem(BOARDS, "ulx3s-85f", changed)
    options = ("--prompt", PROMPT, "--tokens", "2", "--on", "timing", "--quiet", "--json")
    assert generate(*options, config="ulx3s-85f") == 0
    actual = json.loads(capsys.readouterr().out)["timing"]
    assert (actual["clock"], actual["peak"]) == (board.clock, 2)
    assert generate(*options, config="small") == 0
    small = json.loads(capsys.readouterr().out)["timing"]
    assert (small["clock"], small["peak"]) == (None, 8)
    assert actual["prompt"]["cycles"] > small["prompt"]["cycles"]
    memory = dataclasses.replace(board.memory, size=1 << 16)
    monkeypatch.setitem(BOARDS, "ulx3s-85f", dataclasses.replace(changed, memory=memory))
    assert generate(*options, config="ulx3s-85f") == 2
    assert "the device has 65536; fewer pages, or a shorter context, take less" in capsys.readouterr().err
