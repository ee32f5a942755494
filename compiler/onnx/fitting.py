"""Device operators that no plan cuts small enough: the nodes that they stand for are left to others, or to the host."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from weft.compiler.ir.graph import DeviceOp, Weighted
from weft.compiler.machine.target import Target
from weft.compiler.onnx.qdq import Pending, Recipe, Results, Symbol
from weft.compiler.passes.split_pool import fits
from weft.compiler.planner import Planner
from weft.hdl.isa.config import Config


def too_large(made: Symbol | Recipe | Results, config: Config) -> str | None:
    """Why an operator that a handler made has no plan; None if all have one.

    Convolutions are cut along all axes, and are not planned here.
    """
    check = getattr(config, "has_plan", functools.partial(has_plan, config))
    for op in _operators(made):
        if not isinstance(op, Weighted) and not check(op):
            kind, size = type(op).__name__.lower(), config.scratchpad_size
            return f"One output of an operator must fit the scratchpad ({kind} in {size} vectors of {config.n} bytes)"
    return None


def has_plan(config: Config, op: DeviceOp) -> bool:
    """Whether an operator fits a device with `config`, cut or as it is.

    A stand-in for a configuration that notes its use may have a method of this name, which is asked instead.
    """
    return fits(op, _planner(config))


def _operators(made: Symbol | Recipe | Results) -> Iterator[DeviceOp]:
    recipes: Iterable[Recipe | Pending] = made.recipes if isinstance(made, Results) else ()
    if isinstance(made, Recipe | Pending):
        recipes = (made,)
    for recipe in recipes:
        yield from recipe.ops


@functools.lru_cache(maxsize=8)
def _planner(config: Config) -> Planner:
    return Planner(Target(config))
