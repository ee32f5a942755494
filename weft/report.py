"""Terminal output of commands: progress, messages and tables."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from weft.hdl.schema import printable

if TYPE_CHECKING:
    import numpy as np

Progress = Callable[[str], None]
"""Function that takes a short text on the current step."""
SECONDS = 3.0
"""Seconds between lines of progress in a log."""
LONG = 300
"""Longest name in a log, in characters; on a terminal it is a third of the width."""
RTL_STARTS = "running on the RTL (the first time builds its simulator, about a minute)"
QUIET: ContextVar[bool] = ContextVar("quiet", default=False)
"""True to print neither progress nor summaries."""


@contextmanager
def progress(console: Console | None = None) -> Iterator[Progress]:
    """Show progress: a spinner with the current step on a terminal, or a line every few seconds in a log.

    All of it goes to stderr, so that stdout has only results.
    """
    if QUIET.get():
        yield lambda text: None
        return
    console = console or Console(stderr=True)
    if console.is_terminal:
        with console.status("starting...") as status:
            yield lambda text: status.update(Text(f"{printable_line(text)}..."))
        return
    log = _Log()
    try:
        yield log
    finally:
        log.close()


class _Log:
    """Progress that prints to stderr at most every `SECONDS`, always the latest step."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._shown = float("-inf")
        self._text = ""

    def __call__(self, text: str) -> None:
        with self._lock:
            self._text = text
            wait = self._shown + SECONDS - time.monotonic()
            if self._timer is not None:  # it will show this text
                return
            if wait <= 0:
                self._show()
            else:
                self._timer = threading.Timer(wait, self._later)
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        """Stop printing."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()

    def _later(self) -> None:
        with self._lock:
            self._timer = None
            self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        print(f"{printable_line(self._text)}...", file=sys.stderr, flush=True)


def stdout() -> Console:
    """Return the console for results, which does not wrap lines unless it is a terminal."""
    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    console = Console(**plain)
    return console if console.is_terminal else Console(**plain, width=1000)  # files do not wrap


def summary() -> Console:
    """Return the console for a command's summary, which prints nothing in quiet mode."""
    console = stdout()
    console.quiet = QUIET.get()
    return console


def say(*lines: str) -> None:
    """Print lines of a command's summary, unless in quiet mode."""
    if not QUIET.get():
        print(*map(printable_line, lines), sep="\n")


def say_on_stderr(*lines: str) -> None:
    """Print lines of a summary to stderr, unless in quiet mode, for commands whose result is on stdout."""
    sys.stdout.flush()
    if not QUIET.get():
        for line in lines:
            print(printable_line(line), file=sys.stderr)


def say_plan(program: Any, bandwidth: float | None) -> None:
    """Print a hint if a program ran with another bandwidth, in bytes a cycle, than it is planned for."""
    if bandwidth is None:
        return
    if (actual := min(bandwidth, program.config.bus_bytes)) != program.memory:
        say(
            f"the program is planned for a memory of {program.memory:g} bytes a cycle, and ran behind one of "
            f"{actual:g}: `weft compile --memory {actual:g}` plans for that"
        )


def warn(text: str) -> None:
    """Print a warning to stderr."""
    print(f"warning: {printable_line(text)}", file=sys.stderr)


def printable_line(text: str) -> str:
    """Return `text` as one printable line, with long names shortened."""
    return cut(printable(re.sub(rf"\S{{{LONG},}}", lambda match: cut(match[0], 60), text)), 4 * LONG)


def cut(text: str, width: int) -> str:
    """Return `text`, with an ellipsis in its middle if it is longer than `width`."""
    if len(text) <= width:
        return text
    return f"{text[: width // 2]}…{text[len(text) - (width - 1 - width // 2) :]}"


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """Return a table without lines; columns in `right` are right-aligned numbers."""
    result = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        if column in right:
            result.add_column(column, justify="right", no_wrap=True)
        else:
            result.add_column(column, overflow="fold")
    return result


def _cells(console: Console, name: str, *others: str) -> list[Text]:
    width = max(20, console.width // 3) if console.is_terminal else LONG
    return [Text(cut(printable(name), width)), *(Text(printable_line(other)) for other in others)]


def show_layers(report: dict[str, Any], console: Console) -> None:
    """Print a table of a report's layers with totals, including modelled cycles if the report has them."""
    modelled = report.get("modelled")
    total = report | {"name": "total", "modelled_cycles": modelled and modelled["cycles"]}
    cycles = ("cycles", "modelled cycles") if modelled else ("cycles",)
    numbers = (*cycles, "MACs", "utilisation", "DRAM bytes")
    layers = table("layer", *numbers, "bound by", right=numbers)
    for layer in (*report["layers"], total):
        if layer is total:
            layers.add_section()
        times = [_integer(layer[name.replace(" ", "_")]) for name in cycles]
        cells = (*times, _integer(layer["macs"]), _share(layer["utilisation"]), _integer(layer["dram_bytes"]))
        layers.add_row(*_cells(console, str(layer["name"]), *cells, str(layer.get("bound") or "")))
    console.print(layers)


def show_host(report: dict[str, Any]) -> None:
    """Print the host's time, if parts of the model ran there."""
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
    """Print a table of a model's nodes, with their place and its reason."""
    assignment = table("node", "operator", "runs on", "reason")
    for name, operator, place, reason in nodes:
        cells = _cells(console, name, operator, place, reason)
        assignment.add_row(*cells, style="yellow" if place == "host" else None)
    console.print(assignment)


def show_errors(layers: Iterable[Any], console: Console) -> None:
    """Print a table of the layers of a `weft.quantiser.accuracy.Accuracy` with their errors."""
    errors = table("layer", "operator", "signal to noise", right=("signal to noise",))
    for layer in layers:
        errors.add_row(*_cells(console, layer.name, layer.operator, decibels(layer.snr)))
    console.print(errors)


def decibels(ratio: float) -> str:
    """Return a signal-to-noise ratio as text; ratios from 200 dB on mean no noise at all."""
    return "exact" if ratio >= 200 else f"{ratio:.1f} dB"


def show_reasons(reasons: Counter[str], console: Console) -> None:
    """Print a table of the reasons why nodes run on the host, most frequent first, unless there are none."""
    counts = table("nodes", "reason for the host", right=("nodes",))
    for reason, count in reasons.most_common():
        counts.add_row(str(count), Text(printable_line(reason)))
    if reasons:
        console.print(counts)


def _integer(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def mismatches(expected: bytes | np.ndarray, got: bytes | np.ndarray) -> int:
    """Count differing bytes, including those that only the longer side has."""
    import numpy as np

    left, right = (np.frombuffer(_raw(side), np.uint8) for side in (expected, got))
    common = min(left.size, right.size)
    return int(np.count_nonzero(left[:common] != right[:common])) + abs(left.size - right.size)


def _raw(side: bytes | np.ndarray) -> bytes:
    return side if isinstance(side, bytes) else side.tobytes()


def difference(golden: Any, result: Any) -> int:
    """Count the differing bytes of memory and outputs of two results."""
    outputs = sum(mismatches(golden.outputs[name], result.outputs[name]) for name in golden.outputs)
    return mismatches(golden.memory, result.memory) + outputs
