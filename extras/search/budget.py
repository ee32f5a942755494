"""Rewrites with different rounding, within an error budget that is measured on samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.ir.model import Graph
from weft.compiler.verify import run_model
from weft.errors import InputError
from weft.extras.search.substitute import Costs
from weft.extras.search.substitution.rounding import Rewrite, rewrites
from weft.extras.search.substitution.search import PartCosts, Used
from weft.hdl.isa.config import Config
from weft.samples import Samples, SampleSource, fit_samples

MAX_STEPS = 65_535
_MAX_ROUNDS = 3
"""Limit for passes over the graph; each looks for rewrites that earlier ones made possible."""


@dataclass(frozen=True)
class Budget:
    """Error budget: a number of `steps` of any value that leaves the device, or a `share` of changed maxima.

    The share, from 0 to 1, is that of runs in which an output has its maximum at another place. One of the two is None.
    """

    steps: float | None = None
    share: float | None = None

    @classmethod
    def of(cls, text_or_number: object) -> Budget:
        """Return the budget for a number of steps or a text: 2, "2" or "0.5%".

        Raises
        ------
        InputError
            If the value is neither.
        """
        text = str(text_or_number).strip()
        percent = text.endswith("%")
        try:
            # float(True) is 1: a truth value is no budget.
            value = float("nan") if isinstance(text_or_number, bool) else float(text.removesuffix("%"))
        except ValueError:
            value = float("nan")
        limit = 100 if percent else MAX_STEPS
        if not 0 <= value <= limit:
            raise InputError(
                f"'budget' must be steps of outputs from 0 to {MAX_STEPS:,}, or a share of runs from 0% to 100%, not "
                f"{text_or_number!r}"
            )
        return cls(share=value / 100) if percent else cls(steps=value)

    def allows(self, difference: Difference) -> bool:
        """Return whether a difference is within the budget."""
        if self.share is not None:
            return difference.moved <= self.share * difference.choices
        return self.steps is not None and difference.largest <= self.steps


@dataclass(frozen=True)
class Difference:
    """Difference between two forms of a model on samples.

    `largest` and `mean` are differences of values that leave the device, in steps. `choices` counts rows of outputs (n,
    classes) over all `runs`, `moved` those whose maximum is at another place.
    """

    runs: int
    largest: int = 0
    mean: float = 0.0
    choices: int = 0
    moved: int = 0

    @property
    def summary(self) -> str:
        """The difference as a clause."""
        choices = f", and {self.moved:,} of {self.choices:,} maxima moved" if self.choices else ""
        return (
            f"on {self.runs:,} samples values that leave the device differ by at most {self.largest:,} steps, "
            f"{self.mean:.3f} on average{choices}"
        )


@dataclass(frozen=True)
class RoundingResult:
    """Rewrites that were applied, the cycles of all device programs `before` and `after`, and the difference."""

    used: tuple[Used, ...]
    before: int
    after: int
    difference: Difference

    @property
    def lines(self) -> tuple[str, ...]:
        """Report of the rewrites, line by line."""
        return (
            *(item.summary for item in self.used),
            f"{len(self.used)} rewrites with different rounding: {self.after:,} cycles instead of {self.before:,} by "
            f"the cycle model; {self.difference.summary}",
        )


def round_within_budget(
    graph: Graph,
    config: Config,
    budget: float | str | Budget,
    samples: SampleSource,
    *,
    bandwidth: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[Graph, RoundingResult]:
    """Apply rewrites that make a model faster and stay within an error budget.

    Parameters
    ----------
    graph : Graph
        From the front end.
    config : Config
    budget : Budget, float or str
        See `Budget.of`.
    samples : mapping, array or path
        Inputs on which outputs are compared; see `weft.samples.fit_samples`.
    bandwidth : float
        Of the memory, in bytes per cycle.
    progress : callable
        Called with a description of each attempt.

    Raises
    ------
    FileError, InputError
        If the samples do not fit the model, the model has states, or a share is given for a model without class
        outputs.
    """
    budget = budget if isinstance(budget, Budget) else Budget.of(budget)
    if graph.states:
        raise InputError("'budget' is for models without states, and this model has states")
    comparison = _OutputComparison(graph, config, fit_samples(samples, graph.inputs))
    if budget.share is not None and not comparison.choices:
        raise InputError(
            "a 'budget' in % is for models with an output of classes, (n, classes), and this model has none: give steps"
        )
    return _Search(budget, comparison, Costs(config, bandwidth), progress).run(graph)


class _OutputComparison:
    """Comparison of a model's forms with its original outputs on samples."""

    def __init__(self, graph: Graph, config: Config, samples: Samples) -> None:
        self._bits, self._samples = config.mantissa_bits, samples
        self._compared_names = [item.value for item in graph.from_device]
        self._outputs = list(graph.outputs)
        self._expected = list(self._runs(graph))
        self.choices = any(_is_choice(self._expected[0][name]) for name in self._outputs)

    def compare(self, graph: Graph) -> Difference:
        """Return the difference of a form of the model from the original."""
        largest, total, count, choices, moved = 0, 0, 0, 0, 0
        for expected, actual in zip(self._expected, self._runs(graph), strict=True):
            for name in self._compared_names:
                # Differences of bytes do not fit a byte.
                distance = np.abs(actual[name].astype(np.int64) - expected[name])
                largest = max(largest, int(distance.max(initial=0)))
                total, count = total + int(distance.sum()), count + distance.size
            for name in self._outputs:
                if _is_choice(expected[name]):
                    expected_rows, actual_rows = (
                        item[name].reshape(len(item[name]), -1) for item in (expected, actual)
                    )
                    differs = expected_rows.argmax(1) != actual_rows.argmax(1)
                    choices, moved = choices + differs.size, moved + int(differs.sum())
        return Difference(len(self._samples), largest, total / max(count, 1), choices, moved)

    def _runs(self, graph: Graph) -> Iterator[dict[str, np.ndarray]]:
        """Yield the compared values of each sample."""
        for sample in self._samples:
            values = run_model(graph, sample, self._bits)
            yield {name: np.asarray(values[name]) for name in (*self._compared_names, *self._outputs)}


