"""The ``weft`` command, also as ``python -m weft``.

It installs signal handlers before it imports the command line, which takes a moment to load.
"""

from __future__ import annotations

import signal
import sys
import threading

_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def main(arguments: list[str] | None = None) -> None:
    """Run the ``weft`` command; always raises `SystemExit`.

    If the user interrupts it (exit code 130) or another process ends it, partly written files are removed.
    """
    before = {}
    hook = sys.unraisablehook
    try:
        if threading.current_thread() is threading.main_thread():
            sys.unraisablehook = lambda dropped: None if _resend(dropped) else hook(dropped)
            # Ignored signals stay ignored: under nohup, weft continues without its terminal.
            handled = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
            before = {number: signal.signal(number, _end) for number in handled}
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
    sys.exit(128 + number)  # the shell's convention for a process that a signal ended


def _resend(dropped: sys.UnraisableHookArgs) -> bool:
    """Send a signal again if Python dropped its exception. Return True if it did.

    Python drops exceptions raised in a destructor, or in a callback of an import lock. The signal is sent after that
    callback has ended.
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
