"""Record of a kind of device operator, and the registry of all kinds."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from weft.compiler.errors import IrError
from weft.compiler.ir.graph import DeviceOp
from weft.compiler.machine.emit import Emitter
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Task
from weft.compiler.plan.conv_plan import Chooser
from weft.compiler.plan.site import Site
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config

Shape4 = tuple[int, int, int, int]


class Cost(NamedTuple):
    """Estimates for an operator that runs alone: its cycles, and the cycles in which the bus moves its data."""

    cycles: float
    traffic: float


def always_supported(op: DeviceOp, config: Config) -> str | None:
    """Default of `Operator.unsupported`: every configuration supports the operator."""
    return None


@dataclass(frozen=True)
class Operator:
    """One kind of device operator.

    Attributes
    ----------
    kind : type
        Its dataclass in a graph.
    shape : function
        Return an operator's output shape (n, h, w, c), from its operands. Raises `IrError` if these do not fit
        together.
    evaluate : function
        Return the output (int8) for the sources' contents (int8) and the mantissas' width in bits. This defines the
        operator. Planes of 16-bit results are concatenated along the images.
    plan : function
        Return the plan for a site, or None if not even the smallest tiling fits on chip. Convolutions are planned by
        the function in the third argument.
    lower : function
        Yield the tasks of a planned operator, in sequential order.
    cost : function
        Return the estimated cost of an operator with its plan, for a target.
    unsupported : function
        Return what a configuration lacks for an operator, as a sentence; None if nothing.
    exact : bool
        Whether `evaluate` gives the device's bytes.
    allows_lookup : bool
        Whether results may pass through a look-up table.
    plan_beside : function
        Return a plan in small parts, so that a convolution can run at the same time; None if none fits. None for
        kinds that cannot run beside a convolution.
    resident : bool
        Whether operands and results may stay whole in the scratchpad between operators.
    """

    kind: type[DeviceOp]
    shape: Callable[[Any], Shape4]
    evaluate: Callable[[Any, tuple[np.ndarray, ...], int], np.ndarray]
    plan: Callable[[Any, Site, Chooser], Any]
    lower: Callable[[Any, Site, Emitter], Iterator[Task]]
    cost: Callable[[Any, Any, Target], Cost]
    unsupported: Callable[[Any, Config], str | None] = always_supported
    exact: bool = True
    allows_lookup: bool = True
    plan_beside: Callable[[Any, Site], Any] | None = None
    resident: bool = False

    def verify(self, op: DeviceOp) -> None:
        """Check an operator's views, ranges and dtypes.

        Raises
        ------
        IrError
            If they disagree.
        """
        for view in (*op.sources, op.dst):
            n, ends_and_sizes = view.buffer.shape[0], zip(view.ends, view.buffer.shape, strict=True)
            # A view is a whole buffer along the images, or one plane of 16-bit elements.
            half = 2 * view.shape[0] == n and view.image in (0, view.shape[0])
            if not (half or view.shape[0] == n) or any(end > size for end, size in ends_and_sizes):
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
        if op.lookup is not None and not self.allows_lookup:
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
    """Return the record of an operator's kind."""
    return _operators()[type(op)]
