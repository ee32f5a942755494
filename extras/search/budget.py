"""Rewrites that round otherwise, as many as a budget allows: what they change is measured on samples."""

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
from weft.extras.search.substitute import LATENCY, Costs
from weft.extras.search.substitution.part_costs import PartCosts
from weft.extras.search.substitution.rounding import Rewrite, rewrites
from weft.extras.search.substitution.search import Used
from weft.hdl.isa.config import Config
from weft.samples import Samples, SampleSource, fit_samples

MOST_STEPS = 65_535
_ROUNDS = 3
"""How often it is looked for rewrites that others have made possible."""


@dataclass(frozen=True)
class Budget:
    """How far outputs may be from those of the network as it is: `steps` of any value that leaves the device, or the
    `share` of runs, between 0 and 1, in which an output has its maximum elsewhere. One of them is None."""

    steps: float | None = None
    share: float | None = None

    @classmethod
    def of(cls, given: object) -> Budget:
        """The budget that a number of steps or a text is, such as 2, "2" or "0.5%".

        Raises
        ------
        InputError
            If it is none.
        """
        text = str(given).strip()
        percent = text.endswith("%")
        try:
            value = float("nan") if isinstance(given, bool) else float(text.removesuffix("%"))
        except ValueError:
            value = float("nan")
        most = 100 if percent else MOST_STEPS
        if not 0 <= value <= most:
            raise InputError(
                f"'budget' must be steps of outputs from 0 to {MOST_STEPS:,}, or a share of runs from 0% to 100%, not "
                f"{given!r}"
            )
        return cls(share=value / 100) if percent else cls(steps=value)

    def allows(self, found: Difference) -> bool:
        """Whether a difference is within it."""
        if self.share is not None:
            return found.elsewhere <= self.share * found.choices
        return self.steps is not None and found.largest <= self.steps


@dataclass(frozen=True)
class Difference:
    """Of values that leave the device: the largest and the mean one, in steps. Of outputs that are choices, (n,
    classes): how many there are in all `runs`, and how many have their maximum elsewhere."""

    runs: int
    largest: int = 0
    mean: float = 0.0
    choices: int = 0
    elsewhere: int = 0

    @property
    def told(self) -> str:
        """In words."""
        choices = f", and {self.elsewhere:,} of {self.choices:,} maxima are elsewhere" if self.choices else ""
        return (
            f"on {self.runs:,} samples values that leave the device differ by {self.largest:,} steps at most, "
            f"{self.mean:.3f} on average{choices}"
        )


@dataclass(frozen=True)
class Rounded:
    """Rewrites that were made, the cycles of all device programs `before` and `behind`, and what they change."""

    used: tuple[Used, ...]
    before: int
    behind: int
    difference: Difference

    @property
    def lines(self) -> tuple[str, ...]:
        """What was done, in lines."""
        return (
            *(item.told for item in self.used),
            f"{len(self.used)} rewrites that round otherwise: {self.behind:,} cycles instead of {self.before:,} by the "
            f"cycle model; {self.difference.told}",
        )


