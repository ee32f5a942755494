"""Who may use a server: names it answers to, pages of browsers that may ask it, and a key.

A page of any origin can have its own name lead to this machine (DNS rebinding), and then reads answers as its own. The
browser sends that name as the host of the request: a server that only answers to its own names is safe. Starlette's
`TrustedHostMiddleware` compares names as well; it does not know the address that a connection came in at, and its
answer does not say what to do. `CORSMiddleware` tells browsers what pages may read, and refuses nothing itself.
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
_NAME = re.compile(r"\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]*]+")
_HOST = re.compile(rf"({_NAME.pattern})(?::\d*)?")
_ORIGIN = re.compile(rf"[A-Za-z][A-Za-z0-9+.-]*://{_HOST.pattern}")
_KEY = re.compile(r"[!-~]+")
_OPEN = ("/health",)
"""Paths that take no key."""


@dataclass(frozen=True)
class Access:
    """Who may use a server.

    Attributes
    ----------
    hosts : tuple of str
        Names that requests may be for, beside the address that they come in at; ``*`` stands for any.
    origins : tuple of str
        Of pages that may use it, such as ``http://localhost:3000``, beside those of this server; ``*`` stands for any.
    key : str, optional
        That requests must bring as ``Authorization: Bearer KEY``.

    Raises
    ------
    InputError
        If one of them cannot be such a name, origin or key.
    """

    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    key: str | None = None

    def __post_init__(self) -> None:
        for host in self.hosts:
            if host != ANY and not _NAME.fullmatch(host) and not _is_address(host):
                raise InputError(
                    f"--allow-host is {printable(host, 60)!r}; it must be a name or an address without a port, or {ANY}"
                )
        for origin in self.origins:
            if origin not in (ANY, "null") and not _ORIGIN.fullmatch(origin):
                raise InputError(
                    f"--allow-origin is {printable(origin, 60)!r}; it must be like http://NAME:PORT, or {ANY}"
                )
        if self.key is not None and not _KEY.fullmatch(self.key):
            raise InputError(
                "the API key must be of letters, digits and signs of ASCII, without spaces, and not empty"
            )

    def layers(self) -> list[Middleware]:
        """Layers around an application, the outermost first."""
        found = [Middleware(_Names, hosts=self.hosts, origins=self.origins)]
        if self.origins:
            allowed: dict[str, Any] = {"allow_methods": ["GET", "POST"], "allow_headers": [ANY]}
            found.append(
                Middleware(CORSMiddleware, allow_origins=self.origins, allow_private_network=True, **allowed)
            )
        if self.key is not None:
            found.append(Middleware(_Key, key=self.key))
        return found


def refusal(status: int, message: str) -> dict[str, Any]:
    """An error in OpenAI's form."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


class _Names:
    """Refuses requests for other hosts, and of pages of other origins."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...], origins: tuple[str, ...]) -> None:
        self._app = app
        self._hosts, self._origins = {_plain(host) for host in hosts}, set(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        reason = next(self._reasons(headers.get("host", ""), headers.get("origin"), scope), None)
        if reason is None:
            await self._app(scope, receive, send)
        else:
            await JSONResponse(refusal(403, reason), 403)(scope, receive, send)

    def _reasons(self, host: str, origin: str | None, scope: Scope) -> Iterator[str]:
        """Why a request is refused, if it is."""
        name = _HOST.fullmatch(host)
        if ANY not in self._hosts and (name is None or not self._answers_to(name[1], scope["server"])):
            shown = printable(host, 100)
            yield f"the request is for host {shown!r}; this server answers to it if started with --allow-host"
        own = (f"http://{host}", f"https://{host}")
        if origin is not None and origin not in own and not self._origins & {ANY, origin}:
            shown = printable(origin, 100)
            yield f"the request is of a page of {shown!r}; it may use this server if started with --allow-origin"

    def _answers_to(self, name: str, at: tuple[str, int | None] | None) -> bool:
        """`at`: where the connection came in."""
        plain = _plain(name)
        if plain in self._hosts:
            return True
        if at is None:
            return False
        return plain == _plain(at[0]) or (plain == "localhost" and ipaddress.ip_address(at[0]).is_loopback)


def _plain(name: str) -> str:
    """A name or an address, written in one way."""
    name = name.lower().removesuffix(".").strip("[]")
    return str(ipaddress.ip_address(name)) if _is_address(name) else name


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class _Key:
    """Refuses requests without the key."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._key = app, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        right = kind.lower() == "bearer" and secrets.compare_digest(key.strip().encode(), self._key)
        if right or scope["path"] in _OPEN:
            await self._app(scope, receive, send)
            return
        message = "the key is wrong" if key else "the request has no key"
        answer = refusal(
            401, f"{message}: this server takes requests with Authorization: Bearer and its API key"
        )
        await JSONResponse(answer, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
