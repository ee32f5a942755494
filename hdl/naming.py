"""Readable names for the wires and ports of RTLIL that Amaranth writes.

Amaranth names a wire after its signal. Where several signals of a module have one name, as the ports of two submodules
do, it appends ``$`` and a number to all but the first. A port that crosses a module boundary but is no whole signal is
``port$`` and two numbers. `name_wires` replaces both kinds of names and leaves the logic alone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

_NAME = re.compile(r"(?<!\S)\\\S+")
_NUMBERED = re.compile(r"(?P<base>[^$].*?)\$\d+(?P<field>[.\[].*)?")
_FIELD = re.compile(r"[.\[]")
_PORT = re.compile(r"port\$\d+\$\d+")
# A part of a concatenation: a constant, or a wire with an optional range of bits.
_PART = re.compile(r"(\d+)'\S+|(\S+)(?: \[(\d+)(?::(\d+))?\])?")
_MAX_JOINED = 4
"""Number of signals up to which a port that carries several is named after all of them."""


@dataclass
class _Wire:
    name: str
    lines: range
    port: bool


@dataclass(frozen=True)
class _Part:
    """Bits `low` to `high` of a wire, or constants if `wire` is empty."""

    wire: str
    low: int
    high: int

    @property
    def width(self) -> int:
        return self.high - self.low + 1


@dataclass(frozen=True)
class _User:
    cell: str
    port: str
    drives: bool


@dataclass
class _Module:
    name: str
    lines: list[str]
    instances: set[str] = field(default_factory=set)
    """Names of submodules and memories."""
    wires: dict[str, _Wire] = field(default_factory=dict)
    """By their new names."""
    families: dict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    """By signal the ordered names of its wire and of the wires of its fields."""
    widths: dict[str, int] = field(default_factory=dict)
    """By the wires' old names."""
    aliases: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Line and right side of the connection that gives a wire its value; such a wire is never read."""
    members: frozenset[str] = frozenset()
    """Names of the members of the unit's interface."""
    users: dict[str, list[_User]] = field(default_factory=lambda: defaultdict(list))
    """Submodules and memories with a port that is the whole wire."""
    renamed: dict[str, str] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)


def name_wires(rtlil: str, interfaces: Mapping[str, Collection[str]]) -> str:
    """Return RTLIL with readable names in place of Amaranth's numbered ones.

    - A port that is a member of its unit's interface gets the member's name. A port that is a part of a signal gets the
      signal's name and its bits, or the field's name. A port that is several signals gets all their names.
    - A signal that duplicates the name of another gets the name of the submodule or memory that it belongs to, as in
      ``load_queue_fetched__valid``. The module's own port keeps its name. A duplicate that nothing reads is removed.

    Parameters
    ----------
    rtlil : str
        RTLIL that Amaranth has written.
    interfaces : dict of str to collection of str
        Names of the members of each module's interface, by the module's name.
    """
    modules = [_parse(name, lines) for name, lines in _split(rtlil)]
    for module in modules:
        module.members = frozenset(interfaces.get(module.name.removeprefix("\\"), ()))
        _name_members(module)
        _name_ports(module)
    by_name = {module.name: module for module in modules}
    for module in modules:
        _find_users(module, by_name)
        _name_duplicates(module)
    ports = {module.name: module.renamed for module in modules}
    return "".join(line for module in modules for line in _rewrite(module, ports))


