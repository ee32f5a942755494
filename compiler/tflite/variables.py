"""State of a TFLite model between runs: tensors that are variables, and resource variables, which have handles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weft.compiler.errors import CompileError, EvaluationError
from weft.compiler.host.evaluate import Evaluator
from weft.compiler.ir.network import State, Type, type_of
from weft.compiler.onnx.links import expand

if TYPE_CHECKING:
    from weft.compiler.tflite.builder import Builder

Key = int | tuple[str, str]
"""Key of a variable: the index of its tensor, or a resource's container and name."""


@dataclass
class _Variable:
    """A variable.

    Attributes
    ----------
    name : str
        Name of its value at the start of a run.
    label : str
        Name in messages.
    initial : ndarray or None
        Value in the first run, None while unknown.
    value : str
        Last assigned value, "" before any assignment.
    """

    name: str
    label: str
    initial: np.ndarray | None = None
    value: str = ""
    type: Type | None = None
    read: bool = False


class Variables:
    """Variables of the network that `builder` builds.

    `contents` are the values that subgraphs assign to variables, by subgraph. `handles` are the variables of handles,
    by the tensor's index.
    """

    def __init__(self, builder: Builder, contents: Mapping[int, Mapping[Key, np.ndarray]]) -> None:
        self._builder, self._contents = builder, contents
        self._known: dict[Key, _Variable] = {}
        self.handles: dict[int, Key] = {}

    def _variable(self, key: Key) -> _Variable:
        if key not in self._known:
            if isinstance(key, int):
                tensor = self._builder.file.tensors[key]
                zero = 0 if tensor.quantisation is None else int(tensor.quantisation.zeros)
                initial = np.broadcast_to(np.array(zero, tensor.dtype), tensor.shape)  # of any size
                name = self._builder.name_of(tensor)
                self._known[key] = _Variable(name, tensor.label, initial, type=type_of(initial))
            else:
                name = self._builder.unique(key[1] or "variable")
                self._known[key] = _Variable(name, f"variable {key[1]!r}")
        return self._known[key]

    def is_assigned(self, key: Key) -> bool:
        """Return whether an operator has assigned a value to a variable already."""
        return key in self._known and bool(self._known[key].value)

    def start(self, subgraph: int) -> None:
        """Assign initial values from a subgraph that runs once, before the first run.

        Raises
        ------
        CompileError
            If a variable is used before, or the subgraph itself runs in a CALL_ONCE.
        """
        if subgraph not in self._contents:
            raise CompileError(
                f"CALL_ONCE in a subgraph calls subgraph {subgraph}; only the first subgraph may have CALL_ONCE"
            )
        for key, initial in self._contents[subgraph].items():
            variable = self._variable(key)
            if variable.read or variable.value:
                raise CompileError(f"{variable.label} is used before the CALL_ONCE that starts it")
            variable.initial, variable.type = initial, type_of(initial)

    def read(self, key: Key) -> str:
        """Return the stored value of a variable at this point of the run.

        Raises
        ------
        CompileError
            If it has no value in the first run.
        """
        variable = self._variable(key)
        if variable.value:
            return variable.value
        if variable.initial is None or variable.type is None:
            raise CompileError(
                f"{variable.label} is read before anything is assigned to it; start it in a subgraph that CALL_ONCE "
                "calls"
            )
        if not variable.read:
            variable.read = True
            self._builder.add_value(variable.name, variable.type)
        return variable.name

    def assign(self, key: Key, value: str, type_: Type) -> None:
        """Assign a stored value to a variable.

        Raises
        ------
        CompileError
            If the variable has another type or shape.
        """
        variable = self._variable(key)
        if variable.type not in (None, type_):
            raise CompileError(
                f"{variable.label} holds {_describe(variable.type)}, but is assigned {_describe(type_)}; weft supports "
                "variables of one type and shape"
            )
        variable.value, variable.type = value, type_

    def states(self) -> Iterator[State]:
        """Yield all variables that a run reads from the previous run; an assigned value gets its own name."""
        for variable in self._known.values():
            if variable.read and variable.value:
                target = self._builder.unique(f"{variable.name}:next")
                self._builder.node(
                    "Identity", (variable.value,), (target,), f"{variable.name}:kept", raw=True
                )
                assert variable.initial is not None
                yield State(variable.name, target, variable.initial)

    def constants(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield name and value of variables that are read and never assigned."""
        for variable in self._known.values():
            if variable.read and not variable.value and variable.initial is not None:
                yield variable.name, variable.initial

    def evaluate(self) -> dict[Key, np.ndarray]:
        """Return the values of all assigned variables, in a network without inputs.

        Raises
        ------
        CompileError
            If they cannot be computed.
        """
        assigned = {key: variable.value for key, variable in self._known.items() if variable.value}
        network = self._builder.part(tuple(dict.fromkeys(assigned.values())))
        try:
            results = dict(zip(network.outputs, Evaluator(expand(network)).run({}), strict=True))
        except EvaluationError as error:
            raise CompileError(f"initial values of variables cannot be computed: {error}") from None
        return {key: np.asarray(results[value]) for key, value in assigned.items()}


def _describe(type_: Type | None) -> str:
    assert type_ is not None
    return f"{type_.dtype} of shape {'x'.join(map(str, type_.shape or ())) or '()'}"
