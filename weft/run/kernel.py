"""Custom operators: functions of rows, compiled for the kernel engine.

>>> import numpy as np, weft, weft.run.kernel
>>> def gate(rows):
...     x, y = rows.read(0), rows.read(1)
...     rows.store(x.times(y, 7).maximum(0))
>>> config = weft.Config.load("tiny").replace(kernel=64)
>>> kernel = weft.run.kernel.compile(gate, rows=12, columns=10, tensors=2, config=config)
>>> x = np.arange(120).astype(np.int8).reshape(12, 10)
>>> bool((kernel.run(x, x) == kernel.evaluate(x, x)).all())  # run(..., on="rtl"): the Verilog
True

A function takes a `Rows`, reads elements of tensors, combines elements and totals of rows, and stores one result.
`Expression` has the operations. Numbers are 32-bit integers. Each expression tracks the range of its values, and an
expression that may overflow raises an error with its line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import numpy as np

from weft.arguments import integer
from weft.compiler.backend import compile_segment
from weft.compiler.errors import KernelError
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.ir.views import Buffer, View
from weft.compiler.kernel.code import generate
from weft.compiler.kernel.expressions import Expression, Rows, constant
from weft.compiler.kernel.operators import RowFunction
from weft.compiler.verify import evaluate as evaluate_operator
from weft.configurations import configuration, sequential_boards
from weft.errors import InputError
from weft.hdl.isa import MicroOp
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.run.options import RunKeywords, RunOptions, open_device
from weft.run.runtime import Image
from weft.sim.device import Device

__all__ = ["Expression", "Kernel", "KernelError", "Rows", "compile", "constant"]

# Most tensors and constants of a kernel
_TENSORS = 4
_MAX_SIDE = 1 << 16
_RESULT = "result"


class Kernel:
    """A compiled kernel.

    Attributes
    ----------
    config : Config
    ops : tuple of MicroOp
        Micro-operations that the engine runs for each row.
    cycles : int or None
        Cycles of the last `run`; None if the device does not count them.
    """

    def __init__(self, op: RowFunction, config: Config) -> None:
        self.config = config
        self.ops: tuple[MicroOp, ...] = generate(op.rows(), config.n)
        self.cycles: int | None = None
        self._op = op
        in_turn = bool(sequential_boards(config))
        self._image = Image(compile_segment(DeviceSegment(op.name, (op,)), config, sequential=in_turn))

    def run(
        self,
        *tensors: np.ndarray,
        on: str | Device | RunOptions = "golden",
        **options: Unpack[RunKeywords],
    ) -> np.ndarray:
        """Run the kernel on int8 tensors (rows, columns) and return int8 (rows, columns).

        See `weft.Program.run` for the other arguments.

        Raises
        ------
        InputError
            If the number, dtype or shape of tensors is wrong, or another argument is out of range.
        """
        record = RunOptions.of(on, **options)
        names = (view.buffer.name for view in self._op.inputs)
        contents = dict(zip(names, self._check(tensors), strict=True))
        with open_device(record, self.config, self._image.memory_bytes) as device:
            self._image.run(device, contents)
            self.cycles = device.counters().get(Counter.CYCLES)
            return self._image.read(device, _RESULT).reshape(self._op.dst.shape[2:])

    def evaluate(self, *tensors: np.ndarray) -> np.ndarray:
        """Evaluate the function in numpy, with the same result as `run` on any device. Raises like `run`."""
        operands = tuple(tensor.reshape(self._op.dst.shape) for tensor in self._check(tensors))
        return evaluate_operator(self._op, operands).reshape(self._op.dst.shape[2:])

    def _check(self, tensors: Sequence[Any]) -> list[np.ndarray]:
        shape = self._op.dst.shape[2:]
        if len(tensors) != len(self._op.inputs):
            raise InputError(f"the kernel reads {len(self._op.inputs)} tensors, not {len(tensors)}")
        for index, tensor in enumerate(tensors):
            if not isinstance(tensor, np.ndarray) or tensor.dtype != np.int8 or tensor.shape != shape:
                kind = (
                    f"{tensor.dtype} of shape {tensor.shape}"
                    if isinstance(tensor, np.ndarray)
                    else repr(tensor)
                )
                raise InputError(f"tensor {index} is {kind}; the kernel reads int8 of shape {shape}")
        return list(tensors)


def compile(
    function: Callable[[Rows], object],
    *,
    rows: int,
    columns: int,
    tensors: int = 1,
    constants: Sequence[np.ndarray] = (),
    config: str | os.PathLike[str] | Config = "default",
) -> Kernel:
    """Compile a function of rows for tensors of one shape.

    Parameters
    ----------
    function : callable
        Takes a `Rows`, whose tensors are the arguments of `Kernel.run`, followed by `constants`.
    rows, columns : int
        Shape of all tensors.
    tensors : int
        Number of tensors: 1 to 4, including constants.
    constants : sequence of ndarray
        int16 (columns,), shared by all rows; `Rows.wide` reads them.
    config : str, path or Config
        A configuration with a kernel engine.

    Raises
    ------
    KernelError
        If an expression may overflow 32 bits or reads a missing tensor (the message has its line), or if the kernel
        needs too many registers.
    CompileError
        If the configuration has no kernel engine, the engine is too small, or a row does not fit the scratchpad.
    InputError
        If an argument has a wrong type or is out of range.
    """
    for name, value in (("rows", rows), ("columns", columns)):
        integer(name, value, 1, _MAX_SIDE)
    integer("tensors", tensors, 1, _TENSORS - len(constants))
    for index, vector in enumerate(constants):
        if not isinstance(vector, np.ndarray) or vector.dtype != np.int16 or vector.shape != (columns,):
            raise InputError(f"constant {index} must be int16 of shape {(columns,)}")
    shape = (1, 1, rows, columns)
    views = [View(Buffer(f"tensor{index}", shape, "input"), shape) for index in range(tensors)]
    target = View(Buffer(_RESULT, shape, "output"), shape)
    name = getattr(function, "__name__", "kernel")
    return Kernel(RowFunction(name, tuple(views), target, function, tuple(constants)), configuration(config))
