"""Build of a bitstream and its report for a board and a configuration, cached by content."""

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

from weft.boards.board import Board, Line, MemoryKind
from weft.boards.build import flow
from weft.boards.build.estimate import check_estimate, too_large_message
from weft.boards.build.flow import Progress, floorplan, slow_link_notes, timing, usage
from weft.boards.build.records import expected_seconds, remedy
from weft.boards.build.tools import require
from weft.boards.errors import BoardError, TimingError
from weft.boards.families.family import Family, Pll, Resources, ShiftedPll
from weft.boards.sdram.eye import Eye, best_eye, eye_at
from weft.boards.top import Shell
from weft.hdl.cache import cache_root, entry
from weft.hdl.isa.config import Config

BITSTREAM, REPORT, FLOORPLAN = "weft", "report.json", "floorplan.svg"
"""Names of the files that `build` leaves in its folder. The bitstream also has the family's suffix."""
NETLIST, TIMING = "top.json", "timing.json"
PACKED, SYNTHESIS = "top.json.gz", "synthesis.json"
"""Files of the cached synthesis, from which place and route starts with any seed."""

MakeTop = Callable[[Board, Config, float, int], Any]
"""Function that returns a board's top component, given the board, the configuration, the clock in Hz and the clock
cycles per bit."""


@dataclass(frozen=True)
class Build:
    """Finished build.

    Attributes
    ----------
    folder : Path
        Contains bitstream, report, floorplan and the tools' logs. It is part of the cache: copy files from it, and do
        not change them.
    bitstream : Path
    report : dict
        See `weft.boards.build.flow`.
    """

    folder: Path
    bitstream: Path
    report: dict[str, Any]


def bitstream_name(board: Board) -> str:
    """Return the file name of the board's bitstreams."""
    return f"{BITSTREAM}{board.family.bitstream}"


def products(build: Build) -> list[Path]:
    """Return the files of a build that its user needs."""
    return [build.bitstream, build.folder / REPORT, build.folder / FLOORPLAN]


def make_top(board: Board, config: Config, clock: float, divisor: int) -> Any:
    """Return the top component of every board."""
    from weft.boards.top import Top

    return Top(board, config, clock, divisor, board.family.fabric)


@dataclass(frozen=True)
class Design:
    """Input of the tools.

    Attributes
    ----------
    files : dict of str to str
        RTLIL and constraints by file name.
    clock : float
        Clock in Hz that the PLL makes.
    line : Line
        Settings of the serial link.
    eye : Eye or None
        Set-up and hold margins of the SDRAM; None without SDRAM.
    """

    files: dict[str, str]
    clock: float
    line: Line
    eye: Eye | None = None

    @property
    def sources(self) -> dict[str, str]:
        """`files` without the attributes that hold source locations."""
        return {
            name: re.sub(r"^ *attribute \\src .*\n", "", text, flags=re.M)
            for name, text in self.files.items()
        }

    @property
    def hardware(self) -> str:
        """Hash of the hardware and its pads, 16 hexadecimal digits, which does not depend on names of signals
        and modules."""
        digest = hashlib.sha256()
        for name, text in self.sources.items():
            for line in _without_names(text) if name.endswith(".il") else [text]:
                digest.update(line.encode())
        return digest.hexdigest()[:16]


def _without_names(rtlil: str) -> Iterator[str]:
    """Yield the lines of RTLIL with names of modules, and each module's own names, replaced by numbers in order.

    Names of library cells, of their ports and of parameters stay.
    """
    # Ports of instances of these modules are renamed like other names; ports of library cells are not.
    modules = {
        name: str(number) for number, name in enumerate(re.findall(r"^module (\S+)$", rtlil, flags=re.M))
    }
    numbers: dict[str, int] = {}
    own = False  # the current cell is an instance of one of these modules
    for line in rtlil.splitlines(keepends=True):
        words = line.split()
        if not words or words[0] in ("attribute", "#"):
            continue
        if words[0] == "module":
            numbers = {}
            words[1] = modules[words[1]]
        elif words[0] == "cell":
            own = words[1] in modules
            kind = modules.get(words[1], words[1])
            words = ["cell", kind, str(numbers.setdefault(words[2], len(numbers)))]
        elif words[0] in ("wire", "memory", "process"):
            words[-1] = str(numbers.setdefault(words[-1], len(numbers)))
        elif words[0] == "connect" and line.startswith("    "):  # inside a cell
            words[1:] = [*([] if own else words[1:2]), *(str(numbers.get(word, word)) for word in words[2:])]
        elif words[:2] == ["parameter", "\\MEMID"]:
            words[2] = str(numbers[words[2].strip('"')[1:]])
        else:
            words = [str(numbers.get(word, word)) for word in words]
        yield " ".join(words) + "\n"


