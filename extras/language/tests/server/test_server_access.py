"""Access control of the server: host names, origins and the key, in front of an application that accepts all."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from weft.errors import InputError
from weft.extras.language.server.server_access import Access

LOOPBACK = ("127.0.0.1", 8080)
ALL = ("0.0.0.0", "::")
"""Wildcard addresses to listen at."""


async def _yes(request: Request) -> PlainTextResponse:
    return PlainTextResponse("yes")


def ask(
    access: Access,
    headers: dict[str, str],
    at: tuple[str, int] = LOOPBACK,
    method: str = "GET",
    path: str = "/",
) -> tuple[int, dict[str, str], str]:
    """Return status, headers and content of the answer to a request at an address."""
    routes = [Route(name, _yes, methods=["GET", "POST"]) for name in ("/", "/health")]
    application = Starlette(routes=routes, middleware=access.middleware())
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "http", "method": method, "path": path, "query_string": b"", "server": at, "scheme": "http",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(application(scope, receive, send))
    content = b"".join(message.get("body", b"") for message in sent[1:]).decode()
    answer_headers = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answer_headers, content


def status(host: str, *hosts: str, at: str = "127.0.0.1") -> int:
    return ask(Access(hosts), {"host": host}, (at, 8080))[0]


@pytest.mark.parametrize(
    ("host", "at"),
    [
        ("127.0.0.1:8080", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("localhost:8080", "127.0.0.1"),
        ("LocalHost.:8080", "127.0.0.1"),
        ("localhost:8080", "::1"),
        ("[::1]:8080", "::1"),
        ("[0:0:0:0:0:0:0:1]", "::1"),
        ("192.168.1.7:8080", "192.168.1.7"),
        ("[fd00::7]:8080", "fd00::7"),
    ],
)
def test_hosts_equal_to_the_local_address(host: str, at: str) -> None:
    """They are accepted for any listening address; a rebound DNS name is not among them."""
    for listening in (at, *ALL):
        assert status(host, listening, at=at) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "192.168.1.7:8080",
        "[::2]:8080", "", ":8080", "127.0.0.1:8080:8080", "127.0.0.1@evil.example", "a b", "[127.0.0.1", "*",
        "localhost:8080/x", "127.1", "2130706433", "0x7f.0.0.1", "é.example", "[[::1]]",
    ],
)  # fmt: skip
def test_names_that_are_refused(host: str) -> None:
    for listening in ("127.0.0.1", "localhost", *ALL):
        actual, _, content = ask(Access((listening,)), {"host": host})
        assert actual == 403
        error = json.loads(content)["error"]
        assert error["message"].startswith("the request is for host '")
        assert error["message"].endswith("; to accept it, start the server with --allow-host")
        assert error["type"] == "invalid_request_error"


def test_no_host() -> None:
    assert ask(Access(), {})[0] == 403


def test_localhost_is_this_machine_only() -> None:
    assert status("localhost", "0.0.0.0", at="192.168.1.7") == 403


def test_names_that_are_allowed() -> None:
    assert status("box.lan:8080", "0.0.0.0", "box.lan", at="192.168.1.7") == 200
    assert status("BOX.lan.", "0.0.0.0", "Box.lan") == 200
    assert status("other.lan", "0.0.0.0", "box.lan") == 403
    assert status("10.0.0.1", "0.0.0.0", "10.0.0.1") == 200  # in front of a forwarded port
    assert status("evil.example", "0.0.0.0", "*") == 200


OWN = {"host": "127.0.0.1:8080"}


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "http://127.0.0.1:3000", "http://localhost:8080", "null", "", "file://", "http://127.0.0.1:8080.evil.example"],
)  # fmt: skip
def test_pages_of_other_origins(origin: str) -> None:
    for method, more in (
        ("POST", {}),
        ("OPTIONS", {"access-control-request-method": "POST"}),
        ("GET", {"origin-trial": "x"}),
    ):
        actual, headers, content = ask(Access(("127.0.0.1",)), OWN | {"origin": origin} | more, method=method)
        assert actual == 403
        assert "access-control-allow-origin" not in headers
        message = json.loads(content)["error"]["message"]
        assert (
            message
            == f"the request is from a page of {origin!r}; to accept it, start the server with --allow-origin"
        )


def test_pages_of_the_server_itself() -> None:
    for origin in ("http://127.0.0.1:8080", "https://127.0.0.1:8080"):
        actual, headers, _ = ask(Access(), OWN | {"origin": origin})
        assert (actual, "access-control-allow-origin" in headers) == (200, False)


def test_pages_that_are_allowed() -> None:
    access = Access(origins=("http://localhost:3000", "app://obsidian.md", "null"), key="secret")
    for origin in access.origins:
        asks = {
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, content-type, x-stainless-os",
            "access-control-request-private-network": "true",
        }
        actual, headers, _ = ask(access, OWN | asks, method="OPTIONS")
        assert (actual, headers["access-control-allow-origin"]) == (200, origin)
        assert headers["access-control-allow-headers"] == asks["access-control-request-headers"]
        assert headers["access-control-allow-private-network"] == "true"
        actual, headers, _ = ask(
            access, OWN | {"origin": origin, "authorization": "Bearer secret"}, method="POST"
        )
        assert (actual, headers["access-control-allow-origin"]) == (200, origin)
    assert ask(access, OWN | {"origin": "http://localhost:3001", "authorization": "Bearer secret"})[0] == 403
    assert ask(access, {"host": "evil.example", "origin": "http://localhost:3000"})[0] == 403
    actual, headers, _ = ask(Access(origins=("*",)), OWN | {"origin": "http://any.example"}, method="POST")
    assert (actual, headers["access-control-allow-origin"]) == (200, "*")


@pytest.mark.parametrize(
    ("authorization", "message"),
    [
        *((header, "the request has no key") for header in (None, "", "Bearer", "secret")),
        *((f"Bearer {key}", "the key is wrong") for key in ("Secret", "secret2", "secre", "sécret")),
        ("Basic secret", "the key is wrong"),
    ],
)  # fmt: skip
def test_requests_without_the_key(authorization: str | None, message: str) -> None:
    headers = OWN if authorization is None else OWN | {"authorization": authorization}
    actual, about, content = ask(Access(key="secret"), headers)
    assert (actual, about["www-authenticate"]) == (401, "Bearer")
    answer = json.loads(content)["error"]["message"]
    assert answer == f"{message}: send the server's API key as Authorization: Bearer KEY"
    assert ask(Access(key="secret"), headers, path="/health")[0] == 200


def test_requests_with_the_key() -> None:
    for authorization in ("Bearer secret", "bearer  secret "):
        assert ask(Access(key="secret"), OWN | {"authorization": authorization})[0] == 200
    assert ask(Access(key="secret"), {"host": "evil.example", "authorization": "Bearer secret"})[0] == 403


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"hosts": ("a:80",)},
            r"^--allow-host is 'a:80'; it must be a name or an address without a port, or \*$",
        ),
        ({"hosts": ("",)}, "^--allow-host is ''; "),
        ({"hosts": ("*.example",)}, r"^--allow-host is '\*\.example'; "),
        ({"hosts": ("http://a",)}, "^--allow-host is 'http://a'; "),
        ({"origins": ("a",)}, r"^--allow-origin is 'a'; it must be like http://NAME:PORT, or \*$"),
        ({"origins": ("http://a/",)}, "^--allow-origin is 'http://a/'; "),
        ({"origins": ("http://*",)}, r"^--allow-origin is 'http://\*'; "),
        (
            {"key": ""},
            r"^the API key must consist of printable ASCII characters without spaces, and not be empty$",
        ),
        ({"key": "a b"}, "^the API key must consist "),
        ({"key": "é"}, "^the API key must consist "),
    ],
)
def test_invalid_names_origins_and_keys(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Access(**wrong)
    Access(("::1", "a-b.c_d", "10.0.0.1", "[::1]"), ("http://[::1]:80",), "sk-~!a")
