"""The ``weft`` command, also as ``python -m weft``.

It imports next to nothing before it can be interrupted: the command line takes a moment to load.
"""

from __future__ import annotations

import signal
import sys
import threading

_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the ``weft`` command; always leaves by `SystemExit`.

    What is being written vanishes when the user interrupts it (exit code 130), and when another process ends it.
    """
    before = {}
    hook = sys.unraisablehook
    try:
        if threading.current_thread() is threading.main_thread():
            sys.unraisablehook = lambda dropped: None if _sent_again(dropped) else hook(dropped)
            # What is ignored stays so: under nohup, weft goes on without its terminal.
            heard = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
            before = {number: signal.signal(number, _end) for number in heard}
        from weft.cli.main import main as command

        command(arguments)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: object) -> None:
    """By convention, a process that a signal ended has its number and 128 as exit code."""
    sys.exit(128 + number)


def _sent_again(dropped: sys.UnraisableHookArgs) -> bool:
    """Python drops what is raised in a destructor or in a callback of the import's locks, and goes on: where that
    was a signal that should end weft, it comes once more, when the callback has ended.
    """
    error = dropped.exc_value
    codes = {128 + number: number for number in _ENDING}
    number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else codes.get(getattr(error, "code", 0))
    if number is None:
        return False
    main_thread = threading.main_thread().ident
    threading.Timer(0.01, signal.pthread_kill, (main_thread, number)).start()
    return True


if __name__ == "__main__":
    main()
