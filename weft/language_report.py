"""What a language model's tokens take, from the cycles of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.compiler.machine.emit import ceil_div
from weft.lm_machine import Counted


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
    def of(cls, counted: Sequence[Counted]) -> Part:
        cycles = [step.cycles or 0 for step in counted]
        tokens, moved = sum(step.tokens for step in counted), sum(step.moved or 0 for step in counted)
        return cls(len(counted), tokens, sum(cycles), moved, min(cycles, default=0), max(cycles, default=0))


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
    def of(
        cls, counted: Sequence[Counted], prompt: int | None, rows: int, peak: float, clock: float | None
    ) -> Took:
        """Of the steps of one text: the first ones are for `prompt` tokens, all if that is None."""
        first = len(counted) if prompt is None else ceil_div(prompt, rows)
        return cls(Part.of(counted[:first]), Part.of(counted[first:]), peak, clock)

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
            f"{name}: {part.tokens:,} tokens in {part.steps:,} steps, {each:,.0f} cycles a token{spread}, "
            f"{part.moved / part.tokens:,.0f} bytes a token, {share:.1%} of the memory's {self.peak:g} bytes a cycle"
        )
        if self.clock is None:
            return text
        return f"{text}; at {self.clock / 1e6:g} MHz {self.clock / each:,.1f} tokens a second"
