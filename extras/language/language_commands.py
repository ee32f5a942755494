"""The commands for language models: text from a prompt, and how well a model foretells a text."""

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
from weft.cli.options import Bandwidth, Baud, Configuration, Json, Latency, Port, real, whole, writes
from weft.errors import FileError
from weft.extras.language.run.language_target import Compare, On, Running, Target

if TYPE_CHECKING:
    from weft.extras.language.run.language_report import Took
    from weft.extras.language.run.lm import Completion, Model

GENERATE = "weft generate 1"
"""Format of what `weft generate --json` prints."""
PERPLEXITY = "weft perplexity 1"
"""Format of what `weft perplexity --json` prints."""


File = Annotated[
    Path,
    typer.Argument(
        help="Language model: a GGUF file, or an ONNX file with tokenizer.json beside it.", show_default=False
    ),
]
Context = Annotated[
    int | None, whole("--context", "Tokens of a text at most; the model's if not given.", 1, 1 << 24)
]
Rows = Annotated[int, whole("--rows", "Tokens of the prompt that are computed side by side.", 1, 64)]
Calibration = Annotated[
    Path | None,
    typer.Option(
        help="Text that steps of numbers are chosen by; if not given, texts that the model makes itself.",
        show_default=False,
    ),
]
Clock = Annotated[
    float | None,
    real("--clock", "MHz that tokens a second are told at (timing); a board's own if not given.", 0.001, 1e5),
]
Certify = Annotated[
    bool,
    typer.Option(
        "--certify",
        help="Prove first that the programs compute the model, for every place of a token in a text.",
    ),
]


def generate(
    model: File,
    prompt: Annotated[
        str | None, typer.Option(help="Text that goes on; it may be empty.", show_default=False)
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="The same from a file, as it is.", show_default=False)
    ] = None,
    tokens: Annotated[int, whole("--tokens", "Tokens that follow at most.", 1, 1 << 24)] = 128,
    temperature: Annotated[
        float, real("--temperature", "What logits are divided by; 0 takes the largest.", 0, 100)
    ] = 0.0,
    top_k: Annotated[
        int | None, whole("--top-k", "Draw from so many tokens only; from all if not given.", 1, 1 << 24)
    ] = None,
    seed: Annotated[int, whole("--seed", "Seed of what is drawn.", 0, (1 << 32) - 1)] = 0,
    stop: Annotated[
        list[str], typer.Option(help="Text in front of which it ends; once for each.", metavar="TEXT")
    ] = [],  # noqa: B006
    config: Configuration = "default",
    on: On = Target.GOLDEN,
    context: Context = None,
    rows: Rows = 1,
    calibration: Calibration = None,
    latency: Latency = 30,
    bandwidth: Bandwidth = None,
    clock: Clock = None,
    port: Port = None,
    baud: Baud = None,
    compare: Compare = False,
    certify: Certify = False,
    as_json: Json = False,
) -> None:
    """Go on with a text, token by token: the text goes to stdout, all else to stderr.

    On rtl, logits are compared with the golden interpreter's, byte by byte. On timing, a model of the hardware tells
    how many cycles tokens take. On board, all but the choice of tokens is computed by the board that is connected.
    """
    text = _prompt(prompt, prompt_file)
    running = Running(config, on, latency, bandwidth, clock, port, baud, compare)
    with _loaded(running, model, context, rows, calibration) as loaded:
        if certify:
            with reports.progress() as progress:
                found = loaded.certify(progress)
            reports.say_on_stderr(*(item.told for item in found))
        begin = time.monotonic()
        going = loaded.generate(
            text, tokens=tokens, temperature=temperature, top_k=top_k, seed=seed, stop=stop
        )
        if not as_json:
            for piece in going:
                print(shown(piece), end="", flush=True)
            print()
        result = going.result
        seconds = time.monotonic() - begin
        took = running.took(loaded, len(result.prompt))
        if as_json:
            print(json.dumps(_generated(loaded, result, took, running), indent=1))
        else:
            from weft.extras.language.run.language_report import counted

            made = counted(len(result.tokens), "token")
            reports.say_on_stderr(f"{made} behind {len(result.prompt):,}: {result.reason.value}")
            reports.say_on_stderr(*running.lines(took, seconds))
        running.compared(loaded)


