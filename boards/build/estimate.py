"""Estimates of the resources that a configuration needs on a board, without synthesis.

Each resource is a weighted sum of features, with weights fitted to synthesis results. ``benchmarks/boards.py fit``
writes the weights to a JSON file beside the family's module. An error is the largest relative error on a configuration
that the fit leaves out. Without weights there is no estimate, and every configuration counts as fitting.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from weft.boards.board import Board, CoreKind, MemoryKind
from weft.boards.bus.axi import piece_beats
from weft.boards.errors import BoardError
from weft.boards.families.family import Family, Resources
from weft.hdl import schema
from weft.hdl.errors import SchemaError
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config
from weft.hdl.isa.kernel import MICRO_BITS, REGISTERS, STRIP_ROWS
from weft.hdl.sequential.assembler import OPERAND_LOW, entries
from weft.hdl.sequential.microprogram import Microprogram
from weft.hdl.sequential.processor import halves

FOLDER = Path(__file__).parents[1] / "families"
FORMAT = "weft estimates 2"
PACKING = {"ecp5": 1.06, "gowin": 1.04, "gowin5a": 1.04}
"""LUTs that nextpnr places per LUT that Yosys counts, by family, from builds for the smaller boards."""
_RIDGE = 1e-3
"""Relative penalty of weights: small enough to change determined weights by a few 1/10,000 only."""


def features(kind: str, board: Board, config: Config) -> dict[str, float]:
    """Return the features whose weighted sum estimates a resource, one of `Resources.NAMES`."""
    if board.core is CoreKind.SEQUENTIAL:
        return _features_sequential(kind, board.family, config)
    family = board.family
    n, lanes, softmax = config.n, config.lanes, int(config.softmax)
    kernel, tables = int(config.kernel > 0), int(config.lookup_tables > 0)
    products = {"multiply_lanes": config.multiply * lanes, "kernel": kernel, "kernel_lanes": kernel * lanes}
    if kind == "dsp":
        softmax_products = {"softmax": softmax, "softmax_lanes": softmax * lanes}
        return {"one": 1, "n2": n * n, "lanes": lanes, **softmax_products, **products}
    if kind == "ram":
        return {
            "one": 1,
            "n": n,
            "scratchpad": config.scratchpad_banks * family.blocks(8 * n, config.scratchpad_depth),
            "accumulator": config.accumulator_banks * family.blocks(32 * n, config.accumulator_depth),
            "table": softmax * lanes * family.blocks(8, config.table_depth),
            "softmax": softmax,
        }
    return {
        "one": 1,
        "n": n,
        "n2": n * n,
        "banks": config.scratchpad_banks * n,
        "accumulator_banks": config.accumulator_banks * n,
        "bus": config.bus_bytes,
        "queue": config.queue_depth,
        "lanes": lanes,
        "mantissa": lanes * (config.mantissa_bits - 16),
        "softmax": softmax,
        "softmax_lanes": softmax * lanes,
        "softmax_n": softmax * n,
        "tables": tables,
        "tables_lanes": tables * lanes,
        **products,
        "kernel_n": kernel * n,
        "taps_n": config.depthwise_taps * n,
    }


def _features_sequential(kind: str, family: Family, config: Config) -> dict[str, float]:
    n, softmax, multipliers = config.n, int(config.softmax), family.fabric.multipliers
    blocks = multipliers.narrow_count(n * n)
    if kind == "dsp":
        return {"one": 1, "n2": blocks}
    if kind == "ram":
        return {"one": 1, "memories": sequential_blocks(family, config)}
    kernel = int(config.kernel > 0)
    inferred = {"inferred": n * n - blocks} if multipliers.narrow else {}
    return {
        "one": 1,
        "n": n,
        "n2": n * n,
        "bus": config.bus_bytes,
        "softmax": softmax,
        "kernel": kernel,
        **inferred,
    }


def sequential_blocks(family: Family, config: Config) -> int:
    """Return the block RAMs of the sequential core: scratchpad, accumulator, microprogram, its data, and tables."""
    program = Microprogram(config)
    scratchpad = family.blocks(8 * config.n, config.scratchpad_size)
    accumulator = family.blocks(32 * config.n, 2 * config.accumulator_size)
    width = OPERAND_LOW + program.operand_bits
    words = sum(family.blocks(width, count) for count in halves(len(program.words)))
    tables = family.blocks(8, entries(config)) if entries(config) else 0
    return scratchpad + accumulator + words + family.blocks(32, program.depth) + tables


def memory_blocks(board: Board, config: Config) -> int:
    """Return the block RAMs of the board's memory."""
    if board.memory.kind is not MemoryKind.BLOCK:
        return 0
    return board.family.blocks(8 * config.bus_bytes, board.memory.size // config.bus_bytes)


def lookup_blocks(board: Board, config: Config) -> int:
    """Return the block RAMs of the pipelined core's look-up tables. Two lanes share a memory."""
    return -(-config.lanes // 2) * board.family.blocks(8, LOOKUP_ENTRIES * config.lookup_tables)


def kernel_blocks(board: Board, config: Config) -> int:
    """Return the block RAMs of the kernel engine: two copies of its registers, for two reads per cycle, and its
    micro-operations."""
    if not config.kernel:
        return 0
    blocks = board.family.blocks
    registers = blocks(32 * config.lanes, REGISTERS * STRIP_ROWS * config.groups)
    return 2 * registers + blocks(MICRO_BITS, config.kernel)


def transposer_blocks(board: Board, config: Config) -> int:
    """Return the block RAMs of LOAD's transposer, which has one memory per lane of the array."""
    depth = 2 * config.transposed_vectors * config.n
    return config.n * board.family.blocks(8, depth) if config.softmax else 0


def bridge_blocks(board: Board, config: Config) -> int:
    """Return the block RAMs of the buffers between a pipelined core and its memory, for both directions."""
    blocks, words = board.family.blocks, 2 * piece_beats(config)
    return blocks(8 * config.bus_bytes, words) + blocks(9 * config.bus_bytes, words)


_EXACT = (memory_blocks, lookup_blocks, kernel_blocks, transposer_blocks, bridge_blocks)


def _exact_blocks(board: Board, config: Config) -> int:
    """Return the block RAMs that are known without weights."""
    if board.core is CoreKind.SEQUENTIAL:
        return memory_blocks(board, config)
    return sum(blocks(board, config) for blocks in _EXACT)


class Fit(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Fit of one resource: weights by feature, largest relative error, and number of configurations."""

    weights: dict[str, float]
    error: float
    samples: int


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    cores: dict[str, dict[str, Fit]]


def weights_file(family: Family) -> Path:
    """Return the path of a family's weights. The file need not exist."""
    return FOLDER / f"{family.name}.json"


@cache
def _weights(path: Path) -> dict[str, dict[str, Fit]]:
    """Read weights by core and resource."""
    if not path.exists():
        return {}
    try:
        cores = schema.decode(schema.read_bytes(path), _File, format=FORMAT).cores
    except SchemaError as error:
        raise BoardError(f"{path}, which is part of weft, is damaged: {error}; install weft again") from None
    if any(kinds.keys() != Resources.NAMES.keys() for kinds in cores.values()):
        raise BoardError(f"{path}, which is part of weft, lacks some resources; install weft again")
    return cores


def weights(board: Board) -> dict[str, Fit]:
    """Return the weights by resource; empty if the board's core was never fitted.

    Raises `BoardError` if the family's file is damaged.
    """
    return _weights(weights_file(board.family)).get(board.core, {})


def text(cores: dict[str, dict[str, Fit]]) -> str:
    """Return the contents of a family's file for weights by core and resource."""
    return schema.encode(_File(FORMAT, cores))


def estimate(board: Board, config: Config) -> Resources | None:
    """Estimate the resources that `config` needs on `board`, with memory and link; None without weights."""
    fit_by_kind = weights(board)
    if not fit_by_kind:
        return None
    totals = {}
    for kind in Resources.NAMES:
        factors, values = fit_by_kind[kind].weights, features(kind, board, config)
        totals[kind] = round(sum(factors.get(name, 0.0) * value for name, value in values.items()))
    totals["ram"] += _exact_blocks(board, config)
    return Resources(**totals)


def fits(board: Board, config: Config) -> bool:
    """Return False if the estimate exceeds a resource by more than the estimate's error."""
    return not _excess(board, config)


def can_place(board: Board, config: Config) -> bool:
    """Return True if place and route should succeed: the estimate, with the LUTs that packing adds, is within the
    FPGA."""
    need = estimate(board, config)
    if need is None:
        return True
    # Packing adds LUTs only, for example LUTs that merely feed a flip-flop.
    packed = {**dict(need.items()), "lut": need.lut * PACKING.get(board.family.name, 1.0)}
    return all(count <= getattr(board.available, kind) for kind, count in packed.items())


def check_estimate(board: Board, config: Config) -> None:
    """Raise `BoardError` if the estimate exceeds a resource of `board` by more than the estimate's error."""
    worst = max(_excess(board, config), default=None)
    if worst is not None:
        _, kind, count = worst
        raise BoardError(too_large_message(board, config, kind, count, "it needs an estimated"))


def _excess(board: Board, config: Config) -> list[tuple[float, str, int]]:
    """Return a tuple (relative excess, resource, count) for each resource that is certainly exceeded."""
    need = estimate(board, config)
    shares = [
        (count / getattr(board.available, kind) / (1 + weights(board)[kind].error), kind, count)
        for kind, count in (need.items() if need else ())
    ]
    return [item for item in shares if item[0] > 1]


def too_large_message(board: Board, config: Config, kind: str, count: int, needs: str) -> str:
    """Return the error message for a configuration that does not fit, with advice."""
    softmax = " or probability_bits 0 (no softmax)" if config.softmax else ""
    remedy = {
        "lut": f"a smaller n, fewer lanes{softmax}",
        "ff": f"a smaller n, fewer lanes{softmax}",
        "dsp": f"a smaller n, fewer lanes{softmax}",
        "ram": "fewer or shallower banks of scratchpad or accumulator",
    }
    return (
        f"the configuration does not fit {board.name}: {needs} {count:,} {Resources.NAMES[kind]} "
        f"and there are {getattr(board.available, kind):,}; choose {remedy[kind]}"
    )


def fit(samples: list[tuple[Board, Config, Resources]]) -> dict[str, Fit]:
    """Fit weights by resource to synthesis results of configurations with one core and family.

    No weight is negative.
    """
    return {kind: _fit_one(kind, samples) for kind in Resources.NAMES}


def _fit_one(kind: str, samples: list[tuple[Board, Config, Resources]]) -> Fit:
    names = list(features(kind, *samples[0][:2]))
    rows = np.array([list(features(kind, board, config).values()) for board, config, _ in samples], float)
    counts = np.array(
        [
            getattr(need, kind) - (_exact_blocks(board, config) if kind == "ram" else 0)
            for board, config, need in samples
        ],
        float,
    )
    # Dividing by the counts makes the least-squares errors relative.
    scale = np.maximum(counts, 1.0)
    rows, targets = rows / scale[:, None], counts / scale
    solution = _solve_non_negative(rows, targets)
    # Errors on the fit's own samples mean nothing, because there can be as many weights as samples.
    masks = [np.arange(len(counts)) != left_out for left_out in range(len(counts))]
    errors = [abs(rows[~mask] @ _solve_non_negative(rows[mask], targets[mask]) - 1)[0] for mask in masks]
    factors = {
        name: round(float(value), 4) for name, value in zip(names, solution, strict=True) if value > 1e-4
    }
    return Fit(factors, round(float(max(errors)), 3), len(samples))


def _solve_non_negative(rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Solve least squares with non-negative weights.

    Where the samples do not distinguish features, the ridge puts the weight on the first, constant feature. Any other
    feature would grow with configurations beyond the samples.
    """
    from scipy.optimize import nnls

    # Features are normalised, so that the ridge penalises all of them alike; the first one is exempt.
    norms = np.linalg.norm(rows, axis=0)
    norms[norms == 0] = 1
    ridge = _RIDGE * np.eye(len(norms))
    ridge[0, 0] = 0
    solution, _ = nnls(np.vstack([rows / norms, ridge]), np.append(targets, np.zeros(len(norms))))
    return solution / norms
