"""Run functions that use Yosys' library in a process of their own: it logs to the C stdout, and ends the process on an
error."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

JOB = "job.json"


def work(task: Callable[[dict[str, Any]], None], folder: Path, job: dict[str, Any]) -> tuple[bool, str]:
    """Call `task`, a function of a module, with `job`, JSON values, in a process whose working folder is `folder`.

    Returns whether it ended well and Yosys reported no error, and all that it printed.
    """
    (folder / JOB).write_text(json.dumps(job))
    call = (
        f"import json, pathlib; from {task.__module__} import {task.__name__} as task; "
        f"task(json.loads(pathlib.Path({JOB!r}).read_text()))"
    )
    process = subprocess.run(
        [sys.executable, "-c", call], cwd=folder, capture_output=True, text=True, check=False
    )
    said = process.stdout + process.stderr
    return not process.returncode and "ERROR:" not in said, said


def failure(said: str) -> str:
    """For messages: the end of what was said."""
    return "yosys failed: " + "\n".join([line for line in said.splitlines() if line.strip()][-8:])
