"""Results on the terminal: progress, tables, what differs."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from weft.hdl.schema import printable

Progress = Callable[[str], None]
"""Told what is being done now, in a few words."""
SECONDS = 3.0
"""Between lines of progress in a log."""
LONG = 300
"""Characters of names that are shown in logs; on a terminal a third of its width is."""
RTL_STARTS = "running on the RTL (the first time builds its simulator, about a minute)"
QUIET: ContextVar[bool] = ContextVar("quiet", default=False)
"""Whether files are all that is wanted: no progress, no summary."""


@contextmanager
def progress(console: Console | None = None) -> Iterator[Progress]:
    """Show what is being done: a spinner with its last word on a terminal, a line every few seconds in a log.

    Everything goes to stderr, so that stdout holds results only.
    """
    if QUIET.get():
        yield lambda text: None
        return
    console = console or Console(stderr=True)
    if console.is_terminal:
        with console.status("starting...") as status:
            yield lambda text: status.update(Text(f"{told(text)}..."))
        return
    log = _Log()
    try:
        yield log
    finally:
        log.close()


class _Log:
    """Prints what it is told to stderr, with `SECONDS` between lines: of what comes in between, the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._shown = float("-inf")
        self._text = ""

    def __call__(self, text: str) -> None:
        with self._lock:
            self._text = text
            wait = self._shown + SECONDS - time.monotonic()
            if self._timer is not None:
                return
            if wait <= 0:
                self._show()
            else:
                self._timer = threading.Timer(wait, self._later)
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        """Show nothing more."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()

    def _later(self) -> None:
        with self._lock:
            self._timer = None
            self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        print(f"{told(self._text)}...", file=sys.stderr, flush=True)


def stdout() -> Console:
    """The console for results. Away from a terminal its lines are as long as they need to be."""
    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    console = Console(**plain)
    return console if console.is_terminal else Console(**plain, width=1000)


def summary() -> Console:
    """The same for a command's summary: it prints nothing if the command is to be quiet."""
    console = stdout()
    console.quiet = QUIET.get()
    return console


def say(*lines: str) -> None:
    """Print lines of a command's summary, unless it is to be quiet."""
    if not QUIET.get():
        print(*map(told, lines), sep="\n")


def tell(*lines: str) -> None:
    """Print lines of a summary to stderr, unless the command is to be quiet: behind what there is on stdout, where they
    would be among a result."""
    sys.stdout.flush()
    if not QUIET.get():
        for line in lines:
            print(told(line), file=sys.stderr)


def say_plan(program: Any, bandwidth: float | None) -> None:
    """Say that a program is planned for another memory than the one of `bandwidth` bytes a cycle that it ran behind."""
    if bandwidth is None:
        return
    if (behind := min(bandwidth, program.config.bus_bytes)) != program.memory:
        say(
            f"the program is planned for a memory of {program.memory:g} bytes a cycle, and ran behind one of "
            f"{behind:g}: `weft compile --memory {behind:g}` plans for that"
        )


def warn(text: str) -> None:
    """Print a warning to stderr."""
    print(f"warning: {told(text)}", file=sys.stderr)


def told(text: str) -> str:
    """A printable line in which names are not longer than anybody reads."""
    return cut(printable(re.sub(rf"\S{{{LONG},}}", lambda found: cut(found[0], 60), text)), 4 * LONG)


