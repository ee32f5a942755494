"""Run functions that use Yosys' library in a subprocess: it logs to the C stdout, and ends its process on an error."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

JOB = "job.json"


def run_task(task: Callable[[dict[str, Any]], None], folder: Path, job: dict[str, Any]) -> tuple[bool, str]:
    """Call `task`, a function of a module, with `job`, a JSON value, in a subprocess with working folder `folder`.

    Returns
    -------
    succeeded : bool
        True if the exit code is 0 and Yosys reported no error.
    output : str
        Standard output and standard error.
    """
    (folder / JOB).write_text(json.dumps(job))
    call = (
        f"import json, pathlib; from {task.__module__} import {task.__name__} as task; "
        f"task(json.loads(pathlib.Path({JOB!r}).read_text()))"
    )
    process = subprocess.run(
        [sys.executable, "-c", call], cwd=folder, capture_output=True, text=True, check=False
    )
    output = process.stdout + process.stderr
    return not process.returncode and "ERROR:" not in output, output


def error_message(output: str) -> str:
    """Return an error message with the last lines of Yosys' output."""
    return "yosys failed: " + "\n".join([line for line in output.splitlines() if line.strip()][-8:])
