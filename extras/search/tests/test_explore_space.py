"""Spaces of configurations: files, refusals, validity of every point, and proposals in a shared journal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.boards.registry import BOARDS
from weft.errors import FileError, InputError
from weft.extras.search.explore.space import DEFAULT, FIELDS, FORMAT, Space, Study
from weft.extras.search.tests.support.explored import task
from weft.hdl.errors import ConfigError
from weft.hdl.isa.config import PRESETS


def test_every_field_has_values() -> None:
    assert tuple(Space().fields) == FIELDS == tuple(DEFAULT)


@pytest.mark.parametrize("seed", range(4))
def test_points_are_configurations(seed: int) -> None:
    """For all values of a space; the array's side is as chosen."""
    rng, refused = np.random.default_rng(seed), 0
    wide = Space({"n": (2, 4, 8, 16, 32, 64, 128), "int4": (0, 1, 2), "bus_bytes": (4, 8, 16, 32, 64, 128),
                  "depthwise_taps": (0, 2, 3, 4, 5, 6, 7, 8), "parity": (0, 1), "loops": (0, 1),
                  "descriptors": (0, 1)})  # fmt: skip
    for _ in range(300):
        chosen = {name: int(rng.choice(known)) for name, known in wide.fields.items()}
        config = wide.config(chosen)
        assert config.n == chosen["n"]
        free = set(FIELDS) - {"lanes", "bus_bytes", "depthwise_taps", "int4"}
        assert {name: getattr(config, name) for name in free} == {name: chosen[name] for name in free}
        refused += config.to_dict() != chosen
    assert 0 < refused < 300


def test_memories_with_too_many_rows_are_invalid() -> None:
    space = Space({"scratchpad_banks": (64,), "scratchpad_depth": (1 << 15,)})
    with pytest.raises(ConfigError, match="addresses are 16 bits"):
        space.config({name: known[0] for name, known in space.fields.items()})


def test_presets_have_places() -> None:
    space = Space({"table_depth": (2048,), "alignments": (2048,), "row_states": (256,)})
    config = PRESETS["default"]
    places = space.indices(config)
    assert places is not None
    assert space.config(space.values_at(places)) == config
    assert space.indices(config.replace(queue_depth=64)) is None


def test_presets_and_boards_are_in_the_space() -> None:
    """Except for mantissas, which change results, and for factors of blocks and loops of language models."""
    for config in (*PRESETS.values(), *(board.config for board in BOARDS.values())):
        near = config.replace(mantissa_bits=24, int4=min(config.int4, 1), loops=0)
        places = Space().indices(near)
        assert places is not None, near
        assert Space().config(Space().values_at(places)) == near


def test_a_base_fixes_other_fields(tmp_path: Path) -> None:
    path = tmp_path / "space.json"
    path.write_text(json.dumps({"format": FORMAT, "base": "small", "fields": {"n": [8, 4, 8], "lanes": [2]}}))
    space = Space.load(path)
    assert space.fields["n"] == (4, 8)
    assert space.size == 2
    assert space.fields["scratchpad_depth"] == (PRESETS["small"].scratchpad_depth,)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"fields": {"side": [4]}}, "a space has no field 'side'; the fields are n, lanes"),
        ({"fields": {"n": []}}, "no value for 'n'"),
        ({"fields": {"n": [3]}}, "'n' must be a power of two from 2 to 128, not 3"),
        ({"fields": {"lanes": [256]}}, "'lanes' must be a power of two"),
        ({"fields": {"depthwise_taps": [9]}}, "'depthwise_taps' must be from 2 to 8, or 0, not 9"),
        ({"fields": {"n": [True]}}, "fields"),
        ({"fields": {"n": 4}}, "fields"),
        ({"fields": {"n": [4.5]}}, "fields"),
        ({"fields": {}, "base": "medium"}, "'base' of a space is a preset"),
        ({"fields": {}, "depth": 1}, "depth"),
        ({"format": "weft space 0", "fields": {}}, "weft space 0"),
        ([], ""),
    ],
)
def test_invalid_space_files(tmp_path: Path, values: Any, said: str) -> None:
    path = tmp_path / "space.json"
    path.write_text(json.dumps({"format": FORMAT} | values if isinstance(values, dict) else values))
    with pytest.raises(FileError, match="is not a valid space of configurations") as caught:
        Space.load(path)
    assert said in str(caught.value)


def test_every_value_of_a_field_is_taken() -> None:
    """Whatever the other fields have to be."""
    for name, values in {
        "n": (2, 128), "lanes": (1, 128), "bus_bytes": (4, 128), "int4": (0, 1, 2), "depthwise_taps": (0, 2, 8),
        "scratchpad_banks": (2, 64), "scratchpad_depth": (16, 1 << 15), "accumulator_depth": (16, 1 << 15),
        "kernel": (0, 256), "probability_bits": (0, 7, 8),
    }.items():  # fmt: skip
        assert Space({name: values}).fields[name] == values
    with pytest.raises(InputError):
        Space({"scratchpad_depth": (1 << 16,)})


@pytest.mark.parametrize("mine", [None, [1.0, 2.0, 3.0]])
@pytest.mark.parametrize("other", [None, [3.0, 2.0, 1.0]])
@pytest.mark.parametrize("between", [False, True])
def test_two_reports_of_one_proposal(
    mine: list[float] | None,
    other: list[float] | None,
    between: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first counts, even if the second comes after Optuna has read the proposal's state."""
    search = task(tmp_path)
    first, second = (
        Study(
            tmp_path / "journal.log",
            "weft",
            search.space,
            search.places,
            search.objectives,
            "nsga2",
            seed=seed,
        )
        for seed in (1, 2)
    )
    number, values, place = first.propose()
    accepted: list[bool] = []

    def tell(*_: Any) -> None:
        monkeypatch.undo()
        accepted.append(second.tell(number, other))

    if between:
        monkeypatch.setattr(first._study.sampler, "after_trial", tell)
    else:
        tell()
    accepted.append(first.tell(number, mine))
    # Both see the same solutions, whatever they reported.
    assert accepted == [other is not None] * 2
    solutions = [] if other is None else [(values, place)]
    assert list(first.solutions()) == list(second.solutions()) == solutions
    assert not list(first.abandoned_trials())
    assert first.propose()[0] > number
