"""Report of the cycles that a language model's tokens take."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from weft.extras.language.run.lm_machine import StepCost


def count_text(number: int, what: str) -> str:
    """Return a number with its noun: ``1 token``, ``2 tokens``."""
    return f"{number:,} {what}{'s' * (number != 1)}"


@dataclass(frozen=True)
class Part:
    """Sums over several steps.

    Attributes
    ----------
    steps, tokens : int
    cycles, moved : int
        Cycles, and bytes transferred between core and memory, of all steps.
    least, most : int
        Cycles of the fastest and the slowest step.
    """

    steps: int
    tokens: int
    cycles: int
    moved: int
    least: int
    most: int

    @classmethod
    def of(cls, steps: Sequence[StepCost]) -> Part:
        cycles = [step.cycles or 0 for step in steps]
        tokens, moved = sum(step.tokens for step in steps), sum(step.bytes_moved or 0 for step in steps)
        return cls(len(steps), tokens, sum(cycles), moved, min(cycles, default=0), max(cycles, default=0))


@dataclass(frozen=True)
class Timing:
    """Timing of a text's tokens.

    Attributes
    ----------
    prompt : Part
        Steps of the prompt; the last one also produces the first generated token.
    following : Part
        All later steps.
    peak : float
        Peak memory bandwidth in bytes per cycle.
    clock : float or None
        Hz.
    """

    prompt: Part
    following: Part
    peak: float
    clock: float | None

    @classmethod
    def of(cls, steps: Sequence[StepCost], prompt: int | None, peak: float, clock: float | None) -> Timing:
        """Sum up the steps of one text, of which the first compute `prompt` tokens (None: all steps do)."""
        tokens = itertools.accumulate(step.tokens for step in steps)
        first = len(steps) if prompt is None else sum(count < prompt for count in tokens) + 1
        return cls(Part.of(steps[:first]), Part.of(steps[first:]), peak, clock)

    def lines(self) -> list[str]:
        """Return the report's lines."""
        lines = [self._line("prompt", self.prompt)]
        if self.following.tokens:
            lines.append(self._line("following", self.following))
        return lines

    def _line(self, name: str, part: Part) -> str:
        each = part.cycles / part.tokens
        spread = f" (steps of {part.least:,} to {part.most:,})" if part.least != part.most else ""
        share = part.moved / max(part.cycles * self.peak, 1)
        text = (
            f"{name}: {count_text(part.tokens, 'token')} in {count_text(part.steps, 'step')}, {each:,.0f} cycles a "
            f"token{spread}, {part.moved / part.tokens:,.0f} bytes a token, {share:.1%} of the memory's "
            f"{self.peak:g} bytes a cycle"
        )
        if self.clock is None:
            return text
        return f"{text}; at {self.clock / 1e6:g} MHz {self.clock / each:,.1f} tokens a second"
