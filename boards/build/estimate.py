"""What a configuration will need on a board, before it is synthesised: small formulas, fitted to synthesis results.

The weights are in a JSON file next to the family's own, which ``benchmarks/boards.py fit`` writes. Their error is the
greatest that is made on a configuration by weights that were fitted to all others. Where there are none, nothing is
estimated, and every configuration may fit.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from weft.boards.board import Board, BoardError, CoreKind, MemoryKind
from weft.boards.bus.axi_bridge import piece_beats
from weft.boards.families.family import Family, Resources
from weft.hdl import schema
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config
from weft.hdl.isa.kernel import MICRO_BITS, REGISTERS, STRIP_ROWS
from weft.hdl.sequential.assembler import OPERAND_LOW, entries
from weft.hdl.sequential.microprogram import Microprogram
from weft.hdl.sequential.processor import halves

FOLDER = Path(__file__).parents[1] / "families"
FORMAT = "weft estimates 2"
PACKING = {"ecp5": 1.06, "gowin": 1.04, "gowin5a": 1.04}
"""LUTs that nextpnr places for each one that Yosys counts, by family, in builds for the smaller boards."""
_RIDGE = 1e-3
"""Penalty of a weight, relative to its feature: small enough to leave what samples determine within a few 1/10,000."""


def features(kind: str, board: Board, config: Config) -> dict[str, float]:
    """What the need for a resource, one of `Resources.NAMES`, is taken to be a weighted sum of."""
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
    """Block RAMs of scratchpad and accumulator, of the microprogram, its data and the tables."""
    program = Microprogram(config)
    scratchpad = family.blocks(8 * config.n, config.scratchpad_size)
    accumulator = family.blocks(32 * config.n, 2 * config.accumulator_size)
    width = OPERAND_LOW + program.operand_bits
    words = sum(family.blocks(width, count) for count in halves(len(program.words)))
    tables = family.blocks(8, entries(config)) if entries(config) else 0
    return scratchpad + accumulator + words + family.blocks(32, program.depth) + tables


def memory_blocks(board: Board, config: Config) -> int:
    """Block RAMs of the FPGA that the board's memory takes."""
    if board.memory.kind is not MemoryKind.BLOCK:
        return 0
    return board.family.blocks(8 * config.bus_bytes, board.memory.size // config.bus_bytes)


def lookup_blocks(board: Board, config: Config) -> int:
    """Block RAMs of the FPGA that look-up tables of the pipelined core take: two lanes share a memory."""
    return -(-config.lanes // 2) * board.family.blocks(8, LOOKUP_ENTRIES * config.lookup_tables)


def kernel_blocks(board: Board, config: Config) -> int:
    """Block RAMs of the FPGA that the kernel engine takes: its registers twice, as two are read at a time, and its
    micro-operations."""
    if not config.kernel:
        return 0
    blocks = board.family.blocks
    registers = blocks(32 * config.lanes, REGISTERS * STRIP_ROWS * config.groups)
    return 2 * registers + blocks(MICRO_BITS, config.kernel)


def transposer_blocks(board: Board, config: Config) -> int:
    """Block RAMs of the FPGA that LOAD's transposer takes: one memory for each lane of the array."""
    depth = 2 * config.transposed_vectors * config.n
    return config.n * board.family.blocks(8, depth) if config.softmax else 0


def bridge_blocks(board: Board, config: Config) -> int:
    """Block RAMs of the FPGA that hold words between a pipelined core and its memory, one way and the other."""
    blocks, words = board.family.blocks, 2 * piece_beats(config)
    return blocks(8 * config.bus_bytes, words) + blocks(9 * config.bus_bytes, words)


_EXACT = (memory_blocks, lookup_blocks, kernel_blocks, transposer_blocks, bridge_blocks)


def _exact_blocks(board: Board, config: Config) -> int:
    """Block RAMs that no weight is needed for."""
    if board.core is CoreKind.SEQUENTIAL:
        return memory_blocks(board, config)
    return sum(blocks(board, config) for blocks in _EXACT)


class Fit(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Of one resource: weights by feature, the greatest relative error, and from how many configurations they are."""

    weights: dict[str, float]
    error: float
    samples: int


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    cores: dict[str, dict[str, Fit]]


def weights_file(family: Family) -> Path:
    """The file with a family's weights, which need not be there."""
    return FOLDER / f"{family.name}.json"


@cache
def _weights(path: Path) -> dict[str, dict[str, Fit]]:
    """By core, by resource."""
    if not path.exists():
        return {}
    try:
        found = schema.decode(schema.read_bytes(path), _File, format=FORMAT).cores
    except schema.SchemaError as error:
        raise BoardError(f"{path}, which is part of weft, is damaged: {error}; install weft again") from None
    if any(kinds.keys() != Resources.NAMES.keys() for kinds in found.values()):
        raise BoardError(f"{path}, which is part of weft, has not all resources; install weft again")
    return found


def weights(board: Board) -> dict[str, Fit]:
    """By resource; none if the board's core was never fitted. Raises `BoardError` if the family's file is damaged."""
    return _weights(weights_file(board.family)).get(board.core, {})


def text(cores: dict[str, dict[str, Fit]]) -> str:
    """What is in a family's file, from the weights by core and resource."""
    return schema.encode(_File(FORMAT, cores))


def estimate(board: Board, config: Config) -> Resources | None:
    """What `config` will need on `board`, with its memory and its link; None if there are no weights."""
    fitted = weights(board)
    if not fitted:
        return None
    totals = {}
    for kind in Resources.NAMES:
        known, given = fitted[kind].weights, features(kind, board, config)
        totals[kind] = round(sum(known.get(name, 0.0) * value for name, value in given.items()))
    totals["ram"] += _exact_blocks(board, config)
    return Resources(**totals)


def fits(board: Board, config: Config) -> bool:
    """Whether the estimate leaves hope: no resource is exceeded by more than the estimate's error."""
    return not _excess(board, config)


def places(board: Board, config: Config) -> bool:
    """Whether place and route should succeed: the estimate, with LUTs that packing adds, is no more than there is."""
    need = estimate(board, config)
    if need is None:
        return True
    packed = {**dict(need.items()), "lut": need.lut * PACKING.get(board.family.name, 1.0)}
    return all(count <= getattr(board.available, kind) for kind, count in packed.items())


def check_estimate(board: Board, config: Config) -> None:
    """Raises `BoardError` if `config` is sure not to fit `board`: beyond the error of the estimate."""
    worst = max(_excess(board, config), default=None)
    if worst is not None:
        _, kind, count = worst
        raise BoardError(too_large(board, config, kind, count, "it is estimated to need"))


def _excess(board: Board, config: Config) -> list[tuple[float, str, int]]:
    """Of each resource that is exceeded for sure: the share of what there is, the resource, and the count."""
    need = estimate(board, config)
    shares = [
        (count / getattr(board.available, kind) / (1 + weights(board)[kind].error), kind, count)
        for kind, count in (need.items() if need else ())
    ]
    return [item for item in shares if item[0] > 1]


def too_large(board: Board, config: Config, kind: str, count: int, needs: str) -> str:
    """The sentence that says what does not fit, and what to change."""
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
    """Weights by resource from what synthesis said of some configurations, all with the same core and family.

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
    scale = np.maximum(counts, 1.0)
    rows, wanted = rows / scale[:, None], counts / scale
    solution = _non_negative(rows, wanted)
    # What the fit says of its own samples means nothing: there can be as many weights as those.
    others = [np.arange(len(counts)) != left_out for left_out in range(len(counts))]
    wrong = [abs(rows[~kept] @ _non_negative(rows[kept], wanted[kept]) - 1)[0] for kept in others]
    found = {
        name: round(float(value), 4) for name, value in zip(names, solution, strict=True) if value > 1e-4
    }
    return Fit(found, round(float(max(wrong)), 3), len(samples))


def _non_negative(rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Least squares with no negative weight. What samples do not tell apart is put down to the first feature, which is
    constant: to any other one, it would grow with configurations that are not among the samples."""
    from scipy.optimize import nnls

    norms = np.linalg.norm(rows, axis=0)
    norms[norms == 0] = 1
    ridge = _RIDGE * np.eye(len(norms))
    ridge[0, 0] = 0
    solution, _ = nnls(np.vstack([rows / norms, ridge]), np.append(wanted, np.zeros(len(norms))))
    return solution / norms
