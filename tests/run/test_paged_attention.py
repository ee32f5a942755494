"""Attention over pages: one program for every state of the cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from support import attention_bounds as bounds
from support import attention_cases, configurations
from support.attention_cases import view

from weft.api import InputError
from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import Attention
from weft.compiler.ir.scales import (
    CALIBRATION_HEADROOM,
    NEGLIGIBLE_SHIFT,
    SCORE_CLAMP,
    SCORE_REACH,
    ScoreRange,
)
from weft.hdl.isa.config import PRESETS
from weft.run.attention import PagedAttention, Quantisation

HEADS, KV_HEADS, SIZE, PAGE, PAGES, CAPACITY = 4, 2, 16, 16, 12, 5
CONFIGS = {name: config for name, config in configurations.every().items() if config.softmax}
QUANT = Quantisation(0.05, 0.05, 0.02, 0.02, 3, -2, 5, -7)


@dataclass
class Cache:
    """Pool of pages, and the pages of one sequence in it."""

    k: np.ndarray
    v: np.ndarray
    table: list[int]

    def row(self, position: int, what: str) -> np.ndarray:
        pool: np.ndarray = getattr(self, what)
        return pool[self.table[position // PAGE], position % PAGE]


def cache(rng: np.random.Generator) -> Cache:
    shape = (PAGES, PAGE, KV_HEADS, SIZE)
    k, v = (np.clip(np.rint(rng.normal(0, 40, shape)), -128, 127).astype(np.int8) for _ in range(2))
    return Cache(k, v, [int(page) for page in rng.permutation(PAGES)[:CAPACITY]])


def contiguous_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, quant: Quantisation, length: int
) -> tuple[Attention, dict[str, np.ndarray]]:
    """Attention that a paged program computes, with keys and values of one head contiguous."""
    rows, size = q.shape[0], q.shape[2]
    op = attention_cases.attention(
        rows, length, size, heads=q.shape[1], causal=True, offset=length - rows,
        score_scale=quant.q_scale * quant.k_scale / size**0.5, scale=quant.v_scale / quant.y_scale,
        q_zero=quant.q_zero, k_zero=quant.k_zero, v_zero=quant.v_zero, y_zero=quant.y_zero,
    )  # fmt: skip
    op = replace(op, kv_heads=1, k=view("k", (1, 1, length, size)), v=view("v", (1, 1, length, size)))
    return op, {"q": q.reshape(op.q.shape), "k": k.reshape(op.k.shape), "v": v.reshape(op.v.shape)}


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", CONFIGS)
def test_any_quantisation_on_every_configuration(name: str) -> None:
    """Zero points lie at the ends of their ranges, and scales bring scores near the clamp."""
    config, rng = CONFIGS[name], np.random.default_rng(0)
    page, tried = 2 * config.n, 0
    for case in range(8):
        zeros = [attention_cases.random_zero(rng) for _ in range(4)]
        quant = Quantisation(float(rng.choice([0.02, 0.15, 0.3])), 0.1, 0.02, 0.02, *zeros)
        rows, size = int(rng.integers(1, 7)), int(rng.integers(1, 25))
        length = int(rng.integers(rows, 3 * page + 1))
        shapes = ((rows, 2, size), (4, page, 1, size), (4, page, 1, size))
        q, k, v = (
            np.clip(np.rint(rng.normal(zero, 30, shape)), -128, 127).astype(np.int8)
            for zero, shape in zip(zeros, shapes, strict=False)
        )
        op, inputs = contiguous_attention(
            q, *(pool[[3, 0, 2]].reshape(-1, size)[:length] for pool in (k, v)), quant, length
        )
        arguments = {
            "heads": 2, "kv_heads": 1, "head_size": size, "page": page, "pages": 4, "capacity": 3, "rows": rows,
            "quantisation": quant, "largest": attention_cases.largest_score(op, inputs) / CALIBRATION_HEADROOM,
        }  # fmt: skip
        if not ScoreRange.of(quant.q_zero, quant.k_zero, size, op.score_scale).holds(arguments["largest"]):
            assert arguments["largest"] * CALIBRATION_HEADROOM > SCORE_CLAMP - SCORE_REACH - NEGLIGIBLE_SHIFT
            with pytest.raises(CompileError, match="larger scores are clamped"):
                PagedAttention(config, **arguments)
            continue
        program = PagedAttention(config, **arguments)
        got = program.run(q, k, v, [3, 0, 2], length).outputs["y"]
        error = np.abs(got.reshape(op.dst.shape) - np.clip(attention_cases.real(op, inputs), -128, 127))
        assert (error <= bounds.attention(op, inputs, config) + 0.5).all(), f"case {case}: {quant}, {length}"
        tried += 1
    assert tried > 3


def kernel(preset: str, rows: int) -> PagedAttention:
    return PagedAttention(
        preset, heads=HEADS, kv_heads=KV_HEADS, head_size=SIZE, page=PAGE, pages=PAGES, capacity=CAPACITY, rows=rows,
        quantisation=QUANT,
    )  # fmt: skip


def queries(rng: np.random.Generator, rows: int) -> np.ndarray:
    return np.clip(np.rint(rng.normal(0, 40, (rows, HEADS, SIZE))), -128, 127).astype(np.int8)


def expected(q: np.ndarray, state: Cache, length: int) -> np.ndarray:
    """Attention in float64 over contiguous keys."""
    rows = q.shape[0]
    op = attention_cases.attention(
        rows, length, SIZE, heads=HEADS, kv_heads=KV_HEADS, causal=True, offset=length - rows,
        score_scale=0.05 * 0.05 / 4, q_zero=3, k_zero=-2, v_zero=5, y_zero=-7,
    )  # fmt: skip
    k, v = (np.stack([state.row(i, what) for i in range(length)]) for what in "kv")
    inputs = {"q": q.reshape(op.q.shape), "k": k.reshape(op.k.shape), "v": v.reshape(op.v.shape)}
    return attention_cases.real(op, inputs).reshape(q.shape)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("preset", ["tiny", "small", "default"])
@pytest.mark.parametrize("rows", [1, 9])
def test_one_program_for_every_length(preset: str, rows: int) -> None:
    """A sequence grows key by key and page by page, in decode and prefill."""
    rng = np.random.default_rng(rows)
    program, state, q = kernel(preset, rows), cache(rng), queries(rng, rows)
    for length in (rows, 16, 17, 40, 64, 80):
        got = program.run(q, state.k, state.v, state.table[: -(-length // PAGE)], length).outputs["y"]
        error = got - np.clip(expected(q, state, length), -128, 127)
        assert np.abs(error).max() <= 1.5, f"length {length}"


def test_table_defines_the_order_of_pages() -> None:
    """Moving and renumbering pages changes nothing; another order in the table does."""
    rng = np.random.default_rng(5)
    program, state, q = kernel("small", 1), cache(rng), queries(rng, 1)
    first = program.run(q, state.k, state.v, state.table, 70).outputs["y"]
    moved = rng.permutation(PAGES)
    other = replace(state, k=state.k[moved], v=state.v[moved])
    where = np.argsort(moved)
    again = program.run(q, other.k, other.v, [int(where[page]) for page in state.table], 70).outputs["y"]
    assert np.array_equal(first, again)
    swapped = [state.table[-1], *state.table[1:-1], state.table[0]]
    assert not np.array_equal(first, program.run(q, state.k, state.v, swapped, 70).outputs["y"])


@pytest.mark.parametrize("rows", [1, 20])
def test_rtl_equals_golden(rows: int) -> None:
    rng = np.random.default_rng(rows)
    program, q = kernel("tiny", rows), queries(rng, rows)
    for length, stalls in ((rows, None), (33, 3), (80, 4)):
        state = cache(rng)
        golden = program.run(q, state.k, state.v, state.table, length)
        rtl = program.run(q, state.k, state.v, state.table, length, on="rtl", stall_seed=stalls)
        assert golden.memory == rtl.memory


def test_empty_cache() -> None:
    program, state = kernel("small", 1), cache(np.random.default_rng(0))
    got = program.run(queries(np.random.default_rng(1), 1), state.k, state.v, [], 0).outputs["y"]
    assert (got == QUANT.y_zero).all()


@pytest.mark.parametrize(
    ("table", "length", "message"),
    [
        ([0, 12], 20, "page 12 at position 1 of the table does not exist; there are 12"),
        ([-1], 1, "page -1 at position 0 of the table does not exist; there are 12"),
        ([0, 1, 2, 3, 4, 5], 1, "the table has 6 pages, the program is for 5 at most"),
        ([0, 1], 33, "length 33 is outside the table: its 2 pages hold 0 to 32 keys"),
        ([0, 1], -1, "length -1 is outside the table: its 2 pages hold 0 to 32 keys"),
    ],
)
def test_wrong_tables_are_refused(table: list[int], length: int, message: str) -> None:
    program, state = kernel("small", 1), cache(np.random.default_rng(0))
    with pytest.raises(InputError, match=f"^{message}$"):
        program.run(queries(np.random.default_rng(1), 1), state.k, state.v, table, length)


def test_wrong_arrays_are_refused() -> None:
    program, state = kernel("small", 1), cache(np.random.default_rng(0))
    q = queries(np.random.default_rng(1), 1)
    with pytest.raises(InputError, match=r"'k' is int8 of shape \(11, 16, 2, 16\), not int8 of shape"):
        program.run(q, state.k[1:], state.v, [0], 1)
    with pytest.raises(InputError, match="'q' is float64 of shape"):
        program.run(q.astype(float), state.k, state.v, [0], 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "3 query heads do not divide into 2 groups of 'kv_heads'"),
        ({"head_size": 0}, "'head_size' must be an integer of at least 1, not 0"),
        ({"head_size": 32768}, "'head_size' 32768 must be at most 32767, and 'heads' times that at most 65535"),
        ({"head_size": 16384}, "'head_size' 16384 must be at most 32767, and 'heads' times that at most 65535"),
        ({"page": 12}, "'page' must be a multiple of the array's side 8, not 12"),
        ({"capacity": 3000}, "'capacity' 3000 pages of 16 keys are more than the 32767 keys that masks can count"),
        ({"scale": 0.0}, "'scale' must be a positive finite number, not 0.0"),
        ({"scale": float("nan")}, "'scale' must be a positive finite number, not nan"),
        ({"quantisation": Quantisation(k_scale=0.0)}, "'k_scale' must be a positive finite number, not 0.0"),
        ({"quantisation": Quantisation(q_zero=128)}, "'q_zero' must be an integer from -128 to 127, not 128"),
        ({"quantisation": Quantisation(y_zero=-129)}, "'y_zero' must be an integer from -128 to 127, not -129"),
        ({"quantisation": Quantisation(k_zero=0.5)}, "'k_zero' must be an integer from -128 to 127, not 0.5"),
        ({"quantisation": Quantisation(0.1, 0.1)},
         "queries and keys at the ends of their ranges make scores of 655.4, and beyond 177 they are clamped: give the "
         "largest that a calibration finds as 'largest', or smaller scales"),
        ({"quantisation": Quantisation(0.1, 0.1), "largest": 140.0},
         "1.25 times 'largest', 140, must be at most 166: larger scores are clamped"),
        ({"largest": -1.0}, "'largest' must be a positive finite number, not -1.0"),
        ({"scale": 71200.0}, "a step of scores, 178, must be below 177, where they are clamped"),
        ({"quantisation": Quantisation(v_scale=32768.0)},
         "'v_scale' must be less than 32768 times 'y_scale', not 32768 times"),
        ({"config": PRESETS["small"].replace(probability_bits=0)},
         "attention: this configuration has no softmax unit; set 'probability_bits' to 8, or to 7 for small parts"),
    ],
)  # fmt: skip
def test_wrong_parameters_are_refused(change: dict[str, object], message: str) -> None:
    good = {
        "config": "small",
        "heads": 4,
        "kv_heads": 2,
        "head_size": 16,
        "page": 16,
        "pages": 4,
        "capacity": 2,
        "quantisation": QUANT,
    }
    with pytest.raises((InputError, CompileError), match=f"^{message}$"):
        PagedAttention(**(good | change))
