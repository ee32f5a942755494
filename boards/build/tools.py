"""Runs build tools: reports their output line by line, logs it, and raises errors with the tool's own message."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from weft.boards.errors import ToolError

CRASH = "thrown Wasm exception"
"""Only output of a YoWASP tool that crashes."""

EXTRA = "the tools for boards are not installed: pip install 'weft[boards]'"


class ToolCrash(ToolError):
    """Tool that crashed. Another seed may avoid the crash."""


def require(*modules: str) -> None:
    """Raise `ToolError` unless the Python `modules` of the extra ``boards`` are installed."""
    if not all(importlib.util.find_spec(module) for module in modules):
        raise ToolError(EXTRA)


def versions(*packages: str) -> list[str]:
    """Return ``name version`` of installed packages."""
    return [f"{package} {version(package)}" for package in packages]


def yowasp(module: str, function: str, *arguments: str) -> list[str]:
    """Return the command for a YoWASP tool. Paths must be relative, because the tool has a /tmp of its own."""
    script = f"import sys, {module}; sys.exit({module}.{function}(sys.argv[1:]))"
    return [sys.executable, "-c", script, *arguments]


def run(
    name: str,
    command: Sequence[str],
    folder: Path,
    line: Callable[[str], None] = lambda text: None,
) -> None:
    """Run `command` in `folder`, pass each line of output to `line`, and log all output to ``<name>.log`` there.

    Temporary files are in `folder`, too. Raises `ToolError` with the last line that names an error, or else the last
    line.
    """
    output: list[str] = []
    with (
        (folder / f"{name}.log").open("w", buffering=1) as log,
        subprocess.Popen(
            command,
            cwd=folder,
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(folder.absolute())},
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for text in process.stdout:
                log.write(text)
                output.append(text.strip())
                line(output[-1])
        except BaseException:  # including an interrupt by the user
            process.kill()
            raise
    if process.returncode:
        output = [text for text in output if text]
        errors = [text for text in output if text.upper().startswith("ERROR")]
        last = (errors or output or ["it printed nothing"])[-1]
        if last == CRASH:
            raise ToolCrash(f"{name} crashed because of a bug in it: another --seed or --config may avoid it")
        raise ToolError(f"{name} failed: {last}")