def elaborate(board: Board, config: Config, clock: float, make: MakeTop = make_top) -> Design:
    """Return the design for a requested clock in Hz.

    Raises `weft.boards.errors.PllError` if the PLL makes no clock near it, and `BoardError` if the board's
    memory or serial link cannot run at it.
    """
    family = board.family
    require("amaranth_boards", *family.modules)
    platform = board.platform()
    # The PLL makes a clock near the requested one; everything else is built for the actual clock.
    pll = board.pll(platform.default_clk_frequency, clock)
    actual = pll.output
    line = board.line(actual)
    plan = platform.prepare(Shell(board, make(board, config, actual, line.divisor), clock), "top")
    files = {name: plan.files[name] for name in ("top.il", f"top{family.constraints}")}
    if family.clock_constraint:
        constraint = family.clock_constraint.format(family.requested_clock(actual) / 1e6)
        files[f"top{family.constraints}"] += f"\n{constraint}\n"
    return Design(files, actual, line, sdram_eye(board, pll))


def sdram_eye(board: Board, pll: Pll) -> Eye | None:
    """Return the SDRAM's set-up and hold margins at the PLL's phase; None without SDRAM."""
    if board.memory.kind is not MemoryKind.SDRAM:
        return None
    assert isinstance(pll, ShiftedPll)
    return eye_at(pll.output, pll.phase, best_eye(pll.output).capture)


