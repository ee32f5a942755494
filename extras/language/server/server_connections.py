"""Connections of a server: how many there are, and how long clients may take to send a request and to read an answer.

uvicorn only closes connections that are idle after an answer. It has no time limit for a request, nor for a client that
does not read its answer; and `limit_concurrency` refuses requests, so that clients which send none are never refused.
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
from weft.extras.language.server.server_access import refusal

_LINGER = 2.0
"""Seconds in which a client may read the answer to a request that it has not sent to the end."""


@dataclass(frozen=True)
class Limits:
    """Limits of connections.

    Attributes
    ----------
    connections : int
        Connections at once.
    reading : float
        Seconds for the head of a request, for its body, and for a client to read what was sent to it.
    idle : float
        Seconds from an answer to the first byte of the next request.
    closing : int
        Seconds for texts to end when the server ends.
    """

    connections: int = 512
    reading: float = 30.0
    idle: float = 5.0
    closing: int = 3


def configuration(application: ASGIApp, limits: Limits, *, quiet: bool = False) -> uvicorn.Config:
    """For `uvicorn.Server`. Requests are logged to stderr, a line each, unless it is to be quiet."""
    return uvicorn.Config(
        application, http=functools.partial(Connection, limits=limits), ws="none", lifespan="off",
        timeout_keep_alive=limits.idle, timeout_graceful_shutdown=limits.closing, proxy_headers=False,
        log_config=_log("ERROR" if quiet else "WARNING"), access_log=not quiet, server_header=False,
    )  # fmt: skip


class Connection(H11Protocol):
    """A connection that is closed in time. While an answer is computed, it may last."""

    def __init__(self, *arguments: Any, limits: Limits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._unread = 0
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._close_in(self._limits.reading)
        if len(self.connections) > self._limits.connections:
            self._refuse(
                503,
                f"there are {self._limits.connections:,} connections, and no more are taken: try again later",
            )

    def data_received(self, data: bytes) -> None:
        if not self._refused:
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
        if self._waits:  # else the next request came early
            read = self.conn.their_state is not h11.SEND_BODY
            self._close_in(self._limits.idle + self._limits.reading if read else _LINGER)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._close_in(self._limits.reading)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self._waits:
            self._close_in(None)

    def _should_upgrade(self) -> bool:
        return False  # without the advice to install libraries

    @property
    def _waits(self) -> bool:
        """Whether this is a connection without a request that is being answered; who answers reads the body in time."""
        return self.cycle is None or self.cycle.response_complete

    def _close_in(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._expire)
        self._unread = self.transport.get_write_buffer_size()

    def _expire(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if 0 < unread < self._unread:
            self._close_in(self._limits.reading)  # the client reads, and there is more
        elif self.transport.is_closing() or unread:
            self.transport.abort()
        elif not self._refused and self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(408, f"the head of the request was not sent in {self._limits.reading:g} s")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        """Answer what is no whole request, and close the connection."""
        host, port = self.client or ("", 0)
        self.access_logger.info('%s:%d - "" %d', host, port, status)
        content = json.dumps(refusal(status, message)).encode()
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
        # Closed at once, the connection would be reset by what the client still sends, and the answer lost.
        self._refused = True
        self.transport.write_eof()
        self._close_in(_LINGER)


class _Formatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        return report.printable_line(super().formatMessage(record))


class _Filter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        # When a server ends, uvicorn logs one line for all texts that it cancels, and then an error for each.
        return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def _log(level: str) -> dict[str, Any]:
    """For `logging.config.dictConfig`: everything goes to stderr; of what uvicorn itself logs, from `level` on."""
    handler = {"class": "logging.StreamHandler", "formatter": "weft", "filters": ["weft"]}
    loggers = {"uvicorn": level, "uvicorn.access": "INFO"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"weft": {"()": _Filter}},
        "formatters": {"weft": {"()": _Formatter, "fmt": "%(asctime)s %(message)s"}},
        "handlers": {"weft": handler},
        "loggers": {
            name: {"handlers": ["weft"], "level": least, "propagate": False}
            for name, least in loggers.items()
        },
    }
