"""Files of a search: models, all points, and a plot of the front; and the report on the terminal."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from weft import files
from weft import report as reports
from weft.errors import FileError
from weft.extras.search.explore.confirm import Check, Name, Outcome, Outcomes
from weft.extras.search.explore.evaluate import Models
from weft.extras.search.explore.explore import JOURNAL, Exploration, Task
from weft.extras.search.explore.plot import page
from weft.extras.search.explore.point import OBJECTIVES, PICOJOULES, Measured, Place, dominates, values
from weft.extras.search.explore.space import Space
from weft.extras.search.tune import sources_digest
from weft.hdl import schema
from weft.hdl.errors import SchemaError

FORMAT = "weft exploration 1"
FILE, PLOT, MODELS = "exploration.json", "front.html", "models"


class _ExplorationFile(msgspec.Struct):
    format: str
    about: dict[str, Any]
    points: list[Any] = msgspec.field(default_factory=list)


def copy_models(folder: Path, paths: Sequence[Path], shapes: Mapping[str, int]) -> Models:
    """Copy the models below `folder`, where all workers find them; may raise `OSError`."""
    copies, digests = [], []
    for path in paths:
        raw = path.read_bytes()
        digest = hashlib.sha256(raw).hexdigest()
        # The hash keeps models of one name apart, and lets a resumed search reuse its copies.
        copy = folder / MODELS / f"{digest[:16]}-{path.name}"
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            with files.whole_file(copy) as part:
                part.write_bytes(raw)
        copies.append(str(copy.resolve()))
        digests.append(digest)
    return Models(tuple(copies), tuple(digests), tuple(sorted(shapes.items())))


@dataclass(frozen=True)
class Output:
    """Folder of a search.

    Attributes
    ----------
    about : dict
        Parameters of the search as plain values.
    """

    folder: Path
    task: Task
    about: dict[str, Any]

    @classmethod
    def of(
        cls,
        folder: Path,
        models: Models,
        space: Space,
        places: tuple[Place, ...],
        objectives: tuple[str, ...],
        limits: Mapping[str, float],
        search: tuple[str, int],
    ) -> Output:
        """Return the folder for a search.

        Raise `FileError` if it has the results of another search or of another version of weft. A search that was
        refused before it started leaves no results.
        """
        task = Task(models, space, places, objectives, limits)
        about = {
            "sources": sources_digest(),
            "models": dict(zip((Path(path).name for path in models.paths), models.digests, strict=True)),
            "shapes": dict(models.shapes),
            "space": {name: list(known) for name, known in space.fields.items()},
            "places": [dataclasses.asdict(place) for place in places],
            "objectives": list(objectives),
            "limits": dict(limits),
            "sampler": search[0],
            "seed": search[1],
        }
        output = cls(folder, task, about)
        output._check()
        return output

    def _check(self) -> None:
        path = self.folder / FILE
        if not path.exists():
            self._write_about()
            return
        try:
            stored = schema.decode(schema.read_bytes(path), _ExplorationFile, format=FORMAT)
        except SchemaError as error:
            raise FileError(f"{path} is no result of a search: {error}; choose another --output") from None
        if not stored.points and not (self.folder / JOURNAL).exists():
            self._write_about()
            return
        stored_about = stored.about
        if stored_about.get("sources") != self.about["sources"]:
            raise FileError(f"{path} is from another version of weft: choose another --output")
        for name, value in self.about.items():
            if stored_about.get(name) != value:
                raise FileError(
                    f"{path} is of a search with other {name} ({schema.short_repr(stored_about.get(name))}): give "
                    "the same, or choose another --output"
                )

    def _write_about(self) -> None:
        files.write_json(self.folder / FILE, {"format": FORMAT, "about": self.about})

    def write(self, exploration: Exploration, confirmed: Outcomes | None = None) -> None:
        """Write the points and the plot; `confirmed` holds details of checks, which are added to their points."""
        points_described = [item.to_dict() for item in exploration.measured]
        front_ids = {id(item) for item in exploration.pareto_front}
        for item, entry in zip(exploration.measured, points_described, strict=True):
            entry["front"] = id(item) in front_ids
            entry |= (confirmed or {}).get(item.point.key, {})
        text = {
            "format": FORMAT,
            "about": self.about,
            "units": OBJECTIVES,
            "picojoules": PICOJOULES,
            "excluded": dict(exploration.excluded),
            "bounded": exploration.bounded,
            "points": points_described,
        }
        files.write_json(self.folder / FILE, text)
        files.write_text(self.folder / PLOT, page(exploration))


def show(exploration: Exploration, folder: Path) -> None:
    """Print the front, the references that it dominates, and a summary of all points."""
    units = list(dict.fromkeys((*exploration.objectives, "ms", "lut", "ff", "dsp", "ram")))
    table = reports.table(
        "number",
        "place",
        "array",
        "from",
        *units,
        "MHz",
        "of array",
        right=("number", *units, "MHz", "of array"),
    )
    for number, item in enumerate(exploration.pareto_front, 1):
        config = item.point.config
        table.add_row(
            f"{number}",
            item.point.place.name,
            f"{config.n} x {config.n}",
            item.origin,
            *(_shown(name, item) for name in units),
            f"{item.point.clock / 1e6:g}",
            f"{item.utilisation:.1%}",
        )
    reports.stdout().print(table)
    _show_references(exploration, units)
    excluded = ", ".join(f"{reason} {count:,}" for reason, count in exploration.excluded.most_common(6))
    reports.say(
        f"{len(exploration.measured):,} points measured, {len(exploration.pareto_front):,} on the front; "
        f"{exploration.bounded:,} more skipped, because their rooflines are dominated"
    )
    if excluded:
        reports.say(f"excluded: {excluded}")
    reports.say(
        f"{folder / FILE}: all points with their configurations; {folder / PLOT}: a plot of the front"
    )


def _show_references(exploration: Exploration, units: Sequence[str]) -> None:
    """Print presets and boards' own configurations, each with the first point that dominates it."""
    compared = references(exploration)
    if compared:
        table = reports.table("preset or board", "place", *units, "dominated by", right=units)
        for item, number in compared:
            dominated_by = f"number {number}" if number else "none"
            table.add_row(
                item.origin, item.point.place.name, *(_shown(name, item) for name in units), dominated_by
            )
        reports.stdout().print(table)
    dominated = sum(number > 0 for _, number in compared)
    reports.say(
        f"{dominated} of {len(compared)} presets and boards' own configurations are dominated by a point of the front"
    )
    if exploration.unsuitable:
        reasons = ", ".join(f"{name} ({reason})" for name, reason in exploration.unsuitable.items())
        reports.say(f"not solutions: {reasons}")


def show_check(name: Name, check: Check, outcome: Outcome) -> None:
    """Print the outcome of a check."""
    config, (number, kind) = check.item.point.config, name
    point_text = f"number {number}, {config.n} x {config.n} on {check.item.point.place.name}"
    suffix = "" if outcome.details["good"] else " (failed)"
    reports.say(f"{point_text}, {kind}: {outcome.summary}{suffix}")


def references(exploration: Exploration) -> list[tuple[Measured, int]]:
    """Return the measured presets and boards' own configurations.

    Each comes with the number of the first point of the front that dominates it, from 1 on, or 0 if none does.
    """
    front_values = [values(item, exploration.objectives) for item in exploration.pareto_front]
    compared = []
    for item in exploration.measured:
        if item.origin != "search":
            own_values = values(item, exploration.objectives)
            compared.append(
                (
                    item,
                    next((at for at, other in enumerate(front_values, 1) if dominates(other, own_values)), 0),
                )
            )
    return compared


def _shown(name: str, item: Measured) -> str:
    value = item.values[name]
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"
