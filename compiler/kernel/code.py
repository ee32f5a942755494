"""Code generation: expressions on rows to micro-operations.

A kernel is a few loops over the columns of a row. Each loop reads the elements again and computes the sums and maxima
whose inputs are known by then; the last loop stores the result. Values that are one number per row are computed
between loops. So chains of elementwise operations become one loop, and only the result is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from weft.compiler.errors import KernelError
from weft.compiler.kernel.expressions import EXPONENTS, FACTOR, IMMEDIATE, Expression, Rows
from weft.hdl.isa import MicroOp
from weft.hdl.isa.kernel import REGISTERS, Op

_OPERATIONS = {
    "add": Op.ADD,
    "subtract": Op.SUB,
    "minimum": Op.MIN,
    "maximum": Op.MAX,
    "less": Op.LT,
    "choose": Op.SELECT,
}
_OF_ROWS = ("sum", "largest", "number", "index", "shared", "neighbour")
"""Kinds of expressions that depend on more of a row than the element itself."""
_ALIASES = ("known", "factor")
"""Kinds of expressions whose value is their operand's."""
_RECIPROCALS = {"reciprocal": Op.RECIPROCAL, "rsqrt": Op.RSQRT}


@dataclass(frozen=True)
class _Place:
    """Location of a value: virtual register `number`, memory operand `number`, or the constant `number` itself."""

    kind: str
    number: int
    unsigned: bool = False
    shift: int = 0


@dataclass(frozen=True)
class _Step:
    """Micro-operation before register allocation.

    `a` and `b` are places; `d` is a virtual register, or None for memory or no destination. `fields` are further
    fields of `MicroOp`.
    """

    op: Op
    a: _Place | None
    b: _Place
    d: int | None
    fields: dict[str, int] = field(default_factory=dict)

    def reads(self) -> Iterator[int]:
        """Yield the virtual registers that it reads."""
        for place in (self.a, self.b):
            if place is not None and place.kind == "register":
                yield place.number


_ZERO = _Place("number", 0)
# Cached kernels: operators that differ only in names share theirs.
_CACHE_SIZE = 256


@lru_cache(_CACHE_SIZE)
def generate(rows: Rows, n: int) -> tuple[MicroOp, ...]:
    """Return the micro-operations of a kernel for vectors of `n` elements.

    Raises
    ------
    KernelError
        If it needs more registers than the engine has.
    """
    return _Generator(rows, n).ops()


@lru_cache(_CACHE_SIZE)
def tables_of(rows: Rows) -> tuple[bytes, ...]:
    """Return the look-up tables that a kernel reads, each once; TABLE in the result of `generate` has their indices."""
    return tuple(dict.fromkeys(item.table for item in _all(rows.result) if item.kind == "table"))


@lru_cache(_CACHE_SIZE)
def elementwise(rows: Rows) -> bool:
    """Return whether each result depends only on the elements at its own position, and not on the position."""
    return not rows.single and not any(item.kind in _OF_ROWS for item in _all(rows.result))


def with_tables(ops: tuple[MicroOp, ...], numbers: tuple[int, ...]) -> tuple[MicroOp, ...]:
    """Return micro-operations with the indices from `tables_of` replaced by the device's table `numbers`."""
    return tuple(replace(op, immediate=numbers[op.immediate]) if op.op == Op.TABLE else op for op in ops)


def _level(item: Expression, known: dict[int, int]) -> int:
    """Return the number of loops that precede the loop that computes an expression."""
    if id(item) not in known:
        inner = max((_level(operand, known) for operand in item.operands), default=0)
        known[id(item)] = inner + (item.kind in ("sum", "largest"))
    return known[id(item)]


