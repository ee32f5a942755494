"""Estimates of what a configuration needs: the arithmetic, the fit, the sentence when it does not fit."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from weft.boards.board import Board, CoreKind
from weft.boards.build import estimate
from weft.boards.build.build import synthesised_resources as counted_needs
from weft.boards.errors import BoardError
from weft.boards.families.ecp5 import ECP5
from weft.boards.families.family import Family, Resources
from weft.boards.families.gowin import GOWIN
from weft.boards.families.ice40 import ICE40
from weft.boards.registry import BOARDS
from weft.hdl.isa.config import PRESETS, Config

TINY = Config.load("tiny")
QUICK = "tang-nano-9k"
"""A board whose own configuration is synthesised in seconds."""


@pytest.mark.parametrize(
    ("family", "bits", "words", "count"),
    [
        (ECP5, 36, 512, 1),
        (ECP5, 37, 512, 2),
        (ECP5, 8, 2048, 1),
        (ECP5, 32, 1024, 2),
        (ICE40, 16, 256, 1),
        (ICE40, 32, 256, 2),
        (ICE40, 8, 2048, 4),
        (ICE40, 128, 64, 8),
        (GOWIN, 32, 4096, 8),
    ],
)
def test_block_rams_of_a_memory(family: Family, bits: int, words: int, count: int) -> None:
    assert family.blocks(bits, words) == count


def needs(board: Board, config: Config) -> Resources:
    """A world in which the formulas are exact."""
    if board.core is CoreKind.SEQUENTIAL:
        memories = estimate.sequential_blocks(board.family, config)
        return Resources(
            lut=4000 + 20 * config.n**2 + 150 * int(config.kernel > 0),
            ff=1500 + 30 * config.n,
            dsp=2 + config.n**2 // 2,
            ram=3 + memories + estimate.memory_blocks(board, config),
        )
    ram = config.scratchpad_banks * board.family.blocks(8 * config.n, config.scratchpad_depth)
    ram += sum(blocks(board, config) for blocks in estimate._EXACT)
    kernel, tables, lanes = int(config.kernel > 0), int(config.lookup_tables > 0), config.lanes
    return Resources(
        lut=1000
        + 100 * config.n**2
        + 200 * lanes
        + kernel * (1500 + 900 * lanes + 30 * config.n)
        + 40 * tables,
        ff=500 + 50 * config.n**2 + 70 * config.n + kernel * 700 * lanes + 60 * config.multiply * lanes,
        dsp=config.n**2 // 2 + 3 * lanes + config.multiply * lanes + 2 * kernel * lanes,
        ram=3 + ram,
    )


@cache
def world() -> dict[str, str]:
    """Weights from that world, by family."""
    configs = [TINY.replace(n=n, lanes=lanes, bus_bytes=16) for n in (2, 4, 8, 16) for lanes in (1, 2)]
    configs += [TINY.replace(scratchpad_banks=8), TINY.replace(probability_bits=0)]
    kernels = [TINY.replace(kernel=64, n=n, lanes=lanes, bus_bytes=16) for n in (4, 8) for lanes in (1, 2)]
    without = [
        TINY.replace(**{name: 0}, lanes=lanes) for name in ("multiply", "lookup_tables") for lanes in (1, 2)
    ]
    boards = [BOARDS[name] for name in ("ulx3s-85f", "icebreaker", "tang-nano-9k")]
    found = {}
    for board in boards:
        samples = [(board, config, needs(board, config)) for config in configs + without + kernels]
        found[board.family.name] = estimate.text({board.core: estimate.fit(samples)})
    return found


@pytest.fixture
def fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "FOLDER", tmp_path)
    for family, text in world().items():
        (tmp_path / f"{family}.json").write_text(text)


@pytest.mark.usefixtures("fitted")
@pytest.mark.parametrize("name", ["ulx3s-45f", "icebreaker", "tang-nano-9k"])
def test_a_fit_finds_the_formulas(name: str) -> None:
    board = BOARDS[name]
    kernels = TINY.replace(kernel=128, lanes=4)
    for config in (TINY, TINY.replace(n=8, bus_bytes=8), TINY.replace(lanes=4), kernels):
        got, wanted = estimate.estimate(board, config), needs(board, config)
        assert got is not None
        for kind, count in got.items():
            assert count == pytest.approx(getattr(wanted, kind), rel=0.06, abs=2), kind


@pytest.mark.parametrize(
    ("name", "changes", "blocks"),
    [
        ("ulx3s-85f", {"lanes": 1}, 1),
        ("ulx3s-85f", {"lanes": 4}, 2),
        ("ulx3s-85f", {"lanes": 4, "lookup_tables": 8}, 2),
        ("ulx3s-85f", {"lanes": 4, "lookup_tables": 0}, 0),
        # 1024 entries behind 2048 of softmax, in blocks of 512; and by themselves, with one more of the microprogram.
        ("icebreaker", {}, 2),
        ("icebreaker", {"probability_bits": 0}, 3),
        # The microprogram's data fill two blocks without tables, and take four with them.
        ("icebreaker", {"row_states": 16, "alignments": 64, "table_depth": 512, "multiply": 0}, 4),
        # Some room is left behind 512 entries.
        ("tang-nano-9k", {"table_depth": 512}, 0),
        ("tang-nano-9k", {"table_depth": 512, "probability_bits": 0}, 1),
        ("tang-nano-9k", {"table_depth": 512, "lookup_tables": 8}, 1),
    ],
)
def test_look_up_tables_are_counted(name: str, changes: dict[str, int], blocks: int) -> None:
    board, config = BOARDS[name], TINY.replace(**changes)
    with_tables, without = (
        estimate.estimate(board, each) for each in (config, config.replace(lookup_tables=0))
    )
    assert with_tables is not None
    assert without is not None
    assert with_tables.ram - without.ram == blocks


@pytest.mark.usefixtures("fitted")
@pytest.mark.parametrize(
    ("changes", "blocks", "multipliers"),
    [
        # 256 registers of 32 bits, twice, and micro-operations, each of 36 bits and more: two blocks.
        ({"lanes": 1}, 4, 2),
        ({"lanes": 1, "kernel": 256}, 4, 2),
        # Wider and fewer.
        ({"lanes": 4}, 10, 8),
        # 1024 registers: two blocks of 18 bits, twice.
        ({"lanes": 1, "n": 16, "bus_bytes": 16}, 6, 2),
    ],
)
def test_the_kernel_engine_is_counted(changes: dict[str, int], blocks: int, multipliers: int) -> None:
    board, config = BOARDS["ulx3s-85f"], TINY.replace(kernel=64).replace(**changes)
    engine, without = (estimate.estimate(board, each) for each in (config, config.replace(kernel=0)))
    assert engine is not None
    assert without is not None
    assert (engine.ram - without.ram, engine.dsp - without.dsp) == (blocks, multipliers)
    logic = 1500 + 900 * config.lanes + 30 * config.n
    assert engine.lut - without.lut == pytest.approx(logic, rel=0.02)


def test_the_error_is_that_of_a_configuration_left_out() -> None:
    board = BOARDS["ulx3s-85f"]
    configs = [TINY.replace(n=n, lanes=2, bus_bytes=16) for n in (2, 4, 8, 16)]
    exact = [(board, config, Resources(lut=2000, ff=100, dsp=config.n**2, ram=10)) for config in configs]
    assert estimate.fit(exact)["dsp"].error < 0.01
    # Where one differs from the others, all others together do not know.
    strange = [*exact, (board, configs[0], Resources(lut=4000, ff=100, dsp=4, ram=10))]
    assert estimate.fit(strange)["lut"].error == pytest.approx(0.5, abs=0.02)


def test_indistinguishable_features_are_constant() -> None:
    """Samples as many as weights; all but one decide: its own features must not be attributed to others."""
    base = Config(n=4, lanes=1, scratchpad_banks=4, scratchpad_depth=256, accumulator_banks=2, accumulator_depth=64,
                  bus_bytes=4, mantissa_bits=16, queue_depth=2, probability_bits=0)  # fmt: skip
    wide = {"n": 8, "bus_bytes": 8}
    full = {"lanes": 4, "mantissa_bits": 24}
    flip_flops: list[tuple[dict[str, int], int]] = [
        ({}, 12240),
        ({"n": 2}, 10305),
        ({**wide}, 18587),
        ({**wide, **full}, 20795),
        ({"lanes": 2}, 12743),
        ({**full}, 14459),
        ({"bus_bytes": 16}, 13565),
        ({"queue_depth": 8}, 12273),
        ({"scratchpad_banks": 8, "scratchpad_depth": 512}, 13148),
        ({"accumulator_banks": 4, "accumulator_depth": 256}, 12846),
        ({"probability_bits": 7}, 14974),
        ({"probability_bits": 7, "lanes": 4}, 16970),
        ({**wide, **full, "probability_bits": 7}, 24625),
    ]
    board = BOARDS["ulx3s-85f"]
    samples = [
        (board, base.replace(**change), Resources(lut=1, ff=count, dsp=1, ram=1))
        for change, count in flip_flops
    ]
    assert estimate.fit(samples)["ff"].error < 0.1


@pytest.mark.usefixtures("fitted")
def test_designs_that_cannot_fit_are_refused_with_figures() -> None:
    board = BOARDS["ulx3s-25f"]
    estimate.check_estimate(board, TINY)
    assert estimate.fits(board, TINY)
    large = Config(n=32, bus_bytes=32, lanes=1)
    assert not estimate.fits(board, large)
    need = estimate.estimate(board, large)
    assert need is not None
    count = need.dsp
    assert count == pytest.approx(515, rel=0.05)
    with pytest.raises(
        BoardError,
        match=f"^the configuration does not fit ulx3s-25f: it needs an estimated {count} DSP blocks "
        "and there are 28; "
        r"choose a smaller n, fewer lanes or probability_bits 0 \(no softmax\)$",
    ):
        estimate.check_estimate(board, large)


@pytest.mark.usefixtures("fitted")
@pytest.mark.parametrize("board", ["ulx3s-25f", "tang-primer-20k"])
def test_memory_says_what_to_change(board: str) -> None:
    with pytest.raises(
        BoardError, match=r"block RAMs and there are [0-9]+; choose fewer or shallower banks of scratchpad"
    ):
        estimate.check_estimate(BOARDS[board], TINY.replace(scratchpad_depth=16384))


def test_place_and_route_need_more_than_synthesis() -> None:
    """All boards' own configurations were placed and routed, and `tiny` on no LFE5U-25F: `weft build` only tries."""
    lfe5u_25f = {"icepi-zero", "icesugar-pro", "ulx3s-12f", "ulx3s-25f"}
    assert all(estimate.can_place(board, board.config) for board in BOARDS.values())
    placed = {name for name, board in BOARDS.items() if estimate.can_place(board, TINY)}
    assert placed == BOARDS.keys() - lfe5u_25f - {"icebreaker"}
    assert all(estimate.fits(BOARDS[name], TINY) for name in lfe5u_25f)


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_the_weights_that_come_with_weft_know_every_board(board: Board) -> None:
    """And grow with the configuration."""
    small, large = (estimate.estimate(board, PRESETS[name]) for name in ("tiny", "default"))
    assert small is not None
    for kind, count in small.items():
        assert 0 < count < getattr(large, kind)
        assert 0 <= estimate.weights(board)[kind].error < 0.5
    assert not estimate.fits(board, PRESETS["huge"])


