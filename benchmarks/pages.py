"""Tables that benchmarks write into pages of the documentation, each between two comments."""

from __future__ import annotations

from pathlib import Path


def rewrite(path: Path, begin: str, end: str, table: str) -> None:
    """Put `table` between the lines `begin` and `end` in a file. Raises `SystemExit` if they are not there."""
    before, begins, remainder = path.read_text().partition(begin)
    _, ends, after = remainder.partition(end)
    if not (begins and ends):
        raise SystemExit(
            f"error: {path} has no lines {begin.strip()} and {end.strip()} for the table to go between"
        )
    path.write_text(f"{before}{begin}{table}{end}{after}")