def _split(rtlil: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and lines of each module; text between modules belongs to the next one."""
    lines: list[str] = []
    name = ""
    for line in rtlil.splitlines(keepends=True):
        lines.append(line)
        if line.startswith("module "):
            name = line.split()[1]
        elif line == "end\n":
            yield name, lines
            lines, name = [], ""
    if lines:
        yield "", lines


def _parse(name: str, lines: list[str]) -> _Module:
    module = _Module(name, lines)
    first = None
    for number, line in enumerate(lines):
        words = line.split()
        if not words:
            continue
        # Attributes come before the wire that they belong to.
        if words[0] == "attribute":
            first = number if first is None else first
            continue
        if words[0] == "wire" and words[-1].startswith("\\"):
            wire = words[-1][1:]
            start = number if first is None else first
            port = "input" in words or "output" in words
            module.wires[wire] = _Wire(wire, range(start, number + 1), port)
            module.families[_signal(wire)][wire] = None
            module.widths[wire] = int(words[2])
        elif words[0] in ("cell", "memory"):
            module.instances.add(words[-1].removeprefix("\\"))
        elif words[0] == "connect" and line.startswith("connect \\"):
            module.aliases[words[1][1:]] = number, line.split(maxsplit=2)[2].strip()
        first = None
    return module


def _is_output(module: _Module, port: str) -> bool:
    return " output " in module.lines[module.wires[port].lines[-1]]


def _find_users(module: _Module, modules: Mapping[str, _Module]) -> None:
    current = {wire.name: name for name, wire in module.wires.items()}
    kind = cell = ""
    for line in module.lines:
        words = line.split()
        if line.startswith("  cell "):
            kind, cell = words[1:3]
        # A port of a memory: the memory's name is a parameter of the cell.
        elif line.startswith("    parameter \\MEMID"):
            cell = words[2].strip('"').replace("\\\\", "\\")
        elif line.startswith("    connect ") and kind.startswith(("\\", "$mem")):
            wire = current.get(_whole_wire(line.split(maxsplit=2)[2], module) or "")
            if wire is None:
                continue
            unit, port = modules.get(kind), words[1][1:]
            if unit is not None:
                port = unit.renamed.get(port, port)
            drives = unit is not None and _is_output(unit, port)
            module.users[wire].append(_User(cell[1:], port, drives))
        elif line.startswith("  end"):
            kind = cell = ""


def _whole_wire(value: str, module: _Module) -> str | None:
    """Return the name of the wire that a signal specification is, if it is all of one."""
    # A memory's write enable repeats each bit for all bits of a byte or word.
    parts = _parts(value, module)
    names = {part.wire[1:] for part in parts}
    bits = {bit for part in parts for bit in range(part.low, part.high + 1)}
    name = names.pop() if len(names) == 1 else ""
    return name if bits == set(range(module.widths.get(name, 0))) else None


def _contents(module: _Module) -> dict[str, list[_Part]]:
    return {name: _parts(value, module) for name, (_, value) in module.aliases.items()}


def _value(module: _Module, name: str, contents: dict[str, list[_Part]]) -> list[_Part]:
    # An output may be an alias of another wire.
    return contents.get(name, [_Part(f"\\{name}", 0, module.widths[module.wires[name].name] - 1)])


def _signal(wire: str) -> str:
    """Return the name of the signal that a wire belongs to, without the name of a field."""
    return _FIELD.split(wire, maxsplit=1)[0]


def _base(name: str) -> str:
    match = _NUMBERED.fullmatch(name)
    return match["base"] if match and not match["field"] else name


def _name_members(module: _Module) -> None:
    """Name ports after members of the unit's interface: a port may have the name of another signal with its value."""
    contents = _contents(module)
    aliases: dict[tuple[_Part, ...], list[str]] = defaultdict(list)
    for name, value in contents.items():
        if _base(name) in module.members and not module.wires[name].port:
            aliases[tuple(value)].append(name)
    names: dict[str, list[str]] = {}
    for port in [name for name, wire in module.wires.items() if wire.port]:
        member = [port] if _base(port) in module.members else []
        names[port] = member + aliases[tuple(_value(module, port, contents))]
    chosen: dict[str, str] = {}
    used: set[str] = set()
    # Ports with few candidates choose first.
    for port in sorted(names, key=lambda port: len(names[port])):
        alias = next((name for name in names[port] if _base(name) not in used), None)
        if alias is not None:
            chosen[port] = alias
            used.add(_base(alias))
    # A port that has a member's name may have to leave it to another port.
    for port in sorted(chosen, key=lambda port: _base(port) not in module.members):
        if chosen[port] in module.aliases and chosen[port] != port:
            _drop(module, chosen[port])
        _rename(module, port, [_base(chosen[port])])


def _name_ports(module: _Module) -> None:
    contents = _contents(module)
    for port in [name for name in module.wires if _PORT.fullmatch(name)]:
        name = _name_of(
            _value(module, port, contents), {wire: value for wire, value in contents.items() if wire != port}
        )
        if name is not None:
            _rename(module, port, [name])


def _parts(value: str, module: _Module) -> list[_Part]:
    """Return the parts of a signal specification, least significant first."""
    parts = []
    for constant, wire, high, low in _PART.findall(value.strip("{}\n ")):
        if constant:
            parts.append(_Part("", 0, int(constant) - 1))
            continue
        top = int(high) if high else module.widths.get(wire[1:], 1) - 1
        parts.append(_Part(wire, int(low or high or 0), top))
    return parts[::-1]


def _name_of(parts: list[_Part], contents: dict[str, list[_Part]]) -> str | None:
    """Return a name for a port that consists of `parts`, from the signals that have bits of it."""
    if len(parts) != 1:
        return None
    port = parts[0]
    inside: dict[int, str] = {}
    around = None
    for name, value in contents.items():
        if name.startswith("$") or _PORT.fullmatch(name):
            continue
        if value == parts:
            return name
        offset = 0
        for part in value:
            if part == port and around is None:
                bits = (offset + port.width - 1, offset) if port.width > 1 else (offset,)
                around = "_".join([name, *map(str, bits)])
            offset += part.width
        if len(value) == 1 and _contains(port, value[0]) and _signal(name) == name:
            inside.setdefault(value[0].low, name)
    if around is not None or not inside:
        return around
    names = [inside[low] for low in sorted(inside, reverse=True)]
    if len(names) > _MAX_JOINED:
        names = [names[0], "to", names[-1]]
    return "_".join(names)


def _contains(outer: _Part, inner: _Part) -> bool:
    return outer.wire == inner.wire and outer.low <= inner.low and inner.high <= outer.high


def _name_duplicates(module: _Module) -> None:
    families: dict[str, list[str]] = defaultdict(list)
    for name in module.wires:
        if _base(name) != name and not _PORT.fullmatch(name):
            families[_base(name)].append(name)
    for base, numbered in families.items():
        members = [name for name in [base, *numbered] if name in module.wires]
        for name in _drop_aliases(module, members):
            _rename(module, name, _candidates(module, name))


def _drop_aliases(module: _Module, members: list[str]) -> list[str]:
    """Remove duplicates that nothing reads; return the others, the module's own ports first."""
    read = [name for name in members if name not in module.aliases or module.wires[name].port]
    for name in members:
        if name not in read and name != (read or members)[0]:
            _drop(module, name)
    return sorted(read or members[:1], key=lambda name: not module.wires[name].port)


def _candidates(module: _Module, name: str) -> list[str]:
    """Return names for a signal: after the submodules and memories that it may belong to, and its own."""
    base = _base(name)
    # A signal of a submodule has the port's name, unless that is another signal's.
    users = sorted(module.users.get(name, ()), key=lambda user: (_base(user.port) != base, not user.drives))
    owned = [f"{user.cell}_{base}" for user in users]
    is_member = module.wires[name].port and (base in module.members or not module.members)
    return [base, *owned] if is_member else [*owned, base]


def _family(module: _Module, name: str) -> list[str]:
    """Return a signal's wire and the wires of its fields."""
    return [
        wire
        for wire in module.families[_signal(name)]
        if wire == name or wire.startswith((f"{name}.", f"{name}["))
    ]


def _drop(module: _Module, name: str) -> None:
    for wire in _family(module, name):
        module.dropped.update(module.wires[wire].lines)
        if wire in module.aliases:
            module.dropped.add(module.aliases.pop(wire)[0])
        del module.wires[wire], module.families[_signal(wire)][wire]


def _rename(module: _Module, name: str, candidates: list[str]) -> None:
    """Give a signal and its fields the first of the candidate names that is free."""
    new_name = next((new for new in candidates if new == name or _is_free(module, new)), name)
    if new_name == name:
        return
    if new_name in module.wires:
        _drop(module, new_name)
    for wire in _family(module, name):
        new = new_name + wire.removeprefix(name)
        module.renamed[module.wires[wire].name] = new
        module.wires[new] = module.wires.pop(wire)
        del module.families[_signal(wire)][wire]
        module.families[_signal(new)][new] = None
        if wire in module.users:
            module.users[new] = module.users.pop(wire)
        if wire in module.aliases:
            module.aliases[new] = module.aliases.pop(wire)


def _is_free(module: _Module, name: str) -> bool:
    """Return True if no signal has the name, or only a duplicate that nothing reads; move others away if possible."""
    wire = module.wires.get(name)
    if name not in module.instances and (wire is None or (name in module.aliases and not wire.port)):
        return True
    if wire is None or wire.port or wire.name != name:
        return False
    _rename(module, name, [new for new in _candidates(module, name) if new != name])
    return name not in module.wires


def _rewrite(module: _Module, ports: dict[str, dict[str, str]]) -> Iterator[str]:
    def rename(match: re.Match[str]) -> str:
        name = match[0][1:]
        return f"\\{module.renamed.get(name, name)}"

    kind = ""
    for number, line in enumerate(module.lines):
        words = line.split()
        if number in module.dropped:
            continue
        if line.startswith("  cell "):
            kind = words[1]
            yield line
        elif line.startswith("    connect ") and kind:
            port = words[1][1:]
            value = _NAME.sub(rename, line.split(maxsplit=2)[2])
            yield f"    connect \\{ports.get(kind, {}).get(port, port)} {value}"
        elif not words or words[0] in ("attribute", "parameter", "module", "memory"):
            yield line
        else:
            kind = "" if words[0] == "end" else kind
            yield _NAME.sub(rename, line)
