"""Running the tools of a build: their output line by line, a log of all of it, and an error that says what happened."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from weft.hdl.errors import WeftError

CRASH = "thrown Wasm exception"
"""All that a tool of YoWASP says when it crashes."""

EXTRA = "the tools for boards are not installed: pip install 'weft[boards]'"


class ToolError(WeftError, RuntimeError):
    """A tool that is missing or failed; the message is one sentence, with the tool's own last error."""


class ToolCrash(ToolError):
    """A tool that crashed: with another seed, and so another order of things, it may not."""


def require(*modules: str) -> None:
    """Raise `ToolError` unless the Python `modules` of the extra ``boards`` are installed."""
    if not all(importlib.util.find_spec(module) for module in modules):
        raise ToolError(EXTRA)


def versions(*packages: str) -> list[str]:
    """``name version`` of installed packages."""
    return [f"{package} {version(package)}" for package in packages]


def yowasp(module: str, function: str, *arguments: str) -> list[str]:
    """The command for a tool of YoWASP. Its paths must be relative: the tool sees another /tmp than ours."""
    script = f"import sys, {module}; sys.exit({module}.{function}(sys.argv[1:]))"
    return [sys.executable, "-c", script, *arguments]


def run(
    name: str,
    command: Sequence[str],
    folder: Path,
    line: Callable[[str], None] = lambda text: None,
) -> None:
    """Run `command` in `folder`, pass every line of its output to `line`, and keep all of it in ``<name>.log`` there.

    Temporary files are in `folder`, too. Raises `ToolError` with the last line that names an error, else the last one.
    """
    said: list[str] = []
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
                said.append(text.strip())
                line(said[-1])
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        said = [text for text in said if text]
        errors = [text for text in said if text.upper().startswith("ERROR")]
        last = (errors or said or ["it said nothing"])[-1]
        if last == CRASH:
            raise ToolCrash(
                f"{name} crashed, which is a fault of its own: another --seed or --config may avoid it"
            )
        raise ToolError(f"{name} failed: {last}")
