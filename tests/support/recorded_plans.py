"""Recorded estimates of random operators for every configuration.

``cd tests && ../.venv/bin/python -m support.recorded_plans`` records them anew, after an intended change of plans.

Plans are chosen by estimates. A wrong estimate still leads to a right program, and `support.recorded_programs` covers
only the chosen plans; this record covers all that were compared.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from support.attention_cases import random_attention
from support.certified_cases import EVERY_CONFIG, KINDS, compile_random
from support.op_cases import extend_epilogue, random_op
from support.rooflines import random_layer, small_layer
from weft.compiler.ir.graph import Conv, DeviceOp, Region
from weft.compiler.ir.views import View
from weft.compiler.kernel.wide import WideConv
from weft.compiler.machine.target import Target
from weft.compiler.operators.record import operator_of
from weft.compiler.plan.conv_plan import ConvPlan, candidates, plan
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.planner import Planner
from weft.hdl.isa.config import Config

RECORD = Path(__file__).resolve().parent.parent / "compiler" / "plan" / "recorded_plans.json"
SHARES = (1.0, 0.5, 0.25, 0.0625)
"""Memory bandwidths that plans are made for, in parts of the bus."""
LAYERS, SMALL, OTHERS = 5, 6, 8
"""Numbers a configuration: convolutions of over a million multiplications, other operators, and each optional kind."""
Estimates = dict[str, float | str]


class Case(NamedTuple):
    """An operator, its planning target, the buffers that are on chip, and the free part of the scratchpad."""

    op: DeviceOp
    target: Target
    resident: dict[str, int]
    region: Region | None


def cases(name: str) -> Iterator[tuple[str, Case]]:
    """Return the planned cases of a configuration or of a kind of operator, with a title for each."""
    ops = _of_kind(name) if name in KINDS else _of_config(name)
    for number, (op, config) in enumerate(ops):
        if operator_of(op).unsupported(op, config):
            continue
        share = SHARES[number % len(SHARES)]
        sequential = number % 5 == 4 and not config.depthwise_taps and not config.loops
        target = Target(config, share * config.bus_bytes, sequential)
        yield f"{number} {type(op).__name__}", Case(op, target, *_share_of_chip(op, config, number))


def _of_config(name: str) -> Iterator[tuple[DeviceOp, Config]]:
    config, place = EVERY_CONFIG[name], sorted(EVERY_CONFIG).index(name)
    for number in range(LAYERS):
        rng = np.random.default_rng([place, number])
        layer = random_layer(rng, config)
        yield extend_epilogue(rng, layer) if number % 3 == 1 else layer, config
    for number in range(SMALL):
        rng = np.random.default_rng([place, number])
        yield small_layer(rng) if number % 3 == 0 else random_op(rng), config


def _of_kind(kind: str) -> Iterator[tuple[DeviceOp, Config]]:
    for number in range(OTHERS):
        segment, config = compile_random(kind, number)
        for op in segment.ops:
            yield op, config
        if kind == "attention":
            yield random_attention(np.random.default_rng(number), config), config


def _share_of_chip(op: DeviceOp, config: Config, number: int) -> tuple[dict[str, int], Region | None]:
    """Keep some operators' input or output on chip, if it takes at most a quarter of the scratchpad."""
    size, part = config.scratchpad_size, config.scratchpad_size // 4
    view = (op.src if isinstance(op, Conv) else op.sources[0]) if number % 4 == 1 else op.dst
    if number % 2 and operator_of(op).resident and _vectors(view, config) <= part:
        return {view.buffer.name: 0}, (part, size)
    return {}, (part, size) if number % 3 == 2 else None


def _vectors(view: View, config: Config) -> int:
    return math.prod(view.buffer.shape[:3]) * -(-view.buffer.shape[3] // config.n)


def estimate(case: Case) -> Estimates:
    """Return cycles, bus cycles, and a hash of the chosen plan. A convolution adds the number of other plans and their
    mean cycles and bus cycles. Empty if there is no plan."""
    others: list[ConvPlan] = []

    def choose(shape: ConvShape) -> ConvPlan | None:
        others.extend(candidates(shape))
        return plan(shape)

    planner = Planner(case.target, choose)
    found = planner.plan(case.op, case.resident, case.region)
    if found is None:
        return {}
    cost = operator_of(case.op).cost(case.op, found, case.target)
    known = {name: item for name, item in dataclasses.asdict(found).items() if not isinstance(item, float)}
    named: Estimates = {
        "cycles": round(float(cost.cycles), 3),
        "bus": round(float(cost.traffic), 3),
        "plan": hashlib.sha256(repr(known).encode()).hexdigest()[:12],
    }
    if isinstance(case.op, Conv | WideConv):
        named["others"] = len(others)
        for name in ("cycles", "traffic"):
            named[f"mean {name}"] = round(math.fsum(getattr(item, name) for item in others) / len(others), 3)
    return named


NAMES = (*sorted(EVERY_CONFIG), *sorted(KINDS))


def recorded() -> dict[str, dict[str, Estimates]]:
    return dict(json.loads(RECORD.read_text()))


def main() -> None:
    """Record all estimates anew, and print the changed ones."""
    before = recorded() if RECORD.exists() else {}
    now = {name: {title: estimate(case) for title, case in cases(name)} for name in NAMES}
    blocks = []
    for name, found in now.items():
        for title, item in found.items():
            old = before.get(name, {}).get(title, item)
            if item != old:
                print(f"{name}, {title}: {old.get('cycles', 'no')} cycles, now {item.get('cycles', 'no')}")
        lines = [f"{json.dumps(title)}: {json.dumps(item)}" for title, item in found.items()]
        blocks.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
    RECORD.write_text("{\n" + ",\n".join(blocks) + "\n}\n")


if __name__ == "__main__":
    main()