class _Generator:
    def __init__(self, rows: Rows, n: int) -> None:
        self.rows, self.n = rows, n
        self.masked = not rows.lanes and rows.columns % n != 0
        self.steps: list[_Step] = []
        self.loops: list[tuple[int, int]] = []
        self.places: dict[int, _Place] = {}
        self.registers = 0
        self.levels: dict[int, int] = {}
        self.tables = tables_of(rows)
        self.inside = False  # whether the predicate holds "element is in the row"

    def ops(self) -> tuple[MicroOp, ...]:
        results = self.rows.result
        # A loop per level of reductions; the result's own loop follows below.
        last = max(_level(result, self.levels) for result in results)
        for level in range(last):
            reductions = [
                item
                for item in _all(results)
                if item.kind in ("sum", "largest") and self.levels[id(item)] == level + 1
            ]
            self._reductions(reductions)
        self._rows_of(results)
        targets = self.rows.targets or range(len(results))
        # Results that are one number per row are stored before the last loop.
        for varies in (False, True):
            start, self.inside = len(self.steps), False
            for target, result in zip(targets, results, strict=True):
                if self._in_columns(result) == varies:
                    self._put(result, target)
            if varies and len(self.steps) > start:
                self.loops.append((start, len(self.steps) - 1))
        registers = _assign(self.steps, self.loops, self.rows)
        code = [_micro(step, registers) for step in self.steps]
        # A loop is marked at its last micro-operation, with the target of the jump.
        for first, end in self.loops:
            code[end] = replace(code[end], again=1, target=first)
        code[-1] = replace(code[-1], end=1)
        return tuple(code)

    def _in_columns(self, result: Expression) -> bool:
        """Return whether a result is stored in each column of a row, and not only in the first."""
        return not self.rows.single and (result.varies or not self.rows.targets)

    def _reductions(self, items: list[Expression]) -> None:
        """Emit a loop that computes sums and maxima, and their reduction over lanes after it."""
        self._rows_of([item.operands[0] for item in items])
        totals = [self._start(item) for item in items]
        # Values computed inside the loop are gone after it, except the totals.
        start, places_before, self.inside = len(self.steps), dict(self.places), False
        for item, total in zip(items, totals, strict=True):
            element = self._reduction_operand(item)
            operation = Op.ADD if item.kind == "sum" else Op.MAX
            fill = {"fill": 1} if item.kind == "largest" and element.kind == "memory" else {}
            self._step(operation, element, _Place("register", total), total, **fill)
        self.loops.append((start, len(self.steps) - 1))
        self.places = places_before
        for item, total in zip(items, totals, strict=True):
            self.places[id(item)] = self._over_lanes(item, _Place("register", total))

    def _start(self, item: Expression) -> int:
        """Return a register for a total, initialised."""
        total = self._new()
        place = _Place("register", total)
        # x - x is 0, whatever the register contains.
        self._step(Op.SUB, place, place, total)
        if item.kind == "largest" and item.low:
            if item.low < -IMMEDIATE:
                raise KernelError(
                    f"{item.where}: a maximum is of at least {-IMMEDIATE}, but may be {item.low}"
                )
            self._step(Op.ADD, place, _Place("number", item.low), total)
        return total

    def _reduction_operand(self, item: Expression) -> _Place:
        """Return the place of a reduction's operand, with elements after the row's end made neutral."""
        inner = item.operands[0]
        place = self._place(inner)
        # After the row's end, memory reads as 0, or with `fill` as the least value.
        if not self.masked or place.kind == "memory":
            return place
        return self._inside(place, 0 if item.kind == "sum" else item.low)

    def _inside(self, place: _Place, outside: int) -> _Place:
        """Return a place with the value for elements of the row, and `outside` after its end."""
        if not self.inside:
            index = self._new()
            self._step(Op.INDEX, None, _ZERO, index)
            self._step(Op.LT, _Place("register", index), _Place("number", self.rows.columns), None)
            self.inside = True
        chosen = self._new()
        self._step(Op.SELECT, self._first(place), _Place("number", outside), chosen)
        return _Place("register", chosen)

    def _number(self, item: Expression) -> _Place:
        """Return the first element of a tensor's current vector, in all lanes."""
        index = self._new()
        self._step(Op.INDEX, None, _ZERO, index)
        self._step(Op.LT, _Place("register", index), _Place("number", 1), None)
        alone = self._new()
        self._step(Op.SELECT, _Place("memory", item.value), _ZERO, alone)
        return self._over_lanes(item, _Place("register", alone))

    def _over_lanes(self, item: Expression, total: _Place) -> _Place:
        """Return a total over all lanes, in each lane."""
        # Butterfly: after log2(lanes) exchanges each lane holds the total.
        for swap in range(1, (self.rows.lanes or self.n).bit_length()):
            combined = self._new()
            operation = Op.MAX if item.kind == "largest" else Op.ADD
            self._step(operation, total, total, combined, swap=swap)
            total = _Place("register", combined)
        return total

    def _rows_of(self, items: list[Expression]) -> None:
        """Compute the values that are one number per row, before the loops that use them."""
        for item in items:
            if item.varies:
                self._rows_of(list(item.operands))
            elif item.kind not in ("constant", "less"):
                self._place(item)

    def _place(self, item: Expression) -> _Place:
        """Return the place of a value; compute it if it has none yet."""
        if item.kind == "constant":
            return _Place("number", item.value)
        if item.kind == "read":
            return _Place("memory", item.value & 7, bool(item.value >> 3))
        if item.kind == "accumulated":
            return _Place("memory", 4 * item.value)
        if item.kind in _ALIASES:
            return self._place(item.operands[0])
        if id(item) not in self.places and item.kind == "shared":
            self.places[id(item)] = _Place("register", number := self._new())
            self._step(Op.ADD, _Place("memory", item.value), _ZERO, number)
        if id(item) not in self.places and item.kind == "number":
            self.places[id(item)] = self._number(item)
        if id(item) not in self.places:
            number = self._new()
            self._compute(item, number, {})
            self.places[id(item)] = _Place("register", number)
        return self.places[id(item)]

    def _put(self, item: Expression, target: int) -> None:
        """Compute a result and store it."""
        item, more = _without_aliases(item), {"d_memory": 1} | ({"d": target} if target else {})
        placed = item.kind in ("read", "accumulated", "constant") or id(item) in self.places
        if placed or item.kind in _RECIPROCALS:
            self._step(Op.ADD, self._first(self._place(item)), _ZERO, None, **more)
        else:
            self._compute(item, None, more)

    def _compute(self, item: Expression, d: int | None, more: dict[str, int]) -> None:
        if item.kind == "multiply":
            self._multiply(item, d, more)
        elif item.kind == "index":
            self._step(Op.INDEX, None, _ZERO, d, **more)
        elif item.kind == "floor":
            place = self._first(self._place(item.operands[0]))
            self._step(Op.MUL, place, _Place("number", 1), d, shift=item.value, floor=1, **more)
        elif item.kind in _RECIPROCALS:
            place = self._place(item.operands[0])
            self._step(
                _RECIPROCALS[item.kind],
                self._first(self._second(place)),
                _ZERO,
                d,
                unsigned=int(not item.varies and not self.rows.lanes),
            )
        elif item.kind == "shift":
            place = self._first(self._shiftable(item.operands[0]))
            self._step(Op.ADD, replace(place, shift=place.shift + item.value), _ZERO, d, **more)
        elif item.kind == "neighbour":
            place = self._place(item.operands[0])
            if self.rows.columns % 2 and not self.rows.lanes and place.kind != "memory":
                place = self._inside(place, 0)  # the last element has no neighbour
            self._neighbour(self._second(place), d, more)
        elif item.kind == "low byte":
            place, number = self._first(self._shiftable(item.operands[0])), self._new()
            self._step(Op.ADD, replace(place, shift=place.shift + 24), _ZERO, number)
            self._step(Op.MUL, _Place("register", number), _Place("number", 1), d, shift=24, floor=1, **more)
        elif item.kind == "table":
            place = self._first(self._place(item.operands[0]))
            self._step(Op.TABLE, place, _Place("number", self.tables.index(item.table)), d, **more)
        elif item.kind == "choose":
            yes, no = (self._place(operand) for operand in item.operands[1:])
            yes, no = self._first(yes), self._second(no)
            self._compare(item.operands[0])
            self._step(Op.SELECT, yes, no, d, **more)
        else:
            self._combine(item, d, more)

    def _neighbour(self, place: _Place, d: int | None, more: dict[str, int]) -> None:
        """Exchange neighbours as (neighbour - element) + element: only second operands can be exchanged."""
        number = self._new()
        self._step(Op.RSUB, place, place, number, swap=1)
        self._step(Op.ADD, _Place("register", number), place, d, **more)

    def _compare(self, item: Expression) -> None:
        a, b = (self._place(operand) for operand in item.operands)
        self._step(Op.LT, self._first(a), self._second(b), None)

    def _combine(self, item: Expression, d: int | None, more: dict[str, int]) -> None:
        """Emit a sum, difference, minimum or maximum; only the first operand may be in memory or shifted."""
        x, y = item.operands
        operation = _OPERATIONS[item.kind]
        a, b = self._shiftable(x), self._shiftable(y)
        if a.kind == "number" or ((b.kind == "memory" or b.shift) and not (a.kind == "memory" or a.shift)):
            a, b = b, a
            operation = Op.RSUB if operation == Op.SUB else operation
        self._step(operation, self._first(a), self._second(b), d, **more)

    def _multiply(self, item: Expression, d: int | None, more: dict[str, int]) -> None:
        x, y = item.operands
        scaled = {"scaled": 1} if y.kind in EXPONENTS else {}
        a, b = self._place(x), self._place(y)
        small = x.low >= -FACTOR and x.high < FACTOR
        if not scaled and small and (a.kind == "number" or (b.kind == "memory" and a.kind != "memory")):
            a, b = b, a
        self._step(Op.MUL, self._first(a), self._second(b), d, shift=item.value, **scaled, **more)

    def _shiftable(self, item: Expression) -> _Place:
        """Return the place of a value, with any left shift left to the micro-operation that reads it."""
        item = _without_aliases(item)
        if item.kind == "shift" and id(item) not in self.places and item.operands[0].kind != "constant":
            place = self._shiftable(item.operands[0])
            return replace(place, shift=place.shift + item.value)
        return self._place(item)

    def _first(self, place: _Place) -> _Place:
        """Return the place as a first operand: no constant."""
        if place.kind != "number":
            return place
        number = self._new()
        zero = _Place("register", number)
        # First operands cannot be constants: build 0 + constant.
        self._step(Op.SUB, zero, zero, number)
        self._step(Op.ADD, zero, place, number)
        return zero

    def _second(self, place: _Place) -> _Place:
        """Return the place as a second operand: neither in memory nor shifted."""
        if place.kind == "number" or (place.kind == "register" and not place.shift):
            return place
        number = self._new()
        self._step(Op.ADD, place, _ZERO, number)
        return _Place("register", number)

    def _new(self) -> int:
        self.registers += 1
        return self.registers - 1

    def _step(self, op: Op, a: _Place | None, b: _Place, d: int | None, /, **fields: int) -> None:
        self.inside = self.inside and op != Op.LT
        self.steps.append(_Step(op, a, b, d, fields))


