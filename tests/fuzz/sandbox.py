"""Runs one input in a process of its own, with limits."""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fuzz.outcome import Outcome, of_exception
from support.forks import fork

SECONDS = 10.0
"""Processor seconds of an input, or of each program that weft compiles and runs for it; other load does not count."""
WAITING = 9.0
"""Factor of wall time after which an idle input is ended as well."""
GROWTH = 2 << 30
"""Bytes by which an input's address space may grow."""
_DISK = 1 << 28
"""Bytes of the largest file."""


def run(action: Callable[[], Outcome], folder: Path, seconds: float = SECONDS) -> Outcome:
    """Return the outcome of `action`; its stdout and stderr go to files in `folder`."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = fork()
    if child == 0:
        try:
            _limit(folder, seconds)
            result = folder / "outcome.json"
            try:
                outcome = action()
            except BaseException as error:
                outcome = of_exception(error)
            _unlimit()
            result.write_text(json.dumps(outcome.to_dict()))
        finally:
            os._exit(0)
    status = _wait(child, WAITING * seconds)
    try:
        return Outcome(**json.loads((folder / "outcome.json").read_text()))
    except (OSError, ValueError):
        return _outcome_of_killed(
            status, (folder / "stderr").read_text(errors="replace").rpartition("most recent call first")[2]
        )


def _limit(folder: Path, seconds: float) -> None:
    for number, name in ((0, os.devnull), (1, folder / "stdout"), (2, folder / "stderr")):
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_DISK, _DISK))
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + GROWTH, resource.getrlimit(resource.RLIMIT_AS)[1]))
    # The signal makes the process write its position, and ends it.
    faulthandler.register(signal.SIGPROF, chain=True)
    signal.setitimer(signal.ITIMER_PROF, seconds)


def next_program(seconds: float = SECONDS) -> None:
    """Restart the time limit, if there is one: an input that runs a model layer by layer has it for each program."""
    if signal.getitimer(signal.ITIMER_PROF)[0]:
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _unlimit() -> None:
    signal.setitimer(signal.ITIMER_PROF, 0)
    resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)


def _wait(child: int, seconds: float) -> int:
    end, pause = time.monotonic() + seconds, 0.001
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _outcome_of_killed(status: int, text: str) -> Outcome:
    """Return the outcome of a process that did not end by itself."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    places = [
        line for line in text.splitlines() if line.startswith('  File "') and "site-packages" not in line
    ]
    place = places[0].split("/weft/")[-1] if places else "?"
    if number in (signal.SIGPROF, signal.SIGKILL):
        return Outcome("hang", text[:4000], f"hang {place}")
    name = signal.Signals(number).name if number else f"status {status}"
    return Outcome("crash", f"{name}\n{text[:4000]}", f"crash {name}")