def test_tables_products_and_the_kernel_engine_are_estimated() -> None:
    """Weights fitted to other configurations predict them within the stated error."""
    synthesised = Resources(lut=51513, ff=48760, dsp=134, ram=127)
    board = BOARDS["ulx3s-85f"]
    config = Config(lanes=1, scratchpad_banks=4, accumulator_banks=2, queue_depth=2, row_states=128,
                    alignments=1024, kernel=64)  # fmt: skip
    need, fitted = estimate.estimate(board, config), estimate.weights(board)
    assert need is not None
    for kind, count in need.items():
        assert count == pytest.approx(getattr(synthesised, kind), rel=fitted[kind].error + 1e-9), kind
        assert fitted[kind].error <= (0.3 if kind == "ram" else 0.15)
    for name in ("lookup_tables", "multiply", "kernel"):
        without = estimate.estimate(board, config.replace(**{name: 0}))
        assert without is not None
        assert without.lut < need.lut
        assert without.ff < need.ff
        assert without.dsp == need.dsp - {"lookup_tables": 0, "multiply": 1, "kernel": 2}[name]


@pytest.mark.parametrize(
    ("name", "blocks"), [("icebreaker", 30), ("tang-nano-9k", 20), ("tang-primer-20k", 39)]
)
def test_block_rams_of_the_sequential_core_are_those_of_builds(name: str, blocks: int) -> None:
    need = estimate.estimate(BOARDS[name], BOARDS[name].config)
    assert need is not None
    assert need.ram == blocks


