"""A board and a configuration to a bitstream with a report, kept by content."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.boards import flow
from weft.boards.board import Board, BoardError, Resources
from weft.boards.floorplan import floorplan
from weft.boards.report import timing, usage
from weft.boards.shell import Shell
from weft.boards.tools import require
from weft.hdl.config import Config

BITSTREAM, REPORT, FLOORPLAN = "weft", "report.json", "floorplan.svg"
"""What `build` leaves in its folder; the bitstream has the family's suffix."""

MakeTop = Callable[[Config, str, Any, int], Any]
"""Makes a board's top component from configuration, part, memory and cycles a bit."""


class TimingError(RuntimeError):
    """A design that is slower than its clock; the message says by how much."""


@dataclass(frozen=True)
class Built:
    """A finished build.

    Attributes
    ----------
    folder : Path
        Holds bitstream, report and floorplan, and the tools' logs. Part of the cache: copy from it, don't change it.
    bitstream : Path
    report : dict
        See `weft.boards.report`.
    """

    folder: Path
    bitstream: Path
    report: dict[str, Any]


def make_top(config: Config, part: str, memory: Any, divisor: int) -> Any:
    """The top component of every board."""
    from weft.boards.placeholder import Placeholder

    return Placeholder(config, part, memory, divisor)


def elaborate(
    board: Board, config: Config, clock: float, make: MakeTop = make_top
) -> tuple[dict[str, str], int]:
    """The design and its constraints by file name, and the cycles a bit of its serial link.

    Raises `weft.boards.pll.PllError` if the board cannot make `clock` (Hz).
    """
    require(*flow.TOOLS[board.family].modules)
    divisor = board.divisor(clock)
    top = make(config, board.family.value, board.memory, divisor)
    target = clock / flow.TOOLS[board.family].derating
    plan = board.platform().prepare(Shell(board, top, clock, target), "top")
    wanted = ("top.il", f"top{flow.TOOLS[board.family].constraints}")
    return {name: plan.files[name] for name in wanted}, divisor


def check_fits(board: Board, config: Config, need: Resources, when: str) -> None:
    """Raises `BoardError` for the scarcest of what `need` has too much of."""
    shares = {name: count / max(getattr(board.available, name), 1) for name, count in need.items()}
    worst = max(shares, key=lambda name: shares[name])
    if shares[worst] <= 1:
        return
    remedy = {
        "lut": "a smaller n or fewer lanes, or leave softmax out (probability_bits 0)",
        "ff": "a smaller n or fewer lanes",
        "dsp": "a smaller n or fewer lanes",
        "ram": "less scratchpad or accumulator (banks or depth)",
    }
    raise BoardError(
        f"the configuration does not fit {board.name}: {when} needs {getattr(need, worst):,} of its "
        f"{getattr(board.available, worst):,} {Resources.NAMES[worst]}; choose {remedy[worst]}"
    )


def build(
    board: Board,
    config: Config,
    cache: Path,
    *,
    seed: int = 1,
    clock: float | None = None,
    allow_timing_fail: bool = False,
    progress: Callable[[str], None] = lambda text: None,
    make: MakeTop = make_top,
    after_synthesis: tuple[str, ...] = (),
) -> Built:
    """Build a bitstream, or take it from `cache`.

    Parameters
    ----------
    cache : Path
        Folder of finished builds, by the content of all that goes into them.
    seed : int
        Of nextpnr: another one gives another placement.
    clock : float
        Hz, `board.clock` if None.
    allow_timing_fail : bool
        Whether a design may be slower than its clock.
    make : callable
        Makes the top component.
    after_synthesis : tuple of str
        Yosys commands for the mapped netlist.

    Raises
    ------
    BoardError
        If the configuration does not fit.
    TimingError
    weft.boards.tools.ToolError
        If a tool is missing or fails.
    """
    began = time.monotonic()
    clock = clock or board.clock
    progress(f"generating the design for {board.title}")
    files, divisor = elaborate(board, config, clock, make)
    target = cache / f"{board.name}-{_key(board, files, clock, seed, after_synthesis)}"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=cache, prefix="part-"))
        try:
            for name, text in files.items():
                (folder / name).write_text(text)
            facts = {"config": config.to_dict(), "clock_hz": clock, "baud": clock / divisor, "seed": seed}
            _run(board, config, folder, facts, after_synthesis, progress, began)
            _publish(folder, target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    suffix = flow.TOOLS[board.family].bitstream
    built = Built(target, target / f"{BITSTREAM}{suffix}", json.loads((target / REPORT).read_text()))
    if not (built.report["timing"]["met"] or allow_timing_fail):
        raise TimingError(_too_slow(board, built.report))
    return built


def _run(
    board: Board,
    config: Config,
    folder: Path,
    facts: dict[str, Any],
    after: tuple[str, ...],
    progress: Callable[[str], None],
    began: float,
) -> None:
    flow.synthesise(board, folder, after, progress)
    need = flow.synthesised(board.family, folder)
    check_fits(board, config, need, "synthesised, it")
    synthesis_seconds = time.monotonic() - began
    flow.place(board, folder, facts["clock_hz"], facts["seed"], progress)
    flow.pack(board, folder, progress)
    tools = flow.TOOLS[board.family]
    raw = json.loads((folder / "timing.json").read_text())
    placed = "placed.json" if (folder / "placed.json").exists() else f"top{tools.routed}"
    picture = floorplan(json.loads((folder / placed).read_text()), f"weft on {board.title}")
    (folder / FLOORPLAN).write_text(picture)
    report = {
        "board": board.name,
        **facts,
        "macs_per_cycle": config.n * config.n,
        "peak_gops": 2 * config.n * config.n * facts["clock_hz"] / 1e9,
        "resources": usage(board, need, raw["utilization"]),
        "timing": timing(board, raw, facts["clock_hz"], tools.derating),
        "seconds": {"synthesis": round(synthesis_seconds, 1), "total": round(time.monotonic() - began, 1)},
        "tools": flow.tool_versions(board.family),
    }
    (folder / REPORT).write_text(json.dumps(report, indent=2) + "\n")
    (folder / f"top{tools.bitstream}").rename(folder / f"{BITSTREAM}{tools.bitstream}")
    # Large, and nothing that a later build needs.
    for name in ("top.json", "placed.json", f"top{tools.routed}"):
        (folder / name).unlink(missing_ok=True)


def _key(board: Board, files: dict[str, str], clock: float, seed: int, after: tuple[str, ...]) -> str:
    """A hash of all that decides the result. Where in the sources a signal comes from does not."""
    digest = hashlib.sha256()
    design = {name: re.sub(r"^ *attribute \\src .*\n", "", text, flags=re.M) for name, text in files.items()}
    options = [board.synthesis, *board.place, *board.pack, *after, f"{clock}", f"{seed}"]
    sources = [Path(__file__), Path(flow.__file__)]
    for part in (*design.items(), *options, *flow.tool_versions(board.family), *map(Path.read_text, sources)):
        digest.update(repr(part).encode())
    return digest.hexdigest()[:24]


def _publish(folder: Path, target: Path) -> None:
    try:
        os.rename(folder, target)
    except OSError:
        if not target.exists():  # else another build of the same was faster
            raise


def _too_slow(board: Board, report: dict[str, Any]) -> str:
    reached = report["timing"]
    return (
        f"{board.name} reaches {reached['fmax_hz'] / 1e6:.1f} MHz but its clock is {report['clock_hz'] / 1e6:g} MHz: "
        f"try another --seed, a lower --clock, or --allow-timing-fail"
    )