def rounded(
    graph: Graph,
    config: Config,
    budget: float | str | Budget,
    samples: SampleSource,
    *,
    bandwidth: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[Graph, Rounded]:
    """The model with rewrites that make it quicker, and keep within a budget.

    Parameters
    ----------
    graph : Graph
        As the front end makes it.
    config : Config
    budget : Budget, float or str
        A number or a text as of `Budget.of`.
    samples : mapping, array or path
        What outputs are compared on, as `weft.samples.fit_samples` takes them.
    bandwidth : float
        Of the memory, in bytes a cycle.
    progress : callable
        Told what is tried.

    Raises
    ------
    FileError, InputError
        If the samples do not fit the model, the model keeps states, or a share is given for a model without an output
        of classes.
    """
    budget = budget if isinstance(budget, Budget) else Budget.of(budget)
    if graph.states:
        raise InputError("'budget' is for models that keep nothing from run to run, and this one does")
    measured = _Measured(graph, config, fit_samples(samples, graph.inputs))
    if budget.share is not None and not measured.choices:
        raise InputError(
            "a 'budget' in % is for models with an output of classes, (n, classes), and this one has none: give steps"
        )
    return _Search(budget, measured, Costs(config, bandwidth, LATENCY), progress).run(graph)


class _Measured:
    """A model's outputs on samples, and how far those of another form are from them."""

    def __init__(self, graph: Graph, config: Config, samples: Samples) -> None:
        self._bits, self._samples = config.mantissa_bits, samples
        self._leaving = [item.value for item in graph.from_device]
        self._outputs = list(graph.outputs)
        self._wanted = list(self._runs(graph))
        self.choices = any(_is_choice(self._wanted[0][name]) for name in self._outputs)

    def of(self, graph: Graph) -> Difference:
        """How far a form of the model is from it."""
        largest, total, count, choices, elsewhere = 0, 0, 0, 0, 0
        for wanted, given in zip(self._wanted, self._runs(graph), strict=True):
            for name in self._leaving:
                apart = np.abs(given[name].astype(np.int64) - wanted[name])
                largest = max(largest, int(apart.max(initial=0)))
                total, count = total + int(apart.sum()), count + apart.size
            for name in self._outputs:
                if _is_choice(wanted[name]):
                    one, two = (item[name].reshape(len(item[name]), -1) for item in (wanted, given))
                    other = one.argmax(1) != two.argmax(1)
                    choices, elsewhere = choices + other.size, elsewhere + int(other.sum())
        return Difference(len(self._samples), largest, total / max(count, 1), choices, elsewhere)

    def _runs(self, graph: Graph) -> Iterator[dict[str, np.ndarray]]:
        """By sample, the values that are compared."""
        for sample in self._samples:
            values = run_model(graph, sample, self._bits)
            yield {name: np.asarray(values[name]) for name in (*self._leaving, *self._outputs)}


def _is_choice(value: np.ndarray) -> bool:
    """Whether values are those of classes: (n, classes), perhaps with axes of one element."""
    return value.ndim > 1 and len(value) > 0 and value.size // len(value) == max(value.shape[1:]) > 1


class _Form(NamedTuple):
    """A form of the model: its cycles, the rewrites that made it, and how far it is from the model as it was."""

    graph: Graph
    cycles: int
    used: tuple[Used, ...]
    difference: Difference


class _Search:
    """The choice of rewrites: all that make their part quicker, or, if these are too many, one by one."""

    def __init__(
        self, budget: Budget, measured: _Measured, costs: Costs, progress: Callable[[str], None]
    ) -> None:
        self._budget, self._measured = budget, measured
        self._costs, self._parts, self._progress = costs, PartCosts(costs), progress

    def run(self, graph: Graph) -> tuple[Graph, Rounded]:
        """The model with what was found, and what that is."""
        first = form = _Form(graph, self._cycles(graph), (), self._measured.of(graph))
        for _ in range(_ROUNDS):
            offers = self._offers(form.graph)
            better = self._with(form, offers)
            if better is form:
                for offer in offers:
                    better = self._with(better, [offer])
            if better is form:
                break
            form = better
        return form.graph, Rounded(form.used, first.cycles, form.cycles, form.difference)

    def _cycles(self, graph: Graph) -> int:
        return sum(map(self._costs, _device(graph)))

    def _offers(self, graph: Graph) -> list[Used]:
        """Rewrites that make their part quicker: the best ones first."""
        found: dict[tuple[str, str], Used] = {}
        for segment in _device(graph):
            for item in rewrites(segment):
                self._progress(f"{item.operator}: {item.what}")
                costs = self._parts.compared(segment, item.segment)
                if costs is not None and costs[1] < costs[0]:
                    found[item.operator, item.what] = Used((item.what,), item.operator, *costs)
        return sorted(found.values(), key=lambda offer: -offer.saved)

    def _with(self, form: _Form, offers: Sequence[Used]) -> _Form:
        """The form with all offers that can be made one after the other, if that is quicker and within the budget;
        otherwise itself."""
        graph, used = form.graph, form.used
        for offer in offers:
            self._progress(f"{offer.operator}: {', '.join(offer.rules)}: on samples")
            made = with_rewrite(graph, offer)
            if made is not None:
                graph, used = made, (*used, offer)
        if graph is form.graph:
            return form
        difference = self._measured.of(graph)
        if not self._budget.allows(difference):
            return form
        cycles = self._cycles(graph)
        return _Form(graph, cycles, used, difference) if cycles < form.cycles else form


def _device(graph: Graph) -> list[DeviceSegment]:
    return [segment for segment in graph.segments if isinstance(segment, DeviceSegment)]


def with_rewrite(graph: Graph, offer: Used) -> Graph | None:
    """Make one rewrite of a model, by its rule and its operator; None if there is none."""

    def wanted(item: Rewrite) -> bool:
        return (item.operator, (item.what,)) == (offer.operator, offer.rules)

    for segment in _device(graph):
        if (found := next(filter(wanted, rewrites(segment)), None)) is not None:
            segments = tuple(found.segment if item is segment else item for item in graph.segments)
            return dataclasses.replace(graph, segments=segments)
    return None
