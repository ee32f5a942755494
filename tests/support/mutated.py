"""Random changes of programs and of nested values: words, constants, manifests, networks."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.hdl.isa import Instruction, places

Rng = np.random.Generator
_STRANGE: tuple[Any, ...] = (
    0,
    1,
    -1,
    2,
    7,
    128,
    255,
    1 << 16,
    1 << 31,
    1 << 40,
    0.5,
    -1.0,
    1e300,
    "",
    "x",
    None,
    True,
    [],
    {},
)
_RATIOS = (1 + 2.0**-40, 1 + 2.0**-20, 1.001, 0.9, 1.3, 2.0, -1.0, 0.0)


def change_words(rng: Rng, items: Sequence[Instruction]) -> list[Instruction]:
    """Change a field of an instruction, or leave out, repeat, exchange or move instructions."""
    found = list(items)
    if not found:
        return found
    index, kind = int(rng.integers(len(found))), float(rng.random())
    if kind < 0.7:
        found[index] = _change_field(rng, found, index)
    elif kind < 0.8:
        del found[index]
    elif kind < 0.87:
        found.insert(index, found[index])
    elif kind < 0.94:
        other = min(index + 1, len(found) - 1)
        found[index], found[other] = found[other], found[index]
    else:
        found.insert(int(rng.integers(len(found))), found.pop(index))
    return found


def _change_field(rng: Rng, items: Sequence[Instruction], index: int) -> Instruction:
    """Return the instruction with another value in a field: near its own, a bit flipped, or another instruction's."""
    item = items[index]
    fields = [name for name in places(item.OPCODE) if hasattr(item, name)]
    name = str(rng.choice(fields))
    value, place = int(getattr(item, name)), places(item.OPCODE)[name]
    alike = [int(getattr(other, name)) for other in items if type(other) is type(item)]
    choices = (value + 1, value - 1, value ^ 1 << int(rng.integers(place.width)), int(rng.choice(alike)))
    try:
        changed = dataclasses.replace(item, **{name: choices[int(rng.integers(len(choices)))]})
        changed.encode()
    except ValueError:
        return item
    return changed


def change_bytes(rng: Rng, raw: bytes) -> bytes:
    """Change a bit or a byte, exchange two neighbours of 8 bytes, or clear some bytes."""
    made = bytearray(raw)
    if not made:
        return raw
    index, kind = int(rng.integers(len(made))), float(rng.random())
    if rng.random() < 0.6:  # what is 0 is often there to fill a vector
        index = int(rng.choice(np.flatnonzero(np.frombuffer(raw, np.uint8)) if any(made) else [index]))
    if kind < 0.5:
        made[index] ^= 1 << int(rng.integers(8))
    elif kind < 0.8:
        step = (1, -1, 64, int(rng.integers(256)))[int(rng.integers(4))]
        made[index] = made[index] + step & 0xFF
    elif kind < 0.9:
        first = index // 8 * 8
        made[first : first + 16] = made[first + 8 : first + 16] + made[first : first + 8]
    else:
        size = int(rng.integers(1, 9))
        made[index : index + size] = bytes(len(made[index : index + size]))
    return bytes(made)


def change_value(rng: Rng, value: Any, skip: Sequence[str] = ()) -> Any:
    """Change one part of nested lists, mappings, numbers, texts and bytes, each as likely as its neighbours.

    Parameters
    ----------
    rng : Generator
    value : nested lists, dicts, int, float, str, bytes, bool or None
    skip : sequence of str
        Keys of mappings whose values stay.

    Returns
    -------
    nested value
        A copy.
    """
    made = copy.deepcopy(value)
    texts = _texts(made)
    node: Any = [made]
    root, key = node, 0
    while True:
        inner = node[key]
        keys = _keys(inner, skip)
        if not keys or (rng.random() < 0.06 and node is not root):
            break
        node, key = inner, keys[int(rng.integers(len(keys)))]
    node[key] = _another(rng, node[key], texts)
    return root[0]


def _keys(value: Any, skip: Sequence[str]) -> list[Any]:
    if isinstance(value, dict):
        return [key for key in value if key not in skip]
    return list(range(len(value))) if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in inner for text in _texts(part)]


def _another(rng: Rng, value: Any, texts: Sequence[str]) -> Any:
    if rng.random() < 0.04:
        return _STRANGE[int(rng.integers(len(_STRANGE)))]
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return (value + 1, value - 1, value * 2, -value, value ^ 1 << int(rng.integers(6)))[
            int(rng.integers(5))
        ]
    if isinstance(value, float):
        if value == int(value) and rng.random() < 0.7:
            return value + float(rng.choice([-1, 1]))
        return value * _RATIOS[int(rng.integers(len(_RATIOS)))]
    if isinstance(value, str):
        return str(rng.choice(texts))
    if isinstance(value, bytes):
        return change_bytes(rng, value)
    if isinstance(value, dict):
        return _drop_or_exchange(rng, value)
    return _rearrange(rng, value)


def _drop_or_exchange(rng: Rng, value: dict[Any, Any]) -> dict[Any, Any]:
    """Return a mapping without one of its keys, or with two values exchanged."""
    keys = list(value)
    if not keys:
        return value
    one, other = (keys[int(rng.integers(len(keys)))] for _ in range(2))
    if one == other:
        return {key: part for key, part in value.items() if key != one}
    return value | {one: value[other], other: value[one]}


def _rearrange(rng: Rng, value: list[Any]) -> list[Any]:
    """Return a list with an element removed, repeated, or exchanged with another."""
    if not value:
        return value
    made, index, kind = list(value), int(rng.integers(len(value))), int(rng.integers(3))
    if kind == 0:
        del made[index]
    elif kind == 1:
        made.insert(index, copy.deepcopy(made[index]))
    else:
        other = int(rng.integers(len(made)))
        made[index], made[other] = made[other], made[index]
    return made
