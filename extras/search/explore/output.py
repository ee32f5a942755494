"""What a search leaves in its folder: models, a file of all points, and a picture; and what it says."""

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
from weft.extras.search.explore.checks import Check, Confirmed, Name, Outcome
from weft.extras.search.explore.evaluate import Models
from weft.extras.search.explore.explore import JOURNAL, Exploration, Task
from weft.extras.search.explore.front import dominates, values
from weft.extras.search.explore.place import Place
from weft.extras.search.explore.plot import page
from weft.extras.search.explore.point import OBJECTIVES, PICOJOULES, Measured
from weft.extras.search.explore.space import Space
from weft.extras.search.tuning import sources_digest
from weft.hdl import schema

FORMAT = "weft exploration 1"
FILE, PLOT, MODELS = "exploration.json", "front.html", "models"


class _About(msgspec.Struct):
    format: str
    about: dict[str, Any]
    points: list[Any] = msgspec.field(default_factory=list)


def models_of(folder: Path, paths: Sequence[Path], shapes: Mapping[str, int]) -> Models:
    """Copies of the models below `folder`, where all workers find them. Raises `OSError` as files do."""
    found, digests = [], []
    for path in paths:
        raw = path.read_bytes()
        digest = hashlib.sha256(raw).hexdigest()
        copy = folder / MODELS / f"{digest[:16]}-{path.name}"
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            with files.whole_file(copy) as part:
                part.write_bytes(raw)
        found.append(str(copy.resolve()))
        digests.append(digest)
    return Models(tuple(found), tuple(digests), tuple(sorted(shapes.items())))


@dataclass(frozen=True)
class Output:
    """A search's folder.

    Attributes
    ----------
    about : dict
        What the search is about, as plain values.
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
        where: tuple[Place, ...],
        objectives: tuple[str, ...],
        limits: Mapping[str, float],
        search: tuple[str, int],
    ) -> Output:
        """Raises `FileError` if the folder has the results of another search, or of another version of weft. A search
        that was refused before it began has left none."""
        task = Task(models, space, where, objectives, limits)
        about = {
            "sources": sources_digest(),
            "models": dict(zip((Path(path).name for path in models.paths), models.digests, strict=True)),
            "shapes": dict(models.shapes),
            "space": {name: list(known) for name, known in space.fields.items()},
            "places": [dataclasses.asdict(place) for place in where],
            "objectives": list(objectives),
            "limits": dict(limits),
            "sampler": search[0],
            "seed": search[1],
        }
        made = cls(folder, task, about)
        made._check()
        return made

    def _check(self) -> None:
        path = self.folder / FILE
        if not path.exists():
            self._begin()
            return
        try:
            found = schema.decode(schema.read_bytes(path), _About, format=FORMAT)
        except schema.SchemaError as error:
            raise FileError(f"{path} is no result of a search: {error}; choose another --output") from None
        if not found.points and not (self.folder / JOURNAL).exists():
            self._begin()
            return
        known = found.about
        if known.get("sources") != self.about["sources"]:
            raise FileError(f"{path} is from another version of weft: choose another --output")
        for name, value in self.about.items():
            if known.get(name) != value:
                raise FileError(
                    f"{path} is of a search with other {name} ({schema.short_repr(known.get(name))}): give the same, "
                    "or choose another --output"
                )

    def _begin(self) -> None:
        files.write_json(self.folder / FILE, {"format": FORMAT, "about": self.about})

    def write(self, found: Exploration, confirmed: Confirmed | None = None) -> None:
        """Write the points and the picture, and of points what confirmed them, as plain values by name."""
        described = [item.described() for item in found.measured]
        best = {id(item) for item in found.front}
        for item, known in zip(found.measured, described, strict=True):
            known["front"] = id(item) in best
            known |= (confirmed or {}).get(item.point.key, {})
        text = {
            "format": FORMAT,
            "about": self.about,
            "units": OBJECTIVES,
            "picojoules": PICOJOULES,
            "excluded": dict(found.excluded),
            "bounded": found.bounded,
            "points": described,
        }
        files.write_json(self.folder / FILE, text)
        files.write_text(self.folder / PLOT, page(found))


def show(found: Exploration, folder: Path) -> None:
    """Print the front, what of it is better than each preset and each board's own configuration, and what became of all
    points."""
    units = list(dict.fromkeys((*found.objectives, "ms", "lut", "ff", "dsp", "ram")))
    made = reports.table(
        "number",
        "place",
        "array",
        "from",
        *units,
        "MHz",
        "of array",
        right=("number", *units, "MHz", "of array"),
    )
    for number, item in enumerate(found.front, 1):
        config = item.point.config
        made.add_row(
            f"{number}",
            item.point.place.name,
            f"{config.n} x {config.n}",
            item.origin,
            *(_shown(name, item) for name in units),
            f"{item.point.clock / 1e6:g}",
            f"{item.utilisation:.1%}",
        )
    reports.stdout().print(made)
    _show_references(found, units)
    excluded = ", ".join(f"{reason} {count:,}" for reason, count in found.excluded.most_common(6))
    reports.say(
        f"{len(found.measured):,} points measured, {len(found.front):,} of them on the front; {found.bounded:,} more "
        f"cannot be better, by their rooflines"
    )
    if excluded:
        reports.say(f"excluded: {excluded}")
    reports.say(
        f"{folder / FILE}: all points with their configurations; {folder / PLOT}: the front as a picture"
    )


def _show_references(found: Exploration, units: Sequence[str]) -> None:
    """Print presets and boards' own configurations, with what is better."""
    known = references(found)
    if known:
        made = reports.table("preset or board", "place", *units, "behind", right=units)
        for item, number in known:
            behind = f"number {number}" if number else "on the front"
            made.add_row(item.origin, item.point.place.name, *(_shown(name, item) for name in units), behind)
        reports.stdout().print(made)
    beaten = sum(number > 0 for _, number in known)
    reports.say(
        f"{beaten} of {len(known)} presets and boards' own configurations are behind a point of the front, which is "
        "worse in no objective and better in one or more"
    )
    if found.unfit:
        said = ", ".join(f"{name} ({reason})" for name, reason in found.unfit.items())
        reports.say(f"no solutions, and not among them: {said}")


def show_check(name: Name, check: Check, outcome: Outcome) -> None:
    """Say what a check of a point of the front has found."""
    config, (number, what) = check.item.point.config, name
    where = f"number {number}, {config.n} x {config.n} on {check.item.point.place.name}"
    good = "" if outcome.described["good"] else " (not as it should be)"
    reports.say(f"{where}, {what}: {outcome.told}{good}")


def references(found: Exploration) -> list[tuple[Measured, int]]:
    """Presets and boards' own configurations that are solutions, each with the number of the first point of the front
    that dominates it, from 1 on; 0 if none does, as nothing is better than it or what is on the front is as good."""
    best = [values(item, found.objectives) for item in found.front]
    known = []
    for item in found.measured:
        if item.origin != "search":
            mine = values(item, found.objectives)
            known.append((item, next((at for at, other in enumerate(best, 1) if dominates(other, mine)), 0)))
    return known


def _shown(name: str, item: Measured) -> str:
    value = item.values[name]
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"
