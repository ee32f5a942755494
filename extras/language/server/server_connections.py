"""Connections of a server, with limits on their number and on the time for requests and answers.

uvicorn itself closes only connections that are idle after an answer. It has no time limit for a request, nor for a
client that does not read its answer. Its `limit_concurrency` counts requests, so it never refuses clients that send
none.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from weft import report
from weft.extras.language.server.server_access import error_body

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