def _is_choice(value: np.ndarray) -> bool:
    """Return whether a value holds classes: (n, classes), perhaps with axes of one element."""
    return value.ndim > 1 and len(value) > 0 and value.size // len(value) == max(value.shape[1:]) > 1


class _Candidate(NamedTuple):
    """Form of the model with its cycles, applied rewrites, and difference from the original."""

    graph: Graph
    cycles: int
    used: tuple[Used, ...]
    difference: Difference


class _Search:
    """Search for rewrites: all that make their part faster at once or, if that exceeds the budget, one by one."""

    def __init__(
        self, budget: Budget, comparison: _OutputComparison, costs: Costs, progress: Callable[[str], None]
    ) -> None:
        self._budget, self._comparison = budget, comparison
        self._costs, self._parts, self._progress = costs, PartCosts(costs), progress

    def run(self, graph: Graph) -> tuple[Graph, RoundingResult]:
        """Return the best form of the model, and a report."""
        original = candidate = _Candidate(graph, self._cycles(graph), (), self._comparison.compare(graph))
        for _ in range(_MAX_ROUNDS):
            offers = self._find_offers(candidate.graph)
            # Try all offers at once; if that is refused, add them one by one.
            better = self._apply(candidate, offers)
            if better is candidate:
                for offer in offers:
                    better = self._apply(better, [offer])
            if better is candidate:
                break
            candidate = better
        return candidate.graph, RoundingResult(
            candidate.used, original.cycles, candidate.cycles, candidate.difference
        )

    def _cycles(self, graph: Graph) -> int:
        return sum(map(self._costs, _device_segments(graph)))

    def _find_offers(self, graph: Graph) -> list[Used]:
        """Return rewrites that make their part faster, best first."""
        offers_by_name: dict[tuple[str, str], Used] = {}
        for segment in _device_segments(graph):
            for item in rewrites(segment):
                self._progress(f"{item.operator}: {item.rule}")
                costs = self._parts.compare(segment, item.segment)
                if costs is not None and costs[1] < costs[0]:
                    # Offers are applied by operator and rule: objects change with every rewrite before them.
                    offers_by_name[item.operator, item.rule] = Used((item.rule,), item.operator, *costs)
        return sorted(offers_by_name.values(), key=lambda offer: -offer.saving)

    def _apply(self, candidate: _Candidate, offers: Sequence[Used]) -> _Candidate:
        """Return the candidate with as many of the offers as apply, or the same one unless that is faster and
        allowed.
        """
        graph, used = candidate.graph, candidate.used
        for offer in offers:
            self._progress(f"{offer.operator}: {', '.join(offer.rules)}: on samples")
            rewritten = apply_rewrite(graph, offer)
            if rewritten is not None:
                graph, used = rewritten, (*used, offer)
        if graph is candidate.graph:
            return candidate
        difference = self._comparison.compare(graph)
        if not self._budget.allows(difference):
            return candidate
        cycles = self._cycles(graph)
        return _Candidate(graph, cycles, used, difference) if cycles < candidate.cycles else candidate


def _device_segments(graph: Graph) -> list[DeviceSegment]:
    return [segment for segment in graph.segments if isinstance(segment, DeviceSegment)]


def apply_rewrite(graph: Graph, offer: Used) -> Graph | None:
    """Apply a rewrite, given by its rule and its operator; return None if it does not apply."""

    def matches(item: Rewrite) -> bool:
        return (item.operator, (item.rule,)) == (offer.operator, offer.rules)

    for segment in _device_segments(graph):
        if (match := next(filter(matches, rewrites(segment)), None)) is not None:
            segments = tuple(match.segment if item is segment else item for item in graph.segments)
            return dataclasses.replace(graph, segments=segments)
    return None
