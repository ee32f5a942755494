"""A board and a configuration to a bitstream with a report, kept by content."""

from __future__ import annotations

import gzip
import hashlib
import inspect
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.boards.board import Board, BoardError, Line, MemoryKind
from weft.boards.build import flow
from weft.boards.build.estimate import check_estimate, too_large
from weft.boards.build.flow import Progress, floorplan
from weft.boards.build.records import expected_seconds, remedy
from weft.boards.build.report import slower_line, timing, usage
from weft.boards.build.tools import require
from weft.boards.families.family import Family, Pll, Resources, ShiftedPll
from weft.boards.sdram.eye import Eye, best_eye, eye_at
from weft.boards.top import Shell
from weft.hdl.cache import cache_root, entry
from weft.hdl.errors import WeftError
from weft.hdl.isa.config import Config

BITSTREAM, REPORT, FLOORPLAN = "weft", "report.json", "floorplan.svg"
"""What `build` leaves in its folder; the bitstream has the family's suffix."""
NETLIST, TIMING = "top.json", "timing.json"
PACKED, SYNTHESIS = "top.json.gz", "synthesis.json"
"""Files of synthesis that place and route with any seed starts from."""

MakeTop = Callable[[Board, Config, float, int], Any]
"""Makes a board's top component from the board, a configuration, the clock in Hz and the cycles a bit."""


class TimingError(WeftError, RuntimeError):
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
        See `weft.boards.build.report`.
    """

    folder: Path
    bitstream: Path
    report: dict[str, Any]


def bitstream_name(board: Board) -> str:
    """File name of the board's bitstreams."""
    return f"{BITSTREAM}{board.family.bitstream}"


def products(built: Built) -> list[Path]:
    """The files of a build that are for its user."""
    return [built.bitstream, built.folder / REPORT, built.folder / FLOORPLAN]


def make_top(board: Board, config: Config, clock: float, divisor: int) -> Any:
    """The top component of every board."""
    from weft.boards.top import Top

    return Top(board, config, clock, divisor, board.family.fabric)


@dataclass(frozen=True)
class Design:
    """What goes into the tools.

    Attributes
    ----------
    files : dict of str to str
        The design and its constraints by file name.
    clock : float
        Hz that the PLL makes.
    line : Line
        The serial link.
    eye : Eye or None
        Of boards with SDRAM: what is left of its set-up and hold times.
    """

    files: dict[str, str]
    clock: float
    line: Line
    eye: Eye | None = None

    @property
    def sources(self) -> dict[str, str]:
        """`files` without the attributes that say where in our sources something is defined."""
        return {
            name: re.sub(r"^ *attribute \\src .*\n", "", text, flags=re.M)
            for name, text in self.files.items()
        }

    @property
    def hardware(self) -> str:
        """A hash of the hardware and its pads, of 16 hexadecimal digits, which new names of signals leave as it is."""
        digest = hashlib.sha256()
        for name, text in self.sources.items():
            for line in _without_names(text) if name.endswith(".il") else [text]:
                digest.update(line.encode())
        return digest.hexdigest()[:16]


def _without_names(rtlil: str) -> Iterator[str]:
    """The lines of RTLIL with each module's names replaced by the order in which they occur. Names of cells from
    libraries, of their ports and of parameters stay."""
    modules = set(re.findall(r"^module (\S+)$", rtlil, flags=re.M))
    numbers: dict[str, int] = {}
    own = False  # the current cell is of a module of ours
    for line in rtlil.splitlines(keepends=True):
        words = line.split()
        if not words or words[0] in ("attribute", "#"):
            continue
        if words[0] == "module":
            numbers = {}
        elif words[0] == "cell":
            own = words[1] in modules
            words = ["cell", "module" if own else words[1], str(numbers.setdefault(words[2], len(numbers)))]
        elif words[0] in ("wire", "memory", "process"):
            words[-1] = str(numbers.setdefault(words[-1], len(numbers)))
        elif words[0] == "connect" and line.startswith("    "):  # of a cell
            words[1:] = [*([] if own else words[1:2]), *(str(numbers.get(word, word)) for word in words[2:])]
        elif words[:2] == ["parameter", "\\MEMID"]:
            words[2] = str(numbers[words[2].strip('"')[1:]])
        else:
            words = [str(numbers.get(word, word)) for word in words]
        yield " ".join(words) + "\n"