def cut(text: str, width: int) -> str:
    """`text`, without its middle if it is longer than `width`."""
    if len(text) <= width:
        return text
    return f"{text[: width // 2]}…{text[len(text) - (width - 1 - width // 2) :]}"


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """A table without lines; columns among `right` hold numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        if column in right:
            made.add_column(column, justify="right", no_wrap=True)
        else:
            made.add_column(column, overflow="fold")
    return made


def _cells(console: Console, name: str, *others: str) -> list[Text]:
    """Cells of a row, as they are; a long name without its middle."""
    width = max(20, console.width // 3) if console.is_terminal else LONG
    return [Text(cut(printable(name), width)), *(Text(told(other)) for other in others)]


def show_layers(report: dict[str, Any], console: Console) -> None:
    """Print the table of a report's layers and a line of totals, with what the cycle model says if that is in it."""
    modelled = report.get("modelled")
    total = report | {"name": "total", "modelled_cycles": modelled and modelled["cycles"]}
    cycles = ("cycles", "modelled cycles") if modelled else ("cycles",)
    numbers = (*cycles, "MACs", "utilisation", "DRAM bytes")
    made = table("layer", *numbers, "bound by", right=numbers)
    for layer in (*report["layers"], total):
        if layer is total:
            made.add_section()
        times = [_integer(layer[name.replace(" ", "_")]) for name in cycles]
        cells = (*times, _integer(layer["macs"]), _share(layer["utilisation"]), _integer(layer["dram_bytes"]))
        made.add_row(*_cells(console, str(layer["name"]), *cells, str(layer.get("bound") or "")))
    console.print(made)


def show_host(report: dict[str, Any]) -> None:
    """Say how long the host took for its parts of the model, if it has any."""
    parts = [part for part in report.get("host", ()) if part["operators"]]
    if parts:
        slowest = max(parts, key=lambda part: part["seconds"])
        total = sum(part["seconds"] for part in parts)
        operators = Counter(slowest["operators"])
        names = ", ".join(f"{many} {name}" if many > 1 else name for name, many in operators.most_common(3))
        more = ", ..." if len(operators) > 3 else ""
        say(
            f"host: {total * 1e3:,.2f} ms for {len(parts)} parts of the model; most of it, "
            f"{slowest['seconds'] * 1e3:,.2f} ms, for {printable(slowest['name'])} ({printable(names)}{more})"
        )


def show_assignment(nodes: Iterable[tuple[str, str, str, str]], console: Console) -> None:
    """Print where every node of a model runs, and why there."""
    made = table("node", "operator", "runs on", "reason")
    for name, operator, place, reason in nodes:
        cells = _cells(console, name, operator, place, reason)
        made.add_row(*cells, style="yellow" if place == "host" else None)
    console.print(made)


def show_errors(layers: Iterable[Any], console: Console) -> None:
    """Print the layers of a `weft.quantiser.accuracy.Accuracy` with their errors."""
    made = table("layer", "operator", "signal to noise", right=("signal to noise",))
    for layer in layers:
        made.add_row(*_cells(console, layer.name, layer.operator, decibels(layer.snr)))
    console.print(made)


def decibels(ratio: float) -> str:
    """A signal-to-noise ratio; 200 dB is what there is without any noise."""
    return "exact" if ratio >= 200 else f"{ratio:.1f} dB"


def show_reasons(reasons: Counter[str], console: Console) -> None:
    """Print why nodes run on the host, and how many for each reason, the most frequent first; nothing if none does."""
    made = table("nodes", "reason for the host", right=("nodes",))
    for reason, count in reasons.most_common():
        made.add_row(str(count), Text(told(reason)))
    if reasons:
        console.print(made)


def _integer(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def mismatches(expected: bytes | np.ndarray, got: bytes | np.ndarray) -> int:
    """Bytes that differ; bytes that only one side has count as different."""
    left, right = (np.frombuffer(_raw(side), np.uint8) for side in (expected, got))
    common = min(left.size, right.size)
    return int(np.count_nonzero(left[:common] != right[:common])) + abs(left.size - right.size)


def _raw(side: bytes | np.ndarray) -> bytes:
    return side.tobytes() if isinstance(side, np.ndarray) else bytes(side)


def difference(golden: Any, result: Any) -> int:
    """Bytes of memory and of the outputs in which two results differ."""
    outputs = sum(mismatches(golden.outputs[name], result.outputs[name]) for name in golden.outputs)
    return mismatches(golden.memory, result.memory) + outputs
