"""Plans of convolutions that were found by search: what `weft.extras.search.tune` writes and the compiler reads."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import msgspec

from weft.compiler.plan.conv_plan import Chooser, ConvPlan, Tiling, candidates, plan
from weft.compiler.plan.conv_shape import ConvShape
from weft.errors import FileError
from weft.hdl import schema
from weft.hdl.isa.config import Config, ConfigError

FORMAT = "weft tuning 3"
KEPT = "weft tuned layer 2"
"""Format of one layer in the cache."""
TIMED = ("weft.compiler", "weft.hdl", "weft.sim.timing", "weft.run.runtime", "weft.extras.search.tune")
"""Packages and modules of which a change may change cycles."""
Cycles = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]


@dataclass(frozen=True)
class TunedLayer:
    """A layer's tiling, and its cycles on its own: with the default plan, and with this one."""

    name: str
    tiling: Tiling
    default: Cycles
    cycles: Cycles

    def text(self) -> str:
        """As JSON, for the cache."""
        return schema.encode(_Kept(KEPT, self))

    @classmethod
    def load(cls, path: Path) -> TunedLayer | None:
        """What `text` made; None if the file is not there, or anything else is in it."""
        try:
            return schema.decode(schema.read_bytes(path), _Kept, format=KEPT).layer
        except (OSError, schema.SchemaError):
            return None


class _Kept(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    layer: TunedLayer


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    sources: str
    config: dict[str, Any]
    latency: Annotated[int, msgspec.Meta(ge=1)]
    bandwidth: Annotated[float, msgspec.Meta(gt=0)] | None
    layers: dict[str, TunedLayer]


@dataclass(frozen=True)
class Tuning:
    """Tilings for the convolutions of one configuration, by `ConvShape.key`.

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

    @property
    def planned(self) -> str:
        """The memory in words."""
        return (
            "for a memory as fast as the bus"
            if self.bandwidth is None
            else f"for {self.bandwidth:g} bytes a cycle"
        )

    def chooser(self) -> Chooser:
        """Plans layers as tuned, and those it does not know as usual."""

        def choose(shape: ConvShape) -> ConvPlan | None:
            layer, usual = self.layers.get(shape.key), plan(shape)
            return usual if layer is None or usual is None else tuned(shape, layer, usual)

        return choose

    def text(self) -> str:
        """As JSON."""
        return schema.encode(
            _File(FORMAT, sources_digest(), self.config.to_dict(), self.latency, self.bandwidth, self.layers)
        )

    @classmethod
    def load(cls, path: Path, config: Config) -> Tuning:
        """Read what `text` made, for `config`.

        Raises
        ------
        FileError
            If the file is missing, is none of these, or was made for another configuration or by another version.
        """
        try:
            values = schema.decode(schema.read_bytes(path), _File, format=FORMAT)
            made_for = Config.from_dict(values.config)
        except (schema.SchemaError, ConfigError) as error:
            raise FileError(f"{path} is no tuning that can be read: {error}; run `weft tune` again") from None
        if made_for != config:
            raise FileError(
                f"{path} is for configuration {made_for.digest:#010x}, not {config.digest:#010x}: "
                "run `weft tune` with the same --config"
            )
        if values.sources != sources_digest():
            raise FileError(f"{path} is from another version of weft: run `weft tune` again")
        return cls(config, values.latency, values.bandwidth, values.layers)


def tuned(shape: ConvShape, layer: TunedLayer, usual: ConvPlan) -> ConvPlan:
    """The plan with a layer's tiling, or the usual one if there is no such plan.

    Its cycles are those that the usual one is estimated to take, less the share that it took less when both were tried:
    an estimate by which it is compared with plans of other layers, which were not.
    """
    found = (item for item in candidates(shape) if item.tiling == layer.tiling)
    share = layer.cycles / layer.default
    return next((dataclasses.replace(item, cycles=usual.cycles * share) for item in found), usual)


@cache
def sources_digest() -> str:
    """A hash of all sources that decide what is made of a tiling, and how many cycles that takes."""
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
