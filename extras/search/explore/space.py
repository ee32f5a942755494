"""Space of configurations, a few values for each field, and proposals of points in it by Optuna.

Several searches can share the journal file of the proposals.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from weft.errors import FileError, InputError
from weft.extras.search.explore.point import Place
from weft.hdl import schema
from weft.hdl.errors import ConfigError, SchemaError
from weft.hdl.isa.config import MAX_DEPTHWISE_TAPS, PRESETS, Config

FORMAT = "weft space 1"
FIELDS = tuple(field.name for field in dataclasses.fields(Config))
DEFAULT: dict[str, tuple[int, ...]] = {
    "n": (2, 4, 8, 16, 32, 64, 128),
    "lanes": (1, 2, 4, 8, 16, 32, 64, 128),
    "scratchpad_banks": (2, 4, 8, 16),
    "scratchpad_depth": (64, 128, 256, 512, 1024, 2048, 4096),
    "accumulator_banks": (2, 4),
    "accumulator_depth": (32, 64, 128, 256, 512, 1024),
    "bus_bytes": (4, 8, 16, 32, 64, 128),
    "mantissa_bits": (24,),
    "queue_depth": (1, 2, 4, 8),
    "probability_bits": (0, 7, 8),
    "row_states": (8, 16, 32, 64, 128, 256, 512),
    "alignments": (64, 128, 256, 1024, 2048),
    "table_depth": (256, 512, 1024, 2048),
    "lookup_tables": (0, 1, 2, 4),
    "multiply": (0, 1),
    "kernel": (0, 64, 128, 256),
    "depthwise_taps": (0, 2, 3, 5),
    "int4": (0, 1),
    "loops": (0,),
    "parity": (0,),
    "descriptors": (0,),
}
"""Default values by field.

They include those of presets and boards, so that a search can start there. Mantissas have the width at which results
are exact.
"""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    fields: dict[str, list[int]]
    base: str | None = None


@dataclass(frozen=True)
class Space:
    """Values that the fields of a `Config` may take.

    Parameters
    ----------
    values : mapping of str to sequence of int
        By field; other fields have the values of `DEFAULT`.
    base : str, optional
        Preset that gives the values of other fields instead.

    Attributes
    ----------
    fields : dict of str to tuple of int
        Sorted distinct values of every field.

    Raises
    ------
    InputError
        If a field or preset does not exist, or a field has no value or an invalid one.
    """

    values: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    base: str | None = None

    def __post_init__(self) -> None:
        if self.base is not None and self.base not in PRESETS:
            raise InputError(
                f"'base' of a space is a preset ({', '.join(PRESETS)}), not {schema.short_repr(self.base)}"
            )
        for name, values in self.values.items():
            if name not in FIELDS:
                raise InputError(
                    f"a space has no field {schema.short_repr(name)}; the fields are {', '.join(FIELDS)}"
                )
            if not values:
                raise InputError(f"the space has no value for {name!r}: give at least one")
            for value in values:
                _check(name, value)

    @property
    def fields(self) -> dict[str, tuple[int, ...]]:
        base = (
            {name: (value,) for name, value in PRESETS[self.base].to_dict().items()} if self.base else DEFAULT
        )
        return {name: tuple(sorted(set(self.values.get(name, base[name])))) for name in FIELDS}

    @property
    def size(self) -> int:
        """Number of combinations of values; several can give the same configuration."""
        return math.prod(map(len, self.fields.values()))

    def config(self, values_by_field: Mapping[str, int]) -> Config:
        """Return the configuration for values of all fields.

        Lanes, bus, depthwise taps and `int4` that do not fit the array's side are changed to the nearest value that
        does. Raise `ConfigError` for memories of too many rows.
        """
        values = dict(values_by_field)
        n = values["n"]
        values["lanes"] = min(values["lanes"], n)
        values["bus_bytes"] = max(values["bus_bytes"], n, 4)
        # A single tap is not a valid value.
        taps = min(values["depthwise_taps"], n // 2, MAX_DEPTHWISE_TAPS)
        values["depthwise_taps"] = taps if taps >= 2 else 0
        # `Config` takes block factors (2) only for such arrays.
        if values["int4"] == 2 and not (4 <= n <= 32 and values["bus_bytes"] == n):
            values["int4"] = 1
        return Config(**values)

    def indices(self, config: Config) -> dict[str, int] | None:
        """Return the index of each field's value in the space; None if one is not in the space."""
        values = config.to_dict()
        if any(values[name] not in choices for name, choices in self.fields.items()):
            return None
        return {name: choices.index(values[name]) for name, choices in self.fields.items()}

    def values_at(self, indices: Mapping[str, int]) -> dict[str, int]:
        """Return the values at these indices."""
        return {name: choices[indices[name]] for name, choices in self.fields.items()}

    @classmethod
    def load(cls, path: Path) -> Space:
        """Read a JSON file: ``{"format": "weft space 1", "base": "small", "fields": {"n": [4, 8]}}``.

        Raises
        ------
        FileError
            If the file cannot be read or is invalid; the message tells why.
        """
        try:
            values = schema.decode(schema.read_bytes(path, 1 << 20), _File, format=FORMAT)
            return cls(values.fields, values.base)
        except (SchemaError, InputError) as error:
            raise FileError(f"{path} is not a valid space of configurations: {error}") from None


_COMPATIBLE_VALUES: dict[str, dict[str, int]] = {
    "n": {"lanes": 1, "bus_bytes": 128}, "lanes": {"n": 128, "bus_bytes": 128}, "bus_bytes": {"n": 4, "lanes": 1},
    "depthwise_taps": {"n": 128, "bus_bytes": 128}, "int4": {"n": 8, "bus_bytes": 8},
    "scratchpad_banks": {"scratchpad_depth": 16}, "scratchpad_depth": {"scratchpad_banks": 2},
    "accumulator_banks": {"accumulator_depth": 16}, "accumulator_depth": {"accumulator_banks": 2},
}  # fmt: skip
"""Values of other fields with which a field may take all of its valid values."""


def _check(name: str, value: int) -> None:
    """Raise `InputError` if no configuration has that value."""
    try:
        Config().replace(**{**_COMPATIBLE_VALUES.get(name, {}), name: value})
    except ConfigError as error:
        raise InputError(f"the space: {error}") from None


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
