"""The commands that generate text with a language model, measure its perplexity, and serve it as OpenAI's API does."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
import ipaddress
import json
import os
import resource
import socket
import sys
import time
import unicodedata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft import files
from weft import report as reports
from weft.arguments import Real, Whole
from weft.cli.commands import Baud, Configuration, Json, Port, Take, board_port, command
from weft.errors import FileError, InputError
from weft.extras.language.run.language_target import Compare, Running
from weft.run.options import RunOptions

if TYPE_CHECKING:
    from weft.extras.language.run.language_target import Timing
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
    # A model's text could move the cursor or change the terminal.
    if not sys.stdout.isatty():
        return text
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else "\ufffd" for c in text)


BOARD_PORT = "--board-port"
HOW_TO_INSTALL = "pip install 'weft[serve]'"
KEY = "WEFT_API_KEY"
_OTHER_FILES = 64
"""Limit for open files other than connections."""
_M_MMAP_THRESHOLD = -3
"""Code of the parameter M_MMAP_THRESHOLD of the C library's function `mallopt`."""


@command()
def serve(
    model: File,
    config: Configuration = "default",
    host: Annotated[str, typer.Option(help="Address to listen at.", metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, Whole("TCP port to listen at; 0 takes any free port.", 0, 65535)] = 8080,
    rows: Annotated[
        int,
        Whole("Texts to generate at once, and tokens of a prompt to compute side by side.", 1, 64),
    ] = 4,
    context: Context = None,
    pages: Annotated[
        int | None,
        Whole("Pages in the cache of keys and values. Default: enough for all texts.", 1, 1 << 24),
    ] = None,
    calibration: Calibration = None,
    *,
    options: Annotated[RunOptions, Take(on=("golden", "board"))],
    port_of_board: Annotated[str | None, board_port(BOARD_PORT)] = None,
    baud: Baud = None,
    allow_host: Annotated[
        list[str],
        typer.Option(
            "--allow-host",
            metavar="NAME",
            help="Host name that requests may use besides the address; * for any. May be repeated.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    allow_origin: Annotated[
        list[str],
        typer.Option(
            "--allow-origin",
            metavar="ORIGIN",
            help="Origin of web pages that may send requests, as http://NAME:PORT; * for any. May be repeated.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            help=f"Key that requests must carry. Default: {KEY} in the environment, which other users cannot see.",
            show_default=False,
        ),
    ] = None,
    connections: Annotated[
        int, Whole("Maximum number of connections; further ones are refused.", 1, 1 << 16)
    ] = 512,
    read_timeout: Annotated[
        float,
        Real(
            "Seconds that a client has to send a request, or to read an answer.",
            0.1,
            86_400,
        ),
    ] = 30,
    idle_timeout: Annotated[float, Real("Seconds between an answer and the next request.", 0.1, 86_400)] = 5,
) -> None:
    """Serve a language model over HTTP, with an API compatible with OpenAI's, until interrupted.

    The server answers at /v1/completions and /v1/chat/completions.

    Without a key, anybody who can reach the address may use the server.
    """
    # Report missing packages before loading the model, which takes long.
    uvicorn = _import_library("uvicorn")
    for name in ("starlette", "jinja2"):
        _import_library(name)
    text = None if calibration is None else read_text(calibration)
    running = Running(config, options, port=port_of_board, baud=baud, port_option=BOARD_PORT)
    from weft.extras.language.run.engine import Engine
    from weft.extras.language.server.server import Server
    from weft.extras.language.server.server_access import Access, Limits, configuration

    key = os.environ.get(KEY) if api_key is None else api_key
    access = Access((*([host] if host else []), *allow_host), tuple(allow_origin), key)
    limits = Limits(connections, read_timeout, idle_timeout)
    _allow_files(connections + _OTHER_FILES)
    _return_large_blocks()
    loaded = running.load(
        files.require_file(model), rows=rows, context=context, pages=pages, calibration=text
    )
    with loaded, Engine(loaded) as engine, Server(engine, model.stem, read_timeout) as server:
        settings = configuration(server.application(access), limits, quiet=reports.QUIET.get())
        with _open_listener(host, port) as listener:
            address, number, *_ = listener.getsockname()
            if key is None and not ipaddress.ip_address(address).is_loopback:
                reports.warn(
                    f"everybody who reaches {host} may use this server: set a key with --api-key or {KEY}"
                )
            shown = f"[{host}]" if ":" in host else host
            reports.say(f"{model.stem} at http://{shown}:{number}/v1, {rows} texts at once")
            # A client that waits for this line must see it now.
            sys.stdout.flush()
            uvicorn.Server(settings).run([listener])


def _allow_files(count: int) -> None:
    """Raise this process's limit of open files to `count`; raise `InputError` if the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and count > hard:
        raise InputError(
            f"--connections is {count - _OTHER_FILES:,}; this process may have {hard - _OTHER_FILES:,}, because "
            f"`ulimit -Hn` is {hard:,}"
        )
    if soft != resource.RLIM_INFINITY and count > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _return_large_blocks() -> None:
    """Make the C library return the memory of large requests to the system when they end."""
    with contextlib.suppress(AttributeError, OSError):
        # glibc raises its threshold when large blocks are freed, unless it is set.
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 128 << 10)


def _open_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise `InputError` if the address cannot be used."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        errno = error.errno or 0  # negative for errors of name resolution
        message = os.strerror(errno) if errno > 0 else error.strerror
        raise InputError(f"cannot listen at {host}, port {port}: {message or error}") from None


def _import_library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(
            f"serving needs the Python package {name!r}, which is not installed: {HOW_TO_INSTALL}"
        ) from None
