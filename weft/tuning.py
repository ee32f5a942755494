"""Plans of convolutions that were found by search: what `weft.tune` writes and the compiler reads."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weft.compiler.conv_plan import Choice, Chooser, ConvPlan, candidates, plan
from weft.compiler.conv_shape import ConvShape
from weft.errors import FileError
from weft.hdl.config import Config

FORMAT = "weft tuning 2"
TIMED = ("weft.compiler", "weft.hdl", "weft.sim.timing", "weft.runtime", "weft.tune")
"""Packages and modules of which a change may change cycles."""


@dataclass(frozen=True)
class TunedLayer:
    """A layer's choice, and its cycles on its own: with the default plan, and with this one."""

    name: str
    choice: Choice
    default: int
    cycles: int

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TunedLayer:
        """Raises `KeyError`, `TypeError` or `ValueError` for anything that `to_dict` did not make."""
        raw = dict(values["choice"])
        for name in ("tile", "zones"):
            first, second = raw[name]
            raw[name] = (int(first), int(second))
        default, cycles = int(values["default"]), int(values["cycles"])
        return cls(str(values["name"]), Choice(**raw), default, cycles)


@dataclass(frozen=True)
class Tuning:
    """Choices for the convolutions of one configuration, by `ConvShape.key`.

    Attributes
    ----------
    config : Config
    latency, bandwidth : int, float
        The memory for which they were found: cycles, and bytes a cycle or None.
    layers : dict of str to TunedLayer
    """

    config: Config
    latency: int
    bandwidth: float | None
    layers: dict[str, TunedLayer]

    def chooser(self) -> Chooser:
        """Plans layers as chosen, and those it does not know as usual."""

        def choose(shape: ConvShape) -> ConvPlan | None:
            layer = self.layers.get(shape.key)
            return plan(shape) if layer is None else chosen(shape, layer.choice)

        return choose

    def text(self) -> str:
        """As JSON."""
        values = {
            "format": FORMAT,
            "sources": sources_digest(),
            "config": self.config.to_dict(),
            "latency": self.latency,
            "bandwidth": self.bandwidth,
            "layers": {key: layer.to_dict() for key, layer in self.layers.items()},
        }
        return json.dumps(values, indent=1) + "\n"

    @classmethod
    def load(cls, path: Path, config: Config) -> Tuning:
        """Read what `text` made, for `config`.

        Raises
        ------
        FileError
            If the file is missing, is none of these, or was made for another configuration or by another version.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise FileError(f"{path} is no tuning: it is not JSON ({error})") from None
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise FileError(f"{path} is no tuning: its format is not {FORMAT!r}; `weft tune` makes one")
        try:
            found = cls(
                Config.from_dict(values["config"]), int(values["latency"]),
                None if values["bandwidth"] is None else float(values["bandwidth"]),
                {key: TunedLayer.from_dict(layer) for key, layer in values["layers"].items()},
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileError(f"{path} is damaged: {error}; run `weft tune` again") from None
        if found.config != config:
            raise FileError(
                f"{path} is for configuration {found.config.digest:#010x}, not {config.digest:#010x}: "
                "run `weft tune` with the same --config"
            )
        if values.get("sources") != sources_digest():
            raise FileError(f"{path} is from another version of weft: run `weft tune` again")
        return found


def chosen(shape: ConvShape, choice: Choice) -> ConvPlan | None:
    """The plan of a choice; the usual one if there is no such plan."""
    return next((found for found in candidates(shape) if found.choice == choice), None) or plan(shape)


@cache
def sources_digest() -> str:
    """A hash of all sources that decide what is made of a choice, and how many cycles that takes."""
    parts = [f"{source.name}\0".encode() + source.read_bytes() for source in timed_sources()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def timed_sources() -> list[Path]:
    """The sources of the compiler, the hardware and its cycle model, and of what lays programs out in memory."""
    found = []
    for name in TIMED:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin)
        folder = source.parent.rglob("*") if spec.submodule_search_locations is not None else [source]
        found += sorted(path for path in folder if path.suffix in (".py", ".h", ".cpp"))
    return found
