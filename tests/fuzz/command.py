"""weft's command line, called and judged in this process."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from fuzz.outcome import Failure, check_quiet, check_sentence, of_exception, out_of_memory

from weft.cli import main


def call(folder: Path, *arguments: str | Path, makes: tuple[Path, ...] = ()) -> str:
    """Run a command; return "" on success, else the reason of its refusal.

    Files of `folder` except `makes` must stay unchanged, and all of them if it refuses. Raises `fuzz.outcome.Failure`.
    """
    before, heard = _tree(folder), _size(2)
    seen: list[BaseException] = []
    code = _run([str(argument) for argument in arguments], seen)
    said = _since(2, heard)
    check_quiet(said)
    if any(out_of_memory(error) for error in seen):
        raise Failure("memory", said, of_exception(seen[0]).signature)
    _check_files(before, _tree(folder), makes if code == 0 else ())
    if code == 0:
        return ""
    marks = [line for line in said.splitlines() if line.startswith("error: ")]
    if code not in (1, 2) or not marks:
        raise Failure("message", f"exit code {code}, and on stderr: {said[-300:]!r}", f"exit code {code}")
    sentence = said[said.index("error: ") + len("error: ") :].removesuffix("\n")
    check_sentence(sentence)
    return sentence


def _run(arguments: list[str], seen: list[BaseException]) -> object:
    """Return the exit code; `seen` receives the exception that caused it."""
    inner = main.app

    def watch_outputs(**options: object) -> object:
        try:
            return inner(**options)
        except BaseException as error:
            seen.append(error)
            raise

    main.app = watch_outputs  # type: ignore[assignment]
    try:
        main.main(arguments)
    except SystemExit as end:
        return end.code or 0
    finally:
        main.app = inner
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _tree(folder: Path) -> dict[Path, str]:
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in folder.rglob("*")
        if path.name not in ("stdout", "stderr")
    }


def _check_files(before: dict[Path, str], after: dict[Path, str], makes: tuple[Path, ...]) -> None:
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    wrong = sorted(
        str(path) for path in changed if not any(path == made or made in path.parents for made in makes)
    )
    if wrong:
        raise Failure("left", f"files made, changed or gone: {', '.join(wrong)}", "files")


def _size(number: int) -> int:
    return Path(f"/proc/self/fd/{number}").stat().st_size


def _since(number: int, start: int) -> str:
    with open(f"/proc/self/fd/{number}", "rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace")
