"""Find signals and submodules of an elaborated unit by the names that its source gives them."""

from __future__ import annotations

import re
from typing import Any

from amaranth.hdl import DomainRenamer, Format, Fragment, Shape, Signal, Value, unsigned
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component

from weft.hdl.errors import WeftError

_WORD = re.compile(r"(.+)(\[\d+\])")
"""Path of a word of a memory."""


class NetlistError(WeftError, RuntimeError):
    """A netlist that cannot be built: a bench names a signal that does not exist, or Yosys reports an error."""


class Names:
    """Translate the names of a unit's source to those of its netlist.

    Amaranth numbers names that stand twice in a module, such as ``weights$63``. These numbers change with every new
    signal, so benches never write them.

    Parameters
    ----------
    design : amaranth.hdl._ir.Design
        A prepared fragment.
    unit : str
        Submodule of the top module at which paths start; empty for the top module itself.
    """

    def __init__(self, design: Any, unit: str) -> None:
        self._infos = design.fragments
        self._unit = self._submodule(design.fragment, unit) if unit else design.fragment

    @classmethod
    def of_unit(cls, fragment: Fragment, unit: str) -> Names:
        """Return the names of a unit that is not part of a design yet."""
        copy = DomainRenamer({})(fragment)  # preparing a fragment adds clock domains to it
        return cls(copy.prepare(hierarchy=("top", unit)), "")

    def wire(self, path: str) -> str:
        """Return the wire at `path` in the flat netlist, such as ``dut.weights$63.nest.step``.

        A path consists of submodules and a signal, as in ``nest.step``, and perhaps the signal's field, as in
        ``now.bank``. Ports of a memory are signals of its submodule, as in ``ram.fetch__data``; its words are
        ``ram[3]``. Of several signals of one name, the interface's is meant, or else the one that the module drives;
        ``name#1`` is the next of them.

        Raises `NetlistError` if there is no such signal, or if the choice is not clear.
        """
        if word := _WORD.fullmatch(path):
            return self._path(self._module(word[1])) + word[2]
        owner, signal, fields = self._find(path)
        return ".".join([self._path(owner), self._infos[owner].signal_names[signal], *fields])

    def shape(self, path: str) -> Shape:
        """Return the shape of the signal at `path`, as for `wire`. Words of memories and fields are unsigned.

        Raises `NetlistError` as `wire` does.
        """
        if word := _WORD.fullmatch(path):
            memory, *_ = _memories(self._module(word[1]))
            return unsigned(Shape.cast(memory.shape).width)
        _, signal, fields = self._find(path)
        if not fields:
            return signal.shape()
        form: Any = signal._format
        for field in fields:
            if not isinstance(form, Format.Struct) or field not in form._fields:
                raise NetlistError(f"the signal at {path!r} has no field {field!r}")
            form = form._fields[field]
        inner = form._chunks[0][0] if isinstance(form, Format) else form._value
        return unsigned(len(inner))

    def _find(self, path: str) -> tuple[Any, Signal, list[str]]:
        """Return the module that has the signal at `path`, the signal, and the names of its field."""
        fragment, parts = self._unit, path.split(".")
        owner = fragment
        while len(parts) > 1 and (inner := self._submodule(fragment, parts[0])) is not None:
            owner = fragment if _memories(inner) else inner  # a memory is a cell of the module that uses it
            fragment, parts = inner, parts[1:]
        name, _, number = parts[0].partition("#")
        ranked = _ranked(fragment, self._infos[owner], name)
        full = f"{self._path(self._unit)}.{path}"
        if int(number or 0) >= len(ranked):
            known = ", ".join(sorted({signal.name for signal in self._infos[owner].used_signals}))
            raise NetlistError(f"the unit has no signal {full!r}; there are {known}")
        if not number and [rank for rank, _ in ranked].count(ranked[0][0]) > 1:
            raise NetlistError(f"the unit has several signals {full!r}: append #0, #1 or so to choose")
        return owner, ranked[int(number or 0)][1], parts[1:]

    def module(self, path: str) -> str:
        """Return the path in the netlist of the submodule at `path`. Raises `NetlistError` if there is none."""
        return self._path(self._module(path))

    def _module(self, path: str) -> Any:
        fragment = self._unit
        for name in path.split("."):
            fragment = fragment and self._submodule(fragment, name)
        if fragment is None:
            raise NetlistError(f"the unit has no submodule {path!r}")
        return fragment

    def _submodule(self, fragment: Fragment, name: str) -> Any:
        return next((inner for inner, own, _ in fragment.subfragments if own == name), None)

    def _path(self, fragment: Fragment) -> str:
        return ".".join(self._infos[fragment].name[1:])


def _ranked(fragment: Any, info: Any, name: str) -> list[tuple[int, Signal]]:
    """Return the signals called `name`: members of the interface first, then signals that `fragment` drives."""
    memories = _memories(fragment)
    ports = [port for memory in memories for port in (*memory.read_ports, *memory.write_ports)]
    components = [origin for origin in fragment.origins or () if isinstance(origin, Component)]
    interface = {
        id(Value.cast(value))
        for item in (*ports, *components)
        for _, _, value in item.signature.flatten(item)
    }
    driven = {
        id(signal)
        for statements in fragment.statements.values()
        for statement in statements
        for signal in statement._lhs_signals()
    }
    ranked = [
        (0 if id(signal) in interface else 1 if id(signal) in driven else 2, signal)
        for signal in info.used_signals
        if signal.name == name and (id(signal) in interface or not memories)
    ]
    return sorted(ranked, key=lambda item: (item[0], _number(info.signal_names[item[1]])))


def _memories(fragment: Fragment) -> list[Memory]:
    return [origin for origin in fragment.origins or () if isinstance(origin, Memory)]


def _number(wire: str) -> int:
    """Return the number that Amaranth appended to a name, -1 if it appended none."""
    number = re.search(r"\$(\d+)$", wire)
    return int(number[1]) if number else -1