def elaborate(board: Board, config: Config, clock: float, make: MakeTop = make_top) -> Design:
    """The design for a wanted clock in Hz.

    Raises `weft.boards.families.family.PllError` if the board cannot make one near it, and `BoardError` if its memory
    or its serial link cannot run at it.
    """
    family = board.family
    require("amaranth_boards", *family.modules)
    platform = board.platform()
    pll = board.pll(platform.default_clk_frequency, clock)
    actual, line = pll.output, board.line(pll.output)
    plan = platform.prepare(Shell(board, make(board, config, actual, line.divisor), clock), "top")
    files = {name: plan.files[name] for name in ("top.il", f"top{family.constraints}")}
    if family.clock_constraint:
        wanted = family.clock_constraint.format(family.requested_clock(actual) / 1e6)
        files[f"top{family.constraints}"] += f"\n{wanted}\n"
    return Design(files, actual, line, sdram_eye(board, pll))


def sdram_eye(board: Board, pll: Pll) -> Eye | None:
    """What is left of the SDRAM's set-up and hold times with the phase that the PLL makes; None without SDRAM."""
    if board.memory.kind is not MemoryKind.SDRAM:
        return None
    assert isinstance(pll, ShiftedPll)
    return eye_at(pll.output, pll.phase, best_eye(pll.output).capture)


def check_synthesised(board: Board, config: Config, need: Resources) -> None:
    """Raises `BoardError` for the scarcest resource that a netlist needs more of than there is."""
    shares = {kind: count / getattr(board.available, kind) for kind, count in need.items()}
    worst = max(shares, key=lambda kind: shares[kind])
    if shares[worst] > 1:
        raise BoardError(too_large(board, config, worst, getattr(need, worst), "synthesised, it needs"))


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
    estimated: bool = True,
) -> Built:
    """Build a bitstream, or take it from `cache`.

    Parameters
    ----------
    cache : Path
        Folder of finished builds, by the content of all that goes into them. What is damaged there is built again.
    seed : int
        Of nextpnr: another one gives another placement.
    clock : float
        Hz, `board.clock` if None.
    allow_timing_fail : bool
        Whether a design may be slower than its clock.
    make : callable
        Makes the top component.
    estimated : bool
        Whether to refuse what is sure not to fit before synthesis.

    Raises
    ------
    weft.hdl.isa.config.ConfigError
        If the family's multipliers cannot carry out the configuration.
    BoardError
        If it does not fit.
    TimingError
    weft.boards.build.tools.ToolError
        If a tool is missing or fails.
    weft.hdl.cache.CacheError
        If `cache` belongs to another user, or cannot be written.
    """
    board.family.fabric.multipliers.check(config)
    if estimated:
        check_estimate(board, config)
    progress(f"generating the design for {board.title}{_duration(board, config)}")
    design = elaborate(board, config, clock or board.clock, make)
    facts = {"config": config.to_dict(), "clock_hz": design.clock, "baud": design.line.baud, "seed": seed}
    if design.eye is not None:
        facts["sdram"] = design.eye.report()

    def make_files(folder: Path) -> None:
        netlist = entry(
            f"{board.name}-netlist-{key(board, design)}",
            lambda inner: _synthesise(board, config, design, inner, progress),
            cache,
        )
        _place(board, config, netlist, folder, facts, progress)

    target = entry(f"{board.name}-{key(board, design, seed)}", make_files, cache)
    built = Built(target, target / bitstream_name(board), json.loads((target / REPORT).read_text()))
    if not (built.report["timing"]["met"] or allow_timing_fail):
        raise TimingError(_too_slow(board, config, built.report))
    return built


def _duration(board: Board, config: Config) -> str:
    seconds = expected_seconds(board, config)
    return "" if seconds is None else f"; the whole build takes about {max(round(seconds / 60), 1)} minutes"


def _synthesise(
    board: Board, config: Config, design: Design, folder: Path, progress: Callable[[str], None]
) -> None:
    """Leave the netlist and its statistics in `folder`."""
    began = time.monotonic()
    for name, text in design.files.items():
        (folder / name).write_text(text)
    notes = flow.synthesise(board, folder, progress)
    check_synthesised(board, config, flow.synthesised(board.family, folder))
    if board.dsp is not None:
        board.dsp.pin(folder / NETLIST, config.n)
    with (folder / NETLIST).open("rb") as raw, gzip.open(folder / PACKED, "wb", compresslevel=1) as packed:
        shutil.copyfileobj(raw, packed)
    (folder / NETLIST).unlink()
    (folder / "top.il").unlink()
    facts = {"notes": notes, "seconds": time.monotonic() - began}
    (folder / SYNTHESIS).write_text(json.dumps(facts))


