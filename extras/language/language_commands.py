"""The commands that generate text with a language model and measure its perplexity."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft import files
from weft import report as reports
from weft.arguments import Real, Whole
from weft.cli.commands import Baud, Configuration, Json, Port, Take, command
from weft.errors import FileError
from weft.extras.language.run.language_target import Compare, Running
from weft.run.options import RunOptions

if TYPE_CHECKING:
    from weft.extras.language.run.language_report import Timing
    from weft.extras.language.run.lm import Completion, Model

GENERATE = "weft generate 1"
"""Value of "format" in the output of `weft generate --json`."""
PERPLEXITY = "weft perplexity 1"
"""Value of "format" in the output of `weft perplexity --json`."""


File = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="Language model: a GGUF file, or an ONNX file with tokenizer.json in its folder.",
        show_default=False,
    ),
]
Device = Annotated[RunOptions, Take("latency", "bandwidth", on=("golden", "rtl", "timing", "board"))]
Context = Annotated[
    int | None,
    Whole("Maximum tokens of a text, prompt included. Default: the model's.", 1, 1 << 24),
]
Rows = Annotated[int, Whole("Tokens of the prompt to compute side by side.", 1, 64)]
Calibration = Annotated[
    Path | None,
    typer.Option(
        help="Text to calibrate the quantisation of activations with. Default: texts that the model generates.",
        show_default=False,
    ),
]
Clock = Annotated[
    float | None,
    Real("Clock in MHz for tokens per second (timing). Default: the board's own.", 0.001, 1e5),
]
Certify = Annotated[
    bool,
    typer.Option(
        "--certify",
        help="Prove first that the programs compute the model, at every position in a text.",
    ),
]


@command()
def generate(
    model: File,
    prompt: Annotated[
        str | None, typer.Option(help="Text to continue; it may be empty.", show_default=False)
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="File with the text to continue, used unchanged.", show_default=False)
    ] = None,
    tokens: Annotated[int, Whole("Maximum number of tokens to generate.", 1, 1 << 24)] = 128,
    temperature: Annotated[
        float,
        Real(
            "Sampling temperature, which divides the logits; 0 takes the most likely token.",
            0,
            100,
        ),
    ] = 0.0,
    top_k: Annotated[
        int | None,
        Whole("Sample from this many most likely tokens. Default: from all.", 1, 1 << 24),
    ] = None,
    seed: Annotated[int, Whole("Seed of sampling.", 0, (1 << 32) - 1)] = 0,
    stop: Annotated[
        list[str], typer.Option(help="Stop before this text. May be repeated.", metavar="TEXT")
    ] = [],  # noqa: B006
    config: Configuration = "default",
    *,
    options: Device,
    context: Context = None,
    rows: Rows = 1,
    calibration: Calibration = None,
    clock: Clock = None,
    port: Port = None,
    baud: Baud = None,
    compare: Compare = False,
    certify: Certify = False,
    as_json: Json = False,
) -> None:
    """Generate text from a prompt. The text goes to stdout, everything else to stderr.

    On rtl, logits are compared byte by byte with those of the golden interpreter.

    On timing, the golden interpreter computes and the cycle model counts the cycles of each token.

    On board, the connected board computes everything but the choice of tokens.
    """
    text = _prompt(prompt, prompt_file)
    running = Running(config, options, clock, port, baud, compare)
    with _load(running, model, context, rows, calibration) as loaded:
        if certify:
            with reports.progress() as progress:
                proofs = loaded.certify(progress)
            reports.say_on_stderr(*(item.summary for item in proofs))
        begin = time.monotonic()
        generation = loaded.generate(
            text, tokens=tokens, temperature=temperature, top_k=top_k, seed=seed, stop=stop
        )
        if not as_json:
            for piece in generation:
                print(without_controls(piece), end="", flush=True)
            print()
        result = generation.result
        seconds = time.monotonic() - begin
        timing = running.timing(loaded, len(result.prompt))
        if as_json:
            print(json.dumps(_generation_report(loaded, result, timing, running), indent=1))
        else:
            generated, prompted = len(result.tokens), len(result.prompt)
            reports.say_on_stderr(
                f"{prompted:,} prompt tokens, {generated:,} generated: {result.reason.value}"
            )
            reports.say_on_stderr(*running.timing_lines(timing, seconds))
        running.report_mismatches(loaded)


@command()
def perplexity(
    model: File,
    text: Annotated[Path, typer.Argument(help="Text file in UTF-8.", metavar="TEXT", show_default=False)],
    config: Configuration = "default",
    *,
    options: Device,
    context: Context = None,
    stride: Annotated[
        int | None,
        Whole(
            "Tokens between the starts of successive windows. Default: half the context.",
            1,
            1 << 24,
        ),
    ] = None,
    rows: Rows = 1,
    calibration: Calibration = None,
    clock: Clock = None,
    port: Port = None,
    baud: Baud = None,
    compare: Compare = False,
    as_json: Json = False,
) -> None:
    """Measure a model's perplexity on a text, on the device and in float32.

    For comparison: a model that knows nothing has a perplexity equal to the size of its vocabulary.
    """
    content = read_text(text)
    running = Running(config, options, clock, port, baud, compare)
    with _load(running, model, context, rows, calibration) as loaded:
        with reports.progress() as progress:
            progress("computing in float32")
            exact = loaded.perplexity(content, stride=stride, exact=True)
            progress(f"computing on {options.on}")
            begin = time.monotonic()
            device = loaded.perplexity(content, stride=stride)
            seconds = time.monotonic() - begin
        chance = loaded.reference.model.sizes.vocabulary
        timing = running.timing(loaded, None)
        if as_json:
            report = {
                "format": PERPLEXITY, "config": loaded.decoder.config.to_dict(), "on": options.on,
                "tokens": device.tokens, "device": device.value, "float32": exact.value, "chance": chance,
                "timing": None if timing is None else dataclasses.asdict(timing),
                "mismatching_bytes": loaded.mismatches if running.compares_with_golden else None,
            }  # fmt: skip
            print(json.dumps(report, indent=1))
        else:
            print(f"device:  {device.value:,.4g} ({device.tokens:,} tokens)")
            print(f"float32: {exact.value:,.4g}")
            print(f"chance:  {chance:,}")
            reports.say_on_stderr(*running.timing_lines(timing, seconds))
        running.report_mismatches(loaded)


def _prompt(prompt: str | None, path: Path | None) -> str:
    if prompt is not None and path is not None:
        raise FileError("--prompt and --prompt-file exclude each other: give one of them")
    if path is not None:
        return read_text(path)
    if prompt is None:
        raise FileError("the prompt is missing: give --prompt, or a file with --prompt-file")
    return prompt


def read_text(path: Path) -> str:
    """Read a UTF-8 text file; raise `FileError` if it has another encoding."""
    content = files.require_file(path).read_bytes()
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise FileError(
            f"{path} is not UTF-8 text: byte {error.start} is {content[error.start]:#04x}"
        ) from None


def _load(running: Running, path: Path, context: int | None, rows: int, calibration: Path | None) -> Model:
    text = None if calibration is None else read_text(calibration)
    return running.load(files.require_file(path), rows=rows, context=context, calibration=text)


def _generation_report(
    model: Model, result: Completion, timing: Timing | None, running: Running
) -> dict[str, Any]:
    return {
        "format": GENERATE,
        "config": model.decoder.config.to_dict(),
        "on": running.options.on,
        "prompt_tokens": list(result.prompt),
        "tokens": list(result.tokens),
        "text": result.text,
        "reason": result.reason.name.lower(),
        "timing": None if timing is None else dataclasses.asdict(timing),
        "mismatching_bytes": model.mismatches if running.compares_with_golden else None,
    }


def without_controls(text: str) -> str:
    """Return text for stdout, with control characters but newline and tab replaced if stdout is a terminal."""
    if not sys.stdout.isatty():
        return text
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else "\ufffd" for c in text)
