"""The ``weft`` command, also as ``python -m weft``.

It imports nothing before it can be interrupted: the command line takes a moment to load.
"""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the ``weft`` command; always leaves by `SystemExit`."""
    try:
        from weft.cli import main as command

        command(arguments)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
