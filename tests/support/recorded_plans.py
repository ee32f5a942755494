"""Estimates of random operators for every configuration, and what they were when they were recorded.

    cd tests && ../.venv/bin/python -m support.recorded_plans    (after a change of plans that is meant)

Plans are chosen by estimates. A wrong one is still a plan of a right program, and `support.recorded_programs` has only
the plans that were chosen; here are all that were compared.
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
from weft.compiler.ir.graph import Conv, DeviceOp, Region, View
from weft.compiler.kernel.wide import WideConv
from weft.compiler.machine.target import Target
from weft.compiler.operators.record import operator_of
from weft.compiler.plan.conv_plan import ConvPlan, candidates, plan
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.planner import Planner
from weft.hdl.isa.config import Config

RECORD = Path(__file__).resolve().parent.parent / "compiler" / "plan" / "recorded_plans.json"
SHARES = (1.0, 0.5, 0.25, 0.0625)
"""Bandwidths of memories that is planned for, in parts of the bus."""
LAYERS, SMALL, OTHERS = 5, 6, 8
"""Convolutions of more than a million multiplications, and other operators, for a configuration; of each kind that
only some have."""
Estimates = dict[str, float | str]


class Case(NamedTuple):
    """An operator, what it is planned for, the buffers that are on chip, and what is left of the scratchpad."""

    op: DeviceOp
    target: Target
    resident: dict[str, int]
    region: Region | None


def cases(name: str) -> Iterator[tuple[str, Case]]:
    """What is planned under a name: that of a configuration, or of a kind of operator, with a title for each."""
    ops = _of_kind(name) if name in KINDS else _of_config(name)
    for number, (op, config) in enumerate(ops):
        if operator_of(op).unsupported(op, config):
            continue
        share = SHARES[number % len(SHARES)]
        sequential = number % 5 == 4 and not config.depthwise_taps and not config.loops
        target = Target(config, share * config.bus_bytes, sequential)
        yield f"{number} {type(op).__name__}", Case(op, target, *_left(op, config, number))


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


def _left(op: DeviceOp, config: Config, number: int) -> tuple[dict[str, int], Region | None]:
    """Of some operators the input or the output is on chip, if it takes at most a quarter of that."""
    size, part = config.scratchpad_size, config.scratchpad_size // 4
    view = (op.src if isinstance(op, Conv) else op.sources[0]) if number % 4 == 1 else op.dst
    if number % 2 and operator_of(op).resident and _vectors(view, config) <= part:
        return {view.buffer.name: 0}, (part, size)
    return {}, (part, size) if number % 3 == 2 else None


def _vectors(view: View, config: Config) -> int:
    return math.prod(view.buffer.shape[:3]) * -(-view.buffer.shape[3] // config.n)


def estimated(case: Case) -> Estimates:
    """Cycles, those of the bus, and a hash of the chosen plan; of a convolution also how many other plans there are,
    and the mean of their cycles and of those of the bus. Empty if there is no plan."""
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
    """Record all estimates as they are now; says which are others."""
    before = recorded() if RECORD.exists() else {}
    now = {name: {title: estimated(case) for title, case in cases(name)} for name in NAMES}
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
