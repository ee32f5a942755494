"""The command that serves a language model to programs that speak OpenAI's form."""

from __future__ import annotations

import enum
import importlib
import os
import socket
import sys
from types import ModuleType
from typing import Annotated

import typer

from weft import files
from weft import report as reports
from weft.errors import InputError
from weft.language_commands import Calibration, Context, File, text_of
from weft.language_target import Running, Target
from weft.options import Baud, Configuration, board_port, whole, writes

BOARD_PORT = "--board-port"
HOW_TO_INSTALL = "pip install 'weft[serve]'"
_PATIENCE = 3
"""Seconds that clients have when the server ends."""


class Place(enum.StrEnum):
    GOLDEN = Target.GOLDEN
    BOARD = Target.BOARD


def serve(
    model: File,
    config: Configuration = "default",
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, whole("--port", "Port to listen at; 0 takes any.", 0, 65535)] = 8080,
    rows: Annotated[int, whole("--rows", "Texts that go on at once, and tokens side by side.", 1, 64)] = 4,
    context: Context = None,
    pages: Annotated[
        int | None,
        whole("--pages", "Pages of keys and values; as many as all texts take if not given.", 1, 1 << 24),
    ] = None,
    calibration: Calibration = None,
    on: Annotated[
        Place, typer.Option("--on", help="Where to run: on the golden interpreter, or on a board.")
    ] = Place.GOLDEN,
    port_of_board: Annotated[str | None, board_port(BOARD_PORT)] = None,
    baud: Baud = None,
) -> None:
    """Serve a language model at /v1/completions and /v1/chat/completions until interrupted.

    Anybody who reaches the address may use it.
    """
    uvicorn = _library("uvicorn")
    for name in ("starlette", "jinja2"):
        _library(name)
    text = None if calibration is None else text_of(calibration)
    running = Running(config, Target(on.value), port=port_of_board, baud=baud, port_option=BOARD_PORT)
    from weft.engine import Engine
    from weft.server import Server

    loaded = running.load(files.existing(model), rows=rows, context=context, pages=pages, calibration=text)
    with loaded, Engine(loaded) as engine:
        application = Server(engine, model.stem).application()
        settings = uvicorn.Config(
            application, log_level="warning", lifespan="off", timeout_graceful_shutdown=_PATIENCE
        )
        with _listening(host, port) as listener:
            reports.say(f"{model.stem} at http://{host}:{listener.getsockname()[1]}/v1, {rows} texts at once")
            sys.stdout.flush()
            uvicorn.Server(settings).run([listener])


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises `InputError` if that is not possible there."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        number = error.errno or 0  # below zero for names that nobody knows
        told = os.strerror(number) if number > 0 else error.strerror
        raise InputError(f"cannot listen at {host}, port {port}: {told or error}") from None


def _library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(
            f"serving needs the Python package {name!r}, which is not installed: {HOW_TO_INSTALL}"
        ) from None


def add(app: typer.Typer) -> None:
    """Give `app` the command of this module."""
    app.command()(writes(serve))
