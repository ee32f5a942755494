"""Access control of a server: host names, origins of web pages, and an API key.

A web page can make its own host name resolve to this machine (DNS rebinding); the browser then lets it read answers as
if they were its own. The browser still sends that name in the Host header, so that a server is safe if it answers only
to its own names. Starlette's `TrustedHostMiddleware` checks names too, but it does not know the address of the
connection, and its message does not name a remedy. `CORSMiddleware` only tells browsers what pages may read; it refuses
nothing itself.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

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
        valid = kind.lower() == "bearer" and secrets.compare_digest(key.strip().encode(), self._key)
        if valid or scope["path"] in _PATHS_WITHOUT_KEY:
            await self._app(scope, receive, send)
            return
        message = "the key is wrong" if key else "the request has no key"
        answer = error_body(401, f"{message}: send the server's API key as Authorization: Bearer KEY")
        await JSONResponse(answer, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