LARGER = {"row_states": 64, "alignments": 256, "table_depth": 2048, "lookup_tables": 4}


@pytest.mark.parametrize(
    ("name", "changes", "synthesised"),
    [
        ("icebreaker", LARGER, Resources(lut=5349, ff=2063, dsp=8, ram=53)),
        ("tang-nano-9k", LARGER, Resources(lut=5545, ff=2436, dsp=16, ram=25)),
        ("tang-nano-9k", {}, Resources(lut=5491, ff=2431, dsp=16, ram=22)),
    ],
)
def test_kernels_on_the_sequential_core_are_estimated(
    name: str, changes: dict[str, int], synthesised: Resources
) -> None:
    board = BOARDS[name]
    config = board.config.replace(kernel=64, **changes)
    need, without = estimate.estimate(board, config), estimate.estimate(board, config.replace(kernel=0))
    assert need is not None
    assert without is not None
    assert need.ram == synthesised.ram
    assert without.lut < need.lut == pytest.approx(synthesised.lut, rel=estimate.weights(board)["lut"].error)
    assert without.ff < need.ff == pytest.approx(synthesised.ff, rel=estimate.weights(board)["ff"].error)
    assert without.ram < need.ram
    assert without.dsp == need.dsp == synthesised.dsp


def test_without_weights_everything_may_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "FOLDER", tmp_path)
    board, config = BOARDS["icebreaker"], PRESETS["huge"]
    assert estimate.estimate(board, config) is None
    assert estimate.fits(board, config)
    estimate.check_estimate(board, config)


