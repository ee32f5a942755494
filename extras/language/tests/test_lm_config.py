"""Configurations for language models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from weft.boards.registry import BOARDS
from weft.compiler.errors import CompileError
from weft.extras.language.compiler.contents import plan_ring
from weft.extras.language.compiler.decoder import FEATURES
from weft.extras.language.compiler.layout import PRODUCTS, Form, Places
from weft.extras.language.run.lm_machine import choose_page_size, choose_prompt_rows, language_configuration
from weft.extras.language.tests.support.language_models import SIZES
from weft.hdl.errors import ConfigError
from weft.hdl.isa.config import PRESETS, Config


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_gain_missing_features(preset: str) -> None:
    chosen = language_configuration(preset)
    assert not any(feature.missing(chosen.config) for feature in FEATURES)
    changes = dict(text.split("=") for text in chosen.added)
    assert chosen.config == PRESETS[preset].replace(**{name: int(value) for name, value in changes.items()})
    assert "loops" in changes
    assert all(getattr(PRESETS[preset], name) < int(value) for name, value in changes.items())


@pytest.mark.parametrize("board", BOARDS)
def test_boards_are_not_changed(board: str) -> None:
    config = BOARDS[board].config
    if config.loops and config.kernel >= 256 and config.lookup_tables >= 4 and config.softmax:
        assert language_configuration(board).config == config
        return
    with pytest.raises(ConfigError, match=f"language models do not run on configuration {board}: they need "):
        language_configuration(board)


def test_all_missing_features_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps({"preset": "small", "kernel": 64, "lookup_tables": 2, "probability_bits": 0}))
    with pytest.raises(ConfigError) as caught:
        language_configuration(path)
    assert str(caught.value) == (
        f"language models do not run on configuration {path}: they need loops=1 (it has 0), kernel=256 (it has 64), "
        "lookup_tables=4 (it has 2), probability_bits=7 or 8 (it has 0); choose a preset, which gets these features, "
        "or a board (ulx3s-85f-lm) or file of a configuration that has them"
    )
    path.write_text(json.dumps({"preset": "small", "kernel": 256, "loops": 1}))
    assert language_configuration(path).added == ()
    with pytest.raises(ConfigError, match="do not run on the configuration: they need loops=1"):
        language_configuration(Config())


@pytest.mark.parametrize(
    ("changes", "heads", "page"),
    [
        ({}, 4, 32),
        ({"n": 64, "lanes": 8, "bus_bytes": 64}, 4, 64),
        ({"alignments": 32}, 32, 32),  # heads of one group at a time
        ({"alignments": 16}, 32, 16),
        ({"accumulator_depth": 16}, 32, 32),
        ({"accumulator_depth": 16, "alignments": 16}, 24, 16),
    ],
)
def test_pages_have_room_on_the_chip(changes: dict[str, int], heads: int, page: int) -> None:
    sizes = replace(SIZES, heads=heads, key_length=16, value_length=16)
    assert choose_page_size(sizes, Config().replace(**changes)) == page


_STORIES = replace(
    SIZES,
    width=288,
    heads=6,
    key_value_heads=6,
    key_length=48,
    value_length=48,
    feed_forward=768,
    vocabulary=1000,
)


def test_pages_leave_half_of_the_scratchpad_to_weights() -> None:
    """A page's keys and values of this width take 1,152 vectors each for 32 keys."""
    assert [choose_page_size(_STORIES, PRESETS[preset]) for preset in ("small", "default")] == [16, 32]
    assert choose_page_size(_STORIES, PRESETS["small"], rows=4) == 8


@pytest.mark.parametrize(("heads", "key_length", "page"), [(4, 64, 16), (6, 64, 8), (12, 16, 24)])
def test_pages_leave_room_for_biases(heads: int, key_length: int, page: int) -> None:
    """Biases are on chip too; models would be refused with the pages of models without biases."""
    biased = Form(centred=True, rotary=False, gated=False, biased=frozenset({*PRODUCTS, "head"}))
    sizes = replace(
        _STORIES, width=256, heads=heads, key_value_heads=heads, key_length=key_length, value_length=key_length,
        feed_forward=1024,
    )  # fmt: skip
    config = PRESETS["small"]
    assert choose_page_size(sizes, config, form=biased) == page == choose_page_size(sizes, config) - config.n
    Places(sizes, config, 1, page, biased)
    with pytest.raises(CompileError, match="has room for"):
        Places(sizes, config, 1, page + config.n, biased)


@pytest.mark.parametrize(
    ("preset", "blocks", "rows"), [("default", False, 32), ("small", False, 2), ("default", True, 32)]
)
def test_prompts_use_available_room(preset: str, blocks: bool, rows: int) -> None:
    """Up to a page of tokens, unless weights would need more parts."""
    config = PRESETS[preset]
    places = Places(_STORIES, config, 1, choose_page_size(_STORIES, config), Form(gains=blocks))
    assert choose_prompt_rows(places) == rows
    if rows:
        other = replace(places, rows=rows, consecutive=True)
        assert len(plan_ring(places, other).parts) <= 1.1 * len(plan_ring(places).parts)


def test_prompts_take_less_than_a_page_where_room_is_short() -> None:
    config = PRESETS["small"].replace(scratchpad_depth=1024, accumulator_depth=128)
    places = Places(_STORIES, config, 1, 32)
    assert choose_prompt_rows(places) == 8


def test_prompts_leave_weights_in_large_parts() -> None:
    """A page's 32 tokens would fit if weights came in more parts."""
    config = PRESETS["small"].replace(scratchpad_depth=4096, accumulator_depth=128)
    places = Places(_STORIES, config, 1, 32)
    assert choose_prompt_rows(places) == 16
    parts = [len(plan_ring(places, replace(places, rows=rows, consecutive=True)).parts) for rows in (16, 32)]
    assert parts[0] <= 1.1 * len(plan_ring(places).parts) < parts[1]


@pytest.mark.parametrize("changes", [{"row_states": 4}, {"accumulator_depth": 16}, {"alignments": 32}])
def test_attention_that_does_not_fit(changes: dict[str, int]) -> None:
    sizes, config = replace(SIZES, heads=128, key_length=16, value_length=16), Config().replace(**changes)
    with pytest.raises(
        CompileError, match="attention of 1 tokens with heads of 16 elements does not fit the conf"
    ):
        Places(sizes, config, 1, choose_page_size(sizes, config))
