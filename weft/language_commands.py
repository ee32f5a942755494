"""The commands for language models: text from a prompt, and how well a model foretells a text."""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft import files
from weft import report as reports
from weft.errors import FileError
from weft.options import Bandwidth, Configuration, Json, Latency, real, whole, writes

if TYPE_CHECKING:
    from weft.language_report import Took
    from weft.lm import Completion, Model

GENERATE = "weft generate 1"
"""Format of what `weft generate --json` prints."""
PERPLEXITY = "weft perplexity 1"
"""Format of what `weft perplexity --json` prints."""


class Target(enum.StrEnum):
    GOLDEN = "golden"
    RTL = "rtl"
    TIMING = "timing"


File = Annotated[
    Path,
    typer.Argument(
        help="Language model: a GGUF file, or an ONNX file with tokenizer.json beside it.", show_default=False
    ),
]
On = Annotated[Target, typer.Option("--on", help="Where to run; timing counts cycles, and golden computes.")]
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
    as_json: Json = False,
) -> None:
    """Go on with a text, token by token: the text goes to stdout, all else to stderr.

    On rtl, logits are compared with the golden interpreter's, byte by byte. On timing, a model of the hardware tells
    how many cycles tokens take.
    """
    text = _prompt(prompt, prompt_file)
    _check_clock(on, clock)
    with _loaded(model, config, on, context, rows, calibration, latency, bandwidth) as loaded:
        going = loaded.generate(
            text, tokens=tokens, temperature=temperature, top_k=top_k, seed=seed, stop=stop
        )
        if not as_json:
            for piece in going:
                print(shown(piece), end="", flush=True)
            print()
        result = going.result
        took = _took(loaded, config, on, bandwidth, clock, len(result.prompt))
        if as_json:
            print(json.dumps(_generated(loaded, result, took, on), indent=1))
        else:
            from weft.language_report import counted

            made = counted(len(result.tokens), "token")
            _tell(f"{made} behind {len(result.prompt):,}: {result.reason.value}")
            _tell(*([] if took is None else took.lines()))
        _compared(loaded, on)


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
    as_json: Json = False,
) -> None:
    """Tell how well a model foretells a text: its perplexity on the device, and in float32.

    One that knows nothing has as many as there are tokens in its vocabulary.
    """
    read = text_of(text)
    _check_clock(on, clock)
    with _loaded(model, config, on, context, rows, calibration, latency, bandwidth) as loaded:
        with reports.progress() as progress:
            progress("computing in float32")
            exact = loaded.perplexity(read, stride=stride, exact=True)
            progress(f"computing on {on}")
            device = loaded.perplexity(read, stride=stride)
        chance = loaded.reference.model.sizes.vocabulary
        took = _took(loaded, config, on, bandwidth, clock, None)
        if as_json:
            found = {
                "format": PERPLEXITY, "config": loaded.decoder.config.to_dict(), "on": on.value,
                "tokens": device.tokens, "device": device.value, "float32": exact.value, "chance": chance,
                "timing": None if took is None else dataclasses.asdict(took),
                "mismatching_bytes": loaded.mismatches if on is Target.RTL else None,
            }  # fmt: skip
            print(json.dumps(found, indent=1))
        else:
            print(f"device:  {device.value:,.4g} ({device.tokens:,} tokens)")
            print(f"float32: {exact.value:,.4g}")
            print(f"chance:  {chance:,}")
            _tell(*([] if took is None else took.lines()))
        _compared(loaded, on)


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
    content = files.existing(path).read_bytes()
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise FileError(
            f"{path} is no text in UTF-8: byte {error.start} is {content[error.start]:#04x}"
        ) from None


def _check_clock(on: Target, clock: float | None) -> None:
    if clock is not None and on is not Target.TIMING:
        raise FileError(f"--clock and --on {on} do not go together: only timing counts cycles")


def _loaded(
    path: Path,
    config: str,
    on: Target,
    context: int | None,
    rows: int,
    calibration: Path | None,
    latency: int,
    bandwidth: float | None,
) -> Model:
    """The model on the device; says which features a preset has got for it."""
    text = None if calibration is None else text_of(calibration)
    from weft import lm
    from weft.devices import Simulation

    with reports.progress() as progress:
        progress(reports.RTL_STARTS if on is Target.RTL else "reading the model, and choosing its steps")
        model = lm.load(
            files.existing(path), config, rows=rows, context=context, calibration=text,
            on=_board_model(config, bandwidth) or on.value if on is Target.TIMING else on.value,
            simulation=Simulation(latency=latency, bandwidth=bandwidth), compare=on is Target.RTL,
        )  # fmt: skip
    if model.added:
        _tell(f"configuration: {config} with {', '.join(model.added)}")
    for note in model.reference.model.notes:
        reports.warn(note)
    return model


def _board_model(config: str, bandwidth: float | None) -> Any:
    """The cycle model of the board that is named, behind its memory; None for any other configuration, or memory."""
    from weft.board_run import board_model
    from weft.boards.registry import BOARDS

    board = BOARDS.get(config)
    return None if board is None or bandwidth is not None else board_model(board, board.config, board.clock)


def _took(
    model: Model, config: str, on: Target, bandwidth: float | None, clock: float | None, prompt: int | None
) -> Took | None:
    """What steps took on the cycle model; `prompt` are tokens that the first of them were for."""
    if on is not Target.TIMING:
        return None
    from weft.boards.registry import BOARDS
    from weft.configurations import memory_of
    from weft.language_report import Took

    board = BOARDS.get(config)
    hertz = board.clock if clock is None and board is not None else clock and clock * 1e6
    peak = (memory_of(None, config) if bandwidth is None else bandwidth) or model.decoder.config.bus_bytes
    peak = min(peak, model.decoder.config.bus_bytes)
    return Took.of(model.counted, prompt, peak, hertz)


def _generated(model: Model, result: Completion, took: Took | None, on: Target) -> dict[str, Any]:
    return {
        "format": GENERATE,
        "config": model.decoder.config.to_dict(),
        "on": on.value,
        "prompt_tokens": list(result.prompt),
        "tokens": list(result.tokens),
        "text": result.text,
        "reason": result.reason.name.lower(),
        "timing": None if took is None else dataclasses.asdict(took),
        "mismatching_bytes": model.mismatches if on is Target.RTL else None,
    }


def _compared(model: Model, on: Target) -> None:
    """Say how many bytes of logits differ; leave with exit code 1 if any does."""
    if on is Target.RTL:
        _tell(f"mismatching bytes: {model.mismatches:,}")
        if model.mismatches:
            raise typer.Exit(1)


def shown(text: str) -> str:
    """Text of a model for stdout: a terminal is given no control characters but ends of lines and tabs."""
    if not sys.stdout.isatty():
        return text
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else "\ufffd" for c in text)


def _tell(*lines: str) -> None:
    """Print lines of the summary to stderr, where they are apart from the text, and behind what there is of it."""
    sys.stdout.flush()
    if not reports.QUIET.get():
        for line in lines:
            print(reports.told(line), file=sys.stderr)


def add(app: typer.Typer) -> None:
    """Give `app` the commands of this module."""
    app.command()(writes(generate))
    app.command()(writes(perplexity))
