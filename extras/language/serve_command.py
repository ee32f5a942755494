"""The command that serves a language model with an API compatible with OpenAI's."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import ipaddress
import os
import resource
import socket
import sys
from types import ModuleType
from typing import Annotated

import typer

from weft import files
from weft import report as reports
from weft.arguments import Real, Whole
from weft.cli.commands import Baud, Configuration, Take, board_port, command
from weft.errors import InputError
from weft.extras.language.language_commands import Calibration, Context, File, read_text
from weft.extras.language.run.language_target import Running
from weft.run.options import RunOptions

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
    uvicorn = _import_library("uvicorn")
    for name in ("starlette", "jinja2"):
        _import_library(name)
    text = None if calibration is None else read_text(calibration)
    running = Running(config, options, port=port_of_board, baud=baud, port_option=BOARD_PORT)
    from weft.extras.language.run.engine import Engine
    from weft.extras.language.server.server import Server
    from weft.extras.language.server.server_access import Access
    from weft.extras.language.server.server_connections import Limits, configuration

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
