"""Which token comes next."""

from __future__ import annotations

import numpy as np
import pytest

from weft.errors import InputError
from weft.extras.language.run.sampling import Sampler

LOGITS = np.array([0.5, 2.0, -1.0, 2.0, 1.0])


def test_the_largest_logit_and_of_equal_ones_the_lowest_token() -> None:
    assert Sampler()(LOGITS) == 1
    assert {Sampler(5.0, 1, seed)(LOGITS) for seed in range(20)} == {1}
    assert {Sampler(5.0, 2, seed)(LOGITS) for seed in range(40)} == {1, 3}


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, None), (0.7, None), (2.0, 3)])
def test_tokens_are_drawn_as_often_as_probabilities_say(temperature: float, top_k: int | None) -> None:
    sampler, count = Sampler(temperature, top_k, 7), 4000
    shares = np.bincount([sampler(LOGITS) for _ in range(count)], minlength=5) / count
    exact = np.exp(LOGITS / temperature)
    if top_k:
        exact[[0, 2]] = 0
    assert np.abs(shares - exact / exact.sum()).max() < 0.03
    assert not top_k or shares[[0, 2]].sum() == 0


def test_a_seed_tells_what_is_drawn() -> None:
    draws = [[sampler(LOGITS) for _ in range(50)] for sampler in (Sampler(1.0, seed=3), Sampler(1.0, seed=3))]
    assert draws[0] == draws[1]
    other = Sampler(1.0, seed=4)
    assert draws[0] != [other(LOGITS) for _ in range(50)]


def test_extreme_logits_and_temperatures() -> None:
    wide = np.array([-1e6, 0.0, 1e6])
    assert {Sampler(0.001, seed=seed)(wide) for seed in range(20)} == {2}
    assert {Sampler(1e-300, seed=seed)(np.array([1.0, 1.0])) for seed in range(20)} == {0, 1}
    assert {Sampler(100.0, seed=seed)(np.zeros(3)) for seed in range(40)} == {0, 1, 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "'temperature' must be a finite number from 0 to 100, not -0.1"),
        ({"temperature": float("nan")}, "'temperature' must be a finite number from 0 to 100, not nan"),
        ({"top_k": 0}, "'top_k' must be an integer from 1 to"),
        ({"top_k": 1.5}, "'top_k' must be an integer from 1 to"),
        ({"seed": -1}, "'seed' must be an integer from 0 to"),
    ],
)
def test_what_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Sampler(**options)  # type: ignore[arg-type]