def check_synthesised(board: Board, config: Config, need: Resources) -> None:
    """Raise `BoardError` if a netlist needs more of a resource than the FPGA has; the message names the scarcest."""
    # The scarcest resource is the one with the largest share of the FPGA.
    shares = {kind: count / getattr(board.available, kind) for kind, count in need.items()}
    worst = max(shares, key=lambda kind: shares[kind])
    if shares[worst] > 1:
        raise BoardError(
            too_large_message(board, config, worst, getattr(need, worst), "synthesised, it needs")
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
    estimated: bool = True,
) -> Build:
    """Build a bitstream, or take it from `cache`.

    Parameters
    ----------
    cache : Path
        Folder of finished builds, keyed by all of their inputs. Damaged entries are built again.
    seed : int
        nextpnr seed; each gives another placement.
    clock : float
        Requested clock in Hz; None for `board.clock`.
    allow_timing_fail : bool
        Accept a design that is slower than its clock.
    make : callable
        Returns the top component.
    estimated : bool
        Refuse a configuration before synthesis if, by estimate, it cannot fit.

    Raises
    ------
    weft.hdl.errors.ConfigError
        If the family's multipliers cannot carry out the configuration.
    BoardError
        If it does not fit.
    TimingError
    weft.boards.errors.ToolError
        If a tool is missing or fails.
    weft.hdl.errors.CacheError
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
        # The netlist has a cache entry of its own, so that other seeds need no synthesis.
        netlist = entry(
            f"{board.name}-netlist-{key(board, design)}",
            lambda inner: _synthesise(board, config, design, inner, progress),
            cache,
        )
        _place(board, config, netlist, folder, facts, progress)

    target = entry(f"{board.name}-{key(board, design, seed)}", make_files, cache)
    result = Build(target, target / bitstream_name(board), json.loads((target / REPORT).read_text()))
    if not (result.report["timing"]["met"] or allow_timing_fail):
        raise TimingError(_too_slow_message(board, config, result.report))
    return result


def _duration(board: Board, config: Config) -> str:
    seconds = expected_seconds(board, config)
    return "" if seconds is None else f"; the whole build takes about {max(round(seconds / 60), 1)} minutes"


def _synthesise(
    board: Board, config: Config, design: Design, folder: Path, progress: Callable[[str], None]
) -> None:
    """Write the netlist and its statistics to `folder`."""
    began = time.monotonic()
    for name, text in design.files.items():
        (folder / name).write_text(text)
    notes = flow.synthesise(board, folder, progress)
    check_synthesised(board, config, flow.read_resources(board.family, folder))
    if board.dsp is not None:
        board.dsp.pin(folder / NETLIST, config.n)
    with (folder / NETLIST).open("rb") as raw, gzip.open(folder / PACKED, "wb", compresslevel=1) as packed:
        shutil.copyfileobj(raw, packed)
    # The cache keeps the netlist in compressed form only, and no RTLIL.
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
    """Place and route the netlist of `_synthesise`; write bitstream, report and floorplan to `folder`."""
    began = time.monotonic()
    family = board.family
    for name in (f"top{family.constraints}", "stat.json"):
        shutil.copyfile(netlist / name, folder / name)
    with gzip.open(netlist / PACKED) as packed, (folder / NETLIST).open("wb") as raw:
        shutil.copyfileobj(packed, raw)
    synthesis = json.loads((netlist / SYNTHESIS).read_text())
    need = flow.read_resources(family, folder)
    flow.place(board, folder, facts["clock_hz"], facts["seed"], progress)
    flow.pack(board, folder, progress)
    raw_timing = json.loads((folder / TIMING).read_text())
    # On some families nextpnr's result itself is the JSON netlist.
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
        "notes": [*family.notes, *slow_link_notes(board, facts["clock_hz"]), *synthesis["notes"]],
        "seconds": {
            "synthesis": round(synthesis["seconds"], 1),
            "total": round(synthesis["seconds"] + time.monotonic() - began, 1),
        },
        "tools": flow.tool_versions(family),
    }
    (folder / REPORT).write_text(json.dumps(report, indent=2) + "\n")
    (folder / f"top{family.bitstream}").rename(folder / bitstream_name(board))
    # These are large, and no later build needs them.
    raw_timing.pop("detailed_net_timings", None)
    (folder / TIMING).write_text(json.dumps(raw_timing))
    for name in (NETLIST, "placed.json", f"top{family.routed}"):
        (folder / name).unlink(missing_ok=True)


def key(board: Board, design: Design, seed: int | None = None) -> str:
    """Return a hash of everything that determines the netlist or, with `seed`, the bitstream.

    Source locations of signals are not part of it.
    """
    digest = hashlib.sha256()
    # The hash covers the design, the tools' options and versions, and the source files that call them.
    options = [
        *flow.synthesis_commands(board),
        *board.place,
        *board.pack,
        f"{board.dsp}",
        f"{design.clock}",
        f"{seed}",
    ]
    objects: list[Any] = [Family, board.family.place, *([type(board.dsp)] if board.dsp else [])]
    sources = [Path(__file__), Path(flow.__file__), *(Path(inspect.getfile(item)) for item in objects)]
    for item in (
        *design.sources.items(),
        *options,
        *flow.tool_versions(board.family),
        *map(Path.read_text, sources),
    ):
        digest.update(repr(item).encode())
    return digest.hexdigest()[:24]


def _too_slow_message(board: Board, config: Config, report: dict[str, Any]) -> str:
    result, clock, seed = report["timing"], report["clock_hz"], report["seed"]
    advice = remedy(board, config, clock, seed, result["fmax_hz"])
    paths = "".join(f"\n  {path['ns']:.1f} ns into {path['unit']}" for path in result["slowest"])
    return (
        f"{board.name} with seed {seed} reaches {result['fmax_hz'] / 1e6:.1f} MHz but its clock is {clock / 1e6:g} "
        f"MHz: {advice}, or keep this build with --allow-timing-fail, without building again. "
        f"Slowest paths by unit:{paths}"
    )


_RESOURCES = "needs.json"


def synthesised_resources(board: Board, config: Config, progress: Progress = lambda text: None) -> Resources:
    """Return the resources that synthesis reports for `config` on `board`, with memory and link. The result is cached.

    Raises
    ------
    BoardError
        If the board's memory or link cannot run at the board's clock.
    weft.boards.errors.ToolError
        If a tool fails or is not installed.
    """
    design = elaborate(board, config, board.clock)

    def make(folder: Path) -> None:
        for name, text in design.files.items():
            (folder / name).write_text(text)
        flow.synthesise(board, folder, progress)
        resources = dict(flow.read_resources(board.family, folder).items())
        for file in folder.iterdir():
            file.unlink()
        (folder / _RESOURCES).write_text(json.dumps(resources))

    cached = entry(f"needs-{key(board, design, 0)}", make, cache_root() / "boards")
    return Resources(**json.loads((cached / _RESOURCES).read_text()))
