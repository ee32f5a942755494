"""Operands as wide as their operation, so that the Verilog leaves no width to the language's rules.

Amaranth's netlists let every operand have its own width, which is exact but makes linters warn at every other line.
"""

from __future__ import annotations

from typing import Any

_AS_RESULT = ("$add", "$sub", "$mul", "$and", "$or", "$xor", "$xnor", "$not", "$neg", "$pos")
_AS_EACH_OTHER = ("$eq", "$ne", "$lt", "$le", "$gt", "$ge")
_SHIFTS = ("$shl", "$shr", "$sshl", "$sshr", "$shift", "$shiftx")


def widen(design: Any, yosys: Any) -> None:
    """Extend, or cut where it cannot matter, the operands of every cell of a Yosys design, in place."""
    for module in design.modules_.values():
        for cell in list(module.cells_.values()):
            kind = str(cell.type)
            if kind == "$logic_not":
                _compare_with_zero(cell, yosys)
            elif kind in _AS_RESULT:
                _resize(cell, cell.getPort(yosys.IdString("\\Y")).size(), "AB", yosys)
            elif kind in _AS_EACH_OTHER:
                sizes = [cell.getPort(yosys.IdString(f"\\{name}")).size() for name in "AB"]
                _resize(cell, max(sizes), "AB", yosys)
                _settle(module, cell, yosys)
            elif kind in _SHIFTS:
                # A right shift needs the bits above the result, a left shift does not.
                result, operand = (cell.getPort(yosys.IdString(f"\\{name}")).size() for name in "YA")
                if kind in ("$shl", "$sshl") or result >= operand:
                    _resize(cell, result, "A", yosys)
                else:
                    _keep_all_bits(module, cell, operand, yosys)


def _settle(module: Any, cell: Any, yosys: Any) -> None:
    """Replace comparisons that their limits decide: with all ones or with zero, unsigned."""
    known = {("$le", True): 1, ("$gt", True): 0, ("$ge", False): 1, ("$lt", False): 0}
    limit = cell.getPort(yosys.IdString("\\B"))
    if cell.getParam(yosys.IdString("\\A_SIGNED")).as_bool():
        return
    for ones in (True, False):
        value = known.get((str(cell.type), ones))
        if value is not None and (limit.is_fully_ones() if ones else limit.is_fully_zero()):
            result = cell.getPort(yosys.IdString("\\Y"))
            module.connect(result, yosys.SigSpec(yosys.Const(value, result.size())))
            module.remove(cell)
            return


def _compare_with_zero(cell: Any, yosys: Any) -> None:
    """``!x`` of more than one bit as ``x == 0``."""
    width = cell.getPort(yosys.IdString("\\A")).size()
    if width == 1:
        return
    cell.type = yosys.IdString("$eq")
    cell.setPort(yosys.IdString("\\B"), yosys.SigSpec(yosys.Const(0, width)))
    cell.setParam(yosys.IdString("\\B_WIDTH"), yosys.Const(width, 32))
    cell.setParam(yosys.IdString("\\B_SIGNED"), yosys.Const(0, 1))
    cell.setParam(yosys.IdString("\\A_SIGNED"), yosys.Const(0, 1))


def _keep_all_bits(module: Any, cell: Any, width: int, yosys: Any) -> None:
    """Give a right shift a result as wide as its operand, of which the low bits are used."""
    result = cell.getPort(yosys.IdString("\\Y"))
    wire = yosys.SigSpec(module.addWire(yosys.IdString(f"$whole{cell.name}"), width))
    cell.setPort(yosys.IdString("\\Y"), wire)
    cell.setParam(yosys.IdString("\\Y_WIDTH"), yosys.Const(width, 32))
    module.connect(result, wire.extract(0, result.size()))


def _resize(cell: Any, width: int, operands: str, yosys: Any) -> None:
    present = [name for name in operands if cell.hasPort(yosys.IdString(f"\\{name}"))]
    # Verilog takes an operation as signed only if all its operands are.
    signed = all(cell.getParam(yosys.IdString(f"\\{name}_SIGNED")).as_bool() for name in present)
    for name in present:
        port, parameter = yosys.IdString(f"\\{name}"), yosys.IdString(f"\\{name}_WIDTH")
        value = cell.getPort(port)
        if value.size() == width:
            continue
        if value.size() > width:
            value = value.extract(0, width)
        else:
            value.extend_u0(width, signed)
        cell.setPort(port, value)
        cell.setParam(parameter, yosys.Const(width, 32))
