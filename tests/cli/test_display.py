"""Terminal output: names with any characters and of any length, progress, and tables."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from weft import report as reports
from weft.cli import timelines
from weft.report import cut, printable
from weft.run.trace import TRACKS, Timeline

MARKUP = [
    "[/foo]",
    "x[relu]y",
    "[bold]",
    "[link=x]",
    "a [red]b[/red]",
    "\\[x]",
    ":smile:",
    "[",
    "]",
    "",
    "日本語",
]
HOSTILE = {
    "\x1b[2J": "\\x1b[2J",
    "a\x00b": "a\\x00b",
    "a\nb": "a\\nb",
    "a\rb": "a\\rb",
    "\x9b31m": "\\x9b31m",
    "a\u202eb": "a\\u202eb",
    "a\u2028b": "a\\u2028b",
    "\ud800": "\\ud800",
}


def consoles() -> list[Console]:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=200, color_system=None)
    return [terminal, Console(file=io.StringIO(), width=1000, markup=True, emoji=True)]


def render(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def layer(name: str) -> dict[str, Any]:
    return {"name": name, "cycles": 1, "macs": 2, "utilisation": 0.5, "dram_bytes": 3, "bound": "array"}


@pytest.mark.parametrize("name", [*MARKUP, *HOSTILE])
def test_names_are_printed_verbatim(name: str) -> None:
    shown = HOSTILE.get(name, name)
    assert shown.isprintable()
    assert printable(name) == shown
    for console in consoles():
        reports.show_assignment([(name, f"<{name}>", "host", f"({name})")], console)
        reports.show_layers(layer("all") | {"layers": [layer(f"<{name}>")]}, console)
        lines = render(console).splitlines()
        assert len(lines) == 5
        assert lines[1].split() == f"{shown} <{shown}> host ({shown})".split()
        assert lines[3].startswith(f"<{shown}> ")
        assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("name", [*MARKUP, *HOSTILE])
def test_progress_shows_names_verbatim(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with reports.progress() as progress:
        progress(f"<{name}>")
    assert capsys.readouterr().err == f"<{HOSTILE.get(name, name)}>...\n"
    terminal = Console(file=io.StringIO(), force_terminal=True, width=200, color_system=None)
    with reports.progress(terminal) as progress:
        progress(f"<{name}>")
        time.sleep(0.15)
    assert f"<{HOSTILE.get(name, name)}>..." in render(terminal)


def test_drawings_are_valid_xml_for_any_layer_name() -> None:
    for name in (*MARKUP, *HOSTILE):
        layers: tuple[str, ...] = (f"{name}<&>",)
        line = Timeline("device", 0, 10, layers, {track: [] for track in TRACKS}, [], [(0, 0)], {})
        texts = [
            text for text in ElementTree.fromstring(timelines.svg([line], 8)).itertext() if "<&>" in text
        ]
        assert texts == [f"{HOSTILE.get(name, name)}<&>"]


def test_long_names_are_shortened_on_a_terminal_only() -> None:
    name = "".join(f"/block.{index}" for index in range(28)) + "/Conv_quant"
    terminal, log = consoles()
    for console in (terminal, log):
        reports.show_assignment([(name, "Conv", "device", "")], console)
        reports.show_layers(layer("all") | {"layers": [layer(name)]}, console)
    assert name not in render(terminal)
    for line in (render(terminal).splitlines()[index] for index in (1, 3)):
        shown = line.split()[0]
        assert len(shown) == 200 // 3
        begin, end = shown.split("…")
        assert name.startswith(begin)
        assert name.endswith(end)
        assert len(begin) >= 30 <= len(end)
    assert render(log).count(name) == 2


def test_huge_names_are_shortened_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    name, (_, log) = "n" * 20_000, consoles()
    reports.show_assignment([(name, name, "host", f"because of {name} and {name}")], log)
    reports.show_layers(layer("all") | {"layers": [layer(name)]}, log)
    reports.say(f"output {name}: 1", "a b " * 20_000)
    reports.warn(name)
    with reports.progress() as progress:
        progress(name)
    out, err = capsys.readouterr()
    lines = [*render(log).splitlines(), *out.splitlines(), *err.splitlines()]
    assert len(lines) == 5 + 2 + 2
    assert max(map(len, lines)) == 1200
    assert out.startswith(f"output {'n' * 30}…{'n' * 28}: 1\n")


@pytest.mark.parametrize("width", range(1, 12))
def test_cut(width: int) -> None:
    for text in ("", "a", "abcdefghijkl", "abcdefghi"):
        shown = cut(text, width)
        assert len(shown) == min(len(text), width)
        assert shown == text or shown.count("…") == 1


class Clock:
    """Simulated clock with its timers, advanced by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.timers: list[Clock.Timer] = []
        monkeypatch.setattr(reports, "time", SimpleNamespace(monotonic=lambda: self.now))
        timer = lambda wait, call: Clock.Timer(self, wait, call)  # noqa: E731
        monkeypatch.setattr(reports, "threading", SimpleNamespace(Lock=threading.Lock, Timer=timer))

    class Timer:
        def __init__(self, clock: Clock, wait: float, call: Callable[[], None]) -> None:
            assert wait > 0
            self.clock, self.at, self.call, self.daemon = clock, clock.now + wait, call, False

        def start(self) -> None:
            assert self.daemon
            self.clock.timers.append(self)

        def cancel(self) -> None:
            self.clock.timers.remove(self)

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        for timer in [timer for timer in self.timers if timer.at <= until]:
            self.timers.remove(timer)
            self.now = timer.at
            timer.call()
        self.now = until


def test_log_gets_a_line_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    with reports.progress() as progress:
        for step in range(100):  # of a quarter of a second
            progress(f"image {step}")
            clock.wait(0.25)
        progress("long work")
        clock.wait(60.0)
        assert clock.timers == []
        progress("more")
        progress("never seen")
    assert clock.timers == []
    *images, last, more = capsys.readouterr().err.splitlines()
    assert images == [f"image {step}..." for step in (0, *range(11, 100, 12))]
    assert (last, more) == ("long work...", "more...")


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    was = reports.QUIET.set(True)
    try:
        with reports.progress() as progress:
            progress("working")
        reports.say("done")
        reports.show_layers(layer("all") | {"layers": []}, reports.summary())
        assert capsys.readouterr() == ("", "")
        reports.stdout().print("asked for")
        reports.warn("something")
        assert capsys.readouterr() == ("asked for\n", "warning: something\n")
    finally:
        reports.QUIET.reset(was)
