"""Inputs that distinguish programs: of full range, saturated, of few values, and with one element changed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

Rng = np.random.Generator
COUNT = 50
"""Inputs of a program."""
Inputs = dict[str, np.ndarray]


def extreme_inputs(
    rng: Rng, shapes: Mapping[str, tuple[int, ...]], tables: dict[str, tuple[int, int]]
) -> list[Inputs]:
    """Draw `COUNT` inputs.

    Parameters
    ----------
    rng : Generator
    shapes : dict of str to tuple of int
        Shape of each input.
    tables : dict of str to (int, int)
        For inputs that hold offsets of rows, four bytes each, the rows and their bytes.

    Returns
    -------
    list of dict of str to int8 ndarray
        A third is of full range, a fifth each is saturated or of few values, and the others change one element of
        these.
    """
    found: list[Inputs] = []
    for index in range(COUNT):
        if index < 34 or not shapes:
            found.append(
                {name: _whole(rng, index, shape, tables.get(name)) for name, shape in shapes.items()}
            )
            continue
        base = found[int(rng.integers(index))]
        name = str(rng.choice(sorted(shapes)))
        found.append(base | {name: _change_element(rng, base[name], tables.get(name))})
    return found


def _whole(rng: Rng, index: int, shape: tuple[int, ...], table: tuple[int, int] | None) -> np.ndarray:
    if table is not None:
        size = int(np.prod(shape)) // 4
        rows = (
            np.full(size, (0, table[0] - 1)[index % 2])
            if index in (16, 17)
            else rng.integers(table[0], size=size)
        )
        return _offsets(rows, table, shape)
    if index < 16:
        values = rng.integers(-128, 128, shape)
    elif index < 26:
        ends = (
            (-128,),
            (127,),
            (0,),
            (-128, 127),
            (-128, 0),
            (0, 127),
            (-127, 127),
            (-1, 0),
            (126, 127),
            (-128, -127),
        )
        values = rng.choice(ends[index - 16], shape)
    else:
        spread = (1, 2, 4, 9, 30, 90, 200, 500)[index - 26]
        values = np.clip(rng.normal(rng.integers(-60, 61), spread, shape).round(), -128, 127)
    return values.astype(np.int8)


def _offsets(rows: np.ndarray, table: tuple[int, int], shape: tuple[int, ...]) -> np.ndarray:
    return (rows * table[1]).astype("<u4").view(np.int8).reshape(shape)


def _change_element(rng: Rng, given: np.ndarray, table: tuple[int, int] | None) -> np.ndarray:
    """Return the input with one element at an end of its range, or next to its old value."""
    made = given.copy()
    if table is not None:
        rows = made.reshape(-1).view("<u4") // table[1]
        rows[int(rng.integers(rows.size))] = rng.integers(table[0])
        return _offsets(rows, table, given.shape)
    place = int(rng.integers(made.size))
    near = int(made.flat[place])
    made.flat[place] = np.clip(rng.choice([-128, 127, 0, near - 1, near + 1, -near]), -128, 127)
    return made
