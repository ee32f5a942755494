"""Resource variables: what is assigned to one in a run, the next run reads."""

from __future__ import annotations

from weft.compiler.ir.network import Type
from weft.compiler.tflite.context import Context
from weft.compiler.tflite.record import Record
from weft.compiler.tflite.variables import Key


def handle(context: Context) -> None:
    """A variable is known by its container and name."""
    names = (str(context.option("Container", "")), str(context.option("SharedName", "")))
    context.builder.variables.handles[context.output().index] = names


def read(context: Context) -> None:
    context.store(context.builder.variables.read(_variable(context)))


def assign(context: Context) -> None:
    tensor = context.tensor(1)
    value = context.emit("Identity", context.stored(1), suffix="assigned")
    context.builder.variables.assign(_variable(context), value, Type(tensor.dtype, tensor.shape))


def call_once(context: Context) -> None:
    """What the subgraph assigns is what variables start with."""
    context.builder.variables.start(int(context.option("InitSubgraphIndex")))


def _variable(context: Context) -> Key:
    index = context.tensor().index
    if index not in context.builder.variables.handles:
        raise context.refuse(f"takes {context.tensor().label} for a variable, which no VAR_HANDLE makes")
    return context.builder.variables.handles[index]


OPERATORS = (
    Record(("VAR_HANDLE",), (0, 0), "nothing", handle, handles=True),
    Record(("READ_VARIABLE",), (1, 1), "what the run before assigned", read, handles=True),
    Record(("ASSIGN_VARIABLE",), (2, 2), "what the next run reads", assign, handles=True),
    Record(("CALL_ONCE",), (0, 0), "what the first run reads", call_once),
)
