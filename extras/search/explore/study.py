"""What is tried next: Optuna, with its journal in a file that several searches may share."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.errors import FileError, InputError
from weft.extras.search.explore.place import Place
from weft.extras.search.explore.space import FIELDS, Space
from weft.hdl.isa.config import Config

SAMPLERS = ("nsga2", "tpe")
POPULATION = 40
PLACE = "place"


class Study:
    """A search over a space at some places.

    Parameters
    ----------
    path : Path
        The journal. If it is there, the search goes on, and others that have it open share it.
    name : str
        Of the search: all that it is about.
    space : Space
    places : sequence of Place
    objectives : sequence of str
    sampler : str
        ``nsga2``: K. Deb et al., IEEE Transactions on Evolutionary Computation 6 (2002); ``tpe``: Y. Ozaki et al.,
        GECCO 2020.
    seed : int

    Raises
    ------
    FileError
        If Optuna is not installed, or the journal is of another search or damaged.
    InputError
        If there is no such sampler.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        space: Space,
        places: Sequence[Place],
        objectives: Sequence[str],
        sampler: str,
        seed: int,
    ) -> None:
        try:
            import optuna
        except ImportError:
            raise FileError("`weft explore` needs Optuna: pip install 'weft[explore]'") from None
        if sampler not in SAMPLERS:
            raise InputError(f"'sampler' is one of {', '.join(SAMPLERS)}, not {sampler!r}")
        self._optuna, self._space, self._places = optuna, space, list(places)
        self._objectives = list(objectives)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        journal = importlib.import_module("optuna.storages.journal")
        made = optuna.samplers
        chosen = (
            made.NSGAIISampler(population_size=POPULATION, seed=seed)
            if sampler == "nsga2"
            else made.TPESampler(seed=seed, multivariate=True)
        )
        with _journal(path):
            storage = optuna.storages.JournalStorage(
                journal.JournalFileBackend(str(path), lock_obj=journal.JournalFileOpenLock(str(path)))
            )
            self._study = optuna.create_study(
                storage=storage,
                sampler=chosen,
                study_name=name,
                directions=["minimize"] * len(objectives),
                load_if_exists=True,
            )

    @property
    def distributions(self) -> dict[str, Any]:
        """Places of values: of fields with several, as others are no choice."""
        number = self._optuna.distributions.IntDistribution
        counts = {name: len(known) for name, known in self._space.fields.items()}
        counts[PLACE] = len(self._places)
        return {name: number(0, count - 1) for name, count in counts.items() if count > 1}

    def prefer(self, config: Config, place: Place) -> None:
        """Have a configuration proposed soon, if it is in the space and nobody has asked for it yet."""
        if (chosen := self._parameters(config, place)) is not None:
            self._study.enqueue_trial(chosen, skip_if_exists=True)

    def propose(self) -> tuple[int, Mapping[str, int], Place]:
        """A number, the values of all fields, and a place."""
        while True:
            try:
                trial = self._study.ask(self.distributions)
            except self._optuna.exceptions.UpdateFinishedTrialError:
                continue  # another search was given the same proposal, and has measured it already
            return trial.number, *self._chosen(trial.params)

    def tell(self, number: int, values: Sequence[float] | None) -> bool:
        """What became of a proposal; None if it is no solution, or cannot be better than others. Returns whether it
        counts as one: another search may have taken it for abandoned."""
        state = self._optuna.trial.TrialState
        what = {"state": state.FAIL} if values is None else {"values": list(values)}
        try:
            told = self._study.tell(number, **what, skip_if_finished=True)
        except self._optuna.exceptions.UpdateFinishedTrialError:
            # Another search told of it between Optuna's look at its state and its entry in the journal.
            told = self._study.tell(number, **what, skip_if_finished=True)
        return bool(told.state == state.COMPLETE)

    def add(self, config: Config, place: Place, values: Sequence[float]) -> None:
        """What is known of a point that nobody proposed, if it is in the space and not known here."""
        chosen = self._parameters(config, place)
        if chosen is not None and all(trial.params != chosen for trial in self._complete()):
            self._study.add_trial(
                self._optuna.trial.create_trial(
                    params=chosen, distributions=self.distributions, values=list(values)
                )
            )

    def _complete(self) -> list[Any]:
        return self._study.get_trials(deepcopy=False, states=(self._optuna.trial.TrialState.COMPLETE,))

    def told(self) -> Iterator[tuple[Mapping[str, int], Place]]:
        """The values of all fields, and the place, of everything that was told to be a solution."""
        for trial in self._complete():
            yield self._chosen(trial.params)

    def abandoned(self) -> Iterator[int]:
        """Numbers of proposals of which nothing was told: those of a search that was ended. Others that share the
        journal have theirs among them."""
        for trial in self._study.get_trials(deepcopy=False, states=(self._optuna.trial.TrialState.RUNNING,)):
            yield trial.number

    def again(self, number: int) -> None:
        """Have a proposal that was abandoned proposed again."""
        found = next(item for item in self._study.get_trials(deepcopy=False) if item.number == number)
        self.tell(number, None)
        self._study.enqueue_trial(dict(found.params))

    def _chosen(self, parameters: Mapping[str, int]) -> tuple[Mapping[str, int], Place]:
        chosen = {name: parameters.get(name, 0) for name in (*FIELDS, PLACE)}
        place = self._places[chosen.pop(PLACE)]
        return self._space.chosen(chosen), place

    def _parameters(self, config: Config, place: Place) -> dict[str, int] | None:
        if place not in self._places or (found := self._space.places(config)) is None:
            return None
        found[PLACE] = self._places.index(place)
        return {name: found[name] for name in self.distributions}


@contextlib.contextmanager
def _journal(path: Path) -> Iterator[None]:
    """Errors of a journal that cannot be read, as a sentence."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} is no journal of this search ({error}): choose another --output") from None
