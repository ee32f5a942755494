"""Proposals of points by Optuna, with a journal file that several searches can share."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.errors import FileError, InputError
from weft.extras.search.explore.point import Place
from weft.extras.search.explore.space import FIELDS, Space
from weft.hdl.isa.config import Config

SAMPLERS = ("nsga2", "tpe")
POPULATION = 40
PLACE = "place"


class Study:
    """Optuna study over a space at some places.

    Parameters
    ----------
    path : Path
        Journal file. If it exists, the search resumes; concurrent searches share it.
    name : str
        Name of the study in the journal.
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
        If Optuna is not installed, or the journal belongs to another search or is damaged.
    InputError
        If the sampler does not exist.
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
        samplers = optuna.samplers
        chosen_sampler = (
            samplers.NSGAIISampler(population_size=POPULATION, seed=seed)
            if sampler == "nsga2"
            else samplers.TPESampler(seed=seed, multivariate=True)
        )
        with _journal_errors(path):
            storage = optuna.storages.JournalStorage(
                journal.JournalFileBackend(str(path), lock_obj=journal.JournalFileOpenLock(str(path)))
            )
            self._study = optuna.create_study(
                storage=storage,
                sampler=chosen_sampler,
                study_name=name,
                directions=["minimize"] * len(objectives),
                load_if_exists=True,
            )

    @property
    def distributions(self) -> dict[str, Any]:
        """Distributions of value indices, for fields with several values."""
        number = self._optuna.distributions.IntDistribution
        counts = {name: len(choices) for name, choices in self._space.fields.items()}
        counts[PLACE] = len(self._places)
        # Fields with a single value are not parameters.
        return {name: number(0, count - 1) for name, count in counts.items() if count > 1}

    def prefer(self, config: Config, place: Place) -> None:
        """Propose a configuration soon, if it is in the space and was not requested before."""
        if (parameters := self._encode(config, place)) is not None:
            self._study.enqueue_trial(parameters, skip_if_exists=True)

    def propose(self) -> tuple[int, Mapping[str, int], Place]:
        """Return the number of a proposal, the values of all fields, and a place."""
        while True:
            try:
                trial = self._study.ask(self.distributions)
            except self._optuna.exceptions.UpdateFinishedTrialError:
                continue  # another search took the same proposal and has finished it
            return trial.number, *self._decode(trial.params)

    def tell(self, number: int, values: Sequence[float] | None) -> bool:
        """Record the result of a proposal; None means that it is not a solution or is dominated.

        Return whether Optuna accepted it as a solution; another search may have recorded it as abandoned.
        """
        state = self._optuna.trial.TrialState
        result = {"state": state.FAIL} if values is None else {"values": list(values)}
        try:
            completed_trial = self._study.tell(number, **result, skip_if_finished=True)
        except self._optuna.exceptions.UpdateFinishedTrialError:
            # Another search recorded it between Optuna's check of its state and the entry in the journal.
            completed_trial = self._study.tell(number, **result, skip_if_finished=True)
        return bool(completed_trial.state == state.COMPLETE)

    def add(self, config: Config, place: Place, values: Sequence[float]) -> None:
        """Record the values of a point that was not proposed, if it is in the space and not known yet."""
        parameters = self._encode(config, place)
        if parameters is not None and all(trial.params != parameters for trial in self._complete()):
            self._study.add_trial(
                self._optuna.trial.create_trial(
                    params=parameters, distributions=self.distributions, values=list(values)
                )
            )

    def _complete(self) -> list[Any]:
        return self._study.get_trials(deepcopy=False, states=(self._optuna.trial.TrialState.COMPLETE,))

    def solutions(self) -> Iterator[tuple[Mapping[str, int], Place]]:
        """Yield the values of all fields, and the place, of every recorded solution."""
        for trial in self._complete():
            yield self._decode(trial.params)

    def abandoned_trials(self) -> Iterator[int]:
        """Yield the numbers of proposals without a result.

        They are left over from interrupted searches, but also include running ones of searches that share the journal.
        """
        for trial in self._study.get_trials(deepcopy=False, states=(self._optuna.trial.TrialState.RUNNING,)):
            yield trial.number

    def retry(self, number: int) -> None:
        """Record a proposal as failed, and propose it again."""
        trial = next(item for item in self._study.get_trials(deepcopy=False) if item.number == number)
        self.tell(number, None)
        self._study.enqueue_trial(dict(trial.params))

    def _decode(self, parameters: Mapping[str, int]) -> tuple[Mapping[str, int], Place]:
        indices = {name: parameters.get(name, 0) for name in (*FIELDS, PLACE)}
        place = self._places[indices.pop(PLACE)]
        return self._space.values_at(indices), place

    def _encode(self, config: Config, place: Place) -> dict[str, int] | None:
        if place not in self._places or (indices := self._space.indices(config)) is None:
            return None
        indices[PLACE] = self._places.index(place)
        return {name: indices[name] for name in self.distributions}


@contextlib.contextmanager
def _journal_errors(path: Path) -> Iterator[None]:
    """Turn errors of an unreadable journal into `FileError`."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(
            f"{path} is not a journal of this search ({error}): choose another --output"
        ) from None
