"""Access to a server: host names, origins of web pages, an API key, and limits on connections.

A web page can make its own host name resolve to this machine (DNS rebinding); the browser then lets it read answers as
if they were its own. The browser still sends that name in the Host header, so that a server is safe if it answers only
to its own names. Starlette's `TrustedHostMiddleware` checks names too, but it does not know the address of the
connection, and its message does not name a remedy. `CORSMiddleware` only tells browsers what pages may read; it refuses
nothing itself.

uvicorn itself closes only connections that are idle after an answer. It has no time limit for a request, nor for a
client that does not read its answer. Its `limit_concurrency` counts requests, so it never refuses clients that send
none.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import json
import logging
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from weft import report
from weft.errors import InputError
from weft.hdl.schema import printable

ANY = "*"
_NAME_PATTERN = re.compile(r"\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]*]+")
_HOST_PATTERN = re.compile(rf"({_NAME_PATTERN.pattern})(?::\d*)?")
_ORIGIN_PATTERN = re.compile(rf"[A-Za-z][A-Za-z0-9+.-]*://{_HOST_PATTERN.pattern}")
_KEY_PATTERN = re.compile(r"[!-~]+")
_PATHS_WITHOUT_KEY = ("/health",)
"""Paths for which no key is checked."""


@dataclass(frozen=True)
class Access:
    """Access rules of a server.

    Attributes
    ----------
    hosts : tuple of str
        Accepted host names, beside the address of the connection; ``*`` accepts any.
    origins : tuple of str
        Origins of web pages that may use the server beside its own, such as ``http://localhost:3000``; ``*`` accepts
        any.
    key : str, optional
        Key that requests must send as ``Authorization: Bearer KEY``.

    Raises
    ------
    InputError
        If a host, an origin or the key is malformed.
    """

    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    key: str | None = None

    def __post_init__(self) -> None:
        for host in self.hosts:
            if host != ANY and not _NAME_PATTERN.fullmatch(host) and not _is_address(host):
                raise InputError(
                    f"--allow-host is {printable(host, 60)!r}; it must be a name or an address without a port, or {ANY}"
                )
        for origin in self.origins:
            if origin not in (ANY, "null") and not _ORIGIN_PATTERN.fullmatch(origin):
                raise InputError(
                    f"--allow-origin is {printable(origin, 60)!r}; it must be like http://NAME:PORT, or {ANY}"
                )
        if self.key is not None and not _KEY_PATTERN.fullmatch(self.key):
            raise InputError(
                "the API key must consist of printable ASCII characters without spaces, and not be empty"
            )

    def middleware(self) -> list[Middleware]:
        """Return the middleware for an application, outermost first."""
        middleware = [Middleware(_OriginCheck, hosts=self.hosts, origins=self.origins)]
        if self.origins:
            allowed: dict[str, Any] = {"allow_methods": ["GET", "POST"], "allow_headers": [ANY]}
            middleware.append(
                Middleware(CORSMiddleware, allow_origins=self.origins, allow_private_network=True, **allowed)
            )
        if self.key is not None:
            middleware.append(Middleware(_KeyCheck, key=self.key))
        return middleware


def error_body(status: int, message: str) -> dict[str, Any]:
    """Return an error in OpenAI's format."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


class _OriginCheck:
    """Middleware that refuses requests for other hosts, and requests of pages with other origins."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...], origins: tuple[str, ...]) -> None:
        self._app = app
        self._hosts, self._origins = {_normalise(host) for host in hosts}, set(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        reason = next(self._refusal_reasons(headers.get("host", ""), headers.get("origin"), scope), None)
        if reason is None:
            await self._app(scope, receive, send)
        else:
            await JSONResponse(error_body(403, reason), 403)(scope, receive, send)

    def _refusal_reasons(self, host: str, origin: str | None, scope: Scope) -> Iterator[str]:
        """Yield reasons to refuse a request, if any."""
        name = _HOST_PATTERN.fullmatch(host)
        if ANY not in self._hosts and (name is None or not self._is_own_name(name[1], scope["server"])):
            shown = printable(host, 100)
            yield f"the request is for host {shown!r}; to accept it, start the server with --allow-host"
        own = (f"http://{host}", f"https://{host}")
        if origin is not None and origin not in own and not self._origins & {ANY, origin}:
            shown = printable(origin, 100)
            yield f"the request is from a page of {shown!r}; to accept it, start the server with --allow-origin"

    def _is_own_name(self, name: str, address: tuple[str, int | None] | None) -> bool:
        """Return whether a name is configured, or is that of the connection's local `address`."""
        normalised = _normalise(name)
        if normalised in self._hosts:
            return True
        if address is None:
            return False
        return normalised == _normalise(address[0]) or (
            normalised == "localhost" and ipaddress.ip_address(address[0]).is_loopback
        )


