"""What the compiler knows of a kind of device operator, and where it finds that."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from weft.compiler.ir.graph import DeviceOp, IrError
from weft.compiler.machine.emit import Emitter
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Task
from weft.compiler.plan.conv_plan import Chooser
from weft.compiler.plan.site import Site
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config

Shape4 = tuple[int, int, int, int]


class Cost(NamedTuple):
    """Estimates for an operator by itself: its cycles, and those in which the bus moves its data."""

    cycles: float
    traffic: float


def supported(op: DeviceOp, config: Config) -> str | None:
    """Nothing is missing in any configuration."""
    return None


@dataclass(frozen=True)
class Operator:
    """One kind of device operator.

    Attributes
    ----------
    kind : type
        Its dataclass in a graph.
    shape : function
        The shape (n, h, w, c) of an operator's output by its operands; raises `IrError` if these do not fit together.
    evaluate : function
        The output (int8) for the contents of the sources (int8) and the width of mantissas in bits: its meaning. Of
        results of 16 bits the planes are one behind the other along the images.
    plan : function
        The plan for a site, or None if not even the smallest part fits on chip. Convolutions are planned by the
        function that is given.
    lower : function
        The tasks of a planned operator, in sequential order.
    cost : function
        By an operator, its plan and the target.
    unsupported : function
        What a configuration lacks for an operator, as a sentence; None if nothing.
    exact : bool
        Whether `evaluate` gives the device's bytes.
    looked_up : bool
        Whether results may pass a look-up table.
    beside : function
        The plan for a site in small parts, so that a convolution can run at the same time; None if none fits. None
        for kinds that do not run so.
    resident : bool
        Whether operands and results may lie whole in the scratchpad, from one operator to another.
    """

    kind: type[DeviceOp]
    shape: Callable[[Any], Shape4]
    evaluate: Callable[[Any, tuple[np.ndarray, ...], int], np.ndarray]
    plan: Callable[[Any, Site, Chooser], Any]
    lower: Callable[[Any, Site, Emitter], Iterator[Task]]
    cost: Callable[[Any, Any, Target], Cost]
    unsupported: Callable[[Any, Config], str | None] = supported
    exact: bool = True
    looked_up: bool = True
    beside: Callable[[Any, Site], Any] | None = None
    resident: bool = False

    def verify(self, op: DeviceOp) -> None:
        """Raise `IrError` if shapes, ranges or dtypes of an operator disagree."""
        for view in (*op.sources, op.dst):
            n, whole = view.buffer.shape[0], zip(view.ends, view.buffer.shape, strict=True)
            half = 2 * view.shape[0] == n and view.image in (0, view.shape[0])
            if not (half or view.shape[0] == n) or any(end > size for end, size in whole):
                raise IrError(
                    f"{op.name}: view {view.shape} leaves buffer {view.buffer.name!r} {view.buffer.shape}"
                )
            if min(view.shape) < 1:
                raise IrError(f"{op.name}: empty view {view.shape}")
            if min(view.step) < 0 or (view is op.dst and min(view.step) < 1):
                raise IrError(f"{op.name}: view of {view.buffer.name!r} has steps {view.step}")
        if not -128 <= op.low <= op.high <= 127:
            raise IrError(f"{op.name}: clamp {op.low} to {op.high}")
        if op.lookup is not None and (op.lookup.shape, op.lookup.dtype) != ((LOOKUP_ENTRIES,), np.int8):
            raise IrError(
                f"{op.name}: the look-up table is {op.lookup.dtype} {op.lookup.shape}, not int8 ({LOOKUP_ENTRIES},)"
            )
        if op.lookup is not None and not self.looked_up:
            raise IrError(f"{op.name}: results of this operator pass no look-up table")
        expected = self.shape(op)
        if op.dst.shape != expected:
            raise IrError(f"{op.name}: output is {op.dst.shape}, not {expected}")


@cache
def _operators() -> dict[type[DeviceOp], Operator]:
    package = import_module(__package__)
    modules = (import_module(f"{__package__}.{item.name}") for item in pkgutil.iter_modules(package.__path__))
    values = (value for module in modules for value in vars(module).values())
    return {value.kind: value for value in values if isinstance(value, Operator)}


def operator_of(op: DeviceOp) -> Operator:
    """The record of an operator's kind."""
    return _operators()[type(op)]