def _without_aliases(item: Expression) -> Expression:
    """Return the expression behind aliases."""
    while item.kind in _ALIASES:
        item = item.operands[0]
    return item


def _all(items: list[Expression]) -> list[Expression]:
    """Return expressions and their operands, each once, operands first."""
    order: dict[int, Expression] = {}

    def visit(each: Expression) -> None:
        if id(each) in order:
            return
        for operand in each.operands:
            visit(operand)
        order[id(each)] = each

    for item in items:
        visit(item)
    return list(order.values())


def _assign(steps: list[_Step], loops: list[tuple[int, int]], rows: Rows) -> dict[int, int]:
    """Return a register for each virtual register. It is free after its last use, or after the loop that uses it."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, step in enumerate(steps):
        for number in (*step.reads(), *([] if step.d is None else [step.d])):
            first.setdefault(number, at)
            last[number] = at
    # A register that lives across a loop must survive until the loop ends.
    for number, end in last.items():
        for start, stop in loops:
            if first[number] < start <= end:
                last[number] = max(last[number], stop)
    registers: dict[int, int] = {}
    for number in sorted(first, key=lambda item: first[item]):
        at = first[number]
        # An exchange reads neighbours while it writes, so its destination must not be an operand's register.
        exchanged = "swap" in steps[at].fields
        busy = {
            registers[other]
            for other in registers
            if last[other] > at or (last[other] == at and (exchanged or first[other] == at))
        }
        free = [register for register in range(REGISTERS) if register not in busy]
        if not free:
            raise KernelError(
                f"{rows.result[0].where}: the kernel needs more than {REGISTERS} registers at a time"
            )
        registers[number] = free[0]
    return registers


def _micro(step: _Step, registers: dict[int, int]) -> MicroOp:
    fields: dict[str, int] = dict(step.fields)
    if step.a is not None:
        if step.a.kind == "memory":
            fields |= {"a_memory": 1, "a": step.a.number, "unsigned": int(step.a.unsigned)}
        else:
            fields |= {"a": registers[step.a.number]}
        if step.a.shift:
            fields |= {"shift": step.a.shift}
    if step.b.kind == "number":
        fields |= {"b_immediate": 1, "immediate": step.b.number}
    else:
        fields |= {"b": registers[step.b.number]}
    if step.d is not None:
        fields |= {"d": registers[step.d]}
    return MicroOp(op=step.op, **fields)