def perplexity(
    model: File,
    text: Annotated[Path, typer.Argument(help="Text that the model is to foretell.", show_default=False)],
    config: Configuration = "default",
    on: On = Target.GOLDEN,
    context: Context = None,
    stride: Annotated[
        int | None,
        whole("--stride", "Tokens that a window moves on by; half the context if not given.", 1, 1 << 24),
    ] = None,
    rows: Rows = 1,
    calibration: Calibration = None,
    latency: Latency = 30,
    bandwidth: Bandwidth = None,
    clock: Clock = None,
    port: Port = None,
    baud: Baud = None,
    compare: Compare = False,
    as_json: Json = False,
) -> None:
    """Tell how well a model foretells a text: its perplexity on the device, and in float32.

    One that knows nothing has as many as there are tokens in its vocabulary.
    """
    read = text_of(text)
    running = Running(config, on, latency, bandwidth, clock, port, baud, compare)
    with _loaded(running, model, context, rows, calibration) as loaded:
        with reports.progress() as progress:
            progress("computing in float32")
            exact = loaded.perplexity(read, stride=stride, exact=True)
            progress(f"computing on {on}")
            begin = time.monotonic()
            device = loaded.perplexity(read, stride=stride)
            seconds = time.monotonic() - begin
        chance = loaded.reference.model.sizes.vocabulary
        took = running.took(loaded, None)
        if as_json:
            found = {
                "format": PERPLEXITY, "config": loaded.decoder.config.to_dict(), "on": on.value,
                "tokens": device.tokens, "device": device.value, "float32": exact.value, "chance": chance,
                "timing": None if took is None else dataclasses.asdict(took),
                "mismatching_bytes": loaded.mismatches if running.compares else None,
            }  # fmt: skip
            print(json.dumps(found, indent=1))
        else:
            print(f"device:  {device.value:,.4g} ({device.tokens:,} tokens)")
            print(f"float32: {exact.value:,.4g}")
            print(f"chance:  {chance:,}")
            reports.say_on_stderr(*running.lines(took, seconds))
        running.compared(loaded)


def _prompt(prompt: str | None, path: Path | None) -> str:
    if prompt is not None and path is not None:
        raise FileError("--prompt and --prompt-file do not go together: say one of them")
    if path is not None:
        return text_of(path)
    if prompt is None:
        raise FileError("--prompt is missing: say which text goes on, or name a file with --prompt-file")
    return prompt


def text_of(path: Path) -> str:
    """The text in a file."""
    content = files.require_file(path).read_bytes()
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise FileError(
            f"{path} is no text in UTF-8: byte {error.start} is {content[error.start]:#04x}"
        ) from None


def _loaded(running: Running, path: Path, context: int | None, rows: int, calibration: Path | None) -> Model:
    text = None if calibration is None else text_of(calibration)
    return running.load(files.require_file(path), rows=rows, context=context, calibration=text)


def _generated(model: Model, result: Completion, took: Took | None, running: Running) -> dict[str, Any]:
    return {
        "format": GENERATE,
        "config": model.decoder.config.to_dict(),
        "on": running.on.value,
        "prompt_tokens": list(result.prompt),
        "tokens": list(result.tokens),
        "text": result.text,
        "reason": result.reason.name.lower(),
        "timing": None if took is None else dataclasses.asdict(took),
        "mismatching_bytes": model.mismatches if running.compares else None,
    }


def shown(text: str) -> str:
    """Text of a model for stdout: a terminal is given no control characters but ends of lines and tabs."""
    if not sys.stdout.isatty():
        return text
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else "\ufffd" for c in text)


def add(app: typer.Typer) -> None:
    """Give `app` the commands of this module."""
    app.command()(writes(generate))
    app.command()(writes(perplexity))