@pytest.mark.usefixtures("fitted")
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"weft estimates 2"', '"weft estimates 0"', "it has format 'weft estimates 0', and this version of weft"),
        ('"format": "weft estimates 2",', "", "it has no format, and this version of weft reads 'weft estimates 2'"),
        ('"error": ', '"error": "x', "it is not JSON ("),
        ('"samples": 18', '"samples": null', "cores[...][...].samples: expected int, got null"),
        ('"samples": 18', '"spare": 1, "samples": 18', "cores[...][...]: object contains unknown field spare"),
        ('"lut"', '"luts"', "lacks some resources"),
        ("{", "", "expected object, got str"),
    ],
    ids=range(7),
)  # fmt: skip
def test_damaged_weights(old: str, new: str, message: str) -> None:
    path = estimate.weights_file(ECP5)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(BoardError) as caught:
        estimate.fits(BOARDS["ulx3s-85f"], TINY)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}, which is part of weft, ")
    assert str(caught.value).endswith("; install weft again")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == QUICK else pytest.mark.long) for name in BOARDS]
)
def test_own_configurations_take_what_is_estimated(name: str) -> None:
    """Within a tenth, by synthesis: weights of hardware as it was before a change are seen here."""
    board = BOARDS[name]
    counted, estimated = counted_needs(board, board.config), estimate.estimate(board, board.config)
    assert estimated is not None
    for kind in ("lut", "ff", "dsp"):
        assert getattr(counted, kind) == pytest.approx(getattr(estimated, kind), rel=0.1), kind
