"""The command that estimates how fast a model runs on boards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft import files
from weft import report as reports
from weft.cli.commands import Group, Json, Model, Shapes, States, board_names, command, shapes_of, states_of

if TYPE_CHECKING:
    from weft.run.estimate import Estimate

FORMAT = "weft estimate 1"
"""Format of what `weft estimate --json` prints."""


@command(Group.HARDWARE, quiet=False)
def estimate(
    model: Model,
    board: Annotated[
        list[str],
        typer.Option(
            "--board",
            metavar="BOARD",
            help="Board, by its name in `weft boards`. May be repeated. Default: all boards.",
            show_default=False,
            autocompletion=board_names,
        ),
    ] = [],  # noqa: B006
    as_json: Json = False,
    shape: Shapes = [],  # noqa: B006
    state: States = [],  # noqa: B006
) -> None:
    """Estimate whether a model fits each board and how fast it runs there, without hardware.

    Cycles come from the cycle model. Boards that fit come first, ordered by time per sample with the link.
    """
    from weft.run.estimate import estimate as estimates

    with reports.progress() as progress:
        results = estimates(
            files.require_file(model),
            board or None,
            shapes=shapes_of(shape),
            states=states_of(state),
            progress=progress,
        )
    # False sorts first: boards that fit, then those that do not, then those refused.
    results.sort(key=lambda item: (not item.fits, bool(item.refused), item.sample_seconds))
    if as_json:
        print(json.dumps({"format": FORMAT, "boards": [_as_json(item) for item in results]}, indent=1))
        return
    _show(results)


def _as_json(item: Estimate) -> dict[str, Any]:
    """Return an estimate as JSON values; if compilation was refused, only the reason and the board's memory."""
    head = {
        "board": item.board,
        "config": item.config.to_dict(),
        "clock_hz": item.clock,
        "refused": item.refused,
    }
    if item.refused:
        return head | {"memory": {"available": item.available}}
    return head | {
        "nodes": item.nodes,
        "on_device": item.on_device,
        "reasons": dict(item.reasons),
        "fits": item.fits,
        "sensible": item.sensible,
        "memory": {
            "available": item.available,
            "needed": item.needed,
            "code": item.code,
            "constants": item.constants,
            "working": item.working,
            "flash": item.flash,
        },
        "cycles": item.cycles,
        "seconds": item.seconds,
        "macs": item.macs,
        "macs_per_second": item.macs_per_second,
        "utilisation": item.utilisation,
        "bytes_moved": item.moved,
        "bound": dict(item.bound),
        "sample_seconds": item.sample_seconds,
        "link": {
            "upload_seconds": item.upload,
            "sample_seconds": item.link,
            "between_seconds": item.between,
        },
    }


def _show(results: list[Estimate]) -> None:
    numbers = (
        "clock",
        "memory",
        "needed",
        "ms",
        "link ms",
        "sum ms",
        "MMAC/s",
        "of array",
        "MB moved",
        "upload s",
    )
    table = reports.table("board", "array", *numbers, "paced by", right=numbers)
    for item in results:
        n = item.config.n
        cells = [f"{n} x {n}", f"{item.clock / 1e6:g} MHz", _bytes(item.available)]
        if item.refused:
            cells += ["-"] * 8 + ["not compiled"]
        else:
            cells += [
                _bytes(item.needed) if item.fits else f"{_bytes(item.needed)} (too much)",
                f"{item.seconds * 1e3:,.2f}",
                f"{item.link * 1e3:,.2f}",
                f"{item.sample_seconds * 1e3:,.2f}{'' if item.sensible or not item.fits else ' (not sensible)'}",
                f"{item.macs_per_second / 1e6:,.0f}",
                f"{item.utilisation:.1%}",
                f"{item.moved / 1e6:,.2f}",
                f"{item.upload:,.2f}",
                ", ".join(f"{name} {share:.0%}" for name, share in list(item.bound.items())[:2])
                or "one unit at a time",
            ]
        table.add_row(item.board, *cells)
    reports.stdout().print(table)
    for line in dict.fromkeys(_notes(results)):
        print(line)
    print("ms: for one sample, by the cycle model with the board's clock and memory, without link and host")
    print(
        "link: transfer of one sample; sum: ms + link, which orders the boards; upload: code and weights, once"
    )


def _bytes(size: int) -> str:
    return f"{size / 1e6:,.2f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} KB"


def _notes(results: list[Estimate]) -> list[str]:
    """Return sentences below the table: missing memory, flash, host nodes, and the boards that fit."""
    notes = []
    for item in results:
        if item.refused:
            notes.append(f"{item.board}: {item.refused}")
        elif not item.fits and item.flash:
            notes.append(
                f"{item.board}: {item.needed - item.available:,} bytes too many: {item.needed:,} of values, with code, "
                "weights and parameters in its flash"
            )
        elif not item.fits:
            notes.append(
                f"{item.board}: {item.needed - item.available:,} bytes too many: {item.code:,} of code, "
                f"{item.constants:,} of weights and parameters, {item.working:,} of values"
            )
        if item.fits and item.flash:
            notes.append(
                f"{item.board}: {item.flash:,} bytes in its flash, for code, weights and parameters: "
                f"`weft flash --board {item.board} --program FOLDER`"
            )
        if item.fits and not item.sensible:
            notes.append(
                f"{item.board}: not sensible: for {item.between * 1e3:,.2f} ms of each sample, nodes on the host "
                "exchange values with the device"
            )
    # One sentence for all boards with the same nodes on the host.
    on_host: dict[str, list[str]] = {}
    for item in results:
        if item.fits and item.on_device < item.nodes:
            on_host.setdefault(_host_nodes(item), []).append(item.board)
    notes += [f"{', '.join(boards)}: {text}" for text, boards in on_host.items()]
    fitting = [item.board for item in results if item.fits]
    if len(fitting) < len(results):
        notes.append(f"fits: {', '.join(fitting) or 'none'}")
    return notes


def _host_nodes(item: Estimate) -> str:
    """Describe the nodes on the host: their number and the most frequent reason."""
    text = f"{item.nodes - item.on_device} of {item.nodes} nodes run on the host"
    if not item.reasons:
        return f"{text}, which convert values at the model's ends"
    reason, count = next(iter(item.reasons.items()))
    return f"{text}; the reason for {count}: {reason}"
