"""Work with Yosys' library in a process of its own, as the library ends the process on an error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

JOB = "job.json"


def work(module: str, folder: Path, job: dict[str, Any]) -> tuple[bool, str]:
    """Run a `module` in `folder`, with the name of a file that holds `job`. Returns whether it ended well and Yosys
    reported no error, and all that was said."""
    (folder / JOB).write_text(json.dumps(job))
    process = subprocess.run(
        [sys.executable, "-m", module, JOB], cwd=folder, capture_output=True, text=True, check=False
    )
    said = process.stdout + process.stderr
    return not process.returncode and "ERROR:" not in said, said


def failure(said: str) -> str:
    """For messages: the end of what was said."""
    return "yosys failed: " + "\n".join([line for line in said.splitlines() if line.strip()][-8:])
