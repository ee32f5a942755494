"""What a language model's tokens take, from the cycles of steps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from weft.extras.language.run.lm_machine import Counted


def counted(number: int, what: str) -> str:
    """A number of things, in words."""
    return f"{number:,} {what}{'s' * (number != 1)}"


@dataclass(frozen=True)
class Part:
    """Some steps together.

    Attributes
    ----------
    steps, tokens : int
    cycles, moved : int
        Of all of them; bytes that moved between core and memory.
    least, most : int
        Cycles of the quickest and of the slowest step.
    """

    steps: int
    tokens: int
    cycles: int
    moved: int
    least: int
    most: int

    @classmethod
    def of(cls, steps: Sequence[Counted]) -> Part:
        cycles = [step.cycles or 0 for step in steps]
        tokens, moved = sum(step.tokens for step in steps), sum(step.moved or 0 for step in steps)
        return cls(len(steps), tokens, sum(cycles), moved, min(cycles, default=0), max(cycles, default=0))


@dataclass(frozen=True)
class Took:
    """What tokens took.

    Attributes
    ----------
    prompt : Part
        The steps of the prompt; the last one of them makes the first token that follows.
    following : Part
        The steps of all tokens after that.
    peak : float
        Bytes that the memory moves in a cycle at most.
    clock : float or None
        Hz.
    """

    prompt: Part
    following: Part
    peak: float
    clock: float | None

    @classmethod
    def of(cls, steps: Sequence[Counted], prompt: int | None, peak: float, clock: float | None) -> Took:
        """Of the steps of one text: the first ones are for `prompt` tokens, all if that is None."""
        tokens = itertools.accumulate(step.tokens for step in steps)
        first = len(steps) if prompt is None else sum(count < prompt for count in tokens) + 1
        return cls(Part.of(steps[:first]), Part.of(steps[first:]), peak, clock)

    def lines(self) -> list[str]:
        """As sentences."""
        found = [self._line("prompt", self.prompt)]
        if self.following.tokens:
            found.append(self._line("following", self.following))
        return found

    def _line(self, name: str, part: Part) -> str:
        each = part.cycles / part.tokens
        spread = f" (steps of {part.least:,} to {part.most:,})" if part.least != part.most else ""
        share = part.moved / max(part.cycles * self.peak, 1)
        text = (
            f"{name}: {counted(part.tokens, 'token')} in {counted(part.steps, 'step')}, {each:,.0f} cycles a "
            f"token{spread}, {part.moved / part.tokens:,.0f} bytes a token, {share:.1%} of the memory's "
            f"{self.peak:g} bytes a cycle"
        )
        if self.clock is None:
            return text
        return f"{text}; at {self.clock / 1e6:g} MHz {self.clock / each:,.1f} tokens a second"
