"""Where builds are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.sim.verilate import cache_root


@pytest.mark.parametrize(
    ("own", "users", "found"),
    [
        (None, None, "/home/me/.cache/weft"),
        ("", "", "/home/me/.cache/weft"),
        (None, "/caches", "/caches/weft"),
        (None, "caches", "/home/me/.cache/weft"),
        ("/builds", "/caches", "/builds"),
        ("builds", None, "/here/builds"),
    ],
)
def test_the_cache_is_an_absolute_folder(
    monkeypatch: pytest.MonkeyPatch, own: str | None, users: str | None, found: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr("os.getcwd", lambda: "/here")
    for name, value in (("WEFT_CACHE", own), ("XDG_CACHE_HOME", users)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert cache_root() == Path(found)
