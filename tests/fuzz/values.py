"""Well-formed JSON files with unexpected values."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
from fuzz import seeds
from fuzz.files import Edit, add_checksum, offer_program, offer_values, verdict
from fuzz.outcome import Outcome
from fuzz.targets import targets

_OWN = ("manifest", "manifest", "configuration")
ODD: dict[str, Any] = {
    "null": None, "true": True, "zero": 0, "minus": -1, "float": 2.5, "empty": "", "text": "x",
    "nul": "\x00\x1b[31m[red]", "surrogate": "\ud800", "list": [], "lists": [[[]]], "object": {}, "2**31": 1 << 31,
    "2**63": 1 << 63, "2**64": 1 << 64, "-2**40": -(1 << 40), "path": "../../etc/passwd", "infinite": float("inf"),
    "nan": float("nan"), "long text": "a" * 20000,
}  # fmt: skip
"""Replacement values by name."""
RAW = {
    "5000 digits": "9" * 5000,
    "deep list": "[" * 5000 + "]" * 5000,
    "deep object": '{"a":' * 5000 + "1" + "}" * 5000,
}
"""Values that `json.dumps` does not write."""


def names() -> list[str]:
    """Return the names of files whose values are changed; a name that occurs twice is drawn twice as often."""
    return [*_OWN, *(name for name, target in targets().items() if target.values)]


def draw(rng: np.random.Generator) -> list[Edit]:
    """Draw the file, and one to three changes of places in it, given as numbers: see `_place`."""
    target, model = str(rng.choice(names())), str(rng.choice(list(seeds.models())))
    changes = []
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        place = [int(value) for value in rng.integers(0, 1000, 6)]
        kind = str(rng.choice(["put", "put", "put", "swap", "drop", "rename", "add", "near", "repeat"]))
        name = str(rng.choice([*ODD, *RAW]))
        changes.append([kind, place, name, [int(value) for value in rng.integers(0, 1000, 6)]])
    return [["target", target, model], *changes]


def run(edits: list[Edit], folder: Path) -> Outcome:
    (_, target, model), *changes = edits
    values = functools.reduce(_change, changes, json.loads(_text(target, model)))
    text = json.dumps(values, indent=1)
    for name, raw in RAW.items():
        text = text.replace(json.dumps(f"raw {name}"), raw)
    body = text.encode()
    if target == "manifest":
        files = seeds.program(model) | {"program.json": add_checksum(body)}
        return verdict(offer_program(files, model, folder))
    offer = offer_values if target == "configuration" else targets()[target].offer
    return verdict(offer(body, folder))


def _text(target: str, model: str) -> bytes:
    if target == "manifest":
        return seeds.program(model)["program.json"].rstrip(b"\n").rpartition(b"\n")[0]
    return seeds.configuration() if target == "configuration" else targets()[target].seed(model)


def _place(values: Any, numbers: list[int]) -> tuple[Any, Any]:
    """Return a container in `values` and a key in it: descend by `numbers`, until they or the containers end."""
    container, key = values, None
    for depth, number in enumerate(numbers):
        keys = list(container) if isinstance(container, dict) else list(range(len(container)))
        if not keys:
            break
        key = keys[number % len(keys)]
        inner = container[key]
        if not isinstance(inner, dict | list) or not inner or depth == len(numbers) - 1 or number >= 850:
            break
        container = inner
    return container, key


def _change(values: Any, change: Edit) -> Any:
    kind, numbers, name, others = change
    values = copy.deepcopy(values)
    if not isinstance(values, dict | list) or not values:
        return values
    container, key = _place(values, numbers)
    if key is None:
        return values
    new = ODD.get(name, f"raw {name}")
    old = container[key]
    if kind == "put":
        container[key] = new
    elif kind == "swap":
        other, at = _place(values, others)
        container[key] = copy.deepcopy(other[at])
    elif kind == "drop":
        del container[key]
    elif kind == "near" and isinstance(old, int) and not isinstance(old, bool):
        container[key] = [old + 1, old - 1, old * 2, -old, old * 1024, float(old)][others[0] % 6]
    elif kind == "repeat" and isinstance(old, list):
        container[key] = old * (1 + others[0] % 50)
    elif isinstance(container, dict):
        fresh = name if kind == "add" else f"{key}{name}"
        container[fresh] = new if kind == "add" else container.pop(key)
    else:
        container.insert(int(key), new)
    return values