def _place(
    board: Board,
    config: Config,
    netlist: Path,
    folder: Path,
    facts: dict[str, Any],
    progress: Callable[[str], None],
) -> None:
    """Place and route the netlist of `_synthesise`; leave bitstream, report and floorplan in `folder`."""
    began = time.monotonic()
    family = board.family
    for name in (f"top{family.constraints}", "stat.json"):
        shutil.copyfile(netlist / name, folder / name)
    with gzip.open(netlist / PACKED) as packed, (folder / NETLIST).open("wb") as raw:
        shutil.copyfileobj(packed, raw)
    synthesis = json.loads((netlist / SYNTHESIS).read_text())
    need = flow.synthesised(family, folder)
    flow.place(board, folder, facts["clock_hz"], facts["seed"], progress)
    flow.pack(board, folder, progress)
    raw_timing = json.loads((folder / TIMING).read_text())
    placed = "placed.json" if (folder / "placed.json").exists() else f"top{family.routed}"
    picture = floorplan(json.loads((folder / placed).read_text()), f"weft on {board.title}")
    (folder / FLOORPLAN).write_text(picture)
    report = {
        "format": "weft board report 1",
        "board": board.name,
        **facts,
        "macs_per_cycle": config.n * config.n,
        "peak_gops": 2 * config.n * config.n * facts["clock_hz"] / 1e9,
        "resources": usage(board, need, raw_timing["utilization"]),
        "timing": timing(raw_timing, facts["clock_hz"], family.safe_clock),
        "notes": [*family.notes, *slower_line(board, facts["clock_hz"]), *synthesis["notes"]],
        "seconds": {
            "synthesis": round(synthesis["seconds"], 1),
            "total": round(synthesis["seconds"] + time.monotonic() - began, 1),
        },
        "tools": flow.tool_versions(family),
    }
    (folder / REPORT).write_text(json.dumps(report, indent=2) + "\n")
    (folder / f"top{family.bitstream}").rename(folder / bitstream_name(board))
    # Large, and nothing that a later build needs.
    raw_timing.pop("detailed_net_timings", None)
    (folder / TIMING).write_text(json.dumps(raw_timing))
    for name in (NETLIST, "placed.json", f"top{family.routed}"):
        (folder / name).unlink(missing_ok=True)


def key(board: Board, design: Design, seed: int | None = None) -> str:
    """A hash of all that decides the netlist; with `seed`, of all that decides the bitstream. Where in the sources a
    signal comes from does not."""
    digest = hashlib.sha256()
    options = [
        *flow.synthesis_commands(board),
        *board.place,
        *board.pack,
        f"{board.dsp}",
        f"{design.clock}",
        f"{seed}",
    ]
    described: list[Any] = [Family, board.family.place, *([type(board.dsp)] if board.dsp else [])]
    sources = [Path(__file__), Path(flow.__file__), *(Path(inspect.getfile(item)) for item in described)]
    for item in (
        *design.sources.items(),
        *options,
        *flow.tool_versions(board.family),
        *map(Path.read_text, sources),
    ):
        digest.update(repr(item).encode())
    return digest.hexdigest()[:24]


def _too_slow(board: Board, config: Config, report: dict[str, Any]) -> str:
    reached, clock, seed = report["timing"], report["clock_hz"], report["seed"]
    advice = remedy(board, config, clock, seed, reached["fmax_hz"])
    paths = "".join(f"\n  {path['ns']:.1f} ns into {path['unit']}" for path in reached["slowest"])
    return (
        f"{board.name} with seed {seed} reaches {reached['fmax_hz'] / 1e6:.1f} MHz but its clock is {clock / 1e6:g} "
        f"MHz: {advice}, or keep it with --allow-timing-fail, which takes no time again. Slowest paths by unit:{paths}"
    )


_FILE = "needs.json"


def needs(board: Board, config: Config, progress: Progress = lambda text: None) -> Resources:
    """What synthesis says that `config` needs on `board`, with its memory and its link; it is kept in the cache.

    Raises
    ------
    BoardError
        If the board's memory or link cannot run at the board's clock.
    weft.boards.build.tools.ToolError
        If a tool fails, or is not installed.
    """
    design = elaborate(board, config, board.clock)

    def make(folder: Path) -> None:
        for name, text in design.files.items():
            (folder / name).write_text(text)
        flow.synthesise(board, folder, progress)
        found = dict(flow.synthesised(board.family, folder).items())
        for file in folder.iterdir():
            file.unlink()
        (folder / _FILE).write_text(json.dumps(found))

    kept = entry(f"needs-{key(board, design, 0)}", make, cache_root() / "boards")
    return Resources(**json.loads((kept / _FILE).read_text()))