def _normalise(name: str) -> str:
    """Return a name or an address in canonical form."""
    name = name.lower().removesuffix(".").strip("[]")
    return str(ipaddress.ip_address(name)) if _is_address(name) else name


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class _KeyCheck:
    """Middleware that refuses requests without the key."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._key = app, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        # The comparison takes equally long for every wrong key.
        valid = kind.lower() == "bearer" and secrets.compare_digest(key.strip().encode(), self._key)
        if valid or scope["path"] in _PATHS_WITHOUT_KEY:
            await self._app(scope, receive, send)
            return
        message = "the key is wrong" if key else "the request has no key"
        answer = error_body(401, f"{message}: send the server's API key as Authorization: Bearer KEY")
        await JSONResponse(answer, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)


_LINGER_TIME = 2.0
"""Seconds in which a client can read the answer to an incomplete request."""


@dataclass(frozen=True)
class Limits:
    """Limits of connections.

    Attributes
    ----------
    connections : int
        Maximum number of connections.
    read_timeout : float
        Seconds for the head of a request, for its body, and for a client to read an answer.
    idle_timeout : float
        Seconds between an answer and the first byte of the next request.
    shutdown_timeout : int
        Seconds for texts to end when the server stops.
    """

    connections: int = 512
    read_timeout: float = 30.0
    idle_timeout: float = 5.0
    shutdown_timeout: int = 3


def configuration(application: ASGIApp, limits: Limits, *, quiet: bool = False) -> uvicorn.Config:
    """Return the configuration for `uvicorn.Server`. Unless `quiet`, each request is logged to stderr in one line."""
    return uvicorn.Config(
        application, http=functools.partial(Connection, limits=limits), ws="none", lifespan="off",
        timeout_keep_alive=limits.idle_timeout, timeout_graceful_shutdown=limits.shutdown_timeout, proxy_headers=False,
        log_config=_log_config("ERROR" if quiet else "WARNING"), access_log=not quiet, server_header=False,
    )  # fmt: skip


class Connection(H11Protocol):
    """Connection with timeouts. It stays open while an answer is computed."""

    def __init__(self, *arguments: Any, limits: Limits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._last_unread = 0
        self._has_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._close_in(self._limits.read_timeout)
        # uvicorn has already added this connection to the set.
        if len(self.connections) > self._limits.connections:
            self._refuse(
                503,
                f"all {self._limits.connections:,} connections are in use: try again later",
            )

    def data_received(self, data: bytes) -> None:
        if not self._has_refused:
            super().data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._close_in(None)
        super().connection_lost(error)

    def handle_events(self) -> None:
        super().handle_events()
        if not self._waits and not self.flow.write_paused:
            self._close_in(None)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._waits:  # otherwise a pipelined request is being answered
            body_complete = self.conn.their_state is not h11.SEND_BODY
            self._close_in(
                self._limits.idle_timeout + self._limits.read_timeout if body_complete else _LINGER_TIME
            )

    def pause_writing(self) -> None:
        super().pause_writing()
        # The client stopped reading.
        self._close_in(self._limits.read_timeout)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self._waits:
            self._close_in(None)

    def _should_upgrade(self) -> bool:
        return False  # uvicorn would log advice to install websocket libraries

    @property
    def _waits(self) -> bool:
        """True while no request is being answered; the handler limits the time for a request's body."""
        return self.cycle is None or self.cycle.response_complete

    def _close_in(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._expire)
        self._last_unread = self.transport.get_write_buffer_size()

    def _expire(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if 0 < unread < self._last_unread:
            self._close_in(self._limits.read_timeout)  # the client reads, and there is more
        elif self.transport.is_closing() or unread:
            self.transport.abort()
        elif not self._has_refused and self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(408, f"the head of the request was not sent in {self._limits.read_timeout:g} s")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        """Answer an incomplete request and close the connection."""
        host, port = self.client or ("", 0)
        self.access_logger.info('%s:%d - "" %d', host, port, status)
        content = json.dumps(error_body(status, message)).encode()
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(content))),
            ("connection", "close"),
        ]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status]),
            h11.Data(data=content),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))
        # An immediate close would reset the connection when more of the request arrives, and the answer would be lost.
        self._has_refused = True
        self.transport.write_eof()
        self._close_in(_LINGER_TIME)


class _Formatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        return report.printable_line(super().formatMessage(record))


class _Filter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        # When a server stops, uvicorn logs one line for all texts that it cancels, and then an error for each of them.
        return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def _log_config(level: str) -> dict[str, Any]:
    """Return a configuration for `logging.config.dictConfig`: to stderr; uvicorn's own messages from `level` on."""
    handler = {"class": "logging.StreamHandler", "formatter": "weft", "filters": ["weft"]}
    loggers = {"uvicorn": level, "uvicorn.access": "INFO"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"weft": {"()": _Filter}},
        "formatters": {"weft": {"()": _Formatter, "fmt": "%(asctime)s %(message)s"}},
        "handlers": {"weft": handler},
        "loggers": {
            name: {"handlers": ["weft"], "level": minimum, "propagate": False}
            for name, minimum in loggers.items()
        },
    }
