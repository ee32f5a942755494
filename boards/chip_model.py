"""What models of chips beside the FPGA share: their pads, and rules of data sheets that controllers can break."""

from __future__ import annotations

import enum

from amaranth.hdl import Module, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out


def broken_rules(rules: type[enum.IntEnum], violation: int) -> list[str]:
    """The names of the rules whose bits are set in `ChipModel.violation`."""
    return [rule.name for rule in rules if violation >> rule & 1]


class ChipModel(wiring.Component):
    """A chip.

    Parameters
    ----------
    pads : Signature
        As the controller has them.
    rules : type
        An enumeration from 0 on.
    others : Member
        Other members.

    Members
    -------
    pads : In(pads)
    violation : Out(len(rules))
        Bit by bit, the rules that were broken since reset.
    """

    def __init__(self, pads: wiring.Signature, rules: type[enum.IntEnum], **others: wiring.Member) -> None:
        super().__init__({"pads": In(pads), "violation": Out(len(rules)), **others})

    def _broken(self, m: Module, rule: enum.IntEnum, condition: Value) -> None:
        with m.If(condition):
            m.d.sync += self.violation[rule].eq(1)
