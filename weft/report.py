"""Results on the terminal and on disk: progress, tables, reports, and files that are whole or absent."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

Progress = Callable[[str], None]
"""Told what is being done now, in a few words."""


@contextmanager
def progress(console: Console | None = None) -> Iterator[Progress]:
    """Show what is being done: a spinner with its last word on a terminal, one line each in a log.

    Everything goes to stderr, so that stdout holds results only.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: print(f"{text}...", file=sys.stderr, flush=True)
        return
    with console.status("starting...") as status:
        yield lambda text: status.update(f"{text}...")


def stdout() -> Console:
    """The console for results. Away from a terminal its lines are as long as they need to be."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=1000)


def show_layers(report: dict[str, Any], console: Console) -> None:
    """Print the table of a report's layers and a line of totals."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("layer", overflow="fold")
    for column in ("cycles", "MACs", "utilisation", "DRAM bytes"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("bound by", no_wrap=True)
    for layer in (*report["layers"], report | {"name": "total"}):
        if layer.get("name") == "total":
            table.add_section()
        cells = (_integer(layer["cycles"]), _integer(layer["macs"]), _share(layer["utilization"]))
        table.add_row(
            str(layer["name"]), *cells, _integer(layer["dram_bytes"]), str(layer.get("bound") or "")
        )
    console.print(table)


def show_placement(nodes: Iterable[tuple[str, str, str, str]], console: Console) -> None:
    """Print where every node of a model runs, and why there."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("node", "operator", "runs on", "reason"):
        table.add_column(column, overflow="fold")
    for name, operator, place, reason in nodes:
        table.add_row(name, operator, place, reason, style="yellow" if place == "host" else None)
    console.print(table)


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


def existing(path: Path) -> Path:
    """`path`, opened once so that a wrong one is reported by name before anything else is done."""
    if path.is_dir():
        raise FileError(f"{path} is a folder, not a file")
    path.open("rb").close()
    return path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path next to `path` that becomes `path` when the block ends, and vanishes if it fails."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(0o666 & ~_umask())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A temporary folder whose files move into the folder `path` when the block ends, and vanish if it fails.

    Other files that `path` holds stay as they are.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
    try:
        yield part
        path.mkdir(exist_ok=True)
        for file in sorted(part.rglob("*")):
            target = path / file.relative_to(part)
            if file.is_dir():
                target.mkdir(exist_ok=True)
            else:
                os.replace(file, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, whole or not at all; numpy scalars are written as numbers."""
    with whole_file(path) as part:
        part.write_text(json.dumps(value, indent=2, default=lambda scalar: scalar.item()) + "\n")


class FileError(ValueError):
    """A file the user named that does not hold what it should; one sentence with file, array and remedy."""
